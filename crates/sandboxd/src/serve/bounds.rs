//! The bounds of a sandbox that the daemon holds itself, because its machine was not asked to.
//!
//! ```text
//!   memory     processes' shares are summed ever more often the nearer the bound is; beyond it the largest are killed
//!   disk       the workspace is measured while commands run; one that is too large and still grows ends all of them
//!   processes  RLIMIT_NPROC, which the kernel counts for each user of each user namespace; threads count too
//! ```
//!
//! A control group, where the host made one, holds memory and processes instead. The limit of processes stands within it,
//! so that the daemon has room when commands have used up theirs.
//!
//! The daemon looks only while commands run, and first when they have run for a moment, so that short ones cost nothing.
//! Left out: what directories hold that were closed to the daemon, and what is uploaded while no command runs.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sandbox_api::{Bound, Limits, Means};
use tokio::time::{Instant, sleep};

use super::settings::Settings;
use super::tree::{Process, Supervisors, kill_all, send, snapshot};

/// A command may run so long before anything is measured.
const FIRST_LOOK: Duration = Duration::from_millis(50);
/// Pauses between two looks at memory.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// Bytes that processes are taken to fill in a second.
const FILLING_RATE: u64 = 4 << 30;
/// Pause between two measurements of the workspace, at least.
const DISK_PAUSE: Duration = Duration::from_secs(1);
/// Looking may take one part of the time in so many.
const SHARE: u32 = 20;
/// A workspace beyond its bound may grow by so much in one measurement: removing files writes too.
const SLACK_BYTES: u64 = 1 << 20;
/// Processes and threads that the daemon may have beyond the bound, so that it can act when commands have used it up.
pub(crate) const HEADROOM: u64 = 32;

/// Where the machine's memory is used up, the kernel is to end processes of sandboxes before their host: what it adds to the
/// score of each, of 1000.
const OUT_OF_MEMORY_SCORE: &str = "500";

/// Has this process, and what it starts, go before others. Call it while the process may still be inspected.
pub(super) fn go_first() {
    if let Err(cause) = fs::write("/proc/self/oom_score_adj", OUT_OF_MEMORY_SCORE) {
        tracing::warn!(%cause, "the machine will not end this sandbox before others when its memory is used up");
    }
}

/// Bounds the daemon's own processes; returns what commands get, which is what is told.
pub(super) fn bound_processes(limits: &mut Limits) -> Option<libc::rlimit> {
    let bound = limits.processes.as_mut().filter(|bound| matches!(bound.by, Means::Rlimit | Means::Cgroup))?;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls work on a local.
    let held = unsafe {
        libc::getrlimit(libc::RLIMIT_NPROC, &raw mut limit) == 0 && {
            let most = limit.rlim_max.min(bound.most.saturating_add(HEADROOM));
            limit = libc::rlimit { rlim_cur: most, rlim_max: most };
            libc::setrlimit(libc::RLIMIT_NPROC, &raw const limit) == 0
        }
    };
    if !held {
        limits.processes = limits.processes.filter(|bound| bound.by == Means::Cgroup);
        return None;
    }
    bound.most = limit.rlim_max.saturating_sub(HEADROOM);
    Some(libc::rlimit { rlim_cur: bound.most, rlim_max: bound.most })
}

/// Holds the bounds that are held by watching. Ends only with the daemon.
pub(super) async fn watch(settings: Arc<Settings>, supervisors: Arc<Supervisors>) {
    let watched = |bound: &Option<Bound>| bound.as_ref().filter(|it| it.by == Means::Watch).map(|it| it.most);
    let (memory, disk) = (watched(&settings.limits.memory), watched(&settings.limits.disk));
    if memory.is_none() && disk.is_none() {
        return std::future::pending().await;
    }
    let mut workspace = Workspace { root: settings.root.clone(), bytes: None };
    loop {
        supervisors.busy().await;
        sleep(FIRST_LOOK).await;
        let mut disk_due = Instant::now() + DISK_PAUSE;
        while !supervisors.all().is_empty() {
            let began = Instant::now();
            let pause = memory.map_or(LONGEST_PAUSE, |most| hold_memory(most, &supervisors));
            if let Some(most) = disk.filter(|_| began >= disk_due) {
                workspace.hold(most, &supervisors).await;
                disk_due = Instant::now() + DISK_PAUSE.max(began.elapsed() * SHARE);
            }
            sleep(pause.max(began.elapsed() * (SHARE / 4))).await;
        }
    }
}

/// Kills the largest processes until the others fit; returns when to look again.
fn hold_memory(most: u64, supervisors: &Supervisors) -> Duration {
    let own = std::process::id().cast_signed();
    let page = rustix::param::page_size() as u64;
    // Supervisors share the daemon's memory.
    let without = supervisors.all();
    let processes: Vec<Process> =
        snapshot().into_iter().filter(|it| it.pid != own && !without.contains(&it.pid)).collect();
    // Pages that processes share are counted for each of them: never too little, and cheap.
    let resident: u64 = processes.iter().map(|it| it.resident_pages * page).sum();
    if resident <= most {
        let until_full = Duration::from_micros((most - resident).saturating_mul(1_000_000) / FILLING_RATE);
        return until_full.clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
    }
    let mut shares: Vec<(u64, i32)> =
        processes.iter().map(|it| (share(it.pid).unwrap_or(it.resident_pages * page), it.pid)).collect();
    shares.sort_unstable();
    let mut used: u64 = shares.iter().map(|(bytes, _)| bytes).sum();
    while used > most {
        let Some((bytes, pid)) = shares.pop() else { break };
        // Told of before it happens, since whoever sees the end asks at once.
        supervisors.strikes.memory();
        send(pid, libc::SIGKILL);
        tracing::warn!(pid, bytes, most, "killed: the memory of the sandbox is used up");
        used -= bytes;
    }
    SHORTEST_PAUSE
}

/// A process's bytes, of shared pages its share.
fn share(pid: i32) -> Option<u64> {
    parse_share(&fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?)
}

fn parse_share(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    line.trim().strip_suffix(" kB")?.trim_end().parse::<u64>().ok()?.checked_mul(1024)
}

/// What is known of the workspace.
struct Workspace {
    root: PathBuf,
    /// Bytes at the last look.
    bytes: Option<u64>,
}

impl Workspace {
    async fn hold(&mut self, most: u64, supervisors: &Supervisors) {
        let root = self.root.clone();
        let Ok(bytes) = tokio::task::spawn_blocking(move || measure(&root)).await else { return };
        let grown = self.bytes.is_some_and(|before| bytes > before.saturating_add(SLACK_BYTES));
        if bytes > most && (grown || self.bytes.is_some_and(|before| before <= most)) {
            tracing::warn!(bytes, most, "killed: the disk of the sandbox is used up");
            supervisors.strikes.disk();
            for supervisor in supervisors.all() {
                kill_all(supervisor);
            }
        }
        self.bytes = Some(bytes);
    }
}

/// Bytes that a tree takes on the disk. What cannot be looked into is not counted; links are not followed.
fn measure(root: &Path) -> u64 {
    let mut bytes = 0;
    let mut pending = vec![root.to_owned()];
    while let Some(directory) = pending.pop() {
        let Ok(entries) = fs::read_dir(&directory) else { continue };
        for entry in entries.flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            // A file of several names is counted in parts.
            bytes += metadata.blocks() * 512 / if metadata.is_dir() { 1 } else { metadata.nlink().max(1) };
            if metadata.is_dir() {
                pending.push(entry.path());
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_found_among_others() {
        assert_eq!(parse_share("Rss:  9 kB\nPss:                 12 kB\nPss_Anon: 3 kB\n"), Some(12 << 10));
        assert_eq!(parse_share("Rss: 9 kB\n"), None);
        assert!(share(std::process::id().cast_signed()).is_some_and(|bytes| bytes > 0));
    }

    #[test]
    fn a_tree_is_measured_without_following_links() {
        let folder = tempfile::tempdir().expect("a directory");
        fs::create_dir(folder.path().join("d")).expect("a directory");
        fs::write(folder.path().join("d/f"), vec![1; 1 << 20]).expect("a file");
        std::os::unix::fs::symlink("/usr", folder.path().join("out")).expect("a link");
        fs::hard_link(folder.path().join("d/f"), folder.path().join("g")).expect("a name");
        let bytes = measure(folder.path());
        assert!(((1 << 20)..(1 << 20) + (64 << 10)).contains(&bytes), "{bytes}");
    }
}
