//! The task that watches one tree, from its first byte until nothing of it is left.
//!
//! ```text
//!   running ── the command exits ─────────► ended ── tree gone ──► gone
//!      │                                      │
//!      └─ a wish to end ─► dying ─────────────┘ (ended only once the tree is gone)
//! ```
//!
//! Ended means: the pipes are drained of what they hold and the owner knows how the command ended. What the command left
//! in the background lives on until a wish ends it; its output is read on, so that it meets no broken pipe.

use std::cell::RefCell;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use sandbox_api::EndedBy;
use tokio::net::unix::pipe;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::members::{self, Supervisors};
use super::memory::OutOfMemory;
use super::start::Started;
use super::strikes::Before;
use super::supervisor::{REPORT_BYTES, Report};

/// Pause between two rounds of killing.
const KILL_PAUSE: Duration = Duration::from_millis(10);
/// Time after the first SIGKILL after which a supervisor that does not report the end of its tree is killed itself.
const SUPERVISOR_PATIENCE: Duration = Duration::from_secs(5);
/// Time after the first SIGKILL after which a tree that survives it (a process in an uninterruptible wait) is told of as
/// unknown.
const KILL_PATIENCE: Duration = Duration::from_secs(10);
/// Bytes read from a pipe at once.
const READ_BYTES: usize = 32 << 10;

/// Where a piece of output came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pipe {
    Stdout,
    Stderr,
}

/// Who has the tree run: keeps its output and says when it is to end. Nothing here may wait.
pub(crate) trait Owner: Send + Sync + 'static {
    /// For the log.
    fn id(&self) -> &str;

    /// Wakes the watching task when [`Owner::wishes`] may answer otherwise.
    fn attention(&self) -> &Notify;

    /// What is wished for now.
    fn wishes(&self, now: Instant) -> Wishes;

    /// A piece of output; also after the end, from what the command left behind.
    fn take(&self, pipe: Pipe, bytes: &[u8]);

    /// The command has ended. Said once.
    fn ended(&self, end: End);

    /// Nothing of the tree is left. Said once, after [`Owner::ended`].
    fn gone(&self);
}

/// What an owner wants at one moment.
pub(crate) struct Wishes {
    /// Whether there is room for more of each pipe; without it the command waits in its own `write`.
    pub(crate) stdout: bool,
    pub(crate) stderr: bool,
    pub(crate) ending: Option<Ending>,
    /// When to ask again although nothing happens.
    pub(crate) again: Option<Instant>,
}

/// The wish that the tree ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ending {
    pub(crate) reason: EndedBy,
    /// First signal, to everything in the tree.
    pub(crate) signal: i32,
    /// Time until SIGKILL.
    pub(crate) grace: Duration,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct End {
    /// Absent when it was not seen.
    pub(crate) exit_code: Option<i32>,
    /// Name of the signal that ended it.
    pub(crate) signal: Option<String>,
    pub(crate) ended_by: EndedBy,
    pub(crate) out_of_memory: bool,
    pub(crate) out_of_disk: bool,
    pub(crate) duration: Duration,
}

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

/// The task's own view of a tree.
pub(crate) struct Run<O> {
    owner: Arc<O>,
    supervisor: i32,
    supervisors: Arc<Supervisors>,
    out_of_memory: OutOfMemory,
    before: Before,
    started: Instant,
    reports: Source,
    stdout: Source,
    stderr: Source,
    /// Wait status of the command, once it is known.
    status: Option<i32>,
    finished: bool,
    dying: Option<Dying>,
}

thread_local! {
    /// What is read from pipes, shared by all trees, as it is empty between two reads.
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_BYTES]);
}

/// A tree on its way out.
struct Dying {
    reason: EndedBy,
    /// When SIGKILL is used first.
    kill_at: Instant,
    /// When it is used next.
    next_round: Instant,
}

/// The daemon's ends of the pipes.
pub(super) struct Pipes {
    pub(super) reports: pipe::Receiver,
    pub(super) stdout: pipe::Receiver,
    pub(super) stderr: pipe::Receiver,
}

impl<O: Owner> Run<O> {
    pub(crate) fn new(owner: Arc<O>, started: Started) -> Self {
        let Started { supervisor, supervisors, out_of_memory, before, pipes, .. } = started;
        Self {
            owner,
            supervisor,
            supervisors,
            out_of_memory,
            before,
            started: Instant::now(),
            reports: Source(Some(pipes.reports)),
            stdout: Source(Some(pipes.stdout)),
            stderr: Source(Some(pipes.stderr)),
            status: None,
            finished: false,
            dying: None,
        }
    }

    /// Watches to the very end.
    pub(crate) async fn run(mut self) {
        self.until_ended().await;
        self.until_gone().await;
        self.owner.gone();
    }

    async fn until_ended(&mut self) {
        loop {
            let now = Instant::now();
            let Wishes { stdout, stderr, ending, again } = self.owner.wishes(now);
            match (ending, &mut self.dying) {
                (Some(ending), None) => self.begin_dying(ending, now),
                (Some(Ending { signal: libc::SIGKILL, .. }), Some(dying)) => dying.hasten(now),
                _ => {}
            }
            // A tree that dies is not held up by a slow reader: its output is drained at the end.
            let wake = self.continue_dying(now).or(again);
            self.step(stdout, stderr, wake).await;
            if self.is_over() {
                break;
            }
        }
        self.drain(Pipe::Stdout);
        self.drain(Pipe::Stderr);
        let end = self.end();
        self.owner.ended(end);
    }

    /// What the command left in the background lives on.
    async fn until_gone(&mut self) {
        let mut asked = false;
        while self.reports.0.is_some() {
            let now = Instant::now();
            let Wishes { stdout, stderr, ending, again } = self.owner.wishes(now);
            match (ending, &mut self.dying) {
                (Some(ending), _) if !asked => {
                    asked = true;
                    self.begin_dying(ending, now);
                }
                (Some(Ending { signal: libc::SIGKILL, .. }), Some(dying)) => dying.hasten(now),
                _ => {}
            }
            let wake = if asked { self.continue_dying(now) } else { again };
            self.step(stdout, stderr, wake).await;
        }
        let deadline = Instant::now() + KILL_PATIENCE;
        while !self.finished && !self.no_orphans_left() && Instant::now() < deadline {
            tokio::time::sleep(KILL_PAUSE).await;
        }
        self.drain(Pipe::Stdout);
        self.drain(Pipe::Stderr);
    }

    /// Waits for the next thing to happen, and takes it in.
    async fn step(&mut self, stdout: bool, stderr: bool, wake: Option<Instant>) {
        let alarm = async {
            match wake {
                Some(wake) => sleep_until(wake).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.reports.readable(true) => self.take_reports(),
            () = self.stdout.readable(stdout) => self.take_output(Pipe::Stdout),
            () = self.stderr.readable(stderr) => self.take_output(Pipe::Stderr),
            () = self.owner.attention().notified() => {}
            () = alarm => {}
        }
    }

    fn begin_dying(&mut self, Ending { reason, signal, grace }: Ending, now: Instant) {
        let kill_at = if signal == libc::SIGKILL { now } else { now + grace };
        members::send(self.supervisor, libc::SIGCONT);
        if signal != libc::SIGKILL {
            members::signal_all(self.supervisor, signal);
        }
        self.dying = Some(Dying { reason, kill_at, next_round: kill_at });
    }

    /// One round of killing, when it is due; returns when the next one is, if the tree dies.
    fn continue_dying(&mut self, now: Instant) -> Option<Instant> {
        let supervisor_gone = self.reports.0.is_none();
        let dying = self.dying.as_mut()?;
        if now < dying.next_round {
            return Some(dying.next_round);
        }
        if supervisor_gone {
            self.supervisors.kill_orphans();
        } else {
            members::kill_all(self.supervisor);
            // A command may have stopped it.
            members::send(self.supervisor, libc::SIGCONT);
            if now >= dying.kill_at + SUPERVISOR_PATIENCE {
                members::send(self.supervisor, libc::SIGKILL);
            }
        }
        dying.next_round = now + KILL_PAUSE;
        Some(dying.next_round)
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

    /// Whether the end can be told.
    fn is_over(&mut self) -> bool {
        let supervisor_gone = self.reports.0.is_none();
        if let Some(dying) = &self.dying {
            if supervisor_gone {
                return self.finished || self.no_orphans_left();
            }
            if Instant::now() >= dying.kill_at + KILL_PATIENCE {
                tracing::error!(id = self.owner.id(), "a process survives SIGKILL");
                return true;
            }
            return false;
        }
        if supervisor_gone && !self.finished {
            // Something killed the supervisor: whatever it watched is unwatched now.
            let now = Instant::now();
            self.dying = Some(Dying { reason: EndedBy::Unknown, kill_at: now, next_round: now });
            return self.no_orphans_left();
        }
        self.status.is_some()
    }

    /// Whether what a killed supervisor left behind has come to the daemon and is gone.
    fn no_orphans_left(&self) -> bool {
        !self.supervisors.has(self.supervisor) && !self.supervisors.kill_orphans()
    }

    fn source(&mut self, pipe: Pipe) -> &mut Source {
        match pipe {
            Pipe::Stdout => &mut self.stdout,
            Pipe::Stderr => &mut self.stderr,
        }
    }

    fn take_output(&mut self, pipe: Pipe) {
        self.read(pipe, READ_BYTES);
    }

    fn read(&mut self, pipe: Pipe, wanted: usize) -> usize {
        BUFFER.with_borrow_mut(|buffer| {
            let length = self.source(pipe).read(&mut buffer[..wanted.min(READ_BYTES)]);
            if length > 0 {
                self.owner.take(pipe, &buffer[..length]);
            }
            length
        })
    }

    /// Reads what the pipe holds at this moment and no more: a background child may write for ever.
    fn drain(&mut self, pipe: Pipe) {
        let mut left = self.source(pipe).pending_bytes();
        while left > 0 {
            let length = self.read(pipe, usize::try_from(left).unwrap_or(READ_BYTES));
            if length == 0 {
                break;
            }
            left -= length as u64;
        }
    }

    fn end(&self) -> End {
        let (exit_code, signal) = self.status.map_or((None, None), |status| {
            let status = ExitStatus::from_raw(status);
            match status.signal() {
                Some(signal) => (Some(128 + signal), Some(signal)),
                None => (status.code(), None),
            }
        });
        let ended_by = match &self.dying {
            // What is not known to have ended is not said to have.
            _ if self.status.is_none() => EndedBy::Unknown,
            Some(dying) if dying.reason != EndedBy::Unknown => dying.reason,
            _ if signal.is_some() => EndedBy::Signal,
            _ => EndedBy::Exit,
        };
        let killed = exit_code == Some(128 + libc::SIGKILL) && matches!(ended_by, EndedBy::Exit | EndedBy::Signal);
        End {
            exit_code,
            signal: signal.map(signal_name),
            ended_by,
            out_of_memory: killed
                && (self.supervisors.strikes.memory_since(&self.before) || self.out_of_memory.struck()),
            out_of_disk: killed && self.supervisors.strikes.disk_since(&self.before),
            duration: self.started.elapsed(),
        }
    }
}

impl Dying {
    /// Does not wait for the grace to pass.
    fn hasten(&mut self, now: Instant) {
        self.kill_at = self.kill_at.min(now);
        self.next_round = self.next_round.min(now);
    }
}

/// `SIGKILL` for 9; `SIG40` for one that has no name.
fn signal_name(number: i32) -> String {
    Signal::try_from(number).map_or_else(|_| format!("SIG{number}"), |signal| signal.as_str().to_owned())
}
