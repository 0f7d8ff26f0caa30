//! The Durable Object of one tenant: admission, the books, and the list of sandboxes.
//!
//! It is an object because a call must be decided and recorded in one place and one turn. It stores the audit (two records
//! a call, appended and never changed), the calls that are not settled, and the sandboxes. It answers `POST` on:
//!
//! - `/admit`: [`Admitted`], or the refusal.
//! - `/settle`: `null`; a second settlement of a call changes nothing.
//! - `/sandboxes/list`: [`Listing`].
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
use super::sweep;
use crate::error::{Error, Result};
use crate::identifier::SandboxId;
use crate::workers::internal::answer;

/// Days that the audit is kept here.
const AUDIT_DAYS: i64 = 30;
const DAY_MILLIS: i64 = 24 * 60 * 60 * 1000;

/// How often unsettled calls and sandboxes are looked at.
pub(super) const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// Sandboxes named to a caller that asked for one that is not there.
const MOST_NAMED: i64 = 20;

/// Most sandboxes in one part of the list.
const MOST_LISTED: u32 = 500;

#[durable_object(alarm)]
pub struct TenantActor {
    state: ObjectState,
    pub(super) env: Env,
    /// Whether an alarm is known to be set: asking costs a read.
    alarm_is_set: Cell<bool>,
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

const SCHEMA: &[&str] = &[
    "CREATE TABLE IF NOT EXISTS audit (seq INTEGER PRIMARY KEY AUTOINCREMENT, at INTEGER NOT NULL, call_id TEXT NOT NULL, \
     kind TEXT NOT NULL, record TEXT NOT NULL)",
    "CREATE INDEX IF NOT EXISTS audit_at ON audit (at)",
    "CREATE TABLE IF NOT EXISTS open_calls (call_id TEXT PRIMARY KEY, asked_at INTEGER NOT NULL, deadline_at INTEGER NOT NULL)",
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
        Self { state, env, alarm_is_set: Cell::new(false) }
    }

    async fn fetch(&self, mut request: Request) -> worker::Result<Response> {
        let path = request.path();
        let body = request.text().await?;
        let response = match path.as_str() {
            "/admit" => answer(read(&body).and_then(|request| self.admit(&request))),
            "/settle" => answer(read(&body).and_then(|settlement| self.settle(&settlement))),
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
        self.alarm_is_set.set(false);
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
        self.append(request.at, &request.call_id, "intent", &Intent::from(request))?;
        match decide(request, listed.as_ref(), &available) {
            Decision::Admit { list } => {
                if let Some(list) = list {
                    let values = vec![request.tenant.as_str().into()];
                    self.write("INSERT OR IGNORE INTO facts (fact, value) VALUES ('name', ?)", values)?;
                    self.store_listed(&list)?;
                }
                let values = vec![request.call_id.as_str().into(), request.at.into(), request.deadline_at.into()];
                self.write(
                    "INSERT OR REPLACE INTO open_calls (call_id, asked_at, deadline_at) VALUES (?, ?, ?)",
                    values,
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
                Err(error)
            }
        }
    }

    fn settle(&self, settlement: &Settlement) -> Result<()> {
        let call_id = settlement.call_id.as_str();
        let open: Vec<TextRow> =
            self.rows("SELECT call_id AS text FROM open_calls WHERE call_id = ?", vec![call_id.into()])?;
        if open.is_empty() {
            return Ok(());
        }
        self.append(settlement.at, call_id, "outcome", settlement)?;
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
        self.write("DELETE FROM audit WHERE at < ?", vec![(now - AUDIT_DAYS * DAY_MILLIS).into()])
    }

    /// Sets the alarm where there is something to sweep: soon while calls are open, daily while the audit holds records.
    async fn ensure_alarm(&self) {
        if self.alarm_is_set.get() {
            return;
        }
        let count = |table: &str| {
            self.rows::<TextRow>(&format!("SELECT 'x' AS text FROM {table} LIMIT 1"), Vec::new()).map(|rows| rows.len())
        };
        let delay = match (count("open_calls"), count("sandboxes"), count("audit")) {
            (Ok(0), Ok(0), Ok(0)) => return,
            (Ok(0), Ok(0), _) => Duration::from_secs(24 * 60 * 60),
            _ => sweep::interval(self),
        };
        let storage = self.state.storage();
        let set = async {
            let due = now() + i64::try_from(delay.as_millis()).unwrap_or(i64::MAX);
            if storage.get_alarm().await?.is_none_or(|set| set > due) {
                storage.set_alarm(delay).await?;
            }
            Ok::<(), worker::Error>(())
        };
        match set.await {
            // A daily alarm is moved forward by the next call that stays open.
            Ok(()) => self.alarm_is_set.set(delay <= SWEEP_INTERVAL),
            Err(error) => worker::console_error!("the alarm of a tenant could not be set: {error}"),
        }
    }
}
