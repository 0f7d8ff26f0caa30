//! Admission: what is asked of the tenant's object before a call acts, what it decides, and the records it keeps.
//!
//! Decisions are pure: the object reads what it stores, asks [`decide`], and writes what comes out, in one turn without
//! awaiting. The order of refusals is fixed, see [`decide`]. A refused call of a known key is recorded too.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::approval::{ArgumentRule, Inspected, Judgement};
use super::credential::{Credential, Principal};
use super::idempotency::{self, Answer, First, Resolution, Wanted};
use super::keyring::KeyRecord;
use super::limits::{HOUR, Limits, MINUTE, Standing, Window, quota_exceeded, rate_limited, seconds_to_next_day};
use super::marks::Mark;
use super::permissions::{Permissions, Requirement};
use super::secrets::SealedSecrets;
use super::token::ROOT_KEY_ID;
use crate::error::{Error, ErrorCode, Result};
use crate::guardrails::RateClass;
use crate::job::record::{Approval, Job, StepOf};
use crate::registry;

pub use super::call_records::{Intent, Outcome, Settlement, gives_back};
pub use super::claim::{Origin, SandboxClaim};
pub use super::listing::{Filters, ListRequest, Listed, ListedFacts, Listing, StartTold, StateReport};

/// How a call is carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Manner {
    /// At once, or as a job where it has to be approved first.
    #[default]
    Ordinary,
    /// As a job, since the caller does not wait.
    Deferred,
    /// At once or never: its bytes cannot wait.
    Raw,
    /// At once or never: what it is given is not stored.
    Immediate,
    /// At once or never: whoever asks is answered with what there is.
    AtOnce,
    /// It only says what it would do.
    Preview,
    /// By a job, which was counted, recorded and approved when it was asked for.
    Attempt,
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
    #[serde(default)]
    pub manner: Manner,
    /// Whether it runs already, and is only gone on with.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_resumed: bool,
    /// The pipeline that makes the call, which becomes a job without counting as one more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_of: Option<StepOf>,
    /// The schedule that makes the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule_id: Option<String>,
    /// How its arguments stand against the rules for approval, where that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inspected: Option<Inspected>,
    /// What is wrong with the call itself, found before admission and told only after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Error>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency: Option<Wanted>,
    /// Who is told of the job, if the call becomes one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook_url: Option<String>,
    /// What its caller calls it by, where the caller may end it from another connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<Mark>,
    pub at: i64,
    /// When the call counts as never settled.
    pub deadline_at: i64,
}

impl AdmissionRequest {
    /// Whether it only says what it would do.
    pub fn is_preview(&self) -> bool {
        self.manner == Manner::Preview
    }
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

/// Who asks for what it may call, which is counted like a call and not recorded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Identified {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standing: Option<Standing>,
    pub may: May,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum May {
    /// Use these.
    Have(Permissions),
    Refused(Error),
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
    /// Nothing is decided yet: it has to be asked again with what these rules say of its arguments.
    Inspect(Vec<ArgumentRule>),
    /// It became this job, which is to be made known to its object.
    Deferred(Box<Job>),
    /// It was asked before, and is this job.
    Job(Box<Job>),
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
    /// The named secrets that it uses, sealed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: SealedSecrets,
}

/// What a key has used, as far as the decision on a call needs it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    pub windows: Windows,
    /// Calls that are open.
    pub open_calls: u32,
    /// Jobs that are not over.
    pub open_jobs: u32,
    /// Sandboxes that it made and that are there.
    pub live_sandboxes: u32,
}

/// The seconds of sandboxes that a key has for a day. They are the maker's, whoever uses the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    pub limit: u32,
    /// Seconds for which its sandboxes ran today.
    pub used: u32,
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
    /// Of the key that made the sandbox, or makes it; the root key has none.
    pub budget: Option<Budget>,
    /// The call that holds the idempotency key.
    pub first: Option<&'a First>,
    /// The sandbox that the call names, if it is in the list.
    pub listed: Option<&'a Listed>,
    /// Jobs of the tenant that are carried out or are next, and how many there may be where that is not the default.
    pub busy_jobs: u32,
    pub most_busy_jobs: Option<u32>,
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
    /// The first call with its idempotency key became a job.
    Job,
    /// It depends on its arguments.
    Inspect(Vec<ArgumentRule>),
    /// It becomes a job, which waits until it is approved where that is needed.
    Defer(Option<Approval>),
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
/// 3. role, scopes and tools of the key, and the zones and accounts that the call names (403);
/// 4. an answer that is to be given again, where the call itself is in order;
/// 5. the other limits: open calls, sandbox operations (429);
/// 6. what is wrong with the call itself (400, 404);
/// 7. the sandbox it names, or makes: whether it is there and in sight (404, 403, 409), and how many there may be (429);
/// 8. whether it has to be approved first: then it becomes a job, or where it cannot wait it is refused (403);
/// 9. whether its caller waits: otherwise it becomes a job too, if there may be one more (429).
pub fn decide(request: &AdmissionRequest, known: &Known<'_>) -> Decision {
    // A job was counted when it was asked for.
    let is_counted = request.manner != Manner::Attempt;
    let counted = match who(&request.principal, known.key, known.used.windows, request.at, is_counted) {
        Ok(counted) => counted,
        Err(error) => {
            // A schedule is no stranger, and its owner wants to know.
            let recorded = request.schedule_id.is_some();
            let kind = DecisionKind::Refuse { error, recorded };
            return Decision { windows: None, standing: None, kind };
        }
    };
    let Counted { permissions, windows, standing } = counted;
    let permissions = match permissions {
        Ok(permissions) => permissions,
        Err(error) => {
            // A step is asked for again, and so is a run of a schedule.
            let is_asked_again = request.step_of.is_some() || request.schedule_id.is_some();
            let recorded = !is_asked_again && windows.is_some_and(|windows| windows.refused == 1);
            return Decision { windows, standing, kind: DecisionKind::Refuse { error, recorded } };
        }
    };
    let of_the_key = known.key.map(|key| key.limits).zip(windows);
    let mut limited = of_the_key.map(|(limits, windows)| Limited { limits, windows, used: known.used });
    let kind = rule(request, known, permissions, limited.as_mut()).unwrap_or_else(|error| {
        // The job of an attempt tells how it ended.
        let is_asked_again = (request.step_of.is_some() || request.schedule_id.is_some()) && error.retryable;
        DecisionKind::Refuse { error, recorded: is_counted && !is_asked_again }
    });
    Decision { windows: limited.map(|limited| limited.windows), standing, kind }
}

/// A caller that is known, and its window of calls with this one.
#[derive(Clone, Debug, PartialEq)]
pub struct Counted {
    /// What it may do; 429 when the calls of the window are used up.
    pub permissions: Result<Permissions>,
    /// The windows after the call; the root key has none.
    pub windows: Option<Windows>,
    pub standing: Option<Standing>,
}

/// Rules 1 and 2: 401 for a caller that is not known.
pub fn who(
    principal: &Principal,
    key: Option<&KeyRecord>,
    windows: Windows,
    at: i64,
    is_counted: bool,
) -> Result<Counted> {
    let permissions = principal.permissions(key, at)?;
    let Some(key) = key.filter(|_| principal.key_id != ROOT_KEY_ID) else {
        return Ok(Counted { permissions: Ok(permissions), windows: None, standing: None });
    };
    let calls = windows.calls.at(at, MINUTE);
    let refused = if calls.started_at == windows.calls.started_at { windows.refused } else { 0 };
    let limit = key.limits.calls_per_minute();
    let taken = if is_counted { calls.take(limit) } else { Some(calls) };
    let (permissions, calls, refused) = match taken {
        Some(taken) => (Ok(permissions), taken, refused),
        None => {
            let error = rate_limited("calls a minute", calls.standing(limit, at, MINUTE));
            (Err(error), calls, refused.saturating_add(1))
        }
    };
    let standing = Some(calls.standing(limit, at, MINUTE));
    Ok(Counted { permissions, windows: Some(Windows { calls, refused, ..windows }), standing })
}

/// A key with limits, and what of them is used.
struct Limited {
    limits: Limits,
    windows: Windows,
    used: Used,
}

/// Rules 3 to 9.
fn rule(
    request: &AdmissionRequest,
    known: &Known<'_>,
    permissions: Permissions,
    mut limited: Option<&mut Limited>,
) -> Result<DecisionKind> {
    if request.verdict.as_ref().is_none_or(|verdict| verdict.code != ErrorCode::UnknownTool) {
        permissions.check(&request.requirement)?;
        permissions.check_named(&request.requirement)?;
    }
    if let (Some(wanted), None) = (&request.idempotency, &request.verdict) {
        match idempotency::resolve(wanted, known.first, request.at) {
            Resolution::Fresh => {}
            Resolution::Replay => return Ok(DecisionKind::Replay),
            Resolution::Job => return Ok(DecisionKind::Job),
            Resolution::Refuse(error) => return Err(error),
        }
    }
    // What is under way is not ended by a limit.
    let begins = !request.is_resumed;
    let operations = limited.as_deref().filter(|_| begins).map(|limited| limited.rates(request)).transpose()?.flatten();
    if let Some(verdict) = &request.verdict {
        return Err(verdict.clone());
    }
    if let (Credential::Job { sandbox_created_at: Some(meant), .. }, Some(listed)) =
        (&request.principal.credential, known.listed)
        && listed.created_at != *meant
    {
        let message = "the sandbox of that name is another than when the call was asked for";
        return Err(Error::new(ErrorCode::StaleGeneration, message).detail("sandboxId", listed.sandbox_id.as_str()));
    }
    let in_sight = known.listed.filter(|listed| permissions.sees(&listed.labels));
    let list = match &request.claim {
        SandboxClaim::None => None,
        SandboxClaim::Existing { sandbox_id }
        | SandboxClaim::Running { sandbox_id }
        | SandboxClaim::Untouched { sandbox_id }
            if in_sight.is_none() =>
        {
            return Err(Error::no_such_sandbox(sandbox_id.as_str()));
        }
        SandboxClaim::MaybeGone { sandbox_id } if known.listed.is_some() && in_sight.is_none() => {
            return Err(Error::no_such_sandbox(sandbox_id.as_str()));
        }
        SandboxClaim::Existing { .. }
        | SandboxClaim::Running { .. }
        | SandboxClaim::Untouched { .. }
        | SandboxClaim::MaybeGone { .. } => None,
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
    if let Some(limited) = limited.as_deref().filter(|_| list.is_some()) {
        limited.places()?;
    }
    if let Some(budget) = known.budget.filter(|_| begins && request.claim.has_run(known.listed)) {
        budget.check(request.at)?;
    }
    match approval(request, &permissions) {
        Judgement::Free => {}
        Judgement::Depends(rules) => return Ok(DecisionKind::Inspect(rules)),
        Judgement::Waits(_) if request.manner == Manner::Raw => {
            let message = "this call has to be approved first, and raw bytes cannot wait; call the tool with JSON";
            return Err(Error::new(ErrorCode::Forbidden, message).detail("reason", "needs_approval"));
        }
        Judgement::Waits(_) if request.manner == Manner::Immediate => {
            let message = "this call has to be approved first, and what it is given is not stored, so that it cannot wait; \
                a key without such a rule may make it";
            return Err(Error::new(ErrorCode::Forbidden, message).detail("reason", "needs_approval"));
        }
        Judgement::Waits(_) if request.manner == Manner::AtOnce => {
            let message = "this call has to be approved first, and here it cannot wait; call the tool itself";
            return Err(Error::new(ErrorCode::Forbidden, message).detail("reason", "needs_approval"));
        }
        Judgement::Waits(_) if registry::is_not_recorded(&request.arguments) => {
            let message =
                "this call has to be approved first, and its arguments are too long to be shown to who approves";
            return Err(Error::new(ErrorCode::PayloadTooLarge, message).detail("reason", "needs_approval"));
        }
        Judgement::Waits(reason) => {
            limited.as_deref().filter(|_| request.step_of.is_none()).map_or(Ok(()), Limited::jobs)?;
            let expires_at = permissions.approval.expires_at(request.at);
            return Ok(DecisionKind::Defer(Some(Approval { reason, expires_at, decision: None })));
        }
    }
    if request.step_of.is_some() {
        return Ok(DecisionKind::Defer(None));
    }
    if request.manner == Manner::Deferred {
        limited.as_deref().map_or(Ok(()), Limited::jobs)?;
        return busy(known).map(|()| DecisionKind::Defer(None));
    }
    // Only what is admitted uses an operation up.
    if let (Some(limited), Some(operations)) = (limited.as_deref_mut(), operations) {
        limited.windows.operations = operations;
    }
    Ok(DecisionKind::Admit { permissions, limits: limited.map(|limited| limited.limits), list })
}

fn approval(request: &AdmissionRequest, permissions: &Permissions) -> Judgement {
    match request.manner {
        Manner::Ordinary | Manner::Deferred | Manner::Immediate | Manner::Raw | Manner::AtOnce => {
            let Requirement { tool, approval, destructive, .. } = &request.requirement;
            permissions.approval.judge(tool, *approval, *destructive, request.inspected.as_ref())
        }
        Manner::Preview | Manner::Attempt => Judgement::Free,
    }
}

/// Most jobs of a tenant that are carried out or are next, where the variable `BUSY_JOBS` says nothing else.
pub const MOST_BUSY_JOBS: u32 = 200;

/// Most that `BUSY_JOBS` can say.
const LARGEST_BUSY_JOBS: u32 = 10_000;

/// What the variable `BUSY_JOBS` says; what is no whole number from 1 on says nothing.
pub fn busy_jobs_configured(text: Option<&str>) -> Option<u32> {
    let most = text?.trim().parse::<u32>().ok().filter(|most| *most > 0)?;
    Some(most.min(LARGEST_BUSY_JOBS))
}

/// Whether the tenant may have one more job that nobody has to approve.
fn busy(known: &Known<'_>) -> Result<()> {
    let most = known.most_busy_jobs.unwrap_or(MOST_BUSY_JOBS);
    if known.busy_jobs < most {
        return Ok(());
    }
    let message = format!("{most} jobs of this tenant are not over; wait until one is, or cancel one");
    Err(quota_exceeded("busyJobs", message, most, 10))
}

impl Limited {
    /// Whether there may be one more job.
    fn jobs(&self) -> Result<()> {
        let limit = self.limits.open_jobs();
        if self.used.open_jobs < limit {
            return Ok(());
        }
        let message = format!("this key has used its {limit} jobs at once; wait until one is over");
        Err(quota_exceeded("openJobs", message, limit, 60))
    }

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

    /// Whether there may be one more sandbox.
    fn places(&self) -> Result<()> {
        let live = self.limits.live_sandboxes();
        if self.used.live_sandboxes < live {
            return Ok(());
        }
        let message = format!("this key has used its {live} sandboxes at once; destroy one that is not needed");
        Err(quota_exceeded("liveSandboxes", message, live, 10))
    }
}

impl Budget {
    fn check(self, now: i64) -> Result<()> {
        if self.used < self.limit {
            return Ok(());
        }
        let limit = self.limit;
        let message =
            format!("the key that the sandbox is of has used its {limit} seconds of sandboxes for today, in UTC");
        Err(quota_exceeded("sandboxSecondsPerDay", message, limit, seconds_to_next_day(now)))
    }
}

#[cfg(test)]
mod tests;
