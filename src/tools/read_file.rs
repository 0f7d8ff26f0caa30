//! readFile: part of a file in JSON, or a whole file as raw bytes.

use std::rc::Rc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_util::StreamExt;
use sandbox_api::{Encoding, PathEncoding};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::path;
use crate::error::{Error, ErrorCode, Result};
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::identifier::SandboxId;
use crate::raw::{RawContent, RawContract, RawParameter, RawRequest, RawResponse, RawSuccess, RawTool};
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::services::{ControlRequest, RequestBody};
use crate::tenant::admission::SandboxClaim;

const DEFAULT_LIMIT: u64 = 256 * 1024;

/// Until the head of an answer.
const HEAD_DEADLINE: Duration = Duration::from_secs(20);

/// Which part of which file.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Sandbox that holds the file.
    pub sandbox_id: SandboxId,
    /// Path of the file: relative to /workspace, or absolute inside it.
    #[schema(min_length = 1, max_length = 12_288)]
    pub path: String,
    /// `percent` when `path` is percent-encoded, as other tools answer a name that is not UTF-8; default utf-8.
    #[serde(default)]
    pub path_encoding: Option<PathEncoding>,
    /// How to answer the content. Default: utf-8 where the bytes read are UTF-8, base64 where they are not. `utf-8`
    /// refuses what is not.
    #[serde(default)]
    pub encoding: Option<Encoding>,
    /// First byte to read; default 0.
    #[serde(default)]
    #[schema(minimum = 0)]
    pub offset: Option<u64>,
    /// Most bytes to read; default 262,144, at most 1,048,576. The raw route has no limit.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 1_048_576, default = 262_144)]
    pub limit: Option<u64>,
}

/// The part that was read.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    /// The path as it was asked for.
    pub path: String,
    /// The bytes, in the form that `encoding` names.
    pub content: String,
    /// utf-8 or base64.
    pub encoding: Encoding,
    /// Bytes of the whole file.
    pub size: u64,
    /// First byte read.
    pub offset: u64,
    /// Bytes read; read on at `offset` plus this.
    pub bytes: u64,
    /// Whether the file goes on after the bytes read.
    pub truncated: bool,
}

pub struct ReadFile;

impl Tool for ReadFile {
    const NAME: &'static str = "readFile";
    const DESCRIPTION: &'static str = "Reads a file of a sandbox, or a part of it by offset and limit. Text is answered as it \
        is, other bytes as base64, never changed. Large files are better read over the raw route.";
    const ROUTES: &'static [Route] = &[];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Read a file",
        read_only_hint: true,
        destructive_hint: false,
        idempotent_hint: true,
        open_world_hint: false,
    };
    const GUARDRAILS: Guardrails = Guardrails {
        role: Role::Viewer,
        scopes: &[Scope::SandboxRead],
        approval: Approval::NotNeeded,
        default_timeout: 30,
        maximum_timeout: 30,
        output_cap_bytes: 8 * 1024 * 1024,
        rate_class: RateClass::SandboxOperation,
        unrecorded_arguments: &[],
        told_once: &[],
    };
    const EXECUTION: Execution = Execution::Inline;

    type Input = Input;
    type Output = Output;

    fn claim(input: &Input, _facts: &CallFacts<'_>) -> Result<SandboxClaim> {
        path::check("/path", &input.path, input.path_encoding.unwrap_or_default())?;
        Ok(SandboxClaim::Existing { sandbox_id: input.sandbox_id.clone() })
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<Output> {
        let offset = input.offset.unwrap_or(0);
        let limit = input.limit.unwrap_or(DEFAULT_LIMIT);
        let request = ControlRequest {
            method: "GET",
            path: path::control(path::FILES, &input.path, input.path_encoding.unwrap_or_default())?,
            headers: vec![("range", format!("bytes={offset}-{}", offset.saturating_add(limit - 1)))],
            body: RequestBody::Empty,
            boot_id: None,
            deadline: HEAD_DEADLINE,
        };
        let read = context.services.sandboxes.control(&input.sandbox_id, request).await;
        let (bytes, size) = match read {
            Ok(response) => {
                let size = whole_size(response.header("content-range"), response.header("content-length"))?;
                let mut bytes = Vec::new();
                let mut chunks = response.body.chunks();
                while let Some(chunk) = chunks.next().await {
                    bytes.extend(chunk.map_err(|error| {
                        Error::new(
                            ErrorCode::SandboxUnavailable,
                            "the sandbox stopped answering while the file was read",
                        )
                        .because(error)
                    })?);
                }
                (bytes, size)
            }
            // Reading an empty file, or at its end, is no error: there is nothing more.
            Err(error) if error.code == ErrorCode::RangeNotSatisfiable => {
                let size = error.details.get("size").and_then(serde_json::Value::as_u64).unwrap_or(0);
                if offset > size {
                    return Err(Error::invalid(
                        "/offset",
                        format!("is beyond the end of the file, which has {size} bytes"),
                    ));
                }
                (Vec::new(), size)
            }
            Err(error) => return Err(error),
        };
        content(input, bytes, size, offset)
    }
}

/// Size of the whole file, from the head of an answer with a part of it.
fn whole_size(content_range: Option<&str>, content_length: Option<&str>) -> Result<u64> {
    let total = content_range.and_then(|range| range.rsplit('/').next()).or(content_length);
    total
        .and_then(|total| total.parse().ok())
        .ok_or_else(|| Error::internal("the control API answered a file without its size"))
}

fn content(input: Input, mut bytes: Vec<u8>, size: u64, offset: u64) -> Result<Output> {
    let count = |bytes: &[u8]| u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    let at_end = offset + count(&bytes) >= size;
    let text = match std::str::from_utf8(&bytes) {
        Ok(_) => true,
        // The limit may cut the last character; what is left of it is read with the next part.
        Err(error)
            if !at_end
                && error.error_len().is_none()
                && error.valid_up_to() > 0
                && input.encoding != Some(Encoding::Base64) =>
        {
            bytes.truncate(error.valid_up_to());
            true
        }
        Err(_) => false,
    };
    let encoding = match (input.encoding, text) {
        (Some(Encoding::Utf8), false) => {
            return Err(Error::invalid("/encoding", "the bytes read are not UTF-8; ask for base64"));
        }
        (Some(asked), _) => asked,
        (None, true) => Encoding::Utf8,
        (None, false) => Encoding::Base64,
    };
    let read = count(&bytes);
    let content = match encoding {
        Encoding::Utf8 => String::from_utf8(bytes).map_err(Error::internal)?,
        Encoding::Base64 => STANDARD.encode(&bytes),
    };
    Ok(Output { path: input.path, content, encoding, size, offset, bytes: read, truncated: offset + read < size })
}

impl RawTool for ReadFile {
    const RAW_ROUTES: &'static [Route] = &[
        Route { method: Method::Get, path: "/v1/sandboxes/{sandboxId}/files/{*path}" },
        Route { method: Method::Head, path: "/v1/sandboxes/{sandboxId}/files/{*path}" },
    ];

    const RAW_CONTRACT: RawContract = RawContract {
        headers: &[RawParameter {
            name: "Range",
            description: "One range of bytes, as `bytes=0-1023`.",
            repeated: false,
        }],
        query: &[],
        successes: &[
            RawSuccess { status: 200, description: "The whole file", body: RawContent::Bytes },
            RawSuccess { status: 206, description: "The range", body: RawContent::Bytes },
        ],
        codes: &[ErrorCode::RangeNotSatisfiable],
    };

    fn raw_claim(request: &RawRequest) -> Result<SandboxClaim> {
        path::raw_claim(request)
    }

    async fn raw(context: Context, request: RawRequest) -> Result<RawResponse> {
        let sandbox_id =
            context.claim.sandbox_id().cloned().ok_or_else(|| Error::internal("no sandbox was claimed"))?;
        let control = ControlRequest {
            method: request.method.as_str(),
            path: format!("/v1/files/{}", request.parameter("path")),
            headers: request.headers.into_iter().filter(|(name, _)| *name == "range").collect(),
            body: RequestBody::Empty,
            boot_id: None,
            deadline: HEAD_DEADLINE,
        };
        let response = context.services.sandboxes.control(&sandbox_id, control).await?;
        let passed_on = ["content-type", "content-length", "content-range", "accept-ranges", "last-modified", "etag"];
        let headers = response.headers.into_iter().filter(|(name, _)| passed_on.contains(&name.as_str())).collect();
        Ok(RawResponse { status: response.status, headers, body: response.body })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(encoding: Option<Encoding>) -> Input {
        Input {
            sandbox_id: SandboxId::parse("box").unwrap(),
            path: "a".into(),
            path_encoding: None,
            encoding,
            offset: None,
            limit: None,
        }
    }

    #[test]
    fn bytes_that_are_not_text_are_exact() {
        let output = content(input(None), vec![0xff, 0xfe, 0x00, 0x80], 4, 0).unwrap();
        assert_eq!((output.encoding, output.content.as_str()), (Encoding::Base64, "//4AgA=="));
    }

    #[test]
    fn a_limit_inside_a_character_stops_before_it() {
        let output = content(input(None), b"caf\xc3".to_vec(), 5, 0).unwrap();
        assert_eq!((output.content.as_str(), output.bytes, output.truncated), ("caf", 3, true));
        let broken_end = content(input(None), b"caf\xc3".to_vec(), 4, 0).unwrap();
        assert_eq!(broken_end.encoding, Encoding::Base64, "at the end of the file half a character is not text");
    }

    #[test]
    fn asking_for_text_refuses_other_bytes() {
        let error = content(input(Some(Encoding::Utf8)), vec![0xff], 1, 0).unwrap_err();
        assert!(error.message.starts_with("encoding:"));
    }

    #[test]
    fn the_size_is_that_of_the_whole_file() {
        assert_eq!(whole_size(Some("bytes 0-3/1073741824"), Some("4")).unwrap(), 1_073_741_824);
        assert_eq!(whole_size(None, Some("4")).unwrap(), 4);
        assert!(whole_size(None, None).is_err());
    }
}
