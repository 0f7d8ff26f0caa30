//! The Durable Object of one sandbox: the only place that starts, replaces and ends it.
//!
//! It is an object because a sandbox must be started once however many callers come first, and because what is known of it
//! must survive the Worker. It stores one row, the [`Record`]. It answers:
//!
//! - `POST /create`: [`Record`] once it runs; 409 when it exists with other settings.
//! - `POST /describe`: [`Described`]; 404 when there is no such sandbox.
//! - `POST /destroy`: [`Destroyed`]; calls at the same time share one destruction.
//! - `* /control/…`: the control API, passed on unread to the running sandbox, which is started first where needed.
//!
//! Methods take `&self` and overlap while they wait for the host. The record is read and written without awaiting in between,
//! so that each change of it is atomic; a start and a destruction are one shared future each.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{LocalBoxFuture, Shared};
use sandbox_api::{BOOT_ID_HEADER, ControlErrorCode, HostStart, Metrics, ResourcesReleased};
use serde::de::DeserializeOwned;
use wasm_bindgen::JsValue;
use worker::{DurableObject, Env, Request, Response, SqlStorage, State as ObjectState, durable_object};

use super::host::{self, Control, Host, SendError};
use super::record::{Create, Described, Destroyed, Record, version_accepted};
use super::state::{Event, State};
use crate::error::{Error, ErrorCode, Result};
use crate::platform::Platform;
use crate::tenant::actor::StateReport;
use crate::workers::backend::{answer, response_headers};
use crate::workers::fetch;
use crate::workers::internal::{self, TENANT_BINDING, ask, namespace};
use crate::workers::platform::{Lifetime, WorkersPlatform};

/// The boot that a request means.
pub const EXPECTED_BOOT_HEADER: &str = "x-expected-boot-id";
/// Milliseconds until the head of the answer, the start of the sandbox not counted.
pub const DEADLINE_HEADER: &str = "x-deadline-ms";
/// Generation that answered.
pub const GENERATION_HEADER: &str = "x-sandbox-generation";

/// Until a sandbox that does not run is started, the books of its tenant included.
pub const START_DEADLINE: Duration = Duration::from_secs(30);

/// Until the tenant's object has taken a change of state.
const REPORT_DEADLINE: Duration = Duration::from_secs(5);

/// Until a host answers that it ended a sandbox: many files take a while.
const DESTROY_DEADLINE: Duration = Duration::from_secs(40);

/// The same for one that never ran, while its creator waits for the refusal.
const CLEANUP_DEADLINE: Duration = Duration::from_secs(5);

/// Until a running sandbox tells its metrics.
const METRICS_DEADLINE: Duration = Duration::from_secs(3);

/// Requests made for one control request: the second after a start that the first one showed to be needed.
const ATTEMPTS: u32 = 2;

/// Name of the object of a sandbox.
pub fn object_name(tenant: &str, sandbox_id: &str) -> String {
    format!("{tenant}/{sandbox_id}")
}

type SharedWork<T> = Shared<LocalBoxFuture<'static, Result<T>>>;

#[durable_object(fetch)]
pub struct SandboxActor {
    inner: Rc<Inner>,
}

struct Inner {
    state: Rc<ObjectState>,
    env: Env,
    platform: WorkersPlatform,
    start: RefCell<Option<SharedWork<Record>>>,
    destruction: RefCell<Option<SharedWork<Destroyed>>>,
}

/// What is stored.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
struct Stored {
    tenant: String,
    record: Record,
}

impl DurableObject for SandboxActor {
    fn new(state: ObjectState, env: Env) -> Self {
        let state = Rc::new(state);
        let platform = WorkersPlatform(Lifetime::Object(state.clone()));
        let inner = Inner { state, env, platform, start: RefCell::default(), destruction: RefCell::default() };
        Self { inner: Rc::new(inner) }
    }

    async fn fetch(&self, mut request: Request) -> worker::Result<Response> {
        let url = request.url()?;
        match url.path() {
            "/create" => {
                let tenant = url.query_pairs().find(|(name, _)| name == "tenant").map(|(_, value)| value.into_owned());
                let result = match (read(&mut request).await, tenant) {
                    (Ok(create), Some(tenant)) => create_and_start(&self.inner, tenant, create).await,
                    (Err(error), _) => Err(error),
                    (_, None) => Err(Error::internal("a creation names no tenant")),
                };
                answer(result)
            }
            "/describe" => answer(describe(&self.inner).await),
            "/destroy" => {
                let result = match read(&mut request).await {
                    Ok(force) => destroy(&self.inner, force, DESTROY_DEADLINE).await,
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

    fn load(&self) -> Result<Option<Stored>> {
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
    fn existing(&self) -> Result<Stored> {
        self.load()?.ok_or_else(|| Error::new(ErrorCode::NotFound, "there is no such sandbox"))
    }

    fn save(&self, stored: &Stored) -> Result<()> {
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
    fn transition(&self, event: Event, change: impl FnOnce(&mut Record)) -> Result<Stored> {
        let mut stored = self.existing()?;
        stored.record.state = stored.record.state.after(event).map_err(Error::internal)?;
        change(&mut stored.record);
        self.save(&stored)?;
        Ok(stored)
    }

    fn host(&self, stored: &Stored) -> Result<Host> {
        Host::of(&self.env, &stored.tenant, stored.record.sandbox_id.as_str())
    }

    /// Tells the tenant's list of a change. A report that is lost leaves the list behind, not the sandbox.
    async fn report(&self, stored: &Stored) {
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

    async fn tell_tenant<Q: serde::Serialize>(&self, tenant: &str, path: &str, question: &Q) -> Result<()> {
        let lost = |error: fetch::FetchError| Error::internal(error);
        ask(&namespace(&self.env, TENANT_BINDING)?, tenant, path, question, REPORT_DEADLINE, lost).await
    }
}

async fn create_and_start(inner: &Rc<Inner>, tenant: String, create: Create) -> Result<Record> {
    if inner.destruction.borrow().is_some() {
        let message = "a sandbox of this name is being destroyed; try again in a moment";
        let error = Error::new(ErrorCode::Conflict, message).detail("reason", "being_destroyed");
        return Err(Error { retryable: true, retry_after: Some(1), ..error });
    }
    let is_new = inner.load()?.is_none();
    if is_new {
        // The one of that name which the call found listed may have been removed since.
        inner.tell_tenant(&tenant, "/sandboxes/ensure", &create.listed).await?;
    }
    match inner.load()? {
        Some(stored) => stored.record.accepts(&create.settings)?,
        None => {
            let created_at = create.listed.created_at;
            let record = Record::created(create.listed.sandbox_id, create.settings, created_at);
            inner.save(&Stored { tenant, record })?;
        }
    }
    match ensure_running(inner).await {
        // What never ran is not kept, unless the host may hold something of it: then it stays listed, to be tried again
        // or destroyed.
        Err(error) if is_new => {
            let force = error.code == ErrorCode::NotConfigured;
            drop(destroy(inner, force, CLEANUP_DEADLINE).await);
            Err(error)
        }
        result => result,
    }
}

/// The record of the running sandbox. What is stored as running is believed until a request shows otherwise.
async fn ensure_running(inner: &Rc<Inner>) -> Result<Record> {
    refuse_while_destroyed(inner)?;
    let stored = inner.existing()?;
    if stored.record.state == State::Running {
        return Ok(stored.record);
    }
    join(inner, |inner| &inner.start, |inner| async move { start(&inner).await }.boxed_local()).await
}

/// Joins the work in a slot, or begins it there. It goes on for the others although whoever asked leaves.
fn join<T: Clone + 'static>(
    inner: &Rc<Inner>,
    slot: fn(&Inner) -> &RefCell<Option<SharedWork<T>>>,
    begin: impl FnOnce(Rc<Inner>) -> LocalBoxFuture<'static, Result<T>>,
) -> SharedWork<T> {
    let running = slot(inner).borrow().clone();
    if let Some(running) = running {
        return running;
    }
    let owner = inner.clone();
    let work = begin(inner.clone());
    let work = async move {
        let result = work.await;
        slot(&owner).borrow_mut().take();
        result
    };
    let shared = work.boxed_local().shared();
    slot(inner).borrow_mut().replace(shared.clone());
    let background = shared.clone();
    inner.platform.background(async move { drop(background.await) }.boxed_local());
    shared
}

fn refuse_while_destroyed(inner: &Inner) -> Result<()> {
    if inner.destruction.borrow().is_some() {
        return Err(Error::new(ErrorCode::NotFound, "the sandbox is being destroyed"));
    }
    Ok(())
}

async fn start(inner: &Rc<Inner>) -> Result<Record> {
    let stored = inner.transition(Event::Start, |_| ())?;
    let started = match inner.host(&stored) {
        Ok(host) => {
            let start =
                HostStart { sandbox_id: stored.record.sandbox_id.to_string(), env: stored.record.settings.env.clone() };
            host.start(&start).await.and_then(|started| version_accepted(started.api_version).map(|()| started))
        }
        Err(error) => Err(error),
    };
    let (stored, result) = match started {
        Ok(started) => {
            let now = inner.platform.now_millis();
            let stored = inner.transition(Event::Started, |record| {
                if record.boot_id.as_ref() != Some(&started.boot_id) {
                    record.generation += 1;
                    record.started_at = Some(now);
                }
                record.boot_id = Some(started.boot_id);
            })?;
            (stored.clone(), Ok(stored.record))
        }
        Err(error) => (inner.transition(Event::StartFailed, |_| ())?, Err(error)),
    };
    inner.report(&stored).await;
    result
}

/// The boot that was thought to run is gone. Does nothing when another start has already replaced it.
async fn lost(inner: &Rc<Inner>, boot_id: &str) -> Result<()> {
    let stored = inner.existing()?;
    if stored.record.state == State::Running && stored.record.boot_id.as_deref() == Some(boot_id) {
        let stored = inner.transition(Event::Lost, |_| ())?;
        inner.report(&stored).await;
    }
    Ok(())
}

async fn describe(inner: &Rc<Inner>) -> Result<Described> {
    let stored = inner.existing()?;
    let Some(boot_id) = stored.record.boot_id.clone().filter(|_| stored.record.state == State::Running) else {
        return Ok(Described { record: stored.record, metrics: None });
    };
    let control = Control {
        method: "GET",
        path: "/v1/metrics",
        headers: Vec::new(),
        body: None,
        boot_id: &boot_id,
        deadline: METRICS_DEADLINE,
    };
    let metrics = match inner.host(&stored)?.control(control).await {
        Ok(response) => {
            let text = fetch::text(&response, 64 * 1024, METRICS_DEADLINE).await;
            text.ok().and_then(|text| serde_json::from_str::<Metrics>(&text).ok())
        }
        Err(SendError::Refused(refusal, _)) if is_gone(refusal.code) => {
            lost(inner, &boot_id).await?;
            None
        }
        Err(_) => None,
    };
    Ok(Described { record: inner.existing()?.record, metrics })
}

/// Whether a refusal says that the boot is gone, and that nothing of the request was carried out.
fn is_gone(code: ControlErrorCode) -> bool {
    matches!(code, ControlErrorCode::NotRunning | ControlErrorCode::StaleGeneration)
}

async fn destroy(inner: &Rc<Inner>, force: bool, patience: Duration) -> Result<Destroyed> {
    join(inner, |inner| &inner.destruction, |inner| async move { end(&inner, force, patience).await }.boxed_local())
        .await
}

async fn end(inner: &Rc<Inner>, force: bool, patience: Duration) -> Result<Destroyed> {
    let now = inner.platform.now_millis();
    let Some(stored) = inner.load()? else {
        return Ok(Destroyed { destroyed_at: now, released: ResourcesReleased::default() });
    };
    // A start under way would outlive the sandbox: it ends first, whatever comes of it.
    let starting = inner.start.borrow().clone();
    if let Some(starting) = starting {
        drop(starting.await);
    }
    let ended = match inner.host(&stored) {
        Ok(host) => host.destroy(patience).await,
        Err(error) => Err(error),
    };
    let released = match ended {
        Ok(released) => released,
        Err(_) if force => ResourcesReleased::default(),
        Err(error) => return Err(error),
    };
    // The list first: a sandbox that is listed and gone is mended by the next destruction, the reverse never.
    inner.tell_tenant(&stored.tenant, "/sandboxes/remove", &stored.record.sandbox_id).await?;
    inner.state.storage().delete_all().await.map_err(Error::internal)?;
    Ok(Destroyed { destroyed_at: now, released })
}

/// Passes one request on to the sandbox, and its answer back, unread.
async fn control(inner: &Rc<Inner>, request: &Request, path: &str) -> Result<Response> {
    let method = request.method().to_string();
    let header = |name: &str| request.headers().get(name).ok().flatten();
    let expected = header(EXPECTED_BOOT_HEADER);
    let deadline =
        header(DEADLINE_HEADER).and_then(|text| text.parse().ok()).map_or(METRICS_DEADLINE, Duration::from_millis);
    let is_json = header("content-type").is_some_and(|kind| kind.starts_with("application/json"));
    // JSON is small and may have to be sent again; any other body is passed on as it comes, once.
    let json = if is_json { Some(body_text(request).await?) } else { None };
    let stream = if is_json { None } else { request.inner().body() };
    for attempt in 1..=ATTEMPTS {
        let record = ensure_running(inner).await?;
        let stored = inner.existing()?;
        let host = inner.host(&stored)?;
        let boot_id = record.boot_id.unwrap_or_default();
        if expected.as_ref().is_some_and(|expected| *expected != boot_id) {
            return Err(Error::new(ErrorCode::StaleGeneration, "the sandbox was replaced by a new start"));
        }
        // A body that cannot be sent twice goes only to a sandbox that was just seen to run.
        if stream.is_some() && host.running().await?.is_none_or(|running| running.boot_id != boot_id) {
            lost(inner, &boot_id).await?;
            ensure_running(inner).await?;
            continue;
        }
        let body = json.as_ref().map(JsValue::from).or_else(|| stream.clone().map(JsValue::from));
        let headers =
            ["accept", "range"].into_iter().filter_map(|name| header(name).map(|value| (name, value))).collect();
        let sent = host.control(Control { method: &method, path, headers, body, boot_id: &boot_id, deadline }).await;
        match sent {
            Ok(response) => return passed_on(response, &boot_id, record.generation),
            Err(SendError::Refused(refusal, _)) if is_gone(refusal.code) => {
                lost(inner, &boot_id).await?;
                if expected.is_some() {
                    return Err(Error::new(ErrorCode::StaleGeneration, "the sandbox stopped or was replaced")
                        .because(refusal.message));
                }
                if attempt == ATTEMPTS {
                    return Err(host::refused(refusal));
                }
            }
            Err(SendError::Refused(refusal, _)) if refusal.code == ControlErrorCode::NoAnswer => {
                return Err(no_answer(&method, &boot_id, &refusal.message));
            }
            Err(SendError::Refused(refusal, size)) => {
                let error = host::refused(refusal);
                return Err(match size {
                    Some(size) => error.detail("size", size),
                    None => error,
                });
            }
            Err(SendError::Lost(error)) => return Err(no_answer(&method, &boot_id, &error)),
        }
    }
    Err(Error::new(ErrorCode::SandboxUnavailable, "the sandbox keeps stopping"))
}

/// A request that may or may not have been carried out; reading has no effect and may be asked for again.
fn no_answer(method: &str, boot_id: &str, cause: &dyn std::fmt::Display) -> Error {
    let reads = matches!(method, "GET" | "HEAD");
    let code = if reads { ErrorCode::SandboxUnavailable } else { ErrorCode::OutcomeUnknown };
    Error::new(code, "the sandbox did not answer")
        .detail("bootId", boot_id)
        .detail("reason", "sandbox_unresponsive")
        .because(cause)
}

async fn body_text(request: &Request) -> Result<String> {
    let mut copy = request.clone_mut().map_err(Error::internal)?;
    copy.text().await.map_err(Error::internal)
}

fn passed_on(response: web_sys::Response, boot_id: &str, generation: u32) -> Result<Response> {
    let headers = worker::Headers::new();
    for (name, value) in response_headers(&response) {
        // Of a body that is passed on the runtime itself says how it is framed.
        if !matches!(name.as_str(), "transfer-encoding" | "connection" | "date") {
            headers.append(&name, &value).map_err(Error::internal)?;
        }
    }
    headers.set(BOOT_ID_HEADER, boot_id).map_err(Error::internal)?;
    headers.set(GENERATION_HEADER, &generation.to_string()).map_err(Error::internal)?;
    Ok(Response::from(response).with_headers(headers))
}
