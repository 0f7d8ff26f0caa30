//! Admission: what is asked of the tenant's object before a call acts, what it decides, and the records it keeps.
//!
//! Decisions are pure: the object reads what it stores, asks [`decide`], and writes what comes out, in one turn without
//! awaiting. The order of refusals is fixed, see [`decide`]. A refused call of a known key is recorded too.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::credential::{Credential, Principal};
use super::idempotency::{self, Answer, First, Resolution, Wanted};
use super::keyring::{self, KeyRecord};
use super::limits::{HOUR, Limits, MINUTE, Standing, Window, quota_exceeded, rate_limited, seconds_to_next_day};
use super::permissions::{Permissions, Requirement};
use super::token::ROOT_KEY_ID;
use crate::error::{Error, ErrorCode, Result};
use crate::guardrails::{RateClass, Role};
use crate::identifier::SandboxId;
use crate::sandbox::state::Status;

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
    pub principal: Principal,
    pub call_id: String,
    pub door: String,
    /// What the tool asks of its caller; of a tool that there is not, only the name counts.
    pub requirement: Requirement,
    pub rate_class: RateClass,
    /// Arguments as the audit records them.
    pub arguments: Value,
    /// Signature over the arguments as they were sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments_signature: Option<String>,
    pub claim: SandboxClaim,
    /// What is wrong with the call itself, found before admission and told only after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Error>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency: Option<Wanted>,
    pub at: i64,
    /// When the call counts as never settled.
    pub deadline_at: i64,
}

/// The answer to an [`AdmissionRequest`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Admission {
    /// How the caller's window of calls stands; the root key has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standing: Option<Standing>,
    pub ruling: Ruling,
}

/// What becomes of a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(clippy::large_enum_variant, reason = "there is one a call, and it is read at once")]
pub enum Ruling {
    Admitted(Admitted),
    Refused(Error),
    /// It was carried out before, with this result.
    Replayed(Answer),
}

/// The call may act.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Admitted {
    /// The sandbox of the claim as it was listed before the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listed: Option<Listed>,
    pub permissions: Permissions,
    /// Limits of the key; the root key has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
}

/// What a key has used, as far as the decision on a call needs it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    pub windows: Windows,
    /// Calls that are open.
    pub open_calls: u32,
    /// Sandboxes that it made and that are there.
    pub live_sandboxes: u32,
    /// Seconds for which its sandboxes ran today.
    pub sandbox_seconds: u32,
}

impl Used {
    /// What a call took that is counted already.
    pub fn take_back(&mut self, rate_class: RateClass) {
        self.open_calls = self.open_calls.saturating_sub(1);
        self.windows.calls = self.windows.calls.give_back();
        if rate_class == RateClass::SandboxOperation {
            self.windows.operations = self.windows.operations.give_back();
        }
    }
}

/// The windows of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Windows {
    /// Calls of a minute.
    pub calls: Window,
    /// Calls of that minute that were refused for their number.
    pub refused: u32,
    /// Sandbox operations of an hour.
    pub operations: Window,
}

/// What the object knows of a call beside the request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known<'a> {
    /// The key, if there is one of that id.
    pub key: Option<&'a KeyRecord>,
    pub used: Used,
    /// The call that holds the idempotency key.
    pub first: Option<&'a First>,
    /// The sandbox that the call names, if it is in the list.
    pub listed: Option<&'a Listed>,
}

/// What the tenant's object does with a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The windows after the call; nothing for the root key and for strangers.
    pub windows: Option<Windows>,
    pub standing: Option<Standing>,
    pub kind: DecisionKind,
}

#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::large_enum_variant, reason = "there is one a call, and it is read at once")]
pub enum DecisionKind {
    /// It acts; `list` is a sandbox to add first.
    Admit { permissions: Permissions, limits: Option<Limits>, list: Option<Listed> },
    /// The answer of the first call with its idempotency key is given again.
    Replay,
    Refuse {
        error: Error,
        /// Whether the books say so: not of strangers, and of calls over the limit only the first in a minute.
        recorded: bool,
    },
}

/// Decides on a call. The first of these that refuses is what the caller is told:
///
/// 1. who: the key, its secret, its expiry (401);
/// 2. calls in the minute, the first of the limits, since everything else costs something to refuse (429);
/// 3. role, scopes and tools of the key (403);
/// 4. an answer that is to be given again, where the call itself is in order;
/// 5. the other limits: open calls, sandbox operations (429);
/// 6. what is wrong with the call itself (400, 404);
/// 7. the sandbox it names, or makes: whether it is there and in sight (404, 403, 409), and how many there may be (429).
pub fn decide(request: &AdmissionRequest, known: &Known<'_>) -> Decision {
    let permissions = match (&request.principal.credential, known.key) {
        (Credential::Root, _) => Ok(Permissions::of(Role::Admin)),
        (Credential::Token { permissions, .. }, _) if request.principal.key_id == ROOT_KEY_ID => {
            Ok(permissions.clone())
        }
        (credential, Some(key)) => key.verify(credential, request.at),
        (_, None) => Err(keyring::invalid()),
    };
    let permissions = match permissions {
        Ok(permissions) => permissions,
        Err(error) => {
            let kind = DecisionKind::Refuse { error, recorded: false };
            return Decision { windows: None, standing: None, kind };
        }
    };
    let Some(key) = known.key.filter(|_| request.principal.key_id != ROOT_KEY_ID) else {
        let kind = rule(request, known, permissions, None).unwrap_or_else(refused);
        return Decision { windows: None, standing: None, kind };
    };
    let mut windows = known.used.windows;
    let calls = windows.calls.at(request.at, MINUTE);
    if calls.used == 0 {
        windows.refused = 0;
    }
    let limit = key.limits.calls_per_minute();
    let Some(taken) = calls.take(limit) else {
        let standing = calls.standing(limit, request.at, MINUTE);
        windows = Windows { calls, refused: windows.refused.saturating_add(1), ..windows };
        let error = rate_limited("calls a minute", standing);
        let kind = DecisionKind::Refuse { error, recorded: windows.refused == 1 };
        return Decision { windows: Some(windows), standing: Some(standing), kind };
    };
    windows.calls = taken;
    let standing = taken.standing(limit, request.at, MINUTE);
    let mut limited = Limited { limits: key.limits, windows, used: known.used };
    let kind = rule(request, known, permissions, Some(&mut limited)).unwrap_or_else(refused);
    Decision { windows: Some(limited.windows), standing: Some(standing), kind }
}

fn refused(error: Error) -> DecisionKind {
    DecisionKind::Refuse { error, recorded: true }
}

/// A key with limits, and what of them is used.
struct Limited {
    limits: Limits,
    windows: Windows,
    used: Used,
}

/// Rules 3 to 7.
fn rule(
    request: &AdmissionRequest,
    known: &Known<'_>,
    permissions: Permissions,
    mut limited: Option<&mut Limited>,
) -> Result<DecisionKind> {
    if request.verdict.as_ref().is_none_or(|verdict| verdict.code != ErrorCode::UnknownTool) {
        permissions.check(&request.requirement)?;
    }
    if let (Some(wanted), None) = (&request.idempotency, &request.verdict) {
        match idempotency::resolve(wanted, known.first, request.at) {
            Resolution::Fresh => {}
            Resolution::Replay => return Ok(DecisionKind::Replay),
            Resolution::Refuse(error) => return Err(error),
        }
    }
    let operations = limited.as_deref().map(|limited| limited.rates(request)).transpose()?.flatten();
    if let Some(verdict) = &request.verdict {
        return Err(verdict.clone());
    }
    let in_sight = known.listed.filter(|listed| permissions.sees(&listed.labels));
    let list = match &request.claim {
        SandboxClaim::None => None,
        SandboxClaim::Existing { sandbox_id } if in_sight.is_none() => {
            return Err(Error::no_such_sandbox(sandbox_id.as_str()));
        }
        SandboxClaim::MaybeGone { sandbox_id } if known.listed.is_some() && in_sight.is_none() => {
            return Err(Error::no_such_sandbox(sandbox_id.as_str()));
        }
        SandboxClaim::Existing { .. } | SandboxClaim::MaybeGone { .. } => None,
        SandboxClaim::Create { .. } if in_sight.is_some() => None,
        SandboxClaim::Create { sandbox_id, .. } if known.listed.is_some() => {
            let message = "a sandbox of that name is there already, and this key does not see it";
            return Err(Error::new(ErrorCode::Conflict, message).detail("sandboxId", sandbox_id.as_str()));
        }
        claim @ SandboxClaim::Create { labels, .. } => {
            let labels = permissions.labelled(labels.clone())?;
            Listed::new(claim, request.at, &request.principal.key_id).map(|listed| Listed { labels, ..listed })
        }
    };
    let starts = list.is_some() || in_sight.is_some_and(|listed| listed.state.status() != Status::Running);
    if let Some(limited) = limited.as_deref() {
        limited.quotas(
            list.is_some(),
            starts && !matches!(request.claim, SandboxClaim::MaybeGone { .. }),
            request.at,
        )?;
    }
    // Only what is admitted uses an operation up.
    if let (Some(limited), Some(operations)) = (limited.as_deref_mut(), operations) {
        limited.windows.operations = operations;
    }
    Ok(DecisionKind::Admit { permissions, limits: limited.map(|limited| limited.limits), list })
}

impl Limited {
    /// The window of operations after this call, if it takes from it.
    fn rates(&self, request: &AdmissionRequest) -> Result<Option<Window>> {
        let concurrent = self.limits.concurrent_calls();
        if self.used.open_calls >= concurrent {
            let standing = Standing { limit: concurrent, remaining: 0, reset_seconds: 1 };
            return Err(rate_limited("calls at once", standing));
        }
        if request.rate_class != RateClass::SandboxOperation {
            return Ok(None);
        }
        let limit = self.limits.sandbox_operations_per_hour();
        let operations = self.windows.operations.at(request.at, HOUR);
        match operations.take(limit) {
            Some(taken) => Ok(Some(taken)),
            None => Err(rate_limited("sandbox operations an hour", operations.standing(limit, request.at, HOUR))),
        }
    }

    fn quotas(&self, makes: bool, starts: bool, now: i64) -> Result<()> {
        let live = self.limits.live_sandboxes();
        if makes && self.used.live_sandboxes >= live {
            let what = "sandboxes at once; destroy one that is not needed";
            return Err(quota_exceeded("liveSandboxes", what, live, 10));
        }
        let seconds = self.limits.sandbox_seconds_per_day();
        if starts && self.used.sandbox_seconds >= seconds {
            let what = "seconds of sandboxes for today, in UTC";
            return Err(quota_exceeded("sandboxSecondsPerDay", what, seconds, seconds_to_next_day(now)));
        }
        Ok(())
    }
}

/// Whether a call that failed so did not use its operation: nothing was begun in a sandbox.
pub fn gives_back(outcome: Outcome) -> bool {
    let Outcome::Failed(code) = outcome else { return false };
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
                Credential::Root | Credential::Key { .. } => None,
            },
            arguments: request.arguments.clone(),
            arguments_signature: request.arguments_signature.clone(),
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
    /// Kept for its idempotency key; not a part of the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Answer>,
}

impl Settlement {
    /// Closes a call that did not act.
    pub fn without_act(request: &AdmissionRequest, outcome: Outcome) -> Self {
        let call_id = request.call_id.clone();
        Self { call_id, outcome, exit_code: None, duration_ms: 0, at: request.at, answer: None }
    }

    /// Closes a call that nobody settled by its deadline.
    pub fn never_settled(call_id: String, asked_at: i64, now: i64) -> Self {
        Self {
            call_id,
            outcome: Outcome::Failed(ErrorCode::OutcomeUnknown),
            exit_code: None,
            duration_ms: now - asked_at,
            at: now,
            answer: None,
        }
    }
}

#[cfg(test)]
mod tests;
