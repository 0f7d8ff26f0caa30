//! A schedule as tools tell of it, and what tools about schedules share.

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::error::{Error, ErrorCode, Problem, Result};
use crate::platform::rfc3339;
use crate::registry::Context;
use crate::schedule::record::{Overlap, Pause, Question, RunOutcome, Schedule, State, When};
use crate::tenant::approval::{Inspected, Judgement, inspect};
use crate::tenant::credential::Credential;
use crate::tenant::permissions::Requirement;

/// One schedule.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScheduleInfo {
    /// Its id.
    pub schedule_id: String,
    /// What its owner calls it.
    pub name: String,
    /// active, paused or ended.
    pub state: State,
    /// Key that runs it: each run has the rights of that key at its time.
    pub key_id: String,
    /// What is called.
    pub tool: String,
    /// Its arguments, long values cut. Not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = std::collections::BTreeMap<String, Value>, required = false)]
    pub arguments: Option<Map<String, Value>>,
    /// When it runs, of one that runs once: RFC 3339, UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// When it runs: minute, hour, day of the month, month, day of the week.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// Zone of these, by its name of the IANA database.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    /// What happens when a run is due while one before it is not over: skip, queue or allow.
    pub overlap: Overlap,
    /// Whether a run that was missed is made once this service is back.
    pub catch_up: bool,
    /// From when on nothing is run: RFC 3339, UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// When it was made: RFC 3339, UTC.
    pub created_at: String,
    /// When it was last changed: RFC 3339, UTC.
    pub updated_at: String,
    /// When it is run next: RFC 3339, UTC. Absent where it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_run_at: Option<String>,
    /// Due time of the run that waits for the end of the one before: RFC 3339, UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_run_at: Option<String>,
    /// When the last run was made, or refused: RFC 3339, UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_run_at: Option<String>,
    /// For which time it was: RFC 3339, UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_due_at: Option<String>,
    /// Job of the last run, unless it was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_job_id: Option<String>,
    /// How the last run stands: as its job does, or refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_outcome: Option<RunOutcome>,
    /// Why the last run was refused or did not succeed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<Problem>,
    /// Runs that became jobs.
    pub runs: u32,
    /// Runs that were left out, since the one before was not over.
    pub skipped_runs: u32,
    /// Runs that were missed, and not made up for.
    pub missed_runs: u32,
    /// Runs that were refused.
    pub refused_runs: u32,
    /// Runs that did not succeed since one did.
    pub failures_in_a_row: u32,
    /// When it was paused: RFC 3339, UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused_at: Option<String>,
    /// Key that paused it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused_by: Option<String>,
    /// Why it was paused by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused_because: Option<Problem>,
    /// When it ended: RFC 3339, UTC. It is told of for a week from then on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
}

/// Most bytes of an answer about schedules.
pub const OUTPUT_CAP_BYTES: u64 = 4 * 1024 * 1024;

impl From<Schedule> for ScheduleInfo {
    /// As it is told in lists.
    fn from(schedule: Schedule) -> Self {
        let Schedule { schedule_id, call, when, counts, last, pause, .. } = schedule;
        let (at, cron, time_zone) = match when {
            When::At(at) => (Some(rfc3339(at)), None, None),
            When::Cron { expression, time_zone } => (None, Some(expression), Some(time_zone)),
        };
        let (paused_at, paused_by, because) = match pause {
            Some(Pause { at, key_id, error }) => (Some(rfc3339(at)), key_id, error),
            None => (None, None, None),
        };
        let problem = |error: Error| error.problem(&schedule_id);
        Self {
            name: schedule.name,
            state: schedule.state,
            key_id: schedule.key_id,
            tool: call.tool,
            arguments: None,
            at,
            cron,
            time_zone,
            overlap: schedule.overlap,
            catch_up: schedule.catch_up,
            expires_at: schedule.expires_at.map(rfc3339),
            created_at: rfc3339(schedule.created_at),
            updated_at: rfc3339(schedule.updated_at),
            next_run_at: schedule.next_at.map(rfc3339),
            waiting_run_at: schedule.waiting.map(rfc3339),
            last_run_at: last.as_ref().map(|last| rfc3339(last.at)),
            last_due_at: last.as_ref().map(|last| rfc3339(last.due_at)),
            last_job_id: last.as_ref().and_then(|last| last.job_id.clone()),
            last_outcome: last.as_ref().map(|last| last.outcome),
            last_error: last.and_then(|last| last.error).map(problem),
            runs: counts.made,
            skipped_runs: counts.skipped,
            missed_runs: counts.missed,
            refused_runs: counts.refused,
            failures_in_a_row: counts.failures_in_a_row,
            paused_at,
            paused_by,
            paused_because: because.map(problem),
            ended_at: schedule.ended_at.map(rfc3339),
            schedule_id,
        }
    }
}

impl ScheduleInfo {
    /// Everything that is known of it.
    pub fn of(schedule: Schedule) -> Self {
        let arguments = match &schedule.call.recorded {
            Value::Object(fields) => fields.clone(),
            _ => Map::new(),
        };
        Self { arguments: Some(arguments), ..Self::from(schedule) }
    }
}

/// The schedule of that id; 404 where there is none that this caller sees.
pub async fn known(context: &Context, schedule_id: &str) -> Result<Schedule> {
    let question = Question::Get { schedule_id: schedule_id.to_owned() };
    context.services.tenant.schedules(question.into()).await?.one()
}

/// The same, if the caller could make the call itself.
pub async fn own(context: &Context, schedule_id: &str) -> Result<Schedule> {
    let schedule = known(context, schedule_id).await?;
    may_call(context, &schedule.call)?;
    Ok(schedule)
}

/// 403 for who may not make the call of a schedule.
pub fn may_call(context: &Context, call: &crate::schedule::record::Call) -> Result<()> {
    context.permissions.check(&call.requirement)?;
    context.permissions.check_named(&call.requirement)
}

/// 403 where a rule of the caller has the call approved first, and the run would be made by another key, whose rules are others.
pub fn may_run(context: &Context, schedule: &Schedule) -> Result<()> {
    let is_own = schedule.key_id == context.principal.key_id && no_token(context).is_ok();
    if is_own {
        return Ok(());
    }
    let Requirement { tool, approval, destructive, .. } = &schedule.call.requirement;
    let rules = &context.permissions.approval;
    let judge = |inspected: Option<&Inspected>| rules.judge(tool, *approval, *destructive, inspected);
    let judgement = match judge(None) {
        Judgement::Depends(rules) => judge(Some(&inspect(&rules, &Value::Object(schedule.call.arguments.clone())))),
        judgement => judgement,
    };
    if judgement == Judgement::Free {
        return Ok(());
    }
    let message = "this call has to be approved first; a run has the approvals of the schedule's key, so that this key cannot ask for one";
    Err(Error::new(ErrorCode::Forbidden, message).detail("reason", "needs_approval"))
}

/// 403 for who calls with a token: its runs would come when it is no more.
pub fn no_token(context: &Context) -> Result<()> {
    match context.principal.credential {
        Credential::Token { .. } | Credential::Job { permissions: Some(_), .. } => {
            let message = "a schedule outlives a token, so that a token can neither make one nor change what it runs and when; \
                call with the key itself";
            Err(Error::new(ErrorCode::Forbidden, message))
        }
        Credential::Root | Credential::Key { .. } | Credential::Job { permissions: None, .. } => Ok(()),
    }
}
