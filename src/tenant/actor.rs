//! The Durable Object of one tenant: admission, the books, and the list of sandboxes.
//!
//! It is an object because a call must be decided and recorded in one place and one turn. It stores the audit (two records
//! a call, appended and never changed), the calls that are not settled, and the sandboxes. It answers `POST` on:
//!
//! - `/admit`: [`super::admission::Admission`].
//! - `/identify`: [`super::admission::Identified`], what a caller may do.
//! - `/keys`: [`super::keys::Keys`].
//! - `/secrets`: [`super::secrets::Secrets`]; `/secrets/use`: [`super::secrets::SealedSecrets`], asked by the sandboxes' own objects.
//! - `/audit`, `/audit/verify`, `/audit/heads`: [`super::inquiry::Entries`], [`super::inquiry::Verified`], [`Head`]s.
//! - `/audit/exports/first`: the first [`super::archive::Export`], or `null`.
//! - `/cancel`: [`super::marks::Marked`]; `/cancelled`: whether the caller of a call wants it to end.
//! - `/settle`: `null`; a second settlement of a call changes nothing.
//! - `/sandboxes/list`: [`Listing`].
//! - `/jobs/settings`: [`super::jobs::JobSettings`] after they were set.
//! - `/jobs/list`: [`super::jobs::JobListing`]; `/jobs/report`: `null`, said by the jobs' own objects.
//! - `/jobs/place`: [`super::places::Placing`]; `/jobs/giveUp`: `null`, said by the consumer of dead letters.
//! - `/schedules`: [`crate::schedule::record::ScheduleReport`].
//! - `/metrics`: [`super::metrics::Report`].
//! - `/usage`: [`super::usage::UsageReport`].
//! - `/alerts`: [`super::alerts::AlertReport`].
//! - `/webhooks/deliveries`: [`super::deliveries::DeliveryListing`].
//! - `/sandboxes/ensure`, `/sandboxes/report`, `/sandboxes/remove`: `null`; said by the sandboxes' own objects.
//!
//! Every request is decided without awaiting between its first read and its last write, which makes it atomic. The alarm
//! closes calls that nobody settled by their deadline, forgets what is older than the audit keeps, holds a few sandboxes of the
//! list against their objects (`sweep.rs`), makes runs of schedules that are due (`scheduler.rs`), looks at budgets (`watch.rs`) and at jobs that have places (`placing.rs`), and exports the audit to R2 (`export.rs`). Messages to webhooks
//! are sent beside it (`outbox.rs`): the alarm only begins what is due, so that no receiver holds it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use worker::{
    DurableObject, Env, Request, Response, SqlStorage, SqlStorageValue, State as ObjectState, durable_object,
};

use super::admission::{Admission, ListRequest, Listed, Listing, StateReport};
use super::audit::Head;
use super::books::DAY_MILLIS;
use super::export::ExportClock;
use super::listing::Parameter;
use super::metrics::{self, Metric, Sample};
use super::outbox::{self, OutboxClock};
use super::placing::{self, PlacesClock};
use super::{job_books, marked, measure, schedule_books, scheduler, shelf, sweep, vault};
use crate::error::{Error, Result};
use crate::identifier::SandboxId;
use crate::sandbox::state::State;
use crate::schedule::record::ScheduleReport;
use crate::webhook::event::{Event, EventType};
use crate::workers::internal::answer;

/// Longest time between two looks at sandboxes. Unsettled calls are looked at when the first of them is overdue.
pub(super) const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// Holds the tenant's name, as plain text.
const NAME_FACT: &str = "name";

/// Most sandboxes in one part of the list.
const MOST_LISTED: u32 = 500;

#[durable_object(alarm)]
pub struct TenantActor {
    inner: Rc<Inner>,
}

/// What the steps of the object share.
pub(super) struct Inner {
    pub(super) state: Rc<ObjectState>,
    pub(super) env: Env,
    /// When the alarm is known to be due: asking costs reads.
    alarm_at: Cell<Option<i64>>,
    /// Calls that look for room among their key's calls at once.
    pub(super) looking: Cell<u32>,
    /// Where the books stand, once it was read.
    pub(super) head: RefCell<Option<Head>>,
    /// Whether anything was counted that budgets were not held against yet.
    pub(super) used_since_look: Cell<bool>,
    /// Whether the tenant's name is known to be stored.
    knows_name: Cell<bool>,
    pub(super) export_clock: ExportClock,
    pub(super) outbox: OutboxClock,
    pub(super) places: PlacesClock,
    /// When a schedule is due next, as far as it is known.
    pub(super) schedule_due: Cell<Option<i64>>,
}

#[derive(Deserialize)]
pub(super) struct TextRow {
    pub(super) text: String,
}

#[derive(Deserialize)]
pub(super) struct TimeRow {
    pub(super) time: Option<f64>,
}

const SCHEMA: &[&str] = &[
    "CREATE TABLE IF NOT EXISTS audit (seq INTEGER PRIMARY KEY AUTOINCREMENT, at INTEGER NOT NULL, call_id TEXT NOT NULL, \
     kind TEXT NOT NULL, record TEXT NOT NULL)",
    "CREATE INDEX IF NOT EXISTS audit_at ON audit (at)",
    "CREATE INDEX IF NOT EXISTS audit_call ON audit (call_id)",
    "CREATE TABLE IF NOT EXISTS open_calls (call_id TEXT PRIMARY KEY, asked_at INTEGER NOT NULL, deadline_at INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS sandboxes (sandbox_id TEXT PRIMARY KEY, listed TEXT NOT NULL)",
    "CREATE INDEX IF NOT EXISTS sandboxes_state ON sandboxes (json_extract(listed, '$.state'), sandbox_id)",
    "CREATE INDEX IF NOT EXISTS sandboxes_owner ON sandboxes (json_extract(listed, '$.owner'), sandbox_id)",
    "CREATE INDEX IF NOT EXISTS sandboxes_created_at ON sandboxes (json_extract(listed, '$.createdAt'))",
    "CREATE INDEX IF NOT EXISTS sandboxes_expires_at ON sandboxes (json_extract(listed, '$.expiresAt'))",
    "CREATE TABLE IF NOT EXISTS facts (fact TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS sandbox_checks (sandbox_id TEXT PRIMARY KEY, checked_at INTEGER NOT NULL)",
];

/// Columns of `open_calls` that it has had since later releases.
const OPEN_CALL_COLUMNS: [(&str, &str); 5] = [
    ("tool", "TEXT NOT NULL DEFAULT ''"),
    ("key_id", "TEXT NOT NULL DEFAULT ''"),
    ("takes_operation", "INTEGER NOT NULL DEFAULT 0"),
    ("holds_key", "INTEGER NOT NULL DEFAULT 0"),
    ("is_attempt", "INTEGER NOT NULL DEFAULT 0"),
];

impl DurableObject for TenantActor {
    fn new(state: ObjectState, env: Env) -> Self {
        let sql = state.storage().sql();
        let more = [shelf::SCHEMA, job_books::SCHEMA, placing::SCHEMA, outbox::SCHEMA, marked::SCHEMA];
        let more = more.into_iter().chain([schedule_books::SCHEMA, vault::SCHEMA]);
        for statement in SCHEMA.iter().chain(more.flatten()) {
            if let Err(error) = sql.exec(statement, None) {
                worker::console_error!("the tables of a tenant could not be made: {error}");
            }
        }
        let inner = Inner {
            state: Rc::new(state),
            env,
            alarm_at: Cell::new(None),
            looking: Cell::new(0),
            head: RefCell::new(None),
            used_since_look: Cell::new(true),
            knows_name: Cell::new(false),
            export_clock: ExportClock::default(),
            outbox: OutboxClock::default(),
            places: PlacesClock::default(),
            schedule_due: Cell::new(None),
        };
        if let Err(error) = inner.complete_tables() {
            worker::console_error!("the tables of a tenant could not be completed: {:?}", error.cause);
        }
        Self { inner: Rc::new(inner) }
    }

    async fn fetch(&self, mut request: Request) -> worker::Result<Response> {
        let inner = &self.inner;
        let path = request.path();
        let body = request.text().await?;
        let response = match path.as_str() {
            "/admit" => match read(&body) {
                Ok(request) => answer(inner.admit_when_settled(&request).await),
                Err(error) => answer::<Admission>(Err(error)),
            },
            "/identify" => answer(read(&body).and_then(|principal| inner.identify(&principal, now()))),
            "/keys" => {
                // A key that may have more jobs at once has them now.
                inner.places.look();
                answer(read(&body).and_then(|request| inner.keys(request)))
            }
            "/secrets" => answer(read(&body).and_then(|request| inner.secrets(request))),
            "/secrets/use" => answer(read(&body).and_then(|request| inner.use_secrets(&request))),
            "/audit" => answer(read(&body).and_then(|request| inner.entries(&request))),
            "/audit/verify" => answer(read(&body).and_then(|request| inner.verify(&request))),
            "/audit/exports/first" => answer(inner.first_export()),
            "/audit/heads" => answer(read::<Vec<i64>>(&body).and_then(|places| inner.heads(&places))),
            "/settle" => answer(read(&body).and_then(|settlement| inner.settle(&settlement))),
            "/metrics" => answer(read(&body).and_then(|request| measure::report(inner, &request))),
            "/alerts" => answer(read(&body).and_then(|request| inner.alerts(request))),
            "/webhooks/deliveries" => answer(read(&body).and_then(|request| inner.deliveries(&request))),
            "/usage" => answer(read(&body).and_then(|request| inner.usage(&request))),
            "/jobs/list" => answer(read(&body).and_then(|request| inner.jobs(&request))),
            "/jobs/settings" => answer(read(&body).and_then(|settings| inner.set_job_settings(settings))),
            "/jobs/report" => answer(read(&body).and_then(|report| inner.take_report(&report))),
            "/jobs/place" => answer(read(&body).and_then(|wanted| inner.place(&wanted))),
            "/jobs/giveUp" => answer(read(&body).and_then(|message| inner.give_up(&message))),
            "/schedules" => match read(&body) {
                Ok(request) => answer(scheduler::ask(inner, &request).await),
                Err(error) => answer::<ScheduleReport>(Err(error)),
            },
            "/sandboxes/list" => answer(read(&body).and_then(|request| inner.list(&request))),
            "/sandboxes/report" => answer(read(&body).and_then(|report| inner.report(report))),
            "/sandboxes/ensure" => answer(read(&body).and_then(|listed| inner.ensure(&listed))),
            "/sandboxes/remove" => answer(read(&body).and_then(|id| inner.remove(&id))),
            "/cancel" => answer(read(&body).and_then(|request| inner.cancel(&request))),
            "/wanted" => answer(read(&body).and_then(|request| inner.wanted(&request))),
            _ => Response::error("no such route", 404),
        };
        placing::hand_out(inner);
        outbox::send_due(inner);
        inner.ensure_alarm().await;
        response
    }

    async fn alarm(&self) -> worker::Result<Response> {
        let inner = &self.inner;
        inner.alarm_at.set(None);
        if let Err(error) = inner.sweep() {
            worker::console_error!("the sweep of a tenant failed: {:?}", error.cause);
        }
        inner.outbox.look();
        inner.places.look();
        placing::hand_out(inner);
        outbox::send_due(inner);
        let jobs = job_books::ask_about_new(inner);
        futures_util::future::join4(scheduler::run(inner), sweep::run(inner), inner.export(), jobs).await;
        outbox::send_due(inner);
        // It fails where the alarm could not be set, so that the platform repeats it: nothing else would.
        inner.set_alarm().await?;
        Response::empty()
    }
}

pub(super) fn read<T: DeserializeOwned>(body: &str) -> Result<T> {
    serde_json::from_str(body).map_err(Error::internal)
}

pub(super) fn values(parameters: Vec<Parameter>) -> Vec<SqlStorageValue> {
    let value = |parameter| match parameter {
        Parameter::Text(text) => text.into(),
        Parameter::Integer(number) => number.into(),
    };
    parameters.into_iter().map(value).collect()
}

/// A number of a row: JavaScript has them as doubles, and here all are whole and far below 2^53.
#[allow(clippy::cast_possible_truncation)]
pub(super) fn whole(number: f64) -> i64 {
    number as i64
}

pub(super) fn now() -> i64 {
    i64::try_from(worker::Date::now().as_millis()).unwrap_or(i64::MAX)
}

impl Inner {
    /// What was added to the tables since they were first made.
    fn complete_tables(&self) -> Result<()> {
        self.write(&metrics::schema(), Vec::new())?;
        self.make_usage_tables()?;
        self.make_alert_tables()?;
        self.make_export_tables()?;
        self.complete_job_tables()?;
        let columns: Vec<TextRow> =
            self.rows("SELECT name AS text FROM pragma_table_info('open_calls')", Vec::new())?;
        for (name, definition) in OPEN_CALL_COLUMNS {
            if columns.iter().all(|column| column.text != name) {
                self.write(&format!("ALTER TABLE open_calls ADD COLUMN {name} {definition}"), Vec::new())?;
            }
        }
        self.write("CREATE INDEX IF NOT EXISTS open_calls_key ON open_calls (key_id)", Vec::new())?;
        self.chain_books()
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

    /// The text stored under a name, of which there is one.
    fn fact_text(&self, name: &str) -> Result<Option<String>> {
        let rows: Vec<TextRow> = self.rows("SELECT value AS text FROM facts WHERE fact = ?", vec![name.into()])?;
        Ok(rows.into_iter().next().map(|row| row.text))
    }

    fn set_fact_text(&self, name: &str, text: &str) -> Result<()> {
        self.write("INSERT OR REPLACE INTO facts (fact, value) VALUES (?, ?)", vec![name.into(), text.into()])
    }

    /// The value stored under a name; where there is none yet, what it is before.
    pub(super) fn fact<T: DeserializeOwned + Default>(&self, name: &str) -> Result<T> {
        self.fact_text(name)?.map_or_else(|| Ok(T::default()), |text| read(&text))
    }

    pub(super) fn set_fact<T: Serialize>(&self, name: &str, value: &T) -> Result<()> {
        self.set_fact_text(name, &serde_json::to_string(value).map_err(Error::internal)?)
    }

    /// The tenant's own name, by which this object and those of its sandboxes are found.
    pub(super) fn name(&self) -> Result<Option<String>> {
        self.fact_text(NAME_FACT)
    }

    /// Stores the name, which only those who ask know.
    pub(super) fn know_name(&self, name: &str) -> Result<()> {
        if !self.knows_name.get() {
            self.set_fact_text(NAME_FACT, name)?;
            self.knows_name.set(true);
        }
        Ok(())
    }

    pub(super) fn listed(&self, id: &SandboxId) -> Result<Option<Listed>> {
        let rows: Vec<TextRow> =
            self.rows("SELECT listed AS text FROM sandboxes WHERE sandbox_id = ?", vec![id.as_str().into()])?;
        rows.first().map(|row| read(&row.text)).transpose()
    }

    pub(super) fn store_listed(&self, listed: &Listed) -> Result<()> {
        let text = serde_json::to_string(listed).map_err(Error::internal)?;
        let values = vec![listed.sandbox_id.as_str().into(), text.into()];
        self.write("INSERT OR REPLACE INTO sandboxes (sandbox_id, listed) VALUES (?, ?)", values)
    }

    pub(super) fn list(&self, request: &ListRequest) -> Result<Listing> {
        let limit = request.limit.clamp(1, MOST_LISTED);
        let (statement, parameters) = request.statement(limit + 1);
        let rows: Vec<TextRow> = self.rows(&statement, values(parameters))?;
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
        let changes = report.changes.clone();
        let told = listed.clone().told(report);
        if listed.started_at != told.started_at || told.state != State::Running {
            self.count_running(&listed, now())?;
        }
        self.store_listed(&told)?;
        let tenant = self.name()?.unwrap_or_default();
        let news = changes.iter().filter(|change| change.number > listed.changes_told);
        news.filter_map(|change| Event::of_sandbox_change(&tenant, &told, change))
            .try_for_each(|event| self.tell(&event))
    }

    /// Lists a sandbox that is there from now on.
    pub(super) fn add_listed(&self, listed: &Listed, tenant: &str) -> Result<()> {
        self.store_listed(listed)?;
        self.tell(&Event::of_sandbox(tenant, listed, EventType::SandboxCreated, listed.created_at))
    }

    /// Lists a sandbox that is being created, unless it is listed.
    fn ensure(&self, listed: &Listed) -> Result<()> {
        match self.listed(&listed.sandbox_id)? {
            Some(_) => Ok(()),
            None => self.add_listed(listed, &self.name()?.unwrap_or_default()),
        }
    }

    pub(super) fn remove(&self, id: &SandboxId) -> Result<()> {
        if let Some(listed) = self.listed(id)? {
            self.count_running(&listed, now())?;
            measure::add(self, &Sample::new(Metric::Destroyed, "", None, None, now()));
            let tenant = self.name()?.unwrap_or_default();
            let listed = Listed { state: State::Destroyed, ..listed };
            self.tell(&Event::of_sandbox(&tenant, &listed, EventType::SandboxDestroyed, now()))?;
        }
        self.write("DELETE FROM sandbox_checks WHERE sandbox_id = ?", vec![id.as_str().into()])?;
        self.write("DELETE FROM sandboxes WHERE sandbox_id = ?", vec![id.as_str().into()])
    }

    fn sweep(&self) -> Result<()> {
        let now = now();
        // One that fails, for a row that cannot be read, keeps none of the others from being done.
        let steps = [
            self.close_overdue(now),
            measure::forget(self),
            self.look(now),
            self.forget_usage(now),
            self.forget_answers(now),
            self.forget_jobs(now),
            self.forget_schedules(now),
            self.tidy_outbox(now),
            self.forget_old_marks(now),
            self.forget_records(now),
        ];
        steps.into_iter().collect()
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
        // A call is overdue the millisecond after its deadline.
        let overdue = first.first().and_then(|row| row.time).map(|time| (whole(time) + 1).max(now));
        let listed = some("sandboxes")?.then(|| now + millis(sweep::interval(self)));
        let daily = some("audit")?.then_some(now + DAY_MILLIS);
        let unknown_job = self.next_unknown_job()?.map(|at| at.max(now + millis(sweep::interval(self)) / 4));
        let forgotten_job = self.next_forgotten_job()?.map(|at| at.max(now + millis(sweep::interval(self)) / 4));
        let look = self.next_look(now, millis(sweep::interval(self)))?;
        let message = self.next_message(now)?;
        let place = self.places.due_at.get().map(|at| at.max(now));
        let of_jobs = [unknown_job, forgotten_job, place, self.next_schedule(now)?];
        let due = [overdue, listed, daily, look, message, self.next_export(now)?];
        Ok(due.into_iter().chain(of_jobs).flatten().min())
    }

    /// The same; what fails is done by the next call.
    pub(super) async fn ensure_alarm(&self) {
        if let Err(error) = self.set_alarm().await {
            worker::console_error!("the alarm of a tenant could not be set: {error}");
        }
    }

    /// Sets the alarm, unless one is known to be due early enough for whatever a call can have left open.
    async fn set_alarm(&self) -> worker::Result<()> {
        let known = self.alarm_at.get();
        let sweep = Some(now() + millis(sweep::interval(self)));
        let named = [self.outbox.due_at.get(), self.places.due_at.get(), self.schedule_due.get(), sweep];
        let early_enough = named.into_iter().flatten().min().unwrap_or(i64::MAX);
        if known.is_some_and(|at| at <= early_enough) {
            return Ok(());
        }
        let due = match self.next_sweep() {
            Ok(Some(due)) => due,
            Ok(None) => return Ok(()),
            // What can be read is swept all the same.
            Err(error) => {
                worker::console_error!("the next sweep is not known: {:?}", error.cause);
                now() + millis(sweep::interval(self))
            }
        };
        if known.is_some_and(|at| at <= due) {
            return Ok(());
        }
        let storage = self.state.storage();
        let set = storage.get_alarm().await?.filter(|set| *set <= due);
        if set.is_none() {
            storage.set_alarm(Duration::from_millis(u64::try_from(due - now()).unwrap_or(0))).await?;
        }
        self.alarm_at.set(Some(set.unwrap_or(due)));
        Ok(())
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
