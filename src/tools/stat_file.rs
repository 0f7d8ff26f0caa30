//! statFile: what a file, directory or link is.

use std::rc::Rc;

use sandbox_api::{FileInfo, PathEncoding};
use serde::Deserialize;
use utoipa::ToSchema;

use super::path;
use crate::error::Result;
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::identifier::SandboxId;
use crate::registry::{CallFacts, Context, Route, Tool};
use crate::sandbox::files;
use crate::tenant::admission::SandboxClaim;

/// Which entry.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Sandbox that holds the entry.
    pub sandbox_id: SandboxId,
    /// Path: relative to /workspace, or absolute inside it.
    #[schema(min_length = 1, max_length = 12_288)]
    pub path: String,
    /// `percent` when `path` is percent-encoded, as other tools answer a name that is not UTF-8; default utf-8.
    #[serde(default)]
    pub path_encoding: Option<PathEncoding>,
    /// Whether a link is followed, as long as it stays inside /workspace; default false.
    #[serde(default)]
    pub follow: Option<bool>,
}

pub struct StatFile;

impl Tool for StatFile {
    const NAME: &'static str = "statFile";
    const DESCRIPTION: &'static str = "Tells what is at a path of a sandbox: type, size, permissions, time of the last change, where a link \
        leads, and the ETag of a file. A path with nothing there is `not_found`.";
    const ROUTES: &'static [Route] = &[];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Look at a file",
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
        output_cap_bytes: 64 * 1024,
        rate_class: RateClass::SandboxOperation,
        unrecorded_arguments: &[],
        told_once: &[],
    };
    const EXECUTION: Execution = Execution::Inline;

    type Input = Input;
    type Output = FileInfo;

    fn claim(input: &Input, _facts: &CallFacts<'_>) -> Result<SandboxClaim> {
        path::check_directory("/path", &input.path, input.path_encoding.unwrap_or_default())?;
        Ok(SandboxClaim::Existing { sandbox_id: input.sandbox_id.clone() })
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<FileInfo> {
        let target = path::control(path::ENTRIES, &input.path, input.path_encoding.unwrap_or_default())?;
        let query = path::query([("follow", input.follow.map(|follow| follow.to_string()))]);
        files::ask(&context.services, &input.sandbox_id, files::request("GET", target + &query)).await
    }
}
