//! listJobs: the jobs of the tenant, in pages.

use std::rc::Rc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::job_info::JobInfo;
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
        place(input).map(|_| SandboxClaim::None)
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<Output> {
        let request = JobListRequest {
            limit: input.limit.unwrap_or(100),
            after: place(&input)?,
            state: input.state,
            tool: input.tool,
            key_id: input.key_id,
            sandbox_id: input.sandbox_id.map(Into::into),
            schedule_id: input.schedule_id,
            ..JobListRequest::default()
        };
        let JobListing { jobs, more } = context.services.tenant.list_jobs(request).await?;
        let last = jobs.last().filter(|_| more);
        let next_cursor = last.map(|job| Place { created_at: job.created_at, job_id: job.job_id.clone() }.text());
        Ok(Output { jobs: jobs.into_iter().map(JobInfo::from).collect(), next_cursor })
    }
}

fn place(input: &Input) -> Result<Option<Place>> {
    let read = |text: &String| Place::parse(text).ok_or_else(|| Error::invalid("/cursor", "is none of listJobs"));
    input.cursor.as_ref().map(read).transpose()
}
