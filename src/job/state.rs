//! The life of a job, as a pure table.
//!
//! ```text
//!                       approve              begin             succeed
//!  AwaitingApproval ───────────▶ Queued ─────────────▶ Running ────────▶ Succeeded
//!        │                       │    ▲ not begun │       │ fail      ─▶ Failed
//!        │ reject, expire        │    └───────────┘       │ lose      ─▶ Interrupted
//!        ▼                       │ give up                ▼
//!     Rejected                   └──────────▶ Failed
//!
//!  AwaitingApproval, Queued, Running ── cancel ──▶ Cancelled
//!  Failed, Interrupted, Cancelled ── retry ──▶ Queued
//! ```
//!
//! What has ended stays as it is, unless somebody asks for another attempt. One that began and was not seen to end is lost: nobody may
//! know whether it acted, so it is not made again by itself, unless its tool may be called twice. Only the job's object applies this table.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Where a job is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Nothing happens before somebody approves it.
    AwaitingApproval,
    /// It is carried out next.
    Queued,
    Running,
    Succeeded,
    Failed,
    /// It began, and how it ended was not seen.
    Interrupted,
    /// Somebody ended it: nothing began, or its process was seen to be gone.
    Cancelled,
    /// Nobody approved it, or somebody rejected it.
    Rejected,
}

/// What happens to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    Approve,
    /// Rejected by somebody, or by the end of its time.
    Reject,
    Begin,
    /// The attempt was refused before it acted; it is made again later.
    NotBegun,
    Succeed,
    Fail,
    Lose,
    Cancel,
    /// Somebody asks for another attempt.
    Retry,
}

/// The event is not legal in that state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{event:?} is not legal while the job is {state:?}")]
pub struct InvalidTransition {
    pub state: State,
    pub event: Event,
}

impl State {
    pub const ALL: [Self; 8] = [
        Self::AwaitingApproval,
        Self::Queued,
        Self::Running,
        Self::Succeeded,
        Self::Failed,
        Self::Interrupted,
        Self::Cancelled,
        Self::Rejected,
    ];

    /// The stored word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AwaitingApproval => "awaiting_approval",
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Interrupted => "interrupted",
            Self::Cancelled => "cancelled",
            Self::Rejected => "rejected",
        }
    }

    /// Whether nothing happens to it any more.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Interrupted | Self::Cancelled | Self::Rejected)
    }

    /// The state after `event`.
    pub fn after(self, event: Event) -> Result<Self, InvalidTransition> {
        match (self, event) {
            (Self::AwaitingApproval, Event::Approve) => Ok(Self::Queued),
            (Self::AwaitingApproval, Event::Reject) => Ok(Self::Rejected),
            (Self::Failed | Self::Interrupted | Self::Cancelled, Event::Retry) => Ok(Self::Queued),
            (Self::Queued, Event::Begin) => Ok(Self::Running),
            (Self::Running, Event::NotBegun) => Ok(Self::Queued),
            (Self::Running, Event::Succeed) => Ok(Self::Succeeded),
            (Self::Running | Self::Queued, Event::Fail) => Ok(Self::Failed),
            (Self::Running, Event::Lose) => Ok(Self::Interrupted),
            (Self::AwaitingApproval | Self::Queued | Self::Running, Event::Cancel) => Ok(Self::Cancelled),
            (state, event) => Err(InvalidTransition { state, event }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENTS: [Event; 9] = [
        Event::Approve,
        Event::Reject,
        Event::Begin,
        Event::NotBegun,
        Event::Succeed,
        Event::Fail,
        Event::Lose,
        Event::Cancel,
        Event::Retry,
    ];

    #[test]
    fn what_has_ended_stays_so() {
        for state in State::ALL.into_iter().filter(|state| state.is_over()) {
            let legal: Vec<Event> = EVENTS.into_iter().filter(|event| state.after(*event).is_ok()).collect();
            let is_final = matches!(state, State::Succeeded | State::Rejected);
            assert_eq!(legal, if is_final { vec![] } else { vec![Event::Retry] }, "{state:?}");
        }
    }

    #[test]
    fn nothing_runs_that_was_not_approved_and_nothing_twice() {
        for state in State::ALL {
            let begins = state.after(Event::Begin).is_ok();
            assert_eq!(begins, state == State::Queued, "{state:?}");
            assert_eq!(state.after(Event::Approve).is_ok(), state == State::AwaitingApproval, "{state:?}");
        }
    }

    #[test]
    fn the_stored_word_is_that_of_json() {
        for state in State::ALL {
            assert_eq!(serde_json::to_value(state).unwrap(), state.as_str());
        }
    }
}
