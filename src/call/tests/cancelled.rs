//! Calls that their caller ends from another connection.

use super::super::cancel::{CANCELLED, Cancellable};
use super::*;
use crate::events::{Event, EventSink};
use crate::job::record::KILLED;
use crate::tenant::key::SecretDigest;

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

fn root() -> Principal {
    Principal { tenant: "default".into(), key_id: "root".into(), credential: Credential::Root }
}

fn holder() -> Principal {
    let credential = Credential::Key { secret: SecretDigest::of("secret") };
    Principal { tenant: "default".into(), key_id: "k".into(), credential }
}

fn around(double: &Double, head: &CallHead, who: &Principal) -> Option<Cancellable> {
    let events: Rc<dyn EventSink> = Rc::new(NoEvents);
    Cancellable::around(&events, double, head, who)
}

fn goes_on(cancellable: &Cancellable) -> bool {
    cancellable.emit(Event::Heartbeat).now_or_never().expect("the double never waits").is_ok()
}

#[test]
fn only_what_was_ended_for_its_caller_says_so() {
    let double = Double::default();
    let told = |error: Error| {
        let cancellable = around(&double, &marked(&double), &root()).unwrap();
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

#[test]
fn a_call_whose_key_ended_ends_at_its_next_event_and_tells_nothing_more() {
    let double = Double::default();
    let revoked = Error::new(ErrorCode::Unauthenticated, "the key was revoked");
    *double.0.wanted.borrow_mut() = Some(Wanted::KeyEnded(revoked));
    let cancellable = around(&double, &head(KEY), &holder()).unwrap();
    double.0.later.set(9_999);
    assert!(goes_on(&cancellable) && double.0.looks.borrow().is_empty(), "not every event is a question");
    double.0.later.set(10_000);
    assert!(!goes_on(&cancellable) && !goes_on(&cancellable));
    let looks = double.0.looks.borrow();
    assert_eq!(*looks, [WantedRequest { call_id: "call-1".into(), key_id: "k".into(), at: 11_000 }]);
    let told = |result: Result<()>| {
        cancellable.told(Answered { result, standing: None, is_replayed: false, has_begun: true }).result
    };
    let killed = Error::new(ErrorCode::Interrupted, "the command was ended").detail("stdout", "so far");
    let error = told(Err(killed)).unwrap_err();
    assert_eq!((error.code, error.details.len()), (ErrorCode::Unauthenticated, 0));
    assert!(error.message.starts_with("the key was revoked"), "{}", error.message);
    assert_eq!(told(Ok(())), Ok(()), "what ended by itself has ended as it did");
    let unknown = Error::new(ErrorCode::OutcomeUnknown, "nobody saw it");
    assert_eq!(told(Err(unknown.clone())), Err(unknown));
}

#[test]
fn a_call_is_looked_at_where_its_caller_or_its_key_may_end_it() {
    let double = Double::default();
    assert!(around(&double, &head(KEY), &root()).is_none(), "the root key does not end");
    let cancellable = around(&double, &marked(&double), &root()).unwrap();
    *double.0.wanted.borrow_mut() = Some(Wanted::Cancelled);
    double.0.later.set(4_000);
    assert!(!goes_on(&cancellable));
    *double.0.wanted.borrow_mut() = None;
    let cancellable = around(&double, &head(KEY), &holder()).unwrap();
    double.0.later.set(60_000);
    assert!(goes_on(&cancellable));
}
