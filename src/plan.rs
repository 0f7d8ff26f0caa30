//! Pipelines: steps, each a call of a tool, in the order in which they are given. Pure: what runs next follows from the steps and
//! from how those before ended.
//!
//! ```text
//!  pending ── its condition holds ──▶ running ── ends well ─▶ succeeded ── rolled back ─▶ rolledBack
//!     │ │                                    ─ fails      ─▶ failed
//!     │ └── it does not ─▶ skipped           ─ killed     ─▶ cancelled
//!     └── pipeline cancelled ─▶ cancelled    ─ end unseen ─▶ interrupted
//! ```
//!
//! Steps run one after the other. Once one has failed, only those run that are for that (`onFailure`, `always`). After the last step
//! of a pipeline that failed or was cancelled, the roll-backs of all steps that may have acted run, the last first, also those of a step
//! that failed: it may have done a part of its work. What surely did nothing is not undone (`acted.rs`). A roll-back that fails does not
//! keep the others from running.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::error::Error;
use crate::job::record::Job;
use crate::job::state::State;
use crate::job::stored::{PATIENCE, is_lost};

/// Most steps of a pipeline.
pub const MOST_STEPS: usize = 50;

/// Field of an answer that says how a command ended.
const EXIT_CODE: &str = "exitCode";

/// One step.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Step {
    /// Its name, which no other step has: letters, digits, `-`, `_`, `.` and spaces.
    #[schema(min_length = 1, max_length = 64, pattern = "^[A-Za-z0-9][A-Za-z0-9 _.-]*$")]
    pub name: String,
    /// Tool that it calls. A pipeline is no step.
    #[schema(min_length = 1, max_length = 64)]
    pub tool: String,
    /// Arguments of that tool; default none.
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, Value>, required = false)]
    pub arguments: Map<String, Value>,
    /// When it runs; default `onSuccess`.
    #[serde(default)]
    pub condition: Option<Condition>,
    /// What undoes it, if the pipeline fails or is cancelled. It runs where the step may have acted: not where it was refused, nor where its
    /// answer says that it made nothing (`created` is false).
    #[serde(default)]
    pub roll_back: Option<RollBack>,
    /// Whether the pipeline goes on as if it had succeeded when it fails; default false.
    #[serde(default)]
    pub continue_on_error: Option<bool>,
    /// Fields of the tool's answer and what they have to be; anything else is a failure. Where the answer has an `exitCode`, that has to
    /// be 0 unless this says otherwise.
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, Value>, required = false)]
    pub expect: Map<String, Value>,
}

/// The call that undoes a step.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RollBack {
    /// Tool that it calls.
    #[schema(min_length = 1, max_length = 64)]
    pub tool: String,
    /// Arguments of that tool; default none.
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, Value>, required = false)]
    pub arguments: Map<String, Value>,
}

/// When a step runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum Condition {
    /// While no step has failed.
    #[default]
    OnSuccess,
    /// Once a step has failed.
    OnFailure,
    /// In either case.
    Always,
}

/// Where a step is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum StepState {
    /// It was not reached.
    #[default]
    Pending,
    /// It was asked for, and is not over: it may wait for its turn.
    Running,
    /// Somebody has to approve it first. The word of its job's state.
    #[serde(rename = "awaiting_approval")]
    AwaitingApproval,
    Succeeded,
    Failed,
    /// Its condition did not hold.
    Skipped,
    /// It was killed, or never begun, since somebody cancelled it or the pipeline.
    Cancelled,
    /// It began, and how it ended was not seen.
    Interrupted,
    /// It succeeded, and was undone.
    RolledBack,
}

/// What is known of a call of a step, or of its roll-back.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Call {
    pub state: StepState,
    /// Its id, which is that of its job.
    pub call_id: Option<String>,
    /// Whether that job was seen: it is not asked for again.
    pub is_a_job: bool,
    pub started_at: Option<i64>,
    pub ended_at: Option<i64>,
    /// Whether it may have acted.
    pub has_begun: bool,
    pub exit_code: Option<i32>,
    pub error: Option<Error>,
}

impl Call {
    /// Whether it was asked for and is not over.
    pub fn is_under_way(&self) -> bool {
        matches!(self.state, StepState::Running | StepState::AwaitingApproval)
    }

    /// The same once its job was seen in that state.
    pub fn seen(&self, state: State) -> Self {
        let is_waiting = state == State::AwaitingApproval;
        let state = if is_waiting { StepState::AwaitingApproval } else { StepState::Running };
        Self { state, is_a_job: true, ..self.clone() }
    }
}

/// How a step stands, and its roll-back where there was need of one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Progress {
    pub call: Call,
    pub roll_back: Option<Call>,
}

/// A step as it is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StepTold {
    pub name: String,
    pub tool: String,
    pub progress: Progress,
    /// Tool of its roll-back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roll_back_tool: Option<String>,
}

/// What happens next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The step of that place is called, or gone on with.
    Run(usize),
    /// Its condition does not hold.
    Skip(usize),
    /// The pipeline was cancelled before it.
    Drop(usize),
    /// Its roll-back is called, or gone on with.
    RollBack(usize),
    End(Outcome),
}

/// How a pipeline ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Succeeded,
    /// By the step of that place.
    Failed(usize),
    /// How that step ended was not seen.
    Interrupted(usize),
    Cancelled,
}

/// What happens next in a pipeline; `is_cancelled` once somebody wanted its end.
pub fn next(steps: &[Step], progress: &[Progress], is_cancelled: bool) -> Next {
    let at = |index: usize| progress.get(index).cloned().unwrap_or_default();
    let states: Vec<StepState> = (0..steps.len()).map(|index| at(index).call.state).collect();
    if let Some(under_way) = (0..steps.len()).find(|index| at(*index).call.is_under_way()) {
        return Next::Run(under_way);
    }
    let fault = fault(steps, &states);
    if let Some((pending, step)) =
        steps.iter().enumerate().find(|(index, _)| at(*index).call.state == StepState::Pending)
    {
        let condition = step.condition.unwrap_or_default();
        return match (is_cancelled, condition) {
            (true, _) => Next::Drop(pending),
            (false, Condition::OnSuccess) if fault.is_some() => Next::Skip(pending),
            (false, Condition::OnFailure) if fault.is_none() => Next::Skip(pending),
            (false, _) => Next::Run(pending),
        };
    }
    let Some(fault) = fault else { return Next::End(Outcome::Succeeded) };
    let undone = |(index, step): &(usize, &Step)| {
        let Progress { call, roll_back } = at(*index);
        let is_due = roll_back.is_none_or(|call| call.state == StepState::Pending || call.is_under_way());
        step.roll_back.is_some() && call.has_begun && is_due
    };
    if let Some((index, _)) = steps.iter().enumerate().rev().find(undone) {
        return Next::RollBack(index);
    }
    let unseen = states.iter().position(|state| *state == StepState::Interrupted);
    Next::End(match unseen {
        Some(unseen) => Outcome::Interrupted(unseen),
        None if is_cancelled && states.contains(&StepState::Cancelled) => Outcome::Cancelled,
        None => Outcome::Failed(fault),
    })
}

/// The first step that the pipeline cannot go on after. A failure may be put up with; an end that was not seen may not.
fn fault(steps: &[Step], states: &[StepState]) -> Option<usize> {
    let is_fault = |(step, state): (&Step, &StepState)| match state {
        StepState::Failed => step.continue_on_error != Some(true),
        StepState::Interrupted | StepState::Cancelled => true,
        _ => false,
    };
    steps.iter().zip(states).position(is_fault)
}

/// The progress that another attempt begins with that goes on where the last one failed: what was done before and was not undone
/// stays done.
pub fn resumed(steps: &[Step], progress: &[Progress]) -> Vec<Progress> {
    let states: Vec<StepState> = progress.iter().map(|progress| progress.call.state).collect();
    let Some(fault) = fault(steps, &states) else { return Vec::new() };
    let stays = |(index, progress): (usize, &Progress)| {
        let is_done = index < fault && progress.roll_back.is_none();
        if is_done { progress.clone() } else { Progress::default() }
    };
    progress.iter().enumerate().map(stays).collect()
}

/// Id of the call of a step, or of its roll-back, in that attempt of its pipeline: the same whoever asks, so that none runs twice.
pub fn call_id(attempt_id: &str, index: usize, is_roll_back: bool) -> String {
    format!("{attempt_id}-{}{}", if is_roll_back { 'r' } else { 's' }, index + 1)
}

/// Name of a step in the logs.
pub fn label(step: &Step, is_roll_back: bool) -> String {
    if is_roll_back { format!("rollBack:{}", step.name) } else { step.name.clone() }
}

/// How a call stands whose job is over and answered this; `may_have_acted` as its tool judges it, if it began.
pub fn ended(call: Call, job: &Job, may_have_acted: bool, output: Option<&Value>, expect: &Map<String, Value>) -> Call {
    let now = job.ended_at.unwrap_or(job.updated_at);
    let has_begun = job.attempts > 0 && may_have_acted;
    let over = Call { ended_at: Some(now), has_begun, exit_code: job.exit_code, ..call };
    match job.state {
        State::Succeeded => match unexpected(job.exit_code, output, expect) {
            None => Call { state: StepState::Succeeded, ..over },
            Some(error) => Call { state: StepState::Failed, error: Some(error), ..over },
        },
        State::Interrupted => Call { state: StepState::Interrupted, error: job.error.clone(), ..over },
        State::Cancelled => Call { state: StepState::Cancelled, error: job.error.clone(), ..over },
        _ => Call { state: StepState::Failed, error: job.error.clone(), ..over },
    }
}

/// What becomes of a call that did not become a job.
#[derive(Clone, Debug, PartialEq)]
pub enum Refused {
    /// It is asked for again then.
    AskAgain(i64),
    Over(Call),
}

/// Shortest and longest pause before a step that was refused for now is asked for again, in milliseconds.
pub const SHORTEST_PAUSE: i64 = 2_000;
const LONGEST_PAUSE: i64 = 60_000;

/// A call was refused, for now or for good. Where it may have become a job all the same it is asked for again, which finds that job;
/// `is_unwanted` once somebody wanted the end of its pipeline.
pub fn refused(call: Call, error: Error, is_unwanted: bool, now: i64) -> Refused {
    let asked_since = call.started_at.unwrap_or(now);
    let may_be_a_job = is_lost(&error) || error.details.contains_key("jobId");
    let is_asked_again = may_be_a_job || (error.retryable && !is_unwanted);
    let wanted = i64::from(error.retry_after.unwrap_or(0)) * 1000;
    let pause = ((now - asked_since) / 4).clamp(SHORTEST_PAUSE, LONGEST_PAUSE).max(wanted);
    if is_asked_again && now + pause <= asked_since + PATIENCE {
        return Refused::AskAgain(now + pause);
    }
    let state = if may_be_a_job {
        StepState::Interrupted
    } else if is_unwanted && error.retryable {
        StepState::Cancelled
    } else {
        StepState::Failed
    };
    let error = Some(Error { details: Map::new(), ..error });
    Refused::Over(Call { state, has_begun: may_be_a_job, ended_at: Some(now), error, ..call })
}

mod acted;
mod checked;
mod expected;
mod outcome;
pub use acted::Ending;
pub use checked::{check, placed, requirements, unrecorded};
use expected::unexpected;
pub use outcome::{cancellation, failure, loss};

#[cfg(test)]
mod tests;
