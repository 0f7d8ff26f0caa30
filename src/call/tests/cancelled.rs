//! Calls that their caller ends from another connection.

use super::super::cancel::{CANCELLED, Cancellable};
use super::*;
use crate::job::record::KILLED;

fn marked(double: &Double) -> CallHead {
    assert!(double.0.cancelled.borrow().is_empty());
    CallHead { mark: Some("digest".into()), patience: Some(Duration::from_secs(50)), ..head(KEY) }
}

fn cancel(double: &Double, marked: Option<Marked>) -> Result<()> {
    *double.0.marked.borrow_mut() = marked;
    let head = self::marked(double);
    tools::registry().cancel(double, &head).now_or_never().expect("the double never waits")
}

#[test]
fn a_call_is_admitted_with_its_mark_and_until_when_its_caller_waits() {
    let double = Double::default();
    let arguments = Ok(json!({ "sandboxId": "box", "command": "true" }));
    drop(answered(&double, ToolCall { head: marked(&double), tool: "exec".into(), arguments }));
    let mark = double.0.intents.borrow()[0].mark.clone().unwrap();
    assert_eq!((mark.digest.as_str(), mark.until), ("digest", 51_000));
    drop(call(&double, KEY, "listSandboxes", Ok(json!({}))));
    assert_eq!(double.0.intents.borrow()[1].mark, None);
}

#[test]
fn a_job_that_its_caller_waits_for_is_cancelled_by_its_key() {
    let double = Double::default();
    cancel(&double, Some(Marked::Job { job_id: "job-1".into() })).unwrap();
    let (job_id, wish) = double.0.cancelled.borrow()[0].clone();
    assert_eq!((job_id.as_str(), wish.key_id.as_str(), wish.at), ("job-1", "root", 1_000));
}

#[test]
fn what_is_not_found_is_left_alone_and_a_stranger_finds_nothing() {
    for nothing in [None, Some(Marked::Nothing), Some(Marked::Call { call_id: "c".into(), sandbox_id: None })] {
        let double = Double::default();
        cancel(&double, nothing).unwrap();
        assert!(double.0.cancelled.borrow().is_empty() && double.0.logged.borrow().is_empty());
    }
    let double = Double::default();
    *double.0.marked.borrow_mut() = Some(Marked::Job { job_id: "job-1".into() });
    let head = CallHead { mark: Some("digest".into()), ..head("0123456789abcdef-wrong") };
    let refused = tools::registry().cancel(&double, &head).now_or_never().unwrap();
    assert_eq!(refused.unwrap_err().code, ErrorCode::Unauthenticated);
    assert!(double.0.cancelled.borrow().is_empty());
}

#[test]
fn only_what_was_ended_for_its_caller_says_so() {
    let double = Double::default();
    let (tenant, platform) = (double.tenant("default"), double.platform());
    let told = |error: Error| {
        let cancellable = Cancellable::new(Rc::new(NoEvents), tenant.clone(), platform.clone(), "call-1");
        let answered = Answered { result: Err::<(), _>(error), standing: None, is_replayed: false, has_begun: true };
        cancellable.told(answered).result.unwrap_err()
    };
    let killed = told(Error::new(ErrorCode::Interrupted, "killed").detail("reason", KILLED).detail("stdout", "so far"));
    assert_eq!((&killed.details["reason"], &killed.details["stdout"]), (&json!(CANCELLED), &json!("so far")));
    let replaced = Error::new(ErrorCode::Interrupted, "the sandbox was replaced");
    assert_eq!(told(replaced.clone()), replaced);
    let other = Error::new(ErrorCode::OutcomeUnknown, "nobody knows").detail("reason", KILLED);
    assert_eq!(told(other.clone()), other);
}
