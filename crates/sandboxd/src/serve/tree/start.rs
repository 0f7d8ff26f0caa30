//! From a checked command to a running tree: its pipes, its launch, and why there may be none.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use sandbox_api::ControlErrorCode;
use tokio::net::unix::pipe;

use super::command::Command;
use super::launch::{Launch, LaunchError, Launched, launch};
use super::members::{self, Supervisors};
use super::memory::OutOfMemory;
use super::run::Pipes;
use super::strikes::Before;
use crate::http::Problem;
use crate::serve::Settings;

/// What standard input of a command is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// At its end from the start.
    Nothing,
    /// A pipe that the daemon writes to.
    Pipe,
}

/// A tree that runs and that nobody watches yet.
pub(crate) struct Started {
    /// The command's process.
    pub(crate) pid: i32,
    /// The daemon's end of standard input, for [`Input::Pipe`].
    pub(crate) input: Option<pipe::Sender>,
    pub(super) supervisor: i32,
    pub(super) supervisors: Arc<Supervisors>,
    pub(super) out_of_memory: OutOfMemory,
    pub(super) before: Before,
    pub(super) pipes: Pipes,
}

/// Why there is no tree.
pub(crate) enum Refused {
    /// The request cannot be carried out.
    Request(Problem),
    /// There is no such program (127), or it cannot be executed (126): a result like any other.
    Program(i32, String),
}

/// Starts the command. Nothing here waits, but for a supervisor's first word, which is bounded.
pub(crate) fn start(
    command: &Command,
    input: Input,
    settings: &Settings,
    supervisors: &Arc<Supervisors>,
) -> Result<Started, Refused> {
    let before = supervisors.strikes.before();
    let out_of_memory = OutOfMemory::watch();
    let (reader, writer) = match input {
        Input::Nothing => (None, None),
        Input::Pipe => {
            let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(system)?;
            (Some(reader), Some(writer))
        }
    };
    let stdin = match &reader {
        Some(reader) => reader.as_fd(),
        None => nothing().map_err(system)?,
    };
    let (stdout, stdout_writer) = pipe_with(PipeFlags::CLOEXEC).map_err(system)?;
    let (stderr, stderr_writer) = pipe_with(PipeFlags::CLOEXEC).map_err(system)?;
    let stacks = supervisors.stacks().map_err(system)?;
    let what = Launch {
        argv: &command.argv,
        env: &command.env,
        cwd: command.cwd.clone(),
        stdin,
        stdout: stdout_writer,
        stderr: stderr_writer,
        credentials: settings.credentials,
        open_files: settings.open_files,
        processes: settings.processes,
    };
    let Launched { supervisor, pid, reports, stacks } = launch(what, stacks).map_err(|error| {
        if matches!(error, LaunchError::Disturbed) {
            // What lost its supervisor on the way would begin unwatched.
            supervisors.kill_orphans();
        }
        refused(error, command.program())
    })?;
    supervisors.add(supervisor, stacks);
    let out_of_memory = out_of_memory.started();
    let ends = (|| {
        let pipes = Pipes { reports: receiver(reports)?, stdout: receiver(stdout)?, stderr: receiver(stderr)? };
        Ok::<_, std::io::Error>((pipes, writer.map(sender).transpose()?))
    })();
    let (pipes, input) = ends.map_err(|error| {
        members::kill_all(supervisor);
        Refused::Request(Problem::internal(error))
    })?;
    Ok(Started { pid, input, supervisor, supervisors: supervisors.clone(), out_of_memory, before, pipes })
}

/// A standard input that is at its end from the start: the same for all commands, as nothing can be done to it.
fn nothing() -> rustix::io::Result<BorrowedFd<'static>> {
    static NOTHING: OnceLock<OwnedFd> = OnceLock::new();
    if let Some(nothing) = NOTHING.get() {
        return Ok(nothing.as_fd());
    }
    let opened = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    Ok(NOTHING.get_or_init(|| opened).as_fd())
}

// Of the ends of a new pipe is known what tokio would ask the kernel for.

fn receiver(descriptor: OwnedFd) -> std::io::Result<pipe::Receiver> {
    rustix::io::ioctl_fionbio(&descriptor, true)?;
    pipe::Receiver::from_owned_fd_unchecked(descriptor)
}

fn sender(descriptor: OwnedFd) -> std::io::Result<pipe::Sender> {
    rustix::io::ioctl_fionbio(&descriptor, true)?;
    pipe::Sender::from_owned_fd_unchecked(descriptor)
}

fn system(error: rustix::io::Errno) -> Refused {
    let message = format!("the sandbox has no resources left: {}", std::io::Error::from(error));
    Refused::Request(Problem::new(ControlErrorCode::Unavailable, message))
}

fn refused(error: LaunchError, program: &str) -> Refused {
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
