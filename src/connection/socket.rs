//! What a connection sends: never more than its reader takes.

use std::cell::Cell;
use std::time::Duration;

use worker::WebSocket;

use super::close;
use super::message::Answer;
use crate::events::ReaderGone;
use crate::platform::Platform;
use crate::workers::platform::WorkersPlatform;

/// Bytes that may wait for the reader before nothing more is sent.
const MOST_UNREAD: u64 = 1024 * 1024;

/// Between two looks at what the reader took.
const LOOK: Duration = Duration::from_millis(20);

/// How long a reader may take nothing at all, in milliseconds.
const LONGEST_STALL: i64 = 30_000;

/// How far the reader is.
#[derive(Default)]
pub(super) struct Flow {
    /// Bytes sent.
    sent: Cell<u64>,
    /// Most bytes of them that were ever seen to be taken, and when that last grew.
    taken: Cell<(u64, i64)>,
}

impl Flow {
    /// Sends one message. One whose reader left is lost with it.
    pub(super) fn send(&self, socket: &WebSocket, answer: &Answer) -> Result<(), ReaderGone> {
        let text = answer.text();
        self.sent.set(self.sent.get() + u64::try_from(text.len()).unwrap_or(0));
        socket.send_with_str(text).map_err(|_| ReaderGone)
    }

    /// Whether so much waits for the reader that nothing is answered any more to what it says.
    pub(super) fn is_flooded(&self, socket: &WebSocket) -> bool {
        u64::from(socket.as_ref().buffered_amount()) > 2 * MOST_UNREAD
    }

    /// Waits until there is room for another message. `Err` when the call is not wanted any more, or the reader stands still, whose
    /// connection is closed then.
    pub(super) async fn room(
        &self,
        socket: &WebSocket,
        platform: &WorkersPlatform,
        is_unwanted: impl Fn() -> bool,
    ) -> Result<(), ReaderGone> {
        let mut is_first = true;
        loop {
            let unread = u64::from(socket.as_ref().buffered_amount());
            if is_unwanted() {
                return Err(ReaderGone);
            }
            if unread <= MOST_UNREAD {
                return Ok(());
            }
            let taken = self.sent.get().saturating_sub(unread);
            let (most, grown_at) = self.taken.get();
            let now = platform.now_millis();
            if is_first || taken > most {
                self.taken.set((taken.max(most), now));
                is_first = false;
            } else if now - grown_at > LONGEST_STALL {
                // What waits to be sent is given up.
                let _ = socket.close(Some(close::GONE), Some("what was sent was not read for 30 seconds"));
                return Err(ReaderGone);
            }
            platform.sleep(LOOK).await;
        }
    }
}
