//! All background processes of this boot: those that run, and those that ended a while ago.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sandbox_api::{ControlErrorCode, ProcessRequest};
use tokio::time::Instant;

use super::life;
use super::process::Process;
use crate::http::{Problem, random_hex};
use crate::serve::Settings;
use crate::serve::tree::{Bounds, Command, Kept, Refused, Supervisors, check_id};

/// Processes at once.
pub(in crate::serve) const CONCURRENT_PROCESSES: usize = 10;

/// However many a request allows.
const MOST_PROCESSES: usize = 100;
/// How long an ended process is told of.
const KEPT_FOR: Duration = Duration::from_secs(3600);
/// Ended processes kept at most.
const KEPT_COUNT: usize = 32;
/// Memory of ended processes' logs kept at most.
const KEPT_BYTES: usize = 16 << 20;
/// Longest name, in characters.
const LONGEST_NAME: usize = 128;
/// Longest wait of a start for a command that ends at once.
const LONGEST_SETTLE_MS: u64 = 5000;

/// All processes of this boot.
pub(in crate::serve) struct Table {
    settings: Arc<Settings>,
    supervisors: Arc<Supervisors>,
    processes: Mutex<Processes>,
}

struct Processes {
    by_id: HashMap<String, Arc<Process>>,
    /// In the order in which they were started.
    order: Vec<String>,
    running: usize,
    ended: Kept,
}

impl Processes {
    fn forget(&mut self) {
        while let Some(forgotten) = self.ended.next_to_forget(Instant::now()) {
            self.by_id.remove(&forgotten);
            self.order.retain(|id| *id != forgotten);
        }
    }

    fn add(&mut self, process: &Arc<Process>) {
        self.by_id.insert(process.id.clone(), process.clone());
        self.order.push(process.id.clone());
    }

    fn keep(&mut self, process: &Process) {
        let mut state = process.state();
        state.log.compact();
        let bytes = state.log.held_bytes();
        drop(state);
        self.ended.add(process.id.clone(), bytes);
        self.forget();
    }
}

impl Table {
    pub(in crate::serve) fn new(settings: Arc<Settings>, supervisors: Arc<Supervisors>) -> Self {
        let ended = Kept::new(Bounds { time: KEPT_FOR, count: KEPT_COUNT, bytes: KEPT_BYTES });
        let processes = Processes { by_id: HashMap::new(), order: Vec::new(), running: 0, ended };
        Self { settings, supervisors, processes: Mutex::new(processes) }
    }

    /// Never held across an await, and valid at every moment.
    fn processes(&self) -> MutexGuard<'_, Processes> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those of which something runs or is to be started again.
    pub(in crate::serve) fn running(&self) -> usize {
        self.processes().running
    }

    /// The process of that id, if it runs or is still remembered.
    pub(super) fn get(&self, id: &str) -> Result<Arc<Process>, Problem> {
        let mut processes = self.processes();
        processes.forget();
        let found = processes.by_id.get(id).cloned();
        found.ok_or_else(|| Problem::new(ControlErrorCode::NotFound, "id: no such process in this boot of the sandbox"))
    }

    /// All of them, oldest first.
    pub(super) fn all(&self) -> Vec<Arc<Process>> {
        let mut processes = self.processes();
        processes.forget();
        processes.order.iter().filter_map(|id| processes.by_id.get(id).cloned()).collect()
    }

    /// Starts a process, or finds it when the same request came before. Nothing here waits, so that no second request can
    /// come in between.
    pub(super) fn start(self: &Arc<Self>, request: ProcessRequest) -> Result<Arc<Process>, Problem> {
        let command = self.check(&request)?;
        let mut processes = self.processes();
        processes.forget();
        if let Some(known) = request.id.as_ref().and_then(|id| processes.by_id.get(id)) {
            if known.request != request {
                return Err(Problem::invalid("id: a process with this id exists and was asked for differently"));
            }
            return Ok(known.clone());
        }
        let most = request.most_running.unwrap_or(CONCURRENT_PROCESSES).min(MOST_PROCESSES);
        if processes.running >= most {
            let message = format!("{most} background processes may run in this sandbox, and they do");
            return Err(Problem::new(ControlErrorCode::TooManyProcesses, message));
        }
        let id = match &request.id {
            Some(id) => id.clone(),
            None => random_hex(8).map_err(Problem::internal)?,
        };
        let process = Arc::new(Process::new(id, self.settings.boot_id.clone(), request, command));
        let started = match life::start(&process, &self.settings, &self.supervisors) {
            Ok(started) => started,
            Err(Refused::Request(problem)) => return Err(problem),
            Err(Refused::Program(_, text)) => {
                process.never_ran(text.trim_end().to_owned());
                processes.add(&process);
                processes.keep(&process);
                return Ok(process);
            }
        };
        process.runs(started.pid);
        processes.add(&process);
        processes.running += 1;
        drop(processes);
        let (table, alive) = (self.clone(), process.clone());
        tokio::spawn(async move {
            life::live(alive.clone(), started, table.settings.clone(), table.supervisors.clone()).await;
            let mut processes = table.processes();
            processes.running -= 1;
            processes.keep(&alive);
        });
        Ok(process)
    }

    fn check(&self, request: &ProcessRequest) -> Result<Command, Problem> {
        if let Some(id) = &request.id {
            check_id(id)?;
        }
        let characters = request.name.chars().count();
        if !(1..=LONGEST_NAME).contains(&characters) || request.name.chars().any(char::is_control) {
            return Err(Problem::invalid(format!(
                "name: 1 to {LONGEST_NAME} characters, none of them a control character"
            )));
        }
        if request.settle_ms.is_some_and(|settle| settle > LONGEST_SETTLE_MS) {
            return Err(Problem::invalid(format!("settleMs: at most {LONGEST_SETTLE_MS}")));
        }
        Command::check(
            request.command.as_deref(),
            request.argv.as_deref(),
            request.cwd.as_deref(),
            &request.env,
            &self.settings,
        )
    }
}
