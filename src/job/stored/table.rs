//! What each event does in each state of a job, as a table: what is refused changes nothing.

use super::tests::{NOW, decision, waiting};
use super::*;
use crate::tenant::permissions::{Requirement, StepRequirement};
use State::{AwaitingApproval, Cancelled, Failed, Interrupted, Queued, Rejected, Running, Succeeded};

/// What happens to a job.
#[derive(Clone, Copy, Debug)]
enum Happening {
    Approved,
    RejectedBySomebody,
    /// Cancelled, where what runs can be ended, and where it cannot.
    CancelledAsProcess,
    CancelledAsOther,
    /// Asked to be begun again, by who knows and by who does not know that it may have acted.
    RetriedKnowingly,
    Retried,
}

use Happening::{Approved, CancelledAsOther, CancelledAsProcess, RejectedBySomebody, Retried, RetriedKnowingly};

/// What an attempt that runs comes to.
#[derive(Clone, Copy, Debug)]
enum End {
    Succeeds,
    TimesOut,
    IsKilled,
    IsNotSeen,
    IsLost,
    IsRefusedForNow,
    IsRefusedForGood,
}

fn wish() -> Cancellation {
    Cancellation { key_id: "k".into(), call_id: "c".into(), at: NOW + 5 }
}

/// A job in this state, as it comes there; one that had to be approved only where it waits or was rejected.
fn job_in(state: State) -> Stored {
    let mut job = waiting();
    if matches!(state, AwaitingApproval | Rejected) {
        if state == Rejected {
            job.decide(decision(false, "a", NOW + 1)).unwrap();
        }
        return job;
    }
    job.decide(decision(true, "a", NOW + 1)).unwrap();
    job.job.approval = None;
    if state == Cancelled {
        job.cancel(wish(), true).unwrap();
    } else if state != Queued {
        job.begin(NOW + 2).unwrap();
        match state {
            Succeeded => job.ended(None, Some(0), NOW + 3).unwrap(),
            Failed => job.ended(Some(Error::new(ErrorCode::Timeout, "late")), None, NOW + 3).unwrap(),
            Interrupted => job.lost(NOW + 3).unwrap(),
            _ => {}
        }
    }
    assert_eq!(job.job.state, state);
    job
}

fn happen(job: &mut Stored, happening: Happening) -> Result<(), Error> {
    let again = |although_it_may_have_acted| Again {
        call_id: "r".into(),
        from_failed: false,
        although_it_may_have_acted,
        at: NOW + 9,
    };
    match happening {
        Approved => job.decide(decision(true, "b", NOW + 9)),
        RejectedBySomebody => job.decide(decision(false, "b", NOW + 9)),
        CancelledAsProcess => job.cancel(wish(), true),
        CancelledAsOther => job.cancel(wish(), false),
        RetriedKnowingly => job.retry(&again(true)),
        Retried => job.retry(&again(false)),
    }
}

/// What happens, and the state after it; nothing where it is a conflict.
type Row = [(Happening, Option<State>); 6];

const ASKED: [(State, Row); 8] = [
    (AwaitingApproval, row([Some(Queued), Some(Rejected), Some(Cancelled), Some(Cancelled), None, None])),
    (Queued, row([None, None, Some(Cancelled), Some(Cancelled), None, None])),
    (Running, row([None, None, Some(Running), None, None, None])),
    (Succeeded, row([None, None, None, None, None, None])),
    (Failed, row([None, None, None, None, Some(Queued), Some(Queued)])),
    (Interrupted, row([None, None, None, None, Some(Queued), None])),
    (Cancelled, row([None, None, Some(Cancelled), Some(Cancelled), Some(Queued), Some(Queued)])),
    (Rejected, row([None, None, None, None, None, None])),
];

const fn row(after: [Option<State>; 6]) -> Row {
    let [approved, rejected, process, other, knowingly, retried] = after;
    [
        (Approved, approved),
        (RejectedBySomebody, rejected),
        (CancelledAsProcess, process),
        (CancelledAsOther, other),
        (RetriedKnowingly, knowingly),
        (Retried, retried),
    ]
}

#[test]
fn what_is_asked_of_a_job_is_done_or_refused_by_its_state() {
    assert_eq!(ASKED.map(|(state, _)| state), State::ALL, "every state has its row");
    for (state, happenings) in ASKED {
        for (happening, expected) in happenings {
            let before = job_in(state);
            let mut job = before.clone();
            let told = happen(&mut job, happening);
            let Some(expected) = expected else {
                assert_eq!(told.unwrap_err().code, ErrorCode::Conflict, "{state:?} {happening:?}");
                assert_eq!(job, before, "what is refused changes nothing: {state:?} {happening:?}");
                continue;
            };
            told.unwrap();
            assert_eq!(job.job.state, expected, "{state:?} {happening:?}");
            assert_eq!(job.job.ended_at.is_some(), expected.is_over(), "{state:?} {happening:?}");
            // The same again is no other change.
            let once = job.clone();
            let again = happen(&mut job, happening);
            let is_the_same = job == once;
            assert!(is_the_same, "{state:?} {happening:?}: {again:?}");
        }
    }
}

#[test]
fn how_an_attempt_ends_depends_on_whether_somebody_wanted_its_end() {
    use End::{IsKilled, IsLost, IsNotSeen, IsRefusedForGood, IsRefusedForNow, Succeeds, TimesOut};
    let table = [
        (Succeeds, Succeeded, Succeeded),
        (TimesOut, Failed, Failed),
        // A kill that nobody asked for is no cancellation.
        (IsKilled, Interrupted, Cancelled),
        (IsNotSeen, Interrupted, Interrupted),
        (IsLost, Interrupted, Interrupted),
        (IsRefusedForNow, Queued, Cancelled),
        (IsRefusedForGood, Failed, Cancelled),
    ];
    for (end, unwanted_by_nobody, wanted) in table {
        for (is_wanted, expected) in [(false, unwanted_by_nobody), (true, wanted)] {
            let mut job = job_in(Running);
            if is_wanted {
                job.cancel(wish(), true).unwrap();
            }
            let at = NOW + 7;
            let failed = |code| Some(Error::new(code, "x"));
            match end {
                Succeeds => job.ended(None, Some(0), at),
                TimesOut => job.ended(failed(ErrorCode::Timeout), None, at),
                IsKilled => job.ended(Some(Error::new(ErrorCode::Interrupted, "x").detail("reason", KILLED)), None, at),
                IsNotSeen => job.ended(failed(ErrorCode::OutcomeUnknown), None, at),
                IsLost => job.lost(at),
                IsRefusedForNow => {
                    job.not_begun(Error { retryable: true, ..Error::new(ErrorCode::RateLimited, "x") }, at)
                }
                IsRefusedForGood => job.not_begun(Error::new(ErrorCode::Forbidden, "x"), at),
            }
            .unwrap();
            assert_eq!(job.job.state, expected, "{end:?}, wanted: {is_wanted}");
            assert_eq!(job.job.error.is_some(), !matches!(expected, Succeeded | Queued), "{end:?}");
        }
    }
}

#[test]
fn nothing_that_an_attempt_tells_changes_a_job_that_does_not_run() {
    for state in State::ALL.into_iter().filter(|state| *state != Running) {
        let timeout = || Some(Error::new(ErrorCode::Timeout, "x"));
        let state_after = |tell: fn(&mut Stored, Option<Error>)| {
            let mut job = job_in(state);
            tell(&mut job, timeout());
            job.job.state
        };
        let lost = state_after(|job, _| drop(job.lost(NOW + 9)));
        let ended = state_after(|job, _| drop(job.ended(None, Some(0), NOW + 9)));
        assert_eq!((lost, ended), (state, state));
        // A timeout is told of a job that could not begin in time, and of none that is over.
        let late = state_after(|job, error| drop(job.ended(error, None, NOW + 9)));
        assert_eq!(late, if state == Queued { Failed } else { state });
    }
}

#[test]
fn an_approval_that_comes_too_late_is_refused_in_every_state_and_expires_once() {
    for state in State::ALL {
        let mut job = job_in(state);
        let is_due = job.due().iter().any(|(due, _)| *due == Due::Expire);
        assert_eq!(is_due, state == AwaitingApproval);
        let before = job.clone();
        // `waiting` jobs wait for a second.
        assert_eq!(job.decide(decision(true, "b", NOW + 1_000)).unwrap_err().code, ErrorCode::Conflict);
        assert_eq!(job, before);
    }
    let mut job = waiting();
    job.expire(NOW + 1_000).unwrap();
    assert_eq!((job.job.state, job.job.attempts), (Rejected, 0));
    assert!(job.expire(NOW + 1_001).is_err() && job.job.ended_at == Some(NOW + 1_000));
}

#[test]
fn a_job_is_forgotten_when_its_time_is_over_and_its_end_was_told() {
    for state in State::ALL {
        let mut job = job_in(state);
        job.job.expires_after = Some(60);
        let forgotten_at = |job: &Stored| job.due().iter().find(|(due, _)| *due == Due::Forget).map(|(_, at)| *at);
        assert_eq!(forgotten_at(&job), None, "{state:?} was not told");
        job.told(job.job.version, true, NOW);
        let expected = job.job.ended_at.map(|ended_at| ended_at + 60_000);
        assert_eq!((forgotten_at(&job), job.job.expires_at()), (expected, expected), "{state:?}");
        assert_eq!(expected.is_some(), state.is_over());
    }
}

#[test]
fn what_is_handed_over_goes_on_at_once_and_a_wish_for_its_end_does_not_make_it_spin() {
    let mut job = job_in(Running);
    job.told(job.job.version, true, NOW);
    assert_eq!(job.alarm(), Some(NOW + 2 + PULSE));
    job.hand_over(NOW + 60_000);
    assert_eq!(job.due(), [(Due::Pulse, NOW + 60_000)]);
    // As it goes on, what asked for that is done; a look in vain is followed by a pause.
    job.go_on_at = None;
    job.looked_at = NOW + 60_001;
    assert_eq!(job.due(), [(Due::Pulse, NOW + 60_001 + PULSE)]);
}

#[test]
fn a_pipeline_is_woken_while_it_runs_and_a_step_wakes_it_once_it_is_decided() {
    let requirement = || Requirement::of("exec", crate::guardrails::Role::Operator);
    for state in State::ALL {
        let mut job = job_in(state);
        assert!(!job.wake(NOW + 9), "it is no pipeline");
        job.order.requirement.steps =
            vec![StepRequirement { pointer: "/steps/0/tool".into(), requirement: requirement() }];
        let before = job.clone();
        assert_eq!(job.wake(NOW + 9), state == Running);
        assert_eq!(job == before, state != Running);
    }
    let mut pipeline = job_in(Running);
    pipeline.order.requirement.steps =
        vec![StepRequirement { pointer: "/steps/0/tool".into(), requirement: requirement() }];
    pipeline.go_on_at = Some(NOW + APPROVAL_LOOK);
    pipeline.wake(NOW + 20);
    pipeline.wake(NOW + 30);
    assert_eq!(pipeline.due()[0], (Due::Pulse, NOW + 20), "the first word counts");

    let mut step = waiting();
    assert_eq!(step.waits_for_it(), None, "it is no step");
    step.job.step_of = Some(StepOf { job_id: "p".into(), step: "a".into() });
    assert_eq!(step.waits_for_it(), None, "it waits itself");
    let told = |change: fn(&mut Stored)| {
        let mut step = step.clone();
        change(&mut step);
        step.waits_for_it().map(|of| of.job_id.clone())
    };
    let pipeline = Some("p".to_owned());
    assert_eq!(told(|step| step.decide(decision(true, "a", NOW + 1)).unwrap()), pipeline);
    assert_eq!(told(|step| step.decide(decision(false, "a", NOW + 1)).unwrap()), pipeline);
    assert_eq!(told(|step| step.expire(NOW + 1_000).unwrap()), pipeline);
    assert_eq!(told(|step| step.cancel(wish(), true).unwrap()), pipeline);
}
