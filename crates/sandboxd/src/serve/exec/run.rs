//! The task that runs one exec, from its first byte until nothing of its process tree is left.
//!
//! ```text
//!   running ── the command exits ───────────────► published ── tree gone ──► done
//!      │                                              │
//!      └─ timeout, kill, caller gone ─► ending ───────┘ (published only once the tree is gone)
//! ```
//!
//! Published means: the pipes are drained of what they hold, the result stands, later output of background children is
//! read and thrown away so that they meet no broken pipe.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use sandbox_api::{EndedBy, ExecExit, OnDisconnect};
use tokio::net::unix::pipe;
use tokio::time::{Instant, sleep_until};

use super::memory::OutOfMemory;
use super::request::Plan;
use super::state::Exec;
use super::supervisor::{REPORT_BYTES, Report};
use super::tree::{self, Supervisors};

/// Time between the first signal and SIGKILL.
const TERM_GRACE: Duration = Duration::from_secs(2);
/// Pause between two rounds of killing.
const KILL_PAUSE: Duration = Duration::from_millis(10);
/// Time after which a supervisor that does not report the end of its tree is killed itself.
const SUPERVISOR_PATIENCE: Duration = Duration::from_secs(7);
/// Time after which a tree that survives SIGKILL (a process in an uninterruptible wait) is told of as unknown.
const KILL_PATIENCE: Duration = Duration::from_secs(12);
/// Bytes read from a pipe at once.
const READ_BYTES: usize = 32 << 10;

/// One end of a pipe to the command, until its end of file.
struct Source(Option<pipe::Receiver>);

impl Source {
    /// Waits until there is something to read; for ever once the end was reached or when `wanted` is false.
    async fn readable(&self, wanted: bool) {
        match &self.0 {
            Some(receiver) if wanted => {
                // An error here comes again from the read, which is where it is handled.
                let _ = receiver.readable().await;
            }
            _ => std::future::pending().await,
        }
    }

    /// Reads what is there, at most the buffer; 0 when nothing is there now. At the end it closes the pipe.
    fn read(&mut self, buffer: &mut [u8]) -> usize {
        let Some(receiver) = &self.0 else { return 0 };
        match receiver.try_read(buffer) {
            Ok(0) => self.0 = None,
            Ok(length) => return length,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => self.0 = None,
        }
        0
    }

    /// Bytes that the pipe holds now.
    fn pending_bytes(&self) -> u64 {
        self.0.as_ref().and_then(|receiver| rustix::io::ioctl_fionread(receiver).ok()).unwrap_or(0)
    }
}

/// The task's own view of an exec.
pub(super) struct Run {
    pub(super) exec: Arc<Exec>,
    pub(super) plan: Plan,
    pub(super) supervisor: i32,
    pub(super) supervisors: Arc<Supervisors>,
    pub(super) out_of_memory: OutOfMemory,
    pub(super) started: Instant,
    reports: Source,
    stdout: Source,
    stderr: Source,
    /// Wait status of the command, once it is known.
    status: Option<i32>,
    finished: bool,
    ending: Option<Ending>,
    buffer: Vec<u8>,
}

/// A tree on its way out.
struct Ending {
    reason: EndedBy,
    since: Instant,
    /// When SIGKILL is used next.
    next_round: Instant,
}

/// The daemon's ends of the pipes.
pub(super) struct Pipes {
    pub(super) reports: pipe::Receiver,
    pub(super) stdout: pipe::Receiver,
    pub(super) stderr: pipe::Receiver,
}

impl Run {
    pub(super) fn new(
        exec: Arc<Exec>,
        plan: Plan,
        supervisor: i32,
        supervisors: Arc<Supervisors>,
        out_of_memory: OutOfMemory,
        pipes: Pipes,
    ) -> Self {
        Self {
            exec,
            plan,
            supervisor,
            supervisors,
            out_of_memory,
            started: Instant::now(),
            reports: Source(Some(pipes.reports)),
            stdout: Source(Some(pipes.stdout)),
            stderr: Source(Some(pipes.stderr)),
            status: None,
            finished: false,
            ending: None,
            buffer: Vec::new(),
        }
    }

    /// Runs to the very end.
    pub(super) async fn run(mut self) {
        self.until_published().await;
        self.until_gone().await;
        self.exec.state().gone = true;
        self.exec.changed.notify_waiters();
    }

    async fn until_published(&mut self) {
        loop {
            let (room_out, room_err, wake) = self.prepare();
            tokio::select! {
                () = self.reports.readable(true) => self.take_reports(),
                () = self.stdout.readable(room_out) => self.take_output(true),
                () = self.stderr.readable(room_err) => self.take_output(false),
                () = self.exec.attention.notified() => {}
                () = sleep_until(wake) => {}
            }
            if self.is_over() {
                break;
            }
        }
        self.drain(true);
        self.drain(false);
        let exit = self.exit();
        self.exec.finish(exit);
    }

    /// Applies what time and callers ask for; returns which channels may be read and when to look again.
    fn prepare(&mut self) -> (bool, bool, Instant) {
        let now = Instant::now();
        let state = self.exec.state();
        let slowest = state.slowest();
        let room = (state.stdout.has_room(slowest.stdout), state.stderr.has_room(slowest.stderr));
        let kill_wish = state.kill_wish;
        let (alone_since, lease_until) = (state.alone_since, state.lease_until);
        drop(state);

        let timeout = self.started + self.plan.timeout;
        let mut wake = timeout;
        if self.ending.is_none() {
            if let Some((reason, signal)) = kill_wish {
                self.begin_ending(reason, signal, now);
            } else if now >= timeout {
                self.begin_ending(EndedBy::Timeout, libc::SIGTERM, now);
            } else if self.exec.request.on_disconnect == OnDisconnect::Kill {
                let graces = [alone_since.map(|since| since + self.plan.grace), lease_until];
                if let Some(gone_at) = graces.into_iter().flatten().min() {
                    if now >= gone_at {
                        self.begin_ending(EndedBy::Disconnect, libc::SIGTERM, now);
                    } else {
                        wake = wake.min(gone_at);
                    }
                }
            }
        }
        if self.ending.is_some() {
            wake = self.continue_ending(now);
        }
        // A tree that is being ended must not be held up by a slow reader: its output is drained at the end.
        (room.0, room.1, wake)
    }

    fn begin_ending(&mut self, reason: EndedBy, signal: i32, now: Instant) {
        let next_round = if signal == libc::SIGKILL { now } else { now + TERM_GRACE };
        tree::send(self.supervisor, libc::SIGCONT);
        if signal != libc::SIGKILL {
            tree::signal_all(self.supervisor, signal);
        }
        self.ending = Some(Ending { reason, since: now, next_round });
    }

    /// One round of killing, when it is due; returns when the next one is.
    fn continue_ending(&mut self, now: Instant) -> Instant {
        let supervisor_gone = self.reports.0.is_none();
        let Some(ending) = &mut self.ending else { return now };
        if now < ending.next_round {
            return ending.next_round;
        }
        if supervisor_gone {
            self.supervisors.kill_orphans();
        } else {
            tree::kill_all(self.supervisor);
            // A command may have stopped it.
            tree::send(self.supervisor, libc::SIGCONT);
            if now >= ending.since + SUPERVISOR_PATIENCE {
                tree::send(self.supervisor, libc::SIGKILL);
            }
        }
        ending.next_round = now + KILL_PAUSE;
        ending.next_round
    }

    fn take_reports(&mut self) {
        let mut bytes = [0u8; REPORT_BYTES];
        while self.reports.read(&mut bytes) == REPORT_BYTES {
            match Report::from_bytes(bytes) {
                Some(Report::Ended(status)) => self.status = Some(status),
                Some(Report::Finished) => self.finished = true,
                _ => {}
            }
        }
    }

    /// Whether the result can be told.
    fn is_over(&mut self) -> bool {
        let supervisor_gone = self.reports.0.is_none();
        if let Some(ending) = &self.ending {
            if supervisor_gone {
                return self.finished || self.no_orphans_left();
            }
            if Instant::now() >= ending.since + KILL_PATIENCE {
                tracing::error!(id = self.exec.id(), "a process survives SIGKILL");
                return true;
            }
            return false;
        }
        if supervisor_gone && !self.finished {
            // Something killed the supervisor: whatever it watched is unwatched now.
            let now = Instant::now();
            let reason = EndedBy::Unknown;
            self.ending = Some(Ending { reason, since: now, next_round: now });
            return self.no_orphans_left();
        }
        self.status.is_some()
    }

    /// Whether what a killed supervisor left behind has come to the daemon and is gone.
    fn no_orphans_left(&self) -> bool {
        !self.supervisors.has(self.supervisor) && !self.supervisors.kill_orphans()
    }

    fn take_output(&mut self, is_stdout: bool) {
        self.buffer.resize(READ_BYTES, 0);
        let source = if is_stdout { &mut self.stdout } else { &mut self.stderr };
        let length = source.read(&mut self.buffer);
        if length > 0 {
            self.push(is_stdout, length);
        }
        self.buffer = Vec::new();
    }

    fn push(&mut self, is_stdout: bool, length: usize) {
        let mut state = self.exec.state();
        let slowest = state.slowest();
        if is_stdout {
            state.stdout.push(&self.buffer[..length], slowest.stdout);
        } else {
            state.stderr.push(&self.buffer[..length], slowest.stderr);
        }
        drop(state);
        self.exec.changed.notify_waiters();
    }

    /// Reads what the pipe holds at this moment and no more: a background child may write for ever.
    fn drain(&mut self, is_stdout: bool) {
        self.buffer.resize(READ_BYTES, 0);
        let mut left = if is_stdout { self.stdout.pending_bytes() } else { self.stderr.pending_bytes() };
        while left > 0 {
            let wanted = READ_BYTES.min(left as usize);
            let source = if is_stdout { &mut self.stdout } else { &mut self.stderr };
            let length = source.read(&mut self.buffer[..wanted]);
            if length == 0 {
                break;
            }
            self.push(is_stdout, length);
            left -= length as u64;
        }
        self.buffer = Vec::new();
    }

    fn exit(&self) -> ExecExit {
        let (code, signal) = self.status.map_or((None, None), |status| {
            let status = ExitStatus::from_raw(status);
            match status.signal() {
                Some(signal) => (Some(128 + signal), Some(signal)),
                None => (status.code(), None),
            }
        });
        let ended_by = match &self.ending {
            // What is not known to have ended is not said to have.
            _ if self.status.is_none() => EndedBy::Unknown,
            Some(ending) if ending.reason != EndedBy::Unknown => ending.reason,
            _ if signal.is_some() => EndedBy::Signal,
            _ => EndedBy::Exit,
        };
        let killed = code == Some(128 + libc::SIGKILL) && matches!(ended_by, EndedBy::Exit | EndedBy::Signal);
        let state = self.exec.state();
        ExecExit {
            id: self.exec.id().to_owned(),
            exit_code: code,
            signal: signal.map(signal_name),
            ended_by,
            out_of_memory: killed && self.out_of_memory.struck(),
            stdout: state.stdout.captured(),
            stderr: state.stderr.captured(),
            duration_ms: self.started.elapsed().as_millis() as u64,
        }
    }

    /// Background children live on; their output goes nowhere.
    async fn until_gone(&mut self) {
        let mut asked = false;
        loop {
            if self.reports.0.is_none() {
                let deadline = Instant::now() + KILL_PATIENCE;
                while !self.finished && !self.no_orphans_left() && Instant::now() < deadline {
                    tokio::time::sleep(KILL_PAUSE).await;
                }
                return;
            }
            let now = Instant::now();
            let wish = self.exec.state().kill_wish;
            if let (Some((reason, signal)), false) = (wish, asked) {
                asked = true;
                self.begin_ending(reason, signal, now);
            }
            let next = if asked { self.continue_ending(now) } else { now + Duration::from_secs(3600) };
            tokio::select! {
                () = self.reports.readable(true) => self.take_reports(),
                () = self.stdout.readable(true) => self.discard(true),
                () = self.stderr.readable(true) => self.discard(false),
                () = self.exec.attention.notified() => {}
                () = sleep_until(next) => {}
            }
        }
    }

    fn discard(&mut self, is_stdout: bool) {
        let mut buffer = [0u8; 4096];
        let source = if is_stdout { &mut self.stdout } else { &mut self.stderr };
        source.read(&mut buffer);
    }
}

/// `SIGKILL` for 9; `SIG40` for one that has no name.
fn signal_name(number: i32) -> String {
    Signal::try_from(number).map_or_else(|_| format!("SIG{number}"), |signal| signal.as_str().to_owned())
}
