//! The routes of a host.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use hyper::{Method, StatusCode, Uri};
use sandbox_api::{ControlError, ControlErrorCode, HostHealth, HostSandbox, HostStart, HostStopped, ResourcesReleased};

use super::sandboxes::{Sandboxes, not_running};
use crate::http::{Problem, Token, discard, json, log, read_json};
use crate::serve::check_environment;

pub(super) fn router(sandboxes: Arc<Sandboxes>, token: Token) -> Router {
    Router::new()
        .route("/v1/health", get(health))
        .route("/v1/sandboxes/{name}", get(describe).put(start).delete(delete))
        .route("/v1/sandboxes/{name}/stop", post(stop))
        .route("/v1/sandboxes/{name}/control/{*rest}", any(control))
        .with_state(sandboxes)
        .fallback(|| async { Problem::new(ControlErrorCode::NotFound, "path: no such route") })
        .method_not_allowed_fallback(|| async {
            let problem = Problem::invalid("method: this route does not take it").into_response();
            (StatusCode::METHOD_NOT_ALLOWED, problem).into_response()
        })
        .layer(middleware::from_fn_with_state(token, guard))
        .layer(middleware::from_fn(log))
        .layer(middleware::from_fn(discard))
}

async fn guard(State(token): State<Token>, request: Request, next: Next) -> Response {
    match token.check(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

/// The name and what follows it, from the raw target: what is not spelled as a name is none.
fn split(uri: &Uri) -> Result<(&str, &str), Problem> {
    let rest = uri.path().strip_prefix("/v1/sandboxes/").unwrap_or_default();
    let end = rest.find('/').unwrap_or(rest.len());
    let (name, rest) = rest.split_at(end);
    let letters = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte));
    let begins_well = name.starts_with(|first: char| first.is_ascii_alphanumeric());
    if letters && begins_well && name.len() <= 128 {
        Ok((name, rest))
    } else {
        Err(Problem::invalid("name: 1 to 128 of a-z 0-9 - . and a letter or digit first"))
    }
}

/// The routes of a host, as a document.
#[derive(utoipa::OpenApi)]
#[openapi(paths(health, describe, start, stop, delete))]
pub(crate) struct Document;

/// What this host is.
#[utoipa::path(get, path = "/v1/health", tag = "host", operation_id = "hostHealth", responses((status = 200, body = HostHealth)))]
async fn health(State(sandboxes): State<Arc<Sandboxes>>) -> Response {
    json(StatusCode::OK, &sandboxes.health())
}

/// Tells of a running sandbox.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{name}",
    tag = "host",
    operation_id = "getSandbox",
    params(("name" = String, Path, description = "1 to 128 of `a-z 0-9 - .`, a letter or digit first")),
    responses((status = 200, body = HostSandbox), (status = 404, description = "Not running", body = ControlError))
)]
async fn describe(State(sandboxes): State<Arc<Sandboxes>>, uri: Uri) -> Result<Response, Problem> {
    let (name, _) = split(&uri)?;
    Ok(json(StatusCode::OK, &sandboxes.describe(name)?))
}

/// Starts a sandbox, or finds it running.
#[utoipa::path(
    put,
    path = "/v1/sandboxes/{name}",
    tag = "host",
    operation_id = "startSandbox",
    params(("name" = String, Path, description = "1 to 128 of `a-z 0-9 - .`, a letter or digit first")),
    request_body = HostStart,
    responses(
        (status = 200, body = HostSandbox),
        (status = 400, description = "A field is wrong", body = ControlError),
        (status = 503, description = "It could not be started", body = ControlError)
    )
)]
async fn start(State(sandboxes): State<Arc<Sandboxes>>, uri: Uri, body: Body) -> Result<Response, Problem> {
    let (name, _) = split(&uri)?;
    let request: HostStart = read_json(body).await?;
    check_environment(&request.env).map_err(Problem::invalid)?;
    if request.sandbox_id.is_empty() || request.sandbox_id.contains('\0') {
        return Err(Problem::invalid("sandboxId: is empty or has a NUL byte"));
    }
    Ok(json(StatusCode::OK, &sandboxes.start(name, &request).await?))
}

/// Ends a sandbox and keeps its files; a name that does not run is no fault.
#[utoipa::path(
    post,
    path = "/v1/sandboxes/{name}/stop",
    tag = "host",
    operation_id = "stopSandbox",
    params(("name" = String, Path, description = "1 to 128 of `a-z 0-9 - .`, a letter or digit first")),
    responses(
        (status = 200, body = HostStopped),
        (status = 503, description = "Its processes are not seen to be gone", body = ControlError)
    )
)]
async fn stop(State(sandboxes): State<Arc<Sandboxes>>, uri: Uri) -> Result<Response, Problem> {
    let (name, _) = split(&uri)?;
    Ok(json(StatusCode::OK, &sandboxes.stop(name).await?))
}

/// Ends a sandbox and removes its files; a name that is not there is no fault.
#[utoipa::path(
    delete,
    path = "/v1/sandboxes/{name}",
    tag = "host",
    operation_id = "deleteSandbox",
    params(("name" = String, Path, description = "1 to 128 of `a-z 0-9 - .`, a letter or digit first")),
    responses((status = 200, body = ResourcesReleased))
)]
async fn delete(State(sandboxes): State<Arc<Sandboxes>>, uri: Uri) -> Result<Response, Problem> {
    let (name, _) = split(&uri)?;
    Ok(json(StatusCode::OK, &sandboxes.delete(name).await?))
}

async fn control(State(sandboxes): State<Arc<Sandboxes>>, request: Request) -> Result<Response, Problem> {
    let uri = request.uri().clone();
    let (name, rest) = split(&uri)?;
    let path = rest.strip_prefix("/control").unwrap_or(rest);
    let target = match uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    };
    let running = sandboxes.get(name)?;
    let method: Method = request.method().clone();
    running.proxy.pass(request, &target).await.map_err(|error| {
        if error.is_connect() {
            // Its end is on the way to being noticed; the request was not sent.
            return not_running();
        }
        tracing::info!(name, %method, %error, "a sandbox stopped answering");
        Problem::new(ControlErrorCode::NoAnswer, "the sandbox stopped answering before its answer began")
    })
}
