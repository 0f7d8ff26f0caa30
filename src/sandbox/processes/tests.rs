//! Faults at the seam between the tools on processes and the sandbox, told by a double that follows a script.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{LocalBoxFuture, ready};
use sandbox_api::{ProcessInfo, ProcessKill, ProcessRequest, ProcessStatus, RestartPolicy, WaitOutcome};
use serde_json::json;

use super::{Condition, Handle, Processes};
use crate::doubles::{Answer, End, Script, Seen};
use crate::error::{Error, ErrorCode, Result};
use crate::events::{Event, EventSink, ReaderGone};
use crate::identifier::SandboxId;
use crate::sandbox::state::State;
use crate::sse::encode;

/// A whole answer.
fn body(text: String) -> Answer {
    Answer::Stream(vec![text.into_bytes()], End::Clean)
}

/// An answer that breaks off after that.
fn broken(text: String) -> Answer {
    Answer::Stream(vec![text.into_bytes()], End::Broken)
}

/// Keeps what it is told, and leaves after `patience` events.
struct Reader {
    told: RefCell<Vec<u8>>,
    patience: RefCell<usize>,
}

impl EventSink for Reader {
    fn streams(&self) -> bool {
        true
    }

    fn emit(&self, event: Event) -> LocalBoxFuture<'_, std::result::Result<(), ReaderGone>> {
        let mut patience = self.patience.borrow_mut();
        if *patience == 0 {
            return ready(Err(ReaderGone)).boxed_local();
        }
        *patience -= 1;
        if let Event::Output { bytes, offset, .. } = event {
            assert_eq!(offset, self.told.borrow().len() as u64, "no gap and no repeat");
            self.told.borrow_mut().extend(bytes);
        }
        ready(Ok(())).boxed_local()
    }
}

fn processes(answers: Vec<Answer>) -> (Processes, Rc<Script>) {
    let (script, services) = Script::of(answers);
    (Processes::new(services, SandboxId::parse("box").unwrap()), script)
}

fn handle() -> Handle {
    Handle { boot_id: "boot-1".into(), id: "p1".into() }
}

fn info(status: ProcessStatus) -> ProcessInfo {
    ProcessInfo {
        id: "p1".into(),
        boot_id: "boot-1".into(),
        name: "x".into(),
        command: "x".into(),
        status,
        pid: Some(7),
        created_at: String::new(),
        started_at: String::new(),
        ended_at: None,
        restart_policy: RestartPolicy::Never,
        restarts: 0,
        restart_in_ms: None,
        exit_code: None,
        signal: None,
        ended_by: None,
        out_of_memory: false,
        out_of_disk: false,
        error: None,
        left_behind: false,
        stdin_open: false,
        log_bytes: 0,
    }
}

fn running() -> Answer {
    body(serde_json::to_string(&info(ProcessStatus::Running)).unwrap())
}

fn lost(boot_id: Option<&str>) -> Answer {
    let error = Error::new(ErrorCode::OutcomeUnknown, "no answer");
    Answer::Refuse(match boot_id {
        Some(boot_id) => error.detail("bootId", boot_id),
        None => error,
    })
}

fn refuse(code: ErrorCode) -> Answer {
    Answer::Refuse(Error::new(code, "no"))
}

fn request() -> ProcessRequest {
    ProcessRequest { id: Some("p1".into()), name: "x".into(), command: Some("x".into()), ..ProcessRequest::default() }
}

fn start(answers: Vec<Answer>) -> (Result<ProcessInfo>, Vec<Seen>) {
    let (processes, script) = processes(answers);
    let result = processes.start(&request()).now_or_never().unwrap();
    let seen = script.seen.borrow().clone();
    (result, seen)
}

#[test]
fn a_lost_start_is_sent_again_with_its_id_to_the_same_boot_only() {
    let (result, seen) = start(vec![lost(Some("boot-9")), running()]);
    assert_eq!(result.unwrap().pid, Some(7));
    assert_eq!(seen[1], ("POST".into(), "/v1/processes".into(), Some("boot-9".into())));
    let (result, seen) = start(vec![broken("{".into()), running()]);
    assert!(result.is_ok() && seen[1].2.as_deref() == Some("boot-1"));
    let (result, seen) = start(vec![lost(None), running()]);
    assert_eq!((result.unwrap_err().code, seen.len()), (ErrorCode::OutcomeUnknown, 1));
}

#[test]
fn a_start_that_is_never_answered_has_an_unknown_outcome_after_a_bounded_number_of_requests() {
    let (result, seen) = start((0..9).map(|_| lost(Some("boot-1"))).collect());
    let error = result.unwrap_err();
    assert_eq!((error.code, error.retryable, seen.len()), (ErrorCode::OutcomeUnknown, false, 3));
}

#[test]
fn a_start_whose_sandbox_was_replaced_is_interrupted_and_a_refusal_is_passed_on() {
    let (result, _) = start(vec![lost(Some("boot-1")), refuse(ErrorCode::StaleGeneration)]);
    assert_eq!(result.unwrap_err().code, ErrorCode::Interrupted);
    for code in [ErrorCode::QuotaExceeded, ErrorCode::InvalidArguments, ErrorCode::SandboxUnavailable] {
        let (result, seen) = start(vec![refuse(code), running()]);
        assert_eq!((result.unwrap_err().code, seen.len()), (code, 1));
    }
}

#[test]
fn a_process_of_an_earlier_start_is_stale_and_an_unknown_one_is_named() {
    let (stale, script) = processes(vec![refuse(ErrorCode::StaleGeneration)]);
    let error = stale.get(&handle()).now_or_never().unwrap().unwrap_err();
    assert_eq!((error.code, &error.details["processId"]), (ErrorCode::StaleGeneration, &json!("boot-1.p1")));
    assert_eq!(script.seen.borrow()[0], ("GET".into(), "/v1/processes/p1".into(), Some("boot-1".into())));
    let unknown = Error::new(ErrorCode::NotFound, "no such process").detail("reason", "not_found");
    let (gone, _) = processes(vec![Answer::Refuse(unknown)]);
    let kill = ProcessKill::default();
    let error = gone.kill(&handle(), &kill).now_or_never().unwrap().unwrap_err();
    assert!(error.code == ErrorCode::NotFound && error.message.contains("boot-1.p1"), "{error}");
    for text in ["", "x", "a.b.c", "a/b.c", ".x", "x.", "a.é", &"x".repeat(200)] {
        assert_eq!(Handle::parse(text).unwrap_err().code, ErrorCode::NotFound, "{text}");
    }
    assert_eq!(Handle::parse("boot-1.p1"), Ok(handle()));
}

#[test]
fn a_sandbox_that_does_not_run_has_no_processes_and_is_not_asked() {
    for state in [State::Created, State::Sleeping, State::Error, State::Starting] {
        let (processes, script) = processes(Vec::new());
        script.state.replace(Some(state));
        assert_eq!(processes.list().now_or_never().unwrap(), Ok(None), "{state:?}");
        assert!(script.seen.borrow().is_empty());
    }
    let (processes, script) = processes(vec![body(r#"{"processes":[]}"#.into())]);
    assert_eq!(processes.list().now_or_never().unwrap(), Ok(Some(Vec::new())));
    assert_eq!(script.seen.borrow()[0].2.as_deref(), Some("boot-1"));
}

fn stdout(text: &str, offset: u64) -> String {
    encode("stdout", &json!({ "data": text, "encoding": "utf-8", "offset": offset }).to_string())
}

#[test]
fn followed_logs_are_taken_up_where_they_broke_and_end_with_the_process() {
    let end = json!({ "nextOffset": 7, "process": info(ProcessStatus::Exited) }).to_string();
    let second = [encode("stderr", &json!({"data": "two", "offset": 4}).to_string()), encode("end", &end)].concat();
    let (processes, script) = processes(vec![broken(stdout("one ", 0)), body(second)]);
    let reader = Rc::new(Reader { told: RefCell::default(), patience: RefCell::new(usize::MAX) });
    let sink: Rc<dyn EventSink> = reader.clone();
    let followed = processes.follow(&handle(), 0, Duration::from_secs(60), &sink).now_or_never().unwrap().unwrap();
    assert_eq!((followed.next_offset, followed.ended.map(|it| it.status)), (7, Some(ProcessStatus::Exited)));
    assert_eq!(*reader.told.borrow(), b"one two");
    assert_eq!(script.seen.borrow()[1].1, "/v1/processes/p1/logs?offset=4");
}

#[test]
fn a_reader_that_leaves_asks_nothing_more_of_the_process() {
    let (processes, script) = processes(vec![body([stdout("a", 0), stdout("b", 1)].concat())]);
    let sink: Rc<dyn EventSink> = Rc::new(Reader { told: RefCell::default(), patience: RefCell::new(1) });
    let error = processes.follow(&handle(), 0, Duration::from_secs(60), &sink).now_or_never().unwrap().unwrap_err();
    assert_eq!((error.code, script.seen.borrow().len()), (ErrorCode::Interrupted, 1));
}

#[test]
fn a_stream_without_its_terminal_event_is_no_answer() {
    let (processes, script) = processes((0..9).map(|_| body(encode("heartbeat", "{}"))).collect());
    let sink: Rc<dyn EventSink> = Rc::new(Reader { told: RefCell::default(), patience: RefCell::new(usize::MAX) });
    let waited = processes.wait(&handle(), &Condition::Port(80), Duration::from_secs(60), &sink).now_or_never();
    let error = waited.unwrap().unwrap_err();
    assert_eq!((error.code, error.retryable), (ErrorCode::SandboxUnavailable, true));
    assert_eq!(script.seen.borrow().len(), 3, "the number of requests is bounded");
}

#[test]
fn a_wait_asks_again_for_the_time_that_is_left_and_encodes_what_it_looks_for() {
    let waited = json!({ "outcome": "timedOut", "process": info(ProcessStatus::Running) }).to_string();
    let answers = vec![broken(encode("heartbeat", "{}")), body(encode("waited", &waited))];
    let (processes, script) = processes(answers);
    let sink: Rc<dyn EventSink> = Rc::new(Reader { told: RefCell::default(), patience: RefCell::new(usize::MAX) });
    let condition = Condition::Pattern { pattern: r"a&b=\d +#é".into(), from_offset: 3 };
    let waited = processes.wait(&handle(), &condition, Duration::from_secs(60), &sink).now_or_never().unwrap().unwrap();
    assert_eq!(waited.outcome, WaitOutcome::TimedOut);
    let path = "/v1/processes/p1/wait?timeoutMs=60000&pattern=a%26b%3D%5Cd%20%2B%23%C3%A9&fromOffset=3";
    assert_eq!(script.seen.borrow()[1].1, path);
}
