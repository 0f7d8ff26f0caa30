//! Streams of a process: its log as it comes, and the end of a wait. Both carry heartbeats and end in one terminal event.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use sandbox_api::{HEARTBEAT_SECONDS, LogChannel, LogsEnd, OutputChunk, event, process_event};
use tokio::time::timeout;

use super::process::Process;
use super::wait::{Condition, wait};
use crate::serve::events::{encode, heartbeat};

/// Silence until a heartbeat.
const HEARTBEAT: Duration = Duration::from_secs(HEARTBEAT_SECONDS);
/// Largest chunk of one event.
const CHUNK_BYTES: usize = 32 << 10;

/// What is kept from `cursor` on, then what comes. A reader that is slower than the process sees a jump in the offsets; it
/// never holds the process up.
pub(super) fn follow(process: Arc<Process>, cursor: u64) -> impl Stream<Item = Result<Bytes, Infallible>> {
    stream::unfold(Some((process, cursor)), |reader| async move {
        let (process, cursor) = reader?;
        loop {
            let (chunk, over) = {
                let state = process.state();
                (state.log.chunk(cursor, CHUNK_BYTES), state.is_over())
            };
            if let Some((chunk, next)) = chunk {
                let name = match chunk.channel {
                    LogChannel::Stdout => event::STDOUT,
                    LogChannel::Stderr => event::STDERR,
                };
                let chunk = OutputChunk { data: chunk.data, encoding: chunk.encoding, offset: chunk.offset };
                return Some((Ok(encode(name, &chunk)?), Some((process, next))));
            }
            if over {
                let next_offset = process.state().log.total();
                let end = LogsEnd { next_offset, process: process.info() };
                return Some((Ok(encode(process_event::END, &end)?), None));
            }
            let more = process.until(|state| state.log.total() > cursor || state.is_over());
            if timeout(HEARTBEAT, more).await.is_err() {
                return Some((Ok(heartbeat()?), Some((process, cursor))));
            }
        }
    })
}

/// Heartbeats until the wait is over, then how it came to its end.
pub(super) fn waiting(
    process: Arc<Process>,
    condition: Condition,
    deadline: Duration,
) -> impl Stream<Item = Result<Bytes, Infallible>> {
    let waited = Box::pin(async move { wait(&process, condition, deadline).await });
    let first = stream::iter(heartbeat().map(Ok));
    first.chain(stream::unfold(Some(waited), |waited| async move {
        let mut waited = waited?;
        match timeout(HEARTBEAT, &mut waited).await {
            Ok(waited) => Some((Ok(encode(process_event::WAITED, &waited)?), None)),
            Err(_) => Some((Ok(heartbeat()?), Some(waited))),
        }
    }))
}
