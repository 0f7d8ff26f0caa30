//! cancelJob: ends a job that is not over.

use std::rc::Rc;

use serde::Deserialize;
use utoipa::ToSchema;

use super::job_info::{JobInfo, own};
use crate::error::Result;
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::job::record::{Cancellation, Told};
use crate::job::state::State;
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::tenant::admission::SandboxClaim;

/// Which job.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Id of the job.
    #[schema(min_length = 1, max_length = 64)]
    pub job_id: String,
}

pub struct CancelJob;

impl Tool for CancelJob {
    const NAME: &'static str = "cancelJob";
    const DESCRIPTION: &'static str = "Cancels a job. One that has not begun is never carried out. A command that runs is killed with all its children, and the job is `cancelled` once that is confirmed; until then the answer says `running` with `cancelRequestedAt`. Of a pipeline the step that runs is cancelled so; the steps after it are not begun, and then it is rolled back. A job of another tool that is under way, or that is over, cannot be cancelled (`conflict`). It waits for no approval as destructive tools do.";
    const ROUTES: &'static [Route] = &[Route { method: Method::Post, path: "/v1/jobs/{jobId}/cancel" }];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Cancel a job",
        read_only_hint: false,
        destructive_hint: true,
        idempotent_hint: true,
        open_world_hint: false,
    };
    const GUARDRAILS: Guardrails = Guardrails {
        role: Role::Operator,
        scopes: &[Scope::JobsWrite],
        approval: Approval::Brake,
        default_timeout: 30,
        maximum_timeout: 30,
        output_cap_bytes: super::job_info::OUTPUT_CAP_BYTES,
        rate_class: RateClass::Read,
        unrecorded_arguments: &[],
        told_once: &[],
    };
    const EXECUTION: Execution = Execution::Inline;

    type Input = Input;
    type Output = JobInfo;

    fn claim(_input: &Input, _facts: &CallFacts<'_>) -> Result<SandboxClaim> {
        Ok(SandboxClaim::None)
    }

    async fn preview(context: Context, input: Input) -> Result<Vec<String>> {
        let Told { job, order, .. } = own(&context, &input.job_id).await?;
        let is_pipeline = !order.requirement.steps.is_empty();
        let what = match job.state {
            State::AwaitingApproval | State::Queued => "is never carried out",
            State::Running if is_pipeline => "is under way: its step is ended, and what it did is rolled back",
            State::Running => "is under way: its command is killed with all its children",
            _ => "is over, and stays as it is",
        };
        Ok(vec![format!("Job {} ({}) {what}.", job.job_id, job.tool)])
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<JobInfo> {
        let job = own(&context, &input.job_id).await?.job;
        let (key_id, call_id) = (context.principal.key_id.clone(), context.call_id.clone());
        let wish = Cancellation { key_id, call_id, at: context.services.platform.now_millis() };
        let told = context.services.jobs.cancel(&job.job_id, &wish).await?;
        Ok(JobInfo::told_to(&context, told))
    }
}
