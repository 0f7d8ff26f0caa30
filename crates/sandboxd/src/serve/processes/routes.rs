//! The routes of background processes.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::{get, post};
use hyper::StatusCode;
use sandbox_api::{
    ControlError, ControlErrorCode, InputTaken, ProcessInfo, ProcessInput, ProcessKill, ProcessList, ProcessLogs,
    ProcessRequest, ProcessWaited,
};
use serde::Deserialize;
use utoipa::IntoParams;

use super::matcher::Needle;
use super::table::Table;
use super::wait::{Condition, wait as wait_for};
use super::{input, stream};
use crate::http::{Problem, json, read_json, read_json_or_default};
use crate::serve::events;
use crate::serve::tree::signal;

/// How long an answer to a kill may wait for the proof, beyond the grace.
const KILL_CONFIRMATION: Duration = Duration::from_secs(15);
/// Time between the first signal and SIGKILL when the request does not say.
const GRACE_DEFAULT_MS: u64 = 5000;
/// At most.
const GRACE_LIMIT_MS: u64 = 60_000;
/// Longest wait: 24 hours.
const WAIT_LIMIT_MS: u64 = 24 * 60 * 60 * 1000;
/// Bytes of a log in one answer when the request does not say.
const LOGS_DEFAULT_BYTES: usize = 256 << 10;
/// At most.
const LOGS_LIMIT_BYTES: usize = 1 << 20;

pub(in crate::serve) fn routes(table: Arc<Table>) -> Router {
    Router::new()
        .route("/v1/processes", post(start).get(list))
        .route("/v1/processes/{id}", get(tell))
        .route("/v1/processes/{id}/kill", post(kill))
        .route("/v1/processes/{id}/input", post(write))
        .route("/v1/processes/{id}/logs", get(logs))
        .route("/v1/processes/{id}/wait", get(wait))
        .with_state(table)
}

/// Starts a background process, or finds it when the same request came before.
///
/// A program that cannot be started is an answer too: a process whose status is `error`.
#[utoipa::path(
    post,
    path = "/v1/processes",
    tag = "processes",
    operation_id = "startProcess",
    request_body = ProcessRequest,
    responses(
        (status = 200, body = ProcessInfo),
        (status = 400, description = "A field is wrong", body = ControlError),
        (status = 429, description = "Too many processes run at once", body = ControlError)
    )
)]
pub(in crate::serve) async fn start(State(table): State<Arc<Table>>, body: Body) -> Result<Response, Problem> {
    let request: ProcessRequest = read_json(body).await?;
    let settle = Duration::from_millis(request.settle_ms.unwrap_or(0));
    let process = table.start(request)?;
    // The answer tells of the process as it is, whether it settled or not.
    let _ = tokio::time::timeout(settle, process.until(|state| state.phase != super::process::Phase::Running)).await;
    Ok(json(StatusCode::OK, &process.info()))
}

/// All processes: those that run, and those that ended a while ago.
#[utoipa::path(
    get,
    path = "/v1/processes",
    tag = "processes",
    operation_id = "listProcesses",
    responses((status = 200, body = ProcessList))
)]
pub(in crate::serve) async fn list(State(table): State<Arc<Table>>) -> Response {
    let processes = table.all().iter().map(|process| process.info()).collect();
    json(StatusCode::OK, &ProcessList { processes })
}

/// One process.
#[utoipa::path(
    get,
    path = "/v1/processes/{id}",
    tag = "processes",
    operation_id = "getProcess",
    params(("id" = String, Path, description = "The process's id")),
    responses(
        (status = 200, body = ProcessInfo),
        (status = 404, description = "No such process in this boot", body = ControlError)
    )
)]
pub(in crate::serve) async fn tell(
    State(table): State<Arc<Table>>,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    Ok(json(StatusCode::OK, &table.get(&id)?.info()))
}

/// Ends a process and its whole tree for good, and answers once nothing of it is left.
#[utoipa::path(
    post,
    path = "/v1/processes/{id}/kill",
    tag = "processes",
    operation_id = "killProcess",
    params(("id" = String, Path, description = "The process's id")),
    request_body(content = Option<ProcessKill>),
    responses(
        (status = 200, body = ProcessInfo),
        (status = 404, description = "No such process in this boot", body = ControlError)
    )
)]
pub(in crate::serve) async fn kill(
    State(table): State<Arc<Table>>,
    Path(id): Path<String>,
    body: Body,
) -> Result<Response, Problem> {
    let request: ProcessKill = read_json_or_default(body).await?;
    let signal = signal(request.signal.as_deref())?;
    let grace = request.grace_ms.unwrap_or(GRACE_DEFAULT_MS);
    if grace > GRACE_LIMIT_MS {
        return Err(Problem::invalid(format!("graceMs: at most {GRACE_LIMIT_MS}")));
    }
    let grace = Duration::from_millis(grace);
    let process = table.get(&id)?;
    process.kill(signal, grace);
    if tokio::time::timeout(grace + KILL_CONFIRMATION, process.until(|state| state.is_over())).await.is_err() {
        let message = "the process tree was sent SIGKILL and is not seen to be gone";
        return Err(Problem::new(ControlErrorCode::NoAnswer, message));
    }
    Ok(json(StatusCode::OK, &process.info()))
}

/// Writes to standard input of a process that keeps it open.
///
/// Taken means that the bytes will be written as the process reads them, in the order in which they came.
#[utoipa::path(
    post,
    path = "/v1/processes/{id}/input",
    tag = "processes",
    operation_id = "writeProcessInput",
    params(("id" = String, Path, description = "The process's id")),
    request_body = ProcessInput,
    responses(
        (status = 200, body = InputTaken),
        (status = 400, description = "A field is wrong", body = ControlError),
        (status = 404, description = "No such process in this boot", body = ControlError),
        (status = 409, description = "It has ended, or its input is closed", body = ControlError),
        (status = 503, description = "It has yet to read what came before; nothing was taken", body = ControlError)
    )
)]
pub(in crate::serve) async fn write(
    State(table): State<Arc<Table>>,
    Path(id): Path<String>,
    body: Body,
) -> Result<Response, Problem> {
    let request: ProcessInput = read_json(body).await?;
    Ok(json(StatusCode::OK, &input::write(&*table.get(&id)?, request)?))
}

/// Query of `GET /v1/processes/{id}/logs`.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::serve) struct LogsQuery {
    /// First byte to tell; what is no longer kept is left out, and the answer says so.
    #[serde(default)]
    offset: u64,
    /// Most bytes of a JSON answer; default 262144, at most 1048576.
    limit_bytes: Option<usize>,
}

/// What a process wrote. With `Accept: text/event-stream` it is followed: `stdout`, `stderr` and `heartbeat` events, and one
/// final `end` once nothing of the process is left.
#[utoipa::path(
    get,
    path = "/v1/processes/{id}/logs",
    tag = "processes",
    operation_id = "getProcessLogs",
    params(("id" = String, Path, description = "The process's id"), LogsQuery),
    responses(
        (status = 200, description = "What there is, or the stream of what comes", content(
            (ProcessLogs = "application/json"),
            (String = "text/event-stream")
        )),
        (status = 400, description = "A parameter is wrong", body = ControlError),
        (status = 404, description = "No such process in this boot", body = ControlError)
    )
)]
pub(in crate::serve) async fn logs(
    State(table): State<Arc<Table>>,
    Path(id): Path<String>,
    query: Result<Query<LogsQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let Query(query) = query?;
    let limit = query.limit_bytes.unwrap_or(LOGS_DEFAULT_BYTES);
    if !(1..=LOGS_LIMIT_BYTES).contains(&limit) {
        return Err(Problem::invalid(format!("limitBytes: 1 to {LOGS_LIMIT_BYTES}")));
    }
    let process = table.get(&id)?;
    if events::wanted(&headers) {
        return Ok(events::respond(stream::follow(process, query.offset)));
    }
    let state = process.state();
    let logs = state.log.read(query.offset, limit, state.is_over());
    drop(state);
    Ok(json(StatusCode::OK, &logs))
}

/// Query of `GET /v1/processes/{id}/wait`. Of `port`, `text` and `pattern` at most one is given; without any, the wait is for
/// the end.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::serve) struct WaitQuery {
    /// Until something listens on this TCP port of the sandbox's network.
    port: Option<u16>,
    /// Until a line of its output holds this text.
    text: Option<String>,
    /// Until a line of its output matches this regular expression.
    pattern: Option<String>,
    /// Offset of the first output to look at for a line; default all that is kept.
    #[serde(default)]
    from_offset: u64,
    /// Milliseconds until the wait is given up.
    timeout_ms: u64,
}

/// Waits for a process: until it ends for good, or something listens on a port, or it wrote a line.
///
/// A deadline that passes and a process that ends first are answers. With `Accept: text/event-stream` heartbeats come until
/// the one final `waited` event.
#[utoipa::path(
    get,
    path = "/v1/processes/{id}/wait",
    tag = "processes",
    operation_id = "waitForProcess",
    params(("id" = String, Path, description = "The process's id"), WaitQuery),
    responses(
        (status = 200, description = "How the wait came to its end", content(
            (ProcessWaited = "application/json"),
            (String = "text/event-stream")
        )),
        (status = 400, description = "A parameter is wrong", body = ControlError),
        (status = 404, description = "No such process in this boot", body = ControlError)
    )
)]
pub(in crate::serve) async fn wait(
    State(table): State<Arc<Table>>,
    Path(id): Path<String>,
    query: Result<Query<WaitQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let Query(query) = query?;
    if query.timeout_ms > WAIT_LIMIT_MS {
        return Err(Problem::invalid(format!("timeoutMs: at most {WAIT_LIMIT_MS} (24 hours)")));
    }
    let line = |needle| Condition::Line { needle, from: query.from_offset };
    let condition = match (query.port, query.text, query.pattern) {
        (None, None, None) => Condition::Exit,
        (Some(0), None, None) => return Err(Problem::invalid("port: 1 to 65535")),
        (Some(port), None, None) => Condition::Port(port),
        (None, Some(text), None) => line(Needle::text(text)?),
        (None, None, Some(pattern)) => line(Needle::pattern(&pattern)?),
        _ => return Err(Problem::invalid("port: give at most one of port, text and pattern")),
    };
    let deadline = Duration::from_millis(query.timeout_ms);
    let process = table.get(&id)?;
    if events::wanted(&headers) {
        return Ok(events::respond(stream::waiting(process, condition, deadline)));
    }
    Ok(json(StatusCode::OK, &wait_for(&process, condition, deadline).await))
}
