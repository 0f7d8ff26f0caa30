//! One background process: what is known of it, shared by the task that runs it and by everyone who watches it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use redaction::RedactingStream;
use sandbox_api::{EndedBy, LogChannel, ProcessInfo, ProcessRequest, ProcessStatus, RestartPolicy};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::backoff::Backoff;
use super::input::Input;
use super::log::{LOG_BYTES, Log};
use crate::clock::rfc3339;
use crate::serve::tree::{Command, End, Ending, Owner, Pipe, Wishes};

/// What is left of a run's tree has this long before SIGKILL, when the process is started again.
const LEFTOVER_GRACE: Duration = Duration::from_secs(2);
/// Characters told of a command.
const TOLD_CHARACTERS: usize = 256;

/// One process.
pub(super) struct Process {
    pub(super) id: String,
    boot_id: Arc<str>,
    /// As it was asked for, to recognise a repeated request.
    pub(super) request: ProcessRequest,
    pub(super) command: Command,
    /// Wakes those who watch: output, or another phase.
    pub(super) changed: Notify,
    /// Wakes the task that runs it.
    pub(super) attention: Notify,
    /// Wakes the task that writes its input.
    pub(super) input_changed: Notify,
    state: Mutex<State>,
}

/// Where it is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Running,
    /// Its command ended; it is started again then.
    Restarting(Instant),
    /// Its command ended for good.
    Ended(ProcessStatus),
}

pub(super) struct State {
    pub(super) phase: Phase,
    pid: Option<i32>,
    created_at: SystemTime,
    started_at: SystemTime,
    ended_at: Option<SystemTime>,
    restarts: u32,
    backoff: Backoff,
    /// How the last run ended.
    end: Option<End>,
    error: Option<String>,
    /// Whether nothing of the last run's tree is left.
    tree_gone: bool,
    /// The wish that it ends for good.
    kill: Option<Ending>,
    pub(super) log: Log,
    /// What of stdout and of stderr is masked before anything is kept of it.
    masks: [RedactingStream; 2],
    pub(super) input: Input,
    /// How far those have read who must not miss anything.
    readers: HashMap<u64, u64>,
    next_reader: u64,
}

impl State {
    /// Whether nothing of it runs, and nothing will.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Ended(_)) && self.tree_gone
    }

    /// Whether its command has ended for good.
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Ended(_))
    }

    pub(super) fn is_killed(&self) -> bool {
        self.kill.is_some()
    }

    fn mask(&mut self, channel: LogChannel) -> &mut RedactingStream {
        let [stdout, stderr] = &mut self.masks;
        match channel {
            LogChannel::Stdout => stdout,
            LogChannel::Stderr => stderr,
        }
    }

    /// Nothing more will come for now: what was held back is neither the beginning of a secret nor that of a character.
    fn flush(&mut self) {
        for channel in [LogChannel::Stdout, LogChannel::Stderr] {
            let rest = self.mask(channel).finish();
            self.log.push(channel, &rest);
        }
        self.log.flush();
    }

    fn end_run(&mut self) {
        self.ended_at = Some(SystemTime::now());
        self.flush();
        self.input.end();
    }
}

impl Process {
    pub(super) fn new(id: String, boot_id: Arc<str>, request: ProcessRequest, command: Command) -> Self {
        let now = SystemTime::now();
        let keeps_input = request.keep_stdin;
        let mut input = Input::default();
        input.begin(keeps_input);
        let masks = [(); 2].map(|()| RedactingStream::new(command.redactor.clone()));
        Self {
            id,
            boot_id,
            request,
            command,
            changed: Notify::new(),
            attention: Notify::new(),
            input_changed: Notify::new(),
            state: Mutex::new(State {
                phase: Phase::Running,
                pid: None,
                created_at: now,
                started_at: now,
                ended_at: None,
                restarts: 0,
                backoff: Backoff::default(),
                end: None,
                error: None,
                tree_gone: false,
                kill: None,
                log: Log::new(LOG_BYTES),
                masks,
                input,
                readers: HashMap::new(),
                next_reader: 0,
            }),
        }
    }

    /// The state is valid at every moment, so a panic elsewhere does not spoil it. Never held across an await.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first run has begun.
    pub(super) fn runs(&self, pid: i32) {
        self.state().pid = Some(pid);
    }

    /// Another run has begun.
    pub(super) fn runs_again(&self, pid: i32) {
        let mut state = self.state();
        state.phase = Phase::Running;
        state.pid = Some(pid);
        state.started_at = SystemTime::now();
        state.ended_at = None;
        state.restarts = state.restarts.saturating_add(1);
        state.end = None;
        state.error = None;
        state.tree_gone = false;
        state.input.begin(self.request.keep_stdin);
        drop(state);
        self.changed.notify_waiters();
    }

    /// Nothing could be started; there is no other try.
    pub(super) fn never_ran(&self, error: String) {
        let mut state = self.state();
        state.phase = Phase::Ended(ProcessStatus::Error);
        state.error = Some(error);
        state.tree_gone = true;
        state.end_run();
    }

    /// It could not be started again this time.
    pub(super) fn not_restarted(&self, error: String) {
        let mut state = self.state();
        let wait = state.backoff.after(Duration::ZERO);
        state.phase = Phase::Restarting(Instant::now() + wait);
        state.error = Some(error);
        drop(state);
        self.changed.notify_waiters();
    }

    /// Killed while it waited to be started again.
    pub(super) fn stays_ended(&self) {
        self.state().phase = Phase::Ended(ProcessStatus::Killed);
        self.changed.notify_waiters();
    }

    /// Asks for its end for good. A later wish counts where it is SIGKILL.
    pub(super) fn kill(&self, signal: i32, grace: Duration) {
        let mut state = self.state();
        if state.kill.is_none() || signal == libc::SIGKILL {
            state.kill = Some(Ending { reason: EndedBy::Kill, signal, grace });
        }
        drop(state);
        self.attention.notify_one();
    }

    pub(super) fn info(&self) -> ProcessInfo {
        let state = self.state();
        let (status, restart_in_ms) = match state.phase {
            Phase::Running => (ProcessStatus::Running, None),
            Phase::Restarting(at) => {
                let wait = at.saturating_duration_since(Instant::now()).as_millis();
                (ProcessStatus::Restarting, u64::try_from(wait).ok())
            }
            Phase::Ended(status) => (status, None),
        };
        let end = state.end.as_ref();
        ProcessInfo {
            id: self.id.clone(),
            boot_id: self.boot_id.to_string(),
            name: self.request.name.clone(),
            command: self.told_command(),
            status,
            pid: state.pid,
            created_at: rfc3339(state.created_at),
            started_at: rfc3339(state.started_at),
            ended_at: state.ended_at.map(rfc3339),
            restart_policy: self.request.restart_policy,
            restarts: state.restarts,
            restart_in_ms,
            exit_code: end.and_then(|end| end.exit_code),
            signal: end.and_then(|end| end.signal.clone()),
            ended_by: end.map(|end| end.ended_by),
            out_of_memory: end.is_some_and(|end| end.out_of_memory),
            out_of_disk: end.is_some_and(|end| end.out_of_disk),
            error: state.error.clone(),
            left_behind: state.has_ended() && !state.tree_gone,
            stdin_open: state.input.is_open(),
            log_bytes: state.log.total(),
        }
    }

    fn told_command(&self) -> String {
        let whole = match (&self.request.command, &self.request.argv) {
            (Some(command), _) => command.clone(),
            (None, argv) => argv.as_deref().unwrap_or_default().join(" "),
        };
        let whole = self.command.redactor.text(&whole);
        match whole.char_indices().nth(TOLD_CHARACTERS) {
            Some((cut, _)) => format!("{}…", &whole[..cut]),
            None => whole,
        }
    }

    /// Whether it is to be started again after such an end.
    fn starts_again(&self, end: &End) -> bool {
        match self.request.restart_policy {
            RestartPolicy::Always => true,
            RestartPolicy::OnFailure => end.exit_code != Some(0),
            RestartPolicy::Never => false,
        }
    }

    /// Waits until `condition` holds.
    pub(super) async fn until(&self, condition: impl Fn(&State) -> bool) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if condition(&self.state()) {
                return;
            }
            changed.await;
        }
    }
}

impl Owner for Process {
    fn id(&self) -> &str {
        &self.id
    }

    fn attention(&self) -> &Notify {
        &self.attention
    }

    fn wishes(&self, _now: Instant) -> Wishes {
        let state = self.state();
        let room = state.readers.values().all(|cursor| state.log.has_room(*cursor));
        // What the last run left behind would be in the way of the next one.
        let leftover = matches!(state.phase, Phase::Restarting(_)).then_some(Ending {
            reason: EndedBy::Kill,
            signal: libc::SIGTERM,
            grace: LEFTOVER_GRACE,
        });
        Wishes { stdout: room, stderr: room, ending: state.kill.or(leftover), again: None }
    }

    fn take(&self, pipe: Pipe, bytes: &[u8]) {
        let channel = match pipe {
            Pipe::Stdout => LogChannel::Stdout,
            Pipe::Stderr => LogChannel::Stderr,
        };
        let mut state = self.state();
        let masked = state.mask(channel).push(bytes);
        state.log.push(channel, &masked);
        drop(state);
        self.changed.notify_waiters();
    }

    fn ended(&self, end: End) {
        let mut state = self.state();
        state.end_run();
        state.phase = if state.kill.is_none() && self.starts_again(&end) {
            Phase::Restarting(Instant::now() + state.backoff.after(end.duration))
        } else {
            match end.ended_by {
                EndedBy::Kill => Phase::Ended(ProcessStatus::Killed),
                EndedBy::Unknown => Phase::Ended(ProcessStatus::Error),
                _ => Phase::Ended(ProcessStatus::Exited),
            }
        };
        if end.ended_by == EndedBy::Unknown {
            state.error = Some("how it ended was not seen: something killed the process that watched it".into());
        }
        state.end = Some(end);
        drop(state);
        self.changed.notify_waiters();
    }

    fn gone(&self) {
        let mut state = self.state();
        state.tree_gone = true;
        state.flush();
        drop(state);
        self.changed.notify_waiters();
    }
}

/// Someone who must not miss any output: while it lags behind, the process waits in its own `write`.
pub(super) struct Reader<'a> {
    process: &'a Process,
    number: u64,
}

impl<'a> Reader<'a> {
    pub(super) fn new(process: &'a Process, cursor: u64) -> Self {
        let mut state = process.state();
        let number = state.next_reader;
        state.next_reader += 1;
        state.readers.insert(number, cursor);
        drop(state);
        Self { process, number }
    }

    pub(super) fn advance(&self, cursor: u64) {
        self.process.state().readers.insert(self.number, cursor);
        self.process.attention.notify_one();
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        self.process.state().readers.remove(&self.number);
        self.process.attention.notify_one();
    }
}
