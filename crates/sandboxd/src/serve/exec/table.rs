//! All execs of this boot: those that run, and those that ended a while ago.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sandbox_api::{ControlErrorCode, ExecRequest};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::time::Instant;

use super::request::plan;
use super::state::Exec;
use crate::http::Problem;
use crate::serve::Settings;
use crate::serve::tree::{self, Bounds, Input, Kept, Refused, Run, Supervisors};

/// Execs at once.
pub(crate) const CONCURRENT_EXECS: usize = 64;
/// How long a result can be fetched after the end.
const KEPT_FOR: Duration = Duration::from_secs(600);
/// Ended execs kept at most.
const KEPT_COUNT: usize = 512;
/// Ids remembered of execs that are forgotten otherwise, and of those that are forbidden: a request that comes late must not run one.
const REMEMBERED_IDS: usize = 20_000;
/// Memory of ended execs kept at most.
const KEPT_BYTES: usize = 32 << 20;

/// All execs of this boot.
pub(crate) struct Table {
    settings: Arc<Settings>,
    supervisors: Arc<Supervisors>,
    execs: Mutex<Execs>,
}

struct Execs {
    by_id: HashMap<String, Arc<Exec>>,
    running: usize,
    ended: Kept,
    forgotten: Ids,
    forbidden: Ids,
}

/// Ids of execs of which nothing else is known: that they ended, or are not to begin. Digests are enough.
#[derive(Default)]
struct Ids {
    digest: RandomState,
    ids: HashSet<u64>,
    in_order: VecDeque<u64>,
}

impl Ids {
    fn has(&self, id: &str) -> bool {
        self.ids.contains(&self.digest.hash_one(id))
    }

    fn add(&mut self, id: &str) {
        let id = self.digest.hash_one(id);
        if self.ids.insert(id) {
            self.in_order.push_back(id);
        }
        if self.in_order.len() > REMEMBERED_IDS
            && let Some(oldest) = self.in_order.pop_front()
        {
            self.ids.remove(&oldest);
        }
    }
}

impl Execs {
    fn forget(&mut self) {
        while let Some(id) = self.ended.next_to_forget(Instant::now()) {
            self.by_id.remove(&id);
            self.forgotten.add(&id);
        }
    }

    fn keep(&mut self, exec: &Exec) {
        self.ended.add(exec.id().to_owned(), exec.held_bytes());
        self.forget();
    }
}

impl Table {
    pub(crate) fn new(settings: Arc<Settings>, supervisors: Arc<Supervisors>) -> Self {
        let ended = Kept::new(Bounds { time: KEPT_FOR, count: KEPT_COUNT, bytes: KEPT_BYTES });
        let execs = Mutex::new(Execs {
            by_id: HashMap::new(),
            running: 0,
            ended,
            forgotten: Ids::default(),
            forbidden: Ids::default(),
        });
        Self { settings, supervisors, execs }
    }

    /// Never held across an await, and valid at every moment.
    fn execs(&self) -> MutexGuard<'_, Execs> {
        self.execs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The exec of that id, if it runs or is still remembered.
    pub(crate) fn get(&self, id: &str) -> Result<Arc<Exec>, Problem> {
        let mut execs = self.execs();
        execs.forget();
        execs
            .by_id
            .get(id)
            .cloned()
            .ok_or_else(|| Problem::new(ControlErrorCode::NotFound, "id: no such exec in this boot of the sandbox"))
    }

    /// Whether an exec of that id began in this boot. One that did not will not: a request for it that comes late is refused.
    pub(crate) fn forbid(&self, id: &str) -> bool {
        let mut execs = self.execs();
        let began = execs.by_id.contains_key(id) || execs.forgotten.has(id);
        if !began {
            execs.forbidden.add(id);
        }
        began
    }

    /// Starts an exec, or finds it when the same request came before. Nothing here waits, so that no second request can
    /// come in between.
    pub(crate) fn start(self: &Arc<Self>, request: ExecRequest) -> Result<Arc<Exec>, Problem> {
        let plan = plan(&request, &self.settings)?;
        let mut execs = self.execs();
        execs.forget();
        if let Some(known) = execs.by_id.get(&request.id) {
            if known.request != request {
                return Err(Problem::invalid("id: an exec with this id exists and was asked for differently"));
            }
            return Ok(known.clone());
        }
        if execs.forgotten.has(&request.id) {
            let message = "id: the exec of this id has ended and is no longer remembered; it is not run again";
            return Err(Problem::new(ControlErrorCode::NotFound, message));
        }
        if execs.forbidden.has(&request.id) {
            let message =
                "id: somebody who asked for the exec of this id had not heard of it, and forbade that it begins";
            return Err(Problem::new(ControlErrorCode::NotFound, message));
        }
        if execs.running >= CONCURRENT_EXECS {
            let message = format!("{CONCURRENT_EXECS} execs run already in this sandbox");
            return Err(Problem::new(ControlErrorCode::TooManyExecs, message));
        }
        let exec = Arc::new(Exec::new(request, self.settings.boot_id.clone(), &plan));
        let input = if plan.stdin.is_some() { Input::Pipe } else { Input::Nothing };
        let mut started = match tree::start(&plan.command, input, &self.settings, &self.supervisors) {
            Ok(started) => started,
            Err(Refused::Request(problem)) => return Err(problem),
            Err(Refused::Program(code, text)) => {
                exec.refused(code, &text);
                execs.by_id.insert(exec.id().to_owned(), exec.clone());
                execs.keep(&exec);
                return Ok(exec);
            }
        };
        exec.runs(started.pid);
        execs.by_id.insert(exec.id().to_owned(), exec.clone());
        execs.running += 1;
        drop(execs);
        let (table, watched) = (self.clone(), exec.clone());
        tokio::spawn(async move {
            watched.exited().await;
            let mut execs = table.execs();
            execs.running -= 1;
            execs.keep(&watched);
        });
        if let (Some(writer), Some(bytes)) = (started.input.take(), plan.stdin) {
            feed(exec.clone(), writer, bytes);
        }
        tokio::spawn(Run::new(exec.clone(), started).run());
        Ok(exec)
    }

    /// How many run, and when the last one ended, as long as that is remembered.
    pub(crate) fn activity(&self) -> (usize, Option<Instant>) {
        let execs = self.execs();
        (execs.running, execs.ended.last_end())
    }
}

/// Writes standard input, then closes it. Ends with the exec: a background child that holds the pipe and never reads
/// must not keep the bytes in memory.
fn feed(exec: Arc<Exec>, mut writer: pipe::Sender, bytes: Vec<u8>) {
    tokio::spawn(async move {
        tokio::select! {
            // A command that does not read its input, or ends before, is no fault.
            _ = writer.write_all(&bytes) => {}
            _ = exec.exited() => {}
        }
    });
}
