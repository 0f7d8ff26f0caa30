//! What becomes of due times, and what may be said of a schedule.

use serde_json::{Map, json};

use super::change::{Change, Expiry, first, when};
use super::record::{Call, Counts, Overlap, Run, RunOutcome, Schedule, State, When};
use super::turn::Next;
use super::zone::UTC;
use crate::doubles::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::guardrails::Role;
use crate::tenant::permissions::Requirement;

const MINUTE: i64 = 60_000;

fn schedule(when: When, now: i64) -> Schedule {
    let requirement = Requirement::of("exec", Role::Operator);
    let call = Call { tool: "exec".into(), arguments: Map::new(), requirement, recorded: json!({}) };
    let schedule = Schedule {
        schedule_id: "s".into(),
        name: "nightly".into(),
        call,
        when,
        overlap: Overlap::Skip,
        catch_up: true,
        expires_at: None,
        key_id: "k".into(),
        created_at: now,
        updated_at: now,
        state: State::Active,
        pause: None,
        ended_at: None,
        next_at: None,
        waiting: None,
        last: None,
        counts: Counts::default(),
    };
    schedule.begun(&Database, now).unwrap()
}

fn minutely(now: i64) -> Schedule {
    schedule(When::Cron { expression: "* * * * *".into(), time_zone: UTC.into() }, now)
}

fn job(state: &str) -> crate::job::record::Job {
    let job = json!({ "jobId": "s-60000", "tool": "exec", "state": state, "version": 1, "keyId": "k", "createdAt": 0, "updatedAt": 0 });
    serde_json::from_value(job).unwrap()
}

#[test]
fn each_due_time_is_taken_once_and_the_next_follows() {
    let mut every = minutely(1);
    assert_eq!((every.next_at, every.due(false, &Database, MINUTE - 1)), (Some(MINUTE), None));
    assert_eq!(every.due(false, &Database, MINUTE + 5), Some(MINUTE));
    assert_eq!((every.next_at, every.due(false, &Database, MINUTE + 5)), (Some(2 * MINUTE), None));
    let mut once = schedule(When::At(MINUTE), 1);
    assert_eq!(once.due(false, &Database, MINUTE), Some(MINUTE));
    assert_eq!((once.state, once.ended_at, once.next_at), (State::Ended, Some(MINUTE), None));
    assert_eq!(once.due(false, &Database, 2 * MINUTE), None);
    assert_eq!(Run::of(&once, MINUTE, 9).job_id, Run::of(&once, MINUTE, 10).job_id, "the same run, whoever makes it");
}

#[test]
fn what_was_missed_is_made_up_for_once_or_not_at_all() {
    let back = 100 * MINUTE + 5;
    let mut away = minutely(1);
    assert_eq!(away.due(false, &Database, back), Some(MINUTE), "one run for all of them");
    assert_eq!((away.next_at, away.counts), (Some(101 * MINUTE), Counts::default()));
    let mut strict = Schedule { catch_up: false, ..minutely(1) };
    assert_eq!((strict.due(false, &Database, back), strict.counts.missed), (None, 1));
    assert_eq!(strict.due(false, &Database, 101 * MINUTE + 900), Some(101 * MINUTE), "a little late is not missed");
    let mut once = Schedule { catch_up: false, ..schedule(When::At(MINUTE), 1) };
    assert_eq!((once.due(false, &Database, back), once.state, once.counts.missed), (None, State::Ended, 1));
}

#[test]
fn a_run_that_overlaps_is_left_out_waits_or_is_made() {
    let mut skips = minutely(1);
    assert_eq!((skips.due(true, &Database, MINUTE), skips.counts.skipped, skips.waiting), (None, 1, None));
    let mut queues = Schedule { overlap: Overlap::Queue, ..minutely(1) };
    assert_eq!((queues.due(true, &Database, MINUTE), queues.waiting), (None, Some(MINUTE)));
    assert_eq!((queues.due(true, &Database, 2 * MINUTE), queues.counts.skipped), (None, 1), "one waits at most");
    assert_eq!(queues.waited(true, 2 * MINUTE), None);
    assert_eq!((queues.waited(false, 2 * MINUTE + 1), queues.waiting), (Some(MINUTE), None));
    assert_eq!(queues.waited(false, 2 * MINUTE + 1), None);
    let mut allows = Schedule { overlap: Overlap::Allow, ..minutely(1) };
    assert_eq!(allows.due(true, &Database, MINUTE), Some(MINUTE));
    // One that waits is not over with its last time.
    let mut last = Schedule { overlap: Overlap::Queue, ..schedule(When::At(MINUTE), 1) };
    assert_eq!((last.due(true, &Database, MINUTE), last.state), (None, State::Active));
    assert_eq!((last.waited(false, 3 * MINUTE), last.state), (Some(MINUTE), State::Ended));
}

#[test]
fn nothing_is_run_from_its_expiry_on() {
    let expiring = || Schedule { expires_at: Some(2 * MINUTE + 1), overlap: Overlap::Queue, ..minutely(1) };
    let mut ends = expiring();
    assert_eq!(ends.due(false, &Database, MINUTE), Some(MINUTE));
    assert_eq!(ends.due(false, &Database, 2 * MINUTE), Some(2 * MINUTE));
    assert_eq!((ends.state, ends.next_at, ends.ended_at), (State::Ended, None, Some(2 * MINUTE)));
    let mut late = expiring();
    assert_eq!((late.due(false, &Database, 9 * MINUTE), late.state, late.counts.missed), (None, State::Ended, 1));
    let mut waits = expiring();
    assert_eq!((waits.due(true, &Database, 2 * MINUTE), waits.state), (None, State::Active));
    assert_eq!((waits.waited(true, 9 * MINUTE), waits.state, waits.counts.skipped), (None, State::Ended, 1));
}

#[test]
fn a_run_is_told_of_until_it_is_over_and_failures_are_counted() {
    let mut every = minutely(1);
    let run = Run { job_id: "s-60000".into(), ..Run::of(&every, MINUTE, MINUTE) };
    every.made(&run, &job("queued"), MINUTE);
    every.made(&run, &job("running"), MINUTE);
    assert_eq!((every.counts.made, every.last.as_ref().unwrap().outcome), (1, RunOutcome::Queued), "once");
    every.told(&job("queued"), &job("running"));
    every.told(&job("running"), &job("failed"));
    every.told(&job("failed"), &job("failed"));
    assert_eq!((every.counts.failures_in_a_row, every.last.as_ref().unwrap().outcome), (1, RunOutcome::Failed));
    assert_eq!(every.state, State::Active, "it goes on");
    every.told(&job("running"), &job("succeeded"));
    assert_eq!(every.counts.failures_in_a_row, 0);
}

#[test]
fn a_refusal_is_tried_again_where_that_helps_and_pauses_where_nothing_can() {
    let mut every = minutely(1);
    let run = Run::of(&every, MINUTE, MINUTE);
    let limited = Error { retry_after: Some(30), ..Error::new(ErrorCode::RateLimited, "x") };
    assert_eq!(run.after(limited.clone(), MINUTE), Next::TryAgain(MINUTE + 30_000));
    let late = MINUTE + 60 * MINUTE;
    assert_eq!(run.after(limited.clone(), late), Next::GiveUp { error: limited, may_be_a_job: false });
    let gone = Error::no_such_sandbox("a").detail("availableSandboxes", vec!["b"]);
    assert!(matches!(run.after(gone.clone(), MINUTE), Next::GiveUp { may_be_a_job: false, .. }));
    let lost = Error::new(ErrorCode::OutcomeUnknown, "x");
    assert!(matches!(run.after(lost.clone(), MINUTE), Next::TryAgain(_)), "it may be a job");
    assert!(matches!(run.after(lost, late), Next::GiveUp { may_be_a_job: true, .. }));
    every.refused(&run, &gone, MINUTE);
    let last = every.last.clone().unwrap();
    assert_eq!((every.state, every.counts.refused, last.outcome), (State::Active, 1, RunOutcome::Refused));
    assert!(last.error.unwrap().details.is_empty(), "what else there is, is for who asked");
    let revoked = Error::new(ErrorCode::Unauthenticated, "the key was revoked");
    every.refused(&run, &revoked, 2 * MINUTE);
    assert_eq!((every.state, every.next_at, every.counts.failures_in_a_row), (State::Paused, None, 2));
    assert_eq!(every.pause.unwrap().error.unwrap().message, "the key was revoked");
}

fn changed(schedule: &Schedule, change: Change, now: i64) -> Result<Schedule> {
    schedule.clone().changed(change, &Database, now)
}

#[test]
fn who_changes_or_resumes_a_schedule_answers_for_it_and_who_pauses_it_does_not() {
    let every = minutely(1);
    let by = |key: &str| Change::by(key);
    let paused = changed(&every, Change { paused: Some(true), ..by("other") }, MINUTE).unwrap();
    assert_eq!((paused.state, paused.next_at, paused.key_id.as_str()), (State::Paused, None, "k"));
    assert_eq!(paused.pause.as_ref().unwrap().key_id.as_deref(), Some("other"));
    let again = changed(&paused, Change { paused: Some(true), ..by("third") }, 2 * MINUTE).unwrap();
    assert_eq!(again.pause, paused.pause, "it was paused before");
    let renamed = changed(&every, Change { name: Some("n".into()), ..by("other") }, MINUTE).unwrap();
    assert_eq!((renamed.key_id.as_str(), renamed.next_at), ("k", every.next_at));
    let resumed = changed(&paused, Change { paused: Some(false), ..by("other") }, 10 * MINUTE).unwrap();
    assert_eq!((resumed.state, resumed.next_at, resumed.key_id.as_str()), (State::Active, Some(11 * MINUTE), "other"));
    assert_eq!(resumed.pause, None);
    let call = Call { tool: "getUsage".into(), ..every.call.clone() };
    for change in [
        Change { call: Some(call), ..by("other") },
        Change { when: Some(When::At(9 * MINUTE)), ..by("other") },
        Change { overlap: Some(Overlap::Allow), ..by("other") },
        Change { catch_up: Some(false), ..by("other") },
        Change { expiry: Some(Expiry::At(20 * MINUTE)), ..by("other") },
    ] {
        assert_eq!(changed(&every, change, MINUTE).unwrap().key_id, "other");
    }
    // A change does not lose what is due and not made yet.
    let late = changed(&every, Change { overlap: Some(Overlap::Allow), ..by("k") }, MINUTE + 5).unwrap();
    assert_eq!(late.next_at, Some(MINUTE));
}

#[test]
fn a_schedule_that_has_ended_begins_again_with_another_time_only() {
    let mut once = schedule(When::At(MINUTE), 1);
    let paused = changed(&once, Change { paused: Some(true), ..Change::by("k") }, 10).unwrap();
    let late = changed(&paused, Change { paused: Some(false), ..Change::by("k") }, 2 * MINUTE).unwrap_err();
    assert_eq!(late.code, ErrorCode::Conflict);
    once.due(false, &Database, MINUTE);
    let refused = changed(&once, Change { paused: Some(false), ..Change::by("k") }, 2 * MINUTE).unwrap_err();
    assert_eq!(refused.code, ErrorCode::Conflict);
    let again = changed(&once, Change { when: Some(When::At(5 * MINUTE)), ..Change::by("k") }, 2 * MINUTE).unwrap();
    assert_eq!((again.state, again.next_at, again.ended_at), (State::Active, Some(5 * MINUTE), None));
    let past = changed(&once, Change { when: Some(When::At(MINUTE)), ..Change::by("k") }, 2 * MINUTE).unwrap_err();
    assert_eq!(past.message, "at: is not in the future");
}

#[test]
fn a_time_is_named_in_one_way_and_comes() {
    let say = |at: Option<&str>, cron: Option<&str>, zone: Option<&str>| when(at, cron, zone, &Database, 1_000);
    assert_eq!(say(None, None, None), Ok(None));
    assert_eq!(say(Some("1970-01-01T01:00:02+01:00"), None, None), Ok(Some(When::At(2_000))));
    let cron = When::Cron { expression: "0 6 * * *".into(), time_zone: "Europe/Berlin".into() };
    assert_eq!(say(None, Some(" 0  6 * * * "), Some("Europe/Berlin")), Ok(Some(cron)));
    for (at, cron, zone, message) in [
        (Some("soon"), None, None, "at: is not an RFC 3339 time such as 2026-01-31T12:00:00Z"),
        (Some("1970-01-01T00:00:01Z"), None, None, "at: is not in the future"),
        (Some("2999-01-01T00:00:00Z"), Some("* * * * *"), None, "at: goes without cron"),
        (Some("2999-01-01T00:00:00Z"), None, Some("UTC"), "timeZone: goes with cron"),
        (None, None, Some("UTC"), "timeZone: goes with cron"),
        (None, Some("* * * * *"), Some("Europe/Atlantis"), "timeZone: is no time zone"),
        (None, Some("* * * * *"), Some("+02:00"), "timeZone: is no time zone"),
        (None, Some("x"), None, "cron: has 1 fields"),
    ] {
        let error = say(at, cron, zone).unwrap_err();
        assert!(error.message.starts_with(message), "{}", error.message);
    }
    let every = When::Cron { expression: "0 0 1 1 *".into(), time_zone: UTC.into() };
    let early = first(&every, Some(5_000), &Database, 1_000).unwrap_err();
    assert_eq!(early.message, "expiresAt: is before the first time, which is 1971-01-01T00:00:00.000Z");
    assert_eq!(first(&every, Some(1_000), &Database, 1_000).unwrap_err().message, "expiresAt: is not in the future");
}
