//! The output of one channel (stdout or stderr): what is kept of it, and how it is cut into chunks.
//!
//! The first bytes are kept as the head, the last ones as the tail; what lies between may be dropped.
//!
//! ```text
//!   0 ── head ── head.len()   …dropped…   tail_start ── tail ── total
//! ```
//!
//! Readers are cursors into this one store, so a stream costs no memory of its own. The tail never gives up bytes that
//! a reader has yet to see; [`Channel::has_room`] is how a slow reader slows the command down.

use std::collections::VecDeque;

use sandbox_api::{CapturedOutput, EncodedBytes, OutputChunk};

/// How far a reader may lag behind the command before the command has to wait.
const WINDOW_BYTES: u64 = 128 << 10;

/// Largest chunk of one event.
const CHUNK_BYTES: usize = 32 << 10;

/// Output of one channel.
pub(super) struct Channel {
    limit: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    tail_start: u64,
    total: u64,
}

impl Channel {
    /// Keeps `limit` bytes for the final answer.
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, head: Vec::new(), tail: VecDeque::new(), tail_start: 0, total: 0 }
    }

    fn head_capacity(&self) -> usize {
        self.limit.div_ceil(2)
    }

    fn tail_capacity(&self) -> usize {
        (self.limit - self.head_capacity()).max(WINDOW_BYTES as usize)
    }

    /// Appends output; `slowest` is the cursor of the slowest reader.
    pub(super) fn push(&mut self, bytes: &[u8], slowest: u64) {
        let into_head = bytes.len().min(self.head_capacity() - self.head.len());
        let (head, tail) = bytes.split_at(into_head);
        self.head.extend_from_slice(head);
        if self.tail.is_empty() {
            self.tail_start = self.total + into_head as u64;
        }
        self.tail.extend(tail);
        self.total += bytes.len() as u64;
        self.trim(self.tail_capacity(), slowest);
    }

    fn trim(&mut self, capacity: usize, slowest: u64) {
        let surplus = self.tail.len().saturating_sub(capacity) as u64;
        let droppable = surplus.min(slowest.saturating_sub(self.tail_start));
        self.tail.drain(..droppable as usize);
        self.tail_start += droppable;
    }

    /// Gives back memory once nothing more will be written; `slowest` as in [`Channel::push`].
    pub(super) fn compact(&mut self, slowest: u64) {
        if self.total <= self.limit as u64 {
            self.head.shrink_to_fit();
        }
        self.trim(self.limit - self.head_capacity().min(self.limit), slowest);
        self.tail.shrink_to_fit();
    }

    /// Whether the command may write on although the slowest reader is at `slowest`.
    pub(super) fn has_room(&self, slowest: u64) -> bool {
        self.total.saturating_sub(slowest) < WINDOW_BYTES
    }

    /// Bytes of memory held.
    pub(super) fn held_bytes(&self) -> usize {
        self.head.capacity() + self.tail.capacity()
    }

    /// The next chunk at `cursor` and the cursor after it; `None` when there is nothing to tell yet. Bytes that may be
    /// the beginning of a character are held back until the rest arrives or `ended` says that it never will.
    pub(super) fn next_chunk(&self, cursor: u64, ended: bool) -> Option<(OutputChunk, u64)> {
        let head_end = self.head.len() as u64;
        let gap = self.tail_start > head_end && !self.tail.is_empty();
        let start = if gap && cursor >= head_end { cursor.max(self.tail_start) } else { cursor };
        if start >= self.total {
            return None;
        }
        let stop = if gap && start < head_end { head_end } else { self.total };
        let length = ((stop - start) as usize).min(CHUNK_BYTES);
        let mut bytes = self.copy(start, length);
        let continues = !(start + length as u64 == stop && (ended || stop == head_end && gap));
        if continues {
            bytes.truncate(bytes.len() - unfinished_character(&bytes));
            if bytes.is_empty() {
                return None;
            }
        }
        let end = start + bytes.len() as u64;
        let EncodedBytes { data, encoding } = EncodedBytes::encode(&bytes);
        Some((OutputChunk { data, encoding, offset: start }, end))
    }

    /// Copies `length` bytes from `start`; the range lies within what is kept and does not cross a gap.
    fn copy(&self, start: u64, length: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(length);
        let head_start = (start as usize).min(self.head.len());
        let from_head = length.min(self.head.len() - head_start);
        bytes.extend_from_slice(&self.head[head_start..head_start + from_head]);
        let rest = length - from_head;
        if rest > 0 {
            let skip = (start + from_head as u64 - self.tail_start) as usize;
            bytes.extend(self.tail.range(skip..skip + rest));
        }
        bytes
    }

    /// The final answer.
    pub(super) fn captured(&self) -> CapturedOutput {
        let truncated = self.total > self.limit as u64;
        let bytes = if truncated {
            self.head_and_tail()
        } else {
            let mut bytes = self.head.clone();
            bytes.extend(&self.tail);
            bytes
        };
        let EncodedBytes { data, encoding } = EncodedBytes::encode(&bytes);
        CapturedOutput { data, encoding, truncated, total_bytes: self.total }
    }

    /// Head, a line that says what is missing, tail; cut between characters where the output is text.
    fn head_and_tail(&self) -> Vec<u8> {
        let head = &self.head[..self.head.len() - unfinished_character(&self.head)];
        let tail_length = self.limit - self.head_capacity();
        let tail: Vec<u8> = self.tail.range(self.tail.len() - tail_length.min(self.tail.len())..).copied().collect();
        let continuation = tail.iter().take(3).take_while(|byte| **byte & 0xc0 == 0x80).count();
        let tail = &tail[continuation..];
        let left_out = self.total - (head.len() + tail.len()) as u64;
        let mut bytes = head.to_vec();
        bytes.extend_from_slice(format!("\n[{left_out} bytes left out]\n").as_bytes());
        bytes.extend_from_slice(tail);
        bytes
    }
}

/// How many bytes at the end are the beginning of a character whose rest is missing: 0 to 3.
pub(in crate::serve) fn unfinished_character(bytes: &[u8]) -> usize {
    for back in 1..=bytes.len().min(3) {
        let byte = bytes[bytes.len() - back];
        let needed = match byte {
            0x00..=0x7f => return 0,
            0x80..=0xbf => continue,
            0xc2..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xf4 => 4,
            _ => return 0,
        };
        // Only a valid prefix is worth waiting for: `e0 80` can never become a character.
        let prefix = &bytes[bytes.len() - back..];
        let hopeful = std::str::from_utf8(prefix).is_err_and(|error| error.error_len().is_none());
        return if back < needed && hopeful { back } else { 0 };
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandbox_api::Encoding;

    const NO_READER: u64 = u64::MAX;

    fn text(chunk: &OutputChunk) -> Vec<u8> {
        EncodedBytes { data: chunk.data.clone(), encoding: chunk.encoding }.decode().expect("own encoding")
    }

    /// Feeds pieces and reads after each, as a live stream does.
    fn stream(pieces: &[&[u8]]) -> Vec<OutputChunk> {
        let mut channel = Channel::new(1 << 20);
        let mut cursor = 0;
        let mut chunks = Vec::new();
        for (index, piece) in pieces.iter().enumerate() {
            channel.push(piece, cursor);
            while let Some((chunk, next)) = channel.next_chunk(cursor, index + 1 == pieces.len()) {
                chunks.push(chunk);
                cursor = next;
            }
        }
        chunks
    }

    #[test]
    fn a_character_that_straddles_pieces_arrives_whole() {
        let chunks = stream(&[b"caf\xc3", b"\xa9\xe2\x98", b"\x95!"]);
        assert!(chunks.iter().all(|chunk| chunk.encoding == Encoding::Utf8), "{chunks:?}");
        assert_eq!(chunks.iter().map(|chunk| chunk.data.as_str()).collect::<String>(), "café☕!");
        let mut expected = 0;
        for chunk in &chunks {
            assert_eq!(chunk.offset, expected);
            expected += chunk.data.len() as u64;
        }
    }

    #[test]
    fn an_unfinished_character_at_the_end_is_flushed_exactly() {
        let chunks = stream(&[b"ok\xe2\x98"]);
        assert_eq!(chunks.iter().flat_map(text).collect::<Vec<u8>>(), b"ok\xe2\x98");
    }

    #[test]
    fn bytes_that_are_no_text_are_not_held_back() {
        let chunks = stream(&[b"\xff\xfe", b"\x00\x80"]);
        assert_eq!(chunks.len(), 2);
        assert_eq!(chunks.iter().flat_map(text).collect::<Vec<u8>>(), [0xff, 0xfe, 0x00, 0x80]);
    }

    #[test]
    fn head_and_tail_survive_a_flood_and_memory_stays_bounded() {
        let mut channel = Channel::new(1000);
        for number in 0..100_000u32 {
            channel.push(format!("{number:07}\n").as_bytes(), NO_READER);
            assert!(channel.held_bytes() < 1 << 20);
        }
        let captured = channel.captured();
        assert!(captured.truncated);
        assert_eq!(captured.total_bytes, 800_000);
        assert!(captured.data.starts_with("0000000\n0000001\n"));
        assert!(captured.data.ends_with("0099999\n"));
        assert!(captured.data.contains("[799000 bytes left out]"));
    }

    #[test]
    fn output_of_exactly_the_limit_is_whole() {
        let mut channel = Channel::new(10);
        channel.push(b"0123456789", NO_READER);
        channel.compact(NO_READER);
        let captured = channel.captured();
        assert_eq!((captured.data.as_str(), captured.truncated), ("0123456789", false));
    }

    #[test]
    fn a_cut_never_splits_a_character() {
        for limit in 1..24 {
            let mut channel = Channel::new(limit);
            channel.push("ä€😀".repeat(20).as_bytes(), NO_READER);
            assert_eq!(channel.captured().encoding, Encoding::Utf8, "limit {limit}");
        }
    }

    #[test]
    fn a_slow_reader_loses_nothing_and_holds_the_command_back() {
        let mut channel = Channel::new(64);
        let mut written = 0u64;
        while channel.has_room(0) {
            channel.push(&[b'x'; 4096], 0);
            written += 4096;
        }
        assert!(written <= WINDOW_BYTES + 4096);
        let mut cursor = 0;
        while let Some((chunk, next)) = channel.next_chunk(cursor, true) {
            assert_eq!(chunk.offset, cursor);
            cursor = next;
        }
        assert_eq!(cursor, written);
    }

    #[test]
    fn a_late_reader_sees_the_gap_in_the_offsets() {
        let mut channel = Channel::new(1000);
        channel.push(&vec![b'x'; 1 << 20], NO_READER);
        let (first, cursor) = channel.next_chunk(0, true).expect("the head");
        assert_eq!((first.offset, cursor), (0, 500));
        let (second, _) = channel.next_chunk(cursor, true).expect("the tail");
        assert_eq!(second.offset, (1 << 20) - WINDOW_BYTES);
    }

    #[test]
    fn a_limit_of_zero_keeps_nothing_but_the_count() {
        let mut channel = Channel::new(0);
        channel.push(b"hello", NO_READER);
        channel.compact(NO_READER);
        let captured = channel.captured();
        assert_eq!((captured.truncated, captured.total_bytes), (true, 5));
        assert!(captured.data.contains("5 bytes left out"));
    }
}
