//! What a job's command wrote: kept in pieces as it comes, and told by offset. An offset counts the bytes of both channels.

use sandbox_api::{EncodedBytes, Encoding, LogChannel};
use serde::Deserialize;

use super::actor::Inner;
use super::record::{JobLog, JobLogChunk, LogQuestion};
use super::steps::step_at;
use crate::error::{Error, Result};
use crate::events::Channel;

/// The newest bytes that are kept.
const KEPT_BYTES: u64 = 4 * 1024 * 1024;

/// Pieces read for one answer.
const MOST_PIECES: i64 = 500;

#[derive(Deserialize)]
struct Piece {
    start: f64,
    bytes: f64,
    channel: String,
    data: String,
    encoding: Encoding,
}

#[derive(Deserialize)]
struct Number {
    number: f64,
}

impl Inner {
    /// Keeps what was written to a channel. What is kept of `source` are then its bytes up to `end`: a source is a channel of the command,
    /// or the job of a step.
    pub(super) fn keep_log(&self, channel: Channel, bytes: &[u8], source: &str, end: u64) -> Result<()> {
        let start = self.log_end()?;
        let EncodedBytes { data, encoding } = EncodedBytes::encode(bytes);
        let encoding = if encoding == Encoding::Base64 { "base64" } else { "utf-8" };
        let length = u64::try_from(bytes.len()).unwrap_or(0);
        let name = channel.name();
        self.write(
            "INSERT INTO log (start, bytes, channel, data, encoding) VALUES (?, ?, ?, ?, ?)",
            vec![whole(start).into(), whole(length).into(), name.into(), data.into(), encoding.into()],
        )?;
        // In the same turn, so that after a restart nothing is missing and nothing comes twice.
        self.write(
            "INSERT OR REPLACE INTO log_ends (channel, end) VALUES (?, ?)",
            vec![source.into(), whole(end).into()],
        )?;
        let kept_from = (start + length).saturating_sub(KEPT_BYTES);
        self.write("DELETE FROM log WHERE start + bytes <= ?", vec![whole(kept_from).into()])
    }

    fn number(&self, statement: &str, values: Vec<worker::SqlStorageValue>) -> Result<Option<u64>> {
        let cursor = self.state.storage().sql().exec(statement, values);
        let rows: Vec<Number> = cursor.and_then(|cursor| cursor.to_array()).map_err(Error::internal)?;
        Ok(rows.first().map(|row| unsigned(row.number)))
    }

    pub(super) fn log_end(&self) -> Result<u64> {
        let statement = "SELECT start + bytes AS number FROM log ORDER BY start DESC LIMIT 1";
        Ok(self.number(statement, Vec::new())?.unwrap_or(0))
    }

    /// How much of each channel is kept, of the attempt that runs.
    pub(super) fn passed_on(&self) -> Result<[u64; 2]> {
        Ok([self.copied(Channel::Stdout.name())?, self.copied(Channel::Stderr.name())?])
    }

    /// How much of a source is kept.
    pub(super) fn copied(&self, source: &str) -> Result<u64> {
        let statement = "SELECT end AS number FROM log_ends WHERE channel = ?";
        Ok(self.number(statement, vec![source.into()])?.unwrap_or(0))
    }

    /// Another attempt writes from its beginning.
    pub(super) fn forget_passed_on(&self) -> Result<()> {
        self.write("DELETE FROM log_ends", Vec::new())
    }

    pub(super) fn log(&self, question: &LogQuestion) -> Result<JobLog> {
        let stored = self.existing()?;
        let (state, steps) = (stored.job.state, self.log_steps(&stored)?);
        let end = self.log_end()?;
        let statement =
            "SELECT start, bytes, channel, data, encoding FROM log WHERE start + bytes > ? ORDER BY start LIMIT ?";
        let values = vec![whole(question.offset).into(), MOST_PIECES.into()];
        let cursor = self.state.storage().sql().exec(statement, values);
        let pieces: Vec<Piece> = cursor.and_then(|cursor| cursor.to_array()).map_err(Error::internal)?;
        let first = pieces.first().map_or(end, |piece| unsigned(piece.start));
        let mut log = JobLog {
            chunks: Vec::new(),
            next_offset: question.offset.max(first).min(end.max(question.offset)),
            truncated_before: (first > question.offset && end > question.offset).then_some(first),
            ended: false,
            state,
        };
        let mut left = question.limit;
        for piece in pieces {
            if left == 0 {
                break;
            }
            let start = unsigned(piece.start);
            let known = log.next_offset.saturating_sub(start);
            let wanted = (unsigned(piece.bytes) - known.min(unsigned(piece.bytes))).min(left);
            log.chunks.extend(part(&piece, known, wanted, step_at(&steps, piece.start))?);
            log.next_offset = start + known + wanted;
            left -= wanted;
        }
        log.ended = state.is_over() && log.next_offset >= end;
        Ok(log)
    }
}

/// `wanted` bytes of a piece after its first `known` ones.
fn part(piece: &Piece, known: u64, wanted: u64, step: Option<String>) -> Result<Option<JobLogChunk>> {
    let encoded = EncodedBytes { data: piece.data.clone(), encoding: piece.encoding };
    let bytes = encoded.decode().ok_or_else(|| Error::internal("a piece of a log is not readable"))?;
    let index = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX);
    let bytes = bytes.get(index(known)..index(known + wanted)).unwrap_or_default();
    if bytes.is_empty() {
        return Ok(None);
    }
    let EncodedBytes { data, encoding } = EncodedBytes::encode(bytes);
    let channel = if piece.channel == Channel::Stderr.name() { LogChannel::Stderr } else { LogChannel::Stdout };
    Ok(Some(JobLogChunk { channel, data, encoding, offset: unsigned(piece.start) + known, step }))
}

fn whole(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A number of SQLite, as JavaScript gives it.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "offsets are whole and below 2^53")]
fn unsigned(number: f64) -> u64 {
    number as u64
}
