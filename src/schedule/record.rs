//! What is known of a schedule, and what tools and the tenant's object say to each other about it.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::change::Change;
use super::listing::ListRequest;
use crate::error::Error;
use crate::job::state::State as JobState;
use crate::tenant::permissions::Requirement;

/// Most schedules of a tenant that are not ended.
pub const MOST_SCHEDULES: u32 = 100;

/// How long a schedule is told of after its end, in milliseconds: a week.
pub const KEPT_MILLIS: i64 = 7 * 24 * 60 * 60 * 1000;

/// Most bytes of the arguments of one, as JSON.
pub const LARGEST_ARGUMENTS: usize = 64 * 1024;

/// One schedule, as it is stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Schedule {
    /// Id of the call that made it.
    pub schedule_id: String,
    pub name: String,
    pub call: Call,
    pub when: When,
    pub overlap: Overlap,
    /// Whether a run that was missed is made once this service is back.
    pub catch_up: bool,
    /// From when on nothing is run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<i64>,
    /// Key that runs it: the one that said last what is run, and when.
    pub key_id: String,
    pub created_at: i64,
    pub updated_at: i64,
    pub state: State,
    /// Why it is paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause: Option<Pause>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<i64>,
    /// When it is due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_at: Option<i64>,
    /// The due time that waits for the run before it to be over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<LastRun>,
    #[serde(default)]
    pub counts: Counts,
}

/// What is called.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Call {
    pub tool: String,
    pub arguments: Map<String, Value>,
    /// What the call asks of who has it made.
    pub requirement: Requirement,
    /// The arguments as the audit records them.
    pub recorded: Value,
}

/// When a schedule runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum When {
    /// Once.
    At(i64),
    #[serde(rename_all = "camelCase")]
    Cron { expression: String, time_zone: String },
}

/// Where a schedule is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum State {
    /// It is run when it is due.
    Active,
    /// Nothing is run until it is resumed.
    Paused,
    /// It is not due any more.
    Ended,
}

impl State {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Paused => "paused",
            Self::Ended => "ended",
        }
    }
}

/// What happens when a run is due while one before it is not over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum Overlap {
    /// It is left out.
    #[default]
    Skip,
    /// It waits for the end of the one before; one waits at most.
    Queue,
    /// Both run.
    Allow,
}

/// Why a schedule is paused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pause {
    pub at: i64,
    /// Key that paused it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_id: Option<String>,
    /// The refusal that paused it by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Error>,
}

/// The last run, and how it stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastRun {
    /// Its job, unless it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_id: Option<String>,
    pub due_at: i64,
    /// When it was made, or refused.
    pub at: i64,
    pub outcome: RunOutcome,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Error>,
}

/// How a run stands: as its job does, or refused before it became one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunOutcome {
    AwaitingApproval,
    Queued,
    Running,
    Succeeded,
    Failed,
    Interrupted,
    Cancelled,
    Rejected,
    /// The call was refused, as it would have been without a schedule.
    Refused,
}

impl From<JobState> for RunOutcome {
    fn from(state: JobState) -> Self {
        match state {
            JobState::AwaitingApproval => Self::AwaitingApproval,
            JobState::Queued => Self::Queued,
            JobState::Running => Self::Running,
            JobState::Succeeded => Self::Succeeded,
            JobState::Failed => Self::Failed,
            JobState::Interrupted => Self::Interrupted,
            JobState::Cancelled => Self::Cancelled,
            JobState::Rejected => Self::Rejected,
        }
    }
}

/// What became of due times so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Counts {
    /// They became jobs.
    pub made: u32,
    /// The run before was not over.
    pub skipped: u32,
    /// This service was away, and they are not made up for.
    pub missed: u32,
    /// The call was refused.
    pub refused: u32,
    /// Runs that did not succeed since one did.
    pub failures_in_a_row: u32,
}

/// A run that is to become a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Run {
    pub job_id: String,
    pub schedule_id: String,
    pub due_at: i64,
    /// Since when it is tried.
    pub since: i64,
    /// When it is tried next.
    pub try_at: i64,
}

impl Run {
    /// Id of the job of a due time: the same whoever makes it.
    pub fn job_id(schedule_id: &str, due_at: i64) -> String {
        format!("{schedule_id}-{due_at}")
    }
}

/// What a tool asks of the tenant's object about schedules.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ScheduleRequest {
    /// Only the schedules of this key are there for who asks; nobody's where it is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen_by: Option<String>,
    pub question: Question,
}

impl From<Question> for ScheduleRequest {
    fn from(question: Question) -> Self {
        Self { seen_by: None, question }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Question {
    /// The same again changes nothing.
    Add(Box<Schedule>),
    #[serde(rename_all = "camelCase")]
    Get {
        schedule_id: String,
    },
    List(ListRequest),
    #[serde(rename_all = "camelCase")]
    Change {
        schedule_id: String,
        change: Box<Change>,
    },
    #[serde(rename_all = "camelCase")]
    Remove {
        schedule_id: String,
    },
    /// Makes a run now, whose job has this id.
    #[serde(rename_all = "camelCase")]
    Run {
        schedule_id: String,
        job_id: String,
    },
}

/// The schedules that were asked for, or the changed one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ScheduleReport {
    pub schedules: Vec<Schedule>,
    pub more: bool,
}

impl ScheduleReport {
    /// The one schedule of an answer.
    pub fn one(self) -> Result<Schedule, Error> {
        self.schedules.into_iter().next().ok_or_else(|| Error::internal("an answer about one schedule holds none"))
    }
}
