//! retryJob: begins a job again that is over and did not succeed.

use std::rc::Rc;

use serde::Deserialize;
use utoipa::ToSchema;

use super::job_info::{JobInfo, own};
use crate::error::Result;
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::job::record::{Again, Job};
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::tenant::admission::SandboxClaim;

/// Which job, and on what condition.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Id of the job.
    #[schema(min_length = 1, max_length = 64)]
    pub job_id: String,
    /// Whether an `interrupted` job is begun again although it may have done its work already. Default false.
    #[serde(default)]
    pub although_it_may_have_acted: Option<bool>,
    /// Whether a pipeline goes on with the step that failed, without those before it that succeeded and were not undone; otherwise it
    /// begins with its first step. Default false.
    #[serde(default)]
    pub from_failed: Option<bool>,
}

pub struct RetryJob;

impl Tool for RetryJob {
    const NAME: &'static str = "retryJob";
    const DESCRIPTION: &'static str = "Begins a job again that is `failed`, `cancelled` or `interrupted`: a new attempt with the same arguments and the rights that its key has now. With `fromFailed` a pipeline goes on with the step that failed. An `interrupted` one may have done its work, so it needs `althoughItMayHaveActed`. Refused with `conflict`: jobs that are not over, that succeeded, those that had to be approved, since an approval is for one attempt, and steps of a pipeline.";
    const ROUTES: &'static [Route] = &[Route { method: Method::Post, path: "/v1/jobs/{jobId}/retry" }];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Retry a job",
        read_only_hint: false,
        destructive_hint: true,
        idempotent_hint: false,
        open_world_hint: true,
    };
    const GUARDRAILS: Guardrails = Guardrails {
        role: Role::Operator,
        scopes: &[Scope::JobsWrite],
        approval: Approval::NotNeeded,
        default_timeout: 15,
        maximum_timeout: 15,
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
        let job = one_to_begin(&context, &input.job_id).await?;
        Ok(vec![format!("Job {} ({}), which is {}, is begun again.", job.job_id, job.tool, job.state.as_str())])
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<JobInfo> {
        let job = one_to_begin(&context, &input.job_id).await?;
        let again = Again {
            call_id: context.call_id.clone(),
            although_it_may_have_acted: input.although_it_may_have_acted.unwrap_or(false),
            from_failed: input.from_failed.unwrap_or(false),
            at: context.services.platform.now_millis(),
        };
        let told = context.services.jobs.retry(&job.job_id, &again).await?;
        Ok(JobInfo::told_to(&context, told))
    }
}

/// The job, if this caller may name what it names: it is begun for them.
async fn one_to_begin(context: &Context, job_id: &str) -> Result<Job> {
    let told = own(context, job_id).await?;
    context.permissions.check_named(&told.order.requirement)?;
    Ok(told.job)
}
