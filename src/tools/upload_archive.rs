//! uploadArchive: an archive unpacked into a directory.

use std::rc::Rc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sandbox_api::{ArchiveExtracted, PathEncoding};
use serde::Deserialize;
use utoipa::ToSchema;

use super::path;
use super::write_file::{Bytes, length_is_known, upload};
use crate::error::{Error, ErrorCode, Result};
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::identifier::SandboxId;
use crate::plan::Ending;
use crate::raw::{
    RawContent, RawContract, RawParameter, RawRequest, RawResponse, RawSuccess, RawTool, TRANSFER_DEADLINE,
};
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::sandbox::files;
use crate::services::ControlRequest;
use crate::tenant::admission::SandboxClaim;

/// Until an archive from JSON is unpacked.
const UNPACK_DEADLINE: Duration = Duration::from_secs(60);

/// What to unpack, and where.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Sandbox to unpack in.
    pub sandbox_id: SandboxId,
    /// Directory: relative to /workspace, or absolute inside it; made where it is missing. Default: /workspace.
    #[serde(default)]
    #[schema(max_length = 12_288)]
    pub path: Option<String>,
    /// `percent` when `path` is percent-encoded, as other tools answer a name that is not UTF-8; default utf-8.
    #[serde(default)]
    pub path_encoding: Option<PathEncoding>,
    /// The archive in base64: tar, plain or packed with gzip or zstd. A request holds at most 4 MiB of JSON; the raw route
    /// takes more.
    pub content: String,
}

pub struct UploadArchive;

impl Tool for UploadArchive {
    const NAME: &'static str = "uploadArchive";
    const DESCRIPTION: &'static str = "Unpacks a tar archive, plain or packed with gzip or zstd, into a directory of a sandbox and tells what was \
        written. Files are replaced one by one. Entries that lead out of the directory, devices and pipes are refused; what was written before stays.";
    const ROUTES: &'static [Route] = &[];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Upload a directory",
        read_only_hint: false,
        destructive_hint: true,
        idempotent_hint: true,
        open_world_hint: false,
    };
    const GUARDRAILS: Guardrails = Guardrails {
        role: Role::Operator,
        scopes: &[Scope::SandboxWrite],
        approval: Approval::NotNeeded,
        default_timeout: 90,
        maximum_timeout: 90,
        output_cap_bytes: 64 * 1024,
        rate_class: RateClass::SandboxOperation,
        unrecorded_arguments: &["/content"],
        told_once: &[],
    };
    const EXECUTION: Execution = Execution::Inline;

    type Input = Input;
    type Output = ArchiveExtracted;

    fn claim(input: &Input, _facts: &CallFacts<'_>) -> Result<SandboxClaim> {
        let path = input.path.as_deref().unwrap_or_default();
        path::check_directory("/path", path, input.path_encoding.unwrap_or_default())?;
        if STANDARD.decode(&input.content).is_err() {
            return Err(Error::invalid("/content", "is not base64"));
        }
        Ok(SandboxClaim::Existing { sandbox_id: input.sandbox_id.clone() })
    }

    /// What was written before it failed stays.
    fn may_have_acted(ending: &Ending) -> bool {
        ending.error.as_ref().is_none_or(|error| error.code != ErrorCode::NotFound)
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<ArchiveExtracted> {
        let path = input.path.as_deref().unwrap_or_default();
        let target = path::control(path::ARCHIVES, path, input.path_encoding.unwrap_or_default())?;
        let bytes = STANDARD.decode(&input.content).map_err(Error::internal)?;
        let length = u64::try_from(bytes.len()).map_err(Error::internal)?;
        let request = upload(target, Vec::new(), Box::new(Bytes(bytes)), length, UNPACK_DEADLINE);
        let unpacked = files::ask(&context.services, &input.sandbox_id, request).await;
        // The sandbox knows a body, where this tool has a field.
        unpacked.map_err(|error| match error.message.strip_prefix("archive: ") {
            Some(fault) if error.code == ErrorCode::InvalidArguments => Error::invalid("/content", fault),
            _ => error,
        })
    }
}

impl RawTool for UploadArchive {
    const RAW_ROUTES: &'static [Route] = &[
        Route { method: Method::Put, path: "/v1/sandboxes/{sandboxId}/archive" },
        Route { method: Method::Put, path: "/v1/sandboxes/{sandboxId}/archive/{*path}" },
    ];
    const RAW_CONTRACT: RawContract = RawContract {
        headers: &[],
        query: &[RawParameter {
            name: "maxBytes",
            description: "Most bytes of all files in it; default 16 GiB.",
            repeated: false,
        }],
        successes: &[RawSuccess {
            status: 200,
            description: "Unpacked",
            body: RawContent::Json(crate::schema::self_contained::<ArchiveExtracted>),
        }],
        codes: &[ErrorCode::LengthRequired],
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
        let path = format!("{}{}{}", path::ARCHIVES, request.parameter("path"), request.query);
        let body = request.body.unwrap_or_else(|| Box::new(Bytes(Vec::new())));
        let control: ControlRequest = upload(path, Vec::new(), body, length, TRANSFER_DEADLINE);
        let response = context.services.sandboxes.control(&sandbox_id, control).await?;
        let status = response.status;
        let bytes = files::collect(response).await?;
        let headers = vec![("content-type".to_owned(), "application/json".to_owned())];
        Ok(RawResponse { status, headers, body: Box::new(Bytes(bytes)) })
    }
}
