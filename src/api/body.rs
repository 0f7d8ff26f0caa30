//! Bodies of requests: JSON up to its limit, and what is left of a refused one.

use std::time::Duration;

use futures_util::StreamExt;
use serde_json::Value;
use wasm_bindgen::JsValue;
use wasm_bindgen_futures::JsFuture;
use worker::Request;

use super::rest::header;
use crate::error::{Error, ErrorCode, Result};
use crate::platform::{Platform, within};
use crate::workers::fetch;

/// Largest JSON body. Larger contents go over the raw routes.
const LARGEST_JSON: usize = 4 * 1024 * 1024;

/// A refused body is read up to here and thrown away: a client that is still sending would not see the answer.
const LARGEST_DRAINED: usize = 16 * 1024 * 1024;

/// Until a JSON body has arrived.
const BODY_DEADLINE: Duration = Duration::from_secs(30);

/// Until a refused body is thrown away, as far as it arrives.
const DRAIN_DEADLINE: Duration = Duration::from_secs(3);

/// The body as JSON; `None` when it is empty. Kept up to its limit and no further.
pub async fn json(request: &Request, platform: &dyn Platform) -> Result<Option<Value>> {
    let bytes = match within(platform, BODY_DEADLINE, read(request, LARGEST_JSON)).await {
        Ok(bytes) => bytes?,
        Err(_) => {
            let message = format!("the body did not arrive within {} seconds", BODY_DEADLINE.as_secs());
            return Err(Error::new(ErrorCode::MalformedRequest, message));
        }
    };
    if bytes.is_empty() {
        return Ok(None);
    }
    serde_json::from_slice(&bytes)
        .map(Some)
        .map_err(|error| Error::new(ErrorCode::MalformedRequest, format!("the body is not JSON: {error}")))
}

/// Throws away what is left of a refused body.
pub async fn drain(request: &Request, platform: &dyn Platform) {
    let untouched = request.inner().body().is_some_and(|body| !body.locked()) && !request.inner().body_used();
    if untouched && declared_length(request).is_none_or(|length| length <= LARGEST_DRAINED) {
        // The answer is the same whether the rest arrives or not.
        let _ = within(platform, DRAIN_DEADLINE, read(request, 0)).await;
    }
}

fn declared_length(request: &Request) -> Option<usize> {
    header(request, "content-length").and_then(|length| length.parse().ok())
}

/// The whole body, at most `limit` bytes of it. What is larger is read on for a while and thrown away.
async fn read(request: &Request, limit: usize) -> Result<Vec<u8>> {
    let too_large = || {
        let message = format!("the body is larger than {limit} bytes; raw file routes take more");
        Error::new(ErrorCode::PayloadTooLarge, message).detail("limitBytes", limit)
    };
    if declared_length(request).is_some_and(|length| length > LARGEST_DRAINED) {
        return Err(too_large());
    }
    let Some(stream) = request.inner().body() else {
        return Ok(Vec::new());
    };
    let early = |error| Error::new(ErrorCode::MalformedRequest, "the body ended early").because(error);
    // A body is never longer than it declares, and at once it passes from JavaScript in one piece.
    if declared_length(request).is_some_and(|length| length <= limit) {
        return whole(request).await.map_err(|error| early(fetch::describe(&error)));
    }
    let mut bytes: Vec<u8> = Vec::new();
    let mut received = 0;
    let mut chunks = worker::ByteStream::from(stream);
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|error| early(error.to_string()))?;
        received += chunk.len();
        if received > LARGEST_DRAINED {
            break;
        }
        if received <= limit {
            bytes.extend(chunk);
        }
    }
    if received > limit { Err(too_large()) } else { Ok(bytes) }
}

async fn whole(request: &Request) -> std::result::Result<Vec<u8>, JsValue> {
    let buffer = JsFuture::from(request.inner().array_buffer()?).await?;
    Ok(js_sys::Uint8Array::new(&buffer).to_vec())
}
