//! Whether anybody uses this sandbox: what the Worker asks before it puts it to sleep.
//!
//! A request counts from its first byte to the last byte of its answer, so that a download or a followed log keeps the
//! sandbox awake however long it lasts. Asking how the sandbox is does not count.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use axum::routing::{get, put};
use http_body::{Frame, SizeHint};
use hyper::StatusCode;
use sandbox_api::{Activity, Environment};
use tokio::time::Instant;

use super::Settings;
use super::exec::Table;
use crate::http::{Problem, json, read_json};

/// Routes that ask how the sandbox is.
const QUESTIONS: [&str; 3] = ["/v1/health", "/v1/metrics", "/v1/activity"];

/// Counts requests.
pub(super) struct Meter {
    requests: AtomicU64,
    last: Mutex<Instant>,
}

impl Meter {
    pub(super) fn new() -> Self {
        Self { requests: AtomicU64::new(0), last: Mutex::new(Instant::now()) }
    }

    fn last(&self) -> Instant {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One request that is under way.
struct Counted(Arc<Meter>);

impl Counted {
    fn begin(meter: Arc<Meter>) -> Self {
        meter.requests.fetch_add(1, Ordering::Relaxed);
        Self(meter)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        *self.0.last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        self.0.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A body whose request is under way until it is dropped.
struct CountedBody {
    body: Body,
    _counted: Counted,
}

impl http_body::Body for CountedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Counts every request that is no question.
pub(super) async fn count(State(meter): State<Arc<Meter>>, request: Request, next: Next) -> Response {
    if QUESTIONS.contains(&request.uri().path()) {
        return next.run(request).await;
    }
    let counted = Counted::begin(meter);
    next.run(request).await.map(|body| Body::new(CountedBody { body, _counted: counted }))
}

struct Life {
    settings: Arc<Settings>,
    meter: Arc<Meter>,
    table: Arc<Table>,
}

pub(super) fn routes(settings: Arc<Settings>, meter: Arc<Meter>, table: Arc<Table>) -> Router {
    Router::new()
        .route("/v1/activity", get(activity))
        .route("/v1/environment", put(environment))
        .with_state(Arc::new(Life { settings, meter, table }))
}

/// Whether this sandbox is in use, and since when it is not.
#[utoipa::path(get, path = "/v1/activity", tag = "sandbox", operation_id = "activity", responses((status = 200, body = Activity)))]
async fn activity(State(life): State<Arc<Life>>) -> Response {
    let (execs, ended) = life.table.activity();
    let requests = life.meter.requests.load(Ordering::Relaxed);
    let last = ended.map_or(life.meter.last(), |ended| ended.max(life.meter.last()));
    let idle = if execs == 0 && requests == 0 { last.elapsed().as_millis() } else { 0 };
    let idle_ms = u64::try_from(idle).unwrap_or(u64::MAX);
    json(StatusCode::OK, &Activity { execs: execs as u64, requests, idle_ms })
}

/// Replaces the environment that the sandbox was started with, for every command that begins from now on.
#[utoipa::path(
    put,
    path = "/v1/environment",
    tag = "sandbox",
    operation_id = "setEnvironment",
    request_body = Environment,
    responses(
        (status = 200, description = "It is in force", body = Environment),
        (status = 400, description = "A variable is impossible", body = sandbox_api::ControlError)
    )
)]
async fn environment(State(life): State<Arc<Life>>, body: Body) -> Result<Response, Problem> {
    let environment: Environment = read_json(body).await?;
    life.settings.set_environment(&environment.env).map_err(Problem::invalid)?;
    Ok(json(StatusCode::OK, &environment))
}
