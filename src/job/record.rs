//! What is known of a job, what is due when, and what its object and its tenant's list say to each other.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::state::{Event, InvalidTransition, State};
use crate::error::{Error, ErrorCode};
use crate::identifier::SandboxId;
use crate::tenant::approval::Reason;
use crate::tenant::credential::{Credential, Principal};
use crate::tenant::idempotency::Answer;
use crate::tenant::permissions::{Permissions, Requirement};

/// How long a job is told of after its end, in milliseconds: a week.
pub const KEPT_MILLIS: i64 = 7 * 24 * 60 * 60 * 1000;

/// First and longest pause after an attempt that did not begin, or a report that was not taken, in milliseconds.
const FIRST_PAUSE: i64 = 2_000;
const LONGEST_PAUSE: i64 = 60_000;

/// How long a job is tried that cannot begin, in milliseconds: an hour.
pub const PATIENCE: i64 = 60 * 60 * 1000;

/// How often the object looks whether an attempt is still in its memory, in milliseconds.
pub const PULSE: i64 = 15_000;

/// How long one attempt may take, in milliseconds: the platform ends an alarm's work after 15 minutes.
pub const LONGEST_ATTEMPT: i64 = 14 * 60 * 1000;

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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<SandboxId>,
    /// When that sandbox was made, which tells it from another of its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_created_at: Option<i64>,
    /// Labels of that sandbox when the job was asked for.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    pub created_at: i64,
    pub updated_at: i64,
    /// When its last attempt began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begun_at: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<Approval>,
    /// Attempts that may have acted.
    #[serde(default)]
    pub attempts: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Error>,
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
}

/// What a job's object tells its tenant's list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    pub job: Job,
    /// What is kept for its idempotency key, of one that is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Answer>,
}

/// What the object stores beside arguments and output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Stored {
    pub job: Job,
    pub order: Order,
    /// Version that the tenant's list has taken, and failures to tell it since.
    #[serde(default)]
    pub reported: u32,
    #[serde(default)]
    pub report_failures: u32,
    #[serde(default)]
    pub report_at: i64,
    /// When it may begin, attempts that did not, and since when it is tried.
    #[serde(default)]
    pub begin_at: i64,
    #[serde(default)]
    pub not_begun: u32,
    #[serde(default)]
    pub tried_since: i64,
}

/// What the object has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Nobody approved it in time.
    Expire,
    /// It is carried out.
    Begin,
    /// Is its attempt still in memory?
    Pulse,
    /// The tenant's list is told.
    Report,
    /// It is forgotten.
    Forget,
}

impl Stored {
    pub fn new(seed: &Seed) -> Self {
        let job = Job { version: 1, ..seed.job.clone() };
        let begin_at = job.created_at;
        Self {
            order: seed.order.clone(),
            reported: 0,
            report_failures: 0,
            report_at: 0,
            begin_at,
            not_begun: 0,
            tried_since: begin_at,
            job,
        }
    }

    /// What there is to do, and when.
    pub fn due(&self) -> Vec<(Due, i64)> {
        let job = &self.job;
        let mut due = Vec::new();
        match job.state {
            State::AwaitingApproval => {
                due.extend(job.approval.as_ref().map(|approval| (Due::Expire, approval.expires_at)));
            }
            State::Queued => due.push((Due::Begin, self.begin_at)),
            State::Running => due.push((Due::Pulse, job.updated_at + PULSE)),
            _ => {}
        }
        if self.reported < job.version {
            due.push((Due::Report, self.report_at));
        } else if let Some(ended_at) = job.ended_at {
            due.push((Due::Forget, ended_at + KEPT_MILLIS));
        }
        due
    }

    /// Whether its attempt has gone on for longer than one can.
    pub fn is_overdue(&self, now: i64) -> bool {
        self.job.begun_at.is_some_and(|begun_at| now > begun_at + LONGEST_ATTEMPT + PULSE)
    }

    /// When the alarm has to go off.
    pub fn alarm(&self) -> Option<i64> {
        self.due().into_iter().map(|(_, at)| at).min()
    }

    /// Applies `event`.
    pub fn change(&mut self, event: Event, now: i64) -> Result<(), InvalidTransition> {
        let job = &mut self.job;
        job.state = job.state.after(event)?;
        job.version += 1;
        job.updated_at = now;
        if job.state.is_over() {
            job.ended_at = Some(now);
        }
        Ok(())
    }

    /// Approves or rejects; the same decision of the same key again changes nothing.
    pub fn decide(&mut self, decision: Decision) -> Result<(), Error> {
        let now = decision.at;
        let Some(approval) = self.job.approval.as_mut() else {
            return Err(Error::new(ErrorCode::Conflict, "the job does not wait for an approval"));
        };
        if let Some(before) = &approval.decision {
            if before.approved == decision.approved && before.key_id == decision.key_id {
                return Ok(());
            }
            return Err(over(&self.job));
        }
        if self.job.state != State::AwaitingApproval || approval.expires_at <= now {
            return Err(over(&self.job));
        }
        approval.decision = Some(decision.clone());
        if decision.approved {
            self.change(Event::Approve, now).map_err(Error::internal)?;
            (self.begin_at, self.tried_since) = (now, now);
            return Ok(());
        }
        let mut error =
            Error::new(ErrorCode::ApprovalRejected, "the call was rejected").detail("rejectedBy", decision.key_id);
        if let Some(comment) = decision.comment {
            error = error.detail("comment", comment);
        }
        self.end(Event::Reject, Some(error), now)
    }

    /// Nobody approved it in time.
    pub fn expire(&mut self, now: i64) -> Result<(), Error> {
        let message = "nobody approved the call in time";
        let error = Error::new(ErrorCode::ApprovalRejected, message).detail("reason", "expired");
        self.end(Event::Reject, Some(error), now)
    }

    /// It ends, with this error or without one.
    pub fn end(&mut self, event: Event, error: Option<Error>, now: i64) -> Result<(), Error> {
        self.change(event, now).map_err(Error::internal)?;
        self.job.error = error;
        Ok(())
    }

    /// An attempt begins.
    pub fn begin(&mut self, now: i64) -> Result<(), Error> {
        self.change(Event::Begin, now).map_err(Error::internal)?;
        self.job.attempts += 1;
        self.job.begun_at = Some(now);
        Ok(())
    }

    /// The attempt was refused before it acted: it is made again later, or given up with that refusal.
    pub fn not_begun(&mut self, error: Error, now: i64) -> Result<(), Error> {
        self.job.attempts = self.job.attempts.saturating_sub(1);
        self.job.begun_at = None;
        let asked = i64::from(error.retry_after.unwrap_or(0)) * 1000;
        let begin_at = now + pause(self.not_begun).max(asked);
        if !error.retryable || begin_at > self.tried_since + PATIENCE {
            return self.end(Event::Fail, Some(error), now);
        }
        self.begin_at = begin_at;
        self.not_begun += 1;
        self.change(Event::NotBegun, now).map_err(Error::internal)
    }

    /// The attempt ended.
    pub fn ended(&mut self, error: Option<Error>, exit_code: Option<i32>, now: i64) -> Result<(), Error> {
        let event = match error.as_ref().map(|error| error.code) {
            None => Event::Succeed,
            Some(ErrorCode::OutcomeUnknown | ErrorCode::Interrupted) => Event::Lose,
            Some(_) => Event::Fail,
        };
        self.job.exit_code = exit_code;
        self.end(event, error, now)
    }

    /// The attempt is in nobody's memory any more.
    pub fn lost(&mut self, now: i64) -> Result<(), Error> {
        let message = "the call had begun when this service was interrupted; it may have acted";
        self.end(Event::Lose, Some(Error::new(ErrorCode::OutcomeUnknown, message)), now)
    }

    /// The tenant's list has taken this version, or has not.
    pub fn told(&mut self, version: u32, taken: bool, now: i64) {
        if taken {
            self.reported = self.reported.max(version);
            self.report_failures = 0;
        } else {
            self.report_at = now + pause(self.report_failures);
            self.report_failures = self.report_failures.saturating_add(1);
        }
    }

    /// Who calls when the job is carried out: the key that asked, as it is then.
    pub fn principal(&self) -> Principal {
        Principal {
            tenant: self.order.tenant.clone(),
            key_id: self.job.key_id.clone(),
            credential: Credential::Job {
                permissions: self.order.permissions.clone(),
                sandbox_created_at: self.job.sandbox_created_at,
            },
        }
    }

    /// Id of the call of this attempt: a job's first is the job's own.
    pub fn attempt_id(&self) -> String {
        match self.job.attempts {
            0 | 1 => self.job.job_id.clone(),
            more => format!("{}-{more}", self.job.job_id),
        }
    }
}

/// 409: what was asked for is not possible any more.
fn over(job: &Job) -> Error {
    Error::new(ErrorCode::Conflict, format!("the job is {}", job.state.as_str()))
        .detail("jobId", job.job_id.as_str())
        .detail("state", job.state.as_str())
}

fn pause(failures: u32) -> i64 {
    FIRST_PAUSE.saturating_mul(1_i64.checked_shl(failures.min(20)).unwrap_or(i64::MAX)).min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guardrails::Role;
    use crate::tenant::approval::Rule;
    use serde_json::json;

    const NOW: i64 = 1_000_000;

    fn waiting() -> Stored {
        let approval =
            Approval { reason: Reason { rule: Rule::Tool, argument: None }, expires_at: NOW + 1_000, decision: None };
        let job = Job {
            job_id: "j".into(),
            tool: "exec".into(),
            state: State::AwaitingApproval,
            version: 0,
            key_id: "k".into(),
            token_id: None,
            sandbox_id: None,
            sandbox_created_at: None,
            labels: BTreeMap::new(),
            created_at: NOW,
            updated_at: NOW,
            begun_at: None,
            ended_at: None,
            approval: Some(approval),
            attempts: 0,
            exit_code: None,
            error: None,
        };
        let order = Order {
            tenant: "default".into(),
            permissions: None,
            requirement: Requirement::of("exec", Role::Operator),
            recorded: json!({}),
            arguments_signature: None,
            holds_key: false,
        };
        Stored::new(&Seed { job, order, arguments: "{}".into() })
    }

    fn decision(approved: bool, key_id: &str, at: i64) -> Decision {
        Decision { approved, key_id: key_id.into(), call_id: "c".into(), at, comment: None }
    }

    fn whats_due(stored: &Stored) -> Vec<Due> {
        stored.due().into_iter().map(|(due, _)| due).collect()
    }

    #[test]
    fn a_job_is_approved_once_and_in_time() {
        let mut job = waiting();
        assert_eq!(whats_due(&job), [Due::Expire, Due::Report]);
        assert_eq!(job.decide(decision(true, "a", NOW + 1_000)).unwrap_err().code, ErrorCode::Conflict);
        job.decide(decision(true, "a", NOW + 1)).unwrap();
        assert_eq!((job.job.state, job.job.version), (State::Queued, 2));
        job.decide(decision(true, "a", NOW + 2)).unwrap();
        assert_eq!(job.job.version, 2, "the same again changes nothing");
        for other in [decision(true, "b", NOW + 2), decision(false, "a", NOW + 2)] {
            assert_eq!(job.decide(other).unwrap_err().code, ErrorCode::Conflict);
        }
        assert_eq!(job.alarm(), Some(0), "a report is due at once");
    }

    #[test]
    fn a_rejected_or_expired_job_has_ended() {
        let mut job = waiting();
        job.decide(decision(false, "a", NOW + 1)).unwrap();
        let error = job.job.error.clone().unwrap();
        assert_eq!((job.job.state, error.code), (State::Rejected, ErrorCode::ApprovalRejected));
        assert_eq!(error.details["rejectedBy"], "a");
        let mut job = waiting();
        job.expire(NOW + 1_000).unwrap();
        assert_eq!(job.job.error.as_ref().unwrap().details["reason"], "expired");
        assert!(job.decide(decision(true, "a", NOW)).is_err());
        job.told(2, true, NOW);
        assert_eq!(job.due(), [(Due::Forget, NOW + 1_000 + KEPT_MILLIS)]);
    }

    #[test]
    fn an_attempt_that_began_is_never_made_again() {
        let mut job = waiting();
        job.decide(decision(true, "a", NOW)).unwrap();
        job.begin(NOW).unwrap();
        assert_eq!((job.attempt_id().as_str(), job.job.attempts), ("j", 1));
        assert!(job.begin(NOW).is_err());
        let mut lost = job.clone();
        lost.lost(NOW + 5).unwrap();
        assert_eq!(lost.job.state, State::Interrupted);
        let mut unknown = job.clone();
        unknown.ended(Some(Error::new(ErrorCode::OutcomeUnknown, "x")), None, NOW).unwrap();
        assert_eq!(unknown.job.state, State::Interrupted);
        job.ended(Some(Error::new(ErrorCode::Timeout, "x")), None, NOW).unwrap();
        assert_eq!(job.job.state, State::Failed);
    }

    #[test]
    fn an_attempt_that_did_not_begin_is_made_again_for_a_while() {
        let mut job = waiting();
        job.decide(decision(true, "a", NOW)).unwrap();
        let busy = Error::new(ErrorCode::RateLimited, "busy");
        let mut now = NOW;
        let mut attempts = 0;
        while job.job.state == State::Queued {
            assert!(job.begin_at >= now);
            now = job.begin_at;
            job.begin(now).unwrap();
            assert_eq!(job.attempt_id(), "j", "what did not begin is no attempt");
            job.not_begun(busy.clone(), now).unwrap();
            attempts += 1;
        }
        assert_eq!((job.job.state, job.job.attempts), (State::Failed, 0));
        assert!(now <= NOW + PATIENCE && (30..100).contains(&attempts), "{attempts}");
        let mut job = waiting();
        job.decide(decision(true, "a", NOW)).unwrap();
        job.begin(NOW).unwrap();
        job.not_begun(Error::new(ErrorCode::Unauthenticated, "the key was revoked"), NOW).unwrap();
        assert_eq!(job.job.state, State::Failed);
    }

    #[test]
    fn reports_are_tried_less_and_less_often() {
        let mut job = waiting();
        job.told(1, false, NOW);
        job.told(1, false, NOW);
        assert_eq!(job.report_at, NOW + 4_000);
        job.told(1, true, NOW);
        assert_eq!(whats_due(&job), [Due::Expire]);
    }

    #[test]
    fn what_is_stored_is_read_by_later_releases() {
        let text = r#"{"job":{"jobId":"j","tool":"exec","state":"awaiting_approval","version":1,"keyId":"k","createdAt":1,
            "updatedAt":1,"attempts":0,"approval":{"reason":{"rule":"tool"},"expiresAt":2}},
            "order":{"tenant":"default","requirement":{"tool":"exec","role":"operator","scopes":["sandbox:exec"]},"recorded":{}}}"#;
        let stored: Stored = serde_json::from_str(text).unwrap();
        assert_eq!(stored.job.state, State::AwaitingApproval);
    }
}
