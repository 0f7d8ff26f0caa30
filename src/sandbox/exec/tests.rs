//! Faults at the seam between a command's caller and its sandbox, told by a double that follows a script.

use std::cell::RefCell;
use std::rc::Rc;

use futures_util::FutureExt;
use futures_util::future::{LocalBoxFuture, ready};
use sandbox_api::{EndedBy, ExecExit, ExecRequest};

use super::{Exec, may_be_told_later};
use crate::doubles::{Answer, End, Script};
use crate::error::{Error, ErrorCode, Result};
use crate::events::{Channel, Event, EventSink, Process, ReaderGone, Resumed};
use crate::identifier::SandboxId;
use crate::sse::encode;

/// Keeps what it is told, and leaves after `patience` events.
struct Reader {
    events: RefCell<Vec<Event>>,
    patience: usize,
}

impl EventSink for Reader {
    fn streams(&self) -> bool {
        true
    }

    fn emit(&self, event: Event) -> LocalBoxFuture<'_, std::result::Result<(), ReaderGone>> {
        let gone = self.events.borrow().len() >= self.patience;
        self.events.borrow_mut().push(event);
        ready(if gone { Err(ReaderGone) } else { Ok(()) }).boxed_local()
    }
}

struct Run {
    result: Result<ExecExit>,
    output: Vec<u8>,
    requests: Vec<(String, String, Option<String>)>,
}

fn run(answers: Vec<Answer>) -> Run {
    run_with_reader(answers, usize::MAX)
}

fn run_with_reader(answers: Vec<Answer>, patience: usize) -> Run {
    let reader = Rc::new(Reader { events: RefCell::default(), patience });
    let (script, services) = Script::of(answers);
    let request =
        ExecRequest { id: "call-1".into(), command: Some("x".into()), timeout_ms: 1000, ..ExecRequest::default() };
    let exec = Exec::new(services, SandboxId::parse("box").unwrap(), request, reader.clone());
    let result = exec.run().now_or_never().expect("the double never waits");
    let output = reader.events.borrow().iter().fold(Vec::new(), |mut all, event| {
        if let Event::Output { channel: Channel::Stdout, bytes, offset, .. } = event {
            assert_eq!(*offset, all.len() as u64, "no gap and no repeat");
            all.extend_from_slice(bytes);
        }
        all
    });
    let requests = script.seen.borrow().clone();
    Run { result, output, requests }
}

fn started() -> String {
    encode("started", r#"{"id":"call-1","pid":7,"bootId":"boot-1"}"#)
}

fn stdout(text: &str, offset: u64) -> String {
    encode("stdout", &serde_json::json!({ "data": text, "encoding": "utf-8", "offset": offset }).to_string())
}

fn exit(code: i32) -> String {
    let exit = ExecExit {
        id: "call-1".into(),
        exit_code: Some(code),
        signal: None,
        ended_by: EndedBy::Exit,
        out_of_memory: false,
        out_of_disk: false,
        stdout: Default::default(),
        stderr: Default::default(),
        duration_ms: 3,
    };
    encode("exit", &serde_json::to_string(&exit).unwrap())
}

fn stream(events: &[String], end: End) -> Answer {
    Answer::Stream(vec![events.concat().into_bytes()], end)
}

fn code(run: &Run) -> Option<ErrorCode> {
    run.result.as_ref().err().map(|error| error.code)
}

#[test]
fn the_exit_of_the_sandbox_is_the_outcome() {
    let run = run(vec![stream(&[started(), stdout("hi\n", 0), exit(3)], End::Clean)]);
    assert_eq!(run.result.unwrap().exit_code, Some(3));
    assert_eq!(run.output, b"hi\n");
    assert_eq!(run.requests.len(), 1);
}

#[test]
fn a_broken_stream_is_taken_up_where_it_broke() {
    for end in [End::Clean, End::Broken, End::Silent] {
        let run = run(vec![
            stream(&[started(), stdout("one ", 0), stdout("two ", 4)], end),
            stream(&[started(), stdout("two three", 4), exit(0)], End::Clean),
        ]);
        assert_eq!(run.result.unwrap().exit_code, Some(0));
        assert_eq!(run.output, b"one two three");
        let (method, path, boot) = &run.requests[1];
        assert_eq!((method.as_str(), path.as_str()), ("GET", "/v1/execs/call-1?stdoutOffset=8&stderrOffset=0"));
        assert_eq!(boot.as_deref(), Some("boot-1"));
    }
}

#[test]
fn a_stream_without_its_terminal_event_is_never_a_success() {
    let answers = (0..10).map(|_| stream(&[started(), stdout("x", 0)], End::Clean)).collect();
    let run = run(answers);
    assert_eq!(code(&run), Some(ErrorCode::OutcomeUnknown));
    assert!(!run.result.unwrap_err().retryable, "it may have run");
    assert_eq!(run.requests.len(), 3, "the number of requests is bounded");
}

#[test]
fn a_replaced_sandbox_interrupts_and_is_not_asked_to_run_again() {
    let stale = Error::new(ErrorCode::StaleGeneration, "another boot");
    let run = run(vec![stream(&[started()], End::Broken), Answer::Refuse(stale)]);
    assert_eq!(code(&run), Some(ErrorCode::Interrupted));
    assert!(!run.result.unwrap_err().retryable);
    assert_eq!(run.requests.iter().filter(|(method, ..)| method == "POST").count(), 1);
}

#[test]
fn a_command_that_is_gone_on_with_is_never_begun() {
    let going_on = |answers| {
        let reader = Rc::new(Reader { events: RefCell::default(), patience: usize::MAX });
        let (script, services) = Script::of(answers);
        let request = ExecRequest { id: "call-1".into(), timeout_ms: 1000, ..ExecRequest::default() };
        let sandbox_id = SandboxId::parse("box").unwrap();
        let process = Process { sandbox_id: sandbox_id.clone(), boot_id: "boot-1".into() };
        let exec = Exec::new(services, sandbox_id, request, reader).going_on(Resumed { process, passed_on: [5, 0] });
        let result = exec.run().now_or_never().expect("the double never waits");
        let requests = script.seen.borrow().clone();
        assert!(requests.iter().all(|(method, _, boot)| method == "GET" && boot.as_deref() == Some("boot-1")));
        assert_eq!(requests[0].1, "/v1/execs/call-1?stdoutOffset=5&stderrOffset=0");
        result
    };
    assert_eq!(going_on(vec![stream(&[started(), exit(3)], End::Clean)]).unwrap().exit_code, Some(3));
    let code = |refusal| going_on(vec![Answer::Refuse(refusal)]).unwrap_err().code;
    assert_eq!(code(Error::new(ErrorCode::StaleGeneration, "another boot")), ErrorCode::Interrupted);
    let forgotten = Error::new(ErrorCode::NotFound, "no such exec").detail("reason", "not_found");
    assert_eq!(code(forgotten), ErrorCode::OutcomeUnknown);
    let broken = (0..5).map(|_| stream(&[started()], End::Broken)).collect();
    assert_eq!(going_on(broken).unwrap_err().code, ErrorCode::OutcomeUnknown);
}

#[test]
fn a_destroyed_sandbox_interrupts() {
    let gone = Error::new(ErrorCode::NotFound, "the sandbox is being destroyed");
    let run = run(vec![stream(&[started()], End::Broken), Answer::Refuse(gone)]);
    assert_eq!(code(&run), Some(ErrorCode::Interrupted));
    let forgotten = Error::new(ErrorCode::NotFound, "no such exec").detail("reason", "not_found");
    let run = self::run(vec![stream(&[started()], End::Broken), Answer::Refuse(forgotten)]);
    assert_eq!(code(&run), Some(ErrorCode::OutcomeUnknown));
}

#[test]
fn a_lost_request_is_sent_again_with_its_id_to_the_same_boot_only() {
    let lost = Error::new(ErrorCode::OutcomeUnknown, "no answer").detail("bootId", "boot-9");
    let run = run(vec![Answer::Refuse(lost), stream(&[started(), exit(0)], End::Clean)]);
    assert!(run.result.is_ok());
    assert_eq!(run.requests[1], ("POST".into(), "/v1/execs".into(), Some("boot-9".into())));
}

#[test]
fn a_lost_request_of_unknown_boot_is_not_sent_again() {
    let lost = Error::new(ErrorCode::OutcomeUnknown, "no answer");
    let run = run(vec![Answer::Refuse(lost), stream(&[started(), exit(0)], End::Clean)]);
    assert_eq!(code(&run), Some(ErrorCode::OutcomeUnknown));
    assert_eq!(run.requests.len(), 1);
}

#[test]
fn a_reset_of_the_object_in_the_middle_of_a_command_is_bridged_and_one_at_its_start_is_told() {
    let reset = || Answer::Refuse(Error::new(ErrorCode::ObjectUnavailable, "reset"));
    let broken = stream(&[started(), stdout("one ", 0)], End::Broken);
    let bridged = run(vec![broken, reset(), stream(&[started(), stdout("two", 4), exit(0)], End::Clean)]);
    assert_eq!(bridged.result.unwrap().exit_code, Some(0));
    assert_eq!(bridged.output, b"one two");
    assert_eq!(bridged.requests.iter().filter(|(method, ..)| method == "POST").count(), 1);
    let told = run(vec![reset(), stream(&[started(), exit(0)], End::Clean)]);
    assert_eq!(code(&told), Some(ErrorCode::ObjectUnavailable), "nobody knows whether it began, or where");
    assert_eq!(told.requests.len(), 1);
}

#[test]
fn what_was_not_answered_may_be_told_later_and_what_is_over_is_not() {
    let later = |refusal: Error| may_be_told_later(&run(vec![Answer::Refuse(refusal)]).result.unwrap_err());
    let reset = Error::new(ErrorCode::ObjectUnavailable, "reset").detail("reason", "reset");
    assert!(!may_be_told_later(&reset), "no command is named");
    assert!(later(reset.clone()));
    assert_eq!(run(vec![Answer::Refuse(reset)]).result.unwrap_err().details["reason"], "reset");
    assert!(later(Error::new(ErrorCode::OutcomeUnknown, "no answer")));
    assert!(!later(Error::new(ErrorCode::SandboxUnavailable, "no room")), "it did not begin");
    let forgotten = Error::new(ErrorCode::NotFound, "no such exec").detail("reason", "not_found");
    let run = run(vec![stream(&[started()], End::Broken), Answer::Refuse(forgotten)]);
    assert!(!may_be_told_later(&run.result.unwrap_err()), "the daemon does not know it any more");
}

#[test]
fn a_refusal_before_anything_began_is_passed_on() {
    for refusal in [ErrorCode::SandboxUnavailable, ErrorCode::InvalidArguments, ErrorCode::QuotaExceeded] {
        let run = run(vec![Answer::Refuse(Error::new(refusal, "no"))]);
        assert_eq!(code(&run), Some(refusal));
        assert_eq!(run.requests.len(), 1);
    }
}

#[test]
fn characters_cut_by_the_network_arrive_whole() {
    let wire = [started(), stdout("café ☕", 0), exit(0)].concat().into_bytes();
    let pieces = wire.iter().map(|byte| vec![*byte]).collect();
    let run = run(vec![Answer::Stream(pieces, End::Clean)]);
    assert_eq!(run.output, "café ☕".as_bytes());
}

#[test]
fn an_unreadable_event_is_not_an_outcome() {
    let run = run(vec![stream(&[started(), encode("exit", r#"{"exitCode":"0"}"#)], End::Clean)]);
    assert_eq!(code(&run), Some(ErrorCode::OutcomeUnknown));
}

#[test]
fn a_reader_that_leaves_ends_the_command() {
    let answers =
        vec![stream(&[started(), stdout("a", 0), stdout("b", 1)], End::Silent), Answer::Stream(Vec::new(), End::Clean)];
    let run = run_with_reader(answers, 1);
    assert_eq!(code(&run), Some(ErrorCode::Interrupted));
    let (method, path, _) = run.requests.last().unwrap();
    assert_eq!((method.as_str(), path.as_str()), ("POST", "/v1/execs/call-1/kill"));
}
