//! listFiles: what is in a directory, page by page.

use std::rc::Rc;

use sandbox_api::{DirectoryListing, PathEncoding};
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

/// Which directory, and how much of it.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Sandbox to list in.
    pub sandbox_id: SandboxId,
    /// Directory: relative to /workspace, or absolute inside it. Default: /workspace.
    #[serde(default)]
    #[schema(max_length = 12_288)]
    pub path: Option<String>,
    /// `percent` when `path` is percent-encoded, as other tools answer a name that is not UTF-8; default utf-8.
    #[serde(default)]
    pub path_encoding: Option<PathEncoding>,
    /// Whether directories below are listed too; links are not followed. Default false.
    #[serde(default)]
    pub recursive: Option<bool>,
    /// Whether names that begin with a dot are listed; default true.
    #[serde(default)]
    pub hidden: Option<bool>,
    /// Most entries to answer; default 200.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 1000, default = 200)]
    pub limit: Option<u32>,
    /// `nextCursor` of the page before.
    #[serde(default)]
    #[schema(max_length = 20_000)]
    pub cursor: Option<String>,
}

pub struct ListFiles;

impl Tool for ListFiles {
    const NAME: &'static str = "listFiles";
    const DESCRIPTION: &'static str = "Lists a directory of a sandbox, recursively if asked, in a stable order and in pages: where there is a \
        nextCursor there is more. A name that is not UTF-8 is percent-encoded and says so in pathEncoding; every file tool takes it back.";
    const ROUTES: &'static [Route] = &[];
    const ANNOTATIONS: Annotations = Annotations {
        title: "List files",
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
        output_cap_bytes: 4 * 1024 * 1024,
        rate_class: RateClass::SandboxOperation,
        unrecorded_arguments: &[],
        told_once: &[],
    };
    const EXECUTION: Execution = Execution::Inline;

    type Input = Input;
    type Output = DirectoryListing;

    fn claim(input: &Input, _facts: &CallFacts<'_>) -> Result<SandboxClaim> {
        let path = input.path.as_deref().unwrap_or_default();
        path::check_directory("/path", path, input.path_encoding.unwrap_or_default())?;
        path::check_directory("/cursor", input.cursor.as_deref().unwrap_or_default(), PathEncoding::Percent)?;
        Ok(SandboxClaim::Existing { sandbox_id: input.sandbox_id.clone() })
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<DirectoryListing> {
        let path = input.path.as_deref().unwrap_or_default();
        let target = path::control(path::DIRECTORIES, path, input.path_encoding.unwrap_or_default())?;
        let query = path::query([
            ("recursive", input.recursive.map(|value| value.to_string())),
            ("hidden", input.hidden.map(|value| value.to_string())),
            ("limit", input.limit.map(|value| value.to_string())),
            ("cursor", input.cursor),
        ]);
        files::ask(&context.services, &input.sandbox_id, files::request("GET", target + &query)).await
    }
}
