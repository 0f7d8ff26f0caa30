//! runSchedule: makes a run of a schedule now.

use std::rc::Rc;

use serde::Deserialize;
use utoipa::ToSchema;

use super::schedule_info::{ScheduleInfo, may_run, own};
use crate::error::Result;
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::schedule::record::Question;
use crate::tenant::admission::SandboxClaim;

/// Which schedule.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Id of the schedule.
    #[schema(min_length = 1, max_length = 64)]
    pub schedule_id: String,
}

pub struct RunSchedule;

impl Tool for RunSchedule {
    const NAME: &'static str = "runSchedule";
    const DESCRIPTION: &'static str = "Makes a run of a schedule now, also of one that is paused or has ended, beside those that are due: the job is `lastJobId`. It has the rights and approvals of the key of the schedule. Refused with `conflict` while a run is not over. Needs the rights of the tool that it calls.";
    const ROUTES: &'static [Route] = &[Route { method: Method::Post, path: "/v1/schedules/{scheduleId}/run" }];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Run a schedule now",
        read_only_hint: false,
        destructive_hint: true,
        idempotent_hint: false,
        open_world_hint: true,
    };
    const GUARDRAILS: Guardrails = Guardrails {
        role: Role::Operator,
        scopes: &[Scope::SchedulesWrite],
        approval: Approval::NotNeeded,
        default_timeout: 30,
        maximum_timeout: 30,
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

    async fn preview(context: Context, input: Input) -> Result<Vec<String>> {
        let schedule = own(&context, &input.schedule_id).await?;
        Ok(vec![format!(
            "The schedule {:?} calls {} with the rights of the key {}.",
            schedule.name, schedule.call.tool, schedule.key_id
        )])
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<ScheduleInfo> {
        let schedule = own(&context, &input.schedule_id).await?;
        may_run(&context, &schedule)?;
        let schedule_id = schedule.schedule_id;
        let question = Question::Run { schedule_id, job_id: format!("{}-run", context.call_id) };
        context.services.tenant.schedules(question.into()).await?.one().map(ScheduleInfo::of)
    }
}
