//! The control API of files, as a client: one question, one answer that is read whole.

use std::time::Duration;

use futures_util::StreamExt;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, ErrorCode, Result};
use crate::identifier::SandboxId;
use crate::services::{Body, ControlRequest, ControlResponse, RequestBody, Services};

/// Largest answer that is read whole.
const LARGEST_ANSWER: usize = 8 * 1024 * 1024;

/// Until the head of an answer to a question about files; what takes long ends itself before.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// A request without a body.
pub fn request(method: &'static str, path: String) -> ControlRequest {
    ControlRequest { method, path, headers: Vec::new(), body: RequestBody::Empty, boot_id: None, deadline: DEADLINE }
}

/// A request with a JSON body.
pub fn json_request<T: Serialize>(method: &'static str, path: &str, body: &T) -> Result<ControlRequest> {
    let body = RequestBody::Json(serde_json::to_string(body).map_err(Error::internal)?);
    Ok(ControlRequest { body, ..request(method, path.to_owned()) })
}

/// Asks, and reads the whole answer.
pub async fn ask<T: DeserializeOwned>(services: &Services, id: &SandboxId, request: ControlRequest) -> Result<T> {
    let reads = request.method == "GET";
    let response = services.sandboxes.control(id, request).await?;
    let bytes = read(response.body, LARGEST_ANSWER).await.map_err(|cause| lost(reads, &cause))?;
    parse(&bytes)
}

/// The whole body of an answer to a request that had an effect.
pub async fn collect(response: ControlResponse) -> Result<Vec<u8>> {
    read(response.body, LARGEST_ANSWER).await.map_err(|cause| lost(false, &cause))
}

/// Why a body was not read to its end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    #[error("the answer is larger than what is read of it")]
    TooLarge,
    #[error("{0}")]
    Broken(String),
}

/// A whole body of at most `limit` bytes.
pub async fn read(body: Box<dyn Body>, limit: usize) -> Result<Vec<u8>, ReadError> {
    let mut bytes = Vec::new();
    let mut chunks = body.chunks();
    while let Some(chunk) = chunks.next().await {
        bytes.extend(chunk.map_err(|error| ReadError::Broken(error.to_string()))?);
        if bytes.len() > limit {
            return Err(ReadError::TooLarge);
        }
    }
    Ok(bytes)
}

/// The sandbox stopped in the middle of its answer. Reading has no effect and may be asked for again.
pub fn lost(reads: bool, cause: &ReadError) -> Error {
    let (code, message) = if reads {
        (ErrorCode::SandboxUnavailable, "the sandbox stopped answering")
    } else {
        (ErrorCode::OutcomeUnknown, "the sandbox stopped answering; what was asked may have been done")
    };
    Error::new(code, message).detail("reason", "sandbox_unresponsive").because(cause)
}

/// An answer of the control API.
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(Error::internal)
}

/// The same refusal in a request that only reads: where nobody knows whether it was carried out, it does not matter.
pub fn harmless(error: Error) -> Error {
    if error.code != ErrorCode::OutcomeUnknown {
        return error;
    }
    let unavailable = Error::new(ErrorCode::SandboxUnavailable, "the sandbox did not answer");
    Error { details: error.details, cause: error.cause, ..unavailable }
}
