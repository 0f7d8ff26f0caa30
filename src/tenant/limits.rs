//! What a key may use: how many calls, how many sandboxes, for how long.
//!
//! A window begins with the first call in it and ends a fixed time later; nothing is counted twice and nothing is guessed,
//! since one object decides on every call of a tenant, one after the other. The root key has no limits.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::error::{Error, ErrorCode};

/// Windows of calls and of sandbox operations.
pub const MINUTE: Duration = Duration::from_secs(60);
pub const HOUR: Duration = Duration::from_secs(60 * 60);
pub const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Most that a key may use. What is absent is the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Limits {
    /// Calls in a minute; default 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 1_000_000)]
    pub calls_per_minute: Option<u32>,
    /// Sandbox operations in an hour; default 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 1_000_000)]
    pub sandbox_operations_per_hour: Option<u32>,
    /// Sandboxes that it made and that are there at once; default 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 100_000)]
    pub live_sandboxes: Option<u32>,
    /// Background processes in a sandbox; default 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 100)]
    pub processes_per_sandbox: Option<u32>,
    /// Seconds in a day, in UTC, for which its sandboxes run, added up; default 360,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 1_000_000_000)]
    pub sandbox_seconds_per_day: Option<u32>,
    /// Calls that are open at once; default 50.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 100_000)]
    pub concurrent_calls: Option<u32>,
    /// Jobs that are not over, those that wait for an approval among them; default 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 100_000)]
    pub open_jobs: Option<u32>,
    /// Jobs that run at once, pipelines not counted; further ones wait for their turn; default 20.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 100_000)]
    pub running_jobs: Option<u32>,
}

impl Limits {
    pub fn calls_per_minute(&self) -> u32 {
        self.calls_per_minute.unwrap_or(100)
    }

    pub fn sandbox_operations_per_hour(&self) -> u32 {
        self.sandbox_operations_per_hour.unwrap_or(1000)
    }

    pub fn live_sandboxes(&self) -> u32 {
        self.live_sandboxes.unwrap_or(10)
    }

    pub fn processes_per_sandbox(&self) -> u32 {
        self.processes_per_sandbox.unwrap_or(10)
    }

    pub fn sandbox_seconds_per_day(&self) -> u32 {
        self.sandbox_seconds_per_day.unwrap_or(360_000)
    }

    pub fn concurrent_calls(&self) -> u32 {
        self.concurrent_calls.unwrap_or(50)
    }

    pub fn open_jobs(&self) -> u32 {
        self.open_jobs.unwrap_or(100)
    }

    pub fn running_jobs(&self) -> u32 {
        self.running_jobs.unwrap_or(20)
    }

    /// These, and `other` where it says something.
    pub fn with(self, other: Self) -> Self {
        Self {
            calls_per_minute: other.calls_per_minute.or(self.calls_per_minute),
            sandbox_operations_per_hour: other.sandbox_operations_per_hour.or(self.sandbox_operations_per_hour),
            live_sandboxes: other.live_sandboxes.or(self.live_sandboxes),
            processes_per_sandbox: other.processes_per_sandbox.or(self.processes_per_sandbox),
            sandbox_seconds_per_day: other.sandbox_seconds_per_day.or(self.sandbox_seconds_per_day),
            concurrent_calls: other.concurrent_calls.or(self.concurrent_calls),
            open_jobs: other.open_jobs.or(self.open_jobs),
            running_jobs: other.running_jobs.or(self.running_jobs),
        }
    }

    /// The first of these that is beyond `most`.
    pub fn beyond(self, most: Self) -> Option<&'static str> {
        let pairs = [
            (self.calls_per_minute(), most.calls_per_minute(), "callsPerMinute"),
            (self.sandbox_operations_per_hour(), most.sandbox_operations_per_hour(), "sandboxOperationsPerHour"),
            (self.live_sandboxes(), most.live_sandboxes(), "liveSandboxes"),
            (self.processes_per_sandbox(), most.processes_per_sandbox(), "processesPerSandbox"),
            (self.sandbox_seconds_per_day(), most.sandbox_seconds_per_day(), "sandboxSecondsPerDay"),
            (self.concurrent_calls(), most.concurrent_calls(), "concurrentCalls"),
            (self.open_jobs(), most.open_jobs(), "openJobs"),
            (self.running_jobs(), most.running_jobs(), "runningJobs"),
        ];
        pairs.into_iter().find(|(wanted, most, _)| wanted > most).map(|(_, _, name)| name)
    }

    /// All of them, the defaults included.
    pub fn whole(self) -> Self {
        Self {
            calls_per_minute: Some(self.calls_per_minute()),
            sandbox_operations_per_hour: Some(self.sandbox_operations_per_hour()),
            live_sandboxes: Some(self.live_sandboxes()),
            processes_per_sandbox: Some(self.processes_per_sandbox()),
            sandbox_seconds_per_day: Some(self.sandbox_seconds_per_day()),
            concurrent_calls: Some(self.concurrent_calls()),
            open_jobs: Some(self.open_jobs()),
            running_jobs: Some(self.running_jobs()),
        }
    }
}

/// What of a window is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Window {
    pub started_at: i64,
    pub used: u32,
}

/// How a window stands, as the headers of an answer tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Standing {
    pub limit: u32,
    pub remaining: u32,
    /// Seconds until the window ends, at least one.
    pub reset_seconds: u32,
}

impl Window {
    /// The window that holds at `now`: this one, or a new one.
    pub fn at(self, now: i64, length: Duration) -> Self {
        let age = now - self.started_at;
        if (0..millis(length)).contains(&age) { self } else { Self { started_at: now, used: 0 } }
    }

    /// The same with one more taken; `None` when there is none left.
    pub fn take(self, limit: u32) -> Option<Self> {
        (self.used < limit).then(|| Self { used: self.used + 1, ..self })
    }

    /// The same with one given back.
    pub fn give_back(self) -> Self {
        Self { used: self.used.saturating_sub(1), ..self }
    }

    pub fn standing(self, limit: u32, now: i64, length: Duration) -> Standing {
        let left = (self.started_at + millis(length) - now).max(0);
        let reset_seconds = u32::try_from((left + 999) / 1000).unwrap_or(u32::MAX).max(1);
        Standing { limit, remaining: limit.saturating_sub(self.used), reset_seconds }
    }
}

/// 429: the calls of a window are used up.
pub fn rate_limited(what: &str, standing: Standing) -> Error {
    let Standing { limit, reset_seconds, .. } = standing;
    let message = format!("this key has used its {limit} {what}; try again in {reset_seconds} s");
    let error = Error::new(ErrorCode::RateLimited, message).detail("limit", limit).detail("limitName", what);
    Error { retry_after: Some(reset_seconds), ..error }
}

/// 429: a quantity is used up.
pub fn quota_exceeded(name: &str, message: String, limit: u32, retry_after: u32) -> Error {
    let error = Error::new(ErrorCode::QuotaExceeded, message).detail("limit", limit).detail("limitName", name);
    Error { retry_after: Some(retry_after), ..error }
}

/// Days since 1970 in UTC.
pub fn day_of(millis_since_epoch: i64) -> i64 {
    millis_since_epoch.div_euclid(millis(DAY))
}

/// Seconds until the next day in UTC, at least one.
pub fn seconds_to_next_day(now: i64) -> u32 {
    let left = millis(DAY) - now.rem_euclid(millis(DAY));
    u32::try_from((left + 999) / 1000).unwrap_or(u32::MAX).max(1)
}

/// Milliseconds of the day of `now` that something which began at `started_at` has run.
pub fn millis_today(started_at: i64, now: i64) -> i64 {
    (now - started_at.max(day_of(now) * millis(DAY))).max(0)
}

/// The time from `from` to `until`, cut at midnight in UTC: where each piece begins, and its milliseconds.
pub fn by_day(from: i64, until: i64) -> impl Iterator<Item = (i64, i64)> {
    let mut from = from;
    std::iter::from_fn(move || {
        let midnight = (day_of(from) + 1) * millis(DAY);
        let begin = std::mem::replace(&mut from, midnight.min(until));
        (begin < until).then_some((begin, from - begin))
    })
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_begins_with_its_first_call_and_ends_in_time() {
        let mut window = Window::default().at(1_000_000, MINUTE);
        for _ in 0..3 {
            window = window.at(1_000_500, MINUTE).take(3).unwrap();
        }
        assert_eq!(window.at(1_059_999, MINUTE).take(3), None);
        let standing = Standing { limit: 3, remaining: 0, reset_seconds: 1 };
        assert_eq!(window.standing(3, 1_059_999, MINUTE), standing);
        assert_eq!(window.give_back().standing(3, 1_000_000, MINUTE).remaining, 1);
        assert_eq!(window.at(1_060_000, MINUTE), Window { started_at: 1_060_000, used: 0 });
        // A clock that went back begins a window of its own instead of a very long one.
        assert_eq!(window.at(999_999, MINUTE).used, 0);
    }

    #[test]
    fn a_limit_of_nothing_refuses_and_a_lowered_one_holds_at_once() {
        assert_eq!(Window::default().take(0), None);
        let window = Window { started_at: 0, used: 9 };
        assert_eq!(window.take(5), None);
        assert_eq!(window.standing(5, 0, MINUTE).remaining, 0);
    }

    #[test]
    fn a_refusal_says_when_to_try_again() {
        let error = rate_limited("calls a minute", Standing { limit: 3, remaining: 0, reset_seconds: 42 });
        assert_eq!((error.code, error.retry_after, error.retryable), (ErrorCode::RateLimited, Some(42), true));
    }

    #[test]
    fn seconds_of_a_day_begin_at_midnight() {
        let midnight = 20_000 * millis(DAY);
        assert_eq!(millis_today(midnight - 5_000, midnight + 3_999), 3_999);
        assert_eq!(millis_today(midnight + 1_000, midnight + 3_999), 2_999);
        assert_eq!(millis_today(midnight + 9_000, midnight), 0);
        let pieces: Vec<_> = by_day(midnight - 5_000, midnight + millis(DAY) + 7).collect();
        assert_eq!(pieces, [(midnight - 5_000, 5_000), (midnight, millis(DAY)), (midnight + millis(DAY), 7)]);
        assert_eq!(by_day(midnight, midnight).count() + by_day(midnight, midnight - 1).count(), 0);
        assert_eq!(seconds_to_next_day(midnight), 86_400);
        assert_eq!(seconds_to_next_day(midnight - 1), 1);
    }

    #[test]
    fn given_limits_replace_defaults_one_by_one() {
        let limits = Limits { live_sandboxes: Some(2), ..Limits::default() };
        let limits = limits.with(Limits { calls_per_minute: Some(5), ..Limits::default() });
        assert_eq!((limits.live_sandboxes(), limits.calls_per_minute(), limits.concurrent_calls()), (2, 5, 50));
        assert_eq!(serde_json::to_string(&limits).unwrap(), r#"{"callsPerMinute":5,"liveSandboxes":2}"#);
        assert_eq!(limits.beyond(Limits::default()), None);
        assert_eq!(Limits::default().beyond(limits), Some("callsPerMinute"), "the default is beyond what is less");
    }
}
