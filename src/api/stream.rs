//! A call whose events are told while it runs: what REST and MCP share of it.

use std::rc::Rc;

use futures_channel::mpsc;
use futures_util::future::LocalBoxFuture;
use futures_util::{FutureExt, SinkExt, StreamExt};
use serde_json::Value;
use worker::{Response, ResponseBuilder};

use super::rest::{Door, Shared};
use crate::call::{Answered, Reply, ToolCall};
use crate::error::{Error, Result};
use crate::events::{Event, EventSink, ReaderGone};
use crate::sse;

/// Events on their way to a reader: a slow one slows the command.
const EVENTS_IN_FLIGHT: usize = 16;

/// One frame of an event stream.
pub(super) enum Frame {
    Event(Event),
    /// The result, kept whole: an error before the stream has begun becomes an ordinary answer.
    Last(Box<Answered<Reply<Value>>>),
}

impl Frame {
    /// As an event of the REST door.
    pub(super) fn encode(self, request_id: &str) -> String {
        match self {
            Self::Event(event) => match event.told() {
                Some((name, data)) => sse::encode(name, &serde_json::to_string(&data).unwrap_or_default()),
                None => sse::HEARTBEAT.to_owned(),
            },
            Self::Last(answered) => match answered.result {
                Ok(Reply::Output(output)) => sse::encode("result", &output.to_string()),
                // A call becomes a job before its stream begins.
                Ok(Reply::Job(job)) => sse::encode("result", &serde_json::to_string(&job).unwrap_or_default()),
                Err(error) => {
                    let problem = serde_json::to_string(&error.problem(request_id)).unwrap_or_default();
                    sse::encode("error", &problem)
                }
            },
        }
    }
}

/// Sends events to the reader of a stream; waits while it is behind.
struct Events(mpsc::Sender<Frame>);

impl EventSink for Events {
    fn streams(&self) -> bool {
        true
    }

    fn emit(&self, event: Event) -> LocalBoxFuture<'_, std::result::Result<(), ReaderGone>> {
        let mut sender = self.0.clone();
        async move { sender.send(Frame::Event(event)).await.map_err(|_| ReaderGone) }.boxed_local()
    }
}

/// The frames as a stream of events.
pub(super) fn events(
    first: Frame,
    rest: mpsc::Receiver<Frame>,
    encode: impl Fn(Frame) -> String + 'static,
) -> Result<Response> {
    let frames = futures_util::stream::once(async move { first }).chain(rest);
    let bytes = frames.map(move |frame| Ok::<Vec<u8>, worker::Error>(encode(frame).into_bytes()));
    let builder = ResponseBuilder::new()
        .with_header("content-type", "text/event-stream; charset=utf-8")
        .and_then(|builder| builder.with_header("cache-control", "no-cache, no-transform"))
        .and_then(|builder| builder.with_header("x-accel-buffering", "no"))
        .map_err(Error::internal)?;
    builder.from_stream(bytes.boxed_local()).map_err(Error::internal)
}

impl Door {
    /// Begins a call whose events are told. The first frame tells whether it was admitted.
    pub(super) async fn begin(&self, shared: Rc<Shared>, call: ToolCall) -> Result<(Frame, mpsc::Receiver<Frame>)> {
        let (sender, mut receiver) = mpsc::channel::<Frame>(EVENTS_IN_FLIGHT);
        let backend = self.backend.clone();
        self.context.wait_until(async move {
            let sink = Rc::new(Events(sender.clone()));
            let mut sender = sender;
            let answered = shared.registry.call(&*backend, call, sink).await;
            // The reader may have left.
            let _ = sender.send(Frame::Last(Box::new(answered))).await;
        });
        let first = receiver.next().await.ok_or_else(|| Error::internal("a call ended without a frame"))?;
        if let Frame::Event(Event::Admitted(standing)) = &first {
            self.standing.set(*standing);
        }
        Ok((first, receiver))
    }
}
