//! listSchedules: the schedules of the tenant, in pages.

use std::rc::Rc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::schedule_info::ScheduleInfo;
use crate::error::{Error, Result};
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::schedule::listing::ListRequest;
use crate::schedule::record::{Question, ScheduleReport, State};
use crate::tenant::admission::SandboxClaim;
use crate::tenant::jobs::Place;

/// Which page; all given filters must match.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Most schedules in this page; default 100.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 500, default = 100)]
    pub limit: Option<u32>,
    /// `nextCursor` of the page before.
    #[serde(default)]
    #[schema(max_length = 100)]
    pub cursor: Option<String>,
    /// Only schedules in this state: active, paused or ended.
    #[serde(default)]
    pub state: Option<State>,
    /// Only schedules that call this tool.
    #[serde(default)]
    #[schema(max_length = 64)]
    pub tool: Option<String>,
    /// Only schedules that run with the rights of this key.
    #[serde(default)]
    #[schema(max_length = 64)]
    pub key_id: Option<String>,
}

/// One page.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    /// The last one made first.
    pub schedules: Vec<ScheduleInfo>,
    /// For the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

pub struct ListSchedules;

impl Tool for ListSchedules {
    const NAME: &'static str = "listSchedules";
    const DESCRIPTION: &'static str = "Lists the schedules of this tenant, the last made first, without their arguments: when each runs next, and what became of its last run. A key that sees the sandboxes of certain labels only is told of its own.";
    const ROUTES: &'static [Route] = &[Route { method: Method::Get, path: "/v1/schedules" }];
    const ANNOTATIONS: Annotations = Annotations {
        title: "List schedules",
        read_only_hint: true,
        destructive_hint: false,
        idempotent_hint: true,
        open_world_hint: false,
    };
    const GUARDRAILS: Guardrails = Guardrails {
        role: Role::Viewer,
        scopes: &[Scope::SchedulesRead],
        approval: Approval::NotNeeded,
        default_timeout: 15,
        maximum_timeout: 15,
        output_cap_bytes: super::schedule_info::OUTPUT_CAP_BYTES,
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
        let request = ListRequest {
            limit: input.limit.unwrap_or(100),
            after: place(&input)?,
            state: input.state,
            tool: input.tool,
            key_id: input.key_id,
        };
        let report = context.services.tenant.schedules(Question::List(request).into()).await?;
        let ScheduleReport { schedules, more } = report;
        let last = schedules.last().filter(|_| more);
        let next_cursor =
            last.map(|last| Place { created_at: last.created_at, job_id: last.schedule_id.clone() }.text());
        Ok(Output { schedules: schedules.into_iter().map(ScheduleInfo::from).collect(), next_cursor })
    }
}

fn place(input: &Input) -> Result<Option<Place>> {
    let read = |text: &String| Place::parse(text).ok_or_else(|| Error::invalid("/cursor", "is none of listSchedules"));
    input.cursor.as_ref().map(read).transpose()
}
