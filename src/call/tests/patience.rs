//! Callers that wait for a while: what may last longer is a job from its beginning.

use super::*;
use crate::job::record::Order;

/// A command of this timeout, for a caller that waits for 90 seconds.
fn asked(double: &Double, timeout: u32, patience: u64) -> Answered<Reply<Value>> {
    let head = CallHead { patience: Some(Duration::from_secs(patience)), ..head(KEY) };
    let arguments = Ok(json!({ "sandboxId": "box", "command": "true", "timeout": timeout }));
    answered(double, ToolCall { head, tool: "exec".into(), arguments })
}

/// What a job tells that has this state.
fn told(state: State, error: Option<Error>, output: Option<Value>) -> Told {
    let double = Double::default();
    asked(&double, 91, 0);
    let Seed { job, order, .. } = double.0.seeds.borrow()[0].clone();
    let order = Order { tenant: "default".into(), ..order };
    Told { job: Job { state, error, ..job }, order, output, details: None, steps: Vec::new() }
}

fn manners(double: &Double) -> Vec<Manner> {
    double.0.intents.borrow().iter().map(|request| request.manner).collect()
}

#[test]
fn what_is_short_enough_is_no_job_and_what_may_outlast_the_caller_is_one() {
    let double = Double::default();
    drop(asked(&double, 90, 90));
    drop(asked(&double, 91, 90));
    drop(asked(&double, 1, 0));
    assert_eq!(manners(&double), [Manner::Ordinary, Manner::Deferred, Manner::Deferred]);
    // One that cannot be a job is none, however long it may last.
    let head = CallHead { patience: Some(Duration::ZERO), ..head(KEY) };
    let call = ToolCall { head, tool: "listSandboxes".into(), arguments: Ok(json!({})) };
    answered(&double, call).result.unwrap();
    assert_eq!(manners(&double).last(), Some(&Manner::Ordinary));
}

#[test]
fn the_answer_is_the_jobs_where_it_is_over_in_time() {
    let double = Double::default();
    let output = json!({ "exitCode": 0 });
    let ended = told(State::Succeeded, None, Some(output.clone()));
    *double.0.waits.borrow_mut() = vec![ended, told(State::Running, None, None)];
    assert_eq!(asked(&double, 91, 90).result.unwrap(), Reply::Output(output));
    let error = Error::new(ErrorCode::Timeout, "the command took too long");
    *double.0.waits.borrow_mut() = vec![told(State::Failed, Some(error), None)];
    assert_eq!(code(&self::output(asked(&double, 91, 90).result)), Some(ErrorCode::Timeout));
}

#[test]
fn the_answer_is_the_job_where_it_goes_on_or_its_end_cannot_be_told() {
    let over = told(State::Succeeded, None, None);
    for (waits, state) in [(vec![over], State::Succeeded), (vec![told(State::Running, None, None)], State::Running)] {
        let double = Double::default();
        *double.0.waits.borrow_mut() = waits;
        let Ok(Reply::Job(job)) = asked(&double, 91, 90).result else { panic!("it is a job") };
        assert_eq!(job.state, state);
    }
    // A caller that does not wait asks nobody.
    let double = Double::default();
    *double.0.waits.borrow_mut() = vec![told(State::Succeeded, None, Some(json!({})))];
    assert!(matches!(asked(&double, 91, 0).result, Ok(Reply::Job(_))));
    assert_eq!(double.0.waits.borrow().len(), 1);
}
