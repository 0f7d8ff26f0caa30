//! Doubles of what stands behind pure code, for its tests: they follow a script and inject faults.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::{LocalBoxFuture, ready};
use futures_util::stream::LocalBoxStream;
use futures_util::{FutureExt, StreamExt};

use crate::error::{Error, ErrorCode, Result};
use crate::identifier::SandboxId;
use crate::job::message::{Message, Queue};
use crate::job::record::{Again, Cancellation, Decision, JobLog, LogQuestion, Seed, Told};
use crate::platform::Platform;
use crate::sandbox::record::{Create, Described, Destroyed, Record, Stopped, Woken};
use crate::sandbox::settings::{Settings, Update};
use crate::sandbox::state::State;
use crate::schedule::record::{ScheduleReport, ScheduleRequest};
use crate::schedule::zone::Zones;
use crate::services::{Body, BodyError, Books, ControlRequest, ControlResponse, Jobs, Sandboxes, Services, Tenant};
use crate::tenant::admission::{Admission, AdmissionRequest, Identified, ListRequest, Listing, Settlement};
use crate::tenant::alerts::{AlertReport, AlertRequest};
use crate::tenant::archive::Export;
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

/// How the double answers one request.
pub enum Answer {
    /// A stream of these pieces that then ends, breaks or falls silent.
    Stream(Vec<Vec<u8>>, End),
    Refuse(Error),
}

/// How a body ends.
#[derive(Clone, Copy)]
pub enum End {
    Clean,
    Broken,
    Silent,
}

/// Method, path and expected boot of one request.
pub type Seen = (String, String, Option<String>);

/// A sandbox whose every answer is written down before.
#[derive(Default)]
pub struct Script {
    answers: RefCell<VecDeque<Answer>>,
    pub seen: RefCell<Vec<Seen>>,
    /// Where the sandbox is said to be; running when nothing is.
    pub state: RefCell<Option<State>>,
}

impl Script {
    /// The script, and everything behind a call that follows it.
    pub fn of(answers: Vec<Answer>) -> (Rc<Self>, Services) {
        let script = Rc::new(Self { answers: RefCell::new(answers.into()), ..Self::default() });
        let services = Services {
            platform: Rc::new(NoWaiting),
            tenant: script.clone(),
            sandboxes: script.clone(),
            jobs: script.clone(),
            archive: None,
            signer: Signer::default(),
        };
        (script, services)
    }
}

struct Pieces(Vec<Vec<u8>>, End);

impl Body for Pieces {
    fn chunks(self: Box<Self>) -> LocalBoxStream<'static, std::result::Result<Vec<u8>, BodyError>> {
        let pieces = futures_util::stream::iter(self.0.into_iter().map(Ok));
        match self.1 {
            End::Clean => pieces.boxed_local(),
            End::Broken => pieces.chain(futures_util::stream::iter([Err(BodyError("reset".into()))])).boxed_local(),
            End::Silent => pieces.chain(futures_util::stream::pending()).boxed_local(),
        }
    }

    fn into_any(self: Box<Self>) -> Box<dyn std::any::Any> {
        self
    }
}

fn unwritten<T: 'static>() -> LocalBoxFuture<'static, Result<T>> {
    ready(Err(Error::internal("not in the script"))).boxed_local()
}

impl Sandboxes for Script {
    fn create<'a>(&'a self, _: &'a Create) -> LocalBoxFuture<'a, Result<Record>> {
        unwritten()
    }

    fn describe<'a>(&'a self, id: &'a SandboxId) -> LocalBoxFuture<'a, Result<Described>> {
        let mut record = Record::created(id.clone(), Settings::default(), 0);
        record.boot_id = Some("boot-1".into());
        record.state = self.state.borrow().unwrap_or(State::Running);
        ready(Ok(Described { record, metrics: None })).boxed_local()
    }

    fn wake<'a>(&'a self, _: &'a SandboxId) -> LocalBoxFuture<'a, Result<Woken>> {
        unwritten()
    }

    fn stop<'a>(&'a self, _: &'a SandboxId) -> LocalBoxFuture<'a, Result<Stopped>> {
        unwritten()
    }

    fn update<'a>(&'a self, _: &'a SandboxId, _: &'a Update) -> LocalBoxFuture<'a, Result<Record>> {
        unwritten()
    }

    fn cloned<'a>(&'a self, _: &'a SandboxId) -> LocalBoxFuture<'a, Result<()>> {
        unwritten()
    }

    fn destroy<'a>(&'a self, _: &'a SandboxId, _: bool) -> LocalBoxFuture<'a, Result<Destroyed>> {
        unwritten()
    }

    fn control<'a>(&'a self, _: &'a SandboxId, request: ControlRequest) -> LocalBoxFuture<'a, Result<ControlResponse>> {
        self.seen.borrow_mut().push((request.method.into(), request.path, request.boot_id));
        let answer = match self.answers.borrow_mut().pop_front() {
            Some(Answer::Stream(pieces, end)) => Ok(ControlResponse {
                status: 200,
                headers: Vec::new(),
                boot_id: "boot-1".into(),
                generation: 1,
                body: Box::new(Pieces(pieces, end)),
            }),
            Some(Answer::Refuse(error)) => Err(error),
            None => Err(Error::new(ErrorCode::SandboxUnavailable, "the script is over")),
        };
        ready(answer).boxed_local()
    }
}

impl Jobs for Script {
    fn create<'a>(&'a self, _: &'a Seed) -> LocalBoxFuture<'a, Result<Told>> {
        unwritten()
    }

    fn describe<'a>(&'a self, _: &'a str) -> LocalBoxFuture<'a, Result<Told>> {
        unwritten()
    }

    fn wait<'a>(&'a self, _: &'a str, _: std::time::Duration) -> LocalBoxFuture<'a, Result<Told>> {
        unwritten()
    }

    fn decide<'a>(&'a self, _: &'a str, _: &'a Decision) -> LocalBoxFuture<'a, Result<Told>> {
        unwritten()
    }

    fn retry<'a>(&'a self, _: &'a str, _: &'a Again) -> LocalBoxFuture<'a, Result<Told>> {
        unwritten()
    }

    fn log<'a>(&'a self, _: &'a str, _: &'a LogQuestion) -> LocalBoxFuture<'a, Result<JobLog>> {
        unwritten()
    }

    fn cancel<'a>(&'a self, _: &'a str, _: &'a Cancellation) -> LocalBoxFuture<'a, Result<Told>> {
        unwritten()
    }
}

impl Books for Script {
    fn audit(&self, _: AuditRequest) -> LocalBoxFuture<'_, Result<Entries>> {
        unwritten()
    }

    fn verify_audit(&self, _: VerifyRequest) -> LocalBoxFuture<'_, Result<Verified>> {
        unwritten()
    }

    fn first_export(&self) -> LocalBoxFuture<'_, Result<Option<Export>>> {
        unwritten()
    }

    fn audit_heads(&self, _: Vec<i64>) -> LocalBoxFuture<'_, Result<Vec<Head>>> {
        unwritten()
    }
}

impl Tenant for Script {
    fn admit(&self, _: AdmissionRequest) -> LocalBoxFuture<'_, Result<Admission>> {
        unwritten()
    }

    fn identify(&self, _: Principal) -> LocalBoxFuture<'_, Result<Identified>> {
        unwritten()
    }

    fn keys(&self, _: KeyRequest) -> LocalBoxFuture<'_, Result<Keys>> {
        unwritten()
    }

    fn secrets(&self, _: SecretRequest) -> LocalBoxFuture<'_, Result<Secrets>> {
        unwritten()
    }

    fn settle(&self, _: Settlement) -> LocalBoxFuture<'_, Result<()>> {
        ready(Ok(())).boxed_local()
    }

    fn cancel(&self, _: CancelRequest) -> LocalBoxFuture<'_, Result<Marked>> {
        unwritten()
    }

    fn wanted(&self, _: WantedRequest) -> LocalBoxFuture<'_, Result<Wanted>> {
        unwritten()
    }

    fn list_sandboxes(&self, _: ListRequest) -> LocalBoxFuture<'_, Result<Listing>> {
        ready(Ok(Listing::default())).boxed_local()
    }

    fn list_jobs(&self, _: JobListRequest) -> LocalBoxFuture<'_, Result<JobListing>> {
        unwritten()
    }

    fn set_jobs(&self, _: JobSettings) -> LocalBoxFuture<'_, Result<JobSettings>> {
        unwritten()
    }

    fn metrics(&self, _: MetricsRequest) -> LocalBoxFuture<'_, Result<Report>> {
        unwritten()
    }

    fn alerts(&self, _: AlertRequest) -> LocalBoxFuture<'_, Result<AlertReport>> {
        unwritten()
    }

    fn deliveries(&self, _: DeliveryListRequest) -> LocalBoxFuture<'_, Result<DeliveryListing>> {
        unwritten()
    }

    fn schedules(&self, _: ScheduleRequest) -> LocalBoxFuture<'_, Result<ScheduleReport>> {
        unwritten()
    }

    fn usage(&self, _: UsageRequest) -> LocalBoxFuture<'_, Result<UsageReport>> {
        unwritten()
    }
}

/// A queue of jobs that does not do its work.
pub enum Queues {
    Throws,
    /// It takes messages and delivers none.
    Loses,
}

impl Queue for Queues {
    fn send<'a>(&'a self, _: &'a Message) -> LocalBoxFuture<'a, Result<()>> {
        let taken = match self {
            Self::Throws => Err(Error::internal("Queue is overloaded. Please back off.")),
            Self::Loses => Ok(()),
        };
        ready(taken).boxed_local()
    }
}

/// A platform on which every wait for something that is not there is over at once.
pub struct NoWaiting;

impl Platform for NoWaiting {
    fn now_millis(&self) -> i64 {
        0
    }

    fn random(&self) -> [u8; 16] {
        [7; 16]
    }

    fn zones(&self) -> &dyn Zones {
        &Database
    }

    fn sleep(&self, _: Duration) -> LocalBoxFuture<'static, ()> {
        ready(()).boxed_local()
    }

    fn background(&self, work: LocalBoxFuture<'static, ()>) {
        work.now_or_never().unwrap();
    }

    fn log(&self, _: &serde_json::Value) {}
}

/// The time zones of a copy of the IANA database.
pub struct Database;

impl Zones for Database {
    fn offset_seconds(&self, zone: &str, at: i64) -> Option<i32> {
        use chrono::{Offset, TimeZone};
        let zone: chrono_tz::Tz = zone.parse().ok()?;
        let moment = chrono::DateTime::from_timestamp(at, 0)?.naive_utc();
        Some(zone.offset_from_utc_datetime(&moment).fix().local_minus_utc())
    }
}
