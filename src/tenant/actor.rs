//! The Durable Object of one tenant: admission, the books, and the list of sandboxes.
//!
//! It is an object because a call must be decided and recorded in one place and one turn. It stores the audit (two records
//! a call, appended and never changed), the calls that are not settled, and the sandboxes. It answers `POST` on:
//!
//! - `/admit`: [`Admitted`], or the refusal.
//! - `/settle`: `null`; a second settlement of a call changes nothing.
//! - `/sandboxes/list`: [`Listing`].
//! - `/metrics`: [`super::metrics::Report`].
//! - `/sandboxes/ensure`, `/sandboxes/report`, `/sandboxes/remove`: `null`; said by the sandboxes' own objects.
//!
//! Every request is decided without awaiting between its first read and its last write, which makes it atomic. The alarm
//! closes calls that nobody settled by their deadline, forgets what is older than the audit keeps, and holds a few sandboxes of the
//! list against their objects (`sweep.rs`).

use std::cell::Cell;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use worker::{
    DurableObject, Env, Request, Response, SqlStorage, SqlStorageValue, State as ObjectState, durable_object,
};

use super::admission::{
    AdmissionRequest, Admitted, Decision, Intent, ListRequest, Listed, Listing, Outcome, SandboxClaim, Settlement,
    StateReport, decide,
};
use super::listing::Parameter;
use super::metrics::{self, Metric, Sample};
use super::{measure, sweep};
use crate::error::{Error, Result};
use crate::identifier::SandboxId;
use crate::workers::internal::answer;

/// Days that the audit is kept here.
const AUDIT_DAYS: i64 = 30;
const DAY_MILLIS: i64 = 24 * 60 * 60 * 1000;

/// Longest time between two looks at sandboxes. Unsettled calls are looked at when the first of them is overdue.
pub(super) const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// Sandboxes named to a caller that asked for one that is not there.
const MOST_NAMED: i64 = 20;

/// Most sandboxes in one part of the list.
const MOST_LISTED: u32 = 500;

#[durable_object(alarm)]
pub struct TenantActor {
    state: ObjectState,
    pub(super) env: Env,
    /// When the alarm is known to be due: asking costs reads.
    alarm_at: Cell<Option<i64>>,
}

#[derive(Deserialize)]
pub(super) struct TextRow {
    pub(super) text: String,
}

#[derive(Deserialize)]
struct OpenCallRow {
    call_id: String,
    asked_at: f64,
}

#[derive(Deserialize)]
struct TimeRow {
    time: Option<f64>,
}

const SCHEMA: &[&str] = &[
    "CREATE TABLE IF NOT EXISTS audit (seq INTEGER PRIMARY KEY AUTOINCREMENT, at INTEGER NOT NULL, call_id TEXT NOT NULL, \
     kind TEXT NOT NULL, record TEXT NOT NULL)",
    "CREATE INDEX IF NOT EXISTS audit_at ON audit (at)",
    "CREATE TABLE IF NOT EXISTS open_calls (call_id TEXT PRIMARY KEY, asked_at INTEGER NOT NULL, deadline_at INTEGER NOT NULL, \
     tool TEXT NOT NULL DEFAULT '')",
    "CREATE TABLE IF NOT EXISTS sandboxes (sandbox_id TEXT PRIMARY KEY, listed TEXT NOT NULL)",
    "CREATE INDEX IF NOT EXISTS sandboxes_state ON sandboxes (json_extract(listed, '$.state'), sandbox_id)",
    "CREATE INDEX IF NOT EXISTS sandboxes_owner ON sandboxes (json_extract(listed, '$.owner'), sandbox_id)",
    "CREATE INDEX IF NOT EXISTS sandboxes_created_at ON sandboxes (json_extract(listed, '$.createdAt'))",
    "CREATE INDEX IF NOT EXISTS sandboxes_expires_at ON sandboxes (json_extract(listed, '$.expiresAt'))",
    "CREATE TABLE IF NOT EXISTS facts (fact TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS sandbox_checks (sandbox_id TEXT PRIMARY KEY, checked_at INTEGER NOT NULL)",
];

impl DurableObject for TenantActor {
    fn new(state: ObjectState, env: Env) -> Self {
        let sql = state.storage().sql();
        for statement in SCHEMA {
            if let Err(error) = sql.exec(statement, None) {
                worker::console_error!("the tables of a tenant could not be made: {error}");
            }
        }
        let tenant = Self { state, env, alarm_at: Cell::new(None) };
        if let Err(error) = tenant.complete_tables() {
            worker::console_error!("the tables of a tenant could not be completed: {:?}", error.cause);
        }
        tenant
    }

    async fn fetch(&self, mut request: Request) -> worker::Result<Response> {
        let path = request.path();
        let body = request.text().await?;
        let response = match path.as_str() {
            "/admit" => answer(read(&body).and_then(|request| self.admit(&request))),
            "/settle" => answer(read(&body).and_then(|settlement| self.settle(&settlement))),
            "/metrics" => answer(read(&body).and_then(|request| measure::report(self, &request))),
            "/sandboxes/list" => answer(read(&body).and_then(|request| self.list(&request))),
            "/sandboxes/report" => answer(read(&body).and_then(|report| self.report(report))),
            "/sandboxes/ensure" => answer(read(&body).and_then(|listed| self.ensure(&listed))),
            "/sandboxes/remove" => answer(read(&body).and_then(|id| self.remove(&id))),
            _ => Response::error("no such route", 404),
        };
        self.ensure_alarm().await;
        response
    }

    async fn alarm(&self) -> worker::Result<Response> {
        self.alarm_at.set(None);
        if let Err(error) = self.sweep() {
            worker::console_error!("the sweep of a tenant failed: {:?}", error.cause);
        }
        sweep::run(self).await;
        self.ensure_alarm().await;
        Response::empty()
    }
}

pub(super) fn read<T: DeserializeOwned>(body: &str) -> Result<T> {
    serde_json::from_str(body).map_err(Error::internal)
}

pub(super) fn now() -> i64 {
    i64::try_from(worker::Date::now().as_millis()).unwrap_or(i64::MAX)
}

impl TenantActor {
    /// What was added to the tables since they were first made.
    fn complete_tables(&self) -> Result<()> {
        self.write(&metrics::schema(), Vec::new())?;
        let columns: Vec<TextRow> =
            self.rows("SELECT name AS text FROM pragma_table_info('open_calls')", Vec::new())?;
        if columns.iter().all(|column| column.text != "tool") {
            self.write("ALTER TABLE open_calls ADD COLUMN tool TEXT NOT NULL DEFAULT ''", Vec::new())?;
        }
        Ok(())
    }

    pub(super) fn sql(&self) -> SqlStorage {
        self.state.storage().sql()
    }

    pub(super) fn write(&self, statement: &str, values: Vec<SqlStorageValue>) -> Result<()> {
        self.sql().exec(statement, values).map(drop).map_err(Error::internal)
    }

    pub(super) fn rows<T: DeserializeOwned>(&self, statement: &str, values: Vec<SqlStorageValue>) -> Result<Vec<T>> {
        self.sql().exec(statement, values).and_then(|cursor| cursor.to_array()).map_err(Error::internal)
    }

    fn append<T: Serialize>(&self, at: i64, call_id: &str, kind: &str, record: &T) -> Result<()> {
        let record = serde_json::to_string(record).map_err(Error::internal)?;
        let values = vec![at.into(), call_id.into(), kind.into(), record.into()];
        self.write("INSERT INTO audit (at, call_id, kind, record) VALUES (?, ?, ?, ?)", values)
    }

    /// Records that the call was asked for, once: a question whose answer was lost comes again.
    fn intend(&self, request: &AdmissionRequest) -> Result<()> {
        let record = serde_json::to_string(&Intent::from(request)).map_err(Error::internal)?;
        let call_id = request.call_id.as_str();
        let values = vec![request.at.into(), call_id.into(), record.into(), call_id.into()];
        self.write(
            "INSERT INTO audit (at, call_id, kind, record) SELECT ?, ?, 'intent', ? \
             WHERE NOT EXISTS (SELECT 1 FROM open_calls WHERE call_id = ?)",
            values,
        )
    }

    pub(super) fn listed(&self, id: &SandboxId) -> Result<Option<Listed>> {
        let rows: Vec<TextRow> =
            self.rows("SELECT listed AS text FROM sandboxes WHERE sandbox_id = ?", vec![id.as_str().into()])?;
        rows.first().map(|row| read(&row.text)).transpose()
    }

    fn store_listed(&self, listed: &Listed) -> Result<()> {
        let text = serde_json::to_string(listed).map_err(Error::internal)?;
        let values = vec![listed.sandbox_id.as_str().into(), text.into()];
        self.write("INSERT OR REPLACE INTO sandboxes (sandbox_id, listed) VALUES (?, ?)", values)
    }

    fn admit(&self, request: &AdmissionRequest) -> Result<Admitted> {
        let listed = request.claim.sandbox_id().map(|id| self.listed(id)).transpose()?.flatten();
        let statement = "SELECT sandbox_id AS text FROM sandboxes ORDER BY sandbox_id LIMIT ?";
        // Names are only told to who asks for a sandbox that is not there.
        let is_missing = listed.is_none() && matches!(request.claim, SandboxClaim::Existing { .. });
        let available: Vec<TextRow> =
            if is_missing { self.rows(statement, vec![MOST_NAMED.into()])? } else { Vec::new() };
        let available: Vec<String> = available.into_iter().map(|row| row.text).collect();
        self.intend(request)?;
        match decide(request, listed.as_ref(), &available) {
            Decision::Admit { list } => {
                if let Some(list) = list {
                    let values = vec![request.tenant.as_str().into()];
                    self.write("INSERT OR IGNORE INTO facts (fact, value) VALUES ('name', ?)", values)?;
                    self.store_listed(&list)?;
                    measure::add(self, &Sample::new(Metric::Created, &request.tool, None, None, request.at));
                }
                let times = [request.at.into(), request.deadline_at.into()];
                let values = [request.call_id.as_str().into(), request.tool.as_str().into()].into_iter().chain(times);
                self.write(
                    "INSERT OR REPLACE INTO open_calls (call_id, tool, asked_at, deadline_at) VALUES (?, ?, ?, ?)",
                    values.collect(),
                )?;
                Ok(Admitted { listed })
            }
            Decision::Refuse(error) => {
                let refused = Settlement {
                    call_id: request.call_id.clone(),
                    outcome: Outcome::Refused(error.code),
                    exit_code: None,
                    duration_ms: 0,
                    at: request.at,
                };
                self.append(request.at, &request.call_id, "outcome", &refused)?;
                measure::add(self, &Sample::call(&request.tool, Some(error.code), 0, request.at));
                Err(error)
            }
        }
    }

    fn settle(&self, settlement: &Settlement) -> Result<()> {
        let call_id = settlement.call_id.as_str();
        let open: Vec<TextRow> =
            self.rows("SELECT tool AS text FROM open_calls WHERE call_id = ?", vec![call_id.into()])?;
        let Some(TextRow { text: tool }) = open.first() else {
            return Ok(());
        };
        self.append(settlement.at, call_id, "outcome", settlement)?;
        let error = match settlement.outcome {
            Outcome::Succeeded => None,
            Outcome::Failed(code) | Outcome::Refused(code) => Some(code),
        };
        measure::add(self, &Sample::call(tool, error, settlement.duration_ms, settlement.at));
        self.write("DELETE FROM open_calls WHERE call_id = ?", vec![call_id.into()])
    }

    fn list(&self, request: &ListRequest) -> Result<Listing> {
        let limit = request.limit.clamp(1, MOST_LISTED);
        let (statement, parameters) = request.statement(limit + 1);
        let parameters = parameters.into_iter().map(|parameter| match parameter {
            Parameter::Text(text) => text.into(),
            Parameter::Integer(number) => number.into(),
        });
        let rows: Vec<TextRow> = self.rows(&statement, parameters.collect())?;
        let wanted = usize::try_from(limit).map_err(Error::internal)?;
        let sandboxes = rows.iter().take(wanted).map(|row| read(&row.text)).collect::<Result<Vec<Listed>>>()?;
        Ok(Listing { sandboxes, more: rows.len() > wanted })
    }

    fn report(&self, report: StateReport) -> Result<()> {
        if let Some(start) = &report.start {
            let sample = Sample::new(Metric::Start, start.reason.name(), start.error, Some(start.duration_ms), now());
            measure::add(self, &sample);
        }
        // A sandbox that is not listed was removed meanwhile, and stays so.
        let Some(listed) = self.listed(&report.sandbox_id)? else {
            return Ok(());
        };
        self.store_listed(&listed.told(report))
    }

    /// Lists a sandbox that is being created, unless it is listed.
    fn ensure(&self, listed: &Listed) -> Result<()> {
        match self.listed(&listed.sandbox_id)? {
            Some(_) => Ok(()),
            None => self.store_listed(listed),
        }
    }

    pub(super) fn remove(&self, id: &SandboxId) -> Result<()> {
        if self.listed(id)?.is_some() {
            measure::add(self, &Sample::new(Metric::Destroyed, "", None, None, now()));
        }
        self.write("DELETE FROM sandbox_checks WHERE sandbox_id = ?", vec![id.as_str().into()])?;
        self.write("DELETE FROM sandboxes WHERE sandbox_id = ?", vec![id.as_str().into()])
    }

    fn sweep(&self) -> Result<()> {
        let now = now();
        let overdue: Vec<OpenCallRow> =
            self.rows("SELECT call_id, asked_at FROM open_calls WHERE deadline_at < ? LIMIT 500", vec![now.into()])?;
        for call in overdue {
            // Times are whole milliseconds far below 2^53.
            #[allow(clippy::cast_possible_truncation)]
            self.settle(&Settlement::never_settled(call.call_id, call.asked_at as i64, now))?;
        }
        measure::forget(self)?;
        self.write("DELETE FROM audit WHERE at < ?", vec![(now - AUDIT_DAYS * DAY_MILLIS).into()])
    }

    /// When there is next something to sweep: once the first open call is overdue, soon while sandboxes are listed, daily while
    /// the audit holds records.
    fn next_sweep(&self) -> Result<Option<i64>> {
        let now = now();
        let some = |table: &str| {
            let rows = self.rows::<TextRow>(&format!("SELECT 'x' AS text FROM {table} LIMIT 1"), Vec::new());
            rows.map(|rows| !rows.is_empty())
        };
        let first: Vec<TimeRow> = self.rows("SELECT MIN(deadline_at) AS time FROM open_calls", Vec::new())?;
        // Times are whole milliseconds far below 2^53. A call is overdue the millisecond after its deadline.
        #[allow(clippy::cast_possible_truncation)]
        let overdue = first.first().and_then(|row| row.time).map(|time| (time as i64 + 1).max(now));
        let listed = some("sandboxes")?.then(|| now + millis(sweep::interval(self)));
        let daily = some("audit")?.then_some(now + DAY_MILLIS);
        Ok([overdue, listed, daily].into_iter().flatten().min())
    }

    /// Sets the alarm, unless one is known to be due early enough for whatever a call can have left open.
    async fn ensure_alarm(&self) {
        let known = self.alarm_at.get();
        if known.is_some_and(|at| at <= now() + millis(sweep::interval(self))) {
            return;
        }
        let due = match self.next_sweep() {
            Ok(Some(due)) => due,
            Ok(None) => return,
            Err(error) => return worker::console_error!("the next sweep is not known: {:?}", error.cause),
        };
        if known.is_some_and(|at| at <= due) {
            return;
        }
        let storage = self.state.storage();
        let set = async {
            let set = storage.get_alarm().await?.filter(|set| *set <= due);
            if set.is_none() {
                storage.set_alarm(Duration::from_millis(u64::try_from(due - now()).unwrap_or(0))).await?;
            }
            Ok::<i64, worker::Error>(set.unwrap_or(due))
        };
        match set.await {
            Ok(at) => self.alarm_at.set(Some(at)),
            Err(error) => worker::console_error!("the alarm of a tenant could not be set: {error}"),
        }
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
