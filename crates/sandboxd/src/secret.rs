//! How secrets reach the daemon, and how they are kept from the commands it runs.
//!
//! A secret comes over a descriptor. One that comes in the environment (the only way some platforms have) is moved to a
//! descriptor and the daemon executes itself again with a clean environment, since `/proc/<pid>/environ` shows for ever
//! what a process was started with. Afterwards the process is made non-dumpable: no command, even of the same user, can
//! then read its memory, its environment or its descriptors.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Bytes that are read from a secret's descriptor at most.
const SECRET_LIMIT_BYTES: u64 = 8 << 20;

/// Variables that are no secrets and live through the second start.
const KEPT_VARIABLES: [&str; 3] = ["PATH", "SANDBOX_ID", "SANDBOXD_LOG"];

/// Takes ownership of a descriptor that the parent process left open under this number, and closes it to children.
pub(crate) fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    if number < 3 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a descriptor below 3 is a standard stream"));
    }
    // SAFETY: F_GETFD only asks whether the number is an open descriptor.
    if unsafe { libc::fcntl(number, libc::F_GETFD) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open, and the command line names each number for one use only.
    let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
    rustix::io::fcntl_setfd(&descriptor, rustix::io::FdFlags::CLOEXEC)?;
    Ok(descriptor)
}

/// Reads a secret to its end and closes the descriptor.
pub(crate) fn read(number: RawFd) -> io::Result<String> {
    let mut text = String::new();
    File::from(inherited(number)?).take(SECRET_LIMIT_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

/// An anonymous file that holds `text`, read from its beginning by whoever inherits it. Closed on exec until
/// [`keep_on_exec`] says otherwise.
pub(crate) fn anonymous_file(text: &str) -> io::Result<OwnedFd> {
    let mut file = File::from(rustix::fs::memfd_create("secret", rustix::fs::MemfdFlags::CLOEXEC)?);
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    Ok(file.into())
}

/// Lets a descriptor live through the next exec of this process.
pub(crate) fn keep_on_exec(descriptor: &OwnedFd) -> io::Result<()> {
    rustix::io::fcntl_setfd(descriptor, rustix::io::FdFlags::empty()).map_err(io::Error::from)
}

/// Where an environment variable moves to: the option that takes its descriptor.
pub(crate) struct Moved {
    /// The variable.
    pub(crate) variable: &'static str,
    /// The option that replaces it.
    pub(crate) option: &'static str,
}

/// When one of the variables is set: executes this program again with their values behind descriptors and nothing in
/// the environment. Returns when there was nothing to move.
pub(crate) fn move_out_of_environment(moves: &[Moved]) -> io::Result<()> {
    let mut arguments: Vec<OsString> = Vec::new();
    for Moved { variable, option } in moves {
        let Some(value) = std::env::var_os(variable) else { continue };
        let value = value.into_string().map_err(|_| io::Error::other(format!("{variable} is not UTF-8")))?;
        let descriptor = anonymous_file(&value)?;
        keep_on_exec(&descriptor)?;
        arguments.push(option.into());
        arguments.push(descriptor.into_raw_fd().to_string().into());
    }
    if arguments.is_empty() {
        return Ok(());
    }
    let mut command = Command::new("/proc/self/exe");
    if let Some(name) = std::env::args_os().next() {
        command.arg0(name);
    }
    command.args(std::env::args_os().skip(1)).args(arguments).env_clear();
    for kept in KEPT_VARIABLES {
        if let Some(value) = std::env::var_os(kept) {
            command.env(kept, value);
        }
    }
    Err(command.exec())
}

/// Makes the process unreadable for other processes of the same user.
pub(crate) fn forbid_inspection() -> io::Result<()> {
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable).map_err(io::Error::from)
}

/// Closes every descriptor above the standard ones but those listed: whatever a parent left open stays out of reach.
pub(crate) fn close_all_but(kept: &[RawFd]) -> io::Result<()> {
    let mut open = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        if let Some(number) = entry?.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok()) {
            open.push(number);
        }
    }
    for number in open {
        if number > 2 && !kept.contains(&number) {
            // SAFETY: called before anything else in this process owns a descriptor above 2; closing a number that is
            // no longer open (the directory listing's own) fails harmlessly.
            unsafe { libc::close(number) };
        }
    }
    Ok(())
}

/// The number of a descriptor, for a command line.
pub(crate) fn number(descriptor: &OwnedFd) -> String {
    descriptor.as_raw_fd().to_string()
}
