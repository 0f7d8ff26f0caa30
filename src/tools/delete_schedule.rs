//! deleteSchedule: takes a schedule away.

use std::rc::Rc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::schedule_info::own;
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

/// What was done.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    /// Id of the schedule that there is no more.
    pub schedule_id: String,
    /// Always true.
    pub deleted: bool,
}

pub struct DeleteSchedule;

impl Tool for DeleteSchedule {
    const NAME: &'static str = "deleteSchedule";
    const DESCRIPTION: &'static str = "Takes a schedule away at once and for good; nothing more is run of it. Runs that are jobs already go on, and are ended with cancelJob. Needs the rights of the tool that it calls.";
    const ROUTES: &'static [Route] = &[Route { method: Method::Delete, path: "/v1/schedules/{scheduleId}" }];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Delete a schedule",
        read_only_hint: false,
        destructive_hint: true,
        idempotent_hint: true,
        open_world_hint: false,
    };
    const GUARDRAILS: Guardrails = Guardrails {
        role: Role::Operator,
        scopes: &[Scope::SchedulesWrite],
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

    fn claim(_input: &Input, _facts: &CallFacts<'_>) -> Result<SandboxClaim> {
        Ok(SandboxClaim::None)
    }

    async fn preview(context: Context, input: Input) -> Result<Vec<String>> {
        let schedule = own(&context, &input.schedule_id).await?;
        Ok(vec![format!(
            "Schedule {} ({}), which calls {}, is taken away.",
            schedule.schedule_id, schedule.name, schedule.call.tool
        )])
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<Output> {
        let schedule_id = own(&context, &input.schedule_id).await?.schedule_id;
        let question = Question::Remove { schedule_id: schedule_id.clone() };
        context.services.tenant.schedules(question.into()).await?;
        Ok(Output { schedule_id, deleted: true })
    }
}
