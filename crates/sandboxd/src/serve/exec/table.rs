//! All execs of this boot: those that run, and those that ended a while ago.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use sandbox_api::{ControlErrorCode, EndedBy, ExecExit, ExecRequest};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::time::Instant;

use super::launch::{Launch, LaunchError, Launched, launch};
use super::memory::OutOfMemory;
use super::request::{Plan, plan};
use super::run::{Pipes, Run};
use super::state::Exec;
use super::tree::{self, Supervisors};
use crate::http::Problem;
use crate::serve::Settings;

/// Execs at once.
pub(crate) const CONCURRENT_EXECS: usize = 64;
/// How long a result can be fetched after the end.
const KEPT_FOR: Duration = Duration::from_secs(600);
/// Ended execs kept at most.
const KEPT_COUNT: usize = 64;
/// Memory of ended execs kept at most.
const KEPT_BYTES: usize = 32 << 20;
/// Time that killing everything may take when the daemon shuts down.
const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(2);

/// All execs of this boot.
pub(crate) struct Table {
    settings: Arc<Settings>,
    supervisors: Arc<Supervisors>,
    execs: Mutex<Execs>,
}

#[derive(Default)]
struct Execs {
    by_id: HashMap<String, Arc<Exec>>,
    running: usize,
    /// Oldest first.
    ended: VecDeque<Ended>,
    ended_bytes: usize,
}

struct Ended {
    id: String,
    at: Instant,
    bytes: usize,
}

impl Execs {
    /// Forgets what is too old, too many or too large, oldest first; the newest result is always kept.
    fn forget(&mut self, now: Instant) {
        while let Some(oldest) = self.ended.front() {
            let expired = now >= oldest.at + KEPT_FOR;
            let crowded = self.ended.len() > 1 && (self.ended.len() > KEPT_COUNT || self.ended_bytes > KEPT_BYTES);
            if !expired && !crowded {
                return;
            }
            self.ended_bytes -= oldest.bytes;
            self.by_id.remove(&oldest.id);
            self.ended.pop_front();
        }
    }

    fn keep(&mut self, exec: &Exec) {
        let (now, bytes) = (Instant::now(), exec.held_bytes());
        self.ended.push_back(Ended { id: exec.id().to_owned(), at: now, bytes });
        self.ended_bytes += bytes;
        self.forget(now);
    }
}

impl Table {
    pub(crate) fn new(settings: Arc<Settings>, supervisors: Arc<Supervisors>) -> Self {
        Self { settings, supervisors, execs: Mutex::default() }
    }

    /// Never held across an await, and valid at every moment.
    fn execs(&self) -> MutexGuard<'_, Execs> {
        self.execs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The exec of that id, if it runs or is still remembered.
    pub(crate) fn get(&self, id: &str) -> Result<Arc<Exec>, Problem> {
        let mut execs = self.execs();
        execs.forget(Instant::now());
        execs
            .by_id
            .get(id)
            .cloned()
            .ok_or_else(|| Problem::new(ControlErrorCode::NotFound, "id: no such exec in this boot of the sandbox"))
    }

    /// Starts an exec, or finds it when the same request came before. Nothing here waits, so that no second request can
    /// come in between.
    pub(crate) fn start(self: &Arc<Self>, request: ExecRequest) -> Result<Arc<Exec>, Problem> {
        let plan = plan(&request, &self.settings)?;
        let mut execs = self.execs();
        execs.forget(Instant::now());
        if let Some(known) = execs.by_id.get(&request.id) {
            if known.request != request {
                return Err(Problem::invalid("id: an exec with this id exists and was asked for differently"));
            }
            return Ok(known.clone());
        }
        if execs.running >= CONCURRENT_EXECS {
            let message = format!("{CONCURRENT_EXECS} execs run already in this sandbox");
            return Err(Problem::new(ControlErrorCode::TooManyExecs, message));
        }
        let exec = Arc::new(Exec::new(request, self.settings.boot_id.clone(), plan.output_limit, plan.lease));
        let run = match self.launch(&exec, plan) {
            Ok(run) => run,
            Err(Refused::Request(problem)) => return Err(problem),
            Err(Refused::Program(code, text)) => {
                exec.state().stderr.push(text.as_bytes(), u64::MAX);
                exec.finish(program_refused(&exec, code));
                exec.state().gone = true;
                execs.by_id.insert(exec.id().to_owned(), exec.clone());
                execs.keep(&exec);
                return Ok(exec);
            }
        };
        execs.by_id.insert(exec.id().to_owned(), exec.clone());
        execs.running += 1;
        drop(execs);
        let (table, watched) = (self.clone(), exec.clone());
        tokio::spawn(async move {
            watched.ended().await;
            let mut execs = table.execs();
            execs.running -= 1;
            execs.keep(&watched);
        });
        tokio::spawn(run.run());
        Ok(exec)
    }

    fn launch(&self, exec: &Arc<Exec>, plan: Plan) -> Result<Run, Refused> {
        let out_of_memory = OutOfMemory::watch();
        let (stdin, writer) = match plan.stdin.as_ref() {
            None => (nothing().map_err(system)?, None),
            Some(_) => {
                let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(system)?;
                (reader, Some(writer))
            }
        };
        let (stdout, stdout_writer) = pipe_with(PipeFlags::CLOEXEC).map_err(system)?;
        let (stderr, stderr_writer) = pipe_with(PipeFlags::CLOEXEC).map_err(system)?;
        let Launched { supervisor, pid, reports, stacks } = launch(Launch {
            argv: &plan.argv,
            env: &plan.env,
            cwd: plan.cwd.clone(),
            stdin,
            stdout: stdout_writer,
            stderr: stderr_writer,
            credentials: self.settings.credentials,
            open_files: self.settings.open_files,
        })
        .map_err(|error| refused(error, &plan))?;
        self.supervisors.add(supervisor, stacks);
        exec.state().pid = Some(pid);
        let pipes = (|| {
            Ok::<_, std::io::Error>(Pipes {
                reports: receiver(reports)?,
                stdout: receiver(stdout)?,
                stderr: receiver(stderr)?,
            })
        })();
        let pipes = pipes.map_err(|error| {
            tree::kill_all(supervisor);
            Refused::Request(Problem::internal(error))
        })?;
        let mut plan = plan;
        if let (Some(writer), Some(bytes)) = (writer, plan.stdin.take()) {
            feed(exec.clone(), writer, bytes);
        }
        Ok(Run::new(exec.clone(), plan, supervisor, self.supervisors.clone(), out_of_memory, pipes))
    }

    /// How many run, and when the last one ended, as long as that is remembered.
    pub(crate) fn activity(&self) -> (usize, Option<Instant>) {
        let execs = self.execs();
        (execs.running, execs.ended.back().map(|ended| ended.at))
    }

    /// Kills everything and waits for it, within bounds. It blocks the event loop on purpose: a stream must break off
    /// rather than tell of an end that the shutdown made.
    pub(crate) fn shut_down(&self) {
        let deadline = Instant::now() + SHUTDOWN_PATIENCE;
        while Instant::now() < deadline {
            let mut busy = self.supervisors.kill_orphans();
            for supervisor in self.supervisors.all() {
                tree::kill_all(supervisor);
                busy = true;
            }
            if !busy {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
            self.supervisors.reap();
        }
    }
}

/// A standard input that is at its end from the start.
fn nothing() -> rustix::io::Result<OwnedFd> {
    rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

fn receiver(descriptor: OwnedFd) -> std::io::Result<pipe::Receiver> {
    rustix::io::ioctl_fionbio(&descriptor, true)?;
    pipe::Receiver::from_owned_fd(descriptor)
}

/// Writes standard input, then closes it. Ends with the exec: a background child that holds the pipe and never reads
/// must not keep the bytes in memory.
fn feed(exec: Arc<Exec>, writer: OwnedFd, bytes: Vec<u8>) {
    tokio::spawn(async move {
        let write = async {
            rustix::io::ioctl_fionbio(&writer, true)?;
            // A command that does not read its input, or ends before, is no fault.
            pipe::Sender::from_owned_fd(writer)?.write_all(&bytes).await
        };
        tokio::select! {
            _ = write => {}
            _ = exec.ended() => {}
        }
    });
}

/// Why there is no run.
enum Refused {
    /// The request cannot be carried out.
    Request(Problem),
    /// There is no such program (127), or it cannot be executed (126): a result like any other.
    Program(i32, String),
}

fn system(error: rustix::io::Errno) -> Refused {
    let message = format!("the sandbox has no resources left: {}", std::io::Error::from(error));
    Refused::Request(Problem::new(ControlErrorCode::Unavailable, message))
}

fn refused(error: LaunchError, plan: &Plan) -> Refused {
    let program = plan.argv.first().map(String::as_str).unwrap_or_default();
    match error {
        LaunchError::Disturbed => {
            let message = "another process of the sandbox stopped the command before it began; nothing ran";
            Refused::Request(Problem::new(ControlErrorCode::Unavailable, message))
        }
        LaunchError::Cwd(error) => Refused::Request(Problem::invalid(format!("cwd: {}", describe(&error)))),
        LaunchError::Program(error) => match error.raw_os_error() {
            Some(libc::E2BIG) => Refused::Request(Problem::invalid(
                "command/argv/env: together larger than the operating system takes (E2BIG)",
            )),
            Some(libc::ENOENT | libc::ENOTDIR) if program.contains('/') => {
                Refused::Program(127, format!("{program}: {}\n", describe(&error)))
            }
            Some(libc::ENOENT | libc::ENOTDIR) => Refused::Program(127, format!("{program}: command not found\n")),
            Some(libc::EACCES) if std::path::Path::new(program).is_dir() => {
                Refused::Program(126, format!("{program}: Is a directory\n"))
            }
            Some(
                libc::EACCES
                | libc::EPERM
                | libc::ENOEXEC
                | libc::ETXTBSY
                | libc::ELOOP
                | libc::ENAMETOOLONG
                | libc::EISDIR
                | libc::EINVAL
                | libc::ELIBBAD,
            ) => Refused::Program(126, format!("{program}: {}\n", describe(&error))),
            Some(libc::EAGAIN | libc::ENOMEM | libc::EMFILE | libc::ENFILE) => {
                let message = format!("the sandbox has no resources left: {}", describe(&error));
                Refused::Request(Problem::new(ControlErrorCode::Unavailable, message))
            }
            _ => Refused::Request(Problem::internal(error)),
        },
    }
}

/// The operating system's text without the number that Rust appends.
fn describe(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

fn program_refused(exec: &Exec, code: i32) -> ExecExit {
    let state = exec.state();
    ExecExit {
        id: exec.id().to_owned(),
        exit_code: Some(code),
        signal: None,
        ended_by: EndedBy::Exit,
        out_of_memory: false,
        stdout: state.stdout.captured(),
        stderr: state.stderr.captured(),
        duration_ms: 0,
    }
}
