//! The Durable Object of one sandbox: the only place that starts, replaces and ends it.
//!
//! It is an object because a sandbox must be started once however many callers come first, and because what is known of it
//! must survive the Worker. It stores one row, the [`Record`]. It answers:
//!
//! - `POST /create`: [`Record`] once it runs; 409 when it exists with other settings.
//! - `POST /describe`: [`super::record::Described`]; 404 when there is no such sandbox.
//! - `POST /destroy`: [`Destroyed`]; calls at the same time share one destruction.
//! - `* /control/…`: the control API, passed on unread to the running sandbox, which is started first where needed.
//!
//! This is the shell: its memory, its storage, its routes. What it does is in `life.rs` and `control.rs`.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::{LocalBoxFuture, Shared};
use serde::de::DeserializeOwned;
use worker::{DurableObject, Env, Request, Response, SqlStorage, State as ObjectState, durable_object};

use super::container::Token;
use super::control::control;
use super::life::{self, DESTROY_DEADLINE};
use super::record::{Destroyed, Record};
use super::state::Event;
use super::transport::Transport;
use crate::error::{Error, ErrorCode, Result};
use crate::platform::Platform;
use crate::tenant::actor::StateReport;
use crate::workers::backend::answer;
use crate::workers::fetch;
use crate::workers::internal::{self, TENANT_BINDING, ask, namespace};
use crate::workers::platform::{Lifetime, WorkersPlatform};

/// Until the tenant's object has taken a change of state.
const REPORT_DEADLINE: Duration = Duration::from_secs(5);

/// Name of the object of a sandbox.
pub fn object_name(tenant: &str, sandbox_id: &str) -> String {
    format!("{tenant}/{sandbox_id}")
}

/// Work that all who ask for it at the same time share.
pub type SharedWork<T> = Shared<LocalBoxFuture<'static, Result<T>>>;

#[durable_object(fetch)]
pub struct SandboxActor {
    inner: Rc<Inner>,
}

/// What the steps of the object share.
pub struct Inner {
    pub state: Rc<ObjectState>,
    pub env: Env,
    pub platform: WorkersPlatform,
    pub start: RefCell<Option<SharedWork<Record>>>,
    pub destruction: RefCell<Option<SharedWork<Destroyed>>>,
    /// Boot whose container is watched for its exit.
    pub watched: RefCell<Option<String>>,
    /// When the container was last told to stay, in milliseconds since 1970.
    pub stays_since: Cell<i64>,
}

/// What is stored.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Stored {
    pub tenant: String,
    pub record: Record,
    /// What the daemon of the last started container takes; beside the record, which is told to others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Token>,
}

impl DurableObject for SandboxActor {
    fn new(state: ObjectState, env: Env) -> Self {
        let state = Rc::new(state);
        let platform = WorkersPlatform(Lifetime::Object(state.clone()));
        let inner = Inner {
            state,
            env,
            platform,
            start: RefCell::default(),
            destruction: RefCell::default(),
            watched: RefCell::default(),
            stays_since: Cell::default(),
        };
        Self { inner: Rc::new(inner) }
    }

    async fn fetch(&self, mut request: Request) -> worker::Result<Response> {
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

async fn read<T: DeserializeOwned>(request: &mut Request) -> Result<T> {
    request.json().await.map_err(Error::internal)
}

impl Inner {
    fn sql(&self) -> SqlStorage {
        self.state.storage().sql()
    }

    pub fn load(&self) -> Result<Option<Stored>> {
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
        let sql = self.sql();
        sql.exec(
            "CREATE TABLE IF NOT EXISTS sandbox (id INTEGER PRIMARY KEY CHECK (id = 1), stored TEXT NOT NULL)",
            None,
        )
        .map_err(Error::internal)?;
        sql.exec("INSERT OR REPLACE INTO sandbox (id, stored) VALUES (1, ?)", vec![text.into()])
            .map_err(Error::internal)?;
        Ok(())
    }

    /// Applies `event` and stores the result, in one turn.
    pub fn transition(&self, event: Event, change: impl FnOnce(&mut Record)) -> Result<Stored> {
        let mut stored = self.existing()?;
        stored.record.state = stored.record.state.after(event).map_err(Error::internal)?;
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

    /// Tells the tenant's list of a change. A report that is lost leaves the list behind, not the sandbox.
    pub async fn report(&self, stored: &Stored) {
        let record = &stored.record;
        let report = StateReport {
            sandbox_id: record.sandbox_id.clone(),
            state: record.state,
            generation: record.generation,
            started_at: record.started_at,
        };
        if let Err(error) = self.tell_tenant(&stored.tenant, "/sandboxes/report", &report).await {
            let line = serde_json::json!({
                "level": "error",
                "message": "the tenant's list did not take a change of state",
                "sandboxId": record.sandbox_id,
                "source": error.cause,
            });
            self.platform.log(&line);
        }
    }

    pub async fn tell_tenant<Q: serde::Serialize>(&self, tenant: &str, path: &str, question: &Q) -> Result<()> {
        let lost = |error: fetch::FetchError| Error::internal(error);
        ask(&namespace(&self.env, TENANT_BINDING)?, tenant, path, question, REPORT_DEADLINE, lost).await
    }
}
