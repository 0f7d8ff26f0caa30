//! A job that is followed to its end: what it writes, and what became of it.
//!
//! It is made of calls of getJobLogs and getJob, with their rights and in the books. Its events are numbered by how far the job's log
//! is told, so that who comes back with the last number on a new connection misses nothing and hears nothing twice.

use std::cell::Cell;
use std::rc::Rc;

use serde_json::{Value, json};
use worker::WebSocket;

use super::actor::{Attached, Inner};
use super::invocation::{Call, make};
use super::message::{Answer, Failure, Outcome, Subscribe};
use super::sink::{Numbering, Open, Sink};
use crate::call::{Answered, Reply};
use crate::error::{Error, Result};
use crate::events::NoEvents;
use crate::workers::platform::uuid;

/// Seconds of one call that follows the log.
const FOLLOWED: u32 = 3600;

/// Follows the job and tells its end.
pub(super) async fn subscribe(inner: &Rc<Inner>, socket: &WebSocket, attached: &Attached, asked: Subscribe) {
    let Subscribe { id, job_id, from_seq } = asked;
    let id = id.unwrap_or_else(|| job_id.clone());
    let open = Open::new(uuid(), attached.tenant.clone(), from_seq.unwrap_or(0));
    if !inner.begin(socket, &id, &open) {
        return;
    }
    let sink = Sink {
        inner: inner.clone(),
        socket: socket.clone(),
        id: id.clone(),
        open: open.clone(),
        numbering: Numbering::ByOffset,
        ends: Cell::default(),
    };
    let request_id = open.call_id.clone();
    let answer = match follow(inner, attached, &job_id, &open, Rc::new(sink)).await {
        Ok(result) => Answer::Outcome(Outcome { id: id.clone(), result, deferred: false, replayed: false, request_id }),
        Err(error) => Answer::Failure(Failure { id: Some(id.clone()), error: error.problem(&request_id) }),
    };
    inner.end_with(socket, &id, &answer).await;
}

async fn follow(
    inner: &Rc<Inner>,
    attached: &Attached,
    job_id: &str,
    open: &Rc<Open>,
    sink: Rc<Sink>,
) -> Result<Value> {
    let mut call_id = open.call_id.clone();
    let mut truncated_before = None;
    loop {
        let arguments = json!({ "jobId": job_id, "offset": open.seq.get(), "follow": true, "timeout": FOLLOWED });
        let call = Call {
            id: call_id,
            tool: "getJobLogs".to_owned(),
            arguments,
            patience: None,
            idempotency_key: None,
            webhook_url: None,
        };
        let log = output(make(inner, attached, call, sink.clone()).await)?;
        truncated_before = truncated_before.or(log.get("truncatedBefore").cloned());
        open.seq.set(log.get("nextOffset").and_then(Value::as_u64).unwrap_or(open.seq.get()));
        if log.get("ended") == Some(&Value::Bool(true)) {
            break;
        }
        call_id = uuid();
    }
    let arguments = json!({ "jobId": job_id });
    let call = Call {
        id: uuid(),
        tool: "getJob".to_owned(),
        arguments,
        patience: None,
        idempotency_key: None,
        webhook_url: None,
    };
    let job = output(make(inner, attached, call, Rc::new(NoEvents)).await)?;
    let mut result = json!({ "job": job, "seq": open.seq.get() });
    if let (Some(before), Some(fields)) = (truncated_before, result.as_object_mut()) {
        fields.insert("truncatedBefore".to_owned(), before);
    }
    Ok(result)
}

fn output(answered: Answered<Reply<Value>>) -> Result<Value> {
    match answered.result? {
        Reply::Output(output) => Ok(output),
        Reply::Job(_) => Err(Error::internal("a question about a job became a job")),
    }
}
