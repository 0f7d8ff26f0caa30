//! The life of a sandbox, as a pure table.
//!
//! ```text
//!            start          started           stopped
//!  Created ─────────▶ Starting ─────▶ Running ───────▶ Sleeping
//!     ▲                ▲  │  ▲           │ lost            │
//!     │ create         │  │  └───────────┼── start ────────┘
//!     │      start     │  │ start failed │
//! Destroyed            Error ◀───────────┘ (stopped: Sleeping)
//!     ▲
//!     └── destroy, from every state
//! ```
//!
//! Every successful start has a new generation. What was made in one generation (an exec, a handle) does not live in the
//! next. Only the sandbox's object applies this table; everything else reads the state.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Where a sandbox is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum State {
    /// Known, never started.
    Created,
    /// A start is under way.
    Starting,
    /// Its control API answered and has not been seen to stop.
    Running,
    /// Stopped on purpose; its next use starts it.
    Sleeping,
    /// Its start failed or it stopped unasked; its next use starts it.
    Error,
    /// Gone with everything in it; creating it again is legal.
    Destroyed,
}

/// What happens to a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    Create,
    Start,
    Started,
    StartFailed,
    Stopped,
    Lost,
    Destroy,
}

/// The event is not legal in that state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{event:?} is not legal while the sandbox is {state:?}")]
pub struct InvalidTransition {
    pub state: State,
    pub event: Event,
}

impl State {
    pub const ALL: [Self; 6] =
        [Self::Created, Self::Starting, Self::Running, Self::Sleeping, Self::Error, Self::Destroyed];

    /// The stored word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Sleeping => "sleeping",
            Self::Error => "error",
            Self::Destroyed => "destroyed",
        }
    }

    /// The state after `event`.
    pub fn after(self, event: Event) -> Result<Self, InvalidTransition> {
        match (self, event) {
            (Self::Destroyed, Event::Create) => Ok(Self::Created),
            (Self::Created | Self::Sleeping | Self::Error | Self::Running, Event::Start) => Ok(Self::Starting),
            // The object may be torn down in the middle of a start; whoever comes next begins it anew.
            (Self::Starting, Event::Start) => Ok(Self::Starting),
            (Self::Starting, Event::Started) => Ok(Self::Running),
            (Self::Starting, Event::StartFailed) => Ok(Self::Error),
            (Self::Running | Self::Starting | Self::Error, Event::Stopped) => Ok(Self::Sleeping),
            (Self::Running | Self::Starting, Event::Lost) => Ok(Self::Error),
            (_, Event::Destroy) => Ok(Self::Destroyed),
            (state, event) => Err(InvalidTransition { state, event }),
        }
    }

    /// The three words of the published contract.
    pub fn status(self) -> Status {
        match self {
            Self::Starting | Self::Running => Status::Running,
            Self::Created | Self::Sleeping | Self::Destroyed => Status::Stopped,
            Self::Error => Status::Error,
        }
    }
}

/// The published word for a [`State`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum Status {
    /// It runs, or is being started.
    Running,
    /// It does not run; its next use starts it.
    Stopped,
    /// Its last start failed or it stopped unasked; its next use starts it.
    Error,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STATES: [State; 6] = State::ALL;
    const EVENTS: [Event; 7] =
        [Event::Create, Event::Start, Event::Started, Event::StartFailed, Event::Stopped, Event::Lost, Event::Destroy];

    fn events() -> impl Strategy<Value = Vec<Event>> {
        proptest::collection::vec(proptest::sample::select(EVENTS.to_vec()), 0..40)
    }

    proptest! {
        #[test]
        fn running_is_reached_only_through_a_start(events in events()) {
            let mut state = State::Created;
            for event in events {
                if let Ok(next) = state.after(event) {
                    prop_assert!(next != State::Running || state == State::Starting, "{state:?} {event:?}");
                    state = next;
                }
            }
        }

        #[test]
        fn only_creation_leaves_destroyed(events in events()) {
            let mut state = State::Destroyed;
            for event in events {
                if let Ok(next) = state.after(event) {
                    prop_assert!(state != State::Destroyed || matches!(event, Event::Create | Event::Destroy));
                    state = next;
                }
            }
        }
    }

    #[test]
    fn every_state_can_be_destroyed_and_every_live_one_started() {
        for state in STATES {
            assert_eq!(state.after(Event::Destroy), Ok(State::Destroyed));
            let started = state.after(Event::Start);
            assert_eq!(started.is_ok(), state != State::Destroyed, "{state:?}");
        }
    }

    #[test]
    fn an_illegal_event_names_itself_and_the_state() {
        let error = State::Created.after(Event::Started).unwrap_err();
        assert_eq!(error.to_string(), "Started is not legal while the sandbox is Created");
    }

    #[test]
    fn stored_words_do_not_change() {
        let words = serde_json::to_string(&STATES).unwrap();
        assert_eq!(words, serde_json::to_string(&STATES.map(State::as_str)).unwrap());
        assert_eq!(words, r#"["created","starting","running","sleeping","error","destroyed"]"#);
    }
}
