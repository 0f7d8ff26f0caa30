//! deployPipeline: the first template of a pipeline: clone, build, test. It has no step that deploys, since no tool does that yet.

use std::collections::BTreeMap;
use std::rc::Rc;

use sandbox_api::WORKSPACE;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::create_sandbox::check_environment;
use super::run_pipeline::{GUARDRAILS, Output, effects};
use super::using_secrets;
use crate::error::{Error, Result};
use crate::events::EventSink;
use crate::guardrails::{Annotations, Execution, Guardrails};
use crate::identifier::SandboxId;
use crate::plan::{self, RollBack, Step};
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::sandbox::git::Clone;
use crate::tenant::admission::SandboxClaim;
use crate::tenant::secret_name::SecretName;

/// Seconds that a build, or the tests, may take when the caller does not say.
const DEFAULT_TIMEOUT_SECONDS: f64 = 600.0;

/// Seconds after which a sandbox is destroyed that the caller gave neither a name nor an end: a day.
const UNNAMED_EXPIRES_AFTER: u32 = 24 * 60 * 60;

/// What to clone, and what to run in it.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Repository to clone: `https://` or `http://`. Credentials in it are used for the clone and kept nowhere but in the job.
    #[schema(min_length = 1, max_length = 2048)]
    pub git_url: String,
    /// Branch or tag to check out; default the repository's own.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 250)]
    pub git_branch: Option<String>,
    /// Seconds that the clone may take; default 60.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 3600)]
    pub git_timeout: Option<u32>,
    /// Name of the sandbox, which must not be there yet; default `pipeline-` and the id of the job.
    #[serde(default)]
    pub sandbox_id: Option<SandboxId>,
    /// Seconds from its creation after which the sandbox is destroyed; default a day where `sandboxId` is not given, else never.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 31536000)]
    pub expires_after: Option<u32>,
    /// Environment of every command, as createSandbox takes it.
    #[serde(default)]
    #[schema(required = false)]
    pub env: BTreeMap<String, String>,
    /// Variables of every command that get the values of named secrets, as createSandbox takes them. Needs the scope secrets:use.
    #[serde(default)]
    #[schema(required = false)]
    pub secrets: BTreeMap<String, SecretName>,
    /// Bash command that builds, in the directory of the clone. Without it there is no such step.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 100_000)]
    pub build: Option<String>,
    /// Bash command that tests, in the directory of the clone. Without it there is no such step.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 100_000)]
    pub test: Option<String>,
    /// Seconds that each of the two may take; default 600.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 3600, default = 600)]
    pub timeout: Option<f64>,
    /// Whether the sandbox is destroyed when the pipeline fails or is cancelled; default false, so that one can look into it. One that the
    /// pipeline did not make stays.
    #[serde(default)]
    pub destroy_on_failure: Option<bool>,
}

pub struct DeployPipeline;

impl Tool for DeployPipeline {
    const NAME: &'static str = "deployPipeline";
    const DESCRIPTION: &'static str = "Runs a pipeline of the steps `clone` (a new sandbox with the repository), `build` and `test` as one job, as runPipeline does. \
        It does not deploy: there is no tool for that yet, so that the template has no such step.";
    const ROUTES: &'static [Route] = &[Route { method: Method::Post, path: "/v1/pipelines/deploy" }];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Clone, build and test",
        read_only_hint: false,
        destructive_hint: true,
        idempotent_hint: false,
        open_world_hint: true,
    };
    const GUARDRAILS: Guardrails = Guardrails { unrecorded_arguments: &["/env"], ..GUARDRAILS };
    const EXECUTION: Execution = Execution::Job;

    type Input = Input;
    type Output = Output;

    fn claim(input: &Input, facts: &CallFacts<'_>) -> Result<SandboxClaim> {
        check_environment(&input.env)?;
        using_secrets::check(&input.secrets, &input.env)?;
        for (pointer, command) in [("/build", &input.build), ("/test", &input.test)] {
            if command.as_ref().is_some_and(|command| command.contains('\0')) {
                return Err(Error::invalid(pointer, "holds a NUL character"));
            }
        }
        plan::check(&Self::plan(input, "id")?, facts).map(|()| SandboxClaim::None)
    }

    fn plan(input: &Input, attempt_id: &str) -> Result<Vec<Step>> {
        let clone = Clone::parse(&input.git_url, input.git_branch.as_deref(), None)?;
        let sandbox_id =
            input.sandbox_id.as_ref().map_or_else(|| format!("pipeline-{attempt_id}"), ToString::to_string);
        let expires_after = match &input.sandbox_id {
            Some(_) => input.expires_after,
            None => Some(input.expires_after.unwrap_or(UNNAMED_EXPIRES_AFTER)),
        };
        let cloned = json!({
            "id": sandbox_id, "gitUrl": input.git_url, "gitBranch": input.git_branch, "gitTimeout": input.git_timeout,
            "env": input.env, "secrets": input.secrets, "expiresAfter": expires_after,
        });
        let undo =
            RollBack { tool: "destroySandbox".to_owned(), arguments: fields(json!({ "sandboxId": sandbox_id })) };
        let clone_step = Step {
            expect: fields(json!({ "created": true })),
            roll_back: (input.destroy_on_failure == Some(true)).then_some(undo),
            ..step("clone", "createSandbox", cloned)
        };
        let directory = format!("{WORKSPACE}/{}", clone.directory);
        let timeout = input.timeout.unwrap_or(DEFAULT_TIMEOUT_SECONDS);
        let command = |name: &str, command: &Option<String>| {
            let command = command.as_ref()?;
            let arguments = json!({
                "sandboxId": sandbox_id, "command": command, "cwd": directory, "timeout": timeout,
            });
            Some(step(name, "exec", arguments))
        };
        Ok([Some(clone_step), command("build", &input.build), command("test", &input.test)]
            .into_iter()
            .flatten()
            .collect())
    }

    async fn preview(_context: Context, input: Input) -> Result<Vec<String>> {
        Ok(effects(&Self::plan(&input, "id")?))
    }

    /// Its job calls the steps; there is nothing else to do.
    async fn call(_context: Context, _input: Input, _events: Rc<dyn EventSink>) -> Result<Output> {
        Ok(Output { steps: Vec::new() })
    }
}

fn step(name: &str, tool: &str, arguments: Value) -> Step {
    Step {
        name: name.to_owned(),
        tool: tool.to_owned(),
        arguments: fields(arguments),
        condition: None,
        roll_back: None,
        continue_on_error: None,
        expect: Map::new(),
    }
}

/// The fields of an object that are given.
fn fields(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields.into_iter().filter(|(_, value)| !value.is_null()).collect(),
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(arguments: Value) -> Vec<Step> {
        let input: Input = serde_json::from_value(arguments).unwrap();
        DeployPipeline::plan(&input, "a-1").unwrap()
    }

    #[test]
    fn a_step_is_there_for_what_is_asked_for_and_none_deploys() {
        let steps = plan(json!({ "gitUrl": "https://host/team/app.git", "build": "make", "test": "make check" }));
        let names: Vec<_> = steps.iter().map(|step| (step.name.as_str(), step.tool.as_str())).collect();
        assert_eq!(names, [("clone", "createSandbox"), ("build", "exec"), ("test", "exec")]);
        assert_eq!(steps[0].arguments["id"], "pipeline-a-1");
        assert_eq!(steps[0].arguments["expiresAfter"], UNNAMED_EXPIRES_AFTER);
        assert_eq!(
            (&steps[1].arguments["cwd"], &steps[2].arguments["timeout"]),
            (&json!("/workspace/app"), &json!(600.0))
        );
        assert!(steps.iter().all(|step| step.roll_back.is_none()));
    }

    #[test]
    fn a_named_sandbox_stays_unless_an_end_is_given() {
        let named = json!({ "gitUrl": "https://host/app", "sandboxId": "mine", "destroyOnFailure": true });
        let steps = plan(named);
        assert_eq!(steps.len(), 1);
        assert_eq!((&steps[0].arguments["id"], steps[0].arguments.get("expiresAfter")), (&json!("mine"), None));
        assert_eq!(steps[0].roll_back.as_ref().unwrap().arguments["sandboxId"], "mine");
    }
}
