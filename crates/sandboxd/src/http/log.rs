//! One line for each control request, at level debug: which route, for which trace, how it ended.
//!
//! Paths, queries, headers and bodies are not in it: they name files, commands and secrets.

use std::time::Instant;

use axum::extract::{MatchedPath, Request};
use axum::middleware::Next;
use axum::response::Response;
use hyper::HeaderMap;

/// Length of a `traceparent` of version 00.
const TRACEPARENT_LENGTH: usize = 55;

/// Runs the rest of the stack and says how that ended. The duration is that until the head of the answer.
pub(crate) async fn log(request: Request, next: Next) -> Response {
    if !tracing::enabled!(tracing::Level::DEBUG) {
        return next.run(request).await;
    }
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str).to_owned();
    let sandbox = if route.starts_with("/v1/sandboxes/{name}") { sandbox(request.uri().path()) } else { String::new() };
    let traceparent = traceparent(request.headers()).unwrap_or_default().to_owned();
    let began = Instant::now();
    let response = next.run(request).await;
    let milliseconds = began.elapsed().as_secs_f64() * 1000.0;
    tracing::debug!(%method, route, sandbox, status = response.status().as_u16(), milliseconds, traceparent, "request");
    response
}

/// The name in a path of the host; nothing when it is not spelled as a name.
fn sandbox(path: &str) -> String {
    let name = path.split('/').nth(3).unwrap_or_default();
    let letters = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte));
    if letters && name.len() <= 128 { name.to_owned() } else { String::new() }
}

/// The header, when it has the form of one: a line of the log is no place for anything else.
fn traceparent(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get("traceparent")?.to_str().ok()?;
    let digits = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f' | b'-');
    (value.len() == TRACEPARENT_LENGTH && value.bytes().all(digits)).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    #[test]
    fn only_the_form_of_a_traceparent_is_repeated() {
        let given = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert("traceparent", HeaderValue::from_static(value));
            traceparent(&headers).map(str::to_owned)
        };
        let whole = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        assert_eq!(given(whole).as_deref(), Some(whole));
        for other in ["", "secret", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0x"] {
            assert_eq!(given(other), None);
        }
        assert_eq!(sandbox("/v1/sandboxes/default.box/control/v1/execs"), "default.box");
        assert_eq!(sandbox("/v1/sandboxes/%0A/control"), "");
    }
}
