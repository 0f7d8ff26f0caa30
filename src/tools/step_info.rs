//! A step of a pipeline as tools tell of it.

use serde::Serialize;
use utoipa::ToSchema;

use crate::error::Problem;
use crate::plan::{Call, StepState, StepTold};
use crate::platform::rfc3339;

/// How a step stands.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct StepInfo {
    /// Its name.
    pub name: String,
    /// Tool that it calls.
    pub tool: String,
    /// pending, running, awaiting_approval, succeeded, failed, skipped, cancelled, interrupted or rolledBack.
    pub state: StepState,
    /// Id of its call, which is a job of its own: getJob tells what it answered, or why it has to be approved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_id: Option<String>,
    /// When it began; while it is not over, when it was asked for: RFC 3339, UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<String>,
    /// When it ended: RFC 3339, UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
    /// Exit code of its command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Why it did not succeed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Problem>,
    /// How its roll-back stands, where it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub roll_back: Option<RollBackInfo>,
}

/// How the roll-back of a step stands.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RollBackInfo {
    /// Tool that it calls.
    pub tool: String,
    /// pending, running, awaiting_approval, succeeded, failed, cancelled or interrupted.
    pub state: StepState,
    /// Id of its call, which is a job of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_id: Option<String>,
    /// When it began; while it is not over, when it was asked for: RFC 3339, UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<String>,
    /// When it ended: RFC 3339, UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
    /// Exit code of its command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Why it did not succeed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Problem>,
}

impl From<StepTold> for StepInfo {
    fn from(told: StepTold) -> Self {
        let StepTold { name, tool, progress, roll_back_tool } = told;
        let undo = progress.roll_back.unwrap_or_default();
        let Call { state, call_id, started_at, ended_at, exit_code, error, .. } = progress.call;
        let problem = |call_id: &Option<String>, error: Option<crate::error::Error>| {
            error.map(|error| error.problem(call_id.as_deref().unwrap_or_default()))
        };
        Self {
            name,
            tool,
            state,
            started_at: started_at.map(rfc3339),
            ended_at: ended_at.map(rfc3339),
            exit_code,
            error: problem(&call_id, error),
            job_id: call_id,
            roll_back: roll_back_tool.map(|tool| RollBackInfo {
                tool,
                state: undo.state,
                started_at: undo.started_at.map(rfc3339),
                ended_at: undo.ended_at.map(rfc3339),
                exit_code: undo.exit_code,
                error: problem(&undo.call_id, undo.error),
                job_id: undo.call_id,
            }),
        }
    }
}
