//! One call, forward only: decode and validate, admit, act, settle, cap and redact. Every door comes through here.

use std::rc::Rc;
use std::time::Duration;

use futures_util::FutureExt;
use serde_json::{Value, json};

use crate::error::{Error, ErrorCode, Result};
use crate::events::{Event, EventSink, NoEvents, RedactingSink};
use crate::guardrails::Guardrails;
use crate::log_line::{CallLine, DataPoint, LONGEST_TOOL, Observed};
use crate::platform::{Platform, within};
use crate::raw::{RawRequest, RawResponse};
use crate::redaction::Redactor;
use crate::registry::{CallFacts, Context, Entry, Prepared, Registry};
use crate::services::{Sandboxes, Services, Tenant};
use crate::tenant::admission::{AdmissionRequest, Outcome, SandboxClaim, Settlement};
use crate::tenant::credential::{self, Principal};
use crate::trace::Trace;

/// How long a call may be unsettled past its deadline before the books close it.
const SETTLE_ALLOWANCE: Duration = Duration::from_secs(15);

/// What is behind every door.
pub trait Backend {
    fn platform(&self) -> Rc<dyn Platform>;

    /// `WORKER_API_KEY_SECRET` as configured.
    fn root_key(&self) -> Option<String>;

    /// Values that must not leave with an answer.
    fn secrets(&self) -> Vec<String>;

    fn tenant(&self, name: &str) -> Rc<dyn Tenant>;

    fn sandboxes(&self, tenant: &str) -> Rc<dyn Sandboxes>;

    /// What its [`Sandboxes`] noticed so far. A backend is one request's.
    fn observed(&self) -> Observed;

    /// Takes one data point, where anybody keeps them.
    fn measure(&self, point: &DataPoint);
}

/// What every call has, whatever it carries.
#[derive(Clone, Debug)]
pub struct CallHead {
    /// Id of the call: in the log, in the audit, and as the id of its process in a sandbox.
    pub id: String,
    /// Door it came through.
    pub door: &'static str,
    /// The header `Authorization`, as sent.
    pub authorization: Option<String>,
    /// Span of this request.
    pub trace: Trace,
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
    pub request: RawRequest,
}

impl Registry {
    /// Who calls; the first thing that is decided.
    pub fn authenticate(&self, backend: &dyn Backend, head: &CallHead) -> Result<Principal> {
        credential::authenticate(backend.root_key().as_deref(), head.authorization.as_deref())
    }

    /// Descriptions of the tools that the caller may call.
    pub fn describe(&self, backend: &dyn Backend, head: &CallHead) -> Result<Value> {
        let principal = self.authenticate(backend, head)?;
        let tools: Vec<_> =
            self.list().map(Entry::description).filter(|tool| tool.guardrails.role <= principal.role).collect();
        Ok(json!({ "tools": tools }))
    }

    /// Carries out one call and answers the tool's output.
    pub async fn call(&self, backend: &dyn Backend, call: ToolCall, events: Rc<dyn EventSink>) -> Result<Value> {
        let platform = backend.platform();
        let facts = CallFacts { streams: events.streams(), platform: &*platform };
        let entry = self.get(&call.tool).ok_or_else(|| unknown_tool(&call.tool));
        let tool = name(entry.as_ref().ok(), &call.tool);
        // 1. Decode and validate: what is wrong becomes a verdict that travels on.
        let prepared = entry.and_then(|entry| {
            let prepared = call.arguments.and_then(|arguments| entry.prepare(arguments, &facts))?;
            Ok((entry.description().guardrails, prepared))
        });
        let redactor = redactor(backend, &call.head);
        let sink = Rc::new(RedactingSink::new(events, &redactor));
        let (result, guardrails) = run(backend, &call.head, &tool, prepared, sink.clone()).await;
        // What a reader that left would have been told is lost with it, and so is no fault of the call.
        let _ = sink.finish().await;
        // 5. Cap and redact.
        result
            .and_then(|output| cap(output, guardrails))
            .map(|output| redactor.json(output))
            .map_err(|error| mask(error, &redactor))
    }

    /// Carries out one call on a raw route. Raw bytes are exact: neither capped nor redacted.
    pub async fn call_raw(&self, backend: &dyn Backend, call: RawCall) -> Result<RawResponse> {
        let platform = backend.platform();
        let facts = CallFacts { streams: false, platform: &*platform };
        let entry = self.get(&call.tool).ok_or_else(|| unknown_tool(&call.tool));
        let tool = name(entry.as_ref().ok(), &call.tool);
        let prepared =
            entry.and_then(|entry| Ok((entry.description().guardrails, entry.prepare_raw(call.request, &facts)?)));
        let redactor = redactor(backend, &call.head);
        let (result, _) = run(backend, &call.head, &tool, prepared, Rc::new(NoEvents)).await;
        result.map_err(|error| mask(error, &redactor))
    }
}

/// Steps 2 to 4, the same for every kind of answer.
async fn run<A>(
    backend: &dyn Backend,
    head: &CallHead,
    tool: &str,
    prepared: Result<(Guardrails, Prepared<A>)>,
    events: Rc<dyn EventSink>,
) -> (Result<A>, Option<Guardrails>)
where
    A: Measured + 'static,
{
    let platform = backend.platform();
    let started_at = platform.now_millis();
    let line =
        CallLine { tool: Some(tool.to_owned()), ..CallLine::new("call", started_at, &head.id, head.door, &head.trace) };
    // 2. Admit: who first, then one hop to the tenant's object.
    let principal = match credential::authenticate(backend.root_key().as_deref(), head.authorization.as_deref()) {
        Ok(principal) => principal,
        Err(error) => {
            write(backend, head, line.ended(Some(&error), 0));
            return (Err(error), None);
        }
    };
    let (verdict, guardrails, prepared) = match prepared {
        Ok((guardrails, prepared)) => (None, Some(guardrails), Some(prepared)),
        Err(error) => (Some(error), None, None),
    };
    let deadline = prepared.as_ref().map_or(Duration::ZERO, |prepared| prepared.deadline);
    let claim = prepared.as_ref().map_or(SandboxClaim::None, |prepared| prepared.claim.clone());
    let tenant = backend.tenant(&principal.tenant);
    let request = AdmissionRequest {
        tenant: principal.tenant.clone(),
        call_id: head.id.clone(),
        tool: tool.to_owned(),
        door: head.door.to_owned(),
        key_id: principal.key_id.clone(),
        arguments: prepared
            .as_ref()
            .map_or(Value::Null, |prepared| redactor(backend, head).json(prepared.recorded.clone())),
        claim: claim.clone(),
        verdict: verdict.clone(),
        at: started_at,
        deadline_at: started_at + millis(deadline + SETTLE_ALLOWANCE),
    };
    let line = CallLine {
        tenant: Some(principal.tenant.clone()),
        key_id: Some(principal.key_id.clone()),
        sandbox_id: claim.sandbox_id().cloned(),
        ..line
    };
    let answer = tenant.admit(request).await;
    let admitted_at = platform.now_millis();
    let line = CallLine { admission_ms: Some(admitted_at - started_at), ..line };
    let admitted = match (answer, prepared, verdict) {
        (Ok(admitted), Some(prepared), None) => Ok((admitted, prepared)),
        (Err(error), ..) | (Ok(_), _, Some(error)) => Err(error),
        (Ok(_), None, None) => Err(Error::internal("a call was neither prepared nor refused")),
    };
    let (admitted, prepared) = match admitted {
        Ok(admitted) => admitted,
        Err(error) => {
            write(backend, head, line.ended(Some(&error), admitted_at - started_at));
            return (Err(error), guardrails);
        }
    };
    // 3. Act.
    let services = Services {
        platform: platform.clone(),
        tenant: tenant.clone(),
        sandboxes: backend.sandboxes(&principal.tenant),
    };
    let context = Context {
        call_id: head.id.clone(),
        principal: principal.clone(),
        claim: claim.clone(),
        listed: admitted.listed,
        admitted_at: started_at,
        services,
    };
    // The reader learns that the call was admitted before anything else happens; what it did after that is told on its
    // stream. One that has left already is noticed at the next event.
    let _ = events.emit(Event::Heartbeat).await;
    let result = match within(&*platform, prepared.deadline, (prepared.act)(context, events)).await {
        Ok(result) => result,
        Err(_) => {
            Err(Error::new(ErrorCode::OutcomeUnknown, "the call did not end within its deadline; it may have acted"))
        }
    };
    // 4. Settle, after the answer.
    let at = platform.now_millis();
    let settlement = Settlement {
        call_id: head.id.clone(),
        outcome: result.as_ref().err().map_or(Outcome::Succeeded, |error| Outcome::Failed(error.code)),
        exit_code: result.as_ref().ok().and_then(Measured::exit_code),
        duration_ms: at - started_at,
        at,
    };
    let Observed { generation, start_ms } = backend.observed();
    let line = CallLine {
        generation,
        exit_code: settlement.exit_code,
        act_ms: Some(at - admitted_at),
        start_ms,
        bytes_out: result.as_ref().ok().and_then(Measured::bytes),
        ..line
    };
    write(backend, head, line.ended(result.as_ref().err(), settlement.duration_ms));
    let background = platform.clone();
    let head = head.clone();
    platform.background(
        async move {
            if let Err(error) = tenant.settle(settlement).await {
                background.log(&json!({ "level": "error", "requestId": head.id, "message": "a call was not settled", "source": error.cause }));
            }
        }
        .boxed_local(),
    );
    (result, guardrails)
}

/// What the books keep of an answer.
trait Measured {
    fn exit_code(&self) -> Option<i32>;

    /// Bytes of the body, where that is known before it is sent.
    fn bytes(&self) -> Option<u64>;
}

impl Measured for Value {
    fn exit_code(&self) -> Option<i32> {
        self.get("exitCode").and_then(Value::as_i64).and_then(|code| i32::try_from(code).ok())
    }

    fn bytes(&self) -> Option<u64> {
        let mut counter = Counter(0);
        serde_json::to_writer(&mut counter, self).ok().map(|()| counter.0)
    }
}

impl Measured for RawResponse {
    fn exit_code(&self) -> Option<i32> {
        None
    }

    fn bytes(&self) -> Option<u64> {
        self.headers.iter().find(|(name, _)| name == "content-length").and_then(|(_, length)| length.parse().ok())
    }
}

/// Counts what is written and keeps nothing.
struct Counter(u64);

impl std::io::Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += u64::try_from(bytes.len()).unwrap_or(0);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Name of the tool that is called; of one that there is not, what was asked for, cut.
fn name(entry: Option<&&Entry>, asked: &str) -> String {
    entry.map_or_else(|| asked.chars().take(LONGEST_TOOL).collect(), |entry| entry.description().name.to_owned())
}

fn unknown_tool(name: &str) -> Error {
    let shown: String = name.chars().take(64).collect();
    Error::new(ErrorCode::UnknownTool, format!("there is no tool {shown:?}; GET /v1/tools lists them"))
}

/// Masks what the Worker itself holds and the key that the caller presented.
fn redactor(backend: &dyn Backend, head: &CallHead) -> Redactor {
    let presented = head.authorization.as_deref().and_then(credential::bearer).map(str::to_owned);
    Redactor::new(backend.secrets().into_iter().chain(presented))
}

fn mask(error: Error, redactor: &Redactor) -> Error {
    let details = match redactor.json(Value::Object(error.details)) {
        Value::Object(details) => details,
        _ => serde_json::Map::new(),
    };
    Error { message: redactor.text(&error.message), details, ..error }
}

fn cap(output: Value, guardrails: Option<Guardrails>) -> Result<Value> {
    let Some(limit) = guardrails.map(|guardrails| guardrails.output_cap_bytes) else {
        return Ok(output);
    };
    let bytes = output.bytes().ok_or_else(|| Error::internal("the answer cannot be written as JSON"))?;
    if bytes <= limit {
        return Ok(output);
    }
    Err(Error::new(
        ErrorCode::PayloadTooLarge,
        format!("the answer has {bytes} bytes, more than the {limit} of this tool"),
    )
    .detail("limitBytes", limit))
}

/// Logs and measures one call. Secrets are masked: a cause, or the name of a tool that there is not, may hold one.
fn write(backend: &dyn Backend, head: &CallHead, line: CallLine) {
    let redactor = redactor(backend, head);
    let masked = |text: Option<String>| text.map(|text| redactor.text(&text));
    let line = CallLine { tool: masked(line.tool), source: masked(line.source), ..line };
    backend.measure(&DataPoint::from(&line));
    backend.platform().log(&serde_json::to_value(&line).unwrap_or_default());
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
