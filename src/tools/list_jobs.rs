//! listJobs: the jobs of the tenant, in pages.

use std::rc::Rc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::job_info::JobInfo;
use super::moment::moment;
use crate::error::{Error, Result};
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::identifier::SandboxId;
use crate::job::state::State;
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::tenant::admission::SandboxClaim;
use crate::tenant::jobs::{JobListRequest, JobListing, Place};

/// Which page; all given filters must match.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Most jobs in this page; default 100.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 500, default = 100)]
    pub limit: Option<u32>,
    /// `nextCursor` of the page before.
    #[serde(default)]
    #[schema(max_length = 100)]
    pub cursor: Option<String>,
    /// Only jobs in this state.
    #[serde(default)]
    pub state: Option<State>,
    /// Only jobs of this tool.
    #[serde(default)]
    #[schema(max_length = 64)]
    pub tool: Option<String>,
    /// Only jobs that this key asked for.
    #[serde(default)]
    #[schema(max_length = 64)]
    pub key_id: Option<String>,
    /// Only jobs about this sandbox.
    #[serde(default)]
    pub sandbox_id: Option<SandboxId>,
    /// Only jobs that were asked for after this time: RFC 3339.
    #[serde(default)]
    #[schema(format = DateTime)]
    pub created_after: Option<String>,
    /// Only jobs that were asked for before this time: RFC 3339.
    #[serde(default)]
    #[schema(format = DateTime)]
    pub created_before: Option<String>,
    /// Only jobs that were over after this time: RFC 3339.
    #[serde(default)]
    #[schema(format = DateTime)]
    pub ended_after: Option<String>,
    /// Only jobs that were over before this time: RFC 3339.
    #[serde(default)]
    #[schema(format = DateTime)]
    pub ended_before: Option<String>,
    /// Only jobs that this schedule asked for: its runs.
    #[serde(default)]
    #[schema(max_length = 64)]
    pub schedule_id: Option<String>,
}

/// One page.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    /// The last one first.
    pub jobs: Vec<JobInfo>,
    /// For the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
    /// Seconds after their end at which jobs are forgotten that are asked for from now on (setJobRetention).
    pub expires_after: u32,
}

pub struct ListJobs;

impl Tool for ListJobs {
    const NAME: &'static str = "listJobs";
    const DESCRIPTION: &'static str = "Lists the jobs of this tenant, the last first, without their arguments and answers. A key that sees the sandboxes of certain labels only is told of jobs about those, and of its own.";
    const ROUTES: &'static [Route] = &[Route { method: Method::Get, path: "/v1/jobs" }];
    const ANNOTATIONS: Annotations = Annotations {
        title: "List jobs",
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
        output_cap_bytes: 4 * 1024 * 1024,
        rate_class: RateClass::Read,
        unrecorded_arguments: &[],
        told_once: &[],
    };
    const EXECUTION: Execution = Execution::Inline;

    type Input = Input;
    type Output = Output;

    fn claim(input: &Input, _facts: &CallFacts<'_>) -> Result<SandboxClaim> {
        asked(input).map(|_| SandboxClaim::None)
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<Output> {
        let JobListing { jobs, more, expires_after } = context.services.tenant.list_jobs(asked(&input)?).await?;
        let last = jobs.last().filter(|_| more);
        let next_cursor = last.map(|job| Place { created_at: job.created_at, job_id: job.job_id.clone() }.text());
        Ok(Output { jobs: jobs.into_iter().map(JobInfo::from).collect(), next_cursor, expires_after })
    }
}

fn asked(input: &Input) -> Result<JobListRequest> {
    let place = |text: &String| Place::parse(text).ok_or_else(|| Error::invalid("/cursor", "is none of listJobs"));
    Ok(JobListRequest {
        limit: input.limit.unwrap_or(100),
        after: input.cursor.as_ref().map(place).transpose()?,
        state: input.state,
        tool: input.tool.clone(),
        key_id: input.key_id.clone(),
        sandbox_id: input.sandbox_id.clone().map(Into::into),
        schedule_id: input.schedule_id.clone(),
        created_after: moment(input.created_after.as_deref(), "/createdAfter")?,
        created_before: moment(input.created_before.as_deref(), "/createdBefore")?,
        ended_after: moment(input.ended_after.as_deref(), "/endedAfter")?,
        ended_before: moment(input.ended_before.as_deref(), "/endedBefore")?,
        ..JobListRequest::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(arguments: Value) -> Result<JobListRequest> {
        asked(&serde_json::from_value(arguments).unwrap())
    }

    #[test]
    fn times_are_read_and_a_wrong_one_is_refused_by_its_field() {
        let fields = ["createdAfter", "createdBefore", "endedAfter", "endedBefore"];
        let all = json!({ "createdAfter": "1970-01-01T00:00:01Z", "createdBefore": "1970-01-01T00:00:02Z",
            "endedAfter": "1970-01-01T00:00:03Z", "endedBefore": "1970-01-01T00:00:04Z" });
        let request = read(all).unwrap();
        let told = [request.created_after, request.created_before, request.ended_after, request.ended_before];
        assert_eq!(told, [Some(1_000), Some(2_000), Some(3_000), Some(4_000)]);
        for field in fields {
            let error = read(json!({ field: "yesterday" })).unwrap_err();
            assert!(format!("{error:?}").contains(&format!("/{field}")), "{error:?}");
        }
        assert!(format!("{:?}", read(json!({ "cursor": "x" })).unwrap_err()).contains("/cursor"));
    }
}
