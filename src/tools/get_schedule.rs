//! getSchedule: when a schedule runs next, and what became of its last run.

use std::rc::Rc;

use serde::Deserialize;
use utoipa::ToSchema;

use super::schedule_info::{ScheduleInfo, known};
use crate::error::Result;
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::tenant::admission::SandboxClaim;

/// Which schedule.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Id of the schedule.
    #[schema(min_length = 1, max_length = 64)]
    pub schedule_id: String,
}

pub struct GetSchedule;

impl Tool for GetSchedule {
    const NAME: &'static str = "getSchedule";
    const DESCRIPTION: &'static str = "Tells what a schedule calls and when, when it runs next, what became of its last run, and how many were left out, missed or refused. listJobs with `scheduleId` lists its runs.";
    const ROUTES: &'static [Route] = &[Route { method: Method::Get, path: "/v1/schedules/{scheduleId}" }];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Get a schedule",
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
    type Output = ScheduleInfo;

    fn claim(_input: &Input, _facts: &CallFacts<'_>) -> Result<SandboxClaim> {
        Ok(SandboxClaim::None)
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<ScheduleInfo> {
        known(&context, &input.schedule_id).await.map(ScheduleInfo::of)
    }
}
