//! Faults at the seam between the tools on processes and the sandbox, told by a double that follows a script.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::{LocalBoxFuture, ready};
use futures_util::stream::LocalBoxStream;
use futures_util::{FutureExt, StreamExt};
use sandbox_api::{ProcessInfo, ProcessKill, ProcessRequest, ProcessStatus, RestartPolicy, WaitOutcome};
use serde_json::json;

use super::{Condition, Handle, Processes};
use crate::error::{Error, ErrorCode, Result};
use crate::events::{Event, EventSink, ReaderGone};
use crate::identifier::SandboxId;
use crate::platform::Platform;
use crate::sandbox::record::{Create, Described, Destroyed, Record, Stopped, Woken};
use crate::sandbox::settings::{Settings, Update};
use crate::sandbox::state::State;
use crate::services::{Body, BodyError, ControlRequest, ControlResponse, Sandboxes, Services, Tenant};
use crate::sse::encode;
use crate::tenant::admission::{AdmissionRequest, Admitted, ListRequest, Listing, Settlement};

/// How the double answers one request.
enum Answer {
    Body(String),
    /// A body that breaks off after that.
    Broken(String),
    Refuse(Error),
}

/// Method, path and expected boot of one request.
type Seen = (String, String, Option<String>);

#[derive(Default)]
struct Script {
    answers: RefCell<VecDeque<Answer>>,
    seen: RefCell<Vec<Seen>>,
    state: RefCell<Option<State>>,
}

struct Text(String, bool);

impl Body for Text {
    fn chunks(self: Box<Self>) -> LocalBoxStream<'static, std::result::Result<Vec<u8>, BodyError>> {
        let text = futures_util::stream::iter([Ok(self.0.into_bytes())]);
        if self.1 {
            text.chain(futures_util::stream::iter([Err(BodyError("reset".into()))])).boxed_local()
        } else {
            text.boxed_local()
        }
    }

    fn into_any(self: Box<Self>) -> Box<dyn std::any::Any> {
        self
    }
}

impl Sandboxes for Script {
    fn create<'a>(&'a self, _: &'a Create) -> LocalBoxFuture<'a, Result<Record>> {
        ready(Err(Error::internal("not in the script"))).boxed_local()
    }

    fn describe<'a>(&'a self, id: &'a SandboxId) -> LocalBoxFuture<'a, Result<Described>> {
        let mut record = Record::created(id.clone(), Settings::default(), 0);
        record.boot_id = Some("boot-1".into());
        record.state = self.state.borrow().unwrap_or(State::Running);
        ready(Ok(Described { record, metrics: None })).boxed_local()
    }

    fn wake<'a>(&'a self, _: &'a SandboxId) -> LocalBoxFuture<'a, Result<Woken>> {
        ready(Err(Error::internal("not in the script"))).boxed_local()
    }

    fn stop<'a>(&'a self, _: &'a SandboxId) -> LocalBoxFuture<'a, Result<Stopped>> {
        ready(Err(Error::internal("not in the script"))).boxed_local()
    }

    fn update<'a>(&'a self, _: &'a SandboxId, _: &'a Update) -> LocalBoxFuture<'a, Result<Record>> {
        ready(Err(Error::internal("not in the script"))).boxed_local()
    }

    fn cloned<'a>(&'a self, _: &'a SandboxId) -> LocalBoxFuture<'a, Result<()>> {
        ready(Err(Error::internal("not in the script"))).boxed_local()
    }

    fn destroy<'a>(&'a self, _: &'a SandboxId, _: bool) -> LocalBoxFuture<'a, Result<Destroyed>> {
        ready(Err(Error::internal("not in the script"))).boxed_local()
    }

    fn control<'a>(&'a self, _: &'a SandboxId, request: ControlRequest) -> LocalBoxFuture<'a, Result<ControlResponse>> {
        self.seen.borrow_mut().push((request.method.into(), request.path, request.boot_id));
        let body = match self.answers.borrow_mut().pop_front() {
            Some(Answer::Body(text)) => Ok(Text(text, false)),
            Some(Answer::Broken(text)) => Ok(Text(text, true)),
            Some(Answer::Refuse(error)) => Err(error),
            None => Err(Error::internal("the script is over")),
        };
        let answer = body.map(|body| ControlResponse {
            status: 200,
            headers: Vec::new(),
            boot_id: "boot-1".into(),
            generation: 1,
            body: Box::new(body),
        });
        ready(answer).boxed_local()
    }
}

impl Tenant for Script {
    fn admit(&self, _: AdmissionRequest) -> LocalBoxFuture<'_, Result<Admitted>> {
        ready(Ok(Admitted::default())).boxed_local()
    }

    fn settle(&self, _: Settlement) -> LocalBoxFuture<'_, Result<()>> {
        ready(Ok(())).boxed_local()
    }

    fn list_sandboxes(&self, _: ListRequest) -> LocalBoxFuture<'_, Result<Listing>> {
        ready(Ok(Listing::default())).boxed_local()
    }
}

/// A platform on which every wait for something that is not there is over at once.
struct NoWaiting;

impl Platform for NoWaiting {
    fn now_millis(&self) -> i64 {
        0
    }

    fn random(&self) -> [u8; 16] {
        [7; 16]
    }

    fn sleep(&self, _: Duration) -> LocalBoxFuture<'static, ()> {
        ready(()).boxed_local()
    }

    fn background(&self, work: LocalBoxFuture<'static, ()>) {
        work.now_or_never().unwrap();
    }

    fn log(&self, _: &serde_json::Value) {}
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
    let script = Rc::new(Script { answers: RefCell::new(answers.into()), ..Script::default() });
    let services = Services { platform: Rc::new(NoWaiting), tenant: script.clone(), sandboxes: script.clone() };
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
        error: None,
        left_behind: false,
        stdin_open: false,
        log_bytes: 0,
    }
}

fn running() -> Answer {
    Answer::Body(serde_json::to_string(&info(ProcessStatus::Running)).unwrap())
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
    let (result, seen) = start(vec![Answer::Broken("{".into()), running()]);
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
    let (processes, script) = processes(vec![Answer::Body(r#"{"processes":[]}"#.into())]);
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
    let (processes, script) = processes(vec![Answer::Broken(stdout("one ", 0)), Answer::Body(second)]);
    let reader = Rc::new(Reader { told: RefCell::default(), patience: RefCell::new(usize::MAX) });
    let sink: Rc<dyn EventSink> = reader.clone();
    let followed = processes.follow(&handle(), 0, Duration::from_secs(60), &sink).now_or_never().unwrap().unwrap();
    assert_eq!((followed.next_offset, followed.ended.map(|it| it.status)), (7, Some(ProcessStatus::Exited)));
    assert_eq!(*reader.told.borrow(), b"one two");
    assert_eq!(script.seen.borrow()[1].1, "/v1/processes/p1/logs?offset=4");
}

#[test]
fn a_reader_that_leaves_asks_nothing_more_of_the_process() {
    let (processes, script) = processes(vec![Answer::Body([stdout("a", 0), stdout("b", 1)].concat())]);
    let sink: Rc<dyn EventSink> = Rc::new(Reader { told: RefCell::default(), patience: RefCell::new(1) });
    let error = processes.follow(&handle(), 0, Duration::from_secs(60), &sink).now_or_never().unwrap().unwrap_err();
    assert_eq!((error.code, script.seen.borrow().len()), (ErrorCode::Interrupted, 1));
}

#[test]
fn a_stream_without_its_terminal_event_is_no_answer() {
    let (processes, script) = processes((0..9).map(|_| Answer::Body(encode("heartbeat", "{}"))).collect());
    let sink: Rc<dyn EventSink> = Rc::new(Reader { told: RefCell::default(), patience: RefCell::new(usize::MAX) });
    let waited = processes.wait(&handle(), &Condition::Port(80), Duration::from_secs(60), &sink).now_or_never();
    let error = waited.unwrap().unwrap_err();
    assert_eq!((error.code, error.retryable), (ErrorCode::SandboxUnavailable, true));
    assert_eq!(script.seen.borrow().len(), 3, "the number of requests is bounded");
}

#[test]
fn a_wait_asks_again_for_the_time_that_is_left_and_encodes_what_it_looks_for() {
    let waited = json!({ "outcome": "timedOut", "process": info(ProcessStatus::Running) }).to_string();
    let answers = vec![Answer::Broken(encode("heartbeat", "{}")), Answer::Body(encode("waited", &waited))];
    let (processes, script) = processes(answers);
    let sink: Rc<dyn EventSink> = Rc::new(Reader { told: RefCell::default(), patience: RefCell::new(usize::MAX) });
    let condition = Condition::Pattern { pattern: r"a&b=\d +#é".into(), from_offset: 3 };
    let waited = processes.wait(&handle(), &condition, Duration::from_secs(60), &sink).now_or_never().unwrap().unwrap();
    assert_eq!(waited.outcome, WaitOutcome::TimedOut);
    let path = "/v1/processes/p1/wait?timeoutMs=60000&pattern=a%26b%3D%5Cd%20%2B%23%C3%A9&fromOffset=3";
    assert_eq!(script.seen.borrow()[1].1, path);
}
