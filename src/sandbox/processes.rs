//! Background processes of one sandbox, as its boot tells of them.
//!
//! A process belongs to one boot of its sandbox, and its [`Handle`] says which. Only that boot is asked, and no other is
//! started to say that it is gone: then the answer is `stale_generation`. What changes something carries an id, so that a
//! request whose answer was lost is made again, a bounded number of times, and never acts twice.

use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use futures_util::StreamExt;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use sandbox_api::{
    EncodedBytes, HEARTBEAT_SECONDS, InputTaken, LogsEnd, OutputChunk, ProcessInfo, ProcessInput, ProcessKill,
    ProcessList, ProcessLogs, ProcessRequest, ProcessWaited, event, process_event,
};
use serde::de::DeserializeOwned;

use super::state::State;
use crate::error::{Error, ErrorCode, Result};
use crate::events::{Channel, Event, EventSink};
use crate::identifier::SandboxId;
use crate::platform::within;
use crate::services::{ControlRequest, ControlResponse, RequestBody, Services};
use crate::sse::{self, Decoder};

/// Until the head of an answer, beyond what the request itself waits for.
const HEAD_DEADLINE: Duration = Duration::from_secs(5);
/// Until a kill is confirmed, beyond its grace.
const KILL_DEADLINE: Duration = Duration::from_secs(20);
/// A stream that is silent for this long is broken: it carries heartbeats.
const SILENCE_LIMIT: Duration = Duration::from_secs(4 * HEARTBEAT_SECONDS);
/// Requests in a row that brought nothing.
const ATTEMPTS: u32 = 3;
/// Pause before a request is made again, times the number of attempts so far.
const PAUSE: Duration = Duration::from_millis(150);
/// Most bytes of an answer in JSON.
const LARGEST_ANSWER: usize = 16 * 1024 * 1024;

/// A process of one boot of a sandbox; its text is the `processId` of the tools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handle {
    pub boot_id: String,
    pub id: String,
}

impl Handle {
    pub fn of(process: &ProcessInfo) -> Self {
        Self { boot_id: process.boot_id.clone(), id: process.id.clone() }
    }

    /// A text that no process can have is that of an unknown one.
    pub fn parse(text: &str) -> Result<Self> {
        let allowed = |part: &str| {
            (1..=64).contains(&part.len())
                && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
        };
        match text.split_once('.') {
            Some((boot_id, id)) if allowed(boot_id) && allowed(id) => {
                Ok(Self { boot_id: boot_id.to_owned(), id: id.to_owned() })
            }
            _ => Err(no_such_process(text)),
        }
    }
}

impl fmt::Display for Handle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.boot_id, self.id)
    }
}

fn no_such_process(process_id: &str) -> Error {
    let shown: String = process_id.chars().take(140).collect();
    Error::new(ErrorCode::NotFound, format!("there is no process {shown:?}; listProcesses tells which there are"))
        .detail("processId", shown)
}

/// What a wait is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    Exit,
    Port(u16),
    Text { text: String, from_offset: u64 },
    Pattern { pattern: String, from_offset: u64 },
}

impl Condition {
    fn query(&self) -> String {
        let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        match self {
            Self::Exit => String::new(),
            Self::Port(port) => format!("&port={port}"),
            Self::Text { text, from_offset } => format!("&text={}&fromOffset={from_offset}", encoded(text)),
            Self::Pattern { pattern, from_offset } => {
                format!("&pattern={}&fromOffset={from_offset}", encoded(pattern))
            }
        }
    }
}

/// What followed logs came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Followed {
    pub next_offset: u64,
    /// The process at its end; nothing when the time was over first.
    pub ended: Option<ProcessInfo>,
}

/// The processes of one sandbox.
pub struct Processes {
    services: Services,
    sandbox_id: SandboxId,
}

impl Processes {
    pub fn new(services: Services, sandbox_id: SandboxId) -> Self {
        Self { services, sandbox_id }
    }

    /// Starts a process, once however often that has to be asked; starts the sandbox where it does not run.
    pub async fn start(&self, request: &ProcessRequest) -> Result<ProcessInfo> {
        let body = serde_json::to_string(request).map_err(Error::internal)?;
        let settle = Duration::from_millis(request.settle_ms.unwrap_or(0));
        self.ask(None, "POST", "/v1/processes", Some(body), HEAD_DEADLINE + settle).await
    }

    /// All processes; nothing when the sandbox does not run, which has none then.
    pub async fn list(&self) -> Result<Option<Vec<ProcessInfo>>> {
        let mut stale = None;
        for _ in 0..ATTEMPTS {
            let record = self.services.sandboxes.describe(&self.sandbox_id).await?.record;
            let Some(boot_id) = record.boot_id.filter(|_| record.state == State::Running) else {
                return Ok(None);
            };
            match self.ask(Some(&boot_id), "GET", "/v1/processes", None, HEAD_DEADLINE).await {
                Ok(ProcessList { processes }) => return Ok(Some(processes)),
                // It was replaced in between; the record says by what.
                Err(error) if error.code == ErrorCode::StaleGeneration => stale = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(stale.unwrap_or_else(|| Error::internal("processes were not asked for")))
    }

    pub async fn get(&self, handle: &Handle) -> Result<ProcessInfo> {
        self.of(handle, "GET", "", None, HEAD_DEADLINE).await
    }

    /// Ends the whole tree for good; returns once nothing of it is left.
    pub async fn kill(&self, handle: &Handle, kill: &ProcessKill) -> Result<ProcessInfo> {
        let body = serde_json::to_string(kill).map_err(Error::internal)?;
        let grace = Duration::from_millis(kill.grace_ms.unwrap_or(0));
        self.of(handle, "POST", "/kill", Some(body), KILL_DEADLINE + grace).await
    }

    /// Writes to standard input, once however often that has to be asked: `input` carries an id.
    pub async fn write(&self, handle: &Handle, input: &ProcessInput) -> Result<InputTaken> {
        let body = serde_json::to_string(input).map_err(Error::internal)?;
        self.of(handle, "POST", "/input", Some(body), HEAD_DEADLINE).await
    }

    pub async fn logs(&self, handle: &Handle, offset: u64, limit: u64) -> Result<ProcessLogs> {
        let path = format!("/logs?offset={offset}&limitBytes={limit}");
        self.of(handle, "GET", &path, None, HEAD_DEADLINE).await
    }

    /// Passes on what the process writes until it has ended or the time is over.
    pub async fn follow(
        &self,
        handle: &Handle,
        offset: u64,
        time: Duration,
        events: &Rc<dyn EventSink>,
    ) -> Result<Followed> {
        let deadline = self.now() + millis(time);
        let mut next_offset = offset;
        let mut failures = 0;
        loop {
            let path = format!("/v1/processes/{}/logs?offset={next_offset}", handle.id);
            let broken = match self.open(handle, path).await {
                Err(error) => self.passing(handle, error)?,
                Ok(mut stream) => loop {
                    let event = match stream.next(&self.services, deadline).await {
                        Next::Event(event) => event,
                        Next::Deadline => return Ok(Followed { next_offset, ended: None }),
                        Next::Broken(error) => break error,
                    };
                    match event.name.as_str() {
                        event::STDOUT | event::STDERR => {
                            let chunk: OutputChunk = match serde_json::from_str(&event.data) {
                                Ok(chunk) => chunk,
                                Err(error) => break unresponsive().because(error),
                            };
                            let encoded = EncodedBytes { data: chunk.data, encoding: chunk.encoding };
                            let Some(bytes) = encoded.decode() else { break unresponsive() };
                            let channel = if event.name == event::STDOUT { Channel::Stdout } else { Channel::Stderr };
                            next_offset = chunk.offset + u64::try_from(bytes.len()).unwrap_or(0);
                            failures = 0;
                            self.tell(events, Event::Output { channel, bytes, offset: chunk.offset, step: None })
                                .await?;
                        }
                        process_event::END => match serde_json::from_str::<LogsEnd>(&event.data) {
                            Ok(end) => {
                                return Ok(Followed { next_offset: end.next_offset, ended: Some(end.process) });
                            }
                            Err(error) => break unresponsive().because(error),
                        },
                        event::HEARTBEAT => self.tell(events, Event::Heartbeat).await?,
                        _ => {}
                    }
                },
            };
            failures += 1;
            self.pause(failures, broken).await?;
        }
    }

    /// Waits for a condition; a deadline that passes and an end that comes first are answers.
    pub async fn wait(
        &self,
        handle: &Handle,
        condition: &Condition,
        time: Duration,
        events: &Rc<dyn EventSink>,
    ) -> Result<ProcessWaited> {
        let deadline = self.now() + millis(time);
        let mut failures = 0;
        loop {
            let left = (deadline - self.now()).max(0);
            let path = format!("/v1/processes/{}/wait?timeoutMs={left}{}", handle.id, condition.query());
            let broken = match self.open(handle, path).await {
                Err(error) => self.passing(handle, error)?,
                Ok(mut stream) => loop {
                    // The sandbox keeps the deadline; only silence is noticed here.
                    let event = match stream.next(&self.services, i64::MAX).await {
                        Next::Event(event) => event,
                        Next::Deadline => break unresponsive(),
                        Next::Broken(error) => break error,
                    };
                    match event.name.as_str() {
                        process_event::WAITED => match serde_json::from_str(&event.data) {
                            Ok(waited) => return Ok(waited),
                            Err(error) => break unresponsive().because(error),
                        },
                        event::HEARTBEAT => self.tell(events, Event::Heartbeat).await?,
                        _ => {}
                    }
                },
            };
            failures += 1;
            self.pause(failures, broken).await?;
        }
    }

    fn now(&self) -> i64 {
        self.services.platform.now_millis()
    }

    /// Before a request is made again; the error when it is not.
    async fn pause(&self, failures: u32, error: Error) -> Result<()> {
        if failures >= ATTEMPTS {
            return Err(error.detail("sandboxId", self.sandbox_id.as_str()));
        }
        self.services.platform.sleep(PAUSE * failures).await;
        Ok(())
    }

    /// Tells the reader. The process lives on without one.
    async fn tell(&self, events: &Rc<dyn EventSink>, event: Event) -> Result<()> {
        let message = "the reader of the stream left; the process is as it was";
        events.emit(event).await.map_err(|_| Error::new(ErrorCode::Interrupted, message))
    }

    async fn open(&self, handle: &Handle, path: String) -> Result<EventStream> {
        let request = ControlRequest {
            method: "GET",
            path,
            headers: vec![("accept", "text/event-stream".to_owned())],
            body: RequestBody::Empty,
            boot_id: Some(handle.boot_id.clone()),
            deadline: HEAD_DEADLINE,
        };
        let response = self.services.sandboxes.control(&self.sandbox_id, request).await?;
        Ok(EventStream { chunks: response.body.chunks(), decoder: Decoder::default(), ready: Vec::new().into_iter() })
    }

    async fn of<T: DeserializeOwned>(
        &self,
        handle: &Handle,
        method: &'static str,
        path: &str,
        body: Option<String>,
        deadline: Duration,
    ) -> Result<T> {
        let path = format!("/v1/processes/{}{path}", handle.id);
        let asked = self.ask(Some(&handle.boot_id), method, &path, body, deadline).await;
        asked.map_err(|error| self.describe(handle, error))
    }

    /// An error that may pass when the same is asked again; any other is the answer.
    fn passing(&self, handle: &Handle, error: Error) -> Result<Error> {
        if is_lost(&error) { Ok(error) } else { Err(self.describe(handle, error)) }
    }

    /// The refusal in terms of the process that was asked about.
    fn describe(&self, handle: &Handle, error: Error) -> Error {
        let process_id = handle.to_string();
        let error = match error.code {
            ErrorCode::StaleGeneration => {
                let message = "that start of the sandbox is over, and its processes ended with it";
                Error::new(ErrorCode::StaleGeneration, message).because(error.message)
            }
            // Said by the daemon, not by the sandbox's object.
            ErrorCode::NotFound if error.details.contains_key("reason") => no_such_process(&process_id),
            _ => error,
        };
        error.detail("sandboxId", self.sandbox_id.as_str()).detail("processId", process_id)
    }

    /// One question and its whole answer. With `boot_id` only that boot is asked; without, the first that may have been
    /// asked is the only one that is asked again.
    async fn ask<T: DeserializeOwned>(
        &self,
        boot_id: Option<&str>,
        method: &'static str,
        path: &str,
        body: Option<String>,
        deadline: Duration,
    ) -> Result<T> {
        let mut asked_boot = boot_id.map(str::to_owned);
        let mut failures = 0;
        loop {
            let request = ControlRequest {
                method,
                path: path.to_owned(),
                headers: Vec::new(),
                body: body.clone().map_or(RequestBody::Empty, RequestBody::Json),
                boot_id: asked_boot.clone(),
                deadline,
            };
            let error = match self.services.sandboxes.control(&self.sandbox_id, request).await {
                Ok(response) => {
                    asked_boot = Some(response.boot_id.clone());
                    match self.read(response).await {
                        Ok(answer) => return Ok(answer),
                        Err(error) => error,
                    }
                }
                Err(error) if error.code == ErrorCode::StaleGeneration && boot_id.is_none() => {
                    let message = "the sandbox was replaced while the process was started; nothing of it is left";
                    return Err(Error::new(ErrorCode::Interrupted, message).because(error.message));
                }
                Err(error) if !is_lost(&error) => return Err(error),
                Err(error) => {
                    let told = error.details.get("bootId").and_then(serde_json::Value::as_str).map(str::to_owned);
                    asked_boot = asked_boot.or(told);
                    // Not knowing which boot that was, asking again could act a second time.
                    if asked_boot.is_none() {
                        return Err(error);
                    }
                    error
                }
            };
            failures += 1;
            let error = if method == "GET" { error } else { Error { code: ErrorCode::OutcomeUnknown, ..error } };
            let retryable = method == "GET";
            let retry_after = retryable.then_some(1);
            self.pause(failures, Error { retryable, retry_after, ..error }).await?;
        }
    }

    /// The whole body of an answer.
    async fn read<T: DeserializeOwned>(&self, response: ControlResponse) -> Result<T> {
        let mut chunks = response.body.chunks();
        let mut bytes = Vec::new();
        loop {
            match within(&*self.services.platform, SILENCE_LIMIT, chunks.next()).await {
                Ok(Some(Ok(chunk))) => bytes.extend(chunk),
                Ok(Some(Err(error))) => return Err(unresponsive().because(error)),
                Ok(None) => break,
                Err(_) => return Err(unresponsive().because("the answer fell silent")),
            }
            if bytes.len() > LARGEST_ANSWER {
                return Err(unresponsive().because("the answer is larger than any"));
            }
        }
        serde_json::from_slice(&bytes).map_err(|error| unresponsive().because(error))
    }
}

/// Whether it is not known what became of the request.
fn is_lost(error: &Error) -> bool {
    matches!(error.code, ErrorCode::OutcomeUnknown | ErrorCode::ObjectUnavailable)
        || error.details.get("reason").is_some_and(|reason| reason == "sandbox_unresponsive")
}

fn unresponsive() -> Error {
    Error::new(ErrorCode::SandboxUnavailable, "the sandbox did not answer").detail("reason", "sandbox_unresponsive")
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

struct EventStream {
    chunks: futures_util::stream::LocalBoxStream<'static, std::result::Result<Vec<u8>, crate::services::BodyError>>,
    decoder: Decoder,
    ready: std::vec::IntoIter<sse::Event>,
}

enum Next {
    Event(sse::Event),
    Deadline,
    Broken(Error),
}

impl EventStream {
    async fn next(&mut self, services: &Services, deadline: i64) -> Next {
        loop {
            if let Some(event) = self.ready.next() {
                return Next::Event(event);
            }
            let left = u64::try_from(deadline.saturating_sub(services.platform.now_millis())).unwrap_or(0);
            let patience = SILENCE_LIMIT.min(Duration::from_millis(left));
            match within(&*services.platform, patience, self.chunks.next()).await {
                Ok(Some(Ok(bytes))) => match self.decoder.push(&bytes) {
                    Ok(events) => self.ready = events.into_iter(),
                    Err(error) => return Next::Broken(unresponsive().because(error)),
                },
                Ok(Some(Err(error))) => return Next::Broken(unresponsive().because(error)),
                Ok(None) => return Next::Broken(unresponsive().because("the stream ended without its terminal event")),
                Err(_) if patience < SILENCE_LIMIT => return Next::Deadline,
                Err(_) => return Next::Broken(unresponsive().because("the stream fell silent")),
            }
        }
    }
}

#[cfg(test)]
mod tests;
