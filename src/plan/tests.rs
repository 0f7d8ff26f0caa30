//! What runs next, from how those before ended.

use serde_json::json;

use super::*;
use crate::error::ErrorCode;
use Condition::{Always, OnFailure, OnSuccess};
use StepState::{AwaitingApproval, Cancelled, Failed, Interrupted, Pending, RolledBack, Running, Skipped, Succeeded};

fn step(name: &str, condition: Condition, can_be_undone: bool) -> Step {
    let undo = RollBack { tool: "exec".into(), arguments: Map::new() };
    Step {
        name: name.into(),
        tool: "exec".into(),
        arguments: Map::new(),
        condition: Some(condition),
        roll_back: can_be_undone.then_some(undo),
        continue_on_error: None,
        expect: Map::new(),
    }
}

/// Three steps that can be undone, and one for either end.
fn steps() -> Vec<Step> {
    vec![
        step("a", OnSuccess, true),
        step("b", OnSuccess, true),
        step("c", OnSuccess, true),
        step("failed", OnFailure, false),
        step("always", Always, false),
    ]
}

fn at(states: &[StepState]) -> Vec<Progress> {
    let has_begun = |state| !matches!(state, Pending | Skipped | Running | AwaitingApproval);
    let call = |state: &StepState| Call { state: *state, has_begun: has_begun(*state), ..Call::default() };
    states.iter().map(|state| Progress { call: call(state), roll_back: None }).collect()
}

fn undone(mut progress: Vec<Progress>, index: usize, state: StepState) -> Vec<Progress> {
    progress[index].roll_back = Some(Call { state, ..Call::default() });
    if (state, progress[index].call.state) == (Succeeded, Succeeded) {
        progress[index].call.state = RolledBack;
    }
    progress
}

#[test]
fn what_runs_next_follows_from_how_those_before_ended() {
    let steps = steps();
    let table = [
        (vec![Pending; 5], Next::Run(0)),
        (vec![Running, Pending, Pending, Pending, Pending], Next::Run(0)),
        (vec![AwaitingApproval, Pending, Pending, Pending, Pending], Next::Run(0)),
        (vec![Succeeded, Pending, Pending, Pending, Pending], Next::Run(1)),
        (vec![Succeeded, Succeeded, Succeeded, Pending, Pending], Next::Skip(3)),
        (vec![Succeeded, Succeeded, Succeeded, Skipped, Pending], Next::Run(4)),
        (vec![Succeeded, Succeeded, Succeeded, Skipped, Succeeded], Next::End(Outcome::Succeeded)),
        (vec![Succeeded, Failed, Pending, Pending, Pending], Next::Skip(2)),
        (vec![Succeeded, Failed, Skipped, Pending, Pending], Next::Run(3)),
        (vec![Succeeded, Failed, Skipped, Succeeded, Pending], Next::Run(4)),
        // The last first, and the one that failed too.
        (vec![Succeeded, Failed, Skipped, Succeeded, Succeeded], Next::RollBack(1)),
        (vec![Succeeded, Interrupted, Skipped, Succeeded, Succeeded], Next::RollBack(1)),
        // What fails after all is done fails the pipeline as well.
        (vec![Succeeded, Succeeded, Succeeded, Skipped, Failed], Next::RollBack(2)),
    ];
    for (states, expected) in table {
        assert_eq!(next(&steps, &at(&states), false), expected, "{states:?}");
    }
}

#[test]
fn roll_backs_run_in_reverse_each_once_and_a_failed_one_keeps_no_other_from_running() {
    let steps = steps();
    let failed = at(&[Succeeded, Succeeded, Failed, Succeeded, Succeeded]);
    assert_eq!(next(&steps, &failed, false), Next::RollBack(2));
    let under_way = undone(failed.clone(), 2, Running);
    assert_eq!(next(&steps, &under_way, false), Next::RollBack(2), "it is gone on with");
    let waiting = undone(failed.clone(), 2, AwaitingApproval);
    assert_eq!(next(&steps, &waiting, false), Next::RollBack(2));
    let one = undone(failed, 2, Failed);
    assert_eq!(next(&steps, &one, false), Next::RollBack(1));
    let two = undone(one, 1, Succeeded);
    assert_eq!((two[1].call.state, next(&steps, &two, false)), (RolledBack, Next::RollBack(0)));
    let all = undone(two, 0, Succeeded);
    assert_eq!(next(&steps, &all, false), Next::End(Outcome::Failed(2)));
    let told = failure(&steps, &all, 2);
    assert_eq!(
        (told.code, &told.details["step"], &told.details["notRolledBack"]),
        (ErrorCode::StepFailed, &json!("c"), &json!(["c"]))
    );
}

#[test]
fn what_never_began_is_not_undone() {
    let steps = steps();
    let mut refused = at(&[Succeeded, Failed, Skipped, Succeeded, Succeeded]);
    refused[1].call.has_begun = false;
    assert_eq!(next(&steps, &refused, false), Next::RollBack(0));
}

#[test]
fn a_failure_may_be_put_up_with_and_an_end_that_was_not_seen_may_not() {
    let mut steps = steps();
    steps[1].continue_on_error = Some(true);
    assert_eq!(next(&steps, &at(&[Succeeded, Failed, Pending, Pending, Pending]), false), Next::Run(2));
    assert_eq!(
        next(&steps, &at(&[Succeeded, Failed, Succeeded, Skipped, Succeeded]), false),
        Next::End(Outcome::Succeeded)
    );
    assert_eq!(next(&steps, &at(&[Succeeded, Interrupted, Pending, Pending, Pending]), false), Next::Skip(2));
}

#[test]
fn a_cancelled_pipeline_begins_no_step_and_is_rolled_back() {
    let steps = steps();
    assert_eq!(next(&steps, &at(&[Succeeded, Running, Pending, Pending, Pending]), true), Next::Run(1));
    assert_eq!(next(&steps, &at(&[Succeeded, Cancelled, Pending, Pending, Pending]), true), Next::Drop(2));
    assert_eq!(next(&steps, &at(&[Succeeded, Cancelled, Cancelled, Cancelled, Pending]), true), Next::Drop(4));
    let dropped = at(&[Succeeded, Cancelled, Cancelled, Cancelled, Cancelled]);
    let mut dropped = undone(dropped, 1, Succeeded);
    dropped[2].call.has_begun = false;
    assert_eq!(next(&steps, &dropped, true), Next::RollBack(0));
    assert_eq!(next(&steps, &undone(dropped, 0, Succeeded), true), Next::End(Outcome::Cancelled));
    // It came too late: everything was done.
    assert_eq!(
        next(&steps, &at(&[Succeeded, Succeeded, Succeeded, Skipped, Succeeded]), true),
        Next::End(Outcome::Succeeded)
    );
    // Nobody saw the end of what was to be cancelled.
    let unseen = undone(undone(at(&[Succeeded, Interrupted, Skipped, Skipped, Skipped]), 0, Succeeded), 1, Succeeded);
    assert_eq!(next(&steps, &unseen, true), Next::End(Outcome::Interrupted(1)));
    // A step that somebody else cancelled fails the pipeline.
    let alone = undone(undone(at(&[Succeeded, Cancelled, Skipped, Skipped, Skipped]), 0, Succeeded), 1, Succeeded);
    assert_eq!(next(&steps, &alone, false), Next::End(Outcome::Failed(1)));
}

#[test]
fn what_was_done_and_not_undone_stays_done_when_a_pipeline_goes_on() {
    let steps = steps();
    let states = |progress: Vec<Progress>| progress.iter().map(|one| one.call.state).collect::<Vec<_>>();
    let failed = at(&[Succeeded, Succeeded, Failed, Succeeded, Succeeded]);
    assert_eq!(states(resumed(&steps, &failed)), [Succeeded, Succeeded, Pending, Pending, Pending]);
    let undone_one = undone(failed.clone(), 1, Succeeded);
    assert_eq!(states(resumed(&steps, &undone_one)), [Succeeded, Pending, Pending, Pending, Pending]);
    // Nobody knows what a roll-back that failed left.
    let half = undone(failed, 0, Failed);
    assert_eq!(states(resumed(&steps, &half)), [Pending, Succeeded, Pending, Pending, Pending]);
}

fn job(state: State, exit_code: Option<i32>) -> Job {
    serde_json::from_value(json!({
        "jobId": "j-s1", "tool": "exec", "state": state, "version": 3, "keyId": "k", "createdAt": 1, "updatedAt": 2, "endedAt": 9,
        "attempts": 1, "exitCode": exit_code,
    }))
    .unwrap()
}

#[test]
fn an_exit_code_and_an_answer_are_held_against_what_is_expected() {
    let end = |exit_code, output: Option<Value>, expect: Value| {
        let Value::Object(expect) = expect else { panic!() };
        let call = ended(Call::default(), &job(State::Succeeded, exit_code), true, output.as_ref(), &expect);
        assert!(call.has_begun && call.ended_at == Some(9));
        (call.state, call.error.map(|error| error.message))
    };
    assert_eq!(end(Some(0), None, json!({})), (Succeeded, None));
    assert_eq!(end(None, None, json!({})), (Succeeded, None));
    assert_eq!(end(Some(3), None, json!({})), (Failed, Some("the command ended with exit code 3".into())));
    assert_eq!(end(Some(3), None, json!({ "exitCode": 3 })), (Succeeded, None));
    assert_eq!(end(Some(0), None, json!({ "exitCode": 3 })).1.unwrap(), "exitCode is not what the step expects");
    let output = Some(json!({ "created": false }));
    assert_eq!(end(None, output.clone(), json!({ "created": false })), (Succeeded, None));
    assert_eq!(
        end(None, output.clone(), json!({ "created": true })).1.unwrap(),
        "created is not what the step expects"
    );
    assert_eq!(end(None, output, json!({ "other": 1 })).1.unwrap(), "other is not what the step expects");
    assert!(end(None, None, json!({ "created": true })).1.unwrap().contains("too long"));
}

#[test]
fn a_call_stands_as_its_job_ended() {
    let table = [
        (State::Interrupted, Interrupted),
        (State::Cancelled, Cancelled),
        (State::Failed, Failed),
        (State::Rejected, Failed),
    ];
    for (state, expected) in table {
        assert_eq!(ended(Call::default(), &job(state, None), true, None, &Map::new()).state, expected, "{state:?}");
    }
}

#[test]
fn a_refused_call_is_asked_for_again_for_an_hour_and_never_given_up_as_undone_when_it_may_have_begun() {
    let asked = Call { state: Running, call_id: Some("j-s1".into()), started_at: Some(0), ..Call::default() };
    let over = |error: Error, is_unwanted, now| match refused(asked.clone(), error, is_unwanted, now) {
        Refused::AskAgain(at) => Err(at),
        Refused::Over(call) => Ok((call.state, call.has_begun)),
    };
    let limited = || Error::new(ErrorCode::RateLimited, "wait");
    assert_eq!(over(limited(), false, 0), Err(SHORTEST_PAUSE));
    assert_eq!(over(Error { retry_after: Some(30), ..limited() }, false, 0), Err(30_000));
    assert_eq!(over(limited(), false, 1_000_000), Err(1_060_000));
    assert_eq!(over(limited(), false, PATIENCE), Ok((Failed, false)));
    assert_eq!(over(limited(), true, 0), Ok((Cancelled, false)));
    assert_eq!(over(Error::new(ErrorCode::Forbidden, "no"), false, 0), Ok((Failed, false)));
    // Whoever made the job may not have heard of it.
    for lost in [Error::new(ErrorCode::OutcomeUnknown, "lost"), Error::internal("x").detail("jobId", "j-s1")] {
        assert_eq!(over(lost.clone(), true, 0), Err(SHORTEST_PAUSE));
        assert_eq!(over(lost, false, PATIENCE), Ok((Interrupted, true)));
    }
}

#[test]
fn a_call_has_one_id_whoever_asks_for_it() {
    assert_eq!((call_id("j", 0, false), call_id("j-2", 2, true)), ("j-s1".to_owned(), "j-2-r3".to_owned()));
}

#[test]
fn what_a_step_answered_instead_is_in_no_message() {
    let Value::Object(expect) = json!({ "stdout": "yes" }) else { panic!() };
    let output = json!({ "stdout": format!("hunter2{}", "é".repeat(200)) });
    let call = ended(Call::default(), &job(State::Succeeded, Some(0)), true, Some(&output), &expect);
    let error = call.error.clone().unwrap();
    assert!(!error.message.contains("hunter2") && !error.message.contains("yes"), "{}", error.message);
    let actual = error.details["actual"].as_str().unwrap();
    assert!(actual.starts_with("hunter2é") && actual.ends_with("é…") && actual.len() < 210, "{actual}");
    assert_eq!(error.details["field"], "stdout");
    // Nor in that of the pipeline, whose details are for who may call the tools of its steps.
    let told = failure(&steps(), &[Progress { call, roll_back: None }], 0);
    assert!(!told.message.contains("hunter2") && told.details["actual"] == actual, "{told:?}");
    assert_eq!(told.details["step"], "a");
}

#[test]
fn a_step_that_did_nothing_is_not_undone_however_it_ended() {
    let steps = vec![step("a", OnSuccess, true)];
    let Value::Object(expect) = json!({ "created": true }) else { panic!() };
    let found = json!({ "created": false });
    let next_after = |state, may_have_acted, output: Option<&Value>| {
        let call = ended(Call::default(), &job(state, None), may_have_acted, output, &expect);
        next(&steps, &[Progress { call, roll_back: None }], false)
    };
    // The answer is not the one that was expected, and says that nothing was made.
    assert_eq!(next_after(State::Succeeded, false, Some(&found)), Next::End(Outcome::Failed(0)));
    assert_eq!(next_after(State::Succeeded, true, Some(&found)), Next::RollBack(0));
    assert_eq!(next_after(State::Failed, false, None), Next::End(Outcome::Failed(0)));
    assert_eq!(next_after(State::Failed, true, None), Next::RollBack(0));
    assert_eq!(next_after(State::Interrupted, true, None), Next::RollBack(0));
    // It succeeded and did nothing, and another one failed.
    let quiet = ended(Call::default(), &job(State::Succeeded, None), false, Some(&found), &Map::new());
    let mut progress = at(&[Succeeded, Failed]);
    progress[0].call = quiet;
    let two = vec![step("a", OnSuccess, true), step("b", OnSuccess, true)];
    let progress = undone(progress, 1, Succeeded);
    assert_eq!(next(&two, &progress, false), Next::End(Outcome::Failed(1)));
    assert_eq!(progress[0].call.state, Succeeded);
}

#[test]
fn a_step_that_waits_for_an_approval_says_so_and_is_not_asked_for_again() {
    let asked = Call { state: Running, call_id: Some("j-s1".into()), started_at: Some(5), ..Call::default() };
    let waiting = asked.seen(State::AwaitingApproval);
    assert_eq!((waiting.state, waiting.is_a_job, waiting.started_at), (AwaitingApproval, true, Some(5)));
    assert!(waiting.is_under_way() && waiting.seen(State::AwaitingApproval) == waiting);
    assert_eq!(serde_json::to_value(waiting.state).unwrap(), "awaiting_approval", "the word of its job");
    for state in [State::Queued, State::Running, State::Rejected] {
        assert_eq!((waiting.seen(state).state, waiting.seen(state).is_a_job), (Running, true), "{state:?}");
    }
    // What an earlier release stored of a call that runs is asked for once more.
    let stored: Call = serde_json::from_value(json!({ "state": "running", "callId": "j-s1" })).unwrap();
    assert!(stored.is_under_way() && !stored.is_a_job);
}
