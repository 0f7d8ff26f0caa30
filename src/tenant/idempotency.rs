//! Idempotency keys: the same call asked again gives the answer of the first time, and is never carried out twice.
//!
//! A key belongs to who calls. With the same tool and arguments it replays the stored answer for a day; with others it is
//! refused; while the first call is open, it says so. A call that was refused before it acted, or whose error says that the
//! same call can succeed later, leaves the key unused.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::error::{Error, ErrorCode};

/// Most characters of a key: visible ASCII.
pub const LONGEST_KEY: usize = 255;

/// How long an answer is kept.
pub const KEPT_MILLIS: i64 = 24 * 60 * 60 * 1000;

/// A call that holds a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Wanted {
    /// Digest of the key: callers make keys of what they have at hand, which may be a secret.
    pub key: String,
    /// Signatures over the tool and its arguments, by each of the secrets, the one in force first.
    pub fingerprints: Vec<String>,
}

impl Wanted {
    pub fn new(key: &str, fingerprints: Vec<String>) -> Self {
        Self { key: hex::encode(Sha256::digest(key)), fingerprints }
    }
}

/// What is stored of an answer: the output, or the error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    Output(Value),
    Error(Error),
}

/// The first call of a key, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct First {
    pub call_id: String,
    pub fingerprint: String,
    pub asked_at: i64,
    /// When its outcome is given up.
    pub deadline_at: i64,
    pub is_answered: bool,
    /// Whether it became a job.
    pub is_job: bool,
}

/// What becomes of a call with a key.
#[derive(Clone, Debug, PartialEq)]
pub enum Resolution {
    /// It is the first, or the first was long ago.
    Fresh,
    /// The answer of the first call is to be given again.
    Replay,
    /// The first call is a job that is not over.
    Job,
    Refuse(Error),
}

/// Whether `key` can be one: 1 to 255 visible characters of ASCII.
pub fn check(key: &str) -> Result<(), Error> {
    if (1..=LONGEST_KEY).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(());
    }
    let message = format!("the header Idempotency-Key holds 1 to {LONGEST_KEY} visible characters of ASCII");
    Err(Error::new(ErrorCode::InvalidArguments, message).detail("header", "idempotency-key"))
}

/// Decides on a call when `first` is the call that holds the key.
pub fn resolve(wanted: &Wanted, first: Option<&First>, now: i64) -> Resolution {
    let Some(first) = first.filter(|first| now - first.asked_at < KEPT_MILLIS || !first.is_answered) else {
        return Resolution::Fresh;
    };
    if !wanted.fingerprints.contains(&first.fingerprint) {
        let message = "this idempotency key was used for a call with another tool or other arguments";
        return Resolution::Refuse(
            Error::new(ErrorCode::IdempotencyMismatch, message).detail("firstRequestId", first.call_id.as_str()),
        );
    }
    if first.is_answered {
        return Resolution::Replay;
    }
    if first.is_job {
        return Resolution::Job;
    }
    let left = (first.deadline_at - now).max(0);
    let retry_after = u32::try_from((left + 999) / 1000).unwrap_or(1).clamp(1, 5);
    let error = Error::new(ErrorCode::InProgress, "the first call with this idempotency key is not over yet")
        .detail("firstRequestId", first.call_id.as_str());
    Resolution::Refuse(Error { retry_after: Some(retry_after), ..error })
}

/// Whether an answer is kept: one that may be given again for good. Only an error that surely did nothing, and says that the
/// same call can succeed later, leaves the key unused.
pub fn is_kept(error: Option<&Error>) -> bool {
    let did_nothing =
        |code| matches!(code, ErrorCode::SandboxUnavailable | ErrorCode::QuotaExceeded | ErrorCode::Conflict);
    error.is_none_or(|error| !(error.retryable && did_nothing(error.code)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted() -> Wanted {
        Wanted { key: "k".into(), fingerprints: vec!["e".into(), "f".into()] }
    }

    fn first(is_answered: bool) -> First {
        First {
            call_id: "c1".into(),
            fingerprint: "f".into(),
            asked_at: 1_000,
            deadline_at: 61_000,
            is_answered,
            is_job: false,
        }
    }

    fn refusal(first: &First, now: i64) -> Option<ErrorCode> {
        match resolve(&wanted(), Some(first), now) {
            Resolution::Refuse(error) => Some(error.code),
            _ => None,
        }
    }

    #[test]
    fn the_first_call_decides() {
        assert_eq!(resolve(&wanted(), None, 0), Resolution::Fresh);
        assert_eq!(resolve(&wanted(), Some(&first(true)), 2_000), Resolution::Replay);
        assert_eq!(refusal(&first(false), 2_000), Some(ErrorCode::InProgress));
        let job = First { is_job: true, ..first(false) };
        assert_eq!(resolve(&wanted(), Some(&job), 2_000_000_000), Resolution::Job);
        let other = First { fingerprint: "g".into(), ..first(true) };
        assert_eq!(refusal(&other, 2_000), Some(ErrorCode::IdempotencyMismatch));
        let other = First { fingerprint: "g".into(), ..first(false) };
        assert_eq!(refusal(&other, 2_000), Some(ErrorCode::IdempotencyMismatch));
    }

    #[test]
    fn an_answer_is_kept_for_a_day_and_an_open_call_until_it_is_closed() {
        let later = 1_000 + KEPT_MILLIS;
        assert_eq!(resolve(&wanted(), Some(&first(true)), later - 1), Resolution::Replay);
        assert_eq!(resolve(&wanted(), Some(&first(true)), later), Resolution::Fresh);
        assert_eq!(refusal(&first(false), later), Some(ErrorCode::InProgress));
    }

    #[test]
    fn only_final_answers_are_kept() {
        assert!(is_kept(None));
        assert!(is_kept(Some(&Error::internal("x"))));
        assert!(is_kept(Some(&Error::new(ErrorCode::OutcomeUnknown, "x"))));
        assert!(!is_kept(Some(&Error::new(ErrorCode::SandboxUnavailable, "x"))));
        let reset = Error { retryable: true, ..Error::new(ErrorCode::ObjectUnavailable, "it may have been done") };
        assert!(is_kept(Some(&reset)), "a second run could be one too many");
    }

    #[test]
    fn keys_are_visible_ascii() {
        assert!(check("8e03978e-40d5-43dd-bc93-6894a57f9324").is_ok());
        for bad in ["", "a b", "é", "a\n", &"a".repeat(256)] {
            assert!(check(bad).is_err(), "{bad:?}");
        }
    }
}
