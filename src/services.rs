//! The ports of pure code: what a call needs of the objects behind it. Doors hand in the implementation on Durable Objects;
//! native tests hand in doubles that inject faults.

use std::rc::Rc;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use futures_util::stream::LocalBoxStream;

use crate::error::Result;
use crate::identifier::SandboxId;
use crate::job::record::{Again, Cancellation, Decision, JobLog, LogQuestion, Seed, Told};
use crate::platform::Platform;
use crate::sandbox::record::{Create, Described, Destroyed, Record, Stopped, Woken};
use crate::sandbox::settings::Update;
use crate::schedule::record::{ScheduleReport, ScheduleRequest};
use crate::tenant::admission::{Admission, AdmissionRequest, Identified, ListRequest, Listing, Settlement};
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

/// Everything behind a call.
#[derive(Clone)]
pub struct Services {
    pub platform: Rc<dyn Platform>,
    pub tenant: Rc<dyn Tenant>,
    pub sandboxes: Rc<dyn Sandboxes>,
    pub jobs: Rc<dyn Jobs>,
    /// The tenant's audit in R2, where there is a bucket.
    pub archive: Option<Rc<dyn Archive>>,
    /// Signs ids of keys, and tokens.
    pub signer: Signer,
}

/// The books of a tenant, as far as they are read.
pub trait Books {
    /// Calls of the books.
    fn audit(&self, request: AuditRequest) -> LocalBoxFuture<'_, Result<Entries>>;
    /// Whether the books are what was written.
    fn verify_audit(&self, request: VerifyRequest) -> LocalBoxFuture<'_, Result<Verified>>;
    /// The first export that was ever made of them.
    fn first_export(&self) -> LocalBoxFuture<'_, Result<Option<Export>>>;
    /// Where they stand at these places.
    fn audit_heads(&self, places: Vec<i64>) -> LocalBoxFuture<'_, Result<Vec<Head>>>;
}

/// The one admission hop, the books of a tenant, and its list of sandboxes.
pub trait Tenant: Books {
    fn admit(&self, request: AdmissionRequest) -> LocalBoxFuture<'_, Result<Admission>>;
    /// What the caller may do; it is counted as a call.
    fn identify(&self, principal: Principal) -> LocalBoxFuture<'_, Result<Identified>>;
    /// Reads or changes keys.
    fn keys(&self, request: KeyRequest) -> LocalBoxFuture<'_, Result<Keys>>;
    /// Reads or changes named secrets, which stay sealed.
    fn secrets(&self, request: SecretRequest) -> LocalBoxFuture<'_, Result<Secrets>>;
    fn settle(&self, settlement: Settlement) -> LocalBoxFuture<'_, Result<()>>;
    /// Finds the one open call of a mark, which is unwanted from then on.
    fn cancel(&self, request: CancelRequest) -> LocalBoxFuture<'_, Result<Marked>>;
    /// Whether an open call is still wanted, and by a key that is still one.
    fn wanted(&self, request: WantedRequest) -> LocalBoxFuture<'_, Result<Wanted>>;
    fn list_sandboxes(&self, request: ListRequest) -> LocalBoxFuture<'_, Result<Listing>>;
    fn list_jobs(&self, request: JobListRequest) -> LocalBoxFuture<'_, Result<JobListing>>;
    /// Sets what is set for jobs, whole.
    fn set_jobs(&self, settings: JobSettings) -> LocalBoxFuture<'_, Result<JobSettings>>;
    fn metrics(&self, request: MetricsRequest) -> LocalBoxFuture<'_, Result<Report>>;
    /// Reads or changes budgets and whom alerts go to.
    fn alerts(&self, request: AlertRequest) -> LocalBoxFuture<'_, Result<AlertReport>>;
    /// Messages to webhooks, and what became of them.
    fn deliveries(&self, request: DeliveryListRequest) -> LocalBoxFuture<'_, Result<DeliveryListing>>;
    /// Reads or changes schedules, or runs one.
    fn schedules(&self, request: ScheduleRequest) -> LocalBoxFuture<'_, Result<ScheduleReport>>;
    /// What its keys have used.
    fn usage(&self, request: UsageRequest) -> LocalBoxFuture<'_, Result<UsageReport>>;
}

/// The jobs of the caller's tenant. Only one that the tenant lists is asked about.
pub trait Jobs {
    /// Makes the job known to its object; again it changes nothing.
    fn create<'a>(&'a self, seed: &'a Seed) -> LocalBoxFuture<'a, Result<Told>>;

    fn describe<'a>(&'a self, job_id: &'a str) -> LocalBoxFuture<'a, Result<Told>>;

    /// The same once it is over, or after this time.
    fn wait<'a>(&'a self, job_id: &'a str, time: Duration) -> LocalBoxFuture<'a, Result<Told>>;

    /// Approves or rejects it.
    fn decide<'a>(&'a self, job_id: &'a str, decision: &'a Decision) -> LocalBoxFuture<'a, Result<Told>>;

    /// Begins it again where that is honest.
    fn retry<'a>(&'a self, job_id: &'a str, again: &'a Again) -> LocalBoxFuture<'a, Result<Told>>;

    /// What it wrote.
    fn log<'a>(&'a self, job_id: &'a str, question: &'a LogQuestion) -> LocalBoxFuture<'a, Result<JobLog>>;

    /// Ends it, and waits a while to see that.
    fn cancel<'a>(&'a self, job_id: &'a str, wish: &'a Cancellation) -> LocalBoxFuture<'a, Result<Told>>;
}

/// The sandboxes of the caller's tenant.
pub trait Sandboxes {
    /// Makes the sandbox known to its object and starts it.
    fn create<'a>(&'a self, create: &'a Create) -> LocalBoxFuture<'a, Result<Record>>;

    /// What is known of it; reads metrics when it runs, starts nothing.
    fn describe<'a>(&'a self, id: &'a SandboxId) -> LocalBoxFuture<'a, Result<Described>>;

    /// Starts it where it does not run.
    fn wake<'a>(&'a self, id: &'a SandboxId) -> LocalBoxFuture<'a, Result<Woken>>;

    /// Ends its processes; idempotent.
    fn stop<'a>(&'a self, id: &'a SandboxId) -> LocalBoxFuture<'a, Result<Stopped>>;

    /// Changes settings.
    fn update<'a>(&'a self, id: &'a SandboxId, update: &'a Update) -> LocalBoxFuture<'a, Result<Record>>;

    /// Notes that the repository of its creation is there.
    fn cloned<'a>(&'a self, id: &'a SandboxId) -> LocalBoxFuture<'a, Result<()>>;

    /// Ends it and removes its files; idempotent. With `force` it is forgotten although its machine does not answer.
    fn destroy<'a>(&'a self, id: &'a SandboxId, force: bool) -> LocalBoxFuture<'a, Result<Destroyed>>;

    /// One request to its control API; starts it when it does not run.
    fn control<'a>(&'a self, id: &'a SandboxId, request: ControlRequest)
    -> LocalBoxFuture<'a, Result<ControlResponse>>;
}

/// A request to the control API of a sandbox.
pub struct ControlRequest {
    pub method: &'static str,
    /// Path with its query, as `/v1/execs`.
    pub path: String,
    pub headers: Vec<(&'static str, String)>,
    pub body: RequestBody,
    /// The boot that the caller means; another boot answers `stale_generation`.
    pub boot_id: Option<String>,
    /// Until the head of the answer, the start of the sandbox not counted.
    pub deadline: Duration,
}

/// Body of a [`ControlRequest`].
pub enum RequestBody {
    Empty,
    Json(String),
    /// Bytes that are passed on unread, with their declared length.
    Raw {
        body: Box<dyn Body>,
        length: u64,
    },
}

/// A success of the control API. Refusals arrive as [`crate::error::Error`].
pub struct ControlResponse {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    /// Boot that answered.
    pub boot_id: String,
    pub generation: u32,
    pub body: Box<dyn Body>,
}

impl ControlResponse {
    /// Value of a header, by its lower-case name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// Bytes on their way. A door passes them on as they are; only what has to be parsed is read.
pub trait Body {
    /// The bytes in pieces. An error is a body that ended before its end.
    fn chunks(self: Box<Self>) -> LocalBoxStream<'static, std::result::Result<Vec<u8>, BodyError>>;

    /// The platform's own object, for the door of that platform.
    fn into_any(self: Box<Self>) -> Box<dyn std::any::Any>;
}

/// A body that ended before its end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the body ended early: {0}")]
pub struct BodyError(pub String);
