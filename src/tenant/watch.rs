//! Budgets and alerts in the tenant's storage, and their way to the tenant's webhook.
//!
//! Looking and writing down happen in one turn. A message is sent by the alarm; that it was taken is stored after it was, so that a
//! message can arrive twice and never not at all.

use serde::Deserialize;

use super::actor::{TenantActor, TextRow, TimeRow, now, read, whole};
use super::alerts::{Alert, AlertReport, AlertRequest, AlertSettings, Ledger, Standing};
use super::keys::no_such_key;
use super::listing::Listed;
use super::token::ROOT_KEY_ID;
use super::usage::{Quantities, day_of, month_of};
use crate::error::{Error, Result};
use crate::tenant::signing::Signer;
use crate::webhook::address::{self, Reach};
use crate::webhook::schedule::Attempt;
use crate::webhook::send::send;
use crate::webhook::signature::Keys;
use crate::workers::backend::{SIGNING_SECRET, configured};

const SETTINGS_FACT: &str = "alertSettings";

/// Days that alerts are kept: longer than any period of a budget, so that none is written down twice.
const ALERT_DAYS: i64 = 100;

/// Most alerts of one answer.
const MOST_LISTED: u32 = 500;

/// Messages that one alarm sends.
const MOST_SENT: i64 = 5;

impl TenantActor {
    pub(super) fn make_alert_tables(&self) -> Result<()> {
        let tables = [
            "CREATE TABLE IF NOT EXISTS budgets (key_id TEXT PRIMARY KEY, monthly_usd REAL NOT NULL) WITHOUT ROWID",
            "CREATE TABLE IF NOT EXISTS alerts (alert_id TEXT PRIMARY KEY, made_at INTEGER NOT NULL, due_at INTEGER, \
             alert TEXT NOT NULL) WITHOUT ROWID",
        ];
        tables.iter().try_for_each(|table| self.write(table, Vec::new()))
    }

    pub(super) fn alerts(&self, request: AlertRequest) -> Result<AlertReport> {
        let limit = match request {
            AlertRequest::SetBudget { key_id, monthly_usd } => {
                self.set_budget(key_id.as_deref(), monthly_usd)?;
                0
            }
            AlertRequest::SetSettings(settings) => {
                self.set_settings(&settings)?;
                0
            }
            AlertRequest::List { limit } => limit.min(MOST_LISTED),
        };
        let statement = "SELECT alert AS text FROM alerts ORDER BY made_at DESC, alert_id LIMIT ?";
        let rows: Vec<TextRow> = self.rows(statement, vec![i64::from(limit).into()])?;
        let alerts = rows.iter().map(|row| read(&row.text)).collect::<Result<_>>()?;
        Ok(AlertReport { settings: self.settings()?, budgets: self.standings(now())?, alerts })
    }

    fn set_budget(&self, key_id: Option<&str>, monthly_usd: Option<f64>) -> Result<()> {
        if let Some(key_id) = key_id.filter(|key_id| *key_id != ROOT_KEY_ID) {
            self.key(key_id)?.ok_or_else(|| no_such_key(key_id))?;
        }
        // The tenant's own has no key's id.
        let key_id = key_id.unwrap_or_default();
        match monthly_usd {
            Some(dollars) => {
                let statement = "INSERT OR REPLACE INTO budgets (key_id, monthly_usd) VALUES (?, ?)";
                self.write(statement, vec![key_id.into(), dollars.into()])
            }
            None => self.write("DELETE FROM budgets WHERE key_id = ?", vec![key_id.into()]),
        }
    }

    fn set_settings(&self, settings: &AlertSettings) -> Result<()> {
        if let Some(url) = &settings.webhook_url {
            address::check(url, self.reach(), "/webhookUrl")?;
        }
        self.set_fact(SETTINGS_FACT, settings)
    }

    fn settings(&self) -> Result<AlertSettings> {
        self.fact(SETTINGS_FACT)
    }

    fn reach(&self) -> Reach {
        Reach::configured(configured(&self.env, Reach::VARIABLE).as_deref())
    }

    /// Every budget as it stands.
    pub(super) fn standings(&self, now: i64) -> Result<Vec<Standing>> {
        let prices = self.prices();
        if let Err(error) = &prices {
            worker::console_error!("budgets are not held: {}", error.message);
        }
        Ok(self.ledger(now)?.standings(now, prices.as_ref().ok()))
    }

    fn ledger(&self, now: i64) -> Result<Ledger> {
        let budgets: Vec<BudgetRow> =
            self.rows("SELECT key_id, monthly_usd FROM budgets ORDER BY key_id", Vec::new())?;
        let months = if budgets.is_empty() { Vec::new() } else { self.months(now)? };
        let running: Vec<Listed> = self.running()?;
        let running: Vec<(String, i64)> =
            running.into_iter().filter_map(|listed| Some((listed.owner.clone(), listed.uncounted_since()?))).collect();
        let statement = "SELECT json_array(key_id, SUM(sandbox_ms)) AS text FROM usage WHERE day = ? AND sandbox_ms > 0 GROUP BY key_id";
        let rows: Vec<TextRow> = self.rows(statement, vec![day_of(now).into()])?;
        let mut ended = rows.iter().map(|row| read(&row.text)).collect::<Result<Vec<(String, i64)>>>()?;
        for (owner, _) in &running {
            if ended.iter().all(|(key_id, _)| key_id != owner) {
                ended.push((owner.clone(), 0));
            }
        }
        let mut days = Vec::new();
        for (owner, millis) in ended {
            if let Some(key) = self.key(&owner)? {
                days.push((owner, millis, key.limits.sandbox_seconds_per_day()));
            }
        }
        let budgets = budgets.into_iter().map(|row| (Some(row.key_id).filter(|id| !id.is_empty()), row.monthly_usd));
        let warning = self.settings()?.storage_warning_bytes;
        let storage = warning.map(|limit| self.storage().map(|storage| (storage.total().bytes, limit))).transpose()?;
        Ok(Ledger { months, days, running, budgets: budgets.collect(), storage })
    }

    fn months(&self, now: i64) -> Result<Vec<(String, Quantities)>> {
        let statement = "SELECT json_array(key_id, json_object('calls', calls, 'failures', failures, 'execMs', exec_ms, \
            'sandboxMs', sandbox_ms, 'bytesIn', bytes_in, 'bytesOut', bytes_out)) AS text FROM usage_months WHERE month = ?";
        let rows: Vec<TextRow> = self.rows(statement, vec![month_of(now).into()])?;
        rows.iter().map(|row| read(&row.text)).collect()
    }

    /// Writes down the alerts that there have to be and are not there yet.
    pub(super) fn look(&self, now: i64) -> Result<()> {
        self.used_since_look.set(false);
        let has_webhook = self.settings()?.webhook_url.is_some();
        let tenant = self.name()?.unwrap_or_default();
        let mut standing = Vec::new();
        for alert in self.standings(now)?.iter().flat_map(|standing| standing.alerts(&tenant, now, has_webhook)) {
            standing.push(alert.alert_id.clone());
            let statement = "SELECT alert_id AS text FROM alerts WHERE alert_id = ?";
            if self.rows::<TextRow>(statement, vec![alert.alert_id.as_str().into()])?.is_empty() {
                self.store_alert(&alert, now, has_webhook.then_some(now))?;
                worker::console_warn!("{}", alert.line(&tenant));
            }
        }
        // One of storage has no period: it is over once there is less, or another warning.
        let old = now - ALERT_DAYS * super::books::DAY_MILLIS;
        let stands = serde_json::to_string(&standing).map_err(Error::internal)?;
        let statement = "DELETE FROM alerts WHERE made_at < ? AND alert_id NOT IN (SELECT value FROM json_each(?))";
        self.write(statement, vec![old.into(), stands.into()])
    }

    fn store_alert(&self, alert: &Alert, made_at: i64, due_at: Option<i64>) -> Result<()> {
        let text = serde_json::to_string(alert).map_err(Error::internal)?;
        let id = alert.alert_id.as_str();
        let statement = "INSERT INTO alerts (alert_id, made_at, due_at, alert) VALUES (?, ?, ?, ?) \
            ON CONFLICT (alert_id) DO UPDATE SET due_at = excluded.due_at, alert = excluded.alert";
        self.write(statement, vec![id.into(), made_at.into(), due_at.into(), text.into()])
    }

    /// When alerts want the alarm: for a message, or for a look at budgets that may have changed.
    pub(super) fn next_alert(&self, now: i64, interval: i64) -> Result<Option<i64>> {
        let due: Vec<TimeRow> = self.rows("SELECT MIN(due_at) AS time FROM alerts", Vec::new())?;
        let due = due.first().and_then(|row| row.time).map(|time| whole(time).max(now));
        let has_budgets = || {
            let statement = "SELECT key_id AS text FROM budgets LIMIT 1";
            let has_monthly = !self.rows::<TextRow>(statement, Vec::new())?.is_empty();
            Ok::<_, Error>(has_monthly || self.settings()?.storage_warning_bytes.is_some())
        };
        let look = (self.used_since_look.get() && has_budgets()?).then_some(now + interval);
        Ok([due, look].into_iter().flatten().min())
    }

    /// Sends what is due. Whatever fails is sent again later.
    pub(super) async fn deliver(&self) {
        if let Err(error) = self.send_due().await {
            worker::console_error!("alerts were not delivered: {:?}", error.cause.unwrap_or(error.message));
        }
    }

    async fn send_due(&self) -> Result<()> {
        let statement = "SELECT alert AS text FROM alerts WHERE due_at <= ? ORDER BY due_at LIMIT ?";
        let rows: Vec<TextRow> = self.rows(statement, vec![now().into(), MOST_SENT.into()])?;
        if rows.is_empty() {
            return Ok(());
        }
        let alerts = rows.iter().map(|row| read(&row.text)).collect::<Result<Vec<Alert>>>()?;
        let (url, tenant) = (self.settings()?.webhook_url, self.name()?.unwrap_or_default());
        let signer = Signer::new(configured(&self.env, SIGNING_SECRET).as_deref());
        let keys = Keys::of(&signer, &tenant);
        let sent = alerts.into_iter().map(|alert| async {
            let body = alert.message(&tenant);
            let attempt = match (&url, &keys) {
                (Some(url), Ok(keys)) => send(url, self.reach(), keys, &alert.alert_id, now(), &body).await,
                (None, _) => Attempt::Failed("the webhook was taken away".to_owned()),
                (_, Err(error)) => Attempt::Failed(error.message.clone()),
            };
            let at = now();
            let (alert, due_at) = alert.after(attempt, at);
            self.store_alert(&alert, at, due_at)
        });
        futures_util::future::join_all(sent).await.into_iter().collect()
    }
}

#[derive(Deserialize)]
struct BudgetRow {
    key_id: String,
    monthly_usd: f64,
}
