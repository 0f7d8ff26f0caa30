//! updateSchedule: pauses or resumes a schedule, or changes what it calls and when.

use std::rc::Rc;

use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::create_schedule::expires;
use super::schedule_info::{ScheduleInfo, known, may_call, no_token};
use crate::error::{Error, Result};
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::platform::Platform;
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::schedule::arguments;
use crate::schedule::change::{self, Change, Expiry};
use crate::schedule::record::{Call, Overlap, Question};
use crate::tenant::admission::SandboxClaim;

/// What to change; what is absent stays as it is.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Id of the schedule.
    #[schema(min_length = 1, max_length = 64)]
    pub schedule_id: String,
    /// Whether nothing is run until it is resumed: true pauses, false resumes. A run that is a job already goes on.
    #[serde(default)]
    pub paused: Option<bool>,
    /// What its owner calls it.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 100)]
    pub name: Option<String>,
    /// Tool that is called from now on; together with `arguments`.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 64)]
    pub tool: Option<String>,
    /// All arguments from now on; together with `tool`.
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, Value>, required = false)]
    pub arguments: Option<Map<String, Value>>,
    /// When it runs from now on, once: RFC 3339.
    #[serde(default)]
    #[schema(format = DateTime)]
    pub at: Option<String>,
    /// When it runs from now on: minute, hour, day of the month, month and day of the week.
    #[serde(default)]
    #[schema(max_length = 100)]
    pub cron: Option<String>,
    /// Time zone of `cron`, by its name of the IANA database; default UTC.
    #[serde(default)]
    #[schema(max_length = 64)]
    pub time_zone: Option<String>,
    /// What happens when a run is due while one before it is not over: `skip`, `queue` or `allow`.
    #[serde(default)]
    pub overlap: Option<Overlap>,
    /// Whether a run that was missed is made once this service is back.
    #[serde(default)]
    pub catch_up: Option<bool>,
    /// Seconds from now after which nothing is run any more; 0 means never. Not together with `expiresAt`.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 315360000)]
    pub expires_after: Option<u32>,
    /// From when on nothing is run any more: RFC 3339.
    #[serde(default)]
    #[schema(format = DateTime)]
    pub expires_at: Option<String>,
    #[serde(skip)]
    #[schema(ignore)]
    checked: Option<Call>,
}

pub struct UpdateSchedule;

impl Tool for UpdateSchedule {
    const NAME: &'static str = "updateSchedule";
    const DESCRIPTION: &'static str = "Pauses or resumes a schedule, or changes what it calls, when, and what happens to runs that overlap or were missed. Whoever changes or \
        resumes it answers for it: its runs have the rights of that key from then on. Pausing and renaming leave it whose it is. Needs the rights of the tool that it calls.";
    const ROUTES: &'static [Route] = &[Route { method: Method::Patch, path: "/v1/schedules/{scheduleId}" }];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Update a schedule",
        read_only_hint: false,
        destructive_hint: false,
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
    type Output = ScheduleInfo;

    fn claim(input: &Input, facts: &CallFacts<'_>) -> Result<SandboxClaim> {
        change(input, "", facts.platform, facts.platform.now_millis())?;
        match (&input.tool, &input.arguments) {
            (Some(_), None) => Err(Error::invalid("/arguments", "are given together with tool")),
            (None, Some(_)) => Err(Error::invalid("/tool", "is given together with arguments")),
            _ => Ok(SandboxClaim::None),
        }
    }

    fn resolved(input: Input, facts: &CallFacts<'_>) -> Result<Input> {
        let given = input.tool.as_ref().zip(input.arguments.as_ref());
        let checked = given.map(|(tool, arguments)| arguments::call(tool, arguments, facts)).transpose()?;
        Ok(Input { checked, ..input })
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<ScheduleInfo> {
        let now = context.services.platform.now_millis();
        let change = change(&input, &context.principal.key_id, &*context.services.platform, now)?;
        let change = Change { call: input.checked, ..change };
        if change.takes_over() {
            no_token(&context)?;
        }
        let schedule = known(&context, &input.schedule_id).await?;
        may_call(&context, &schedule.call)?;
        if let Some(call) = &change.call {
            may_call(&context, call)?;
        }
        let question = Question::Change { schedule_id: schedule.schedule_id, change: Box::new(change) };
        context.services.tenant.schedules(question.into()).await?.one().map(ScheduleInfo::of)
    }
}

/// What is changed beside the call.
fn change(input: &Input, key_id: &str, platform: &dyn Platform, now: i64) -> Result<Change> {
    let (at, cron, zone) = (input.at.as_deref(), input.cron.as_deref(), input.time_zone.as_deref());
    let when = change::when(at, cron, zone, platform.zones(), now)?;
    let expiry = match (input.expires_after, &input.expires_at) {
        (Some(0), None) => Some(Expiry::Never),
        (after, at) => expires(after, at.as_deref(), now)?,
    };
    if let Some(when) = &when {
        let end = match expiry {
            Some(Expiry::At(at)) => Some(at),
            _ => None,
        };
        change::first(when, end, platform.zones(), now)?;
    }
    Ok(Change {
        name: input.name.clone(),
        when,
        overlap: input.overlap,
        catch_up: input.catch_up,
        expiry,
        paused: input.paused,
        ..Change::by(key_id)
    })
}
