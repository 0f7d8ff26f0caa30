//! getJob: how one job stands, and what it answered.

use std::rc::Rc;

use serde::Deserialize;
use utoipa::ToSchema;

use super::job_info::{JobInfo, listed};
use crate::error::{ErrorCode, Result};
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::job::message::is_given_up;
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::tenant::admission::SandboxClaim;

/// Which job.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Id of the job, as the answer that made it told.
    #[schema(min_length = 1, max_length = 64)]
    pub job_id: String,
}

pub struct GetJob;

impl Tool for GetJob {
    const NAME: &'static str = "getJob";
    const DESCRIPTION: &'static str = "Tells how a job stands: whether it waits for an approval and why, runs, or is over, and then what it answered. Jobs are kept for a week after their end, or for as long as setJobRetention says; `expiresAt` tells.";
    const ROUTES: &'static [Route] = &[
        Route { method: Method::Get, path: "/v1/jobs/{jobId}" },
        Route { method: Method::Get, path: "/v1/jobs/{jobId}/status" },
    ];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Get a job",
        read_only_hint: true,
        destructive_hint: false,
        idempotent_hint: true,
        open_world_hint: false,
    };
    const GUARDRAILS: Guardrails = Guardrails {
        role: Role::Viewer,
        scopes: &[Scope::JobsRead],
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

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<JobInfo> {
        let job = listed(&context, &input.job_id).await?;
        match context.services.jobs.describe(&job.job_id).await {
            Ok(told) => Ok(JobInfo::told_to(&context, told)),
            // One that was given up since its object cannot be read is known to the list only, and so is one that was never stored.
            Err(_) if is_given_up(&job) => Ok(JobInfo::from(job)),
            Err(error) if error.code == ErrorCode::NotFound && job.state.is_over() => Ok(JobInfo::from(job)),
            Err(error) => Err(error),
        }
    }
}
