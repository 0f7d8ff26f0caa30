//! One call, forward only: decode and validate, admit, act, settle, cap and redact. Every door comes through here.

use std::rc::Rc;
use std::time::Duration;

use futures_util::FutureExt;
use serde_json::{Value, json};

use self::answer::{Measured, mask, spent};
use self::asked::Asked;
use self::cancel::Cancellable;
use self::deferred::{known_job, new_job, waited};
use self::secrets::redactor;
use crate::error::{Error, ErrorCode, Result};
use crate::events::{Event, EventSink, NoEvents, RedactingSink, Resumed};
use crate::guardrails::{Execution, RateClass};
use crate::job::record::{Order, Seed, StepOf};
use crate::log_line::{CallLine, DataPoint, Observed};
use crate::platform::{Platform, within};
use crate::raw::{RawRequest, RawResponse};
use crate::registry::{self, CallFacts, Context, Entry, Prepared, Registry};
use crate::sandbox::exec;
use crate::services::{Jobs, Sandboxes, Services, Tenant};
use crate::tenant::admission::{
    Admission, AdmissionRequest, Identified, Manner, May, Outcome, Ruling, SandboxClaim, Settlement,
};
use crate::tenant::approval;
use crate::tenant::archive::Archive;
use crate::tenant::credential::{self, Configured, Credential, Presented, Principal};
use crate::tenant::idempotency::{self, Wanted};
use crate::tenant::limits::Standing;
use crate::tenant::marks::Mark;
use crate::tenant::permissions::Permissions;
use crate::tenant::sight::in_sight;
use crate::tenant::signing::{Purpose, Signer};
use crate::tools::job_info::JobInfo;
use crate::trace::Trace;
use redaction::Redactor;

/// How long a call may be unsettled past its deadline before the books close it.
const SETTLE_ALLOWANCE: Duration = Duration::from_secs(15);

/// What is behind every door.
pub trait Backend {
    fn platform(&self) -> Rc<dyn Platform>;

    /// `WORKER_API_KEY_SECRET` as configured.
    fn root_key(&self) -> Option<String>;

    /// Of `SIGNING_SECRET`.
    fn signer(&self) -> &Signer;

    /// Values that must not leave with an answer.
    fn secrets(&self) -> Vec<String>;

    fn tenant(&self, name: &str) -> Rc<dyn Tenant>;

    fn sandboxes(&self, tenant: &str) -> Rc<dyn Sandboxes>;

    fn jobs(&self, tenant: &str) -> Rc<dyn Jobs>;

    /// The tenant's audit in R2, where there is a bucket.
    fn archive(&self, tenant: &str) -> Option<Rc<dyn Archive>>;

    /// What its [`Sandboxes`] noticed so far. A backend is one request's.
    fn observed(&self) -> Observed;

    /// Logs a line, and keeps its data point where anybody keeps them. The answer does not wait for it.
    fn tell(&self, line: Value, point: DataPoint);
}

/// What every call has, whatever it carries.
#[derive(Clone, Debug)]
pub struct CallHead {
    /// Id of the call: in the log, in the audit, and as the id of its process in a sandbox.
    pub id: String,
    /// Door it came through.
    pub door: &'static str,
    /// What the request says of its caller.
    pub presented: Presented,
    /// The header `Idempotency-Key`, as sent.
    pub idempotency_key: Option<String>,
    /// How long the caller waits: a call that can be a job, and may last longer, is one from its beginning. Nothing where it is
    /// told events meanwhile, and so waits as long as it takes.
    pub patience: Option<Duration>,
    /// The header `Webhook-Url`, as sent: who is told of the job, if the call becomes one.
    pub webhook_url: Option<String>,
    /// Digest of what the caller calls its request by, where it may end the call from another connection.
    pub mark: Option<String>,
    /// Span of this request.
    pub trace: Trace,
}

impl CallHead {
    /// A call with none of what is optional, whose caller waits as long as it takes.
    pub fn plain(id: String, door: &'static str, presented: Presented, trace: Trace) -> Self {
        Self { id, door, presented, idempotency_key: None, patience: None, webhook_url: None, mark: None, trace }
    }
}

/// A call with JSON arguments.
pub struct ToolCall {
    pub head: CallHead,
    pub tool: String,
    /// The arguments, or why they could not be decoded.
    pub arguments: Result<Value>,
}

/// A call with raw bytes.
pub struct RawCall {
    pub head: CallHead,
    pub tool: String,
    /// The request, or why it makes no sense.
    pub request: Result<RawRequest>,
}

/// What a call is answered with.
#[derive(Debug, PartialEq)]
pub enum Reply<A> {
    /// Its output.
    Output(A),
    /// It became a job, which goes on without the caller.
    Job(Box<JobInfo>),
}

/// What a door answers, and what it says beside it.
pub struct Answered<A> {
    pub result: Result<A>,
    /// How the caller's window of calls stands; unknown of strangers, and the root key has none.
    pub standing: Option<Standing>,
    /// Whether the answer is that of an earlier call with the same idempotency key.
    pub is_replayed: bool,
    /// Whether it was admitted, and so may have acted.
    pub has_begun: bool,
}

impl Registry {
    /// Who calls, as far as the Worker can tell; the first thing that is decided.
    pub fn authenticate(&self, backend: &dyn Backend, head: &CallHead) -> Result<Principal> {
        let (root_key, signer) = (backend.root_key(), backend.signer());
        let configured = Configured { root_key: root_key.as_deref(), signer };
        credential::authenticate(&configured, &head.presented, backend.platform().now_millis())
    }

    /// Who calls and what they may do, by the tenant's word. It is counted as a call.
    pub async fn identify(&self, backend: &dyn Backend, head: &CallHead) -> Answered<(Principal, Permissions)> {
        let identified = match self.authenticate(backend, head) {
            Ok(principal) => {
                let identified = backend.tenant(&principal.tenant).identify(principal.clone()).await;
                identified.map(|identified| (principal, identified))
            }
            Err(error) => Err(error),
        };
        let (standing, result) = match identified {
            Ok((principal, Identified { standing, may: May::Have(permissions) })) => {
                (standing, Ok((principal, permissions)))
            }
            Ok((_, Identified { standing, may: May::Refused(error) })) => (standing, Err(error)),
            Err(error) => (None, Err(error)),
        };
        Answered { result, standing, is_replayed: false, has_begun: false }
    }

    /// Descriptions of the tools that the caller may call.
    pub async fn describe(&self, backend: &dyn Backend, head: &CallHead) -> Answered<Value> {
        let Answered { result, standing, is_replayed, has_begun } = self.identify(backend, head).await;
        let result = result.map(|(_, permissions)| {
            let tools = self.list().map(Entry::description);
            let tools: Vec<_> = tools.filter(|tool| permissions.check(&tool.requirement()).is_ok()).collect();
            json!({ "tools": tools })
        });
        Answered { result, standing, is_replayed, has_begun }
    }

    /// Carries out one call and answers the tool's output, or the job that it became.
    pub async fn call(
        &self,
        backend: &dyn Backend,
        call: ToolCall,
        events: Rc<dyn EventSink>,
    ) -> Answered<Reply<Value>> {
        let who = self.authenticate(backend, &call.head);
        self.carry_out(backend, call, who, Way::default(), events).await
    }

    /// The same at once or not at all: a call that has to be approved first is refused.
    pub async fn call_at_once(&self, backend: &dyn Backend, call: ToolCall) -> Answered<Reply<Value>> {
        let who = self.authenticate(backend, &call.head);
        let way = Way { manner: Manner::AtOnce, ..Way::default() };
        self.carry_out(backend, call, who, way, Rc::new(NoEvents)).await
    }

    async fn carry_out(
        &self,
        backend: &dyn Backend,
        call: ToolCall,
        who: Result<Principal>,
        way: Way,
        events: Rc<dyn EventSink>,
    ) -> Answered<Reply<Value>> {
        let Way { manner, resumes, step_of, schedule_id } = way;
        // What jobs carry out goes on as they do.
        let is_of_a_door = matches!(manner, Manner::Ordinary | Manner::AtOnce);
        let platform = backend.platform();
        let entry = self.get(&call.tool).ok_or_else(|| unknown_tool(&call.tool));
        let redactor = redactor(backend, &call.head, entry.as_ref().ok().copied(), call.arguments.as_ref().ok());
        let patience = call.head.patience;
        let execution = entry.as_ref().map_or(Execution::Inline, |entry| entry.description().execution);
        let may_be_a_job = execution.may_be_a_job();
        // Nobody holds a connection open for a job, so that it may last as long as a stream.
        let streams = events.streams() || manner != Manner::Ordinary || may_be_a_job;
        let facts = CallFacts { streams, registry: self, platform: &*platform, redactor: &redactor };
        let asked = Asked::new(entry.as_ref().ok(), &redactor.text(&call.tool));
        // 1. Decode and validate: what is wrong becomes a verdict that travels on.
        let sent = call.arguments.as_ref().map(Value::to_string).unwrap_or_default();
        let asked =
            Asked { bytes_in: length(&sent), ..asked }.naming(entry.as_ref().ok(), call.arguments.as_ref().ok(), self);
        let signatures = signatures(backend, &asked.requirement.tool, &sent);
        let prepared = entry.and_then(|entry| call.arguments.and_then(|arguments| entry.prepare(arguments, &facts)));
        let prepared = checked_key(&call.head).and(prepared);
        // What runs already needs its sandbox as it is.
        let claim =
            resumes.as_ref().map(|resumed| SandboxClaim::Running { sandbox_id: resumed.process.sandbox_id.clone() });
        let prepared = prepared.map(|call| match claim {
            Some(claim) => Prepared { claim, ..call },
            None => call,
        });
        let manner = match &prepared {
            Ok(call) if call.is_preview => Manner::Preview,
            Ok(_) if manner == Manner::Ordinary && execution == Execution::Job => Manner::Deferred,
            Ok(_) if manner == Manner::Ordinary && execution == Execution::Immediate => Manner::Immediate,
            Ok(call)
                if manner == Manner::Ordinary && may_be_a_job && patience.is_some_and(|most| call.timeout > most) =>
            {
                Manner::Deferred
            }
            _ => manner,
        };
        let cancellable = who.as_ref().ok().filter(|_| is_of_a_door);
        let cancellable =
            cancellable.and_then(|who| Cancellable::around(&events, backend, &call.head, who)).map(Rc::new);
        let events = cancellable.clone().map_or(events, |cancellable| cancellable as Rc<dyn EventSink>);
        let sink = Rc::new(RedactingSink::new(events, &redactor));
        let work =
            Work { head: &call.head, who, asked, manner, resumes, step_of, schedule_id, sent, signatures, prepared };
        let answered = run(backend, work, sink.clone(), &redactor).await;
        let answered = match cancellable {
            Some(cancellable) => cancellable.told(answered),
            None => answered,
        };
        // Whoever goes on with it reads what was held back again, whole, and masks it then.
        if !stays_open(manner, &answered.result) {
            // What a reader that left would have been told is lost with it, and so is no fault of the call.
            let _ = sink.finish().await;
        }
        answered
    }

    /// Carries out one call on a raw route. Raw bytes are exact: neither capped nor redacted.
    pub async fn call_raw(&self, backend: &dyn Backend, call: RawCall) -> Answered<Reply<RawResponse>> {
        let platform = backend.platform();
        let redactor = redactor(backend, &call.head, None, None);
        let facts = CallFacts { streams: false, registry: self, platform: &*platform, redactor: &redactor };
        let entry = self.get(&call.tool).ok_or_else(|| unknown_tool(&call.tool));
        let asked = Asked::new(entry.as_ref().ok(), &redactor.text(&call.tool));
        let arguments = call.request.as_ref().map_or(Value::Null, RawRequest::arguments);
        let bytes_in = call.request.as_ref().map_or(0, |request| request.length.unwrap_or(0));
        let asked = Asked { bytes_in, ..asked }.naming(entry.as_ref().ok(), Some(&arguments), self);
        let sent = arguments.to_string();
        let prepared = entry.and_then(|entry| entry.prepare_raw(call.request?, &facts));
        let prepared = no_key(&call.head).and(prepared);
        let who = self.authenticate(backend, &call.head);
        let (manner, signatures) = (Manner::Raw, Vec::new());
        let (resumes, step_of, schedule_id) = (None, None, None);
        let work =
            Work { head: &call.head, who, asked, manner, resumes, step_of, schedule_id, sent, signatures, prepared };
        run(backend, work, Rc::new(NoEvents), &redactor).await
    }
}

/// How a call is carried out.
#[derive(Default)]
struct Way {
    manner: Manner,
    /// The process that it runs as already.
    resumes: Option<Resumed>,
    /// The pipeline that makes it.
    step_of: Option<StepOf>,
    /// The schedule that makes it.
    schedule_id: Option<String>,
}

/// A call on its way through the steps that all have.
struct Work<'a, A> {
    head: &'a CallHead,
    who: Result<Principal>,
    asked: Asked,
    manner: Manner,
    /// The process that it runs as already.
    resumes: Option<Resumed>,
    /// The pipeline that makes it.
    step_of: Option<StepOf>,
    /// The schedule that makes it.
    schedule_id: Option<String>,
    /// The arguments as they were sent, as JSON.
    sent: String,
    /// Over tool and arguments, by each of the secrets.
    signatures: Vec<String>,
    prepared: Result<Prepared<A>>,
}

/// An idempotency key that cannot be one is a fault of the call.
fn checked_key(head: &CallHead) -> Result<()> {
    head.idempotency_key.as_deref().map_or(Ok(()), idempotency::check)
}

fn no_key(head: &CallHead) -> Result<()> {
    if head.idempotency_key.is_none() {
        return Ok(());
    }
    let message = "a raw route takes no Idempotency-Key: use If-Match or If-None-Match, or an upload in pieces";
    Err(Error::new(ErrorCode::InvalidArguments, message).detail("header", "idempotency-key"))
}

fn length(text: &str) -> u64 {
    u64::try_from(text.len()).unwrap_or(u64::MAX)
}

/// Signatures over a call's tool and arguments, by each of the secrets; none of what could not be decoded.
fn signatures(backend: &dyn Backend, tool: &str, arguments: &str) -> Vec<String> {
    if arguments.is_empty() {
        return Vec::new();
    }
    // The same arguments in another order are the same arguments: fields of an object are kept sorted.
    let message = format!("{tool}\n{arguments}");
    let configured = backend.signer();
    let signer = if configured.is_configured() { configured } else { &Signer::new(backend.root_key().as_deref()) };
    let made = signer.derive(Purpose::Arguments, "", message.as_bytes());
    made.into_iter().map(hex::encode).collect()
}

/// Steps 2 to 5, the same for every kind of answer.
async fn run<A>(
    backend: &dyn Backend,
    work: Work<'_, A>,
    events: Rc<dyn EventSink>,
    redactor: &Redactor,
) -> Answered<Reply<A>>
where
    A: Measured + 'static,
{
    let Work { head, who, asked, manner, resumes, step_of, schedule_id, sent, signatures, prepared } = work;
    let platform = backend.platform();
    let started_at = platform.now_millis();
    let tool = asked.requirement.tool.clone();
    let line = CallLine { tool: Some(tool), ..CallLine::new("call", started_at, &head.id, head.door, &head.trace) };
    let refuse = |line: CallLine, error: Error, standing: Option<Standing>| {
        write(backend, redactor, line.ended(Some(&error), platform.now_millis() - started_at));
        Answered { result: Err(mask(error, redactor)), standing, is_replayed: false, has_begun: false }
    };
    let deferred = |line: CallLine, told: Result<JobInfo>, standing, is_replayed| match told {
        Ok(job) => {
            let ended = line.ended(None, platform.now_millis() - started_at);
            write(backend, redactor, CallLine { outcome: DEFERRED.to_owned(), ..ended });
            Answered { result: Ok(Reply::Job(Box::new(job))), standing, is_replayed, has_begun: false }
        }
        Err(error) => refuse(line, error, standing),
    };
    // 2. Admit: who first, then one hop to the tenant's object.
    let principal = match who {
        Ok(principal) => principal,
        Err(error) => return refuse(line, error, None),
    };
    let deadline = prepared.as_ref().map_or(Duration::ZERO, |prepared| prepared.deadline);
    let claim = prepared.as_ref().map_or(SandboxClaim::None, |prepared| prepared.claim.clone());
    let recorded = prepared.as_ref().map_or(Value::Null, |prepared| redactor.json(prepared.recorded.clone()));
    let wanted = head.idempotency_key.clone();
    let request = AdmissionRequest {
        principal: principal.clone(),
        call_id: head.id.clone(),
        door: head.door.to_owned(),
        requirement: asked.requirement,
        rate_class: if manner == Manner::Preview { RateClass::Read } else { asked.rate_class },
        arguments: recorded,
        arguments_signature: signatures.first().cloned().filter(|_| asked.is_signed),
        claim: claim.clone(),
        manner,
        is_resumed: resumes.is_some(),
        step_of,
        schedule_id,
        inspected: None,
        verdict: prepared.as_ref().err().cloned(),
        idempotency: wanted.map(|key| Wanted::new(&key, signatures)),
        webhook_url: head.webhook_url.clone(),
        mark: head
            .mark
            .clone()
            .map(|digest| Mark { digest, until: started_at + millis(head.patience.unwrap_or_default()) }),
        at: started_at,
        deadline_at: started_at + millis(deadline + SETTLE_ALLOWANCE),
    };
    let holds_key = request.idempotency.is_some();
    let line = CallLine {
        tenant: Some(principal.tenant.clone()),
        key_id: Some(principal.key_id.clone()),
        sandbox_id: claim.sandbox_id().cloned(),
        ..line
    };
    let tenant = backend.tenant(&principal.tenant);
    // What becomes a job is written down whole; of any other call the arguments stay here.
    let order = Order {
        tenant: principal.tenant.clone(),
        permissions: match &principal.credential {
            Credential::Token { permissions, .. } => Some(permissions.clone()),
            Credential::Job { permissions, .. } => permissions.clone(),
            _ => None,
        },
        requirement: request.requirement.clone(),
        recorded: request.arguments.clone(),
        arguments_signature: request.arguments_signature.clone(),
        holds_key,
    };
    let admission = admit(&*tenant, request, &sent).await;
    let admitted_at = platform.now_millis();
    let line = CallLine { admission_ms: Some(admitted_at - started_at), ..line };
    let (standing, ruling) = match admission {
        Ok(Admission { standing, ruling }) => (standing, ruling),
        Err(error) => return refuse(line, error, None),
    };
    let (admitted, prepared) = match (ruling, prepared) {
        (Ruling::Admitted(admitted), Ok(prepared)) => (admitted, prepared),
        (Ruling::Refused(error), _) | (Ruling::Admitted(_), Err(error)) => return refuse(line, error, standing),
        (Ruling::Replayed(answer), _) => {
            let result = A::replayed(answer);
            write(backend, redactor, line.ended(result.as_ref().err(), admitted_at - started_at));
            return Answered { result: result.map(Reply::Output), standing, is_replayed: true, has_begun: false };
        }
        (Ruling::Job(job), _) => {
            let jobs = backend.jobs(&principal.tenant);
            let answered = deferred(line, known_job(&*jobs, *job).await, standing, true);
            return waited(&*jobs, &*platform, head.patience, answered).await;
        }
        (Ruling::Deferred(job), _) => {
            let jobs = backend.jobs(&principal.tenant);
            let seed = Seed { job: *job, order, arguments: sent };
            let answered = deferred(line, new_job(&*jobs, seed).await, standing, false);
            return waited(&*jobs, &*platform, head.patience, answered).await;
        }
        (Ruling::Inspect(_), _) => {
            return refuse(line, Error::internal("the rules for approval were not answered"), standing);
        }
    };
    // 3. Act.
    let services = Services {
        platform: platform.clone(),
        tenant: in_sight(tenant.clone(), &admitted.permissions, &principal),
        sandboxes: backend.sandboxes(&principal.tenant),
        jobs: backend.jobs(&principal.tenant),
        archive: backend.archive(&principal.tenant),
        signer: backend.signer().clone(),
    };
    let context = Context {
        call_id: head.id.clone(),
        principal,
        permissions: admitted.permissions,
        limits: admitted.limits,
        claim,
        listed: admitted.listed,
        admitted_at: started_at,
        resumes,
        secrets: admitted.secrets,
        services,
    };
    // The reader learns that the call was admitted before anything else happens; what it did after that is told on its
    // stream. One that has left already is noticed at the next event.
    let _ = events.emit(Event::Admitted(standing)).await;
    let act = (prepared.act)(context, events.clone());
    let result = match within(&*platform, prepared.deadline, act).await {
        Ok(result) => result,
        Err(_) => {
            Err(Error::new(ErrorCode::OutcomeUnknown, "the call did not end within its deadline; it may have acted"))
        }
    };
    // 4. Cap and redact.
    let at = platform.now_millis();
    let cause = result.as_ref().err().and_then(|error| error.cause.clone());
    let result = result
        .and_then(|output| output.finished(asked.output_cap_bytes, redactor))
        .map(|output| if manner == Manner::Attempt { output.kept(asked.told_once) } else { output })
        .map_err(|error| mask(error, redactor));
    // 5. Settle: after the answer, or before it when the answer is to be given again.
    let bytes_out = result.as_ref().ok().and_then(Measured::bytes);
    let sent = events.bytes() + bytes_out.unwrap_or(0);
    let settlement = Settlement {
        call_id: head.id.clone(),
        outcome: result.as_ref().err().map_or(Outcome::Succeeded, |error| Outcome::Failed(error.code)),
        exit_code: result.as_ref().ok().and_then(Measured::exit_code),
        duration_ms: at - started_at,
        at,
        spent: spent(&result, at - admitted_at, asked.bytes_in, sent),
        answer: holds_key.then(|| Measured::stored(&result, asked.told_once)).flatten(),
    };
    let Observed { generation, start_ms } = backend.observed();
    let line = CallLine {
        generation,
        exit_code: settlement.exit_code,
        act_ms: Some(at - admitted_at),
        start_ms,
        bytes_out,
        ..line
    };
    let logged = result.as_ref().err().map(|error| Error { cause, ..error.clone() });
    write(backend, redactor, line.ended(logged.as_ref(), settlement.duration_ms));
    if stays_open(manner, &result) {
        return Answered { result: result.map(Reply::Output), standing, is_replayed: false, has_begun: true };
    }
    let settled = settle(platform.clone(), tenant, head.id.clone(), settlement);
    if holds_key {
        settled.await
    } else {
        platform.background(settled.boxed_local())
    }
    Answered { result: result.map(Reply::Output), standing, is_replayed: false, has_begun: true }
}

/// An attempt whose sandbox may tell later how it ended is gone on with by its job, which closes it otherwise.
fn stays_open<T>(manner: Manner, result: &Result<T>) -> bool {
    manner == Manner::Attempt && result.as_ref().is_err_and(exec::may_be_told_later)
}

/// Outcome of a call that became a job, in its line of the log.
const DEFERRED: &str = "deferred";

/// One hop to the tenant's object; a second one where the decision depends on the arguments.
async fn admit(tenant: &dyn Tenant, request: AdmissionRequest, sent: &str) -> Result<Admission> {
    let admission = tenant.admit(request.clone()).await?;
    let Ruling::Inspect(rules) = &admission.ruling else { return Ok(admission) };
    let sent = serde_json::from_str(sent).map_err(Error::internal)?;
    let inspected = Some(approval::inspect(rules, &registry::whole_numbers(sent)));
    tenant.admit(AdmissionRequest { inspected, ..request }).await
}

async fn settle(platform: Rc<dyn Platform>, tenant: Rc<dyn Tenant>, call_id: String, settlement: Settlement) {
    if let Err(error) = tenant.settle(settlement).await {
        let line = json!({ "level": "error", "requestId": call_id, "message": "a call was not settled", "source": error.cause });
        platform.log(&line);
    }
}

fn unknown_tool(name: &str) -> Error {
    let shown: String = name.chars().take(64).collect();
    Error::new(ErrorCode::UnknownTool, format!("there is no tool {shown:?}; GET /v1/tools lists them"))
}

/// Logs and measures one call. Secrets are masked: a cause, or the name of a tool that there is not, may hold one.
fn write(backend: &dyn Backend, redactor: &Redactor, line: CallLine) {
    let masked = |text: Option<String>| text.map(|text| redactor.text(&text));
    let line = CallLine { tool: masked(line.tool), source: masked(line.source), ..line };
    backend.tell(serde_json::to_value(&line).unwrap_or_default(), DataPoint::from(&line));
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

mod answer;
mod asked;
pub mod cancel;
mod deferred;
mod made;
mod secrets;

pub use made::{Attempt, ScheduledCall, StepCall};

#[cfg(test)]
mod tests;
