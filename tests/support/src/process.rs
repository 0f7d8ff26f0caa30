//! Reading processes from `/proc`, to prove what is gone and how much memory is used.

use std::path::PathBuf;

use rustix::process::{Pid, Signal, kill_process as send_signal};

use crate::wait::{PATIENCE, eventually};

/// Every process of the machine with its parent.
fn parents() -> Vec<(i32, i32)> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| Some((pid, parent(pid)?))).collect()
}

fn parent(pid: i32) -> Option<i32> {
    status_field(pid, "PPid:")?.parse().ok()
}

fn status_field(pid: i32, field: &str) -> Option<String> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix(field)).map(|value| value.trim().to_owned())
}

/// Name of a process, as `comm` gives it.
pub(crate) fn name(pid: i32) -> Option<String> {
    status_field(pid, "Name:")
}

/// Every process below `root`, not `root` itself.
pub fn descendants(root: i32) -> Vec<i32> {
    let parents = parents();
    let mut found = vec![root];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        found.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    found.split_off(1)
}

/// Processes one of whose arguments contains `marker`; zombies have no arguments and are not among them.
pub fn find_by_argument(marker: &str) -> Vec<i32> {
    let has = |pid: &i32| {
        let Ok(line) = std::fs::read(format!("/proc/{pid}/cmdline")) else { return false };
        String::from_utf8_lossy(&line).contains(marker)
    };
    let me = std::process::id().cast_signed();
    parents().into_iter().map(|(pid, _)| pid).filter(|pid| *pid != me).filter(has).collect()
}

/// The daemon of the sandbox in which a process with `marker` among its arguments runs: process 1 of its pid namespace.
pub fn sandbox_daemon_of(marker: &str) -> Option<i32> {
    let mut pid = *find_by_argument(marker).first()?;
    loop {
        let numbers = status_field(pid, "NSpid:")?;
        let inner: Vec<&str> = numbers.split_whitespace().collect();
        if inner.len() > 1 && inner.last() == Some(&"1") {
            return Some(pid);
        }
        pid = parent(pid).filter(|parent| *parent > 1)?;
    }
}

/// The same once such a process is there, and is what it is to be.
pub async fn daemon_around(marker: &str) -> i32 {
    let daemon = || async { sandbox_daemon_of(marker) };
    eventually("a process runs in a sandbox with a daemon", PATIENCE, daemon).await
}

/// Resident memory of a process.
pub fn resident_bytes(pid: i32) -> Option<u64> {
    let text = status_field(pid, "VmRSS:")?;
    text.strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
}

/// SIGKILL to one process.
pub fn kill_process(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = send_signal(pid, Signal::KILL);
    }
}

/// SIGINT to one process, as Ctrl-C does it.
pub fn interrupt_process(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = send_signal(pid, Signal::INT);
    }
}

/// Whether the process is there and is not a zombie.
pub fn is_alive(pid: i32) -> bool {
    PathBuf::from(format!("/proc/{pid}")).exists()
        && status_field(pid, "State:").is_some_and(|state| !state.starts_with('Z'))
}
