//! searchFiles: lines by what they hold, files by their names.

use std::rc::Rc;

use sandbox_api::{PathEncoding, SearchRequest, SearchResult};
use serde::Deserialize;
use utoipa::ToSchema;

use super::path;
use crate::error::{Error, Result};
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::identifier::SandboxId;
use crate::registry::{CallFacts, Context, Route, Tool};
use crate::sandbox::files;
use crate::tenant::admission::SandboxClaim;

const DEFAULT_LIMIT: u32 = 100;
const DEFAULT_TIMEOUT_SECONDS: f64 = 10.0;

/// What to look for, and where.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Sandbox to search in.
    pub sandbox_id: SandboxId,
    /// Directory or file to search: relative to /workspace, or absolute inside it. Default: /workspace.
    #[serde(default)]
    #[schema(max_length = 12_288)]
    pub path: Option<String>,
    /// `percent` when `path` is percent-encoded, as other tools answer a name that is not UTF-8; default utf-8.
    #[serde(default)]
    pub path_encoding: Option<PathEncoding>,
    /// What a line must hold: text as it stands, or a regular expression with `regex`.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 4096)]
    pub content: Option<String>,
    /// Whether `content` is a regular expression (Rust's, without look-around and back-references); default false.
    #[serde(default)]
    pub regex: Option<bool>,
    /// Whether letters match in either case; default false.
    #[serde(default)]
    pub ignore_case: Option<bool>,
    /// Glob of the files to search, or to find when there is no `content`: `*.rs` is about names at any depth, `src/**/*.rs`
    /// about paths below the searched directory.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 1024)]
    pub name: Option<String>,
    /// Globs of what is left out, directories with all that is in them, such as `node_modules`.
    #[serde(default)]
    #[schema(required = false, max_items = 64)]
    pub exclude: Vec<String>,
    /// Whether names that begin with a dot are searched; default true.
    #[serde(default)]
    pub hidden: Option<bool>,
    /// Most matches to answer; default 100.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 2000, default = 100)]
    pub limit: Option<u32>,
    /// Seconds after which the search ends where it is; default 10.
    #[serde(default)]
    #[schema(minimum = 0.1, maximum = 20, default = 10)]
    pub timeout: Option<f64>,
}

pub struct SearchFiles;

impl Tool for SearchFiles {
    const NAME: &'static str = "searchFiles";
    const DESCRIPTION: &'static str = "Finds lines in the files of a sandbox by text or by regular expression, and files by a glob on their \
        names. At least one of `content` and `name` is needed. Binary files are skipped and counted; where `truncated` is true there may be more.";
    const ROUTES: &'static [Route] = &[];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Search files",
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
    const EXECUTION: Execution = Execution::Deferrable;

    type Input = Input;
    type Output = SearchResult;

    fn claim(input: &Input, _facts: &CallFacts<'_>) -> Result<SandboxClaim> {
        let path = input.path.as_deref().unwrap_or_default();
        path::check_directory("/path", path, input.path_encoding.unwrap_or_default())?;
        if input.content.is_none() && input.name.is_none() {
            return Err(Error::invalid("/content", "is required when there is no `name`"));
        }
        Ok(SandboxClaim::Existing { sandbox_id: input.sandbox_id.clone() })
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<SearchResult> {
        // Between a tenth and twenty seconds, as the schema holds.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let timeout_ms = (input.timeout.unwrap_or(DEFAULT_TIMEOUT_SECONDS) * 1000.0) as u64;
        let body = SearchRequest {
            path: input.path.unwrap_or_default(),
            path_encoding: input.path_encoding.unwrap_or_default(),
            content: input.content,
            regex: input.regex.unwrap_or_default(),
            ignore_case: input.ignore_case.unwrap_or_default(),
            name: input.name,
            exclude: input.exclude,
            hidden: input.hidden.unwrap_or(true),
            limit: input.limit.unwrap_or(DEFAULT_LIMIT),
            timeout_ms,
        };
        let request = files::json_request("POST", "/v1/searches", &body)?;
        files::ask(&context.services, &input.sandbox_id, request).await.map_err(files::harmless)
    }
}
