//! The one path of a call, with doubles for the tenant's object and the sandboxes.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{LocalBoxFuture, ready};
use serde_json::{Value, json};

use super::answer::cap;
use super::{Answered, Attempt, Backend, CallHead, Reply, StepCall, ToolCall};
use crate::error::{Error, ErrorCode, Result};
use crate::events::NoEvents;
use crate::guardrails::{Role, Scope};
use crate::identifier::SandboxId;
use crate::job::record::{Again, Cancellation, Decision, Job, JobLog, LogQuestion, Seed, StepOf, Told};
use crate::job::state::State;
use crate::log_line::{DataPoint, Observed};
use crate::platform::Platform;
use crate::sandbox::record::{Create, Described, Destroyed, Record, Stopped, Woken};
use crate::sandbox::settings::Update;
use crate::services::{ControlRequest, ControlResponse, Jobs, RequestBody, Sandboxes, Tenant};
use crate::tenant::admission::{
    Admission, AdmissionRequest, Admitted, DecisionKind, Identified, Known, ListRequest, Listing, Manner, May, Outcome,
    Ruling, Settlement, decide,
};
use crate::tenant::alerts::{AlertReport, AlertRequest};
use crate::tenant::archive::{Archive, Export};
use crate::tenant::audit::Head;
use crate::tenant::credential::{Credential, Presented, Principal};
use crate::tenant::deliveries::{DeliveryListRequest, DeliveryListing};
use crate::tenant::idempotency::First;
use crate::tenant::inquiry::{AuditRequest, Entries, Verified, VerifyRequest};
use crate::tenant::jobs::{JobListRequest, JobListing, JobSettings};
use crate::tenant::keys::{KeyRequest, Keys};
use crate::tenant::marks::{CancelRequest, Marked, Wanted, WantedRequest};
use crate::tenant::metrics::{MetricsRequest, Report};
use crate::tenant::permissions::Permissions;
use crate::tenant::secrets::{SealedSecrets, SecretRequest, Secrets};
use crate::tenant::signing::Signer;
use crate::tenant::usage::{UsageReport, UsageRequest};
use crate::tools;
use crate::trace::Trace;

mod cancelled;
mod deferred;
mod named;
mod patience;
mod secrets;

const KEY: &str = "0123456789abcdef-root";

/// Keeps the books in memory.
#[derive(Default)]
struct Books {
    intents: RefCell<Vec<AdmissionRequest>>,
    settlements: RefCell<Vec<Settlement>>,
    /// Those that were kept for an idempotency key.
    answers: RefCell<Vec<Settlement>>,
    /// Of the caller; an admin's when there is nothing.
    permissions: RefCell<Option<Permissions>>,
    created: RefCell<Vec<Create>>,
    /// Bodies of what sandboxes were asked.
    controls: RefCell<Vec<String>>,
    logged: RefCell<Vec<Value>>,
    measured: RefCell<Vec<DataPoint>>,
    /// Whether calls wait for an approval.
    defers: std::cell::Cell<bool>,
    seeds: RefCell<Vec<Seed>>,
    /// What those are told who wait for a job, the last first.
    waits: RefCell<Vec<Told>>,
    /// The call that is cancelled.
    marked: RefCell<Option<Marked>>,
    /// Milliseconds that went by.
    later: std::cell::Cell<i64>,
    /// What is said of an open call, and how often that was asked.
    wanted: RefCell<Option<Wanted>>,
    looks: RefCell<Vec<WantedRequest>>,
    /// The secrets that the call uses.
    secrets: RefCell<SealedSecrets>,
    secret_requests: RefCell<Vec<SecretRequest>>,
    /// Jobs that were cancelled.
    cancelled: RefCell<Vec<(String, Cancellation)>>,
}

#[derive(Clone, Default)]
struct Double(Rc<Books>, Signer);

impl Platform for Double {
    fn now_millis(&self) -> i64 {
        1_000 + self.0.later.get()
    }

    fn random(&self) -> [u8; 16] {
        [7; 16]
    }

    fn zones(&self) -> &dyn crate::schedule::zone::Zones {
        &crate::doubles::Database
    }

    fn sleep(&self, _: Duration) -> LocalBoxFuture<'static, ()> {
        futures_util::future::pending().boxed_local()
    }

    fn background(&self, work: LocalBoxFuture<'static, ()>) {
        work.now_or_never().unwrap();
    }

    fn log(&self, line: &Value) {
        self.0.logged.borrow_mut().push(line.clone());
    }
}

impl crate::services::Books for Double {
    fn audit(&self, _: AuditRequest) -> LocalBoxFuture<'_, Result<Entries>> {
        ready(Err(Error::internal("not needed"))).boxed_local()
    }

    fn verify_audit(&self, _: VerifyRequest) -> LocalBoxFuture<'_, Result<Verified>> {
        ready(Err(Error::internal("not needed"))).boxed_local()
    }

    fn first_export(&self) -> LocalBoxFuture<'_, Result<Option<Export>>> {
        ready(Err(Error::internal("not needed"))).boxed_local()
    }

    fn audit_heads(&self, _: Vec<i64>) -> LocalBoxFuture<'_, Result<Vec<Head>>> {
        ready(Err(Error::internal("not needed"))).boxed_local()
    }
}

impl Tenant for Double {
    fn admit(&self, request: AdmissionRequest) -> LocalBoxFuture<'_, Result<Admission>> {
        let first = self.0.answers.borrow().first().map(|settled| First {
            call_id: settled.call_id.clone(),
            fingerprint: self.0.intents.borrow()[0].idempotency.clone().unwrap().fingerprints[0].clone(),
            asked_at: request.at,
            deadline_at: request.deadline_at,
            is_answered: true,
            is_job: false,
        });
        let decision = decide(&request, &Known { first: first.as_ref(), ..Known::default() });
        let defers = self.0.defers.get() && request.manner == Manner::Ordinary;
        let job = || job(&request);
        let deferred = (defers || request.manner == Manner::Deferred).then(|| Ruling::Deferred(Box::new(job())));
        self.0.intents.borrow_mut().push(request.clone());
        if let Some(ruling) = deferred {
            return ready(Ok(Admission { standing: None, ruling })).boxed_local();
        }
        let ruling = match decision.kind {
            DecisionKind::Admit { permissions, limits, .. } => Ruling::Admitted(Admitted {
                listed: None,
                permissions,
                limits,
                secrets: self.0.secrets.borrow().clone(),
            }),
            DecisionKind::Replay => Ruling::Replayed(self.0.answers.borrow()[0].answer.clone().unwrap()),
            DecisionKind::Refuse { error, .. } => Ruling::Refused(error),
            other => panic!("{other:?}"),
        };
        ready(Ok(Admission { standing: decision.standing, ruling })).boxed_local()
    }

    fn identify(&self, _: Principal) -> LocalBoxFuture<'_, Result<Identified>> {
        let permissions = self.0.permissions.borrow().clone().unwrap_or(Permissions::of(Role::Admin));
        ready(Ok(Identified { standing: None, may: May::Have(permissions) })).boxed_local()
    }

    fn keys(&self, _: KeyRequest) -> LocalBoxFuture<'_, Result<Keys>> {
        ready(Err(Error::internal("not needed"))).boxed_local()
    }

    fn secrets(&self, request: SecretRequest) -> LocalBoxFuture<'_, Result<Secrets>> {
        self.0.secret_requests.borrow_mut().push(request);
        ready(Ok(Secrets::default())).boxed_local()
    }

    fn settle(&self, settlement: Settlement) -> LocalBoxFuture<'_, Result<()>> {
        if settlement.answer.is_some() {
            self.0.answers.borrow_mut().push(settlement.clone());
        }
        self.0.settlements.borrow_mut().push(settlement);
        ready(Ok(())).boxed_local()
    }

    fn cancel(&self, _: CancelRequest) -> LocalBoxFuture<'_, Result<Marked>> {
        ready(Ok(self.0.marked.borrow().clone().unwrap_or(Marked::Nothing))).boxed_local()
    }

    fn wanted(&self, request: WantedRequest) -> LocalBoxFuture<'_, Result<Wanted>> {
        self.0.looks.borrow_mut().push(request);
        ready(Ok(self.0.wanted.borrow().clone().unwrap_or(Wanted::Still))).boxed_local()
    }

    fn list_sandboxes(&self, _: ListRequest) -> LocalBoxFuture<'_, Result<Listing>> {
        ready(Ok(Listing::default())).boxed_local()
    }

    fn list_jobs(&self, _: JobListRequest) -> LocalBoxFuture<'_, Result<JobListing>> {
        let jobs = self.0.seeds.borrow().iter().map(|seed| seed.job.clone()).collect();
        ready(Ok(JobListing { jobs, ..JobListing::default() })).boxed_local()
    }

    fn set_jobs(&self, _: JobSettings) -> LocalBoxFuture<'_, Result<JobSettings>> {
        ready(Err(Error::internal("not needed"))).boxed_local()
    }

    fn metrics(&self, _: MetricsRequest) -> LocalBoxFuture<'_, Result<Report>> {
        ready(Err(Error::internal("not needed"))).boxed_local()
    }

    fn alerts(&self, _: AlertRequest) -> LocalBoxFuture<'_, Result<AlertReport>> {
        ready(Err(Error::internal("not needed"))).boxed_local()
    }

    fn deliveries(&self, _: DeliveryListRequest) -> LocalBoxFuture<'_, Result<DeliveryListing>> {
        ready(Err(Error::internal("not needed"))).boxed_local()
    }

    fn schedules(
        &self,
        _: crate::schedule::record::ScheduleRequest,
    ) -> LocalBoxFuture<'_, Result<crate::schedule::record::ScheduleReport>> {
        ready(Err(Error::internal("not needed"))).boxed_local()
    }

    fn usage(&self, _: UsageRequest) -> LocalBoxFuture<'_, Result<UsageReport>> {
        ready(Err(Error::internal("not needed"))).boxed_local()
    }
}

impl Sandboxes for Double {
    fn create<'a>(&'a self, create: &'a Create) -> LocalBoxFuture<'a, Result<Record>> {
        self.0.created.borrow_mut().push(create.clone());
        let mut record =
            Record::created(create.listed.sandbox_id.clone(), create.settings.clone(), create.listed.created_at);
        // A label that holds the caller's key would carry it out again.
        record.settings.labels.insert("echo".into(), format!("<{KEY}>"));
        ready(Ok(record)).boxed_local()
    }

    fn describe<'a>(&'a self, _: &'a SandboxId) -> LocalBoxFuture<'a, Result<Described>> {
        ready(Err(Error::internal("cause with a secret path"))).boxed_local()
    }

    fn wake<'a>(&'a self, _: &'a SandboxId) -> LocalBoxFuture<'a, Result<Woken>> {
        ready(Err(Error::internal("not needed"))).boxed_local()
    }

    fn stop<'a>(&'a self, _: &'a SandboxId) -> LocalBoxFuture<'a, Result<Stopped>> {
        ready(Err(Error::internal("not needed"))).boxed_local()
    }

    fn update<'a>(&'a self, _: &'a SandboxId, _: &'a Update) -> LocalBoxFuture<'a, Result<Record>> {
        ready(Err(Error::internal("not needed"))).boxed_local()
    }

    fn cloned<'a>(&'a self, _: &'a SandboxId) -> LocalBoxFuture<'a, Result<()>> {
        ready(Err(Error::internal("not needed"))).boxed_local()
    }

    fn destroy<'a>(&'a self, _: &'a SandboxId, _: bool) -> LocalBoxFuture<'a, Result<Destroyed>> {
        ready(Err(Error::internal("not needed"))).boxed_local()
    }

    fn control<'a>(&'a self, _: &'a SandboxId, asked: ControlRequest) -> LocalBoxFuture<'a, Result<ControlResponse>> {
        if let RequestBody::Json(body) = asked.body {
            self.0.controls.borrow_mut().push(body);
        }
        ready(Err(Error::internal("not needed"))).boxed_local()
    }
}

fn job(request: &AdmissionRequest) -> Job {
    Job {
        job_id: request.call_id.clone(),
        tool: request.requirement.tool.clone(),
        state: if request.manner == Manner::Deferred { State::Queued } else { State::AwaitingApproval },
        version: 0,
        key_id: request.principal.key_id.clone(),
        token_id: None,
        step_of: None,
        schedule_id: request.schedule_id.clone(),
        sandbox_id: None,
        sandbox_created_at: None,
        sandbox_generation: None,
        labels: Default::default(),
        expires_after: None,
        created_at: request.at,
        updated_at: request.at,
        begun_at: None,
        ended_at: None,
        approval: None,
        cancellation: None,
        waits_for_place: false,
        attempts: 0,
        recorded_as: None,
        exit_code: None,
        error: None,
    }
}

fn told(seed: &Seed) -> Told {
    let Seed { job, order, .. } = seed.clone();
    Told { job, order, output: None, details: None, steps: Vec::new() }
}

impl Jobs for Double {
    fn create<'a>(&'a self, seed: &'a Seed) -> LocalBoxFuture<'a, Result<Told>> {
        self.0.seeds.borrow_mut().push(seed.clone());
        ready(Ok(told(seed))).boxed_local()
    }

    fn describe<'a>(&'a self, _: &'a str) -> LocalBoxFuture<'a, Result<Told>> {
        ready(self.0.seeds.borrow().last().map(told).ok_or_else(|| Error::internal("there is none"))).boxed_local()
    }

    fn wait<'a>(&'a self, _: &'a str, _: Duration) -> LocalBoxFuture<'a, Result<Told>> {
        let told = self.0.waits.borrow_mut().pop();
        ready(told.ok_or_else(|| Error::internal("the object does not answer"))).boxed_local()
    }

    fn decide<'a>(&'a self, _: &'a str, _: &'a Decision) -> LocalBoxFuture<'a, Result<Told>> {
        ready(Err(Error::internal("not needed"))).boxed_local()
    }

    fn retry<'a>(&'a self, job_id: &'a str, _: &'a Again) -> LocalBoxFuture<'a, Result<Told>> {
        Jobs::describe(self, job_id)
    }

    fn log<'a>(&'a self, _: &'a str, _: &'a LogQuestion) -> LocalBoxFuture<'a, Result<JobLog>> {
        ready(Err(Error::internal("not needed"))).boxed_local()
    }

    fn cancel<'a>(&'a self, job_id: &'a str, wish: &'a Cancellation) -> LocalBoxFuture<'a, Result<Told>> {
        self.0.cancelled.borrow_mut().push((job_id.to_owned(), wish.clone()));
        ready(Err(Error::new(ErrorCode::Conflict, "the job is over"))).boxed_local()
    }
}

impl Backend for Double {
    fn platform(&self) -> Rc<dyn Platform> {
        Rc::new(self.clone())
    }

    fn root_key(&self) -> Option<String> {
        Some(KEY.to_owned())
    }

    fn signer(&self) -> &Signer {
        &self.1
    }

    fn secrets(&self) -> Vec<String> {
        vec![KEY.to_owned()]
    }

    fn tenant(&self, _: &str) -> Rc<dyn Tenant> {
        Rc::new(self.clone())
    }

    fn sandboxes(&self, _: &str) -> Rc<dyn Sandboxes> {
        Rc::new(self.clone())
    }

    fn jobs(&self, _: &str) -> Rc<dyn Jobs> {
        Rc::new(self.clone())
    }

    fn archive(&self, _: &str) -> Option<Rc<dyn Archive>> {
        None
    }

    fn observed(&self) -> Observed {
        Observed { generation: Some(3), start_ms: Some(40) }
    }

    fn tell(&self, line: Value, point: DataPoint) {
        self.platform().log(&line);
        self.0.measured.borrow_mut().push(point);
    }
}

fn head(key: &str) -> CallHead {
    let trace = Trace::of_request(None, None, || [6; 16]);
    let presented = Presented { authorization: Some(format!("Bearer {key}")), tenant: None };
    CallHead::plain("call-1".into(), "test", presented, trace)
}

fn call(double: &Double, key: &str, tool: &str, arguments: Result<Value>) -> Result<Value> {
    let call = ToolCall { head: head(key), tool: tool.into(), arguments };
    output(answered(double, call).result)
}

fn output(result: Result<Reply<Value>>) -> Result<Value> {
    result.map(|reply| match reply {
        Reply::Output(output) => output,
        Reply::Job(job) => panic!("{job:?}"),
    })
}

fn answered(double: &Double, call: ToolCall) -> Answered<Reply<Value>> {
    tools::registry().call(double, call, Rc::new(NoEvents)).now_or_never().expect("the doubles never wait")
}

fn code(result: &Result<Value>) -> Option<ErrorCode> {
    result.as_ref().err().map(|error| error.code)
}

#[test]
fn a_stranger_touches_no_object_whatever_is_wrong_with_the_call() {
    let double = Double::default();
    for (tool, arguments) in [("exec", json!({ "command": "x" })), ("exec", json!({})), ("nothing", json!({}))] {
        assert_eq!(code(&call(&double, "wrong", tool, Ok(arguments))), Some(ErrorCode::Unauthenticated));
    }
    assert!(double.0.intents.borrow().is_empty() && double.0.settlements.borrow().is_empty());
}

#[test]
fn what_is_wrong_with_a_call_is_told_after_admission_and_recorded() {
    let double = Double::default();
    let undecoded = Err(Error::new(ErrorCode::MalformedRequest, "not JSON"));
    assert_eq!(code(&call(&double, KEY, "exec", undecoded)), Some(ErrorCode::MalformedRequest));
    assert_eq!(code(&call(&double, KEY, "nothing", Ok(json!({})))), Some(ErrorCode::UnknownTool));
    assert_eq!(code(&call(&double, KEY, "exec", Ok(json!({ "command": 5 })))), Some(ErrorCode::InvalidArguments));
    assert_eq!(double.0.intents.borrow().len(), 3, "each was brought to the tenant's object");
    assert!(double.0.settlements.borrow().is_empty(), "none acted");
}

#[test]
fn a_call_is_recorded_without_its_secrets_and_settled_with_its_outcome() {
    let double = Double::default();
    let arguments = json!({ "id": "box", "labels": { "note": KEY }, "env": { "TOKEN": "t0p-s3cret" } });
    let output = call(&double, KEY, "createSandbox", Ok(arguments)).unwrap();
    let intents = double.0.intents.borrow();
    let recorded = intents[0].arguments.to_string();
    assert!(recorded.contains("TOKEN") && !recorded.contains("t0p-s3cret") && !recorded.contains(KEY), "{recorded}");
    assert_eq!(double.0.created.borrow()[0].settings.env["TOKEN"], "t0p-s3cret", "what acts has the real value");
    assert_eq!(output["labels"]["echo"], "<[redacted]>", "the answer does not carry the key out again");
    let settlements = double.0.settlements.borrow();
    assert_eq!((settlements.len(), settlements[0].outcome), (1, Outcome::Succeeded));
    let logged = Value::Array(double.0.logged.borrow().clone()).to_string();
    assert!(logged.contains("createSandbox") && !logged.contains("t0p-s3cret") && !logged.contains(KEY), "{logged}");
}

#[test]
fn a_sandbox_that_is_not_listed_is_not_asked() {
    let double = Double::default();
    let result = call(&double, KEY, "getSandbox", Ok(json!({ "sandboxId": "box" })));
    assert_eq!(code(&result), Some(ErrorCode::NotFound), "the double would have said internal");
}

#[test]
fn an_answer_over_the_cap_of_its_tool_is_not_sent() {
    let guardrails = tools::registry().get("destroySandbox").unwrap().description().guardrails;
    let limit = Some(guardrails.output_cap_bytes);
    assert!(cap(json!({ "a": "b" }), limit).is_ok());
    let large = json!({ "a": "b".repeat(usize::try_from(guardrails.output_cap_bytes).unwrap()) });
    let error = cap(large, limit).unwrap_err();
    assert_eq!((error.code, error.details["limitBytes"].as_u64()), (ErrorCode::PayloadTooLarge, Some(65536)));
}

#[test]
fn the_list_holds_every_tool_for_the_root_key_and_nothing_for_a_stranger() {
    let double = Double::default();
    let registry = tools::registry();
    let describe = |key: &str| registry.describe(&double, &head(key)).now_or_never().unwrap();
    assert_eq!(describe(KEY).result.unwrap()["tools"].as_array().unwrap().len(), registry.list().count());
    assert_eq!(describe("wrong").result.unwrap_err().code, ErrorCode::Unauthenticated);
    *double.0.permissions.borrow_mut() = Some(Permissions::of(Role::Viewer));
    let listed = describe(KEY).result.unwrap();
    let tools = listed["tools"].as_array().unwrap();
    assert!(!tools.is_empty() && tools.iter().all(|tool| tool["guardrails"]["role"] == "viewer"));
}

#[test]
fn each_call_is_one_line_without_arguments_output_or_secrets() {
    let double = Double::default();
    let canary = "c4nary-c4nary-c4nary";
    let arguments = json!({ "id": "box", "labels": { "note": canary }, "env": { "TOKEN": canary } });
    call(&double, KEY, "createSandbox", Ok(arguments)).unwrap();
    let line = double.0.logged.borrow()[0].clone();
    for (field, expected) in [
        ("level", json!("info")),
        ("message", json!("call")),
        ("requestId", json!("call-1")),
        ("traceId", json!(format!("{}07", "06".repeat(15)))),
        ("tenant", json!("default")),
        ("keyId", json!("root")),
        ("tool", json!("createSandbox")),
        ("sandboxId", json!("box")),
        ("generation", json!(3)),
        ("startMs", json!(40)),
        ("outcome", json!("succeeded")),
        ("durationMs", json!(0)),
    ] {
        assert_eq!(line[field], expected, "{field}: {line}");
    }
    call(&double, KEY, "exec", Ok(json!({ "command": canary, "bad": canary }))).unwrap_err();
    call(&double, KEY, KEY, Ok(json!({}))).unwrap_err();
    call(&double, "wrong-wrong-wrong", "exec", Ok(json!({ "command": canary }))).unwrap_err();
    call(&double, KEY, &"x".repeat(5000), Ok(json!({}))).unwrap_err();
    let lines = double.0.logged.borrow();
    let outcomes: Vec<_> = lines.iter().map(|line| line["outcome"].as_str().unwrap()).collect();
    assert_eq!(outcomes, ["succeeded", "invalid_arguments", "unknown_tool", "unauthenticated", "unknown_tool"]);
    let text = Value::Array(lines.clone()).to_string();
    for secret in [canary, KEY, "wrong-wrong-wrong"] {
        assert!(!text.contains(secret), "{secret}: {text}");
    }
    assert!(lines.iter().all(|line| line.to_string().len() < 1000), "{text}");
    assert!(lines[3].get("tenant").is_none(), "a stranger has none: {}", lines[3]);
    assert_eq!(double.0.measured.borrow().len(), lines.len());
}

#[test]
fn an_alias_is_logged_and_recorded_as_its_tool() {
    let double = Double::default();
    call(&double, KEY, "sandboxes.list", Ok(json!({}))).unwrap();
    assert_eq!(double.0.logged.borrow()[0]["tool"], "listSandboxes");
    assert_eq!(double.0.intents.borrow()[0].requirement.tool, "listSandboxes");
}

#[test]
fn a_call_with_an_idempotency_key_is_carried_out_once() {
    let double = Double::default();
    let ask = |key: &str, label: &str| {
        let head = CallHead { idempotency_key: Some(key.into()), ..head(KEY) };
        let arguments = Ok(json!({ "id": "box", "labels": { "a": label } }));
        answered(&double, ToolCall { head, tool: "createSandbox".into(), arguments })
    };
    let first = ask("once", "x");
    let second = ask("once", "x");
    assert!(!first.is_replayed && second.is_replayed);
    assert_eq!(first.result.unwrap(), second.result.unwrap());
    assert_eq!(double.0.created.borrow().len(), 1);
    assert_eq!(code(&output(ask("once", "y").result)), Some(ErrorCode::IdempotencyMismatch));
    assert_eq!(code(&output(ask("not one", "x").result)), Some(ErrorCode::InvalidArguments));
    let stored = serde_json::to_string(&double.0.answers.borrow()[0]).unwrap();
    assert!(!stored.contains(KEY), "what is stored is masked: {stored}");
}

#[test]
fn every_destructive_tool_tells_what_it_would_do_and_no_other_takes_the_argument() {
    for entry in tools::registry().list() {
        let tool = entry.description();
        let takes = tool.input_schema["properties"].get("dryRun").is_some();
        assert_eq!(takes, tool.annotations.destructive_hint, "{}", tool.name);
    }
    let double = Double::default();
    let told = call(&double, KEY, "destroySandbox", Ok(json!({ "sandboxId": "box", "dryRun": true }))).unwrap();
    assert_eq!((&told["dryRun"], &told["tool"]), (&json!(true), &json!("destroySandbox")));
    assert!(!told["effects"].as_array().unwrap().is_empty());
    assert_eq!(double.0.intents.borrow()[0].manner, Manner::Preview);
    assert_eq!(double.0.intents.borrow()[0].arguments["dryRun"], true);
    // A command that would make a sandbox makes none.
    call(&double, KEY, "exec", Ok(json!({ "command": "true", "dryRun": true }))).unwrap();
    assert!(double.0.created.borrow().is_empty());
    assert_eq!(
        code(&call(&double, KEY, "exec", Ok(json!({ "command": "true", "dryRun": "yes" })))),
        Some(ErrorCode::InvalidArguments)
    );
}
