//! The life of a job as its object stores it.

use std::collections::BTreeMap;

use super::*;
use crate::guardrails::Role;
use crate::job::record::Approval;
use crate::tenant::approval::{Reason, Rule};
use crate::tenant::permissions::{Requirement, StepRequirement};
use serde_json::json;

pub(super) const NOW: i64 = 1_000_000;

pub(super) fn waiting() -> Stored {
    let approval =
        Approval { reason: Reason { rule: Rule::Tool, argument: None }, expires_at: NOW + 1_000, decision: None };
    let job = Job {
        job_id: "j".into(),
        tool: "exec".into(),
        state: State::AwaitingApproval,
        version: 0,
        key_id: "k".into(),
        token_id: None,
        step_of: None,
        schedule_id: None,
        sandbox_id: None,
        sandbox_created_at: None,
        sandbox_generation: None,
        labels: BTreeMap::new(),
        expires_after: None,
        created_at: NOW,
        updated_at: NOW,
        begun_at: None,
        ended_at: None,
        approval: Some(approval),
        cancellation: None,
        waits_for_place: false,
        attempts: 0,
        recorded_as: None,
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

pub(super) fn decision(approved: bool, key_id: &str, at: i64) -> Decision {
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
    assert_eq!(job.due(), [(Due::Forget, NOW + 1_000 + 7 * 24 * 60 * 60 * 1_000)]);
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
fn only_who_asks_has_a_job_begun_again_that_is_over() {
    let again = |call_id: &str, although_it_may_have_acted| Again {
        call_id: call_id.into(),
        from_failed: false,
        although_it_may_have_acted,
        at: NOW + 9,
    };
    let mut approved = waiting();
    approved.decide(decision(true, "a", NOW)).unwrap();
    assert_eq!(approved.retry(&again("c", true)).unwrap_err().code, ErrorCode::Conflict, "it is not over");
    approved.begin(NOW).unwrap();
    approved.lost(NOW).unwrap();
    assert_eq!(approved.clone().retry(&again("c", true)).unwrap_err().code, ErrorCode::Conflict);
    let mut job = approved;
    job.job.approval = None;
    assert_eq!(job.retry(&again("c", false)).unwrap_err().code, ErrorCode::Conflict, "it may have acted");
    job.retry(&again("c", true)).unwrap();
    let version = job.job.version;
    job.retry(&again("c", true)).unwrap();
    assert_eq!((job.job.version, job.job.state), (version, State::Queued));
    assert!(job.job.error.is_none() && job.job.ended_at.is_none());
    assert_eq!(job.job.recorded_as.as_deref(), Some("j-2"), "the books have it as a call of its own");
    job.begin(NOW + 10).unwrap();
    assert_eq!(job.attempt_id(), "j-2", "another attempt is another call");
    job.ended(None, Some(0), NOW + 11).unwrap();
    assert_eq!(job.retry(&again("d", true)).unwrap_err().code, ErrorCode::Conflict, "it succeeded");
}

#[test]
fn a_pipeline_goes_on_at_once_when_it_is_cancelled_and_only_it_where_it_failed() {
    let again =
        |from_failed| Again { call_id: "c".into(), from_failed, although_it_may_have_acted: false, at: NOW + 9 };
    let begun = |steps: Vec<StepRequirement>| {
        let mut job = waiting();
        job.order.requirement.steps = steps;
        job.decide(decision(true, "a", NOW)).unwrap();
        job.begin(NOW).unwrap();
        job.job.approval = None;
        job
    };
    let step =
        StepRequirement { pointer: "/steps/0/tool".into(), requirement: Requirement::of("exec", Role::Operator) };
    let mut other = begun(Vec::new());
    other.ended(Some(Error::new(ErrorCode::Timeout, "late")), None, NOW).unwrap();
    assert_eq!(other.clone().retry(&again(true)).unwrap_err().code, ErrorCode::Conflict, "it is no pipeline");
    other.job.step_of = Some(StepOf { job_id: "p".into(), step: "a".into() });
    assert_eq!(other.retry(&again(false)).unwrap_err().code, ErrorCode::Conflict, "it is a step");
    let mut pipeline = begun(vec![step]);
    assert!(!pipeline.is_overdue(NOW + 100 * LONGEST_PROCESS), "a step may wait for an approval for long");
    assert_eq!(pipeline.due()[0], (Due::Pulse, NOW + PULSE));
    pipeline.cancel(Cancellation { key_id: "k".into(), call_id: "c".into(), at: NOW + 1 }, true).unwrap();
    assert_eq!(pipeline.due()[0], (Due::Pulse, NOW + 1));
    pipeline.end(Event::Cancel, None, NOW + 2).unwrap();
    let mut anew = pipeline.clone();
    pipeline.retry(&again(true)).unwrap();
    pipeline.begin(NOW + 10).unwrap();
    assert_eq!(pipeline.planned_by.as_deref(), Some("j"), "what its steps made keeps its name");
    anew.retry(&again(false)).unwrap();
    anew.begin(NOW + 10).unwrap();
    assert_eq!(anew.planned_by.as_deref(), Some("j-2"));
}

#[test]
fn what_may_be_done_twice_is_begun_again_a_few_times_and_ever_later() {
    let mut job = waiting();
    job.decide(decision(true, "a", NOW)).unwrap();
    let mut pauses = Vec::new();
    loop {
        job.begin(NOW).unwrap();
        if !job.again(255, NOW).unwrap() {
            break;
        }
        pauses.push(job.begin_at - NOW);
    }
    assert_eq!((pauses, job.job.attempts), (vec![2_996, 5_992, 11_984], 4));
    let mut wanted = waiting();
    wanted.decide(decision(true, "a", NOW)).unwrap();
    wanted.begin(NOW).unwrap();
    wanted.cancel(Cancellation { key_id: "k".into(), call_id: "c".into(), at: NOW }, true).unwrap();
    assert!(!wanted.again(0, NOW).unwrap(), "nobody wants it any more");
}

#[test]
fn what_never_began_begins_under_another_id_unless_nobody_wants_it() {
    let mut job = waiting();
    job.decide(decision(true, "a", NOW)).unwrap();
    job.begin(NOW).unwrap();
    let mut unwanted = job.clone();
    job.never_began(NOW).unwrap();
    assert_eq!((job.job.state, job.job.attempts, job.begin_at), (State::Queued, 0, NOW + 2_000));
    job.begin(NOW + 2_000).unwrap();
    assert_eq!((job.attempt_id().as_str(), job.job.attempts), ("j-2", 1), "the first id was forbidden to begin");
    job.never_began(NOW + PATIENCE).unwrap();
    let error = job.job.error.as_ref().unwrap();
    assert_eq!((job.job.state, error.code, error.retryable), (State::Failed, ErrorCode::SandboxUnavailable, true));
    // Who asks for another attempt gets one with an id of its own.
    job.job.approval = None;
    let again =
        Again { call_id: "c".into(), although_it_may_have_acted: false, from_failed: false, at: NOW + PATIENCE };
    job.retry(&again).unwrap();
    job.begin(NOW + PATIENCE).unwrap();
    assert_eq!((job.attempt_id(), job.job.recorded_as.clone()), ("j-3".to_owned(), Some("j-3".to_owned())));
    unwanted.cancel(Cancellation { key_id: "k".into(), call_id: "c".into(), at: NOW }, true).unwrap();
    unwanted.never_began(NOW).unwrap();
    assert_eq!((unwanted.job.state, unwanted.job.attempts), (State::Cancelled, 0));
    assert_eq!(unwanted.job.error.unwrap().details["reason"], "cancelled");
}

#[test]
fn a_silent_sandbox_is_asked_again_for_two_minutes() {
    let mut job = waiting();
    job.decide(decision(true, "a", NOW)).unwrap();
    job.begin(NOW).unwrap();
    assert!(job.is_silent(NOW) && job.is_silent(NOW + 60_000));
    assert!(job.due().contains(&(Due::Pulse, NOW + 60_000 + PULSE)), "{:?}", job.due());
    assert!(!job.is_silent(NOW + 120_000));
    let mut unseen = job.clone();
    assert!(unseen.is_silent(NOW + 300_000), "nobody looked meanwhile");
    let mut again = job.clone();
    assert!(again.again(0, NOW).unwrap());
    again.begin(NOW + 200_000).unwrap();
    assert!(again.is_silent(NOW + 200_000), "another attempt has its own time");
}

#[test]
fn a_cancelled_job_says_what_was_seen() {
    let wish = || Cancellation { key_id: "k".into(), call_id: "c".into(), at: NOW + 1 };
    let mut waiting_one = waiting();
    waiting_one.cancel(wish(), true).unwrap();
    assert_eq!((waiting_one.job.state, waiting_one.job.attempts), (State::Cancelled, 0));
    waiting_one.cancel(wish(), true).unwrap();
    assert_eq!(waiting_one.job.version, 2, "the same again changes nothing");
    assert!(waiting_one.decide(decision(true, "a", NOW)).is_err(), "it is not approved any more");
    let mut job = waiting();
    job.decide(decision(true, "a", NOW)).unwrap();
    job.begin(NOW).unwrap();
    assert_eq!(job.clone().cancel(wish(), false).unwrap_err().code, ErrorCode::Conflict);
    job.cancel(wish(), true).unwrap();
    assert_eq!(job.job.state, State::Running, "its end was not seen");
    let mut killed = job.clone();
    let error = Error::new(ErrorCode::Interrupted, "x").detail("reason", KILLED);
    killed.ended(Some(error), None, NOW + 2).unwrap();
    assert_eq!(killed.job.state, State::Cancelled);
    let mut refused = job.clone();
    refused.not_begun(Error::new(ErrorCode::RateLimited, "x"), NOW + 2).unwrap();
    assert_eq!(refused.job.state, State::Cancelled);
    let mut unseen = job.clone();
    unseen.ended(Some(Error::new(ErrorCode::Interrupted, "x")), None, NOW + 2).unwrap();
    assert_eq!(unseen.job.state, State::Interrupted, "a kill that was not confirmed is none");
    job.ended(None, Some(0), NOW + 2).unwrap();
    assert_eq!(job.job.state, State::Succeeded, "it ended before it was killed");
    assert_eq!(job.cancel(wish(), true).unwrap_err().code, ErrorCode::Conflict);
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

#[test]
fn every_change_is_kept_until_the_list_has_taken_it() {
    let mut job = waiting();
    job.decide(decision(true, "boss", NOW + 1)).unwrap();
    job.begin(NOW + 2).unwrap();
    let version = job.job.version;
    job.ended(Some(Error::new(ErrorCode::Timeout, "too long")), None, NOW + 3).unwrap();
    let told: Vec<_> =
        job.changes.iter().map(|change| (change.state, change.at, change.attempts, change.error)).collect();
    let wanted = [
        (State::Queued, NOW + 1, 0, None),
        (State::Running, NOW + 2, 1, None),
        (State::Failed, NOW + 3, 1, Some(ErrorCode::Timeout)),
    ];
    assert_eq!(told, wanted);
    job.told(version, false, NOW + 4);
    assert_eq!(job.changes.len(), 3);
    job.told(version, true, NOW + 4);
    assert_eq!(job.changes.iter().map(|change| change.state).collect::<Vec<_>>(), [State::Failed]);
    job.job.approval = None;
    let again = Again { call_id: "c".into(), although_it_may_have_acted: false, from_failed: false, at: NOW + 5 };
    job.retry(&again).unwrap();
    assert_eq!((job.changes[1].state, job.changes[1].error), (State::Queued, None));
    for turn in 0..300 {
        job.begin(NOW + turn).unwrap();
        job.not_begun(Error { retryable: true, ..Error::new(ErrorCode::RateLimited, "busy") }, NOW + turn).unwrap();
    }
    assert_eq!(job.changes.len(), MOST_CHANGES, "what a list never takes does not grow for ever");
    assert_eq!(job.changes.last(), Some(&Change::of(&job.job)));
}

fn asked(waits_for_place: bool) -> Stored {
    let Stored { job, order, .. } = waiting();
    let job = Job { state: State::Queued, approval: None, waits_for_place, ..job };
    Stored::new(&Seed { job, order, arguments: "{}".into() })
}

fn begins_at(stored: &Stored) -> i64 {
    stored.due().into_iter().find(|(due, _)| *due == Due::Begin).unwrap().1
}

#[test]
fn a_job_that_was_given_a_place_begins_at_once_and_asks_again_if_it_did_not_for_long() {
    let mut job = asked(false);
    assert_eq!((begins_at(&job), job.has_place(NOW), job.has_place(NOW + 29_999)), (NOW, true, true));
    assert!(!job.has_place(NOW + 30_000) && !job.has_place(NOW - 1));
    job.placed(NOW + 60_000);
    assert!(job.has_place(NOW + 60_000));
    job.begin(NOW + 60_000).unwrap();
    assert!(!job.has_place(NOW + 60_000), "a place is for one attempt");
    // One that was approved, retried or refused has none yet.
    let mut approved = waiting();
    approved.decide(decision(true, "root", NOW)).unwrap();
    assert!(!approved.has_place(NOW));
}

#[test]
fn a_job_that_waits_for_a_place_asks_by_itself_or_when_it_is_told() {
    let mut job = asked(true);
    assert_eq!((begins_at(&job), job.has_place(NOW)), (NOW + 40_000, false));
    job.waits(255, 40_000, NOW + 40_000);
    assert!((NOW + 99_000..NOW + 100_000).contains(&begins_at(&job)) && job.job.waits_for_place);
    let before = job.clone();
    assert!(!job.told_to_begin(0) && !job.told_to_begin(2));
    assert_eq!(job, before);
    assert!(job.told_to_begin(1));
    assert_eq!(begins_at(&job), NOW);
    assert!(!job.told_to_begin(1), "once is enough");
    // A pause after a refusal is no matter of places.
    job.placed(NOW);
    job.begin(NOW).unwrap();
    job.not_begun(Error { retryable: true, ..Error::new(ErrorCode::RateLimited, "busy") }, NOW).unwrap();
    assert!(!job.told_to_begin(1) && begins_at(&job) > NOW && !job.job.waits_for_place);
    assert_eq!((job.wanted().attempt, job.wanted().version), (1, job.job.version));
    // What was cancelled waits for nothing.
    let mut job = asked(true);
    job.cancel(Cancellation { key_id: "k".into(), call_id: "c".into(), at: NOW }, true).unwrap();
    assert!(!job.job.waits_for_place && !job.told_to_begin(1) && !whats_due(&job).contains(&Due::Begin));
}
