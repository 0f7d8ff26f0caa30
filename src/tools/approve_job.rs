//! approveJob: lets a call that waits be carried out.

use std::rc::Rc;

use serde::Deserialize;
use utoipa::ToSchema;

use super::deciding::{decidable, decision};
use super::job_info::JobInfo;
use crate::error::{Error, ErrorCode, Result};
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::tenant::admission::SandboxClaim;

/// Which job, and on what condition.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Id of the job.
    #[schema(min_length = 1, max_length = 64)]
    pub job_id: String,
    /// `argumentsSignature` of the job as it was looked at; the call fails with `conflict` where the job has another.
    #[serde(default)]
    #[schema(max_length = 64)]
    pub arguments_signature: Option<String>,
    /// What is told beside the decision.
    #[serde(default)]
    #[schema(max_length = 1000)]
    pub comment: Option<String>,
}

pub struct ApproveJob;

impl Tool for ApproveJob {
    const NAME: &'static str = "approveJob";
    const DESCRIPTION: &'static str = "Approves a call that waits: it is carried out once, with the arguments that it had and the rights that its key has then. The key that asked, keys that come of it, and tokens of these cannot approve it, unless that key's rules allow it; nor can a key that comes of one with rules of which the asking key comes too.";
    const ROUTES: &'static [Route] = &[Route { method: Method::Post, path: "/v1/jobs/{jobId}/approve" }];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Approve a job",
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
        Ok(vec![format!("Job {} ({}), asked for by {}, is carried out.", job.job_id, job.tool, job.key_id)])
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<JobInfo> {
        let job = decidable(&context, &input.job_id).await?;
        if let Some(wanted) = input.arguments_signature {
            let told = context.services.jobs.describe(&job.job_id).await?;
            if told.order.arguments_signature.as_ref() != Some(&wanted) {
                let message = "argumentsSignature: is not that of the job";
                return Err(Error::new(ErrorCode::Conflict, message).detail("field", "argumentsSignature"));
            }
        }
        let decision = decision(&context, true, input.comment);
        let told = context.services.jobs.decide(&job.job_id, &decision).await?;
        Ok(JobInfo::told_to(&context, told))
    }
}
