//! Budgets, how much of them is used, and the alerts when that is much.
//!
//! A budget is looked at again and again while it can have changed; at 80 and at 100 percent an alert is written down, once for each
//! budget, period and size. Its id follows from these, so that it is the same however often it is found or sent.
//!
//! This file is pure; `watch.rs` stores, and `outbox.rs` sends.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use utoipa::ToSchema;

use super::deliveries::{DeliveryRow, DeliveryState};
use super::limits::{day_of, millis_today};
use super::prices::{Prices, rounded};
use super::usage::{Quantities, day_text, month_of, month_start, month_text};
use crate::platform::rfc3339;
use crate::webhook::event::EventType;

/// Days that alerts are kept: longer than any period of a budget, so that none is written down twice.
pub const KEPT_DAYS: i64 = 100;

/// Percent of a budget at which there is an alert.
const THRESHOLDS: [u32; 2] = [80, 100];

/// Type of the message to a webhook.
pub const MESSAGE_TYPE: &str = "budget.threshold_reached";

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
    pub fn alerts(&self, tenant: &str, at: i64) -> impl Iterator<Item = Alert> {
        THRESHOLDS.into_iter().filter(|threshold| self.has_reached(*threshold)).map(move |threshold| Alert {
            alert_id: self.alert_id(tenant, threshold),
            at: rfc3339(at),
            threshold_percent: threshold,
            standing: self.clone(),
            delivery: Delivery::None,
            attempts: 0,
            next_attempt_at: None,
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
    /// It was given up.
    Failed,
}

/// One alert, as it is told; stored without what became of its message.
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
    /// The body of its message.
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

    /// Subject of its message.
    pub fn subject(&self) -> String {
        format!("alert/{}", self.alert_id)
    }

    /// The same with what became of its message, where there was one.
    pub fn with(self, message: Option<DeliveryRow>) -> Self {
        let Some(message) = message else { return self };
        let (delivery, next_attempt_at, delivered_at) = match message.state() {
            DeliveryState::Pending => (Delivery::Pending, message.due_at, None),
            DeliveryState::Delivered => (Delivery::Delivered, None, message.ended_at),
            DeliveryState::Failed => (Delivery::Failed, None, None),
        };
        let (next_attempt_at, delivered_at) = (next_attempt_at.map(rfc3339), delivered_at.map(rfc3339));
        let DeliveryRow { attempts, failure, .. } = message;
        Self { delivery, attempts, next_attempt_at, delivered_at, failure, ..self }
    }
}

/// Where the tenant's webhook is and what it is told beside alerts, and when storage is much.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AlertSettings {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook_url: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub webhook_events: BTreeSet<EventType>,
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
        standing.alerts("t", NOW).map(|alert| alert.threshold_percent).collect()
    }

    #[test]
    fn there_is_an_alert_at_80_and_at_100_percent() {
        let found = [0.0, 7.999, 8.0, 9.999, 10.0, 25.0].map(|used| thresholds(&standing(used)));
        assert_eq!(found, [vec![], vec![], vec![80], vec![80], vec![80, 100], vec![80, 100]]);
        assert!(thresholds(&Standing { limit: 0.0, ..standing(5.0) }).is_empty(), "nothing of nothing is no share");
    }

    #[test]
    fn the_same_alert_has_the_same_id_and_another_one_has_another() {
        let id = |standing: &Standing| standing.alerts("t", NOW).next().unwrap().alert_id;
        let first = id(&standing(8.0));
        assert_eq!(first, standing(9.0).alerts("t", NOW + 5).next().unwrap().alert_id);
        let others = [
            Standing { limit: 9.0, ..standing(9.0) },
            Standing { key_id: None, ..standing(9.0) },
            Standing { period: Some("2026-12".into()), ..standing(9.0) },
            Standing { budget: BudgetKind::StorageBytes, ..standing(9.0) },
        ];
        assert!(others.iter().all(|other| id(other) != first));
        assert_ne!(standing(10.0).alerts("t", NOW).last().unwrap().alert_id, first);
        assert_ne!(standing(9.0).alerts("u", NOW).next().unwrap().alert_id, first);
    }

    #[test]
    fn an_alert_says_what_became_of_its_message() {
        let alert = standing(8.0).alerts("t", NOW).next().unwrap();
        assert_eq!(alert.clone().with(None).delivery, Delivery::None);
        let waiting = DeliveryRow {
            seq: 1,
            message_id: alert.alert_id.clone(),
            kind: MESSAGE_TYPE.into(),
            subject: alert.subject(),
            receiver: String::new(),
            made_at: NOW,
            attempts: 1,
            due_at: Some(NOW + 5_000),
            ended_at: None,
            is_delivered: 0,
            failure: Some("answered 503".into()),
        };
        let told = alert.clone().with(Some(waiting.clone()));
        assert_eq!(
            (told.delivery, told.attempts, told.failure.as_deref()),
            (Delivery::Pending, 1, Some("answered 503"))
        );
        assert_eq!(told.next_attempt_at, Some(rfc3339(NOW + 5_000)));
        let ended = DeliveryRow { ended_at: Some(NOW + 6_000), ..waiting };
        let failed = alert.clone().with(Some(ended.clone()));
        assert_eq!((failed.delivery, &failed.next_attempt_at, &failed.delivered_at), (Delivery::Failed, &None, &None));
        let taken = alert.with(Some(DeliveryRow { is_delivered: 1, ..ended }));
        assert_eq!((taken.delivery, taken.delivered_at), (Delivery::Delivered, Some(rfc3339(NOW + 6_000))));
    }

    #[test]
    fn the_message_says_whose_budget_it_is() {
        let alert = standing(8.5).alerts("t", NOW).next().unwrap();
        let message: Value = serde_json::from_str(&alert.message("default")).unwrap();
        let wanted = json!({
            "type": "budget.threshold_reached", "timestamp": "2026-11-28T12:00:00.000Z",
            "data": {
                "alertId": alert.alert_id, "tenant": "default", "budget": "monthlyUsd", "thresholdPercent": 80,
                "keyId": "k", "period": "2026-11", "limit": 10.0, "used": 8.5,
            },
        });
        assert_eq!(message, wanted);
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
