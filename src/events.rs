//! What happens while a tool runs. A door that cannot stream drops it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use sandbox_api::{EncodedBytes, Encoding, FileChange};

use serde::{Deserialize, Serialize};

use crate::identifier::SandboxId;
use crate::job::state::State;
use crate::tenant::limits::Standing;
use redaction::{RedactingStream, Redactor};

/// Where a piece of output was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    Stdout,
    Stderr,
}

impl Channel {
    /// Name of the event that carries it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The call was admitted; how the caller's window of calls stands.
    Admitted(Option<Standing>),
    /// A piece of output; text is never cut inside a character. `offset` is that of its first byte in its channel.
    /// `step` is the step of a pipeline that wrote it.
    Output { channel: Channel, bytes: Vec<u8>, offset: u64, step: Option<String> },
    /// What was asked to be told is told from here on.
    Ready,
    /// Something happened to an entry of a watched directory.
    Change(FileChange),
    /// How a job stands from here on.
    State(State),
    /// Nothing that is one goes over it: what was held back, as the possible beginning of a secret, is told. No door sees it.
    Boundary,
    /// Nothing, for a while: the call lives.
    Heartbeat,
}

impl Event {
    /// Its name and its data, in a frame of any door; nothing of what only says that the call lives.
    pub fn told(self) -> Option<(&'static str, Data)> {
        match self {
            Self::Output { channel, bytes, offset, step } => {
                let EncodedBytes { data, encoding } = EncodedBytes::encode(&bytes);
                Some((channel.name(), Data::Chunk { data, encoding, offset, step }))
            }
            Self::Ready => Some(("ready", Data::Nothing {})),
            Self::Change(change) => Some(("change", Data::Change(change))),
            Self::State(state) => Some(("state", Data::State { state })),
            Self::Admitted(_) | Self::Boundary | Self::Heartbeat => None,
        }
    }
}

/// The data of an event as a client is told it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Data {
    Chunk {
        data: String,
        encoding: Encoding,
        offset: u64,
        /// Step of a pipeline that wrote it.
        #[serde(skip_serializing_if = "Option::is_none")]
        step: Option<String>,
    },
    Change(FileChange),
    State {
        state: State,
    },
    Nothing {},
}

/// Where a command runs. Its id there is that of its call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Process {
    pub sandbox_id: SandboxId,
    /// Boot of the sandbox that has it.
    pub boot_id: String,
}

/// A command that runs already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resumed {
    pub process: Process,
    /// Bytes of stdout and of stderr that were passed on.
    pub passed_on: [u64; 2],
}

/// The reader left; what runs on its behalf may end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReaderGone;

/// Takes the events of one call. Completes when there is room for the next, so that a slow reader slows the command.
pub trait EventSink {
    /// Whether anybody reads output as it comes.
    fn streams(&self) -> bool;

    fn emit(&self, event: Event) -> LocalBoxFuture<'_, Result<(), ReaderGone>>;

    /// The next piece of output is all of its channel up to this offset that was not emitted before.
    fn takes(&self, _channel: Channel, _end: u64) {}

    /// The call runs as this process from here on.
    fn runs_as(&self, _process: &Process) {}

    /// Bytes of output that were passed on to a reader so far.
    fn bytes(&self) -> u64 {
        0
    }
}

/// Drops everything.
pub struct NoEvents;

impl EventSink for NoEvents {
    fn streams(&self) -> bool {
        false
    }

    fn emit(&self, _event: Event) -> LocalBoxFuture<'_, Result<(), ReaderGone>> {
        futures_util::future::ready(Ok(())).boxed_local()
    }
}

/// Masks secrets in output before it reaches `inner`, also where a secret is cut by the border of two pieces.
pub struct RedactingSink {
    inner: Rc<dyn EventSink>,
    redactor: Redactor,
    channels: RefCell<[MaskedChannel; 2]>,
    passed_on: Cell<u64>,
}

struct MaskedChannel {
    channel: Channel,
    stream: RedactingStream,
    /// Offset of the first byte that is still held back.
    offset: u64,
    /// Bytes taken.
    taken: u64,
    /// Step of a pipeline that wrote them.
    step: Option<String>,
}

impl MaskedChannel {
    /// What is still held back.
    fn rest(&mut self) -> Option<Event> {
        let bytes = self.stream.finish();
        let offset = std::mem::replace(&mut self.offset, self.taken);
        let (channel, step) = (self.channel, self.step.clone());
        (!bytes.is_empty()).then_some(Event::Output { channel, bytes, offset, step })
    }
}

impl RedactingSink {
    pub fn new(inner: Rc<dyn EventSink>, redactor: &Redactor) -> Self {
        let masked = |channel| MaskedChannel {
            channel,
            stream: RedactingStream::new(redactor.clone()),
            offset: 0,
            taken: 0,
            step: None,
        };
        Self {
            inner,
            redactor: redactor.clone(),
            channels: RefCell::new([masked(Channel::Stdout), masked(Channel::Stderr)]),
            passed_on: Cell::new(0),
        }
    }

    /// Passes on what is still held back, once no more output will come.
    pub async fn finish(&self) -> Result<(), ReaderGone> {
        self.emit(Event::Boundary).await
    }

    /// What is still held back.
    fn rest(&self) -> Vec<Event> {
        let mut channels = self.channels.borrow_mut();
        let rest = channels.iter_mut().filter_map(|masked| {
            self.inner.takes(masked.channel, masked.taken);
            masked.rest()
        });
        rest.collect()
    }

    /// What can be passed on with this piece.
    fn mask(&self, channel: Channel, bytes: &[u8], offset: u64, step: Option<String>) -> Option<Event> {
        let mut channels = self.channels.borrow_mut();
        let masked = channels.iter_mut().find(|masked| masked.channel == channel)?;
        masked.step = step;
        if masked.offset == masked.taken {
            masked.offset = offset;
        }
        masked.taken = offset + u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let out = masked.stream.push(bytes).into_owned();
        let held = u64::try_from(masked.stream.held()).unwrap_or(0);
        let first = std::mem::replace(&mut masked.offset, masked.taken.saturating_sub(held));
        self.inner.takes(channel, masked.offset);
        let step = masked.step.clone();
        (!out.is_empty()).then_some(Event::Output { channel, bytes: out, offset: first, step })
    }
}

impl EventSink for RedactingSink {
    fn streams(&self) -> bool {
        self.inner.streams()
    }

    fn emit(&self, event: Event) -> LocalBoxFuture<'_, Result<(), ReaderGone>> {
        let events = match event {
            Event::Output { channel, bytes, offset, step } => {
                self.mask(channel, &bytes, offset, step).into_iter().collect()
            }
            Event::Boundary => self.rest(),
            Event::Change(change) => vec![Event::Change(FileChange {
                path: self.redactor.text(&change.path),
                from: change.from.map(|from| self.redactor.text(&from)),
                ..change
            })],
            other => vec![other],
        };
        for event in &events {
            if let Event::Output { bytes, .. } = event {
                self.passed_on.set(self.passed_on.get() + u64::try_from(bytes.len()).unwrap_or(0));
            }
        }
        async move {
            for event in events {
                self.inner.emit(event).await?;
            }
            Ok(())
        }
        .boxed_local()
    }

    fn runs_as(&self, process: &Process) {
        self.inner.runs_as(process);
    }

    fn bytes(&self) -> u64 {
        if self.streams() { self.passed_on.get() } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Recorder(RefCell<Vec<Event>>);

    impl EventSink for Recorder {
        fn streams(&self) -> bool {
            true
        }

        fn emit(&self, event: Event) -> LocalBoxFuture<'_, Result<(), ReaderGone>> {
            self.0.borrow_mut().push(event);
            futures_util::future::ready(Ok(())).boxed_local()
        }
    }

    #[test]
    fn a_secret_cut_by_two_pieces_is_masked_and_offsets_stay_true() {
        let recorder = Rc::new(Recorder::default());
        let sink = RedactingSink::new(recorder.clone(), &Redactor::new(["s3cr3t-value"]));
        let output = |bytes: &[u8], offset| Event::Output {
            channel: Channel::Stdout,
            bytes: bytes.to_vec(),
            offset,
            step: None,
        };
        for event in [output(b"ab s3cr", 0), output(b"3t-value cd", 7), output(b" s3", 18)] {
            sink.emit(event).now_or_never().unwrap().unwrap();
        }
        sink.finish().now_or_never().unwrap().unwrap();
        let seen = recorder.0.borrow().clone();
        assert_eq!(seen, [output(b"ab ", 0), output(b"[redacted] cd", 3), output(b" ", 18), output(b"s3", 19)]);
    }

    #[test]
    fn nothing_is_held_back_over_a_boundary() {
        let recorder = Rc::new(Recorder::default());
        let sink = RedactingSink::new(recorder.clone(), &Redactor::new(["s3cr3t-value"]));
        let output = |bytes: &[u8], offset, step: &str| Event::Output {
            channel: Channel::Stdout,
            bytes: bytes.to_vec(),
            offset,
            step: Some(step.to_owned()),
        };
        for event in [output(b"one s3", 0, "a"), Event::Boundary, output(b"two", 6, "b")] {
            sink.emit(event).now_or_never().unwrap().unwrap();
        }
        sink.finish().now_or_never().unwrap().unwrap();
        let seen = recorder.0.borrow().clone();
        assert_eq!(seen, [output(b"one ", 0, "a"), output(b"s3", 4, "a"), output(b"two", 6, "b")]);
    }
}
