//! writeFile: a whole file from JSON, or from raw bytes.

use std::rc::Rc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_util::StreamExt;
use sandbox_api::{Encoding, FileWritten};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::path;
use crate::error::{Error, ErrorCode, Result};
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::identifier::SandboxId;
use crate::raw::{RawRequest, RawResponse, RawTool, TRANSFER_DEADLINE};
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::services::{Body, BodyError, ControlRequest, ControlResponse, RequestBody};
use crate::tenant::admission::SandboxClaim;

/// Until the answer to a write from JSON.
const WRITE_DEADLINE: Duration = Duration::from_secs(20);

/// What to write, and where.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Sandbox to write in.
    pub sandbox_id: SandboxId,
    /// Path of the file: relative to /workspace, or absolute inside it. Missing directories are made.
    #[schema(min_length = 1, max_length = 4096)]
    pub path: String,
    /// The whole content, in the form that `encoding` names. A request holds at most 4 MiB of JSON; the raw route takes more.
    pub content: String,
    /// How `content` holds the bytes; default utf-8.
    #[serde(default)]
    pub encoding: Option<Encoding>,
}

/// The file, written.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    /// The path as it was given.
    pub path: String,
    /// Bytes of the file, as its file system says after the write.
    pub size: u64,
    /// Whether there was no file of that name before.
    pub created: bool,
}

pub struct WriteFile;

impl Tool for WriteFile {
    const NAME: &'static str = "writeFile";
    const DESCRIPTION: &'static str = "Writes a whole file in a sandbox: the old one is replaced at once or not at all. Missing \
        directories are made. Large files are better written over the raw route.";
    const ROUTES: &'static [Route] = &[];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Write a file",
        read_only_hint: false,
        destructive_hint: true,
        idempotent_hint: true,
        open_world_hint: false,
    };
    const GUARDRAILS: Guardrails = Guardrails {
        role: Role::Operator,
        scopes: &[Scope::SandboxWrite],
        approval: Approval::NotNeeded,
        default_timeout: 30,
        maximum_timeout: 30,
        output_cap_bytes: 64 * 1024,
        rate_class: RateClass::SandboxOperation,
        unrecorded_arguments: &["/content"],
    };
    const EXECUTION: Execution = Execution::Inline;

    type Input = Input;
    type Output = Output;

    fn claim(input: &Input, _facts: &CallFacts<'_>) -> Result<SandboxClaim> {
        path::check("/path", &input.path)?;
        if input.encoding == Some(Encoding::Base64) && STANDARD.decode(&input.content).is_err() {
            return Err(Error::invalid("/content", "is not base64"));
        }
        Ok(SandboxClaim::Existing { sandbox_id: input.sandbox_id.clone() })
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<Output> {
        let bytes = match input.encoding {
            Some(Encoding::Base64) => STANDARD.decode(&input.content).map_err(Error::internal)?,
            Some(Encoding::Utf8) | None => input.content.into_bytes(),
        };
        let length = u64::try_from(bytes.len()).map_err(Error::internal)?;
        let control = upload(path::control(&input.path), Box::new(Bytes(bytes)), length, WRITE_DEADLINE);
        let response = context.services.sandboxes.control(&input.sandbox_id, control).await?;
        let written = written(response).await?;
        Ok(Output { path: input.path, size: written.size, created: written.created })
    }
}

fn upload(path: String, body: Box<dyn Body>, length: u64, deadline: Duration) -> ControlRequest {
    ControlRequest {
        method: "PUT",
        path,
        headers: Vec::new(),
        body: RequestBody::Raw { body, length },
        boot_id: None,
        deadline,
    }
}

async fn written(response: ControlResponse) -> Result<FileWritten> {
    let mut bytes = Vec::new();
    let mut chunks = response.body.chunks();
    while let Some(chunk) = chunks.next().await {
        bytes.extend(chunk.map_err(|error| {
            Error::new(ErrorCode::OutcomeUnknown, "the sandbox stopped answering; the file may have been written")
                .because(error)
        })?);
    }
    serde_json::from_slice(&bytes).map_err(Error::internal)
}

impl RawTool for WriteFile {
    const RAW_ROUTES: &'static [Route] =
        &[Route { method: Method::Put, path: "/v1/sandboxes/{sandboxId}/files/{*path}" }];

    fn raw_claim(request: &RawRequest) -> Result<SandboxClaim> {
        let claim = path::raw_claim(request)?;
        if request.length.is_none() {
            let message = "send Content-Length: without it an upload that was cut off looks like a whole one";
            return Err(Error::new(ErrorCode::LengthRequired, message));
        }
        Ok(claim)
    }

    async fn raw(context: Context, request: RawRequest) -> Result<RawResponse> {
        let sandbox_id =
            context.claim.sandbox_id().cloned().ok_or_else(|| Error::internal("no sandbox was claimed"))?;
        let length = request.length.ok_or_else(|| Error::internal("an upload without length was admitted"))?;
        let path = format!("/v1/files/{}", request.parameter("path"));
        let body = request.body.unwrap_or_else(|| Box::new(Bytes(Vec::new())));
        let control = upload(path, body, length, TRANSFER_DEADLINE);
        let written = written(context.services.sandboxes.control(&sandbox_id, control).await?).await?;
        let bytes = serde_json::to_vec(&written).map_err(Error::internal)?;
        Ok(RawResponse {
            status: if written.created { 201 } else { 200 },
            headers: vec![("content-type".to_owned(), "application/json".to_owned())],
            body: Box::new(Bytes(bytes)),
        })
    }
}

/// A body that is in memory already.
pub struct Bytes(pub Vec<u8>);

impl Body for Bytes {
    fn chunks(
        self: Box<Self>,
    ) -> futures_util::stream::LocalBoxStream<'static, std::result::Result<Vec<u8>, BodyError>> {
        futures_util::stream::once(async move { Ok(self.0) }).boxed_local()
    }

    fn into_any(self: Box<Self>) -> Box<dyn std::any::Any> {
        self
    }
}
