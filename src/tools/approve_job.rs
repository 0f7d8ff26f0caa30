//! approveJob: lets a call that waits be carried out.

use std::rc::Rc;

use serde::Deserialize;
use utoipa::ToSchema;

use super::job_info::{JobInfo, listed};
use crate::error::{Error, ErrorCode, Result};
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::job::record::{Decision, Job};
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::tenant::admission::SandboxClaim;
use crate::tenant::keys::KeyRequest;
use crate::tenant::token::ROOT_KEY_ID;

/// Keys looked at from a key to those that made it.
const MOST_ANCESTORS: usize = 16;

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
    const DESCRIPTION: &'static str = "Approves a call that waits: it is carried out once, with the arguments that it had and the rights that its key has then. The key that asked, keys that it made, and tokens of these cannot approve it, unless that key's rules allow it.";
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
        output_cap_bytes: 8 * 1024 * 1024,
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
        let job = listed(&context, &input.job_id).await?;
        may_decide(&context, &job).await?;
        Ok(vec![format!("Job {} ({}), asked for by {}, is carried out.", job.job_id, job.tool, job.key_id)])
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<JobInfo> {
        let job = listed(&context, &input.job_id).await?;
        may_decide(&context, &job).await?;
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

pub fn decision(context: &Context, approved: bool, comment: Option<String>) -> Decision {
    let (key_id, call_id) = (context.principal.key_id.clone(), context.call_id.clone());
    Decision { approved, key_id, call_id, at: context.admitted_at, comment }
}

/// 403 for who asked and for whoever it could have made its hand: two keys decide for each other only where no key of which both come has
/// rules for approval itself.
pub async fn may_decide(context: &Context, job: &Job) -> Result<()> {
    let own = &context.principal.key_id;
    if *own == job.key_id && context.permissions.approval.approves_own {
        return Ok(());
    }
    let asking = family(context, &job.key_id).await?;
    let deciding = family(context, own).await?;
    let is_of = |family: &[Ancestor], key_id: &str| family.iter().any(|one| one.key_id == key_id);
    let is_shared = |one: &Ancestor| one.has_rules && is_of(&asking, &one.key_id);
    if *own == job.key_id || is_of(&deciding, &job.key_id) || deciding.iter().any(is_shared) {
        let message = "a call is approved or rejected by another key than the one that asked, and by none that comes of a key with rules \
                       of which both come";
        return Err(Error::new(ErrorCode::Forbidden, message).detail("jobId", job.job_id.as_str()));
    }
    Ok(())
}

/// A key, or one that made it, however indirectly.
struct Ancestor {
    key_id: String,
    /// Whether its own calls wait, and for another to approve them.
    has_rules: bool,
}

/// A key and those that made it; the root key has none and is in nobody's.
async fn family(context: &Context, key_id: &str) -> Result<Vec<Ancestor>> {
    let mut family = Vec::new();
    let mut key_id = key_id.to_owned();
    while key_id != ROOT_KEY_ID {
        if family.len() == MOST_ANCESTORS {
            return Err(Error::new(ErrorCode::Forbidden, "a key was made by too many others to approve calls"));
        }
        let key = context.services.tenant.keys(KeyRequest::Get { key_id: key_id.clone() }).await?.one()?;
        let approval = &key.permissions.approval;
        family.push(Ancestor { key_id, has_rules: !approval.is_empty() && !approval.approves_own });
        key_id = key.created_by;
    }
    Ok(family)
}

/// Whether a key comes of another, or is it.
pub async fn comes_of(context: &Context, key_id: &str, ancestor: &str) -> Result<bool> {
    Ok(family(context, key_id).await?.iter().any(|one| one.key_id == ancestor))
}
