//! Answers that are streams of server-sent events.

use std::convert::Infallible;

use axum::body::Body;
use axum::http::HeaderMap;
use axum::response::Response;
use bytes::Bytes;
use futures_util::Stream;
use hyper::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use sandbox_api::event;
use serde::Serialize;

/// Whether the caller asks for a stream.
pub(super) fn wanted(headers: &HeaderMap) -> bool {
    headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|range| range.split(';').next())
        .any(|media| media.trim().eq_ignore_ascii_case("text/event-stream"))
}

/// Answers with a stream. It is dropped when the reader leaves.
pub(super) fn respond(events: impl Stream<Item = Result<Bytes, Infallible>> + Send + 'static) -> Response {
    let mut response = Response::new(Body::from_stream(events));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// One event.
pub(super) fn encode<T: Serialize>(name: &str, data: &T) -> Option<Bytes> {
    let mut bytes = format!("event: {name}\ndata: ").into_bytes();
    // JSON has no line breaks of its own, so one data line always holds it.
    if let Err(cause) = serde_json::to_writer(&mut bytes, data) {
        tracing::error!(%cause, "an event could not be written as JSON");
        return None;
    }
    bytes.extend_from_slice(b"\n\n");
    Some(bytes.into())
}

/// The event that says that nothing happens.
pub(super) fn heartbeat() -> Option<Bytes> {
    encode(event::HEARTBEAT, &serde_json::json!({}))
}
