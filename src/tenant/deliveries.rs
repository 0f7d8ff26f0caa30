//! Messages to webhooks on their way: what is told of each, how the list is asked, and what an attempt makes of one.
//!
//! ```text
//! pending ──taken──▶ delivered
//!    │  ▲
//!    │  └─ not taken: after a pause
//!    └─ not taken too often, or nobody is told any more ──▶ failed
//! ```
//!
//! What is told of one job or sandbox reaches a receiver in its order: a message waits for the ones before it of the same subject. What
//! is told of others does not wait, so that one message that a receiver refuses holds up no more than its own subject. A receiver
//! that takes nothing is left alone for longer and longer. This file is pure; `outbox.rs` stores and sends.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::listing::Parameter;
use crate::platform::rfc3339;
use crate::webhook::schedule::{Attempt, pause_after};

/// Most characters of what is told of a failure.
const LONGEST_FAILURE: usize = 300;

/// Where the tenant's own webhook stands in place of a URL: it may be replaced while messages wait.
pub const TENANT: &str = "";

/// Columns of a [`DeliveryRow`], as one JSON object.
pub const ROW: &str = "json_object('seq', seq, 'messageId', message_id, 'kind', kind, 'subject', subject, 'receiver', receiver, \
    'madeAt', made_at, 'attempts', attempts, 'dueAt', due_at, 'endedAt', ended_at, 'isDelivered', is_delivered, 'failure', failure)";

/// One message to one receiver as it is stored, without its body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeliveryRow {
    /// The order in which messages were written down.
    pub seq: i64,
    pub message_id: String,
    pub kind: String,
    pub subject: String,
    /// [`TENANT`], or the URL of a job's own webhook.
    pub receiver: String,
    pub made_at: i64,
    pub attempts: u32,
    pub due_at: Option<i64>,
    pub ended_at: Option<i64>,
    /// 0 or 1.
    pub is_delivered: u8,
    pub failure: Option<String>,
}

/// Whether a message was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum DeliveryState {
    /// It is being tried, or waits for the one before it.
    Pending,
    Delivered,
    /// It was given up.
    Failed,
}

/// Whose webhook a message goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum Receiver {
    /// The one that setAlerts sets.
    Tenant,
    /// The one that was given with the call that became the job.
    Job,
}

/// One message to one receiver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Delivery {
    /// The header `webhook-id`, the same in every attempt.
    pub message_id: String,
    /// What it tells, as in the body.
    #[serde(rename = "type")]
    pub kind: String,
    /// tenant: the webhook that setAlerts sets; job: the one given with the call.
    pub receiver: Receiver,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alert_id: Option<String>,
    /// pending: it is being tried, or waits for the one before it; delivered; failed: it was given up.
    pub state: DeliveryState,
    /// RFC 3339, UTC.
    pub created_at: String,
    /// Attempts so far.
    pub attempts: u32,
    /// When it is tried next at the earliest: RFC 3339, UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_attempt_at: Option<String>,
    /// When it was delivered or given up: RFC 3339, UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
    /// Why the last attempt failed, or why it was given up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

impl DeliveryRow {
    pub fn state(&self) -> DeliveryState {
        match (self.ended_at, self.is_delivered) {
            (None, _) => DeliveryState::Pending,
            (Some(_), 0) => DeliveryState::Failed,
            (Some(_), _) => DeliveryState::Delivered,
        }
    }
}

impl From<DeliveryRow> for Delivery {
    fn from(row: DeliveryRow) -> Self {
        let state = row.state();
        let of = |kind: &str| row.subject.strip_prefix(kind).map(str::to_owned);
        Self {
            job_id: of("job/"),
            sandbox_id: of("sandbox/"),
            alert_id: of("alert/"),
            receiver: if row.receiver == TENANT { Receiver::Tenant } else { Receiver::Job },
            state,
            message_id: row.message_id,
            kind: row.kind,
            created_at: rfc3339(row.made_at),
            attempts: row.attempts,
            next_attempt_at: row.due_at.filter(|_| state == DeliveryState::Pending).map(rfc3339),
            ended_at: row.ended_at.map(rfc3339),
            failure: row.failure,
        }
    }
}

/// What an attempt makes of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Delivered,
    /// It is due again.
    Again {
        due_at: i64,
        failure: String,
    },
    GivenUp {
        failure: String,
    },
}

/// The message was tried so many times with this attempt.
pub fn verdict(attempt: Attempt, attempts: u32, now: i64) -> Verdict {
    let failure: String = match attempt {
        Attempt::Taken => return Verdict::Delivered,
        Attempt::Failed(why) => why.chars().take(LONGEST_FAILURE).collect(),
    };
    let pause = pause_after(attempts).and_then(|pause| i64::try_from(pause.as_millis()).ok());
    match pause {
        Some(pause) => Verdict::Again { due_at: now + pause, failure },
        None => Verdict::GivenUp { failure },
    }
}

/// Which messages; all that is given must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeliveryListRequest {
    pub limit: u32,
    /// Place of the last message of the part before.
    pub before: Option<i64>,
    pub state: Option<DeliveryState>,
    pub job_id: Option<String>,
    pub sandbox_id: Option<String>,
}

/// A part of the list, the last message first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeliveryListing {
    pub deliveries: Vec<DeliveryRow>,
    pub more: bool,
}

impl DeliveryListRequest {
    /// The statement that answers with `limit` rows, and its parameters.
    pub fn statement(&self, limit: u32) -> (String, Vec<Parameter>) {
        let mut conditions = vec!["1"];
        let mut parameters = Vec::new();
        if let Some(before) = self.before {
            conditions.push("seq < ?");
            parameters.push(Parameter::Integer(before));
        }
        conditions.extend(self.state.map(|state| match state {
            DeliveryState::Pending => "ended_at IS NULL",
            DeliveryState::Delivered => "ended_at IS NOT NULL AND is_delivered = 1",
            DeliveryState::Failed => "ended_at IS NOT NULL AND is_delivered = 0",
        }));
        for (kind, id) in [("job/", &self.job_id), ("sandbox/", &self.sandbox_id)] {
            if let Some(id) = id {
                conditions.push("subject = ?");
                parameters.push(Parameter::Text(format!("{kind}{id}")));
            }
        }
        parameters.push(Parameter::Integer(limit.into()));
        let conditions = conditions.join(" AND ");
        let statement =
            format!("SELECT {ROW} AS text FROM webhook_messages WHERE {conditions} ORDER BY seq DESC LIMIT ?");
        (statement, parameters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_795_867_200_000;

    fn row() -> DeliveryRow {
        DeliveryRow {
            seq: 1,
            message_id: "evt_1".into(),
            kind: "job.created".into(),
            subject: "job/j".into(),
            receiver: "https://hooks.example.com/?token=hunter2".into(),
            made_at: NOW,
            attempts: 0,
            due_at: Some(NOW),
            ended_at: None,
            is_delivered: 0,
            failure: None,
        }
    }

    #[test]
    fn a_message_is_tried_until_it_is_taken_or_given_up() {
        let failed = || Attempt::Failed("answered 503".into());
        assert_eq!(verdict(failed(), 1, NOW), Verdict::Again { due_at: NOW + 5_000, failure: "answered 503".into() });
        assert!(matches!(verdict(failed(), 8, NOW), Verdict::Again { .. }));
        assert_eq!(verdict(failed(), 9, NOW), Verdict::GivenUp { failure: "answered 503".into() });
        assert_eq!(verdict(Attempt::Taken, 9, NOW), Verdict::Delivered);
        let Verdict::Again { failure, .. } = verdict(Attempt::Failed("ü".repeat(1000)), 1, NOW) else { panic!() };
        assert_eq!(failure.chars().count(), LONGEST_FAILURE);
    }

    #[test]
    fn where_a_message_goes_is_told_without_its_url() {
        let told = serde_json::to_value(Delivery::from(row())).unwrap();
        assert_eq!(
            (&told["receiver"], &told["jobId"], &told["state"]),
            (&"job".into(), &"j".into(), &"pending".into())
        );
        assert!(!told.to_string().contains("hunter2"));
        let alert = DeliveryRow { receiver: TENANT.into(), subject: "alert/a".into(), ended_at: Some(NOW), ..row() };
        let told = serde_json::to_value(Delivery::from(alert)).unwrap();
        assert_eq!(
            (&told["receiver"], &told["alertId"], &told["state"]),
            (&"tenant".into(), &"a".into(), &"failed".into())
        );
        assert!(told.get("nextAttemptAt").is_none());
    }

    #[test]
    fn values_are_parameters_and_never_text_of_the_statement() {
        let request = DeliveryListRequest {
            limit: 5,
            before: Some(7),
            state: Some(DeliveryState::Failed),
            job_id: Some("j' OR 1".into()),
            sandbox_id: Some("s' --".into()),
        };
        let (statement, parameters) = request.statement(6);
        assert_eq!(statement.matches('?').count(), parameters.len());
        assert!(!statement.contains("OR 1") && !statement.contains("--"), "{statement}");
        assert_eq!(parameters.last(), Some(&Parameter::Integer(6)));
    }
}
