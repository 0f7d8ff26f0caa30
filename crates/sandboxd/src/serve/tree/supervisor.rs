//! The supervisor of a command, and the command until its program takes over.
//!
//! ```text
//!   sandboxd ── supervisor (child subreaper) ── command ── whatever it starts
//! ```
//!
//! As a child subreaper the supervisor inherits every orphan below it, so a process that forks twice or opens a session
//! of its own is still its descendant: killing the tree is killing what is below the supervisor, and its end is the proof
//! that nothing is left. It reports on a pipe and lives until its last descendant is gone.
//!
//! Both are processes of their own that share the daemon's memory, as `vfork` does, since copying page tables twice
//! costs more than everything else here. So nothing in this file allocates, takes a lock, panics, or calls the C library,
//! whose `errno` belongs to the daemon's thread: only raw system calls, on what [`Orders`] holds.

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

use syscalls::{Errno, Sysno, syscall};

/// A user and a group of the operating system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Credentials {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// Everything that the two processes read, made before they exist. Strings end in NUL, lists in a null pointer.
pub(super) struct Orders {
    pub(super) reporter: RawFd,
    pub(super) stdio: [RawFd; 3],
    /// Paths to try, in this order.
    pub(super) programs: *const *const c_char,
    pub(super) argv: *const *const c_char,
    /// Arguments for a shell that runs a script without an interpreter line: shell, script, arguments. The script's path
    /// is filled in.
    pub(super) script_argv: *mut *const c_char,
    pub(super) envp: *const *const c_char,
    pub(super) cwd: *const c_char,
    /// Whom the command runs as; `None` is the daemon's own user.
    pub(super) credentials: Option<Credentials>,
    /// Signals of which the daemon has changed the action, the lowest bit being signal 1.
    pub(super) changed_signals: u64,
    /// Limit of open files to give back to the command, since the daemon raises its own.
    pub(super) open_files: libc::rlimit,
    /// Where there is a bound.
    pub(super) processes: Option<libc::rlimit>,
    /// Upper end of the stack on which the command's process runs until its program takes over.
    pub(super) command_stack: *mut c_void,
    /// The command's answer to the supervisor: why the directory, or the program, was refused.
    pub(super) cwd_errno: AtomicI32,
    pub(super) program_errno: AtomicI32,
    /// The command's process, once it is about to become its program. It says so itself, since the program may kill the
    /// supervisor before that gets to say anything.
    pub(super) entered: AtomicI32,
}

/// What a supervisor says: a kind and a number, both 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Report {
    /// The program has taken over.
    Started,
    /// The working directory cannot be entered: the error number.
    CwdRefused(i32),
    /// The program cannot be executed: the error number.
    ProgramRefused(i32),
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
            Self::Started => (1u32, 0),
            Self::CwdRefused(errno) => (2, errno),
            Self::ProgramRefused(errno) => (3, errno),
            Self::Ended(status) => (4, status),
            Self::Finished => (5, 0),
        };
        let (kind, value) = (kind.to_ne_bytes(), value.to_ne_bytes());
        [kind[0], kind[1], kind[2], kind[3], value[0], value[1], value[2], value[3]]
    }

    pub(super) fn from_bytes(bytes: [u8; REPORT_BYTES]) -> Option<Self> {
        let [k0, k1, k2, k3, v0, v1, v2, v3] = bytes;
        let value = i32::from_ne_bytes([v0, v1, v2, v3]);
        match u32::from_ne_bytes([k0, k1, k2, k3]) {
            1 => Some(Self::Started),
            2 => Some(Self::CwdRefused(value)),
            3 => Some(Self::ProgramRefused(value)),
            4 => Some(Self::Ended(value)),
            5 => Some(Self::Finished),
            _ => None,
        }
    }
}

/// The supervisor's whole life. Every signal is blocked from its first moment.
pub(super) extern "C" fn supervise(orders: *mut c_void) -> c_int {
    // SAFETY: `launch` passes its orders and keeps them until the first report; see the module's rules.
    unsafe {
        let orders = orders.cast::<Orders>();
        let _ = syscall!(Sysno::prctl, libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
        let _ = syscall!(Sysno::prctl, libc::PR_SET_NAME, c"exec-supervisor".as_ptr(), 0, 0, 0);
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        // Returns once the command's program has taken over, or its process has ended.
        let command = libc::clone(command, (*orders).command_stack, flags, orders.cast());
        let (cwd, program) =
            ((*orders).cwd_errno.load(Ordering::Acquire), (*orders).program_errno.load(Ordering::Acquire));
        let reporter = (*orders).reporter;
        let first = match (command, cwd, program) {
            (..0, _, _) => Report::ProgramRefused(libc::EAGAIN),
            (_, 0, 0) => Report::Started,
            (_, 0, errno) => Report::ProgramRefused(errno),
            (_, errno, _) => Report::CwdRefused(errno),
        };
        report(reporter, first);
        // The orders may be gone from here on. Nothing but the report pipe stays open: a pipe held here would never end
        // for its reader.
        let _ = syscall!(Sysno::dup3, reporter, 0, 0);
        if syscall!(Sysno::close_range, 1, u32::MAX, 0).is_err() {
            for number in 1..65_536 {
                let _ = syscall!(Sysno::close, number);
            }
        }
        loop {
            let mut status: c_int = 0;
            match syscall!(Sysno::wait4, -1isize, &raw mut status, 0, 0) {
                Ok(pid) if pid as c_int == command => report(0, Report::Ended(status)),
                Ok(_) | Err(Errno::EINTR) => {}
                Err(_) => {
                    report(0, Report::Finished);
                    exit(0);
                }
            }
        }
    }
}

/// The command's process until its program takes over. The supervisor stands still meanwhile.
extern "C" fn command(orders: *mut c_void) -> c_int {
    // SAFETY: as for `supervise`.
    unsafe {
        let orders = orders.cast::<Orders>();
        let _ = syscall!(Sysno::setsid);
        // All zeros is the default action with an empty mask.
        let default = [0u64; 4];
        let mut left = (*orders).changed_signals;
        while left != 0 {
            let signal = left.trailing_zeros() + 1;
            let _ = syscall!(Sysno::rt_sigaction, signal, default.as_ptr(), 0, 8);
            left &= left - 1;
        }
        let _ = syscall!(Sysno::prlimit64, 0, libc::RLIMIT_NOFILE, &raw const (*orders).open_files, 0);
        if let Some(processes) = &(*orders).processes {
            let _ = syscall!(Sysno::prlimit64, 0, libc::RLIMIT_NPROC, &raw const *processes, 0);
        }
        let _ = syscall!(Sysno::umask, 0o022);
        for (number, source) in (*orders).stdio.iter().enumerate() {
            if let Err(error) = syscall!(Sysno::dup3, *source, number, 0) {
                refuse(&(*orders).program_errno, error);
            }
        }
        if let Err(error) = drop_privileges((*orders).credentials) {
            refuse(&(*orders).program_errno, error);
        }
        if let Err(error) = syscall!(Sysno::chdir, (*orders).cwd) {
            refuse(&(*orders).cwd_errno, error);
        }
        let none = 0u64;
        let _ = syscall!(Sysno::rt_sigprocmask, libc::SIG_SETMASK, &raw const none, 0, 8);
        let pid = syscall!(Sysno::getpid).unwrap_or_default();
        (*orders).entered.store(pid as c_int, Ordering::Release);
        let error = execute(orders);
        refuse(&(*orders).program_errno, error)
    }
}

/// # Safety
/// Only in the command's process.
unsafe fn drop_privileges(credentials: Option<Credentials>) -> Result<(), Errno> {
    // SAFETY: numbers only.
    unsafe {
        if let Some(Credentials { uid, gid }) = credentials {
            syscall!(Sysno::setgroups, 0, 0)?;
            syscall!(Sysno::setresgid, gid, gid, gid)?;
            syscall!(Sysno::setresuid, uid, uid, uid)?;
        }
    }
    Ok(())
}

/// Tries every path as `execvp` does; returns why none took over.
///
/// # Safety
/// Only in the command's process.
unsafe fn execute(orders: *mut Orders) -> Errno {
    // SAFETY: the lists are as `Orders` says.
    unsafe {
        let mut denied = false;
        let mut program = (*orders).programs;
        while !(*program).is_null() {
            let error = attempt(*program, (*orders).argv, (*orders).envp);
            match error {
                Errno::EACCES => denied = true,
                Errno::ENOENT | Errno::ENOTDIR | Errno::ESTALE | Errno::ENODEV | Errno::ETIMEDOUT => {}
                Errno::ENOEXEC => {
                    *(*orders).script_argv.add(1) = *program;
                    return attempt(c"/bin/sh".as_ptr(), (*orders).script_argv, (*orders).envp);
                }
                _ => return error,
            }
            program = program.add(1);
        }
        if denied { Errno::EACCES } else { Errno::ENOENT }
    }
}

/// # Safety
/// As for [`execute`].
unsafe fn attempt(program: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> Errno {
    // SAFETY: the caller passes strings and lists as `execve` takes them.
    match unsafe { syscall!(Sysno::execve, program, argv, envp) } {
        Ok(_) => Errno::ENOENT,
        Err(error) => error,
    }
}

/// Leaves the reason for the supervisor, and ends the command's process.
fn refuse(place: &AtomicI32, error: Errno) -> ! {
    place.store(error.into_raw(), Ordering::Release);
    exit(127)
}

fn exit(code: c_int) -> ! {
    loop {
        // SAFETY: ends this process, which shares no thread group with the daemon.
        let _ = unsafe { syscall!(Sysno::exit_group, code) };
    }
}

/// Writes one report. A pipe takes so few bytes at once or not at all.
fn report(reporter: RawFd, report: Report) {
    let bytes = report.to_bytes();
    // SAFETY: the buffer is a local array of that length.
    let _ = unsafe { syscall!(Sysno::write, reporter, bytes.as_ptr(), bytes.len()) };
}

/// The end of a list.
pub(super) const NONE: *const c_char = ptr::null();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_survive_the_pipe() {
        for report in
            [Report::Started, Report::CwdRefused(2), Report::ProgramRefused(13), Report::Ended(-1), Report::Finished]
        {
            assert_eq!(Report::from_bytes(report.to_bytes()), Some(report));
        }
        assert_eq!(Report::from_bytes([9; REPORT_BYTES]), None);
    }
}
