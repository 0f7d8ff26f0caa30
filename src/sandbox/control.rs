//! One request to the control API of a sandbox, passed on to its machine unread, and its answer back.
//!
//! The sandbox is started first where needed. Once the caller means one boot, only that boot is asked.

use std::rc::Rc;
use std::time::Duration;

use sandbox_api::{BOOT_ID_HEADER, ControlErrorCode, UPLOAD_ID_HEADER};
use wasm_bindgen::JsValue;
use worker::{Request, Response};

use super::actor::Inner;
use super::cause::trace_of;
use super::environment::begins_command;
use super::life::{METRICS_DEADLINE, after_stops, ensure_running, lost};
use super::sleep::{Use, note_use, renew_environment};
use super::state::State;
use super::transport::{Control, SendError, is_gone};
use crate::error::{Error, ErrorCode, Result};
use crate::workers::fetch;
use crate::workers::platform::random;

/// The boot that a request means.
pub const EXPECTED_BOOT_HEADER: &str = "x-expected-boot-id";
/// Milliseconds until the head of the answer, the start of the sandbox not counted.
pub const DEADLINE_HEADER: &str = "x-deadline-ms";
/// Generation that answered.
pub const GENERATION_HEADER: &str = "x-sandbox-generation";

/// Requests made for one control request: the second after a start that the first one showed to be needed.
const ATTEMPTS: u32 = 2;

/// Headers of a request that the sandbox is to see.
const PASSED_ON: [&str; 6] = ["accept", "range", "content-range", "if-match", "if-none-match", UPLOAD_ID_HEADER];

/// Passes one request on to the sandbox, and its answer back, unread.
pub async fn control(inner: &Rc<Inner>, request: &Request, path: &str) -> Result<Response> {
    let _use = Use::begin(inner);
    let method = request.method().to_string();
    let header = |name: &str| request.headers().get(name).ok().flatten();
    let expected = header(EXPECTED_BOOT_HEADER);
    let deadline =
        header(DEADLINE_HEADER).and_then(|text| text.parse().ok()).map_or(METRICS_DEADLINE, Duration::from_millis);
    let is_json = header("content-type").is_some_and(|kind| kind.starts_with("application/json"));
    // JSON is small and may have to be sent again; any other body is passed on as it comes, once.
    let json = if is_json { Some(body_text(request).await?) } else { None };
    let stream = if is_json { None } else { request.inner().body() };
    inner.forbidden.note(&method, path);
    for attempt in 1..=ATTEMPTS {
        after_stops(inner).await?;
        // A boot that is meant and known to be gone is not started again for the question.
        if let (Some(expected), Some(stored)) = (&expected, inner.load()?) {
            let record = stored.record;
            let may_run = matches!(record.state, State::Running | State::Starting);
            if !may_run || record.boot_id.as_ref() != Some(expected) {
                return Err(Error::new(ErrorCode::StaleGeneration, "the sandbox stopped or was replaced"));
            }
        }
        let record = ensure_running(inner).await?;
        note_use(inner, &record)?;
        if begins_command(&method, path) {
            renew_environment(inner, &record).await?;
        }
        let stored = inner.existing()?;
        let transport = inner.transport(&stored)?;
        let boot_id = record.boot_id.unwrap_or_default();
        if expected.as_ref().is_some_and(|expected| *expected != boot_id) {
            return Err(Error::new(ErrorCode::StaleGeneration, "the sandbox was replaced by a new start"));
        }
        // A body that cannot be sent twice goes only to a sandbox that was just seen to run.
        if stream.is_some() && transport.running().await?.is_none_or(|running| running.boot_id != boot_id) {
            lost(inner, &boot_id).await?;
            ensure_running(inner).await?;
            continue;
        }
        if inner.forbidden.holds(&method, path, json.as_deref()) {
            return Err(Error::new(
                ErrorCode::Interrupted,
                "the command was forbidden to begin before its request was sent",
            ));
        }
        let body = json.as_ref().map(JsValue::from).or_else(|| stream.clone().map(JsValue::from));
        let passed_on_headers = PASSED_ON.into_iter().filter_map(|name| header(name).map(|value| (name, value)));
        let span = trace_of(request).map(|trace| trace.child(random()).headers()).unwrap_or_default();
        let headers = passed_on_headers.chain(span).collect();
        let sent =
            transport.control(Control { method: &method, path, headers, body, boot_id: &boot_id, deadline }).await;
        match sent {
            Ok(response) => return passed_on(response, &boot_id, record.generation),
            Err(SendError::Refused(refusal, _)) if is_gone(refusal.code) => {
                lost(inner, &boot_id).await?;
                if expected.is_some() {
                    return Err(Error::new(ErrorCode::StaleGeneration, "the sandbox stopped or was replaced")
                        .because(refusal.message));
                }
                if attempt == ATTEMPTS {
                    return Err(transport.refused(refusal));
                }
            }
            Err(SendError::Refused(refusal, _)) if refusal.code == ControlErrorCode::NoAnswer => {
                return Err(no_answer(&method, &boot_id, &refusal.message));
            }
            Err(SendError::Refused(refusal, size)) => {
                let error = transport.refused(refusal);
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
    let thrown = |error| Error::internal(fetch::describe(&error));
    let headers = worker::Headers(web_sys::Headers::new_with_headers(&response.headers()).map_err(thrown)?);
    // Of a body that is passed on the runtime itself says how it is framed.
    for name in ["transfer-encoding", "connection", "date"] {
        headers.delete(name).map_err(Error::internal)?;
    }
    headers.set(BOOT_ID_HEADER, boot_id).map_err(Error::internal)?;
    headers.set(GENERATION_HEADER, &generation.to_string()).map_err(Error::internal)?;
    Ok(Response::from(response).with_headers(headers))
}
