//! What is known of one exec, shared by the task that runs it and by everyone who watches it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sandbox_api::{EndedBy, ExecExit, ExecRequest, ExecState, ExecStatus};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::channel::Channel;

/// One exec.
pub(crate) struct Exec {
    /// As it was asked for, to recognise a repeated request.
    pub(super) request: ExecRequest,
    pub(super) boot_id: Arc<str>,
    /// Wakes those who watch: output, or the end.
    pub(super) changed: Notify,
    /// Wakes the task that runs it: a reader caught up, came or left, a lease was renewed, a kill was asked for.
    pub(super) attention: Notify,
    state: Mutex<State>,
}

/// How far one reader has read.
#[derive(Clone, Copy)]
pub(super) struct Cursors {
    pub(super) stdout: u64,
    pub(super) stderr: u64,
}

impl Cursors {
    /// A reader that wants no output, and so never slows the command.
    pub(super) const NO_OUTPUT: Self = Self { stdout: u64::MAX, stderr: u64::MAX };
}

pub(super) struct State {
    pub(super) pid: Option<i32>,
    pub(super) stdout: Channel,
    pub(super) stderr: Channel,
    readers: HashMap<u64, Cursors>,
    next_reader: u64,
    /// Since when nobody is attached.
    pub(super) alone_since: Option<Instant>,
    pub(super) lease_until: Option<Instant>,
    /// The first wish to end it: why, and the first signal.
    pub(super) kill_wish: Option<(EndedBy, i32)>,
    pub(super) exit: Option<Arc<ExecExit>>,
    /// Whether nothing of its process tree is left.
    pub(super) gone: bool,
}

impl State {
    /// Cursor of the slowest reader of each channel.
    pub(super) fn slowest(&self) -> Cursors {
        self.readers.values().fold(Cursors::NO_OUTPUT, |slowest, cursors| Cursors {
            stdout: slowest.stdout.min(cursors.stdout),
            stderr: slowest.stderr.min(cursors.stderr),
        })
    }
}

impl Exec {
    pub(super) fn new(request: ExecRequest, boot_id: Arc<str>, limit: usize, lease: Option<Duration>) -> Self {
        Self {
            request,
            boot_id,
            changed: Notify::new(),
            attention: Notify::new(),
            state: Mutex::new(State {
                pid: None,
                stdout: Channel::new(limit),
                stderr: Channel::new(limit),
                readers: HashMap::new(),
                next_reader: 0,
                alone_since: None,
                lease_until: lease.map(|lease| Instant::now() + lease),
                kill_wish: None,
                exit: None,
                gone: false,
            }),
        }
    }

    /// The state is valid at every moment, so a panic elsewhere does not spoil it. Never held across an await.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn id(&self) -> &str {
        &self.request.id
    }

    pub(super) fn exit(&self) -> Option<Arc<ExecExit>> {
        self.state().exit.clone()
    }

    /// Publishes the end.
    pub(super) fn finish(&self, exit: ExecExit) {
        let mut state = self.state();
        let slowest = state.slowest();
        state.stdout.compact(slowest.stdout);
        state.stderr.compact(slowest.stderr);
        state.exit = Some(Arc::new(exit));
        drop(state);
        self.changed.notify_waiters();
    }

    pub(super) fn status(&self) -> ExecStatus {
        let state = self.state();
        ExecStatus {
            id: self.id().to_owned(),
            state: if state.exit.is_some() { ExecState::Ended } else { ExecState::Running },
            pid: state.pid,
            exit: state.exit.as_deref().cloned(),
        }
    }

    /// Bytes of memory that its output and its result hold.
    pub(super) fn held_bytes(&self) -> usize {
        let state = self.state();
        let exit = state.exit.as_ref().map_or(0, |exit| exit.stdout.data.len() + exit.stderr.data.len());
        state.stdout.held_bytes() + state.stderr.held_bytes() + exit
    }

    /// Asks for its end; the first wish names the reason.
    pub(super) fn ask_to_end(&self, reason: EndedBy, signal: i32) {
        let mut state = self.state();
        state.kill_wish.get_or_insert((reason, signal));
        drop(state);
        self.attention.notify_one();
    }

    /// Renews the lease, if there is one.
    pub(super) fn renew_lease(&self) {
        if let Some(lease) = self.request.lease_ms {
            self.state().lease_until = Some(Instant::now() + Duration::from_millis(lease));
            self.attention.notify_one();
        }
    }

    /// Waits for the end.
    pub(super) async fn ended(&self) -> Arc<ExecExit> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(exit) = self.exit() {
                return exit;
            }
            changed.await;
        }
    }

    /// Waits until nothing of the process tree is left.
    pub(super) async fn gone(&self) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.state().gone {
                return;
            }
            changed.await;
        }
    }
}

/// A caller who watches. While one exists the grace clock stands still; the last one to go starts it.
pub(super) struct Attachment {
    pub(super) exec: Arc<Exec>,
    reader: u64,
}

impl Attachment {
    pub(super) fn new(exec: Arc<Exec>, cursors: Cursors) -> Self {
        let mut state = exec.state();
        let reader = state.next_reader;
        state.next_reader += 1;
        state.readers.insert(reader, cursors);
        state.alone_since = None;
        drop(state);
        exec.renew_lease();
        exec.attention.notify_one();
        Self { exec, reader }
    }

    /// Records how far this caller has read.
    pub(super) fn advance(&self, state: &mut State, cursors: Cursors) {
        state.readers.insert(self.reader, cursors);
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        let mut state = self.exec.state();
        state.readers.remove(&self.reader);
        if state.readers.is_empty() {
            state.alone_since = Some(Instant::now());
        }
        if state.exit.is_some() {
            let slowest = state.slowest();
            state.stdout.compact(slowest.stdout);
            state.stderr.compact(slowest.stderr);
        }
        drop(state);
        self.exec.attention.notify_one();
    }
}
