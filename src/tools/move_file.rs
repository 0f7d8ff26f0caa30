//! moveFile: a new path for a file, directory or link.

use std::rc::Rc;

use sandbox_api::{MoveRequest, Moved, PathEncoding};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{looking, path};
use crate::error::Result;
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::identifier::SandboxId;
use crate::preview;
use crate::registry::{CallFacts, Context, Route, Tool};
use crate::sandbox::files;
use crate::tenant::admission::SandboxClaim;

/// What to move, and where to.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Sandbox to move in.
    pub sandbox_id: SandboxId,
    /// What to move: relative to /workspace, or absolute inside it.
    #[schema(min_length = 1, max_length = 12_288)]
    pub from: String,
    /// Its new path, not the directory to put it in. Missing directories are made.
    #[schema(min_length = 1, max_length = 12_288)]
    pub to: String,
    /// `percent` when `from` and `to` are percent-encoded, as other tools answer a name that is not UTF-8; default utf-8.
    #[serde(default)]
    pub path_encoding: Option<PathEncoding>,
    /// Whether a file at `to`, or an empty directory for a directory, may be replaced; default false.
    #[serde(default)]
    pub overwrite: Option<bool>,
}

/// The entry, moved.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    /// The old path as it was given.
    pub from: String,
    /// The new path as it was given.
    pub to: String,
    /// Whether something was replaced.
    pub replaced: bool,
}

pub struct MoveFile;

impl Tool for MoveFile {
    const NAME: &'static str = "moveFile";
    const DESCRIPTION: &'static str = "Moves or renames a file, a directory with all that is in it, or a link, in one step. What is at the new \
        path is replaced only with `overwrite`, and never a directory that has entries.";
    const ROUTES: &'static [Route] = &[];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Move a file",
        read_only_hint: false,
        destructive_hint: true,
        idempotent_hint: false,
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
        unrecorded_arguments: &[],
        told_once: &[],
    };
    const EXECUTION: Execution = Execution::Inline;

    type Input = Input;
    type Output = Output;

    fn claim(input: &Input, _facts: &CallFacts<'_>) -> Result<SandboxClaim> {
        for (pointer, path) in [("/from", &input.from), ("/to", &input.to)] {
            path::check(pointer, path, input.path_encoding.unwrap_or_default())?;
        }
        Ok(SandboxClaim::Existing { sandbox_id: input.sandbox_id.clone() })
    }

    async fn preview(context: Context, input: Input) -> Result<Vec<String>> {
        let encoding = input.path_encoding.unwrap_or_default();
        let from = looking::told(&context, &input.from, encoding, "there is nothing, so the call fails").await?;
        let to = looking::told(&context, &input.to, encoding, "there is nothing yet").await?;
        let then = if input.overwrite == Some(true) { "is replaced" } else { "must not be there" };
        preview::in_sandbox(&context, format!("{from} is moved to {to}; what is there {then}."))
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<Output> {
        let body = MoveRequest {
            from: input.from.clone(),
            to: input.to.clone(),
            path_encoding: input.path_encoding.unwrap_or_default(),
            overwrite: input.overwrite.unwrap_or_default(),
        };
        let request = files::json_request("POST", "/v1/moves", &body)?;
        let moved: Moved = files::ask(&context.services, &input.sandbox_id, request).await?;
        Ok(Output { from: input.from, to: input.to, replaced: moved.replaced })
    }
}
