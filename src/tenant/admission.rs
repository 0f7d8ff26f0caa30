//! Admission: what is asked of the tenant's object before a call acts, what it decides, and the records it keeps.
//!
//! Decisions are pure: the object reads what it stores, asks [`decide`], and writes what comes out, in one turn without
//! awaiting. The order of refusals is fixed: who (decided before the object is asked), limits, then the verdict on the
//! call itself, then whether the sandbox it names is there. A refused call of a known key is recorded too.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, ErrorCode};
use crate::identifier::SandboxId;

pub use super::listing::{Filters, ListRequest, Listed, ListedFacts, Listing, StartTold, StateReport};

/// What a call wants of the tenant's list of sandboxes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum SandboxClaim {
    /// Nothing.
    #[default]
    None,
    /// The sandbox must be listed.
    #[serde(rename_all = "camelCase")]
    Existing { sandbox_id: SandboxId },
    /// The sandbox may be listed or gone.
    #[serde(rename_all = "camelCase")]
    MaybeGone { sandbox_id: SandboxId },
    /// The sandbox is listed by this call unless it is already.
    #[serde(rename_all = "camelCase")]
    Create { sandbox_id: SandboxId, labels: BTreeMap<String, String>, origin: Origin },
}

impl SandboxClaim {
    /// The sandbox that the call is about.
    pub fn sandbox_id(&self) -> Option<&SandboxId> {
        match self {
            Self::None => None,
            Self::Existing { sandbox_id } | Self::MaybeGone { sandbox_id } | Self::Create { sandbox_id, .. } => {
                Some(sandbox_id)
            }
        }
    }
}

/// Which tool made a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Origin {
    CreateSandbox,
    /// A command that named no sandbox.
    Exec,
}

/// One call, before it acts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AdmissionRequest {
    /// Name of the tenant, which its object is not told by the platform.
    #[serde(default)]
    pub tenant: String,
    pub call_id: String,
    pub tool: String,
    pub door: String,
    pub key_id: String,
    /// Arguments as the audit records them.
    pub arguments: Value,
    pub claim: SandboxClaim,
    /// What is wrong with the call itself, found before admission and told only after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Error>,
    pub at: i64,
    /// When the call counts as never settled.
    pub deadline_at: i64,
}

/// The call may act.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Admitted {
    /// The sandbox of the claim as it was listed before the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listed: Option<Listed>,
}

/// What the tenant's object does with a call.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// It acts; `list` is a sandbox to add first.
    Admit { list: Option<Listed> },
    /// It does not act.
    Refuse(Error),
}

/// Decides on `request` when `listed` is the sandbox it names, if that is in the list, and `available` are ids that are.
pub fn decide(request: &AdmissionRequest, listed: Option<&Listed>, available: &[String]) -> Decision {
    if let Some(verdict) = &request.verdict {
        return Decision::Refuse(verdict.clone());
    }
    match (&request.claim, listed) {
        (SandboxClaim::Existing { sandbox_id }, None) => Decision::Refuse(
            Error::no_such_sandbox(sandbox_id.as_str()).detail("availableSandboxes", available.to_vec()),
        ),
        (claim @ SandboxClaim::Create { .. }, None) => {
            Decision::Admit { list: Listed::new(claim, request.at, &request.key_id) }
        }
        _ => Decision::Admit { list: None },
    }
}

/// First record of a call: it was asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Intent {
    pub call_id: String,
    pub tool: String,
    pub door: String,
    pub key_id: String,
    pub arguments: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<SandboxId>,
}

impl From<&AdmissionRequest> for Intent {
    fn from(request: &AdmissionRequest) -> Self {
        Self {
            call_id: request.call_id.clone(),
            tool: request.tool.clone(),
            door: request.door.clone(),
            key_id: request.key_id.clone(),
            arguments: request.arguments.clone(),
            sandbox_id: request.claim.sandbox_id().cloned(),
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
}

impl Settlement {
    /// Closes a call that nobody settled by its deadline.
    pub fn never_settled(call_id: String, asked_at: i64, now: i64) -> Self {
        Self {
            call_id,
            outcome: Outcome::Failed(ErrorCode::OutcomeUnknown),
            exit_code: None,
            duration_ms: now - asked_at,
            at: now,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn request(claim: SandboxClaim, verdict: Option<Error>) -> AdmissionRequest {
        AdmissionRequest {
            tenant: "default".into(),
            call_id: "c1".into(),
            tool: "exec".into(),
            door: "rest".into(),
            key_id: "root".into(),
            arguments: json!({}),
            claim,
            verdict,
            at: 5,
            deadline_at: 10,
        }
    }

    fn box_id() -> SandboxId {
        SandboxId::parse("box").unwrap()
    }

    #[test]
    fn a_sandbox_that_is_not_listed_is_not_found() {
        let claim = SandboxClaim::Existing { sandbox_id: box_id() };
        let Decision::Refuse(error) = decide(&request(claim, None), None, &["other".into()]) else {
            panic!("admitted");
        };
        assert_eq!(error.code, ErrorCode::NotFound);
        assert_eq!(error.details["availableSandboxes"], json!(["other"]));
    }

    #[test]
    fn the_verdict_comes_before_the_sandbox() {
        let claim = SandboxClaim::Existing { sandbox_id: box_id() };
        let verdict = Error::invalid("/command", "is missing");
        assert_eq!(decide(&request(claim, Some(verdict.clone())), None, &[]), Decision::Refuse(verdict));
    }

    #[test]
    fn a_creation_lists_once() {
        let claim = SandboxClaim::Create { sandbox_id: box_id(), labels: BTreeMap::new(), origin: Origin::Exec };
        let Decision::Admit { list: Some(listed) } = decide(&request(claim.clone(), None), None, &[]) else {
            panic!("not listed");
        };
        assert_eq!((listed.created_at, listed.owner.as_str()), (5, "root"));
        assert_eq!(decide(&request(claim, None), Some(&listed), &[]), Decision::Admit { list: None });
    }

    #[test]
    fn stored_forms_do_not_change() {
        let settlement = Settlement::never_settled("c1".into(), 3, 10);
        assert_eq!(
            serde_json::to_string(&settlement).unwrap(),
            r#"{"callId":"c1","outcome":{"result":"failed","code":"outcome_unknown"},"durationMs":7,"at":10}"#
        );
        let claim = SandboxClaim::Create { sandbox_id: box_id(), labels: BTreeMap::new(), origin: Origin::Exec };
        assert_eq!(
            serde_json::to_string(&claim).unwrap(),
            r#"{"kind":"create","sandboxId":"box","labels":{},"origin":"exec"}"#
        );
        let intent = serde_json::to_string(&Intent::from(&request(claim, None))).unwrap();
        assert_eq!(
            intent,
            r#"{"callId":"c1","tool":"exec","door":"rest","keyId":"root","arguments":{},"sandboxId":"box"}"#
        );
    }
}
