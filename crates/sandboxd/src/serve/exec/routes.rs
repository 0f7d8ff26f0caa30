//! The routes of execs.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use hyper::StatusCode;
use sandbox_api::{
    ControlError, ControlErrorCode, EndedBy, ExecExit, ExecRequest, ExecStatus, ForbiddenExec, KillRequest,
};
use serde::Deserialize;
use utoipa::IntoParams;

use super::state::{Attachment, Cursors, Exec};
use super::stream;
use super::table::Table;
use crate::http::{Problem, json, read_json, read_json_or_default};
use crate::serve::events;
use crate::serve::tree::signal;

/// How long an answer to a kill may wait for the proof.
const KILL_CONFIRMATION: Duration = Duration::from_secs(20);

pub(in crate::serve) fn routes(table: Arc<Table>) -> Router {
    Router::new()
        .route("/v1/execs", post(start))
        .route("/v1/execs/{id}", get(attach))
        .route("/v1/execs/{id}/kill", post(kill))
        .route("/v1/execs/{id}/lease", post(lease))
        .route("/v1/execs/{id}/forbid", post(forbid))
        .with_state(table)
}

/// Runs a command, or re-attaches to it when the same request came before.
///
/// With `Accept: text/event-stream` the answer is a stream of `started`, `stdout`, `stderr`, `heartbeat` and one final
/// `exit` event; otherwise it comes once the command has ended.
#[utoipa::path(
    post,
    path = "/v1/execs",
    tag = "execs",
    operation_id = "startExec",
    request_body = ExecRequest,
    responses(
        (status = 200, description = "How it ended, or the stream of what happens", content(
            (ExecExit = "application/json"),
            (String = "text/event-stream")
        )),
        (status = 400, description = "A field is wrong", body = ControlError),
        (status = 413, description = "The body is larger than 16 MiB", body = ControlError),
        (status = 429, description = "Too many execs run at once", body = ControlError)
    )
)]
pub(in crate::serve) async fn start(
    State(table): State<Arc<Table>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let request: ExecRequest = read_json(body).await?;
    let exec = table.start(request)?;
    Ok(answer(exec, &headers, Cursors { stdout: 0, stderr: 0 }).await)
}

/// Query of `GET /v1/execs/{id}`.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::serve) struct AttachQuery {
    /// First byte of standard output to replay.
    #[serde(default)]
    stdout_offset: u64,
    /// First byte of standard error to replay.
    #[serde(default)]
    stderr_offset: u64,
    /// Whether a JSON answer waits for the end.
    #[serde(default = "yes")]
    wait: bool,
}

fn yes() -> bool {
    true
}

/// Re-attaches to an exec: the stream replays what is kept, then goes on live; JSON waits for the end.
#[utoipa::path(
    get,
    path = "/v1/execs/{id}",
    tag = "execs",
    operation_id = "attachExec",
    params(("id" = String, Path, description = "The exec's id"), AttachQuery),
    responses(
        (status = 200, description = "How it ended, its state (`wait=false`), or the stream of what happens", content(
            (ExecExit = "application/json"),
            (ExecStatus = "application/json; wait=false"),
            (String = "text/event-stream")
        )),
        (status = 404, description = "No such exec in this boot", body = ControlError)
    )
)]
pub(in crate::serve) async fn attach(
    State(table): State<Arc<Table>>,
    Path(id): Path<String>,
    query: Result<Query<AttachQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let Query(query) = query?;
    let exec = table.get(&id)?;
    if !query.wait && !events::wanted(&headers) {
        return Ok(json(StatusCode::OK, &exec.status()));
    }
    let cursors = Cursors { stdout: query.stdout_offset, stderr: query.stderr_offset };
    Ok(answer(exec, &headers, cursors).await)
}

/// One path for both forms: the buffered answer is a stream of which only the last event is told.
async fn answer(exec: Arc<Exec>, headers: &HeaderMap, cursors: Cursors) -> Response {
    if events::wanted(headers) {
        let cursors = if exec.request.stream_output { cursors } else { Cursors::NO_OUTPUT };
        return stream::respond(Attachment::new(exec, cursors), cursors);
    }
    let attachment = Attachment::new(exec, Cursors::NO_OUTPUT);
    let exit = attachment.exec.exited().await;
    json(StatusCode::OK, &*exit)
}

/// Ends an exec and its whole process tree, and answers once nothing of it is left.
#[utoipa::path(
    post,
    path = "/v1/execs/{id}/kill",
    tag = "execs",
    operation_id = "killExec",
    params(("id" = String, Path, description = "The exec's id")),
    request_body(content = Option<KillRequest>),
    responses(
        (status = 200, body = ExecExit),
        (status = 404, description = "No such exec in this boot", body = ControlError)
    )
)]
pub(in crate::serve) async fn kill(
    State(table): State<Arc<Table>>,
    Path(id): Path<String>,
    body: Body,
) -> Result<Response, Problem> {
    let request: KillRequest = read_json_or_default(body).await?;
    let signal = signal(request.signal.as_deref())?;
    let exec = table.get(&id)?;
    exec.ask_to_end(EndedBy::Kill, signal);
    // What it left in the background is part of the tree.
    if tokio::time::timeout(KILL_CONFIRMATION, exec.left_nothing()).await.is_err() {
        let message = "the process tree was sent SIGKILL and is not seen to be gone";
        return Err(Problem::new(ControlErrorCode::NoAnswer, message));
    }
    Ok(json(StatusCode::OK, &*exec.exited().await))
}

/// Renews the lease of an exec.
#[utoipa::path(
    post,
    path = "/v1/execs/{id}/lease",
    tag = "execs",
    operation_id = "renewExecLease",
    params(("id" = String, Path, description = "The exec's id")),
    responses(
        (status = 204, description = "Renewed"),
        (status = 404, description = "No such exec in this boot", body = ControlError)
    )
)]
pub(in crate::serve) async fn lease(
    State(table): State<Arc<Table>>,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    table.get(&id)?.renew_lease();
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Says whether an exec began, and sees to it that one that did not never will: whoever asked for it and lost the answer knows then.
#[utoipa::path(
    post,
    path = "/v1/execs/{id}/forbid",
    tag = "execs",
    operation_id = "forbidExec",
    params(("id" = String, Path, description = "The exec's id")),
    responses((status = 200, body = ForbiddenExec))
)]
pub(in crate::serve) async fn forbid(State(table): State<Arc<Table>>, Path(id): Path<String>) -> Response {
    json(StatusCode::OK, &ForbiddenExec { began: table.forbid(&id) })
}
