//! Budgets and alerts in the tenant's storage. Looking, writing down and telling the tenant's webhook (`outbox.rs`) happen in one turn.

use serde::Deserialize;

use super::actor::{Inner, TextRow, now, read};
use super::alerts::{Alert, AlertReport, AlertRequest, AlertSettings, KEPT_DAYS, Ledger, MESSAGE_TYPE, Standing};
use super::deliveries::TENANT;
use super::keys::no_such_key;
use super::listing::Listed;
use super::token::ROOT_KEY_ID;
use super::usage::{Quantities, day_of, month_of};
use crate::error::{Error, Result};
use crate::webhook::address::{self, Reach};
use crate::workers::backend::configured;

const SETTINGS_FACT: &str = "alertSettings";

/// Most alerts of one answer.
const MOST_LISTED: u32 = 500;

impl Inner {
    pub(super) fn make_alert_tables(&self) -> Result<()> {
        let tables = [
            "CREATE TABLE IF NOT EXISTS budgets (key_id TEXT PRIMARY KEY, monthly_usd REAL NOT NULL) WITHOUT ROWID",
            "CREATE TABLE IF NOT EXISTS alerts (alert_id TEXT PRIMARY KEY, made_at INTEGER NOT NULL, alert TEXT NOT NULL) WITHOUT ROWID",
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
        let alerts = rows.iter().map(|row| {
            let alert: Alert = read(&row.text)?;
            let message = self.delivery_of(&alert.subject())?;
            Ok(alert.with(message))
        });
        let alerts = alerts.collect::<Result<_>>()?;
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
        if self.settings()?.webhook_url != settings.webhook_url {
            self.redirect_messages(settings.webhook_url.is_some(), now())?;
        }
        self.set_fact(SETTINGS_FACT, settings)
    }

    pub(super) fn settings(&self) -> Result<AlertSettings> {
        self.fact(SETTINGS_FACT)
    }

    pub(super) fn reach(&self) -> Reach {
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
        for alert in self.standings(now)?.iter().flat_map(|standing| standing.alerts(&tenant, now)) {
            standing.push(alert.alert_id.clone());
            let statement = "SELECT alert_id AS text FROM alerts WHERE alert_id = ?";
            if self.rows::<TextRow>(statement, vec![alert.alert_id.as_str().into()])?.is_empty() {
                self.store_alert(&alert, now)?;
                if has_webhook {
                    let (id, subject, body) = (&alert.alert_id, alert.subject(), alert.message(&tenant));
                    self.post(id, MESSAGE_TYPE, &subject, TENANT, &body, now)?;
                }
                worker::console_warn!("{}", alert.line(&tenant));
            }
        }
        // One of storage has no period: it is over once there is less, or another warning.
        let old = now - KEPT_DAYS * super::books::DAY_MILLIS;
        let stands = serde_json::to_string(&standing).map_err(Error::internal)?;
        let statement = "DELETE FROM alerts WHERE made_at < ? AND alert_id NOT IN (SELECT value FROM json_each(?))";
        self.write(statement, vec![old.into(), stands.into()])
    }

    fn store_alert(&self, alert: &Alert, made_at: i64) -> Result<()> {
        let text = serde_json::to_string(alert).map_err(Error::internal)?;
        let statement = "INSERT INTO alerts (alert_id, made_at, alert) VALUES (?, ?, ?)";
        self.write(statement, vec![alert.alert_id.as_str().into(), made_at.into(), text.into()])
    }

    /// When the alarm has to look at budgets that may have changed.
    pub(super) fn next_look(&self, now: i64, interval: i64) -> Result<Option<i64>> {
        let has_budgets = || {
            let statement = "SELECT key_id AS text FROM budgets LIMIT 1";
            let has_monthly = !self.rows::<TextRow>(statement, Vec::new())?.is_empty();
            Ok::<_, Error>(has_monthly || self.settings()?.storage_warning_bytes.is_some())
        };
        Ok((self.used_since_look.get() && has_budgets()?).then_some(now + interval))
    }
}

#[derive(Deserialize)]
struct BudgetRow {
    key_id: String,
    monthly_usd: f64,
}
