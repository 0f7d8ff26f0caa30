//! makeDirectory: a new directory, with its parents if asked.

use std::rc::Rc;

use sandbox_api::{DirectoryMade, PathEncoding};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::path;
use crate::error::Result;
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::identifier::SandboxId;
use crate::plan::Ending;
use crate::registry::{CallFacts, Context, Route, Tool};
use crate::sandbox::files;
use crate::tenant::admission::SandboxClaim;

/// Which directory.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Sandbox to make it in.
    pub sandbox_id: SandboxId,
    /// Path of the new directory: relative to /workspace, or absolute inside it.
    #[schema(min_length = 1, max_length = 12_288)]
    pub path: String,
    /// `percent` when `path` is percent-encoded, as other tools answer a name that is not UTF-8; default utf-8.
    #[serde(default)]
    pub path_encoding: Option<PathEncoding>,
    /// Whether missing parents are made, and a directory that is there already is no fault; default false.
    #[serde(default)]
    pub recursive: Option<bool>,
}

/// The directory, which is there now.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    /// The path as it was given.
    pub path: String,
    /// Whether it was not there before.
    pub created: bool,
}

pub struct MakeDirectory;

impl Tool for MakeDirectory {
    const NAME: &'static str = "makeDirectory";
    const DESCRIPTION: &'static str =
        "Makes a directory in a sandbox. Without `recursive` its parent must be there, and nothing may have its name.";
    const ROUTES: &'static [Route] = &[];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Make a directory",
        read_only_hint: false,
        destructive_hint: false,
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
        path::check("/path", &input.path, input.path_encoding.unwrap_or_default())?;
        Ok(SandboxClaim::Existing { sandbox_id: input.sandbox_id.clone() })
    }

    fn may_have_acted(ending: &Ending) -> bool {
        ending.may_have_acted() && ending.says("created") != Some(&Value::Bool(false))
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<Output> {
        let target = path::control(path::DIRECTORIES, &input.path, input.path_encoding.unwrap_or_default())?;
        let query = path::query([("recursive", input.recursive.map(|value| value.to_string()))]);
        let request = files::request("PUT", target + &query);
        let made: DirectoryMade = files::ask(&context.services, &input.sandbox_id, request).await?;
        Ok(Output { path: input.path, created: made.created })
    }
}
