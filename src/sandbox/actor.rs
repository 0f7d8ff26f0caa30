//! The Durable Object of one sandbox: the only place that starts, replaces and ends it.
//!
//! It is an object because a sandbox must be started once however many callers come first, and because what is known of it
//! must survive the Worker. It stores one row, the [`Record`], and its timers. It answers:
//!
//! - `POST /create`: [`Record`] once it runs; 409 when it exists with other settings.
//! - `POST /wake`: [`super::record::Woken`] once it runs.
//! - `POST /stop`: [`super::record::Stopped`] once it does not run.
//! - `POST /update`: [`Record`] as it is now.
//! - `POST /cloned`: `null`; its repository is there.
//! - `POST /reconcile`: [`super::reconcile::Finding`], asked by the tenant's sweep.
//! - `POST /describe`: [`super::record::Described`]; 404 when there is no such sandbox.
//! - `POST /destroy`: [`Destroyed`]; calls at the same time share one destruction.
//! - `* /control/…`: the control API, passed on unread to the running sandbox, which is started first where needed.
//!
//! Its alarm does what is due: idle sleep, expiry, a start that was lost. It never fails.
//!
//! This is the shell: its memory, its storage, its routes. What it does is in `life.rs`, `sleep.rs`, `control.rs`, `clock.rs` and
//! `reconcile.rs`.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::{LocalBoxFuture, Shared};
use serde::de::DeserializeOwned;
use worker::{DurableObject, Env, Request, Response, SqlStorage, State as ObjectState, durable_object};

use super::cause::Cause;
use super::change::Changes;
use super::container::Token;
use super::control::{GENERATION_HEADER, control};
use super::forbidden::Forbidden;
use super::life::{self, DESTROY_DEADLINE};
use super::record::{Destroyed, Record};
use super::sleep::{self, Halt};
use super::state::Event;
use super::transport::Transport;
use super::{clock, reconcile};
use crate::error::{Error, ErrorCode, Result};
use crate::fetch_error::Repeat;
use crate::identifier::SandboxId;
use crate::platform::Platform;
use crate::tenant::admission::{ListedFacts, StartTold, StateReport};
use crate::workers::backend::answer;
use crate::workers::fetch;
use crate::workers::internal::{self, Question, TENANT_BINDING, namespace};
use crate::workers::platform::{Lifetime, WorkersPlatform};

/// Until the tenant's object has taken a change of state.
const REPORT_DEADLINE: Duration = Duration::from_secs(5);

/// Name of the object of a sandbox.
pub fn object_name(tenant: &str, sandbox_id: &str) -> String {
    format!("{tenant}/{sandbox_id}")
}

/// Work that all who ask for it at the same time share.
pub type SharedWork<T> = Shared<LocalBoxFuture<'static, Result<T>>>;

#[durable_object(alarm)]
pub struct SandboxActor {
    inner: Rc<Inner>,
}

/// What the steps of the object share.
pub struct Inner {
    pub state: Rc<ObjectState>,
    pub env: Env,
    pub platform: WorkersPlatform,
    /// What is stored, once it was read: [`Inner::load`] and [`Inner::save`] keep it, nobody else.
    stored: RefCell<Option<Option<Stored>>>,
    pub start: RefCell<Option<SharedWork<Record>>>,
    pub destruction: RefCell<Option<SharedWork<Destroyed>>>,
    pub stop: RefCell<Option<SharedWork<Halt>>>,
    /// Creations under way, from before anything is stored.
    pub creations: Cell<u32>,
    /// Requests under way that use the sandbox, and when there was one last: milliseconds since 1970.
    pub in_flight: Cell<u32>,
    pub last_used: Cell<i64>,
    /// When the alarm is known to be set to; the outer `None` is not known.
    pub alarm: Cell<Option<Option<i64>>>,
    /// Boot whose container is watched for its exit.
    pub watched: RefCell<Option<String>>,
    /// When the container was last told to stay, in milliseconds since 1970.
    pub stays_since: Cell<i64>,
    pub cause: Cause,
    /// Commands that may not begin any more.
    pub forbidden: Forbidden,
}

/// What is stored.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Stored {
    pub tenant: String,
    pub record: Record,
    /// What the daemon of the last started container takes; beside the record, which is told to others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Token>,
    /// Changes that the tenant's list has not taken.
    #[serde(default)]
    pub changes: Changes,
}

impl DurableObject for SandboxActor {
    fn new(state: ObjectState, env: Env) -> Self {
        let state = Rc::new(state);
        let platform = WorkersPlatform(Lifetime::Object(state.clone()));
        let inner = Inner {
            state,
            env,
            platform,
            stored: RefCell::default(),
            start: RefCell::default(),
            destruction: RefCell::default(),
            stop: RefCell::default(),
            creations: Cell::default(),
            in_flight: Cell::default(),
            last_used: Cell::default(),
            alarm: Cell::default(),
            watched: RefCell::default(),
            stays_since: Cell::default(),
            cause: Cause::default(),
            forbidden: Forbidden::default(),
        };
        Self { inner: Rc::new(inner) }
    }

    async fn fetch(&self, request: Request) -> worker::Result<Response> {
        let before = self.inner.cause.asked(&request);
        let response = self.answer(request).await?;
        let headers = response.headers();
        if !headers.has(GENERATION_HEADER)?
            && let Ok(Some(stored)) = self.inner.load()
        {
            headers.set(GENERATION_HEADER, &stored.record.generation.to_string())?;
        }
        self.inner.cause.tell(response, before)
    }

    async fn alarm(&self) -> worker::Result<Response> {
        clock::run(&self.inner).await;
        Response::empty()
    }
}

impl SandboxActor {
    async fn answer(&self, mut request: Request) -> worker::Result<Response> {
        let url = request.url()?;
        match url.path() {
            "/create" => {
                let tenant = url.query_pairs().find(|(name, _)| name == "tenant").map(|(_, value)| value.into_owned());
                let result = match (read(&mut request).await, tenant) {
                    (Ok(create), Some(tenant)) => life::create_and_start(&self.inner, tenant, create).await,
                    (Err(error), _) => Err(error),
                    (_, None) => Err(Error::internal("a creation names no tenant")),
                };
                answer(result)
            }
            "/wake" => answer(life::wake(&self.inner).await),
            "/stop" => answer(sleep::stop(&self.inner).await),
            "/update" => match read(&mut request).await {
                Ok(update) => answer(life::update(&self.inner, &update).await),
                Err(error) => answer::<Record>(Err(error)),
            },
            "/cloned" => answer(life::cloned(&self.inner)),
            "/reconcile" => match read::<Stated>(&mut request).await {
                Ok(Stated { tenant, sandbox_id }) => {
                    answer(reconcile::reconcile(&self.inner, tenant, sandbox_id).await)
                }
                Err(error) => answer::<Record>(Err(error)),
            },
            "/describe" => answer(life::describe(&self.inner).await),
            "/destroy" => {
                let result = match read(&mut request).await {
                    Ok(force) => life::destroy(&self.inner, force, DESTROY_DEADLINE).await,
                    Err(error) => Err(error),
                };
                answer(result)
            }
            path => match path.strip_prefix("/control") {
                Some(path) => {
                    let path = url.query().map_or_else(|| path.to_owned(), |query| format!("{path}?{query}"));
                    match control(&self.inner, &request, &path).await {
                        Ok(response) => Ok(response),
                        Err(error) => internal::refusal(&error),
                    }
                }
                None => Response::error("no such route", 404),
            },
        }
    }
}

/// Which sandbox the tenant means: an object that stores nothing does not know whose it is.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Stated {
    pub tenant: String,
    pub sandbox_id: SandboxId,
}

async fn read<T: DeserializeOwned>(request: &mut Request) -> Result<T> {
    request.json().await.map_err(Error::internal)
}

impl Inner {
    pub fn sql(&self) -> SqlStorage {
        self.state.storage().sql()
    }

    /// What is stored; `None` when there is no sandbox.
    pub fn load(&self) -> Result<Option<Stored>> {
        if let Some(known) = &*self.stored.borrow() {
            return Ok(known.clone());
        }
        let stored = self.read()?;
        self.stored.replace(Some(stored.clone()));
        Ok(stored)
    }

    fn read(&self) -> Result<Option<Stored>> {
        #[derive(serde::Deserialize)]
        struct Row {
            stored: String,
        }
        // A destroyed sandbox leaves no table behind, so that its object costs nothing.
        let tables = self.sql().exec("SELECT name AS stored FROM sqlite_master WHERE name = 'sandbox'", None);
        if tables.and_then(|cursor| cursor.to_array::<Row>()).map_err(Error::internal)?.is_empty() {
            return Ok(None);
        }
        let rows = self.sql().exec("SELECT stored FROM sandbox WHERE id = 1", None);
        let rows = rows.and_then(|cursor| cursor.to_array::<Row>()).map_err(Error::internal)?;
        rows.first().map(|row| serde_json::from_str(&row.stored).map_err(Error::internal)).transpose()
    }

    /// The stored sandbox; not found when there is none.
    pub fn existing(&self) -> Result<Stored> {
        self.load()?.ok_or_else(|| Error::new(ErrorCode::NotFound, "there is no such sandbox"))
    }

    pub fn save(&self, stored: &Stored) -> Result<()> {
        let text = serde_json::to_string(stored).map_err(Error::internal)?;
        // Read again, unless it is written whole.
        self.stored.replace(None);
        let sql = self.sql();
        sql.exec(
            "CREATE TABLE IF NOT EXISTS sandbox (id INTEGER PRIMARY KEY CHECK (id = 1), stored TEXT NOT NULL)",
            None,
        )
        .map_err(Error::internal)?;
        sql.exec("INSERT OR REPLACE INTO sandbox (id, stored) VALUES (1, ?)", vec![text.into()])
            .map_err(Error::internal)?;
        self.stored.replace(Some(Some(stored.clone())));
        Ok(())
    }

    /// Forgets everything that is stored.
    pub async fn erase(&self) -> Result<()> {
        let erased = self.state.storage().delete_all().await.map_err(Error::internal);
        self.stored.replace(None);
        erased
    }

    /// Applies `event` and stores the result, in one turn.
    pub fn transition(&self, event: Event, change: impl FnOnce(&mut Record)) -> Result<Stored> {
        let mut stored = self.existing()?;
        let generation = stored.record.generation;
        stored.record.state = stored.record.state.after(event).map_err(Error::internal)?;
        change(&mut stored.record);
        stored.changes.note(&stored.record, generation, self.platform.now_millis());
        self.save(&stored)?;
        Ok(stored)
    }

    /// Changes the record without changing its state, in one turn.
    pub fn change(&self, change: impl FnOnce(&mut Record)) -> Result<Stored> {
        let mut stored = self.existing()?;
        change(&mut stored.record);
        self.save(&stored)?;
        Ok(stored)
    }

    /// The machine that the sandbox runs on.
    pub fn transport(self: &Rc<Self>, stored: &Stored) -> Result<Transport> {
        Transport::of(self, stored)
    }

    /// Stores what the container that is about to start will take.
    pub fn keep_token(&self, token: &Token) -> Result<()> {
        let mut stored = self.existing()?;
        stored.token = Some(token.clone());
        self.save(&stored)
    }

    /// Tells the tenant's list of a change. A report that is lost leaves the list behind, not the sandbox; the next one makes up for it.
    pub async fn report(&self, stored: &Stored) {
        self.report_start(stored, None).await;
    }

    /// The same with a start that ended.
    pub async fn report_start(&self, stored: &Stored, start: Option<StartTold>) {
        let record = &stored.record;
        let report = StateReport {
            sandbox_id: record.sandbox_id.clone(),
            state: record.state,
            generation: record.generation,
            started_at: record.started_at,
            facts: Some(ListedFacts::of(record)),
            start,
            changes: stored.changes.untold().to_vec(),
        };
        let told = self.tell_tenant(&stored.tenant, "/sandboxes/report", &report).await;
        let told = told.and_then(|()| report.changes.last().map_or(Ok(()), |last| self.forget_changes(last.number)));
        if let Err(error) = told {
            self.complain("the tenant's list did not take a change of state", &error);
        }
    }

    /// The list has taken changes up to this number.
    fn forget_changes(&self, number: u32) -> Result<()> {
        // It may have been destroyed meanwhile.
        let Some(mut stored) = self.load()? else { return Ok(()) };
        if stored.changes.told(number) { self.save(&stored) } else { Ok(()) }
    }

    /// Logs what nobody is told.
    pub fn complain(&self, message: &str, error: &Error) {
        let sandbox_id = self.load().ok().flatten().map(|stored| stored.record.sandbox_id);
        let line = serde_json::json!({
            "level": "error",
            "message": message,
            "sandboxId": sandbox_id,
            "error": error.message,
            "source": error.cause,
        });
        self.platform.log(&line);
    }

    pub async fn tell_tenant<Q: serde::Serialize>(&self, tenant: &str, path: &str, question: &Q) -> Result<()> {
        let lost = |error: fetch::FetchError| Error::internal(error);
        let objects = &namespace(&self.env, TENANT_BINDING)?;
        // The same twice leaves the list as it is; a start could be counted twice.
        let (deadline, repeat, trace) = (REPORT_DEADLINE, Repeat::Harmless, Vec::new());
        Question { objects, name: tenant, path, deadline, repeat, lost, trace }.ask(question, |_| ()).await
    }
}
