//! The ports of pure code, on Durable Objects.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use serde_json::Value;
use worker::{AnalyticsEngineDataPointBuilder, Context, Env, State};

use super::body::{JsBody, request_to_js};
use super::bucket::{Bucket, BucketArchive};
use super::fetch::{self, Destination, FetchError, Outgoing};
use super::internal::{self, ORIGIN, Question, SANDBOX_BINDING, TENANT_BINDING, error_of, namespace};
use super::jobs::JobObjects;
use super::platform::{Lifetime, WorkersPlatform, random};
use crate::call::Backend;
use crate::error::{Error, ErrorCode, Result};
use crate::fetch_error::{Repeat, asked};
use crate::identifier::SandboxId;
use crate::log_line::{DataPoint, Observed};
use crate::platform::Platform;
use crate::sandbox::actor::object_name;
use crate::sandbox::cause::START_MILLIS_HEADER;
use crate::sandbox::control::{DEADLINE_HEADER, EXPECTED_BOOT_HEADER, GENERATION_HEADER};
use crate::sandbox::host::TOKEN_VARIABLE;
use crate::sandbox::life::START_DEADLINE;
use crate::sandbox::record::{Create, Described, Destroyed, Record, Stopped, Woken};
use crate::sandbox::settings::Update;
use crate::schedule::record::{ScheduleReport, ScheduleRequest};
use crate::services::{Books, ControlRequest, ControlResponse, Jobs, Sandboxes, Tenant};
use crate::tenant::admission::{
    Admission, AdmissionRequest, Identified, ListRequest, Listing, SandboxClaim, Settlement,
};
use crate::tenant::alerts::{AlertReport, AlertRequest};
use crate::tenant::archive::{Archive, Export};
use crate::tenant::audit::Head;
use crate::tenant::credential::Principal;
use crate::tenant::deliveries::{DeliveryListRequest, DeliveryListing};
use crate::tenant::inquiry::{AuditRequest, Entries, Verified, VerifyRequest};
use crate::tenant::jobs::{JobListRequest, JobListing, JobSettings};
use crate::tenant::keys::{KeyRequest, Keys};
use crate::tenant::marks::{CancelRequest, Marked, Wanted, WantedRequest};
use crate::tenant::metrics::{MetricsRequest, Report};
use crate::tenant::secrets::{SecretRequest, Secrets};
use crate::tenant::signing::Signer;
use crate::tenant::usage::{UsageReport, UsageRequest};
use crate::trace::Trace;

/// Until the tenant's object answers.
const TENANT_DEADLINE: Duration = Duration::from_secs(10);

/// What a sandbox's object needs beside the wait for the sandbox itself.
const OBJECT_ALLOWANCE: Duration = Duration::from_secs(5);

/// Until a destruction is over.
const DESTROY_DEADLINE: Duration = Duration::from_secs(50);

/// Until a sandbox is created and runs, or what was begun of it is removed again.
const CREATE_DEADLINE: Duration = Duration::from_secs(45);

/// Until a sandbox is woken, a stop under way included.
const WAKE_DEADLINE: Duration = Duration::from_secs(60);

/// Until a sandbox is stopped, a start under way included.
const STOP_DEADLINE: Duration = Duration::from_secs(60);

/// Until a sandbox's object has stored a change.
const UPDATE_DEADLINE: Duration = Duration::from_secs(10);

/// Until a file that was uploaded with the Worker begins to arrive.
const ASSET_DEADLINE: Duration = Duration::from_secs(10);

/// The files that were uploaded with the Worker: the content of `openapi/`.
const ASSETS: &str = "ASSETS";

/// Dataset of the Workers Analytics Engine; without it nothing is written.
const ANALYTICS_BINDING: &str = "ANALYTICS";

/// Signs ids of keys, and tokens.
pub const SIGNING_SECRET: &str = "SIGNING_SECRET";

/// Everything behind a request.
pub struct WorkersBackend {
    env: Env,
    platform: Rc<WorkersPlatform>,
    trace: Trace,
    observed: Rc<Cell<Observed>>,
    signer: Signer,
    root_key: Option<String>,
    /// Values that must not leave with an answer.
    secrets: Vec<String>,
}

impl WorkersBackend {
    pub fn new(env: Env, context: Rc<Context>, trace: Trace) -> Self {
        Self::with(env, Lifetime::Request(context, Rc::default()), trace)
    }

    /// Everything behind a call that an object makes.
    pub fn of_object(env: Env, state: Rc<State>, trace: Trace) -> Self {
        Self::with(env, Lifetime::Object(state), trace)
    }

    /// The bindings of the Worker.
    pub fn env(&self) -> &Env {
        &self.env
    }

    /// A variable or secret of the Worker; nothing where it is unset or empty.
    pub fn setting(&self, name: &str) -> Option<String> {
        configured(&self.env, name)
    }

    /// One of the files that were uploaded with the Worker, by its path below `openapi/`.
    pub async fn asset(&self, path: &str) -> Result<web_sys::Response> {
        let assets = self.env.assets(ASSETS).map_err(Error::internal)?;
        let outgoing = Outgoing {
            method: "GET",
            url: format!("https://assets/{path}"),
            headers: Vec::new(),
            body: None,
            deadline: ASSET_DEADLINE,
        };
        let response = fetch::send(Destination::Assets(&assets), outgoing).await.map_err(Error::internal)?;
        match response.status() {
            200 => Ok(response),
            status => Err(Error::internal(format!("the asset {path} answered {status}"))),
        }
    }

    fn with(env: Env, lifetime: Lifetime, trace: Trace) -> Self {
        let root_key = configured(&env, "WORKER_API_KEY_SECRET");
        let signing_secret = configured(&env, SIGNING_SECRET);
        let signer = Signer::new(signing_secret.as_deref());
        let several = root_key.iter().chain(&signing_secret).flat_map(|text| text.split(',').map(str::trim));
        let secrets = several.map(str::to_owned).chain(configured(&env, TOKEN_VARIABLE)).collect();
        let platform = Rc::new(WorkersPlatform(lifetime));
        Self { env, platform, trace, observed: Rc::default(), signer, root_key, secrets }
    }
}

/// A secret or variable of the Worker; `None` when it is unset or empty.
pub fn configured(env: &Env, name: &str) -> Option<String> {
    let value = env.secret(name).map(|secret| secret.to_string()).or_else(|_| env.var(name).map(|var| var.to_string()));
    value.ok().filter(|value| !value.trim().is_empty())
}

impl Backend for WorkersBackend {
    fn platform(&self) -> Rc<dyn Platform> {
        self.platform.clone()
    }

    fn root_key(&self) -> Option<String> {
        self.root_key.clone()
    }

    fn signer(&self) -> &Signer {
        &self.signer
    }

    fn secrets(&self) -> Vec<String> {
        self.secrets.clone()
    }

    fn tenant(&self, name: &str) -> Rc<dyn Tenant> {
        Rc::new(TenantObject { env: self.env.clone(), name: name.to_owned(), trace: self.trace.clone() })
    }

    fn sandboxes(&self, tenant: &str) -> Rc<dyn Sandboxes> {
        Rc::new(SandboxObjects {
            env: self.env.clone(),
            tenant: tenant.to_owned(),
            trace: self.trace.clone(),
            observed: self.observed.clone(),
        })
    }

    fn jobs(&self, tenant: &str) -> Rc<dyn Jobs> {
        Rc::new(JobObjects { env: self.env.clone(), tenant: tenant.to_owned(), trace: self.trace.clone() })
    }

    fn archive(&self, tenant: &str) -> Option<Rc<dyn Archive>> {
        let bucket = Bucket::of(&self.env)?;
        Some(Rc::new(BucketArchive { bucket, tenant: tenant.to_owned() }))
    }

    fn observed(&self) -> Observed {
        self.observed.get()
    }

    fn tell(&self, line: Value, point: DataPoint) {
        let (env, platform) = (self.env.clone(), self.platform.clone());
        let told = async move {
            platform.log(&line);
            measure(&env, &point);
        };
        self.platform.background(told.boxed_local());
    }
}

/// Takes one data point, where anybody keeps them.
fn measure(env: &Env, point: &DataPoint) {
    let Ok(dataset) = env.analytics_engine(ANALYTICS_BINDING) else { return };
    let event = AnalyticsEngineDataPointBuilder::new()
        .indexes([point.index.as_str()])
        .blobs(point.blobs.iter().map(String::as_str))
        .doubles(point.doubles.iter().copied());
    if let Err(error) = event.write_to(&dataset) {
        worker::console_error!("a data point was not taken: {error}");
    }
}

struct TenantObject {
    env: Env,
    name: String,
    trace: Trace,
}

impl TenantObject {
    async fn ask<Q: serde::Serialize, A: serde::de::DeserializeOwned>(
        &self,
        path: &str,
        question: &Q,
        repeat: Repeat,
    ) -> Result<A> {
        // Nothing acts before admission, so a lost answer is safe to ask for again.
        let lost = |error: FetchError| Error { retryable: true, retry_after: Some(1), ..Error::internal(error) };
        let trace = self.trace.child(random()).headers();
        let objects = &namespace(&self.env, TENANT_BINDING)?;
        let question_to = Question { objects, name: &self.name, path, deadline: TENANT_DEADLINE, repeat, lost, trace };
        question_to.ask(question, |_| ()).await
    }
}

impl Books for TenantObject {
    fn audit(&self, request: AuditRequest) -> LocalBoxFuture<'_, Result<Entries>> {
        async move { self.ask("/audit", &request, Repeat::Harmless).await }.boxed_local()
    }

    fn verify_audit(&self, request: VerifyRequest) -> LocalBoxFuture<'_, Result<Verified>> {
        async move { self.ask("/audit/verify", &request, Repeat::Harmless).await }.boxed_local()
    }

    fn first_export(&self) -> LocalBoxFuture<'_, Result<Option<Export>>> {
        async move { self.ask("/audit/exports/first", &(), Repeat::Harmless).await }.boxed_local()
    }

    fn audit_heads(&self, places: Vec<i64>) -> LocalBoxFuture<'_, Result<Vec<Head>>> {
        async move { self.ask("/audit/heads", &places, Repeat::Harmless).await }.boxed_local()
    }
}

impl Tenant for TenantObject {
    fn admit(&self, request: AdmissionRequest) -> LocalBoxFuture<'_, Result<Admission>> {
        // Admission lists a sandbox that is to be created, and would find it listed the second time.
        let lists = matches!(request.claim, SandboxClaim::Create { .. });
        let repeat = if lists { Repeat::Never } else { Repeat::Harmless };
        async move { self.ask("/admit", &request, repeat).await }.boxed_local()
    }

    fn identify(&self, principal: Principal) -> LocalBoxFuture<'_, Result<Identified>> {
        async move { self.ask("/identify", &principal, Repeat::Harmless).await }.boxed_local()
    }

    fn keys(&self, request: KeyRequest) -> LocalBoxFuture<'_, Result<Keys>> {
        // A rotation that is carried out twice would end the grace of the secret before.
        let changes = matches!(request, KeyRequest::Change { .. });
        let repeat = if changes { Repeat::Never } else { Repeat::Harmless };
        async move { self.ask("/keys", &request, repeat).await }.boxed_local()
    }

    fn secrets(&self, request: SecretRequest) -> LocalBoxFuture<'_, Result<Secrets>> {
        // A deletion that is carried out twice would say that there was none.
        let repeat = if matches!(request, SecretRequest::Delete { .. }) { Repeat::Never } else { Repeat::Harmless };
        async move { self.ask("/secrets", &request, repeat).await }.boxed_local()
    }

    fn settle(&self, settlement: Settlement) -> LocalBoxFuture<'_, Result<()>> {
        async move { self.ask("/settle", &settlement, Repeat::Harmless).await }.boxed_local()
    }

    fn cancel(&self, request: CancelRequest) -> LocalBoxFuture<'_, Result<Marked>> {
        async move { self.ask("/cancel", &request, Repeat::Harmless).await }.boxed_local()
    }

    fn wanted(&self, request: WantedRequest) -> LocalBoxFuture<'_, Result<Wanted>> {
        async move { self.ask("/wanted", &request, Repeat::Harmless).await }.boxed_local()
    }

    fn list_sandboxes(&self, request: ListRequest) -> LocalBoxFuture<'_, Result<Listing>> {
        async move { self.ask("/sandboxes/list", &request, Repeat::Harmless).await }.boxed_local()
    }

    fn list_jobs(&self, request: JobListRequest) -> LocalBoxFuture<'_, Result<JobListing>> {
        async move { self.ask("/jobs/list", &request, Repeat::Harmless).await }.boxed_local()
    }

    fn set_jobs(&self, settings: JobSettings) -> LocalBoxFuture<'_, Result<JobSettings>> {
        async move { self.ask("/jobs/settings", &settings, Repeat::Harmless).await }.boxed_local()
    }

    fn metrics(&self, request: MetricsRequest) -> LocalBoxFuture<'_, Result<Report>> {
        async move { self.ask("/metrics", &request, Repeat::Harmless).await }.boxed_local()
    }

    fn alerts(&self, request: AlertRequest) -> LocalBoxFuture<'_, Result<AlertReport>> {
        async move { self.ask("/alerts", &request, Repeat::Harmless).await }.boxed_local()
    }

    fn deliveries(&self, request: DeliveryListRequest) -> LocalBoxFuture<'_, Result<DeliveryListing>> {
        async move { self.ask("/webhooks/deliveries", &request, Repeat::Harmless).await }.boxed_local()
    }

    fn schedules(&self, request: ScheduleRequest) -> LocalBoxFuture<'_, Result<ScheduleReport>> {
        // Each of them changes nothing the second time.
        async move { self.ask("/schedules", &request, Repeat::Harmless).await }.boxed_local()
    }

    fn usage(&self, request: UsageRequest) -> LocalBoxFuture<'_, Result<UsageReport>> {
        async move { self.ask("/usage", &request, Repeat::Harmless).await }.boxed_local()
    }
}

struct SandboxObjects {
    env: Env,
    tenant: String,
    trace: Trace,
    observed: Rc<Cell<Observed>>,
}

/// No answer from the sandbox's object: what was asked may have been done.
fn unknown(error: FetchError) -> Error {
    Error::new(ErrorCode::OutcomeUnknown, "the sandbox's object did not answer; what was asked may have been done")
        .because(error)
}

impl SandboxObjects {
    async fn ask<Q: serde::Serialize, A: serde::de::DeserializeOwned>(
        &self,
        id: &SandboxId,
        path: &str,
        question: &Q,
        deadline: Duration,
    ) -> Result<A> {
        self.ask_once_or_more(id, path, question, deadline, Repeat::Never).await
    }

    async fn ask_once_or_more<Q: serde::Serialize, A: serde::de::DeserializeOwned>(
        &self,
        id: &SandboxId,
        path: &str,
        question: &Q,
        deadline: Duration,
        repeat: Repeat,
    ) -> Result<A> {
        let name = &object_name(&self.tenant, id.as_str());
        let trace = self.trace.child(random()).headers();
        let objects = &namespace(&self.env, SANDBOX_BINDING)?;
        let question_to = Question { objects, name, path, deadline, repeat, lost: unknown, trace };
        question_to.ask(question, |head| self.observe(head)).await
    }

    /// Notes what the head of an object's answer says of the sandbox.
    fn observe(&self, head: &web_sys::Response) {
        let number = |name: &str| head.headers().get(name).ok().flatten().and_then(|text| text.parse::<i64>().ok());
        let before = self.observed.get();
        self.observed.set(Observed {
            generation: number(GENERATION_HEADER).and_then(|number| u32::try_from(number).ok()).or(before.generation),
            start_ms: number(START_MILLIS_HEADER).or(before.start_ms),
        });
    }

    async fn forward(&self, id: &SandboxId, request: ControlRequest) -> Result<ControlResponse> {
        let namespace = namespace(&self.env, SANDBOX_BINDING)?;
        let name = object_name(&self.tenant, id.as_str());
        let mut headers = request.headers;
        headers.extend(self.trace.child(random()).headers());
        headers.push((DEADLINE_HEADER, request.deadline.as_millis().to_string()));
        if let Some(boot_id) = request.boot_id {
            headers.push((EXPECTED_BOOT_HEADER, boot_id));
        }
        if matches!(request.body, crate::services::RequestBody::Json(_)) {
            headers.push(("content-type", "application/json".to_owned()));
        }
        let (method, url) = (request.method, format!("{ORIGIN}/control{}", request.path));
        let deadline = START_DEADLINE + request.deadline + OBJECT_ALLOWANCE;
        let repeat = if ["GET", "HEAD"].contains(&method) { Repeat::Harmless } else { Repeat::Never };
        let body = request_to_js(request.body);
        let send = async || {
            let outgoing =
                Outgoing { method, url: url.clone(), headers: headers.clone(), body: body.clone(), deadline };
            fetch::send(Destination::Object(&namespace, &name), outgoing).await
        };
        let response = asked(repeat, internal::pause, send).await.map_err(|error| internal::told(error, unknown))?;
        self.observe(&response);
        if let Some(error) = error_of(&response) {
            return Err(error);
        }
        let headers = response_headers(&response);
        let header = |wanted: &str| headers.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.clone());
        Ok(ControlResponse {
            status: response.status(),
            boot_id: header(sandbox_api::BOOT_ID_HEADER).unwrap_or_default(),
            generation: header(GENERATION_HEADER).and_then(|text| text.parse().ok()).unwrap_or(0),
            body: Box::new(JsBody(response.body())),
            headers,
        })
    }
}

impl Sandboxes for SandboxObjects {
    fn create<'a>(&'a self, create: &'a Create) -> LocalBoxFuture<'a, Result<Record>> {
        let deadline = CREATE_DEADLINE;
        let path = format!("/create?tenant={}", self.tenant);
        async move {
            let created = self.ask(&create.listed.sandbox_id, &path, create, deadline).await;
            created.map_err(|error| error.detail("sandboxId", create.listed.sandbox_id.as_str()))
        }
        .boxed_local()
    }

    fn describe<'a>(&'a self, id: &'a SandboxId) -> LocalBoxFuture<'a, Result<Described>> {
        let deadline = Duration::from_secs(10);
        async move { self.ask_once_or_more(id, "/describe", &(), deadline, Repeat::Harmless).await }.boxed_local()
    }

    fn wake<'a>(&'a self, id: &'a SandboxId) -> LocalBoxFuture<'a, Result<Woken>> {
        async move { self.ask(id, "/wake", &(), WAKE_DEADLINE).await }.boxed_local()
    }

    fn stop<'a>(&'a self, id: &'a SandboxId) -> LocalBoxFuture<'a, Result<Stopped>> {
        async move { self.ask(id, "/stop", &(), STOP_DEADLINE).await }.boxed_local()
    }

    fn update<'a>(&'a self, id: &'a SandboxId, update: &'a Update) -> LocalBoxFuture<'a, Result<Record>> {
        async move { self.ask(id, "/update", update, UPDATE_DEADLINE).await }.boxed_local()
    }

    fn cloned<'a>(&'a self, id: &'a SandboxId) -> LocalBoxFuture<'a, Result<()>> {
        async move { self.ask(id, "/cloned", &(), UPDATE_DEADLINE).await }.boxed_local()
    }

    fn destroy<'a>(&'a self, id: &'a SandboxId, force: bool) -> LocalBoxFuture<'a, Result<Destroyed>> {
        async move { self.ask(id, "/destroy", &force, DESTROY_DEADLINE).await }.boxed_local()
    }

    fn control<'a>(
        &'a self,
        id: &'a SandboxId,
        request: ControlRequest,
    ) -> LocalBoxFuture<'a, Result<ControlResponse>> {
        self.forward(id, request).boxed_local()
    }
}

/// Headers with lower-case names.
pub fn response_headers(response: &web_sys::Response) -> Vec<(String, String)> {
    let headers = worker::Headers(response.headers());
    headers.entries().map(|(name, value)| (name.to_ascii_lowercase(), value)).collect()
}

pub use internal::answer;
