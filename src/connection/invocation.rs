//! One call that came through a connection.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use serde_json::Value;
use worker::WebSocket;

use super::DOOR;
use super::actor::{Attached, Inner};
use super::message::{Answer, Failure, Invoke, Outcome, by_field};
use super::sink::{Numbering, Open, Sink};
use crate::api::rest;
use crate::call::{Answered, CallHead, Reply, ToolCall};
use crate::error::{Error, Result};
use crate::events::EventSink;
use crate::trace::Trace;
use crate::workers::backend::WorkersBackend;
use crate::workers::platform::{random, uuid};

/// Makes the call and tells its end.
pub(super) async fn invoke(inner: &Rc<Inner>, socket: &WebSocket, attached: &Attached, asked: Invoke) {
    let Invoke { id, tool, params, r#async, idempotency_key, webhook_url } = asked;
    let open = Open::new(uuid(), attached.tenant.clone(), 0);
    if !inner.begin(socket, &id, &open) {
        return;
    }
    let sink = Sink {
        inner: inner.clone(),
        socket: socket.clone(),
        id: id.clone(),
        open: open.clone(),
        numbering: Numbering::Counted,
        ends: Cell::default(),
    };
    let call = Call {
        id: open.call_id.clone(),
        tool,
        arguments: Value::Object(params.unwrap_or_default()),
        patience: (r#async == Some(true)).then_some(Duration::ZERO),
        idempotency_key,
        webhook_url,
    };
    let Answered { result, is_replayed, .. } = make(inner, attached, call, Rc::new(sink)).await;
    let request_id = open.call_id.clone();
    let answer = match result.map_err(by_field).and_then(told) {
        Ok((result, deferred)) => {
            Answer::Outcome(Outcome { id: id.clone(), result, deferred, replayed: is_replayed, request_id })
        }
        Err(error) => Answer::Failure(Failure { id: Some(id.clone()), error: error.problem(&request_id) }),
    };
    inner.end_with(socket, &id, &answer).await;
}

/// A call on its way.
pub(super) struct Call {
    pub(super) id: String,
    pub(super) tool: String,
    pub(super) arguments: Value,
    /// Nothing where events are told until its end.
    pub(super) patience: Option<Duration>,
    pub(super) idempotency_key: Option<String>,
    pub(super) webhook_url: Option<String>,
}

pub(super) async fn make(
    inner: &Rc<Inner>,
    attached: &Attached,
    call: Call,
    events: Rc<dyn EventSink>,
) -> Answered<Reply<Value>> {
    let shared = match rest::shared() {
        Ok(shared) => shared,
        Err(error) => return Answered { result: Err(error), standing: None, is_replayed: false, has_begun: false },
    };
    let Call { id, tool, arguments, patience, idempotency_key, webhook_url } = call;
    let trace = Trace::of_request(None, None, random);
    let backend = WorkersBackend::of_object(inner.env.clone(), inner.state.clone(), trace.clone());
    let head =
        CallHead { idempotency_key, patience, webhook_url, ..CallHead::plain(id, DOOR, attached.presented(), trace) };
    shared.registry.call(&backend, ToolCall { head, tool, arguments: Ok(arguments) }, events).await
}

/// The answer, and whether it is a job.
fn told(reply: Reply<Value>) -> Result<(Value, bool)> {
    match reply {
        Reply::Output(output) => Ok((output, false)),
        Reply::Job(job) => serde_json::to_value(&*job).map(|job| (job, true)).map_err(Error::internal),
    }
}
