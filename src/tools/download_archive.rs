//! downloadArchive: a directory as one archive: small in JSON, of any size as raw bytes.

use std::rc::Rc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sandbox_api::{ArchiveFormat, PathEncoding};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::path;
use crate::error::{Error, ErrorCode, Result};
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::identifier::SandboxId;
use crate::raw::{RawContent, RawContract, RawParameter, RawRequest, RawResponse, RawSuccess, RawTool};
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::sandbox::files;
use crate::services::{ControlRequest, RequestBody};
use crate::tenant::admission::SandboxClaim;

/// Largest archive in JSON.
const LARGEST_ARCHIVE: usize = 4 * 1024 * 1024;

/// Until the head of an archive: the sandbox looks through the whole directory first.
const HEAD_DEADLINE: Duration = Duration::from_secs(60);

/// Longest glob, in bytes.
const LONGEST_GLOB: usize = 1024;

/// Bytes of all globs of one request.
const MOST_GLOBS: usize = 14 * 1024;

/// Which directory, and what of it.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Sandbox that holds the directory.
    pub sandbox_id: SandboxId,
    /// Directory: relative to /workspace, or absolute inside it. Default: /workspace.
    #[serde(default)]
    #[schema(max_length = 12_288)]
    pub path: Option<String>,
    /// `percent` when `path` is percent-encoded, as other tools answer a name that is not UTF-8; default utf-8.
    #[serde(default)]
    pub path_encoding: Option<PathEncoding>,
    /// tar, tar.gz or tar.zst; default tar.gz.
    #[serde(default)]
    pub format: Option<ArchiveFormat>,
    /// Globs of what is left out: `node_modules` is about names at any depth, `target/**` about paths in the directory. At most 14 KiB
    /// in all.
    #[serde(default)]
    #[schema(required = false, max_items = 64)]
    pub exclude: Vec<String>,
}

/// The archive.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    /// The bytes of the archive, in base64.
    pub content: String,
    /// How it is packed.
    pub format: ArchiveFormat,
    /// Bytes of the archive.
    pub size: u64,
    /// Entries that have no place in an archive: pipes, sockets and devices.
    pub omitted: u64,
}

pub struct DownloadArchive;

impl Tool for DownloadArchive {
    const NAME: &'static str = "downloadArchive";
    const DESCRIPTION: &'static str = "Answers a directory of a sandbox as one tar archive, plain or packed with gzip or zstd, as base64. At \
        most 4 MiB; larger ones over the raw route. Names in it are relative to the directory, links stay links.";
    const ROUTES: &'static [Route] = &[];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Download a directory",
        read_only_hint: true,
        destructive_hint: false,
        idempotent_hint: true,
        open_world_hint: false,
    };
    const GUARDRAILS: Guardrails = Guardrails {
        role: Role::Viewer,
        scopes: &[Scope::SandboxRead],
        approval: Approval::NotNeeded,
        default_timeout: 90,
        maximum_timeout: 90,
        output_cap_bytes: 8 * 1024 * 1024,
        rate_class: RateClass::SandboxOperation,
        unrecorded_arguments: &[],
        told_once: &[],
    };
    const EXECUTION: Execution = Execution::Inline;

    type Input = Input;
    type Output = Output;

    fn claim(input: &Input, _facts: &CallFacts<'_>) -> Result<SandboxClaim> {
        let path = input.path.as_deref().unwrap_or_default();
        path::check_directory("/path", path, input.path_encoding.unwrap_or_default())?;
        if input.exclude.iter().any(|glob| glob.is_empty() || glob.len() > LONGEST_GLOB) {
            return Err(Error::invalid("/exclude", format!("a glob has 1 to {LONGEST_GLOB} bytes")));
        }
        // They are parameters of one URL.
        if input.exclude.iter().map(String::len).sum::<usize>() > MOST_GLOBS {
            return Err(Error::invalid("/exclude", format!("has more than {MOST_GLOBS} bytes in all")));
        }
        Ok(SandboxClaim::Existing { sandbox_id: input.sandbox_id.clone() })
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<Output> {
        let path = input.path.as_deref().unwrap_or_default();
        let target = path::control(path::ARCHIVES, path, input.path_encoding.unwrap_or_default())?;
        let format = input.format.unwrap_or_default();
        let query = std::iter::once(("format", Some(name(format).to_owned())));
        let query = path::query(query.chain(input.exclude.into_iter().map(|glob| ("exclude", Some(glob)))));
        let request = ControlRequest { deadline: HEAD_DEADLINE, ..files::request("GET", target + &query) };
        let response = context.services.sandboxes.control(&input.sandbox_id, request).await?;
        let omitted = response.header("x-archive-omitted").and_then(|text| text.parse().ok()).unwrap_or(0);
        let bytes = match files::read(response.body, LARGEST_ARCHIVE).await {
            Ok(bytes) => bytes,
            Err(files::ReadError::TooLarge) => {
                let message = format!("the archive has more than {LARGEST_ARCHIVE} bytes; use the raw route");
                return Err(Error::new(ErrorCode::PayloadTooLarge, message).detail("limitBytes", LARGEST_ARCHIVE));
            }
            Err(cause) => return Err(files::lost(true, &cause)),
        };
        let size = u64::try_from(bytes.len()).map_err(Error::internal)?;
        Ok(Output { content: STANDARD.encode(&bytes), format, size, omitted })
    }
}

fn name(format: ArchiveFormat) -> &'static str {
    match format {
        ArchiveFormat::Tar => "tar",
        ArchiveFormat::TarGz => "tar.gz",
        ArchiveFormat::TarZst => "tar.zst",
    }
}

impl RawTool for DownloadArchive {
    const RAW_ROUTES: &'static [Route] = &[
        Route { method: Method::Get, path: "/v1/sandboxes/{sandboxId}/archive" },
        Route { method: Method::Get, path: "/v1/sandboxes/{sandboxId}/archive/{*path}" },
    ];
    const RAW_CONTRACT: RawContract = RawContract {
        headers: &[],
        query: &[
            RawParameter {
                name: "format",
                description: "`tar`, `tar.gz` (the default) or `tar.zst`.",
                repeated: false,
            },
            RawParameter {
                name: "exclude",
                description: "Globs of what is left out; `**` crosses directories.",
                repeated: true,
            },
        ],
        successes: &[RawSuccess {
            status: 200,
            description: "The archive. `X-Archive-Omitted` counts pipes, sockets and devices, which have no place in it.",
            body: RawContent::Bytes,
        }],
        codes: &[],
    };

    fn raw_claim(request: &RawRequest) -> Result<SandboxClaim> {
        path::raw_claim(request)
    }

    async fn raw(context: Context, request: RawRequest) -> Result<RawResponse> {
        let sandbox_id =
            context.claim.sandbox_id().cloned().ok_or_else(|| Error::internal("no sandbox was claimed"))?;
        let control = ControlRequest {
            method: request.method.as_str(),
            path: format!("{}{}{}", path::ARCHIVES, request.parameter("path"), request.query),
            headers: Vec::new(),
            body: RequestBody::Empty,
            boot_id: None,
            deadline: HEAD_DEADLINE,
        };
        let response = context.services.sandboxes.control(&sandbox_id, control).await?;
        let omitted = response.headers.into_iter().filter(|(name, _)| name == "x-archive-omitted");
        let kind = ("content-type".to_owned(), "application/octet-stream".to_owned());
        let headers = std::iter::once(kind).chain(omitted).collect();
        Ok(RawResponse { status: response.status, headers, body: response.body })
    }
}
