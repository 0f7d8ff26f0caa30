//! Starting a command below a supervisor: the daemon's side.

use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_void};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use syscalls::{Sysno, syscall};

use super::members::{kill_all, send, signal_all};
use super::supervisor::{Credentials, NONE, Orders, REPORT_BYTES, Report, supervise};

/// How long a supervisor may take to its first words. The event loop stands still meanwhile: a command that stops its own
/// supervisor must not stop the daemon.
const PATIENCE: Duration = Duration::from_secs(1);

/// What to run.
pub(super) struct Launch<'a> {
    pub(super) argv: &'a [String],
    pub(super) env: &'a BTreeMap<String, String>,
    pub(super) cwd: CString,
    pub(super) stdin: BorrowedFd<'a>,
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
    pub(super) credentials: Option<Credentials>,
    pub(super) open_files: libc::rlimit,
    pub(super) processes: Option<libc::rlimit>,
}

/// A command that was started.
pub(super) struct Launched {
    pub(super) supervisor: i32,
    pub(super) pid: i32,
    /// Where the supervisor writes its [`Report`]s.
    pub(super) reports: OwnedFd,
    /// What the supervisor stands on: to be kept until it is gone.
    pub(super) stacks: Option<Stacks>,
}

/// Why there is no command.
pub(super) enum LaunchError {
    /// The working directory cannot be entered.
    Cwd(io::Error),
    /// The program cannot be executed.
    Program(io::Error),
    /// Another process of the sandbox stopped or killed it before it began.
    Disturbed,
}

/// Starts the command. Returns once its program has taken over, or is known not to. Until then the daemon does nothing else:
/// what it did would keep the new processes from a processor.
pub(super) fn launch(launch: Launch<'_>, stacks: Stacks) -> Result<Launched, LaunchError> {
    let (reports, reporter) = pipe_with(PipeFlags::CLOEXEC).map_err(system)?;
    let programs = Strings::new(programs(&launch.argv[0], launch.env.get("PATH")))?;
    let argv = Strings::new(launch.argv.iter().cloned())?;
    let envp = Strings::new(launch.env.iter().map(|(name, value)| format!("{name}={value}")))?;
    let mut script_argv = Vec::with_capacity(argv.pointers.len() + 1);
    script_argv.extend([c"/bin/sh".as_ptr(), NONE]);
    script_argv.extend_from_slice(argv.pointers.get(1..).unwrap_or(&[NONE]));
    // On the heap, where it stays should the processes outlast this function.
    let mut orders = Box::new(Orders {
        reporter: reporter.as_raw_fd(),
        stdio: [launch.stdin.as_raw_fd(), launch.stdout.as_raw_fd(), launch.stderr.as_raw_fd()],
        programs: programs.pointers.as_ptr(),
        argv: argv.pointers.as_ptr(),
        script_argv: script_argv.as_mut_ptr(),
        envp: envp.pointers.as_ptr(),
        cwd: launch.cwd.as_ptr(),
        credentials: launch.credentials,
        open_files: launch.open_files,
        processes: launch.processes,
        changed_signals: *CHANGED_SIGNALS,
        command_stack: stacks.command(),
        cwd_errno: AtomicI32::new(0),
        program_errno: AtomicI32::new(0),
        entered: AtomicI32::new(0),
    });
    let supervisor = start(&mut orders, &stacks).map_err(LaunchError::Program)?;
    drop(reporter);
    let mut reports = File::from(reports);
    let verdict = next_report(&mut reports, supervisor);
    let entered = Some(orders.entered.load(Ordering::Acquire)).filter(|pid| *pid > 0);
    if let (Some(pid), Some(Report::Started)) = (entered, verdict) {
        return Ok(Launched { supervisor, pid, reports: reports.into(), stacks: Some(stacks) });
    }
    let refusal = match verdict {
        Some(Report::CwdRefused(errno)) => LaunchError::Cwd(io::Error::from_raw_os_error(errno)),
        Some(Report::ProgramRefused(errno)) => LaunchError::Program(io::Error::from_raw_os_error(errno)),
        _ => {
            // Something killed or stopped the supervisor early. The processes may still be using these, so they stay.
            std::mem::forget((stacks, programs, argv, envp, script_argv, launch.cwd, orders));
            if let Some(pid) = entered {
                // The program may have run, and be what did it: an exec like any other whose supervisor says nothing.
                return Ok(Launched { supervisor, pid, reports: reports.into(), stacks: None });
            }
            // A command that was stopped on its way must not begin later.
            kill_all(supervisor);
            send(supervisor, libc::SIGKILL);
            LaunchError::Disturbed
        }
    };
    // SAFETY: waits for the own child, which ends at once when there was no start.
    unsafe { libc::waitpid(supervisor, ptr::null_mut(), 0) };
    Err(refusal)
}

/// Signals whose action is not the default one here, the lowest bit being signal 1. The daemon sets them when it starts. The C
/// library changes its own three (32 to 34) whenever it likes.
static CHANGED_SIGNALS: LazyLock<u64> = LazyLock::new(|| {
    let changed = |signal: &u32| {
        let mut action = [0u64; 4];
        // SAFETY: asks only, and the kernel fills what it knows of an action.
        let asked = unsafe { syscall!(Sysno::rt_sigaction, *signal, 0, action.as_mut_ptr(), 8) };
        // The first word is the handler; the default one is zero.
        asked.is_err() || action[0] != 0 || (32..=34).contains(signal)
    };
    (1..=64).filter(changed).fold(0, |mask, signal| mask | 1 << (signal - 1))
});

/// The supervisor's next word; `None` when it is gone, or says nothing in time.
fn next_report(reports: &mut File, supervisor: i32) -> Option<Report> {
    let deadline = Instant::now() + PATIENCE;
    let step = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
    while poll(&mut [PollFd::new(&*reports, PollFlags::IN)], Some(&step)) != Ok(1) {
        if Instant::now() >= deadline {
            return None;
        }
        send(supervisor, libc::SIGCONT);
        signal_all(supervisor, libc::SIGCONT);
    }
    let mut bytes = [0u8; REPORT_BYTES];
    reports.read_exact(&mut bytes).ok()?;
    Report::from_bytes(bytes)
}

fn system(error: rustix::io::Errno) -> LaunchError {
    LaunchError::Program(error.into())
}

/// Makes the supervisor's process, with every signal blocked from its first moment.
fn start(orders: &mut Orders, stacks: &Stacks) -> io::Result<i32> {
    let orders: *mut Orders = orders;
    // SAFETY: the sets are locals; the orders and the stacks outlive the process's use of them, as `launch` sees to.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let pid = libc::clone(supervise, stacks.supervisor(), libc::CLONE_VM | libc::SIGCHLD, orders.cast());
        let error = io::Error::last_os_error();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
        if pid < 0 { Err(error) } else { Ok(pid) }
    }
}

/// Where a program is looked for: a name with a slash is a path, any other is looked for in `PATH`, in which an empty
/// part is the current directory.
fn programs(program: &str, path: Option<&String>) -> Vec<String> {
    if program.contains('/') {
        return vec![program.to_owned()];
    }
    let path = path.map_or("/bin:/usr/bin", String::as_str);
    path.split(':').map(|part| format!("{}/{program}", if part.is_empty() { "." } else { part })).collect()
}

/// Strings as `execve` takes them.
struct Strings {
    pointers: Vec<*const c_char>,
    /// What the pointers point to.
    _strings: Vec<CString>,
}

impl Strings {
    fn new(strings: impl IntoIterator<Item = String>) -> Result<Self, LaunchError> {
        let strings: Vec<CString> = strings
            .into_iter()
            .map(CString::new)
            .collect::<Result<_, _>>()
            .map_err(|error| LaunchError::Program(error.into()))?;
        let pointers = strings.iter().map(|string| string.as_ptr()).chain([NONE]).collect();
        Ok(Self { pointers, _strings: strings })
    }
}

/// Bytes of each stack; only what is touched takes memory.
const STACK_BYTES: usize = 64 << 10;
/// Bytes that must not be touched below the stacks.
const GUARD_BYTES: usize = 4 << 10;

/// Two stacks: the command's process stands on the lower one for a moment, the supervisor on the upper one for its life.
pub(crate) struct Stacks {
    base: *mut c_void,
}

// SAFETY: plain memory, which only the processes made here stand on.
unsafe impl Send for Stacks {}

impl Stacks {
    const LENGTH: usize = GUARD_BYTES + 2 * STACK_BYTES;

    pub(super) fn new() -> rustix::io::Result<Self> {
        // SAFETY: a new anonymous mapping, and a part of it made inaccessible.
        unsafe {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::STACK;
            let base =
                rustix::mm::mmap_anonymous(ptr::null_mut(), Self::LENGTH, ProtFlags::READ | ProtFlags::WRITE, flags)?;
            let stacks = Self { base };
            rustix::mm::mprotect(base, GUARD_BYTES, MprotectFlags::empty())?;
            Ok(stacks)
        }
    }

    /// Upper end of the command's stack; stacks grow downwards.
    fn command(&self) -> *mut c_void {
        self.base.wrapping_byte_add(GUARD_BYTES + STACK_BYTES)
    }

    fn supervisor(&self) -> *mut c_void {
        self.base.wrapping_byte_add(Self::LENGTH)
    }
}

impl Drop for Stacks {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and it is dropped only when nobody stands on it any more.
        if let Err(cause) = unsafe { rustix::mm::munmap(self.base, Self::LENGTH) } {
            tracing::error!(%cause, "a stack could not be given back");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_looked_for_as_a_shell_does() {
        let path = "/a::/b".to_owned();
        assert_eq!(programs("x", Some(&path)), ["/a/x", "./x", "/b/x"]);
        assert_eq!(programs("./x", Some(&path)), ["./x"]);
        assert_eq!(programs("x", None), ["/bin/x", "/usr/bin/x"]);
    }
}
