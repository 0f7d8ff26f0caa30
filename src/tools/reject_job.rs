//! rejectJob: ends a call that waits.

use std::rc::Rc;

use serde::Deserialize;
use utoipa::ToSchema;

use super::deciding::{decidable, decision};
use super::job_info::JobInfo;
use crate::error::Result;
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::tenant::admission::SandboxClaim;

/// Which job, and why.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Id of the job.
    #[schema(min_length = 1, max_length = 64)]
    pub job_id: String,
    /// Why; who asked is told.
    #[serde(default)]
    #[schema(max_length = 1000)]
    pub comment: Option<String>,
}

pub struct RejectJob;

impl Tool for RejectJob {
    const NAME: &'static str = "rejectJob";
    const DESCRIPTION: &'static str = "Rejects a call that waits for an approval: it is never carried out, and fails with `approval_rejected`. Who may not approve a job may not reject it either.";
    const ROUTES: &'static [Route] = &[Route { method: Method::Post, path: "/v1/jobs/{jobId}/reject" }];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Reject a job",
        read_only_hint: false,
        destructive_hint: true,
        idempotent_hint: true,
        open_world_hint: false,
    };
    const GUARDRAILS: Guardrails = Guardrails {
        role: Role::Admin,
        scopes: &[Scope::JobsApprove],
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
        let job = decidable(&context, &input.job_id).await?;
        Ok(vec![format!("Job {} ({}), asked for by {}, is never carried out.", job.job_id, job.tool, job.key_id)])
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<JobInfo> {
        let job = decidable(&context, &input.job_id).await?;
        let decision = decision(&context, false, input.comment);
        let told = context.services.jobs.decide(&job.job_id, &decision).await?;
        Ok(JobInfo::told_to(&context, told))
    }
}
