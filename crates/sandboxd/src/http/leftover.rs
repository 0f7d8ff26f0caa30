//! What a refusal leaves unread of a request.
//!
//! Closing a connection with unread bytes resets it, and a sender that is still writing may then never see the answer.
//! So the rest of the body is read and thrown away first, within bounds.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::header::EXPECT;

/// Bytes that are thrown away at most.
const DISCARD_LIMIT_BYTES: usize = 64 << 20;
/// Time that this may take.
const DISCARD_PATIENCE: Duration = Duration::from_secs(10);

/// Runs the rest of the stack, then reads what it left of the body. A sender that asked whether it may send has not sent.
pub(crate) async fn discard(request: Request, next: Next) -> Response {
    if request.body().is_end_stream() || request.headers().contains_key(EXPECT) {
        return next.run(request).await;
    }
    let leftover = Arc::new(Mutex::new(None));
    let response = next.run(request.map(|body| Body::new(Lent { body: Some(body), home: leftover.clone() }))).await;
    let rest = leftover.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(mut body) = rest {
        let drain = async {
            let mut seen = 0;
            while let Some(Ok(frame)) = body.frame().await {
                seen += frame.data_ref().map_or(0, Bytes::len);
                if seen > DISCARD_LIMIT_BYTES {
                    break;
                }
            }
        };
        // Past the bound the connection is closed as it is.
        let _ = tokio::time::timeout(DISCARD_PATIENCE, drain).await;
    }
    response
}

/// A body that comes home when it is dropped before its end.
struct Lent {
    body: Option<Body>,
    home: Arc<Mutex<Option<Body>>>,
}

impl http_body::Body for Lent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        match &mut self.body {
            Some(body) => Pin::new(body).poll_frame(context),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(SizeHint::default, Body::size_hint)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(body) = self.body.take().filter(|body| !body.is_end_stream()) {
            *self.home.lock().unwrap_or_else(PoisonError::into_inner) = Some(body);
        }
    }
}
