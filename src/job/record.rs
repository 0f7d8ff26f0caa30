//! What is known of a job, and what its object, its tenant's list and those who ask say to each other.

use std::collections::BTreeMap;

use sandbox_api::{Encoding, LogChannel};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::state::State;
use crate::error::{Error, ErrorCode};
use crate::identifier::SandboxId;
use crate::plan::StepTold;
use crate::tenant::approval::Reason;
use crate::tenant::idempotency::Answer;
use crate::tenant::permissions::{Permissions, Requirement};

/// Seconds for which a job is told of after its end, where its tenant has set nothing else: a week.
pub const EXPIRES_AFTER: u32 = 7 * 24 * 60 * 60;

/// `reason` in the error of a command that was killed and seen to be gone.
pub const KILLED: &str = "killed";

/// What is told of a job: its object has it, and its tenant's list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Job {
    /// Id of the call that it was.
    pub job_id: String,
    pub tool: String,
    pub state: State,
    /// Grows with every change, so that a report that comes late changes nothing. The object begins with 1.
    pub version: u32,
    /// Key that asked for it.
    pub key_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_id: Option<String>,
    /// The pipeline that asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_of: Option<StepOf>,
    /// The schedule that asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<SandboxId>,
    /// When that sandbox was made, which tells it from another of its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_created_at: Option<i64>,
    /// How often it had been started when the job was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_generation: Option<u32>,
    /// Labels of that sandbox when the job was asked for.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Seconds after its end at which it is forgotten, as its tenant had set it when it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_after: Option<u32>,
    pub created_at: i64,
    pub updated_at: i64,
    /// When its last attempt began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begun_at: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<Approval>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancellation: Option<Cancellation>,
    /// Whether it is queued because as many jobs run at once as may.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub waits_for_place: bool,
    /// Attempts that may have acted.
    #[serde(default)]
    pub attempts: u32,
    /// Id under which the books have the attempt that somebody asked for last; without one that of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded_as: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Error>,
}

impl Job {
    /// When it is forgotten, by its object and by its tenant's list; nothing while it is not over.
    pub fn expires_at(&self) -> Option<i64> {
        let expires_after = self.expires_after.unwrap_or(EXPIRES_AFTER);
        self.ended_at.map(|ended_at| ended_at + i64::from(expires_after) * 1000)
    }
}

/// A step of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct StepOf {
    /// Job of the pipeline.
    pub job_id: String,
    /// Name of the step; `rollBack:` stands before that of one that is undone.
    pub step: String,
}

/// Why a job waited, and what was decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Approval {
    pub reason: Reason,
    pub expires_at: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<Decision>,
}

/// Who wanted a job to end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Cancellation {
    pub key_id: String,
    /// Id of its call.
    pub call_id: String,
    pub at: i64,
}

/// What somebody decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Decision {
    pub approved: bool,
    /// Key that decided.
    pub key_id: String,
    /// Id of its call.
    pub call_id: String,
    pub at: i64,
    /// What it said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
}

/// What a job is made of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Seed {
    pub job: Job,
    pub order: Order,
    /// The arguments as they were sent, as JSON.
    pub arguments: String,
}

/// What is carried out, beside the arguments.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Order {
    pub tenant: String,
    /// What the token that asked may do at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permissions: Option<Permissions>,
    pub requirement: Requirement,
    /// Arguments as the audit records them.
    pub recorded: Value,
    /// Signature over the arguments as they were sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments_signature: Option<String>,
    /// Whether an idempotency key waits for the answer.
    #[serde(default)]
    pub holds_key: bool,
}

/// A job as its object tells it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Told {
    pub job: Job,
    pub order: Order,
    /// What it answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// What its error told beside its text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Value>,
    /// How its steps stand, of a pipeline.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<StepTold>,
}

/// Who asks for another attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Again {
    /// Id of its call.
    pub call_id: String,
    pub although_it_may_have_acted: bool,
    /// Whether a pipeline goes on where it failed.
    #[serde(default)]
    pub from_failed: bool,
    pub at: i64,
}

/// A question for what a job wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LogQuestion {
    pub offset: u64,
    /// Most bytes.
    pub limit: u64,
    /// How long to wait where there is nothing yet, in milliseconds.
    pub wait: i64,
    /// The state that is known already: another one is news.
    pub known: Option<State>,
}

/// A part of the logs. When they were followed, the events had it and `chunks` is empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobLog {
    /// In the order in which they came.
    pub chunks: Vec<JobLogChunk>,
    /// Offset to go on from.
    pub next_offset: u64,
    /// Present when output from the asked offset up to this one is no longer kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncated_before: Option<u64>,
    /// Whether this was the end: the job is over.
    pub ended: bool,
    /// How the job stands.
    pub state: State,
}

/// One change of a job's state, as it was then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    /// Version of the job with it.
    pub version: u32,
    pub state: State,
    pub at: i64,
    pub attempts: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorCode>,
}

impl Change {
    /// The last one of a job.
    pub fn of(job: &Job) -> Self {
        Self {
            version: job.version,
            state: job.state,
            at: job.updated_at,
            attempts: job.attempts,
            exit_code: job.exit_code,
            error: job.error.as_ref().map(|error| error.code),
        }
    }
}

/// A piece of the logs of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobLogChunk {
    /// Which output it was written to.
    pub channel: LogChannel,
    /// The bytes, in the form that `encoding` names.
    pub data: String,
    /// `utf-8` or `base64`.
    pub encoding: Encoding,
    /// Offset of the first byte. Offsets count the bytes of both channels.
    pub offset: u64,
    /// Of a pipeline: the step that wrote it; `rollBack:` stands before the name of one that was undone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
}

/// What a job's object tells its tenant's list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    pub job: Job,
    /// Every change of its state that the list has not taken, the first one first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<Change>,
    /// What is kept for its idempotency key, of one that is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Answer>,
    /// Whether it has a place among the jobs that run at once while it runs: pipelines have none, their steps have.
    #[serde(default)]
    pub takes_place: bool,
}
