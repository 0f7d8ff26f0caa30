//! createSchedule: has a tool called at a time, or whenever a cron expression says.

use std::rc::Rc;

use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::create_sandbox::expiry;
use super::schedule_info::{ScheduleInfo, may_call, no_token};
use crate::error::{Error, Result};
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::platform::Platform;
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::sandbox::settings;
use crate::schedule::arguments;
use crate::schedule::change::{self, Expiry};
use crate::schedule::record::{Call, Counts, Overlap, Question, Schedule, State, When};
use crate::tenant::admission::SandboxClaim;

/// What is called, and when.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// What its owner calls it: 1 to 100 characters.
    #[schema(min_length = 1, max_length = 100)]
    pub name: String,
    /// Tool that is called.
    #[schema(min_length = 1, max_length = 64)]
    pub tool: String,
    /// Arguments of that tool; default none. Values that may be secret (`env`, `stdin`, contents of files) are refused.
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, Value>, required = false)]
    pub arguments: Map<String, Value>,
    /// When it runs, once: RFC 3339. Either this or `cron`.
    #[serde(default)]
    #[schema(format = DateTime)]
    pub at: Option<String>,
    /// When it runs: minute, hour, day of the month, month and day of the week, such as `0 6 * * MON-FRI`.
    #[serde(default)]
    #[schema(max_length = 100)]
    pub cron: Option<String>,
    /// Time zone of `cron`, by its name of the IANA database; default UTC.
    #[serde(default)]
    #[schema(max_length = 64)]
    pub time_zone: Option<String>,
    /// What happens when a run is due while one before it is not over: `skip` (default) leaves it out, `queue` has it wait for the end of the one
    /// before (one waits at most), `allow` runs both.
    #[serde(default)]
    pub overlap: Option<Overlap>,
    /// Whether a run that was missed while this service was away is made once it is back, one for all that were missed; default true.
    #[serde(default)]
    pub catch_up: Option<bool>,
    /// Seconds from now after which nothing is run any more. Not together with `expiresAt`.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 315360000)]
    pub expires_after: Option<u32>,
    /// From when on nothing is run any more: RFC 3339.
    #[serde(default)]
    #[schema(format = DateTime)]
    pub expires_at: Option<String>,
    #[serde(skip)]
    #[schema(ignore)]
    checked: Option<Call>,
}

/// What is said of time.
struct Times {
    when: When,
    expires_at: Option<i64>,
}

pub struct CreateSchedule;

impl Tool for CreateSchedule {
    const NAME: &'static str = "createSchedule";
    const DESCRIPTION: &'static str = "Has a tool called at a time (`at`), or again and again (`cron`, in a time zone). Each run is a call of its own, which becomes a job: with \
        the rights and limits that this key has then, its approvals, and a record in the audit. A run is made once, whatever is restarted meanwhile. Arguments \
        are checked now; values that may be secret are refused. A tenant has 100 schedules at most.";
    const ROUTES: &'static [Route] = &[Route { method: Method::Post, path: "/v1/schedules" }];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Create a schedule",
        read_only_hint: false,
        destructive_hint: false,
        idempotent_hint: false,
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
        let now = facts.platform.now_millis();
        let Times { when, expires_at } = times(input, facts.platform, now)?;
        change::first(&when, expires_at, facts.platform.zones(), now)?;
        Ok(SandboxClaim::None)
    }

    fn resolved(input: Input, facts: &CallFacts<'_>) -> Result<Input> {
        let checked = arguments::call(&input.tool, &input.arguments, facts)?;
        Ok(Input { checked: Some(checked), ..input })
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<ScheduleInfo> {
        no_token(&context)?;
        let now = context.services.platform.now_millis();
        let Times { when, expires_at } = times(&input, &*context.services.platform, now)?;
        let call = input.checked.ok_or_else(|| Error::internal("the call of a schedule was not checked"))?;
        may_call(&context, &call)?;
        let schedule = Schedule {
            schedule_id: context.call_id.clone(),
            name: input.name,
            call,
            when,
            overlap: input.overlap.unwrap_or_default(),
            catch_up: input.catch_up.unwrap_or(true),
            expires_at,
            key_id: context.principal.key_id.clone(),
            created_at: now,
            updated_at: now,
            state: State::Active,
            pause: None,
            ended_at: None,
            next_at: None,
            waiting: None,
            last: None,
            counts: Counts::default(),
        };
        let question = Question::Add(Box::new(schedule));
        context.services.tenant.schedules(question.into()).await?.one().map(ScheduleInfo::of)
    }
}

fn times(input: &Input, platform: &dyn Platform, now: i64) -> Result<Times> {
    let (at, cron, zone) = (input.at.as_deref(), input.cron.as_deref(), input.time_zone.as_deref());
    let when = change::when(at, cron, zone, platform.zones(), now)?;
    let when = when.ok_or_else(|| Error::invalid("/cron", "is required, or at"))?;
    let expires_at = match expires(input.expires_after, input.expires_at.as_deref(), now)? {
        Some(Expiry::At(at)) => Some(at),
        Some(Expiry::Never) | None => None,
    };
    Ok(Times { when, expires_at })
}

/// From when on nothing is run, where that is said.
pub fn expires(after: Option<u32>, at: Option<&str>, now: i64) -> Result<Option<Expiry>> {
    Ok(expiry(after, at, now)?.map(|expiry| match expiry {
        settings::Expiry::Never => Expiry::Never,
        settings::Expiry::At(at) => Expiry::At(at),
        settings::Expiry::After(seconds) => Expiry::At(now + i64::from(seconds) * 1000),
    }))
}
