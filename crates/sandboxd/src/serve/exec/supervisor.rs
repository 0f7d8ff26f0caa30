//! Starting a command below a supervisor.
//!
//! ```text
//!   sandboxd ── supervisor (child subreaper) ── command ── whatever it starts
//! ```
//!
//! The supervisor is a fork of the daemon that never executes anything. As a child subreaper it inherits every orphan
//! below it, so a process that forks twice or opens a session of its own is still its descendant: killing the tree is
//! killing what is below the supervisor, and its end is the proof that nothing is left. It reports on a pipe and lives
//! until its last descendant is gone.
//!
//! Between fork and exec only async-signal-safe calls are made: another thread of the daemon may have held any lock.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// A user and a group of the operating system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Credentials {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// What to run.
pub(super) struct Launch<'a> {
    pub(super) argv: &'a [String],
    pub(super) env: &'a BTreeMap<String, String>,
    pub(super) cwd: CString,
    pub(super) stdin: Stdio,
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
    /// Whom the command runs as; `None` is the daemon's own user.
    pub(super) credentials: Option<Credentials>,
    /// Limit of open files to give back to the command, since the daemon raises its own.
    pub(super) open_files: libc::rlimit,
}

/// A command that was started.
pub(super) struct Launched {
    pub(super) supervisor: i32,
    pub(super) pid: i32,
    /// Where the supervisor writes its [`Report`]s; not blocking.
    pub(super) reports: OwnedFd,
}

/// Why there is no command.
pub(super) enum LaunchError {
    /// The working directory cannot be entered.
    Cwd(io::Error),
    /// The program cannot be executed.
    Program(io::Error),
}

/// What a supervisor says: a kind and a number, both 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Report {
    /// The process id of the command.
    Started(i32),
    /// The working directory cannot be entered: the error number.
    CwdRefused(i32),
    /// The command ended: its wait status.
    Ended(i32),
    /// The last descendant is gone. Without this one, something killed the supervisor.
    Finished,
}

/// Bytes of one report.
pub(super) const REPORT_BYTES: usize = 8;

impl Report {
    fn to_bytes(self) -> [u8; REPORT_BYTES] {
        let (kind, value) = match self {
            Self::Started(pid) => (1u32, pid),
            Self::CwdRefused(errno) => (2, errno),
            Self::Ended(status) => (3, status),
            Self::Finished => (4, 0),
        };
        let (kind, value) = (kind.to_ne_bytes(), value.to_ne_bytes());
        [kind[0], kind[1], kind[2], kind[3], value[0], value[1], value[2], value[3]]
    }

    pub(super) fn from_bytes(bytes: [u8; REPORT_BYTES]) -> Option<Self> {
        let [k0, k1, k2, k3, v0, v1, v2, v3] = bytes;
        let value = i32::from_ne_bytes([v0, v1, v2, v3]);
        match u32::from_ne_bytes([k0, k1, k2, k3]) {
            1 => Some(Self::Started(value)),
            2 => Some(Self::CwdRefused(value)),
            3 => Some(Self::Ended(value)),
            4 => Some(Self::Finished),
            _ => None,
        }
    }
}

/// Starts the command. Returns once its program is executing, or is known not to.
pub(super) fn launch(launch: Launch<'_>) -> Result<Launched, LaunchError> {
    let Launch { argv, env, cwd, stdin, stdout, stderr, credentials, open_files } = launch;
    let (reports, reporter) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .map_err(|error| LaunchError::Program(error.into()))?;
    rustix::io::ioctl_fionbio(&reports, true).map_err(|error| LaunchError::Program(error.into()))?;
    let Some((program, arguments)) = argv.split_first() else {
        return Err(LaunchError::Program(io::Error::from_raw_os_error(libc::ENOENT)));
    };
    let mut command = Command::new(program);
    command.args(arguments).env_clear().envs(env).stdin(stdin).stdout(stdout).stderr(stderr);
    let reporter_number = reporter.as_raw_fd();
    // SAFETY: `split` makes only async-signal-safe calls and allocates nothing.
    unsafe { command.pre_exec(move || split(reporter_number, &cwd, credentials, &open_files)) };
    let spawned = command.spawn();
    drop(reporter);
    let mut reports = File::from(reports);
    let mut first = [0u8; REPORT_BYTES];
    let report = match reports.read_exact(&mut first) {
        Ok(()) => Report::from_bytes(first),
        Err(_) => None,
    };
    match (spawned, report) {
        (Ok(child), Some(Report::Started(pid))) => {
            Ok(Launched { supervisor: child.id().cast_signed(), pid, reports: reports.into() })
        }
        (Ok(_), _) => Err(LaunchError::Program(io::Error::other("the supervisor did not report"))),
        (Err(_), Some(Report::CwdRefused(errno))) => Err(LaunchError::Cwd(io::Error::from_raw_os_error(errno))),
        (Err(error), _) => Err(LaunchError::Program(error)),
    }
}

/// Runs in the daemon's child: forks once more, becomes the supervisor in the parent and returns in the child, which is
/// about to execute the program.
fn split(reporter: RawFd, cwd: &CStr, credentials: Option<Credentials>, open_files: &libc::rlimit) -> io::Result<()> {
    // SAFETY: plain system calls on values that outlive them; see the module's note on async-signal-safety.
    unsafe {
        if libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0 {
            return Err(io::Error::last_os_error());
        }
        let child = libc::fork();
        if child < 0 {
            return Err(io::Error::last_os_error());
        }
        if child > 0 {
            supervise(reporter, child);
        }
        become_command(cwd, credentials, open_files).inspect_err(|error| {
            if let Refusal::Cwd(errno) = error {
                report(reporter, Report::CwdRefused(*errno));
            }
        })?;
        report(reporter, Report::Started(libc::getpid()));
    }
    Ok(())
}

enum Refusal {
    Cwd(i32),
    Other(io::Error),
}

impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Cwd(errno) => io::Error::from_raw_os_error(errno),
            Refusal::Other(error) => error,
        }
    }
}

/// # Safety
/// Only between fork and exec.
unsafe fn become_command(
    cwd: &CStr,
    credentials: Option<Credentials>,
    open_files: &libc::rlimit,
) -> Result<(), Refusal> {
    // SAFETY: as the caller promises; the sets and the limit are values of this frame.
    unsafe {
        libc::setsid();
        // The raw call, since the C library refuses to touch the signals that it uses itself. All zeros is the default
        // action with an empty mask.
        let default = [0u64; 4];
        for signal in 1..=64 {
            libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), std::ptr::null_mut::<u64>(), 8usize);
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
        libc::setrlimit(libc::RLIMIT_NOFILE, open_files);
        libc::umask(0o022);
        if let Some(Credentials { uid, gid }) = credentials {
            // The raw calls: the C library's versions signal every thread of the process, which a fork does not have.
            let failed = libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()) != 0
                || libc::syscall(libc::SYS_setresgid, gid, gid, gid) != 0
                || libc::syscall(libc::SYS_setresuid, uid, uid, uid) != 0;
            if failed {
                return Err(Refusal::Other(io::Error::last_os_error()));
            }
        }
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 {
            return Err(Refusal::Other(io::Error::last_os_error()));
        }
        if libc::chdir(cwd.as_ptr()) != 0 {
            return Err(Refusal::Cwd(*libc::__errno_location()));
        }
    }
    Ok(())
}

/// The supervisor's whole life.
///
/// # Safety
/// Only in a fork of the daemon that will execute nothing.
unsafe fn supervise(reporter: RawFd, child: libc::pid_t) -> ! {
    // SAFETY: as the caller promises; only async-signal-safe calls follow.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        libc::prctl(libc::PR_SET_NAME, c"exec-supervisor".as_ptr(), 0, 0, 0);
        // Nothing but the report pipe stays open: a pipe held here would never end for its reader.
        if reporter != 0 {
            libc::dup2(reporter, 0);
        }
        if libc::syscall(libc::SYS_close_range, 1u32, u32::MAX, 0u32) != 0 {
            for number in 1..65_536 {
                libc::close(number);
            }
        }
        loop {
            let mut status = 0;
            let pid = libc::waitpid(-1, &raw mut status, 0);
            if pid == child {
                report(0, Report::Ended(status));
            } else if pid < 0 && *libc::__errno_location() != libc::EINTR {
                report(0, Report::Finished);
                libc::_exit(0);
            }
        }
    }
}

/// Writes one report. A pipe takes so few bytes at once or not at all.
fn report(reporter: RawFd, report: Report) {
    let bytes = report.to_bytes();
    // SAFETY: the buffer is a local array of that length.
    unsafe { libc::write(reporter, bytes.as_ptr().cast(), bytes.len()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_survive_the_pipe() {
        for report in [Report::Started(7), Report::CwdRefused(2), Report::Ended(-1), Report::Finished] {
            assert_eq!(Report::from_bytes(report.to_bytes()), Some(report));
        }
        assert_eq!(Report::from_bytes([9; REPORT_BYTES]), None);
    }
}
