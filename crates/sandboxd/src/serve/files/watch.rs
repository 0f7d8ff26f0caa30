//! `GET /v1/watches/{path}`: what happens to entries, as a stream of server-sent events.
//!
//! ```text
//! ready ─▶ change, change, … heartbeat … ─▶ end (timeout | overflow | tooManyDirectories | gone | fault)
//! ```
//!
//! The kernel's inotify tells of each directory by itself: a recursive watch has one for each directory below, those that
//! appear later included. What one of these hears before it is watched is found by looking. Nothing is lost silently: when the
//! kernel's queue runs over, or there are more directories than one watch takes, `end` says so and is the last event.

mod found;
mod kernel;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::Uri;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use sandbox_api::{
    ControlError, ControlErrorCode, FileChange, HEARTBEAT_SECONDS, WatchEnd, WatchEnded, event, watch_event,
};
use serde::Deserialize;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;
use utoipa::IntoParams;

use super::names::target;
use super::{QueryRejection, Workspace};
use crate::http::Problem;
use crate::serve::events::encode as encode_event;
use kernel::{Batch, Watcher};

/// How long the second half of a rename is waited for.
const RENAME_PATIENCE: Duration = Duration::from_millis(50);

/// Longest watch that ends by itself.
const LONGEST_MS: u64 = 24 * 60 * 60 * 1000;

/// Query of a watch.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::serve) struct WatchQuery {
    /// Whether what is in directories below is told too. Links are not followed.
    #[serde(default)]
    recursive: bool,
    /// Milliseconds after which the watch ends; without it, it lasts as long as its reader.
    #[serde(default)]
    timeout_ms: Option<u64>,
}

/// Watches a directory, or one file: `ready`, then `change` as it happens, and `heartbeat` when nothing does.
///
/// A file that is written whole over this API is told as `created`, also where it replaces another.
#[utoipa::path(
    get,
    path = "/v1/watches/{path}",
    tag = "files",
    operation_id = "watch",
    params(("path" = String, Path, description = "As for files; empty for the workspace"), WatchQuery),
    responses(
        (status = 200, description = "The stream", content(
            (FileChange = "text/event-stream; event=change"),
            (WatchEnded = "text/event-stream; event=end")
        )),
        (status = 403, description = "The path leads out of the workspace", body = ControlError),
        (status = 404, description = "No such entry", body = ControlError),
        (status = 413, description = "More directories than one watch takes", body = ControlError),
        (status = 503, description = "Too many watches", body = ControlError)
    )
)]
pub(in crate::serve) async fn get(
    State(workspace): State<Arc<Workspace>>,
    uri: Uri,
    query: Result<Query<WatchQuery>, QueryRejection>,
) -> Result<Response, Problem> {
    let Query(query) = query?;
    let path = target(&uri, "/v1/watches/", &workspace)?;
    let place = workspace.watches.clone().try_acquire_owned().map_err(|_| {
        Problem::new(ControlErrorCode::Unavailable, "too many watches at once in this sandbox; end one of them")
    })?;
    let watcher = workspace
        .run_long(move |workspace, cancelled| Watcher::begin(workspace, &path, query.recursive, cancelled))
        .await?;
    let reader = Reader {
        workspace,
        watcher: Some(watcher),
        ready: encode_event(watch_event::READY, &Empty {}),
        ends: query.timeout_ms.map(|millis| Instant::now() + Duration::from_millis(millis.min(LONGEST_MS))),
        _place: place,
    };
    let events = stream::unfold(reader, |mut reader| async move {
        let bytes = reader.next().await?;
        Some((Ok::<_, Infallible>(bytes), reader))
    });
    let mut response = Response::new(Body::from_stream(events));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

#[derive(serde::Serialize)]
struct Empty {}

/// Hands on what the watcher hears. Only as fast as its caller reads: what piles up meanwhile is the kernel's queue, which is
/// bounded.
struct Reader {
    workspace: Arc<Workspace>,
    /// `None` once the end was told.
    watcher: Option<Watcher>,
    ready: Option<Bytes>,
    ends: Option<Instant>,
    _place: OwnedSemaphorePermit,
}

impl Reader {
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(bytes) = self.ready.take() {
            return Some(bytes);
        }
        let silence = Instant::now() + Duration::from_secs(HEARTBEAT_SECONDS);
        loop {
            let watcher = self.watcher.take()?;
            let pending = watcher.has_pending();
            let until = if pending { Instant::now() + RENAME_PATIENCE } else { silence };
            let until = self.ends.map_or(until, |ends| until.min(ends));
            let heard = match tokio::time::timeout_at(until, watcher.readable()).await {
                Ok(Ok(())) => true,
                Ok(Err(cause)) => {
                    tracing::warn!(%cause, "a watch broke");
                    return ended(WatchEnd::Fault);
                }
                Err(_) => false,
            };
            if !heard && self.ends.is_some_and(|ends| Instant::now() >= ends) {
                return ended(WatchEnd::Timeout);
            }
            if !heard && !pending {
                self.watcher = Some(watcher);
                return encode_event(event::HEARTBEAT, &Empty {});
            }
            let read = self.workspace.run(move |workspace| Ok(watcher.read(workspace, !heard))).await;
            let Ok(Batch { watcher, changes, end }) = read else { return ended(WatchEnd::Fault) };
            let mut bytes = Vec::new();
            for change in changes {
                bytes.extend_from_slice(&encode_event(watch_event::CHANGE, &change)?);
            }
            match end {
                Some(reason) => bytes.extend_from_slice(&ended(reason)?),
                None => self.watcher = Some(watcher),
            }
            if !bytes.is_empty() {
                return Some(bytes.into());
            }
            // Only what is not told happened: silence goes on.
            if Instant::now() >= silence {
                return encode_event(event::HEARTBEAT, &Empty {});
            }
        }
    }
}

fn ended(reason: WatchEnd) -> Option<Bytes> {
    encode_event(watch_event::END, &WatchEnded { reason })
}
