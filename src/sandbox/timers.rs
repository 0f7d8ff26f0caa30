//! When something of a sandbox is due, as pure functions: rows of `timers(kind, due, attempt)` on the object's one alarm.
//!
//! ```text
//!  record changes ─▶ wanted ─▶ merged with the rows that are there ─▶ rows, and the alarm at the first of them
//!  alarm ─▶ rows that are due ─▶ work ─▶ done: wanted again │ failed: attempt + 1, due later and later
//! ```
//!
//! What is wanted follows from the record alone, so that a lost row or a lost alarm comes back with the next change or sweep.

use serde::{Deserialize, Serialize};

use super::record::Record;
use super::settings::TEMPORARY_IDLE;
use super::state::State;

/// A start that has not ended after so many milliseconds was lost with the object's memory.
const START_LOST_AFTER: i64 = 60_000;

/// First and longest pause after a failure, in milliseconds.
const FIRST_PAUSE: i64 = 2_000;
const LONGEST_PAUSE: i64 = 600_000;

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Kind {
    /// Nobody used it for long enough: it sleeps, or is destroyed when `exec` made it by itself.
    Idle,
    /// Its time is over: it is destroyed.
    Expiry,
    /// It has been starting for too long.
    Start,
}

/// One row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timer {
    pub kind: Kind,
    /// Milliseconds since 1970.
    pub due: i64,
    /// Failures so far.
    pub attempt: u32,
}

/// The timers that a record asks for.
pub fn wanted(record: &Record, now: i64) -> Vec<Timer> {
    let timer = |kind, due| Timer { kind, due, attempt: 0 };
    let mut timers = Vec::new();
    if let Some(due) = record.settings.expires_at {
        timers.push(timer(Kind::Expiry, due));
    }
    if let Some(due) = idle_due(record) {
        timers.push(timer(Kind::Idle, due));
    }
    if record.state == State::Starting {
        timers.push(timer(Kind::Start, now + START_LOST_AFTER));
    }
    timers
}

/// When nobody will have used the sandbox for long enough; `None` when nothing follows from that.
pub fn idle_due(record: &Record) -> Option<i64> {
    let seconds = match record.state {
        State::Starting | State::Destroyed => return None,
        _ if record.temporary => TEMPORARY_IDLE,
        State::Running if !record.settings.keep_alive => record.settings.sleep_after(),
        _ => return None,
    };
    Some(record.last_use().saturating_add(i64::from(seconds) * 1000))
}

/// Rows after a change: those that are wanted. One that failed before keeps its pause, and a start is not counted anew.
pub fn merged(wanted: &[Timer], stored: &[Timer]) -> Vec<Timer> {
    let merge = |timer: &Timer| match stored.iter().find(|row| row.kind == timer.kind) {
        Some(row) if row.attempt > 0 => Timer { due: timer.due.max(row.due), attempt: row.attempt, ..*timer },
        Some(row) if timer.kind == Kind::Start => *row,
        _ => *timer,
    };
    wanted.iter().map(merge).collect()
}

/// The row of a timer whose work failed at `now`.
pub fn failed(timer: Timer, now: i64) -> Timer {
    let pause = FIRST_PAUSE.saturating_mul(1_i64.checked_shl(timer.attempt.min(20)).unwrap_or(i64::MAX));
    Timer { due: now + pause.min(LONGEST_PAUSE), attempt: timer.attempt.saturating_add(1), ..timer }
}

/// When the alarm has to go off; `None` when it must not.
pub fn alarm(timers: &[Timer]) -> Option<i64> {
    timers.iter().map(|timer| timer.due).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identifier::SandboxId;
    use crate::sandbox::settings::Settings;
    use proptest::prelude::*;

    fn record(state: State, settings: Settings) -> Record {
        let mut record = Record::created(SandboxId::parse("a").unwrap(), settings, 1_000);
        record.state = state;
        record.started_at = Some(2_000);
        record.last_used_at = Some(5_000);
        record
    }

    fn kinds(record: &Record) -> Vec<Kind> {
        wanted(record, 0).iter().map(|timer| timer.kind).collect()
    }

    #[test]
    fn a_running_sandbox_sleeps_after_its_last_use_and_a_kept_one_does_not() {
        let plain = record(State::Running, Settings::default());
        assert_eq!(wanted(&plain, 0), [Timer { kind: Kind::Idle, due: 605_000, attempt: 0 }]);
        let quick = record(State::Running, Settings { sleep_after: Some(1), ..Settings::default() });
        assert_eq!(alarm(&wanted(&quick, 0)), Some(6_000));
        let kept = record(State::Running, Settings { keep_alive: true, ..Settings::default() });
        assert_eq!(alarm(&wanted(&kept, 0)), None);
    }

    #[test]
    fn what_does_not_run_needs_no_alarm_but_that_of_its_expiry() {
        for state in [State::Created, State::Sleeping, State::Error] {
            assert_eq!(alarm(&wanted(&record(state, Settings::default()), 0)), None, "{state:?}");
            let expires = Settings { expires_at: Some(9), ..Settings::default() };
            assert_eq!(kinds(&record(state, expires)), [Kind::Expiry]);
        }
    }

    #[test]
    fn what_exec_made_goes_after_five_idle_minutes_in_every_state() {
        for state in [State::Created, State::Running, State::Sleeping, State::Error] {
            let mut made = record(state, Settings { keep_alive: true, ..Settings::default() });
            made.temporary = true;
            assert_eq!(idle_due(&made), Some(305_000), "{state:?}");
        }
    }

    #[test]
    fn a_start_is_looked_after_once() {
        let starting = record(State::Starting, Settings::default());
        let first = wanted(&starting, 10);
        assert_eq!(first, [Timer { kind: Kind::Start, due: 60_010, attempt: 0 }]);
        assert_eq!(merged(&wanted(&starting, 50_000), &first), first);
    }

    #[test]
    fn failures_wait_longer_and_longer_and_no_change_cuts_that_short() {
        let mut timer = Timer { kind: Kind::Idle, due: 0, attempt: 0 };
        let mut pauses = Vec::new();
        for _ in 0..12 {
            timer = failed(timer, 0);
            pauses.push(timer.due);
        }
        assert_eq!(pauses[..3], [2_000, 4_000, 8_000]);
        assert_eq!(pauses.last(), Some(&LONGEST_PAUSE));
        let plain = record(State::Running, Settings { sleep_after: Some(1), ..Settings::default() });
        let kept = merged(&wanted(&plain, 0), &[timer]);
        assert_eq!((kept[0].due, kept[0].attempt), (LONGEST_PAUSE, 12));
    }

    proptest! {
        #[test]
        fn reading_never_brings_an_expiry_forward(expires_at in 0..i64::MAX, used in 0..i64::MAX / 2, later in 0..i64::MAX / 2) {
            let mut one = record(State::Running, Settings { expires_at: Some(expires_at), ..Settings::default() });
            let before = wanted(&one, 0).into_iter().find(|timer| timer.kind == Kind::Expiry);
            one.last_used_at = Some(used.max(later));
            let after = wanted(&one, later).into_iter().find(|timer| timer.kind == Kind::Expiry);
            prop_assert_eq!(before, after);
        }

        #[test]
        fn the_alarm_is_the_first_of_the_rows(dues in proptest::collection::vec(0..1_000_000_i64, 0..5), attempt in 0..70_u32) {
            let rows: Vec<Timer> = dues.iter().map(|due| Timer { kind: Kind::Idle, due: *due, attempt }).collect();
            prop_assert_eq!(alarm(&rows), dues.iter().min().copied());
            for row in rows {
                prop_assert!(failed(row, row.due).due > row.due);
            }
        }
    }
}
