//! Why a request that left has no answer, and what of it may be asked again.
//!
//! The platform resets a Durable Object when its code is updated, when it moves and when it passes a limit, and throws to whoever waits
//! for it: "Durable Object reset because its code was updated." and its kin. Such an error has properties (workerd,
//! `src/workerd/jsg/util.c++`): `retryable` where the connection is gone, `overloaded` where asking again makes it worse,
//! `durableObjectReset` where this instance of the object is no more. The runtime itself repeats what provably did not arrive
//! (<https://developers.cloudflare.com/durable-objects/best-practices/automatic-retries/>); what comes through to here may have arrived. So
//! reads are asked again, each time through a new stub, since one that has failed may fail for ever; writes are not.

use std::time::Duration;

use crate::error::{Error, ErrorCode};

/// Requests for one read.
const ATTEMPTS: u32 = 4;

/// Pause before the second request, doubled each time.
const PAUSE: Duration = Duration::from_millis(100);

/// Why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    #[error("no answer within {0:?}")]
    Deadline(Duration),
    #[error("{0}")]
    Failed(String),
    #[error("{0}")]
    Thrown(Thrown),
}

/// What the stub of an object threw.
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Thrown {
    pub message: String,
    pub retryable: bool,
    pub overloaded: bool,
    pub reset: bool,
}

/// Whether asking twice is the same as asking once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    Harmless,
    Never,
}

impl Thrown {
    /// Whether the object is there again, or will be, for who asks anew.
    fn is_passing(&self) -> bool {
        !self.overloaded && (self.retryable || self.reset)
    }

    fn reason(&self) -> Option<&'static str> {
        match self {
            Self { overloaded: true, .. } => Some("overloaded"),
            Self { reset: true, .. } => Some("reset"),
            Self { retryable: true, .. } => Some("connection_lost"),
            _ => None,
        }
    }
}

impl FetchError {
    /// What a caller is told where the platform was in the way; `None` where it was not. `retryable` is what the platform says.
    pub fn of_platform(&self) -> Option<Error> {
        let Self::Thrown(thrown) = self else { return None };
        let reason = thrown.reason()?;
        let message = match reason {
            "overloaded" => "an object of this service has more to do than it can",
            "reset" => {
                "an object of this service was reset in the middle of the call; what was asked may have been done"
            }
            _ => "the connection to an object of this service was lost; what was asked may have been done",
        };
        let retryable = thrown.retryable && !thrown.overloaded;
        let error = Error::new(ErrorCode::ObjectUnavailable, message).detail("reason", reason).because(thrown);
        Some(Error { retryable, retry_after: retryable.then_some(1), ..error })
    }
}

/// Asks, and where that is harmless asks again as long as the platform's objects are on their way back. Each `ask` makes a stub of
/// its own.
pub async fn asked<A>(
    repeat: Repeat,
    sleep: impl AsyncFn(Duration),
    ask: impl AsyncFn() -> Result<A, FetchError>,
) -> Result<A, FetchError> {
    let mut attempt = 1;
    loop {
        match ask().await {
            Err(FetchError::Thrown(thrown))
                if repeat == Repeat::Harmless && attempt < ATTEMPTS && thrown.is_passing() =>
            {
                sleep(PAUSE * 2_u32.pow(attempt - 1)).await;
                attempt += 1;
            }
            answer => return answer,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use futures_util::FutureExt;

    use super::*;

    /// Objects behind a binding of which the first `failing` stubs throw, each for ever.
    struct Objects {
        failing: u32,
        thrown: Thrown,
        stubs: Cell<u32>,
    }

    impl Objects {
        fn new(failing: u32, thrown: Thrown) -> Self {
            Self { failing, thrown, stubs: Cell::new(0) }
        }

        fn ask(&self, repeat: Repeat) -> Result<u32, FetchError> {
            let stub = || {
                self.stubs.set(self.stubs.get() + 1);
                self.stubs.get()
            };
            let ask = async || match stub() {
                number if number <= self.failing => Err(FetchError::Thrown(self.thrown.clone())),
                number => Ok(number),
            };
            asked(repeat, async |_| (), ask).now_or_never().unwrap()
        }
    }

    fn updated(retryable: bool) -> Thrown {
        let message = "Durable Object reset because its code was updated.".to_owned();
        Thrown { message, retryable, overloaded: false, reset: true }
    }

    #[test]
    fn a_read_outlives_several_deployments_each_time_with_a_new_stub() {
        for failing in [0, 1, 3] {
            let objects = Objects::new(failing, updated(failing == 1));
            assert_eq!(objects.ask(Repeat::Harmless), Ok(failing + 1));
        }
        let objects = Objects::new(u32::MAX, updated(true));
        assert!(objects.ask(Repeat::Harmless).is_err(), "there is an end to it");
        assert_eq!(objects.stubs.get(), ATTEMPTS);
    }

    #[test]
    fn a_write_is_asked_once_and_told_as_the_platform_says() {
        for retryable in [true, false] {
            let objects = Objects::new(1, updated(retryable));
            let error = objects.ask(Repeat::Never).unwrap_err().of_platform().unwrap();
            assert_eq!(objects.stubs.get(), 1, "never twice");
            assert_eq!((error.code.status(), error.code.as_str().as_str()), (503, "object_unavailable"));
            assert_eq!((&error.details["reason"], error.retryable), (&"reset".into(), retryable));
            assert_eq!(error.retry_after.is_some(), retryable);
            assert!(error.cause.unwrap().contains("code was updated"), "the log has the platform's own words");
        }
    }

    #[test]
    fn an_overloaded_object_is_left_alone() {
        let overloaded = Thrown { overloaded: true, ..updated(true) };
        let objects = Objects::new(1, overloaded);
        let error = objects.ask(Repeat::Harmless).unwrap_err().of_platform().unwrap();
        assert_eq!(objects.stubs.get(), 1);
        assert_eq!((&error.details["reason"], error.retryable), (&"overloaded".into(), false));
    }

    #[test]
    fn what_an_object_throws_of_its_own_accord_is_no_fault_of_the_platform() {
        let own = Thrown { message: "TypeError".into(), ..Thrown::default() };
        let objects = Objects::new(1, own);
        assert_eq!(objects.ask(Repeat::Harmless).unwrap_err().of_platform(), None);
        assert_eq!(objects.stubs.get(), 1);
        assert_eq!(FetchError::Deadline(PAUSE).of_platform(), None);
    }
}
