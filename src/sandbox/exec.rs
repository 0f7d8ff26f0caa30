//! One command in one sandbox, seen to its end: the outcome is read from the sandbox, never guessed.
//!
//! ```text
//!  POST /v1/execs ──▶ started, output…, exit        the outcome
//!        │                    │
//!        │ no answer          │ stream breaks, or is silent past the heartbeats
//!        ▼                    ▼
//!  POST again with      GET /v1/execs/{id} from the offsets that arrived, a bounded number of times
//!  the same id                │
//!                             ├─ another boot answers: interrupted
//!                             └─ nothing answers: outcome_unknown
//! ```
//!
//! The id of the exec is chosen by the caller and known before the first byte, so asking again re-attaches and never runs
//! a command twice. Once a request may have reached one boot of the sandbox, only that boot is asked again.

use std::rc::Rc;
use std::time::Duration;

use futures_util::stream::LocalBoxStream;
use futures_util::{FutureExt, StreamExt};
use sandbox_api::{EncodedBytes, ExecExit, ExecRequest, ForbiddenExec, HEARTBEAT_SECONDS, OutputChunk, event};

use crate::error::{Error, ErrorCode, Result};
use crate::events::{Channel, Event, EventSink, Process, ReaderGone, Resumed};
use crate::identifier::SandboxId;
use crate::job::record::KILLED;
use crate::platform::within;
use crate::sandbox::files;
use crate::services::{BodyError, ControlRequest, RequestBody, Sandboxes, Services};
use crate::sse::Decoder;

/// Until the head of an answer; `sandboxd` answers a stream at once.
const HEAD_DEADLINE: Duration = Duration::from_secs(5);

/// Until the sandbox has killed a command and all its children, and has seen them gone.
const KILL_DEADLINE: Duration = Duration::from_secs(25);

/// A stream that is silent for this long is broken: it carries heartbeats.
const SILENCE_LIMIT: Duration = Duration::from_secs(4 * HEARTBEAT_SECONDS);

/// Until a stream ends after its terminal event.
const END_DEADLINE: Duration = Duration::from_secs(1);

/// Requests made for one command in all.
const ATTEMPTS: u32 = 3;

/// Pause before a request is made again, times the number of attempts so far.
const PAUSE: Duration = Duration::from_millis(150);

/// Why an outcome is unknown that the sandbox may still tell.
const UNRESPONSIVE: &str = "sandbox_unresponsive";

/// How one request for the command ended, when not in its outcome.
struct Broken {
    why: String,
    /// A refusal that holds however often it is asked.
    final_error: Option<Error>,
}

impl Broken {
    fn passing(why: impl Into<String>) -> Self {
        Self { why: why.into(), final_error: None }
    }

    fn final_error(error: Error) -> Self {
        Self { why: error.message.clone(), final_error: Some(error) }
    }
}

/// One command on its way.
pub struct Exec {
    services: Services,
    sandbox_id: SandboxId,
    request: ExecRequest,
    events: Rc<dyn EventSink>,
    /// Boot that may have begun it.
    boot_id: Option<String>,
    /// Whether that boot was seen to have it.
    attached: bool,
    /// Bytes of each channel passed on.
    passed_on: [u64; 2],
}

impl Exec {
    pub fn new(services: Services, sandbox_id: SandboxId, request: ExecRequest, events: Rc<dyn EventSink>) -> Self {
        Self { services, sandbox_id, request, events, boot_id: None, attached: false, passed_on: [0, 0] }
    }

    /// The same for a command that was begun before: it is gone on with, and never begun.
    pub fn going_on(self, resumed: Resumed) -> Self {
        let Resumed { process, passed_on } = resumed;
        Self { boot_id: Some(process.boot_id), attached: true, passed_on, ..self }
    }

    /// Runs the command and returns how it ended. A success is any end that the sandbox tells of.
    pub async fn run(mut self) -> Result<ExecExit> {
        let mut why = String::new();
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                self.services.platform.sleep(PAUSE * attempt).await;
            }
            match self.attempt().await {
                Ok(exit) => return Ok(exit),
                Err(Broken { final_error: Some(error), .. }) => return Err(self.describe(error)),
                Err(broken) => why = broken.why,
            }
        }
        let message = "the sandbox stopped answering before the command's outcome was known; it may have run";
        Err(self.describe(Error::new(ErrorCode::OutcomeUnknown, message).detail("reason", UNRESPONSIVE).because(why)))
    }

    fn describe(&self, error: Error) -> Error {
        error.detail("sandboxId", self.sandbox_id.as_str()).detail("execId", self.request.id.as_str())
    }

    /// One request, from its sending to the end of its stream.
    async fn attempt(&mut self) -> Result<ExecExit, Broken> {
        let control = if self.attached { self.attach_request() } else { self.start_request()? };
        let response = match self.services.sandboxes.control(&self.sandbox_id, control).await {
            Ok(response) => response,
            Err(error) => return Err(self.refused(error)),
        };
        self.boot_id = Some(response.boot_id.clone());
        self.events.runs_as(&Process { sandbox_id: self.sandbox_id.clone(), boot_id: response.boot_id.clone() });
        let mut chunks = response.body.chunks();
        let mut decoder = Decoder::default();
        loop {
            let bytes = match within(&*self.services.platform, SILENCE_LIMIT, chunks.next()).await {
                Ok(Some(Ok(bytes))) => bytes,
                Ok(Some(Err(error))) => return Err(Broken::passing(error.to_string())),
                Ok(None) => return Err(Broken::passing("the stream ended without its terminal event")),
                Err(_) => return Err(Broken::passing("the stream fell silent")),
            };
            for event in decoder.push(&bytes).map_err(|error| Broken::passing(error.to_string()))? {
                if let Some(exit) = self.take(&event.name, &event.data).await? {
                    self.let_end(chunks);
                    return Ok(exit);
                }
            }
        }
    }

    /// Reads a stream that told everything to its end: one that is cut off takes its connection with it.
    fn let_end(&self, mut chunks: LocalBoxStream<'static, Result<Vec<u8>, BodyError>>) {
        let platform = self.services.platform.clone();
        let end = async move {
            let rest = async { while let Some(Ok(_)) = chunks.next().await {} };
            // What does not end is cut off.
            let _ = within(&*platform, END_DEADLINE, rest).await;
        };
        self.services.platform.background(end.boxed_local());
    }

    fn start_request(&self) -> Result<ControlRequest, Broken> {
        let body = serde_json::to_string(&self.request).map_err(|error| Broken::final_error(Error::internal(error)))?;
        Ok(ControlRequest {
            method: "POST",
            path: "/v1/execs".to_owned(),
            headers: vec![("accept", "text/event-stream".to_owned())],
            body: RequestBody::Json(body),
            boot_id: self.boot_id.clone(),
            deadline: HEAD_DEADLINE,
        })
    }

    fn attach_request(&self) -> ControlRequest {
        let [stdout, stderr] = self.passed_on;
        ControlRequest {
            method: "GET",
            path: format!("/v1/execs/{}?stdoutOffset={stdout}&stderrOffset={stderr}", self.request.id),
            headers: vec![("accept", "text/event-stream".to_owned())],
            body: RequestBody::Empty,
            boot_id: self.boot_id.clone(),
            deadline: HEAD_DEADLINE,
        }
    }

    /// What a refusal means depends on whether a boot may have begun the command.
    fn refused(&mut self, error: Error) -> Broken {
        match error.code {
            // The request may have arrived: ask that boot again.
            ErrorCode::OutcomeUnknown | ErrorCode::ObjectUnavailable => {
                if let Some(boot_id) = error.details.get("bootId").and_then(serde_json::Value::as_str) {
                    self.boot_id = Some(boot_id.to_owned());
                }
                // Not knowing which boot that was, asking again could run the command a second time.
                if self.boot_id.is_none() {
                    let is_told = error.details.contains_key("reason");
                    Broken::final_error(if is_told { error } else { error.detail("reason", UNRESPONSIVE) })
                } else {
                    Broken::passing(error.cause.unwrap_or(error.message))
                }
            }
            ErrorCode::StaleGeneration if self.boot_id.is_some() => {
                let message = "the sandbox was replaced while the command ran; what it had done is not known";
                Broken::final_error(Error::new(ErrorCode::Interrupted, message).because(error.message))
            }
            ErrorCode::SandboxUnavailable if self.boot_id.is_some() => Broken::passing(error.message),
            // Said by the sandbox's object, not by the daemon in it: there is no sandbox any more.
            ErrorCode::NotFound if self.boot_id.is_some() && !error.details.contains_key("reason") => {
                let message = "the sandbox was destroyed while the command ran";
                Broken::final_error(Error::new(ErrorCode::Interrupted, message))
            }
            // Said by the daemon: it had the command, which has ended.
            ErrorCode::NotFound if self.boot_id.is_some() => {
                let message = "the sandbox no longer knows how the command ended";
                Broken::final_error(Error::new(ErrorCode::OutcomeUnknown, message))
            }
            _ => Broken::final_error(error),
        }
    }

    /// Takes one event of the stream; the outcome when it is the terminal one.
    async fn take(&mut self, name: &str, data: &str) -> Result<Option<ExecExit>, Broken> {
        let unreadable =
            |error: serde_json::Error| Broken::passing(format!("an event {name:?} is not readable: {error}"));
        match name {
            event::STARTED => {
                self.attached = true;
                Ok(None)
            }
            event::STDOUT => self.output(Channel::Stdout, serde_json::from_str(data).map_err(unreadable)?).await,
            event::STDERR => self.output(Channel::Stderr, serde_json::from_str(data).map_err(unreadable)?).await,
            event::HEARTBEAT => self.emit(Event::Heartbeat).await,
            event::EXIT => serde_json::from_str(data).map(Some).map_err(unreadable),
            _ => Ok(None),
        }
    }

    /// Passes on the part of a chunk that was not passed on before the stream broke.
    async fn output(&mut self, channel: Channel, chunk: OutputChunk) -> Result<Option<ExecExit>, Broken> {
        let encoded = EncodedBytes { data: chunk.data, encoding: chunk.encoding };
        let bytes = encoded.decode().ok_or_else(|| Broken::passing("a chunk of output is not base64"))?;
        let [stdout, stderr] = &mut self.passed_on;
        let passed_on = match channel {
            Channel::Stdout => stdout,
            Channel::Stderr => stderr,
        };
        let known = passed_on.saturating_sub(chunk.offset);
        let fresh = usize::try_from(known).ok().and_then(|known| bytes.get(known..)).unwrap_or_default().to_vec();
        let offset = chunk.offset + known;
        *passed_on = offset.max(*passed_on) + u64::try_from(fresh.len()).unwrap_or(0);
        if fresh.is_empty() {
            return Ok(None);
        }
        self.emit(Event::Output { channel, bytes: fresh, offset, step: None }).await
    }

    /// Tells the reader; when it has left, ends the command and confirms that.
    async fn emit(&mut self, event: Event) -> Result<Option<ExecExit>, Broken> {
        match self.events.emit(event).await {
            Ok(()) => Ok(None),
            Err(ReaderGone) => {
                let kill = killing(&self.request.id, self.boot_id.clone(), KILL_DEADLINE);
                let killed = self.services.sandboxes.control(&self.sandbox_id, kill).await;
                let interrupted = |message: &str| Error::new(ErrorCode::Interrupted, message);
                Err(Broken::final_error(match killed {
                    Ok(_) => {
                        interrupted("the reader of the stream left and the command was ended").detail("reason", KILLED)
                    }
                    Err(_) => interrupted(
                        "the reader of the stream left; the sandbox ends the command once its grace time is over",
                    ),
                }))
            }
        }
    }
}

/// Whether the outcome of a command is unknown because its sandbox or the object of that did not answer: asked later, it may tell.
pub fn may_be_told_later(error: &Error) -> bool {
    match error.code {
        ErrorCode::OutcomeUnknown => error.details.get("reason").is_some_and(|reason| reason == UNRESPONSIVE),
        // Its object was reset in the middle; of a start of the sandbox this tells no exec.
        ErrorCode::ObjectUnavailable => error.details.contains_key("execId"),
        _ => false,
    }
}

/// Has a command and all its children killed, and waits until they are seen to be gone.
pub async fn kill(sandboxes: &dyn Sandboxes, process: &Process, id: &str) -> Result<()> {
    let kill = killing(id, Some(process.boot_id.clone()), KILL_DEADLINE);
    sandboxes.control(&process.sandbox_id, kill).await.map(drop)
}

/// Whether a command began in that boot. One that did not is refused from then on, however late its request arrives.
pub async fn forbid(sandboxes: &dyn Sandboxes, process: &Process, id: &str) -> Result<bool> {
    let forbid = ControlRequest {
        path: format!("/v1/execs/{id}/forbid"),
        ..killing(id, Some(process.boot_id.clone()), HEAD_DEADLINE)
    };
    let answer = files::collect(sandboxes.control(&process.sandbox_id, forbid).await?).await?;
    serde_json::from_slice(&answer).map(|forbidden: ForbiddenExec| forbidden.began).map_err(Error::internal)
}

fn killing(id: &str, boot_id: Option<String>, deadline: Duration) -> ControlRequest {
    ControlRequest {
        method: "POST",
        path: format!("/v1/execs/{id}/kill"),
        headers: Vec::new(),
        body: RequestBody::Json("{}".to_owned()),
        boot_id,
        deadline,
    }
}

#[cfg(test)]
mod tests;
