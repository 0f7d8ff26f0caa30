//! Budgets, how much of them is used, and the alerts when that is much.
//!
//! A budget is looked at again and again while it can have changed; at 80 and at 100 percent an alert is written down, once for each
//! budget, period and size. Its id follows from these, so that it is the same however often it is found or sent.
//!
//! ```text
//! pending ──taken──▶ delivered
//!    │  ▲
//!    │  └─ not taken: after a pause
//!    └─ not taken too often ──▶ failed              none: there was no webhook
//! ```
//!
//! This file is pure; `watch.rs` stores and sends.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use utoipa::ToSchema;

use super::limits::{day_of, millis_today};
use super::prices::{Prices, rounded};
use super::usage::{Quantities, day_text, month_of, month_start, month_text};
use crate::platform::rfc3339;
use crate::webhook::schedule::{Attempt, pause_after};

/// Percent of a budget at which there is an alert.
const THRESHOLDS: [u32; 2] = [80, 100];

/// Type of the message to a webhook.
const MESSAGE_TYPE: &str = "budget.threshold_reached";

/// Most characters of what is told of a failure.
const LONGEST_FAILURE: usize = 300;

/// What a budget is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum BudgetKind {
    /// Estimated US dollars in a month.
    MonthlyUsd,
    /// Seconds in a day for which sandboxes run: a limit of the key.
    SandboxSecondsPerDay,
    /// Bytes that the tenant keeps in R2.
    StorageBytes,
}

impl BudgetKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MonthlyUsd => "monthlyUsd",
            Self::SandboxSecondsPerDay => "sandboxSecondsPerDay",
            Self::StorageBytes => "storageBytes",
        }
    }
}

/// How much of one budget is used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Standing {
    /// monthlyUsd: estimated dollars in the month; sandboxSecondsPerDay: seconds of a key's sandboxes today; storageBytes: bytes in R2.
    pub budget: BudgetKind,
    /// Whose it is; absent for the whole tenant's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_id: Option<String>,
    /// The month or day, in UTC; absent where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period: Option<String>,
    pub limit: f64,
    pub used: f64,
}

impl Standing {
    fn has_reached(&self, threshold: u32) -> bool {
        self.limit > 0.0 && self.used * 100.0 >= self.limit * f64::from(threshold)
    }

    /// Alerts that there have to be at this standing.
    pub fn alerts(&self, tenant: &str, at: i64, has_webhook: bool) -> impl Iterator<Item = Alert> {
        THRESHOLDS.into_iter().filter(|threshold| self.has_reached(*threshold)).map(move |threshold| Alert {
            alert_id: self.alert_id(tenant, threshold),
            at: rfc3339(at),
            threshold_percent: threshold,
            standing: self.clone(),
            delivery: if has_webhook { Delivery::Pending } else { Delivery::None },
            attempts: 0,
            next_attempt_at: has_webhook.then(|| rfc3339(at)),
            delivered_at: None,
            failure: None,
        })
    }

    /// The same for the same budget of a tenant, period, size and threshold; other tenants' alerts may go to the same receiver.
    fn alert_id(&self, tenant: &str, threshold: u32) -> String {
        let Self { budget, key_id, period, limit, .. } = self;
        let text = format!("{tenant}\n{}\n{key_id:?}\n{period:?}\n{:x}\n{threshold}", budget.as_str(), limit.to_bits());
        let digest = format!("{:x}", Sha256::digest(text.as_bytes()));
        format!("alert_{}", digest.get(..32).unwrap_or_default())
    }
}

/// Whether a webhook was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum Delivery {
    /// There was no webhook.
    None,
    Pending,
    Delivered,
    /// It was tried too often.
    Failed,
}

/// One alert, as it is stored and told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Alert {
    /// The header `webhook-id` of its message.
    pub alert_id: String,
    /// When it was found: RFC 3339, UTC.
    pub at: String,
    /// 80 or 100.
    pub threshold_percent: u32,
    /// The budget as it stood then.
    pub standing: Standing,
    /// none: there was no webhook; pending: it is being tried; delivered; failed: it was given up.
    pub delivery: Delivery,
    /// Attempts to deliver it so far.
    pub attempts: u32,
    /// RFC 3339, UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_attempt_at: Option<String>,
    /// RFC 3339, UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivered_at: Option<String>,
    /// Why the last attempt failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

impl Alert {
    /// The body of its message, the same in every attempt.
    pub fn message(&self, tenant: &str) -> String {
        json!({ "type": MESSAGE_TYPE, "timestamp": self.at, "data": self.data(tenant) }).to_string()
    }

    /// The line that the log has of it.
    pub fn line(&self, tenant: &str) -> Value {
        let mut line = self.data(tenant);
        if let Some(fields) = line.as_object_mut() {
            let more = [("level", json!("warn")), ("message", json!("alert")), ("at", json!(self.at))];
            fields.extend(more.map(|(name, value)| (name.to_owned(), value)));
        }
        line
    }

    fn data(&self, tenant: &str) -> Value {
        let Standing { budget, key_id, period, limit, used } = &self.standing;
        let mut data = json!({
            "alertId": self.alert_id, "tenant": tenant, "budget": budget, "thresholdPercent": self.threshold_percent,
            "limit": limit, "used": used,
        });
        if let Some(fields) = data.as_object_mut() {
            let optional = [("keyId", key_id), ("period", period)];
            let there =
                optional.into_iter().filter_map(|(name, value)| Some((name.to_owned(), json!(value.as_ref()?))));
            fields.extend(there);
        }
        data
    }

    /// The same after an attempt, and when the next is due.
    pub fn after(self, attempt: Attempt, now: i64) -> (Self, Option<i64>) {
        let attempts = self.attempts + 1;
        let why = match attempt {
            Attempt::Taken => {
                let (delivery, delivered_at) = (Delivery::Delivered, Some(rfc3339(now)));
                return (Self { delivery, delivered_at, attempts, next_attempt_at: None, ..self }, None);
            }
            Attempt::Failed(why) => why.chars().take(LONGEST_FAILURE).collect::<String>(),
        };
        let pause = pause_after(attempts).and_then(|pause| i64::try_from(pause.as_millis()).ok());
        let due = pause.map(|pause| now + pause);
        let delivery = if due.is_some() { Delivery::Pending } else { Delivery::Failed };
        (Self { delivery, attempts, next_attempt_at: due.map(rfc3339), failure: Some(why), ..self }, due)
    }
}

/// Whom alerts go to, and when storage is much.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AlertSettings {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook_url: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_warning_bytes: Option<i64>,
}

/// A question or a change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum AlertRequest {
    /// Replaces the budget of a key, or of the tenant.
    #[serde(rename_all = "camelCase")]
    SetBudget {
        key_id: Option<String>,
        monthly_usd: Option<f64>,
    },
    SetSettings(AlertSettings),
    /// The last alerts.
    List {
        limit: u32,
    },
}

/// How things stand after the request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AlertReport {
    pub settings: AlertSettings,
    pub budgets: Vec<Standing>,
    pub alerts: Vec<Alert>,
}

/// What of a tenant's use stands against budgets.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    /// What each key used this month.
    pub months: Vec<(String, Quantities)>,
    /// Milliseconds of sandboxes today, and the limit in seconds, of each key that has one.
    pub days: Vec<(String, i64, u32)>,
    /// Owner of each running sandbox, and since when it was not counted.
    pub running: Vec<(String, i64)>,
    /// Dollars a month; the tenant's has no key.
    pub budgets: Vec<(Option<String>, f64)>,
    /// Bytes in R2, and from where on they are much.
    pub storage: Option<(i64, i64)>,
}

impl Ledger {
    /// Every budget as it stands at `now`. Money is left out where there are no prices.
    pub fn standings(&self, now: i64, prices: Option<&Prices>) -> Vec<Standing> {
        let mut standings = Vec::new();
        for (key_id, limit) in self.budgets.iter().filter(|_| prices.is_some()) {
            let is_theirs = |owner: &str| key_id.as_deref().is_none_or(|key_id| key_id == owner);
            let month = self.months.iter().filter(|(owner, _)| is_theirs(owner)).map(|(_, used)| *used);
            let began = month_start(now);
            let running = self.running.iter().filter(|(owner, _)| is_theirs(owner));
            let running = running.map(|(_, since)| Quantities::sandbox((now - since.max(&began)).max(0)));
            let used = month.chain(running).fold(Quantities::default(), |sum, used| sum + used);
            standings.push(Standing {
                budget: BudgetKind::MonthlyUsd,
                key_id: key_id.clone(),
                period: Some(month_text(month_of(now))),
                limit: *limit,
                used: rounded(prices.map_or(0.0, |prices| prices.cost(&used))),
            });
        }
        for (key_id, ended, limit) in &self.days {
            let running = self.running.iter().filter(|(owner, _)| owner == key_id);
            let millis = ended + running.map(|(_, since)| millis_today(*since, now)).sum::<i64>();
            standings.push(Standing {
                budget: BudgetKind::SandboxSecondsPerDay,
                key_id: Some(key_id.clone()),
                period: Some(day_text(day_of(now))),
                limit: f64::from(*limit),
                used: float(millis / 1000),
            });
        }
        if let Some((bytes, limit)) = self.storage {
            let (budget, limit, used) = (BudgetKind::StorageBytes, float(limit), float(bytes));
            standings.push(Standing { budget, key_id: None, period: None, limit, used });
        }
        standings
    }
}

/// Far below 2^53.
#[allow(clippy::cast_precision_loss)]
fn float(number: i64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-28T12:00:00Z.
    const NOW: i64 = 1_795_867_200_000;

    fn standing(used: f64) -> Standing {
        let (key_id, period) = (Some("k".to_owned()), Some("2026-11".to_owned()));
        Standing { budget: BudgetKind::MonthlyUsd, key_id, period, limit: 10.0, used }
    }

    fn thresholds(standing: &Standing) -> Vec<u32> {
        standing.alerts("t", NOW, true).map(|alert| alert.threshold_percent).collect()
    }

    #[test]
    fn there_is_an_alert_at_80_and_at_100_percent() {
        let found = [0.0, 7.999, 8.0, 9.999, 10.0, 25.0].map(|used| thresholds(&standing(used)));
        assert_eq!(found, [vec![], vec![], vec![80], vec![80], vec![80, 100], vec![80, 100]]);
        assert!(thresholds(&Standing { limit: 0.0, ..standing(5.0) }).is_empty(), "nothing of nothing is no share");
    }

    #[test]
    fn the_same_alert_has_the_same_id_and_another_one_has_another() {
        let id = |standing: &Standing| standing.alerts("t", NOW, true).next().unwrap().alert_id;
        let first = id(&standing(8.0));
        assert_eq!(first, standing(9.0).alerts("t", NOW + 5, false).next().unwrap().alert_id);
        let others = [
            Standing { limit: 9.0, ..standing(9.0) },
            Standing { key_id: None, ..standing(9.0) },
            Standing { period: Some("2026-12".into()), ..standing(9.0) },
            Standing { budget: BudgetKind::StorageBytes, ..standing(9.0) },
        ];
        assert!(others.iter().all(|other| id(other) != first));
        assert_ne!(standing(10.0).alerts("t", NOW, true).last().unwrap().alert_id, first);
        assert_ne!(standing(9.0).alerts("u", NOW, true).next().unwrap().alert_id, first);
    }

    #[test]
    fn an_alert_is_tried_until_it_is_taken_or_given_up() {
        let alert = standing(8.0).alerts("t", NOW, true).next().unwrap();
        let (alert, due) = alert.after(Attempt::Failed("answered 503".into()), NOW);
        assert_eq!((alert.delivery, alert.attempts, due), (Delivery::Pending, 1, Some(NOW + 5_000)));
        let (taken, due) = alert.clone().after(Attempt::Taken, NOW + 5_000);
        assert_eq!(
            (taken.delivery, taken.attempts, due, taken.next_attempt_at.is_none()),
            (Delivery::Delivered, 2, None, true)
        );
        let mut tried = (alert, Some(0));
        while tried.1.is_some() {
            tried = tried.0.after(Attempt::Failed("x".repeat(1000)), NOW);
        }
        assert_eq!((tried.0.delivery, tried.0.attempts), (Delivery::Failed, 9));
        assert_eq!(tried.0.failure.unwrap().len(), LONGEST_FAILURE);
    }

    #[test]
    fn the_message_says_whose_budget_it_is_and_is_the_same_in_every_attempt() {
        let alert = standing(8.5).alerts("t", NOW, true).next().unwrap();
        let message: Value = serde_json::from_str(&alert.message("default")).unwrap();
        let wanted = json!({
            "type": "budget.threshold_reached", "timestamp": "2026-11-28T12:00:00.000Z",
            "data": {
                "alertId": alert.alert_id, "tenant": "default", "budget": "monthlyUsd", "thresholdPercent": 80,
                "keyId": "k", "period": "2026-11", "limit": 10.0, "used": 8.5,
            },
        });
        assert_eq!(message, wanted);
        let (later, _) = alert.clone().after(Attempt::Failed("x".into()), NOW + 9);
        assert_eq!(later.message("default"), alert.message("default"));
        assert_eq!(alert.line("default")["level"], "warn");
    }

    #[test]
    fn budgets_count_what_is_stored_and_what_runs() {
        let midnight = day_of(NOW) * 86_400_000;
        let used = |sandbox_ms| Quantities { calls: 1, sandbox_ms, ..Quantities::default() };
        let ledger = Ledger {
            months: vec![("a".into(), used(1_000)), ("b".into(), used(2_000))],
            days: vec![("a".into(), 500, 100)],
            running: vec![("a".into(), NOW - 4_000), ("a".into(), midnight - 60_000), ("b".into(), 0)],
            budgets: vec![(None, 50.0), (Some("a".into()), 5.0), (Some("c".into()), 1.0)],
            storage: Some((70, 100)),
        };
        let prices = Prices { per_call: 0.0, per_sandbox_second: 1.0, ..Prices::default() };
        let found = ledger.standings(NOW, Some(&prices));
        let noon = 12.0 * 3600.0;
        let whole_month = 27.5 * 86_400.0;
        let of = |index: usize| (found[index].key_id.as_deref(), found[index].period.as_deref(), found[index].used);
        let a = 1.0 + 4.0 + noon + 60.0;
        assert_eq!(
            of(0),
            (None, Some("2026-11"), a + 2.0 + whole_month),
            "what began before the month counts from its first"
        );
        assert_eq!(of(1), (Some("a"), Some("2026-11"), a));
        assert_eq!(of(2), (Some("c"), Some("2026-11"), 0.0));
        assert_eq!(of(3), (Some("a"), Some("2026-11-28"), noon + 4.0));
        assert_eq!((found[4].budget, found[4].used, found[4].limit), (BudgetKind::StorageBytes, 70.0, 100.0));
        assert_eq!(ledger.standings(NOW, None).len(), 2, "without prices there is no money");
    }
}
