//! Server-sent events: a parser, and the stream of one tool call.

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream::BoxStream};
use serde_json::Value;

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Value of its `event` field; `message` without one.
    pub name: String,
    /// Its `data` lines, joined by line feeds.
    pub data: String,
}

/// Turns bytes, split anywhere, into events. Comments are counted and dropped.
#[derive(Default)]
pub struct Parser {
    buffer: Vec<u8>,
    name: Option<String>,
    data: Vec<String>,
    comments: usize,
}

impl Parser {
    /// Events that `bytes` complete.
    ///
    /// # Panics
    /// When a line is not UTF-8: an event stream is text.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<Event> {
        self.buffer.extend_from_slice(bytes);
        let mut events = Vec::new();
        while let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.buffer.drain(..=end).collect();
            let line = String::from_utf8(line).expect("an event stream is UTF-8");
            events.extend(self.line(line.trim_end_matches(['\n', '\r'])));
        }
        events
    }

    /// Comments so far; heartbeats are comments.
    pub fn comments(&self) -> usize {
        self.comments
    }

    fn line(&mut self, line: &str) -> Option<Event> {
        if line.is_empty() {
            let data = std::mem::take(&mut self.data);
            let name = self.name.take();
            return (!data.is_empty())
                .then(|| Event { name: name.unwrap_or_else(|| "message".into()), data: data.join("\n") });
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "" => self.comments += 1,
            "event" => self.name = Some(value.to_owned()),
            "data" => self.data.push(value.to_owned()),
            _ => {}
        }
        None
    }
}

/// The event stream of one tool call.
pub struct EventStream {
    chunks: BoxStream<'static, Result<Bytes, String>>,
    parser: Parser,
    ready: std::collections::VecDeque<Event>,
}

/// How a stream ended.
#[derive(Clone, Debug)]
pub enum Terminal {
    /// `result`: the tool's output.
    Result(Value),
    /// `error`: the problem object.
    Error(Value),
}

/// A whole stream.
#[derive(Clone, Debug)]
pub struct Transcript {
    /// Bytes of standard output, as the events gave them.
    pub stdout: Vec<u8>,
    /// Bytes of standard error, as the events gave them.
    pub stderr: Vec<u8>,
    /// Its only terminal event.
    pub terminal: Terminal,
    /// Comments between the events.
    pub comments: usize,
}

impl EventStream {
    pub(crate) fn new(chunks: impl Stream<Item = Result<Bytes, String>> + Send + 'static) -> Self {
        Self { chunks: chunks.boxed(), parser: Parser::default(), ready: std::collections::VecDeque::new() }
    }

    /// The next event; `None` at the end of the stream.
    ///
    /// # Panics
    /// When the connection breaks: the Worker ends a stream cleanly, with its terminal event, whatever happened behind it.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            let chunk = self.chunks.next().await?.unwrap_or_else(|error| panic!("the stream broke: {error}"));
            self.ready.extend(self.parser.push(&chunk));
        }
    }

    /// Reads to the end and checks the protocol: offsets without gaps, exactly one terminal event, nothing after it.
    ///
    /// # Panics
    /// When the stream does not keep to it.
    pub async fn transcript(mut self) -> Transcript {
        let (mut stdout, mut stderr, mut terminal) = (Vec::new(), Vec::new(), None);
        while let Some(event) = self.next().await {
            assert!(terminal.is_none(), "an event after the terminal one: {event:?}");
            let data: Value = serde_json::from_str(&event.data).expect("the data of an event is JSON");
            match event.name.as_str() {
                "stdout" => append(&mut stdout, &data),
                "stderr" => append(&mut stderr, &data),
                "result" => terminal = Some(Terminal::Result(data)),
                "error" => terminal = Some(Terminal::Error(data)),
                other => panic!("an event that the contract does not have: {other}"),
            }
        }
        let terminal = terminal.expect("a stream ends in a result or an error");
        Transcript { stdout, stderr, terminal, comments: self.parser.comments() }
    }
}

fn append(channel: &mut Vec<u8>, data: &Value) {
    let text = data["data"].as_str().expect("a chunk has data");
    let bytes = match data["encoding"].as_str() {
        Some("base64") => STANDARD.decode(text).expect("the chunk is base64 as it says"),
        Some("utf-8") => text.as_bytes().to_vec(),
        other => panic!("an encoding that the contract does not have: {other:?}"),
    };
    assert_eq!(data["offset"].as_u64(), Some(channel.len() as u64), "offsets have no gap and no overlap");
    channel.extend(bytes);
}

impl Transcript {
    /// The tool's output.
    ///
    /// # Panics
    /// When the stream ended in an error.
    #[track_caller]
    pub fn result(&self) -> &Value {
        match &self.terminal {
            Terminal::Result(value) => value,
            Terminal::Error(problem) => panic!("the call failed: {problem}"),
        }
    }

    /// The problem object.
    ///
    /// # Panics
    /// When the stream ended in a result.
    #[track_caller]
    pub fn error(&self) -> &Value {
        match &self.terminal {
            Terminal::Error(problem) => problem,
            Terminal::Result(value) => panic!("the call succeeded: {value}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_split_anywhere_are_the_same_events() {
        let text = "event: stdout\r\ndata: {\"a\":\ndata: \"é\"}\n\n: beat\n\ndata: x\n\n";
        let whole = Parser::default().push(text.as_bytes());
        let mut parser = Parser::default();
        let split: Vec<Event> = text.bytes().flat_map(|byte| parser.push(&[byte])).collect();
        assert_eq!(whole, split);
        assert_eq!(whole.len(), 2);
        assert_eq!(whole[0], Event { name: "stdout".into(), data: "{\"a\":\n\"é\"}".into() });
        assert_eq!(whole[1].name, "message");
        assert_eq!(parser.comments(), 1);
    }
}
