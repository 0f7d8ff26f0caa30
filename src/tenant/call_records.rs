//! What the books have of a call: that it was asked for, and how it ended.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::admission::AdmissionRequest;
use super::credential::Credential;
use super::idempotency::Answer;
use super::usage::Spent;
use crate::error::ErrorCode;
use crate::identifier::SandboxId;

/// Whether a call that failed so did not use its operation: nothing was begun in a sandbox.
pub fn gives_back(outcome: Outcome) -> bool {
    let (Outcome::Failed(code) | Outcome::Refused(code)) = outcome else { return false };
    matches!(
        code,
        ErrorCode::SandboxUnavailable | ErrorCode::NotConfigured | ErrorCode::NotFound | ErrorCode::InvalidArguments
    )
}

/// First record of a call: it was asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Intent {
    pub call_id: String,
    pub tool: String,
    pub door: String,
    pub key_id: String,
    /// Of a call with a token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_id: Option<String>,
    pub arguments: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments_signature: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<SandboxId>,
    /// Of a call that a schedule made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule_id: Option<String>,
}

impl From<&AdmissionRequest> for Intent {
    fn from(request: &AdmissionRequest) -> Self {
        Self {
            call_id: request.call_id.clone(),
            tool: request.requirement.tool.clone(),
            door: request.door.clone(),
            key_id: request.principal.key_id.clone(),
            token_id: match &request.principal.credential {
                Credential::Token { token_id, .. } => Some(token_id.clone()),
                Credential::Job { token_id, .. } => token_id.clone(),
                Credential::Root | Credential::Key { .. } => None,
            },
            arguments: request.arguments.clone(),
            arguments_signature: request.arguments_signature.clone(),
            sandbox_id: request.claim.sandbox_id().cloned(),
            schedule_id: request.schedule_id.clone(),
        }
    }
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "result", content = "code")]
pub enum Outcome {
    Succeeded,
    Failed(ErrorCode),
    /// It was not admitted.
    Refused(ErrorCode),
    /// It was not carried out: the answer of an earlier call was given again.
    Replayed,
}

/// Second record of a call: how it ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Settlement {
    pub call_id: String,
    pub outcome: Outcome,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    pub duration_ms: i64,
    pub at: i64,
    /// Added to the usage of its key; not a part of the record.
    #[serde(default, skip_serializing_if = "Spent::is_nothing")]
    pub spent: Spent,
    /// Kept for its idempotency key; not a part of the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Answer>,
}

impl Settlement {
    /// Closes a call that did not act.
    pub fn without_act(request: &AdmissionRequest, outcome: Outcome) -> Self {
        let call_id = request.call_id.clone();
        let spent = Spent::default();
        Self { call_id, outcome, exit_code: None, duration_ms: 0, at: request.at, spent, answer: None }
    }

    /// Closes a call that nobody settled by its deadline.
    pub fn never_settled(call_id: String, asked_at: i64, now: i64) -> Self {
        Self {
            call_id,
            outcome: Outcome::Failed(ErrorCode::OutcomeUnknown),
            exit_code: None,
            duration_ms: now - asked_at,
            at: now,
            spent: Spent::default(),
            answer: None,
        }
    }
}
