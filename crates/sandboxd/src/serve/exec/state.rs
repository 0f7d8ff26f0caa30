//! What is known of one exec, shared by the task that runs it and by everyone who watches it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redaction::RedactingStream;
use sandbox_api::{EndedBy, ExecExit, ExecRequest, ExecState, ExecStatus, OnDisconnect};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::channel::Channel;
use super::request::Plan;
use crate::serve::tree::{End, Ending, Owner, Pipe, Wishes};

/// Time between the first signal and SIGKILL.
const TERM_GRACE: Duration = Duration::from_secs(2);

/// One exec.
pub(crate) struct Exec {
    /// As it was asked for, to recognise a repeated request.
    pub(super) request: ExecRequest,
    pub(super) boot_id: Arc<str>,
    /// Wakes those who watch: output, or the end.
    pub(super) changed: Notify,
    /// Wakes the task that runs it: a reader caught up, came or left, a lease was renewed, a kill was asked for.
    pub(super) attention: Notify,
    timeout: Duration,
    /// Between the loss of the last reader and the policy for that.
    grace: Duration,
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
    /// When its timeout is over; set once it runs.
    timeout_at: Option<Instant>,
    pub(super) stdout: Channel,
    pub(super) stderr: Channel,
    /// What of stdout and of stderr is masked before anything is kept of it.
    masks: [RedactingStream; 2],
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
    fn push(&mut self, pipe: Pipe, bytes: &[u8]) {
        let slowest = self.slowest();
        match pipe {
            Pipe::Stdout => self.stdout.push(bytes, slowest.stdout),
            Pipe::Stderr => self.stderr.push(bytes, slowest.stderr),
        }
    }

    fn mask(&mut self, pipe: Pipe) -> &mut RedactingStream {
        let [stdout, stderr] = &mut self.masks;
        match pipe {
            Pipe::Stdout => stdout,
            Pipe::Stderr => stderr,
        }
    }

    /// No more output will come: what was held back is no beginning of a secret.
    fn flush(&mut self) {
        for pipe in [Pipe::Stdout, Pipe::Stderr] {
            let rest = self.mask(pipe).finish();
            self.push(pipe, &rest);
        }
    }

    /// Cursor of the slowest reader of each channel.
    pub(super) fn slowest(&self) -> Cursors {
        self.readers.values().fold(Cursors::NO_OUTPUT, |slowest, cursors| Cursors {
            stdout: slowest.stdout.min(cursors.stdout),
            stderr: slowest.stderr.min(cursors.stderr),
        })
    }
}

impl Exec {
    pub(super) fn new(request: ExecRequest, boot_id: Arc<str>, plan: &Plan) -> Self {
        Self {
            request,
            boot_id,
            changed: Notify::new(),
            attention: Notify::new(),
            timeout: plan.timeout,
            grace: plan.grace,
            state: Mutex::new(State {
                pid: None,
                timeout_at: None,
                stdout: Channel::new(plan.output_limit),
                stderr: Channel::new(plan.output_limit),
                masks: [(); 2].map(|()| RedactingStream::new(plan.command.redactor.clone())),
                readers: HashMap::new(),
                next_reader: 0,
                alone_since: None,
                lease_until: plan.lease.map(|lease| Instant::now() + lease),
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

    /// It runs from now on.
    pub(super) fn runs(&self, pid: i32) {
        let mut state = self.state();
        state.pid = Some(pid);
        state.timeout_at = Some(Instant::now() + self.timeout);
    }

    /// There was no such program, or it could not be executed: a result like any other.
    pub(super) fn refused(&self, exit_code: i32, text: &str) {
        self.take(Pipe::Stderr, text.as_bytes());
        let duration = Duration::ZERO;
        self.ended(End {
            exit_code: Some(exit_code),
            signal: None,
            ended_by: EndedBy::Exit,
            out_of_memory: false,
            out_of_disk: false,
            duration,
        });
        self.gone();
    }

    /// Publishes the end.
    fn finish(&self, exit: ExecExit) {
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
    pub(super) async fn exited(&self) -> Arc<ExecExit> {
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
    pub(super) async fn left_nothing(&self) {
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

impl Owner for Exec {
    fn id(&self) -> &str {
        self.id()
    }

    fn attention(&self) -> &Notify {
        &self.attention
    }

    fn wishes(&self, now: Instant) -> Wishes {
        let state = self.state();
        if state.exit.is_some() {
            // What it left behind is ended on request only.
            let ending = state.kill_wish.map(|(reason, signal)| Ending { reason, signal, grace: TERM_GRACE });
            return Wishes { stdout: true, stderr: true, ending, again: None };
        }
        let slowest = state.slowest();
        let (stdout, stderr) = (state.stdout.has_room(slowest.stdout), state.stderr.has_room(slowest.stderr));
        let (alone_since, lease_until) = (state.alone_since, state.lease_until);
        let (kill_wish, timeout_at) = (state.kill_wish, state.timeout_at);
        drop(state);
        let gone_at = match self.request.on_disconnect {
            OnDisconnect::Kill => {
                [alone_since.map(|since| since + self.grace), lease_until].into_iter().flatten().min()
            }
            OnDisconnect::Detach => None,
        };
        let is_over = |deadline: Option<Instant>| deadline.is_some_and(|deadline| now >= deadline);
        let wish = match kill_wish {
            Some(wish) => Some(wish),
            None if is_over(timeout_at) => Some((EndedBy::Timeout, libc::SIGTERM)),
            None if is_over(gone_at) => Some((EndedBy::Disconnect, libc::SIGTERM)),
            None => None,
        };
        let ending = wish.map(|(reason, signal)| Ending { reason, signal, grace: TERM_GRACE });
        Wishes { stdout, stderr, ending, again: timeout_at.into_iter().chain(gone_at).min() }
    }

    fn take(&self, pipe: Pipe, bytes: &[u8]) {
        let mut state = self.state();
        if state.exit.is_some() {
            return;
        }
        let masked = state.mask(pipe).push(bytes);
        state.push(pipe, &masked);
        drop(state);
        self.changed.notify_waiters();
    }

    fn ended(&self, end: End) {
        let mut state = self.state();
        state.flush();
        let (stdout, stderr) = (state.stdout.captured(), state.stderr.captured());
        drop(state);
        self.finish(ExecExit {
            id: self.id().to_owned(),
            exit_code: end.exit_code,
            signal: end.signal,
            ended_by: end.ended_by,
            out_of_memory: end.out_of_memory,
            out_of_disk: end.out_of_disk,
            stdout,
            stderr,
            duration_ms: end.duration.as_millis() as u64,
        });
    }

    fn gone(&self) {
        self.state().gone = true;
        self.changed.notify_waiters();
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
