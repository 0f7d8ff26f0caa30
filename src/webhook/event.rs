//! What a tenant's webhook can be told beside alerts: every change of a job and of a sandbox, as ids, states and times. Arguments and
//! output are asked for by who may see them.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::job::record::{Change, Job};
use crate::job::state::State;
use crate::platform::rfc3339;
use crate::sandbox::change as sandbox;
use crate::sandbox::record::StartReason;
use crate::sandbox::state::State as SandboxState;
use crate::tenant::listing::Listed;

/// Kind of an event: the `type` of its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
pub enum EventType {
    /// A call became a job.
    #[serde(rename = "job.created")]
    JobCreated,
    /// It waits until somebody approves it.
    #[serde(rename = "job.awaiting_approval")]
    JobAwaitingApproval,
    /// It was approved, retried, or put back: an attempt did not begin, or is made again.
    #[serde(rename = "job.queued")]
    JobQueued,
    #[serde(rename = "job.running")]
    JobRunning,
    #[serde(rename = "job.succeeded")]
    JobSucceeded,
    #[serde(rename = "job.failed")]
    JobFailed,
    /// It began, and how it ended was not seen.
    #[serde(rename = "job.interrupted")]
    JobInterrupted,
    #[serde(rename = "job.cancelled")]
    JobCancelled,
    /// Somebody rejected it, or nobody approved it in time.
    #[serde(rename = "job.rejected")]
    JobRejected,
    /// A sandbox is listed; its first start follows.
    #[serde(rename = "sandbox.created")]
    SandboxCreated,
    /// Its first start succeeded.
    #[serde(rename = "sandbox.started")]
    SandboxStarted,
    /// It was stopped, on request or because nobody used it.
    #[serde(rename = "sandbox.sleeping")]
    SandboxSleeping,
    /// It runs again after it slept.
    #[serde(rename = "sandbox.woken")]
    SandboxWoken,
    /// It runs again after it had stopped unasked, or had failed to start: what ran in it is gone.
    #[serde(rename = "sandbox.restarted")]
    SandboxRestarted,
    /// It failed to start, or stopped unasked; its next use starts it.
    #[serde(rename = "sandbox.failed")]
    SandboxFailed,
    #[serde(rename = "sandbox.destroyed")]
    SandboxDestroyed,
}

impl EventType {
    pub const ALL: [Self; 16] = [
        Self::JobCreated,
        Self::JobAwaitingApproval,
        Self::JobQueued,
        Self::JobRunning,
        Self::JobSucceeded,
        Self::JobFailed,
        Self::JobInterrupted,
        Self::JobCancelled,
        Self::JobRejected,
        Self::SandboxCreated,
        Self::SandboxStarted,
        Self::SandboxSleeping,
        Self::SandboxWoken,
        Self::SandboxRestarted,
        Self::SandboxFailed,
        Self::SandboxDestroyed,
    ];

    /// The word of its messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::JobCreated => "job.created",
            Self::JobAwaitingApproval => "job.awaiting_approval",
            Self::JobQueued => "job.queued",
            Self::JobRunning => "job.running",
            Self::JobSucceeded => "job.succeeded",
            Self::JobFailed => "job.failed",
            Self::JobInterrupted => "job.interrupted",
            Self::JobCancelled => "job.cancelled",
            Self::JobRejected => "job.rejected",
            Self::SandboxCreated => "sandbox.created",
            Self::SandboxStarted => "sandbox.started",
            Self::SandboxSleeping => "sandbox.sleeping",
            Self::SandboxWoken => "sandbox.woken",
            Self::SandboxRestarted => "sandbox.restarted",
            Self::SandboxFailed => "sandbox.failed",
            Self::SandboxDestroyed => "sandbox.destroyed",
        }
    }

    /// What a change of a sandbox is; nothing where it is none that is told.
    fn of_sandbox(change: &sandbox::Change) -> Option<Self> {
        match (change.state, change.reason) {
            (SandboxState::Running, Some(StartReason::Created)) => Some(Self::SandboxStarted),
            (SandboxState::Running, Some(StartReason::Woken)) => Some(Self::SandboxWoken),
            (SandboxState::Running, _) => Some(Self::SandboxRestarted),
            (SandboxState::Sleeping, _) => Some(Self::SandboxSleeping),
            (SandboxState::Error, _) => Some(Self::SandboxFailed),
            (SandboxState::Created | SandboxState::Starting | SandboxState::Destroyed, _) => None,
        }
    }

    /// A job came into that state.
    fn of_job(state: State) -> Self {
        match state {
            State::AwaitingApproval => Self::JobAwaitingApproval,
            State::Queued => Self::JobQueued,
            State::Running => Self::JobRunning,
            State::Succeeded => Self::JobSucceeded,
            State::Failed => Self::JobFailed,
            State::Interrupted => Self::JobInterrupted,
            State::Cancelled => Self::JobCancelled,
            State::Rejected => Self::JobRejected,
        }
    }
}

/// Whom an event is about. What is told of one subject arrives in its order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    Job(String),
    Sandbox(String),
}

impl Subject {
    /// As it is stored.
    pub fn text(&self) -> String {
        match self {
            Self::Job(id) => format!("job/{id}"),
            Self::Sandbox(id) => format!("sandbox/{id}"),
        }
    }
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub kind: EventType,
    pub subject: Subject,
    pub at: i64,
    data: Value,
}

impl Event {
    /// Of a job as it is listed.
    pub fn of_job(tenant: &str, job: &Job, kind: EventType) -> Self {
        Self { kind, ..Self::of_change(tenant, job, &Change::of(job)) }
    }

    /// Of a job that came into a state.
    pub fn of_change(tenant: &str, job: &Job, change: &Change) -> Self {
        let Change { state, at, attempts, exit_code, error, .. } = change;
        let mut data = json!({
            "tenant": tenant, "jobId": job.job_id, "tool": job.tool, "keyId": job.key_id, "state": state,
            "attempts": attempts, "createdAt": rfc3339(job.created_at),
        });
        let optional = [
            ("sandboxId", job.sandbox_id.as_ref().map(|id| json!(id))),
            ("exitCode", exit_code.map(|code| json!(code))),
            ("errorCode", error.map(|code| json!(code))),
        ];
        add(&mut data, optional);
        Self { kind: EventType::of_job(*state), subject: Subject::Job(job.job_id.clone()), at: *at, data }
    }

    /// Of a sandbox as it is listed.
    pub fn of_sandbox(tenant: &str, listed: &Listed, kind: EventType, at: i64) -> Self {
        let data = json!({
            "tenant": tenant, "sandboxId": listed.sandbox_id, "keyId": listed.owner, "state": listed.state,
            "generation": listed.generation, "createdAt": rfc3339(listed.created_at),
        });
        Self { kind, subject: Subject::Sandbox(listed.sandbox_id.as_str().to_owned()), at, data }
    }

    /// Of a sandbox that came into a state; nothing where that is not told.
    pub fn of_sandbox_change(tenant: &str, listed: &Listed, change: &sandbox::Change) -> Option<Self> {
        let kind = EventType::of_sandbox(change)?;
        let then = Listed { state: change.state, generation: change.generation, ..listed.clone() };
        Some(Self::of_sandbox(tenant, &then, kind, change.at))
    }

    /// The body of its message, the same in every attempt.
    pub fn message(&self) -> String {
        json!({ "type": self.kind, "timestamp": rfc3339(self.at), "data": self.data }).to_string()
    }
}

/// Adds those fields that there are.
fn add<const N: usize>(data: &mut Value, optional: [(&str, Option<Value>); N]) {
    if let Some(fields) = data.as_object_mut() {
        fields.extend(optional.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::error::{Error, ErrorCode};
    use crate::identifier::SandboxId;
    use crate::tenant::admission::{Origin, SandboxClaim};

    /// 2026-11-28T12:00:00Z.
    const NOW: i64 = 1_795_867_200_000;

    fn job() -> Job {
        Job {
            job_id: "j".into(),
            tool: "exec".into(),
            state: State::Queued,
            version: 0,
            key_id: "k".into(),
            token_id: None,
            sandbox_id: Some(SandboxId::parse("box").unwrap()),
            sandbox_created_at: None,
            sandbox_generation: None,
            step_of: None,
            schedule_id: None,
            labels: BTreeMap::from([("team".into(), "a".into())]),
            expires_after: None,
            created_at: NOW,
            updated_at: NOW,
            begun_at: None,
            ended_at: None,
            approval: None,
            cancellation: None,
            waits_for_place: false,
            attempts: 0,
            recorded_as: None,
            exit_code: None,
            error: None,
        }
    }

    #[test]
    fn the_word_of_an_event_is_that_of_json_and_each_state_has_one() {
        for kind in EventType::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
        }
        for state in State::ALL {
            assert_eq!(EventType::of_job(state).as_str(), format!("job.{}", state.as_str()));
        }
    }

    #[test]
    fn a_message_has_ids_states_and_times_and_no_text_of_an_error() {
        let created: Value =
            serde_json::from_str(&Event::of_job("t", &job(), EventType::JobCreated).message()).unwrap();
        let wanted = json!({
            "type": "job.created", "timestamp": "2026-11-28T12:00:00.000Z",
            "data": {
                "tenant": "t", "jobId": "j", "tool": "exec", "keyId": "k", "sandboxId": "box", "state": "queued",
                "attempts": 0, "createdAt": "2026-11-28T12:00:00.000Z",
            },
        });
        assert_eq!(created, wanted);
        let error = Error::new(ErrorCode::Timeout, "said hunter2").detail("stdout", "hunter2");
        let failed = Job { state: State::Failed, version: 3, attempts: 1, error: Some(error), ..job() };
        let event = Event::of_change("t", &failed, &Change { at: NOW + 5_000, ..Change::of(&failed) });
        let told: Value = serde_json::from_str(&event.message()).unwrap();
        assert_eq!((&told["type"], &told["timestamp"]), (&json!("job.failed"), &json!("2026-11-28T12:00:05.000Z")));
        assert_eq!((&told["data"]["errorCode"], &told["data"]["attempts"]), (&json!("timeout"), &json!(1)));
        assert!(!event.message().contains("hunter2"));
    }

    #[test]
    fn a_change_of_a_sandbox_is_told_as_it_was_then() {
        let sandbox_id = SandboxId::parse("box").unwrap();
        let claim = SandboxClaim::Create { sandbox_id, labels: BTreeMap::new(), origin: Origin::CreateSandbox };
        let listed = Listed { generation: 2, state: SandboxState::Running, ..Listed::new(&claim, NOW, "k").unwrap() };
        let told = |state, generation, reason| {
            let change = sandbox::Change { number: 1, state, generation, at: NOW + 5_000, reason };
            Event::of_sandbox_change("t", &listed, &change)
        };
        let slept: Value = serde_json::from_str(&told(SandboxState::Sleeping, 1, None).unwrap().message()).unwrap();
        let wanted = json!({
            "type": "sandbox.sleeping", "timestamp": "2026-11-28T12:00:05.000Z",
            "data": {
                "tenant": "t", "sandboxId": "box", "keyId": "k", "state": "sleeping", "generation": 1,
                "createdAt": "2026-11-28T12:00:00.000Z",
            },
        });
        assert_eq!(slept, wanted);
        let kind = |state, reason| told(state, 2, reason).map(|event| event.kind.as_str());
        assert_eq!(kind(SandboxState::Running, Some(StartReason::Created)), Some("sandbox.started"));
        assert_eq!(kind(SandboxState::Running, Some(StartReason::Woken)), Some("sandbox.woken"));
        assert_eq!(kind(SandboxState::Running, Some(StartReason::Restarted)), Some("sandbox.restarted"));
        assert_eq!(kind(SandboxState::Error, None), Some("sandbox.failed"));
        assert_eq!(kind(SandboxState::Starting, None), None);
    }

    #[test]
    fn a_change_is_told_as_it_was_then() {
        let running = Job { state: State::Running, version: 2, attempts: 1, ..job() };
        let change = Change::of(&running);
        let done = Job { state: State::Succeeded, version: 3, attempts: 1, exit_code: Some(0), ..job() };
        let told: Value = serde_json::from_str(&Event::of_change("t", &done, &change).message()).unwrap();
        assert_eq!((&told["type"], &told["data"]["state"]), (&json!("job.running"), &json!("running")));
        assert!(told["data"].get("exitCode").is_none());
    }
}
