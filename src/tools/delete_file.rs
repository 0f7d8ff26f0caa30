//! deleteFile: removes a file, a link, or a directory.

use std::rc::Rc;

use sandbox_api::{EntryDeleted, PathEncoding};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{looking, path};
use crate::error::{Error, ErrorCode, Result};
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::identifier::SandboxId;
use crate::plan::Ending;
use crate::preview;
use crate::registry::{CallFacts, Context, Route, Tool};
use crate::sandbox::files;
use crate::tenant::admission::SandboxClaim;

/// Removals asked for in one call: the sandbox works at each for some seconds.
const MOST_REQUESTS: u32 = 6;

/// What to remove.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Sandbox to remove in.
    pub sandbox_id: SandboxId,
    /// Path: relative to /workspace, or absolute inside it. Of a link the link goes, not what it leads to.
    #[schema(min_length = 1, max_length = 12_288)]
    pub path: String,
    /// `percent` when `path` is percent-encoded, as other tools answer a name that is not UTF-8; default utf-8.
    #[serde(default)]
    pub path_encoding: Option<PathEncoding>,
    /// Whether a directory goes with all that is in it; without it the directory must be empty. Default false.
    #[serde(default)]
    pub recursive: Option<bool>,
}

/// The entry is gone.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    /// The path as it was given.
    pub path: String,
    /// Entries removed, those inside a directory counted.
    pub removed: u64,
}

pub struct DeleteFile;

impl Tool for DeleteFile {
    const NAME: &'static str = "deleteFile";
    const DESCRIPTION: &'static str = "Removes a file, a link, an empty directory, or with `recursive` a directory with all that is in it. \
        /workspace itself stays.";
    const ROUTES: &'static [Route] = &[];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Delete a file",
        read_only_hint: false,
        destructive_hint: true,
        idempotent_hint: false,
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

    async fn preview(context: Context, input: Input) -> Result<Vec<String>> {
        let encoding = input.path_encoding.unwrap_or_default();
        let told = looking::told(&context, &input.path, encoding, "there is nothing, so the call fails").await?;
        let rest = if input.recursive == Some(true) { " with all that is in it" } else { "" };
        preview::in_sandbox(&context, format!("{told} is removed{rest}."))
    }

    /// It may fail when a part is gone.
    fn may_have_acted(ending: &Ending) -> bool {
        ending.may_have_acted() || ending.says("removed").is_some()
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<Output> {
        let target = path::control(path::ENTRIES, &input.path, input.path_encoding.unwrap_or_default())?;
        let target = target + &path::query([("recursive", input.recursive.map(|value| value.to_string()))]);
        let mut removed = 0;
        for _ in 0..MOST_REQUESTS {
            let request = files::request("DELETE", target.clone());
            let deleted: EntryDeleted = files::ask(&context.services, &input.sandbox_id, request)
                .await
                .map_err(|error| if removed > 0 { error.detail("removed", removed) } else { error })?;
            removed += deleted.removed;
            if deleted.complete {
                return Ok(Output { path: input.path, removed });
            }
        }
        let message = "the directory holds more than one call removes; call again to go on";
        Err(Error { retryable: true, ..Error::new(ErrorCode::Timeout, message).detail("removed", removed) })
    }
}
