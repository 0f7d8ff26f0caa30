//! Usage in the tenant's storage: added to in the turn of what is counted, and told.

use super::actor::{Inner, TextRow, now, read, values};
use super::admission::Origin;
use super::limits::by_day;
use super::listing::{Listed, Parameter};
use super::prices::{self, Prices};
use super::usage::{self, DAYS, Group, MONTHS, Quantities, UsageReport, UsageRequest, Use, day_of, month_of};
use crate::error::Result;
use crate::sandbox::state::State;
use crate::workers::backend::configured;

/// Most rows of one page.
const MOST_ROWS: u32 = 1000;

impl Inner {
    pub(super) fn make_usage_tables(&self) -> Result<()> {
        // A table of earlier releases, whose seconds only limited a day.
        self.write("DROP TABLE IF EXISTS sandbox_seconds", Vec::new())?;
        usage::schema().iter().try_for_each(|table| self.write(table, Vec::new()))
    }

    fn add_use(&self, used: &Use) -> Result<()> {
        let statements = used.statements();
        statements.into_iter().try_for_each(|(statement, parameters)| self.write(&statement, values(parameters)))
    }

    /// Adds what a call used. What cannot be stored is logged and fails nothing: the call is over.
    pub(super) fn count_use(&self, used: &Use) {
        self.used_since_look.set(true);
        if let Err(error) = self.add_use(used) {
            worker::console_error!("usage was not counted: {:?}", error.cause);
        }
    }

    /// Adds the time for which a sandbox has run and that was not added yet.
    pub(super) fn count_running(&self, listed: &Listed, now: i64) -> Result<()> {
        let Some(since) = listed.uncounted_since() else { return Ok(()) };
        let tool = match listed.origin {
            Origin::CreateSandbox => "createSandbox",
            Origin::Exec => "exec",
        };
        by_day(since, now).try_for_each(|(at, millis)| {
            let quantities = Quantities::sandbox(millis);
            self.add_use(&Use { at, key_id: listed.owner.clone(), tool: tool.to_owned(), quantities })
        })
    }

    /// Adds the time of all sandboxes that run.
    fn count_all_running(&self, now: i64) -> Result<()> {
        self.running()?.into_iter().try_for_each(|listed| {
            self.count_running(&listed, now)?;
            self.store_listed(&Listed { counted_until: Some(now), ..listed })
        })
    }

    /// The sandboxes that run.
    pub(super) fn running(&self) -> Result<Vec<Listed>> {
        let statement = "SELECT listed AS text FROM sandboxes WHERE json_extract(listed, '$.state') = ?";
        let rows: Vec<TextRow> = self.rows(statement, vec![State::Running.as_str().into()])?;
        rows.iter().map(|row| read(&row.text)).collect()
    }

    /// What was used, up to this moment.
    pub(super) fn usage(&self, request: &UsageRequest) -> Result<UsageReport> {
        let prices = self.prices()?;
        self.count_all_running(now())?;
        let limit = request.limit.clamp(1, MOST_ROWS);
        let (statement, parameters) = request.statement(limit + 1);
        let groups = self.groups(&statement, parameters)?;
        let (statement, parameters) = request.total();
        let total = self.groups(&statement, parameters)?.pop().unwrap_or_default();
        let storage = if self.has_bucket() { Some(self.storage()?.told(&prices)) } else { None };
        let budgets = self.standings(now())?;
        Ok(UsageReport { budgets, storage, ..UsageReport::new(groups, limit, total, prices) })
    }

    fn groups(&self, statement: &str, parameters: Vec<Parameter>) -> Result<Vec<Group>> {
        let rows: Vec<TextRow> = self.rows(statement, values(parameters))?;
        rows.iter().map(|row| read(&row.text)).collect()
    }

    pub(super) fn prices(&self) -> Result<Prices> {
        Prices::configured(configured(&self.env, prices::VARIABLE).as_deref())
    }

    /// Forgets what is older than it is kept.
    pub(super) fn forget_usage(&self, now: i64) -> Result<()> {
        self.write("DELETE FROM usage WHERE day < ?", vec![(day_of(now) - DAYS).into()])?;
        self.write("DELETE FROM usage_months WHERE month < ?", vec![(month_of(now) - MONTHS).into()])
    }
}
