//! writeFile: a whole file from JSON, or from raw bytes.

use std::rc::Rc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_util::StreamExt;
use sandbox_api::{Encoding, FileWritten, PathEncoding, UPLOAD_ID_HEADER, UploadProgress};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{looking, path};
use crate::error::{Error, ErrorCode, Result};
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::identifier::SandboxId;
use crate::preview;
use crate::raw::{
    RawContent, RawContract, RawParameter, RawRequest, RawResponse, RawSuccess, RawTool, TRANSFER_DEADLINE,
};
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::sandbox::files::{collect, parse};
use crate::services::{Body, BodyError, ControlRequest, RequestBody};
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
    #[schema(min_length = 1, max_length = 12_288)]
    pub path: String,
    /// `percent` when `path` is percent-encoded, as other tools answer a name that is not UTF-8; default utf-8.
    #[serde(default)]
    pub path_encoding: Option<PathEncoding>,
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
    /// Changes with every write of the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
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
        told_once: &[],
    };
    const EXECUTION: Execution = Execution::Inline;

    type Input = Input;
    type Output = Output;

    fn claim(input: &Input, _facts: &CallFacts<'_>) -> Result<SandboxClaim> {
        path::check("/path", &input.path, input.path_encoding.unwrap_or_default())?;
        if input.encoding == Some(Encoding::Base64) && STANDARD.decode(&input.content).is_err() {
            return Err(Error::invalid("/content", "is not base64"));
        }
        Ok(SandboxClaim::Existing { sandbox_id: input.sandbox_id.clone() })
    }

    async fn preview(context: Context, input: Input) -> Result<Vec<String>> {
        let encoding = input.path_encoding.unwrap_or_default();
        let told = looking::told(&context, &input.path, encoding, "there is nothing yet").await?;
        preview::in_sandbox(&context, format!("{told} is written whole."))
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<Output> {
        let bytes = match input.encoding {
            Some(Encoding::Base64) => STANDARD.decode(&input.content).map_err(Error::internal)?,
            Some(Encoding::Utf8) | None => input.content.into_bytes(),
        };
        let length = u64::try_from(bytes.len()).map_err(Error::internal)?;
        let target = path::control(path::FILES, &input.path, input.path_encoding.unwrap_or_default())?;
        let control = upload(target, Vec::new(), Box::new(Bytes(bytes)), length, WRITE_DEADLINE);
        let response = context.services.sandboxes.control(&input.sandbox_id, control).await?;
        let written: FileWritten = parse(&collect(response).await?)?;
        Ok(Output { path: input.path, size: written.size, created: written.created, etag: written.etag })
    }
}

/// A request that carries a whole body to the sandbox.
pub fn upload(
    path: String,
    headers: Vec<(&'static str, String)>,
    body: Box<dyn Body>,
    length: u64,
    deadline: Duration,
) -> ControlRequest {
    ControlRequest { method: "PUT", path, headers, body: RequestBody::Raw { body, length }, boot_id: None, deadline }
}

impl RawTool for WriteFile {
    const RAW_ROUTES: &'static [Route] =
        &[Route { method: Method::Put, path: "/v1/sandboxes/{sandboxId}/files/{*path}" }];

    const RAW_CONTRACT: RawContract = RawContract {
        headers: &[
            RawParameter {
                name: "Content-Range",
                description: "`bytes 0-67108863/200000000`: the body is one piece; pieces come in order, and the last one \
                    writes the file. `bytes */200000000` with an empty body: how far did the upload get?",
                repeated: false,
            },
            RawParameter {
                name: "Upload-Id",
                description: "Upload that the piece belongs to, as the answer to the first piece names it. Without it the \
                    path and the total name it.",
                repeated: false,
            },
            RawParameter {
                name: "If-Match",
                description: "Write only over the version of this ETag; otherwise 412.",
                repeated: false,
            },
            RawParameter {
                name: "If-None-Match",
                description: "`*`: write only where there is no file; otherwise 412.",
                repeated: false,
            },
        ],
        query: &[],
        successes: &[
            RawSuccess {
                status: 200,
                description: "The file was replaced",
                body: RawContent::Json(crate::schema::self_contained::<FileWritten>),
            },
            RawSuccess {
                status: 201,
                description: "The file was created",
                body: RawContent::Json(crate::schema::self_contained::<FileWritten>),
            },
            RawSuccess {
                status: 202,
                description: "The piece has arrived, or the answer to the question",
                body: RawContent::Json(crate::schema::self_contained::<UploadProgress>),
            },
        ],
        codes: &[ErrorCode::LengthRequired, ErrorCode::PreconditionFailed],
    };

    fn raw_claim(request: &RawRequest) -> Result<SandboxClaim> {
        let claim = path::raw_claim(request)?;
        length_is_known(request)?;
        Ok(claim)
    }

    async fn raw(context: Context, request: RawRequest) -> Result<RawResponse> {
        let sandbox_id =
            context.claim.sandbox_id().cloned().ok_or_else(|| Error::internal("no sandbox was claimed"))?;
        let length = request.length.ok_or_else(|| Error::internal("an upload without length was admitted"))?;
        let path = format!("/v1/files/{}", request.parameter("path"));
        let body = request.body.unwrap_or_else(|| Box::new(Bytes(Vec::new())));
        let conditions = ["content-range", "if-match", "if-none-match", UPLOAD_ID_HEADER];
        let headers = request.headers.into_iter().filter(|(name, _)| conditions.contains(name)).collect();
        let control = upload(path, headers, body, length, TRANSFER_DEADLINE);
        let response = context.services.sandboxes.control(&sandbox_id, control).await?;
        let status = response.status;
        // A piece is answered otherwise than a whole file: both are passed on as they are, once they are known to be whole.
        let bytes = collect(response).await?;
        Ok(RawResponse {
            status,
            headers: vec![("content-type".to_owned(), "application/json".to_owned())],
            body: Box::new(Bytes(bytes)),
        })
    }
}

/// Refuses an upload without a declared length.
pub fn length_is_known(request: &RawRequest) -> Result<()> {
    if request.length.is_some() {
        return Ok(());
    }
    let message = "send Content-Length: without it an upload that was cut off looks like a whole one";
    Err(Error::new(ErrorCode::LengthRequired, message))
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
