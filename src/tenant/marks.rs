//! Marks: what callers call their requests by, so that they can end them from another connection.
//!
//! A mark is kept while its caller waits for the answer, and found by the same key only. One that two open calls have names neither.

use serde::{Deserialize, Serialize};

use super::credential::Principal;
use crate::error::Error;
use crate::identifier::SandboxId;

/// What a caller calls its request by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mark {
    /// A digest, so that it is short whatever the caller chose.
    pub digest: String,
    /// Until when the caller waits where the call is a job.
    pub until: i64,
}

/// Whoever asked for the call of this mark wants it to end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CancelRequest {
    pub principal: Principal,
    pub digest: String,
    pub at: i64,
}

/// Whether a call that is open is still to go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WantedRequest {
    pub call_id: String,
    /// Key that it was made with.
    pub key_id: String,
    pub at: i64,
}

/// What is known of a call that is open.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Wanted {
    Still,
    /// Its caller wants it to end.
    Cancelled,
    /// Its key was revoked or has expired, as the error says.
    KeyEnded(Error),
}

/// The one call of a mark, which is noted as unwanted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Marked {
    /// There is none, or more than one.
    Nothing,
    #[serde(rename_all = "camelCase")]
    Call {
        call_id: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sandbox_id: Option<SandboxId>,
    },
    #[serde(rename_all = "camelCase")]
    Job { job_id: String },
}
