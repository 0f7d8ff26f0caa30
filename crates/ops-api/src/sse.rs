//! Server-sent events: the decoder for streams of a sandbox, and the encoder of the doors.
//!
//! The decoder takes bytes cut anywhere, also inside a character, and bounds what it holds. It reads what this product
//! writes: `event` and `data` lines, comments, LF or CRLF. `id` and `retry` have no use here.

/// Most bytes of one event. `sandboxd` sends chunks of at most 64 KiB and one result of at most two outputs of 8 MiB.
const LARGEST_EVENT: usize = 64 * 1024 * 1024;

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub name: String,
    pub data: String,
}

/// The stream is not one that this product writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("an event of the stream is larger than {LARGEST_EVENT} bytes")]
    TooLarge,
    #[error("an event of the stream is not UTF-8")]
    NotText,
}

/// Takes bytes, gives events.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// Bytes of `buffer` that hold no line end.
    scanned: usize,
    name: String,
    data: Option<String>,
}

impl Decoder {
    /// Adds `bytes` and returns the events that are complete now.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<Event>, DecodeError> {
        self.buffer.extend_from_slice(bytes);
        let buffer = std::mem::take(&mut self.buffer);
        let mut events = Vec::new();
        let mut line_start = 0;
        let mut search_from = self.scanned;
        while let Some(offset) = buffer.get(search_from..).unwrap_or_default().iter().position(|&byte| byte == b'\n') {
            let line_end = search_from + offset;
            let line = buffer.get(line_start..line_end).unwrap_or_default();
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let line = std::str::from_utf8(line).map_err(|_| DecodeError::NotText)?;
            self.line(line, &mut events);
            line_start = line_end + 1;
            search_from = line_start;
        }
        self.buffer = buffer.get(line_start..).unwrap_or_default().to_vec();
        self.scanned = self.buffer.len();
        if self.buffer.len() + self.data.as_ref().map_or(0, String::len) > LARGEST_EVENT {
            return Err(DecodeError::TooLarge);
        }
        Ok(events)
    }

    fn line(&mut self, line: &str, events: &mut Vec<Event>) {
        if line.is_empty() {
            let name = std::mem::take(&mut self.name);
            if let Some(data) = self.data.take() {
                events.push(Event { name, data });
            }
            return;
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => self.name = value.to_owned(),
            "data" => match &mut self.data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                None => self.data = Some(value.to_owned()),
            },
            _ => {}
        }
    }
}

/// One event as it stands on the wire. `data` is JSON and so holds no line end.
pub fn encode(name: &str, data: &str) -> String {
    format!("event: {name}\ndata: {data}\n\n")
}

/// A comment, which keeps the connection alive and no client sees.
pub const HEARTBEAT: &str = ": heartbeat\n\n";

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn events_survive_any_cut() {
        let wire = format!("{}{HEARTBEAT}{}", encode("stdout", "{\"data\":\"café ☕\"}"), encode("exit", "{}"));
        for cut in 0..=wire.len() {
            let (first, second) = wire.as_bytes().split_at(cut);
            let mut decoder = Decoder::default();
            let mut events = decoder.push(first).unwrap();
            events.extend(decoder.push(second).unwrap());
            assert_eq!(events.len(), 2, "cut at {cut}");
            assert_eq!(events[0], Event { name: "stdout".into(), data: "{\"data\":\"café ☕\"}".into() });
        }
    }

    #[test]
    fn carriage_returns_and_several_data_lines_are_read() {
        let events = Decoder::default().push(b"event: a\r\ndata: 1\r\ndata: 2\r\n\r\n").unwrap();
        assert_eq!(events, [Event { name: "a".into(), data: "1\n2".into() }]);
    }

    #[test]
    fn an_unfinished_event_is_not_given() {
        assert_eq!(Decoder::default().push(b"event: exit\ndata: {}\n").unwrap(), []);
    }

    proptest! {
        #[test]
        fn no_bytes_panic_the_decoder(chunks: Vec<Vec<u8>>) {
            let mut decoder = Decoder::default();
            for chunk in chunks {
                let _ = decoder.push(&chunk);
            }
        }
    }
}
