//! runPipeline: calls of tools one after the other, with conditions and roll-backs, as one job.

use std::rc::Rc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::step_info::StepInfo;
use crate::error::Result;
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::plan::{self, Condition, Step};
use crate::registry::{CallFacts, Context, Method, Registry, Route, Tool};
use crate::tenant::admission::SandboxClaim;

/// What to carry out.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// The steps, in the order in which they run; 1 to 50.
    #[schema(min_items = 1, max_items = 50)]
    pub steps: Vec<Step>,
}

/// How the steps of a pipeline that succeeded ended.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    /// All of them, in their order.
    pub steps: Vec<StepInfo>,
}

/// Guardrails of a pipeline: its steps have those of their own tools beside.
pub const GUARDRAILS: Guardrails = Guardrails {
    role: Role::Operator,
    scopes: &[Scope::JobsWrite],
    approval: Approval::NotNeeded,
    default_timeout: 30,
    maximum_timeout: 30,
    output_cap_bytes: super::job_info::OUTPUT_CAP_BYTES,
    rate_class: RateClass::Read,
    unrecorded_arguments: &[],
    told_once: &[],
};

pub struct RunPipeline;

impl Tool for RunPipeline {
    const NAME: &'static str = "runPipeline";
    const DESCRIPTION: &'static str = "Calls tools one after the other as one job, which goes on without its caller: `steps` with a name, a tool and its arguments, \
        a condition (`onSuccess`, `onFailure`, `always`), and a `rollBack` that undoes the step if the pipeline fails or is cancelled, unless the step did nothing. A command that ends with another exit code than 0 is a failed step. \
        Every step is checked before the first runs, and is then a call of its own with the rights, limits and approvals of the same key. getJob tells how the steps stand, getJobLogs what they wrote, \
        cancelJob ends it, and retryJob with `fromFailed` goes on with the step that failed.";
    const ROUTES: &'static [Route] = &[Route { method: Method::Post, path: "/v1/pipelines" }];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Run a pipeline",
        read_only_hint: false,
        destructive_hint: true,
        idempotent_hint: false,
        open_world_hint: true,
    };
    const GUARDRAILS: Guardrails = GUARDRAILS;
    const EXECUTION: Execution = Execution::Job;

    type Input = Input;
    type Output = Output;

    fn claim(input: &Input, facts: &CallFacts<'_>) -> Result<SandboxClaim> {
        plan::check(&input.steps, facts).map(|()| SandboxClaim::None)
    }

    fn plan(input: &Input, _attempt_id: &str) -> Result<Vec<Step>> {
        Ok(input.steps.clone())
    }

    fn unrecorded(arguments: &Value, registry: &Registry) -> Vec<String> {
        let steps = arguments.get("steps").cloned().map(serde_json::from_value::<Vec<Step>>);
        steps.and_then(Result::ok).map(|steps| plan::unrecorded(&steps, registry)).unwrap_or_default()
    }

    async fn preview(_context: Context, input: Input) -> Result<Vec<String>> {
        Ok(effects(&input.steps))
    }

    /// Its job calls the steps; there is nothing else to do.
    async fn call(_context: Context, _input: Input, _events: Rc<dyn EventSink>) -> Result<Output> {
        Ok(Output { steps: Vec::new() })
    }
}

/// What a pipeline would do, a sentence for each step.
pub fn effects(steps: &[Step]) -> Vec<String> {
    let effect = |step: &Step| {
        let when = match step.condition.unwrap_or_default() {
            Condition::OnSuccess => "",
            Condition::OnFailure => " once a step has failed",
            Condition::Always => ", whether a step has failed or not",
        };
        let undo = step.roll_back.as_ref().map(|undo| format!("; {} undoes it if the pipeline fails", undo.tool));
        format!("The step {:?} calls {}{when}{}.", step.name, step.tool, undo.unwrap_or_default())
    };
    steps.iter().map(effect).collect()
}
