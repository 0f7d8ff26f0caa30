//! Waiting for a process: for its end, for a port, or for a line of its output.

use std::time::Duration;

use sandbox_api::{MatchedLine, ProcessWaited, WaitOutcome};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::matcher::{Matcher, Needle};
use super::ports;
use super::process::{Process, Reader};

/// Between two looks at the list of ports: the first one, doubled up to the second.
const FIRST_LOOK: Duration = Duration::from_millis(10);
const LAST_LOOK: Duration = Duration::from_millis(200);
/// A line that does not go on for this long is tried although it has not ended.
const QUIET: Duration = Duration::from_millis(200);
/// Output looked at before others get their turn.
const PIECE_BYTES: usize = 16 << 10;

/// What is waited for.
pub(super) enum Condition {
    /// Its command has ended and is not started again.
    Exit,
    /// Something listens on that TCP port.
    Port(u16),
    /// A line of its output from that offset on.
    Line { needle: Needle, from: u64 },
}

/// Waits within the deadline.
pub(super) async fn wait(process: &Process, condition: Condition, deadline: Duration) -> ProcessWaited {
    let waited = async {
        match condition {
            Condition::Exit => {
                process.until(|state| state.has_ended()).await;
                (WaitOutcome::Met, None)
            }
            Condition::Port(port) => (until_port(process, port).await, None),
            Condition::Line { needle, from } => match until_line(process, Matcher::new(needle), from).await {
                Some(line) => (WaitOutcome::Met, Some(line)),
                None => (WaitOutcome::Ended, None),
            },
        }
    };
    let (outcome, line) = timeout_at(Instant::now() + deadline, waited).await.unwrap_or((WaitOutcome::TimedOut, None));
    ProcessWaited { outcome, process: process.info(), line }
}

async fn until_port(process: &Process, port: u16) -> WaitOutcome {
    let mut look = FIRST_LOOK;
    loop {
        // In this order: a server that ended in between is not told of as one that listens.
        let over = process.state().is_over();
        match (over, ports::listens(port)) {
            (true, _) => return WaitOutcome::Ended,
            (false, true) => return WaitOutcome::Met,
            (false, false) => {}
        }
        let _ = timeout(look, process.until(|state| state.is_over())).await;
        look = (look * 2).min(LAST_LOOK);
    }
}

/// The line, or nothing when the process ended without it.
async fn until_line(process: &Process, mut matcher: Matcher, from: u64) -> Option<MatchedLine> {
    let mut cursor = from.min(process.state().log.total());
    let reader = Reader::new(process, cursor);
    loop {
        let (piece, over) = {
            let state = process.state();
            (state.log.piece(cursor, PIECE_BYTES), state.is_over())
        };
        if let Some((channel, offset, bytes)) = piece {
            cursor = offset + bytes.len() as u64;
            reader.advance(cursor);
            if let Some(line) = matcher.take(channel, &bytes) {
                return Some(line);
            }
            tokio::task::yield_now().await;
            continue;
        }
        if over {
            return matcher.unfinished();
        }
        let more = process.until(|state| state.log.total() > cursor || state.is_over());
        if timeout(QUIET, more).await.is_err() {
            if let Some(line) = matcher.unfinished() {
                return Some(line);
            }
            process.until(|state| state.log.total() > cursor || state.is_over()).await;
        }
        // Output that comes in drops is looked at in sips.
        sleep(Duration::from_millis(1)).await;
    }
}
