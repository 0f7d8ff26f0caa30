//! An exec as a stream of server-sent events: `started`, what is kept and then what comes, `exit`.

use std::convert::Infallible;
use std::time::Duration;

use axum::response::Response;
use bytes::Bytes;
use futures_util::{Stream, stream};
use sandbox_api::{ExecStarted, HEARTBEAT_SECONDS, event};

use super::state::{Attachment, Cursors};
use crate::serve::events::{self, encode, heartbeat};

/// Answers with the stream. The attachment lives as long as the body: hyper drops it when the reader leaves.
pub(super) fn respond(attachment: Attachment, cursors: Cursors) -> Response {
    events::respond(events(attachment, cursors))
}

struct Reader {
    attachment: Attachment,
    cursors: Cursors,
    stage: Stage,
}

enum Stage {
    Start,
    Output,
    End,
}

fn events(attachment: Attachment, cursors: Cursors) -> impl Stream<Item = Result<Bytes, Infallible>> {
    let reader = Reader { attachment, cursors, stage: Stage::Start };
    stream::unfold(reader, |mut reader| async move {
        let bytes = reader.next().await?;
        Some((Ok(bytes), reader))
    })
}

impl Reader {
    async fn next(&mut self) -> Option<Bytes> {
        match self.stage {
            Stage::Start => {
                self.stage = Stage::Output;
                let exec = &self.attachment.exec;
                let started =
                    ExecStarted { id: exec.id().to_owned(), pid: exec.state().pid, boot_id: exec.boot_id.to_string() };
                encode(event::STARTED, &started)
            }
            Stage::Output => self.output().await,
            Stage::End => None,
        }
    }

    async fn output(&mut self) -> Option<Bytes> {
        let exec = self.attachment.exec.clone();
        loop {
            let changed = exec.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(bytes) = self.ready() {
                return Some(bytes);
            }
            if let Stage::End = self.stage {
                return None;
            }
            if tokio::time::timeout(Duration::from_secs(HEARTBEAT_SECONDS), changed).await.is_err() {
                return heartbeat();
            }
        }
    }

    /// The next event, if there is one now.
    fn ready(&mut self) -> Option<Bytes> {
        let exec = &self.attachment.exec;
        let mut state = exec.state();
        let ended = state.exit.is_some();
        let found = if let Some((chunk, next)) = state.stdout.next_chunk(self.cursors.stdout, ended) {
            self.cursors.stdout = next;
            Some((event::STDOUT, chunk))
        } else if let Some((chunk, next)) = state.stderr.next_chunk(self.cursors.stderr, ended) {
            self.cursors.stderr = next;
            Some((event::STDERR, chunk))
        } else {
            None
        };
        if let Some((name, chunk)) = found {
            self.attachment.advance(&mut state, self.cursors);
            drop(state);
            exec.attention.notify_one();
            return encode(name, &chunk);
        }
        let exit = state.exit.clone()?;
        drop(state);
        self.stage = Stage::End;
        encode(event::EXIT, &*exit)
    }
}
