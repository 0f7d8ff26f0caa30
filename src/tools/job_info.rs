//! A job as tools tell of it, and what tools about jobs share.

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::step_info::StepInfo;
use crate::error::{Error, ErrorCode, Problem, Result};
use crate::job::record::{Approval, Job, StepOf, Told};
use crate::job::state::State;
use crate::plan::{Progress, StepTold};
use crate::platform::rfc3339;
use crate::registry::Context;
use crate::tenant::approval::Reason;
use crate::tenant::jobs::JobListRequest;
use crate::tenant::permissions::Permissions;

/// One job.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobInfo {
    /// Its id: that of the call that it was.
    pub job_id: String,
    /// What is carried out.
    pub tool: String,
    /// awaiting_approval, queued, running, succeeded, failed, interrupted, cancelled or rejected.
    pub state: State,
    /// What it waits for while it is queued, if not only for its beginning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<WaitsFor>,
    /// Key that asked for it.
    pub key_id: String,
    /// Token that asked for it, if it was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_id: Option<String>,
    /// The pipeline that it is a step of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_of: Option<StepOf>,
    /// The schedule that asked for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule_id: Option<String>,
    /// Sandbox that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<String>,
    /// When it was asked for: RFC 3339, UTC.
    pub created_at: String,
    /// When it last changed: RFC 3339, UTC.
    pub updated_at: String,
    /// When it began to be carried out: RFC 3339, UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub begun_at: Option<String>,
    /// When it was over: RFC 3339, UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
    /// When it is forgotten, once it is over: RFC 3339, UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// How often it was begun.
    pub attempts: u32,
    /// Present where it had to be approved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval: Option<ApprovalInfo>,
    /// When somebody asked for its end: RFC 3339, UTC. It is over once `state` says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancel_requested_at: Option<String>,
    /// Key that asked for its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancelled_by: Option<String>,
    /// Its arguments, secrets masked and long values cut. Not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = std::collections::BTreeMap<String, Value>, required = false)]
    pub arguments: Option<Map<String, Value>>,
    /// Keyed hash of its arguments as they were sent. Not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arguments_signature: Option<String>,
    /// Exit code of its command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// What the tool answered, for who may call that tool. Not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = std::collections::BTreeMap<String, Value>, required = false)]
    pub output: Option<Value>,
    /// How the steps of a pipeline stand. Not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<Vec<StepInfo>>,
    /// Why it failed, was interrupted, cancelled or rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Problem>,
}

/// What keeps a queued job from beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum WaitsFor {
    /// As many jobs run at once as may; those that came before it begin first.
    Place,
}

/// Most bytes of an answer that tells a job: what its tool answered, as much as any tool may, and the rest beside it.
pub const OUTPUT_CAP_BYTES: u64 = 18 * 1024 * 1024;

/// Why a job had to be approved, and what was decided.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalInfo {
    /// What made it wait.
    pub reason: Reason,
    /// When it is rejected by itself: RFC 3339, UTC.
    pub expires_at: String,
    /// Whether it was approved; absent while nobody decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approved: Option<bool>,
    /// Key that decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decided_by: Option<String>,
    /// When: RFC 3339, UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decided_at: Option<String>,
    /// What was said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
}

impl From<Approval> for ApprovalInfo {
    fn from(approval: Approval) -> Self {
        let Approval { reason, expires_at, decision } = approval;
        Self {
            reason,
            expires_at: rfc3339(expires_at),
            approved: decision.as_ref().map(|decision| decision.approved),
            decided_by: decision.as_ref().map(|decision| decision.key_id.clone()),
            decided_at: decision.as_ref().map(|decision| rfc3339(decision.at)),
            comment: decision.and_then(|decision| decision.comment),
        }
    }
}

impl From<Job> for JobInfo {
    fn from(job: Job) -> Self {
        let expires_at = job.expires_at().map(rfc3339);
        let error = job.error.map(|error| error.problem(&job.job_id));
        Self {
            job_id: job.job_id,
            tool: job.tool,
            state: job.state,
            waits_for: job.waits_for_place.then_some(WaitsFor::Place),
            key_id: job.key_id,
            token_id: job.token_id,
            step_of: job.step_of,
            schedule_id: job.schedule_id,
            sandbox_id: job.sandbox_id.map(Into::into),
            created_at: rfc3339(job.created_at),
            updated_at: rfc3339(job.updated_at),
            begun_at: job.begun_at.map(rfc3339),
            ended_at: job.ended_at.map(rfc3339),
            expires_at,
            attempts: job.attempts,
            approval: job.approval.map(ApprovalInfo::from),
            cancel_requested_at: job.cancellation.as_ref().map(|wish| rfc3339(wish.at)),
            cancelled_by: job.cancellation.map(|wish| wish.key_id),
            arguments: None,
            arguments_signature: None,
            exit_code: job.exit_code,
            output: None,
            steps: None,
            error,
        }
    }
}

impl JobInfo {
    /// Everything that is known of a job.
    pub fn of(told: Told) -> Self {
        let Told { job, order, output, details, steps } = told;
        let steps = (!steps.is_empty()).then(|| steps.into_iter().map(StepInfo::from).collect());
        let job = Job { error: job.error.map(|error| error.with_details(details)), ..job };
        let arguments = match order.recorded {
            Value::Object(fields) => fields,
            _ => Map::new(),
        };
        let arguments_signature = order.arguments_signature;
        Self { arguments: Some(arguments), arguments_signature, output, steps, ..Self::from(job) }
    }

    /// The same as this caller is told it: what a tool answered is for who may call that tool.
    pub fn told_to(context: &Context, told: Told) -> Self {
        Self::of(for_whom(&context.permissions, told))
    }
}

/// The same without what tools answered, unless these permissions are enough to call them.
fn for_whom(permissions: &Permissions, mut told: Told) -> Told {
    if permissions.check(&told.order.requirement).is_err() {
        (told.output, told.details) = (None, None);
        let calls = told
            .steps
            .iter_mut()
            .flat_map(|StepTold { progress: Progress { call, roll_back }, .. }| std::iter::once(call).chain(roll_back));
        calls.filter_map(|call| call.error.as_mut()).for_each(|error| error.details.clear());
    }
    told
}

/// The job of that id as the tenant lists it; 404 where there is none that this caller sees.
pub async fn listed(context: &Context, job_id: &str) -> Result<Job> {
    let request = JobListRequest { limit: 1, job_id: Some(job_id.to_owned()), ..JobListRequest::default() };
    let found = context.services.tenant.list_jobs(request).await?.jobs.into_iter().next();
    found.ok_or_else(|| {
        Error::new(ErrorCode::NotFound, format!("there is no job {job_id:?}; listJobs lists them"))
            .detail("jobId", job_id)
    })
}

/// The job of that id, which the caller sees and could have asked for.
pub async fn own(context: &Context, job_id: &str) -> Result<Told> {
    let job = listed(context, job_id).await?;
    let told = context.services.jobs.describe(&job.job_id).await?;
    context.permissions.check(&told.order.requirement)?;
    Ok(told)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::guardrails::Role;
    use crate::tools;

    /// A pipeline whose step answered something else than was expected.
    fn told() -> Told {
        let registry = tools::registry();
        let steps = json!({ "steps": [{ "name": "a", "tool": "exec", "arguments": { "command": "true" } }] });
        let requirement = registry.get("runPipeline").unwrap().requirement(&steps, &registry);
        let error = json!({ "code": "step_failed", "message": "stdout is not what the step expects", "retryable": false,
            "details": { "actual": "hunter2" } });
        let failed = json!({ "state": "failed", "error": error });
        serde_json::from_value(json!({
            "job": { "jobId": "j", "tool": "runPipeline", "state": "failed", "version": 3, "keyId": "k", "createdAt": 1, "updatedAt": 2 },
            "order": { "tenant": "t", "requirement": requirement, "recorded": {} },
            "output": { "said": "hunter2" },
            "details": { "actual": "hunter2" },
            "steps": [{ "name": "a", "tool": "exec", "rollBackTool": "exec", "progress": { "call": failed, "rollBack": failed } }],
        }))
        .unwrap()
    }

    #[test]
    fn what_a_step_answered_is_told_to_who_may_call_its_tool_only() {
        let shown =
            |permissions: &Permissions| serde_json::to_value(JobInfo::of(for_whom(permissions, told()))).unwrap();
        let all = shown(&Permissions::of(Role::Operator));
        assert_eq!(all["steps"][0]["error"]["details"]["actual"], "hunter2");
        assert_eq!(all.to_string().matches("hunter2").count(), 3, "of the step, of its roll-back and as output");
        let narrow = ["runPipeline", "getJob"].map(str::to_owned).into();
        let others =
            [Permissions::of(Role::Viewer), Permissions { tools: Some(narrow), ..Permissions::of(Role::Admin) }];
        for permissions in others {
            let told = shown(&permissions);
            assert!(!told.to_string().contains("hunter2"), "{told}");
            assert_eq!(told["steps"][0]["error"]["detail"], "stdout is not what the step expects");
        }
    }
}
