//! What a process wrote, both channels in the order in which it came, under one count of bytes.
//!
//! ```text
//!   0 …dropped… first ── segments of stdout and stderr ── total
//! ```
//!
//! Memory is bounded: the oldest bytes go first, and a reader that comes late sees it in the offsets. A character is never
//! torn between two segments: its first bytes are held back until the rest arrives or the log ends.

use std::collections::VecDeque;

use sandbox_api::{EncodedBytes, LogChannel, LogChunk, ProcessLogs};

use crate::serve::exec::unfinished_character;

/// Memory of one log.
pub(super) const LOG_BYTES: usize = 1 << 20;

/// What a segment costs beside its bytes.
const SEGMENT_BYTES: usize = size_of::<Segment>();

/// Most chunks of one answer.
const MOST_CHUNKS: usize = 1000;

/// The log of one process.
pub(super) struct Log {
    limit: usize,
    bytes: VecDeque<u8>,
    segments: VecDeque<Segment>,
    /// Offset of the first byte that is kept.
    first: u64,
    /// Offset after the last one.
    total: u64,
    /// Beginnings of characters, by channel.
    held: [Vec<u8>; 2],
}

/// Bytes of one channel that came without the other in between.
struct Segment {
    channel: LogChannel,
    /// Offset after its last byte.
    end: u64,
}

impl Log {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, bytes: VecDeque::new(), segments: VecDeque::new(), first: 0, total: 0, held: Default::default() }
    }

    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Bytes of memory held.
    pub(super) fn held_bytes(&self) -> usize {
        self.bytes.capacity() + self.segments.capacity() * SEGMENT_BYTES
    }

    /// Whether a reader at `cursor` may lag behind further without losing anything for now.
    pub(super) fn has_room(&self, cursor: u64) -> bool {
        self.total.saturating_sub(cursor) < self.limit as u64 / 2
    }

    pub(super) fn push(&mut self, channel: LogChannel, bytes: &[u8]) {
        let mut whole = std::mem::take(self.held(channel));
        whole.extend_from_slice(bytes);
        let held = whole.split_off(whole.len() - unfinished_character(&whole));
        *self.held(channel) = held;
        self.append(channel, &whole);
    }

    /// Nothing more will come for now: what was held back is no beginning of a character.
    pub(super) fn flush(&mut self) {
        for channel in [LogChannel::Stdout, LogChannel::Stderr] {
            let rest = std::mem::take(self.held(channel));
            self.append(channel, &rest);
        }
    }

    /// Gives back memory once nothing more will be written.
    pub(super) fn compact(&mut self) {
        self.bytes.shrink_to_fit();
        self.segments.shrink_to_fit();
    }

    fn held(&mut self, channel: LogChannel) -> &mut Vec<u8> {
        let [stdout, stderr] = &mut self.held;
        match channel {
            LogChannel::Stdout => stdout,
            LogChannel::Stderr => stderr,
        }
    }

    fn append(&mut self, channel: LogChannel, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.make_room(bytes.len() + SEGMENT_BYTES);
        self.bytes.extend(bytes);
        self.total += bytes.len() as u64;
        match self.segments.back_mut() {
            Some(last) if last.channel == channel => last.end = self.total,
            _ => self.segments.push_back(Segment { channel, end: self.total }),
        }
    }

    fn make_room(&mut self, coming: usize) {
        while self.bytes.len() + self.segments.len() * SEGMENT_BYTES + coming > self.limit {
            let Some(oldest) = self.segments.front() else { return };
            let surplus = self.bytes.len() + self.segments.len() * SEGMENT_BYTES + coming - self.limit;
            let length = (oldest.end - self.first) as usize;
            let mut dropped = surplus.min(length);
            // The rest begins with a whole character.
            let torn = self.bytes.iter().skip(dropped).take((length - dropped).min(3));
            dropped += torn.take_while(|byte| **byte & 0xc0 == 0x80).count();
            self.bytes.drain(..dropped);
            self.first += dropped as u64;
            if dropped == length {
                self.segments.pop_front();
            }
        }
    }

    /// The bytes at `cursor`, or at what is kept after it: at most `most`, of one channel, with their offset. Nothing when
    /// `most` is too few for the character there; 4 are enough for any.
    pub(super) fn piece(&self, cursor: u64, most: usize) -> Option<(LogChannel, u64, Vec<u8>)> {
        let start = cursor.max(self.first);
        if start >= self.total {
            return None;
        }
        let index = self.segments.partition_point(|segment| segment.end <= start);
        let segment = self.segments.get(index)?;
        let length = (segment.end - start) as usize;
        let skip = (start - self.first) as usize;
        let mut bytes: Vec<u8> = self.bytes.range(skip..skip + length.min(most)).copied().collect();
        if bytes.len() < length {
            let torn = unfinished_character(&bytes);
            bytes.truncate(bytes.len() - torn);
            if bytes.is_empty() {
                return None;
            }
        }
        Some((segment.channel, start, bytes))
    }

    /// The same, encoded, with the cursor after it.
    pub(super) fn chunk(&self, cursor: u64, most: usize) -> Option<(LogChunk, u64)> {
        let (channel, offset, bytes) = self.piece(cursor, most)?;
        let EncodedBytes { data, encoding } = EncodedBytes::encode(&bytes);
        Some((LogChunk { channel, data, encoding, offset }, offset + bytes.len() as u64))
    }

    /// What there is from `offset`, at most `most` bytes.
    pub(super) fn read(&self, offset: u64, most: usize, ended: bool) -> ProcessLogs {
        let (mut cursor, mut left, mut chunks) = (offset.min(self.total), most, Vec::new());
        while left > 0 && chunks.len() < MOST_CHUNKS {
            // One character fits into any answer, or reading would never go on.
            let chunk = self.chunk(cursor, left).or_else(|| chunks.is_empty().then(|| self.chunk(cursor, 4)).flatten());
            let Some((chunk, next)) = chunk else { break };
            left = left.saturating_sub((next - chunk.offset) as usize);
            chunks.push(chunk);
            cursor = next;
        }
        ProcessLogs {
            chunks,
            first_offset: self.first,
            next_offset: cursor,
            total_bytes: self.total,
            truncated_before: (offset < self.first).then_some(self.first),
            ended: ended && cursor == self.total,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUT: LogChannel = LogChannel::Stdout;
    const ERR: LogChannel = LogChannel::Stderr;

    fn bytes(logs: &ProcessLogs, channel: LogChannel) -> Vec<u8> {
        let of_channel = logs.chunks.iter().filter(|chunk| chunk.channel == channel);
        of_channel
            .flat_map(|chunk| EncodedBytes { data: chunk.data.clone(), encoding: chunk.encoding }.decode())
            .flatten()
            .collect()
    }

    #[test]
    fn both_channels_are_kept_in_order_and_exactly() {
        let mut log = Log::new(LOG_BYTES);
        for (channel, piece) in
            [(OUT, b"caf\xc3".as_slice()), (ERR, b"x"), (OUT, b"\xa9\xe2\x98"), (OUT, b"\x95\n"), (ERR, b"\xff\xfe")]
        {
            log.push(channel, piece);
        }
        log.push(OUT, b"\xe2\x98");
        log.flush();
        let logs = log.read(0, usize::MAX, true);
        assert_eq!(bytes(&logs, OUT), b"caf\xc3\xa9\xe2\x98\x95\n\xe2\x98");
        assert_eq!(bytes(&logs, ERR), b"x\xff\xfe");
        assert_eq!(logs.chunks[0].data, "caf");
        assert_eq!((logs.next_offset, logs.total_bytes, logs.ended), (14, 14, true));
    }

    #[test]
    fn reading_in_small_pieces_gives_the_same_and_never_tears_a_character() {
        let mut log = Log::new(LOG_BYTES);
        log.push(OUT, "ä€😀x".repeat(50).as_bytes());
        log.push(ERR, b"e");
        for most in 1..20 {
            let (mut cursor, mut all) = (0, Vec::new());
            loop {
                let logs = log.read(cursor, most, true);
                all.extend(bytes(&logs, OUT));
                assert!(logs.chunks.iter().all(|chunk| chunk.encoding == sandbox_api::Encoding::Utf8));
                cursor = logs.next_offset;
                if logs.ended {
                    break;
                }
            }
            assert_eq!(all, "ä€😀x".repeat(50).as_bytes(), "{most}");
        }
    }

    #[test]
    fn memory_stays_bounded_and_late_readers_are_told() {
        for (size, alternate) in [(7, false), (1, true), (5000, false), (200_000, true)] {
            let mut log = Log::new(100_000);
            for round in 0..20_000usize.min(40_000_000 / size) {
                let channel = if alternate && round % 2 == 1 { ERR } else { OUT };
                log.push(channel, &vec![b'x'; size]);
                assert!(log.held_bytes() < 3 * (100_000 + size), "{size} {}", log.held_bytes());
            }
            let logs = log.read(0, usize::MAX, false);
            assert_eq!(logs.truncated_before, Some(logs.first_offset));
            assert!(logs.first_offset > 0 && logs.chunks[0].offset == logs.first_offset);
            assert_eq!(log.read(logs.total_bytes + 5, 10, true).next_offset, logs.total_bytes);
        }
    }

    #[test]
    fn what_is_left_of_text_is_text() {
        let mut log = Log::new(1000);
        for _ in 0..500 {
            log.push(OUT, "😀".as_bytes());
            assert!(log.read(0, usize::MAX, false).chunks[0].data.starts_with('😀'));
        }
    }
}
