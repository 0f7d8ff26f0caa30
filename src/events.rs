//! What happens while a tool runs. A door that cannot stream drops it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use sandbox_api::{EncodedBytes, FileChange, OutputChunk};

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
    Output { channel: Channel, bytes: Vec<u8>, offset: u64 },
    /// What was asked to be told is told from here on.
    Ready,
    /// Something happened to an entry of a watched directory.
    Change(FileChange),
    /// Nothing, for a while: the call lives.
    Heartbeat,
}

impl Event {
    /// The piece of output as it stands in a frame of any door.
    pub fn chunk(bytes: &[u8], offset: u64) -> OutputChunk {
        let EncodedBytes { data, encoding } = EncodedBytes::encode(bytes);
        OutputChunk { data, encoding, offset }
    }
}

/// The reader left; what runs on its behalf may end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReaderGone;

/// Takes the events of one call. Completes when there is room for the next, so that a slow reader slows the command.
pub trait EventSink {
    /// Whether anybody reads output as it comes.
    fn streams(&self) -> bool;

    fn emit(&self, event: Event) -> LocalBoxFuture<'_, Result<(), ReaderGone>>;

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
}

impl RedactingSink {
    pub fn new(inner: Rc<dyn EventSink>, redactor: &Redactor) -> Self {
        let masked =
            |channel| MaskedChannel { channel, stream: RedactingStream::new(redactor.clone()), offset: 0, taken: 0 };
        Self {
            inner,
            redactor: redactor.clone(),
            channels: RefCell::new([masked(Channel::Stdout), masked(Channel::Stderr)]),
            passed_on: Cell::new(0),
        }
    }

    /// Passes on what is still held back, once no more output will come.
    pub async fn finish(&self) -> Result<(), ReaderGone> {
        let rest: Vec<Event> = self
            .channels
            .borrow_mut()
            .iter_mut()
            .map(|masked| Event::Output {
                channel: masked.channel,
                bytes: masked.stream.finish(),
                offset: masked.offset,
            })
            .collect();
        for event in rest {
            if matches!(&event, Event::Output { bytes, .. } if !bytes.is_empty()) {
                self.inner.emit(event).await?;
            }
        }
        Ok(())
    }

    fn mask(&self, channel: Channel, bytes: &[u8], offset: u64) -> Option<Event> {
        let mut channels = self.channels.borrow_mut();
        let masked = channels.iter_mut().find(|masked| masked.channel == channel)?;
        if masked.offset == masked.taken {
            masked.offset = offset;
        }
        masked.taken = offset + u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let out = masked.stream.push(bytes).into_owned();
        let held = u64::try_from(masked.stream.held()).unwrap_or(0);
        let first = std::mem::replace(&mut masked.offset, masked.taken.saturating_sub(held));
        (!out.is_empty()).then_some(Event::Output { channel, bytes: out, offset: first })
    }
}

impl EventSink for RedactingSink {
    fn streams(&self) -> bool {
        self.inner.streams()
    }

    fn emit(&self, event: Event) -> LocalBoxFuture<'_, Result<(), ReaderGone>> {
        let event = match event {
            Event::Output { channel, bytes, offset } => self.mask(channel, &bytes, offset),
            Event::Change(change) => Some(Event::Change(FileChange {
                path: self.redactor.text(&change.path),
                from: change.from.map(|from| self.redactor.text(&from)),
                ..change
            })),
            other => Some(other),
        };
        if let Some(Event::Output { bytes, .. }) = &event {
            self.passed_on.set(self.passed_on.get() + u64::try_from(bytes.len()).unwrap_or(0));
        }
        match event {
            Some(event) => self.inner.emit(event),
            None => futures_util::future::ready(Ok(())).boxed_local(),
        }
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
        let output = |bytes: &[u8], offset| Event::Output { channel: Channel::Stdout, bytes: bytes.to_vec(), offset };
        for event in [output(b"ab s3cr", 0), output(b"3t-value cd", 7), output(b" s3", 18)] {
            sink.emit(event).now_or_never().unwrap().unwrap();
        }
        sink.finish().now_or_never().unwrap().unwrap();
        let seen = recorder.0.borrow().clone();
        assert_eq!(seen, [output(b"ab ", 0), output(b"[redacted] cd", 3), output(b" ", 18), output(b"s3", 19)]);
    }
}
