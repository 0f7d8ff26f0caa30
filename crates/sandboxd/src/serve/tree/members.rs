//! Finding and killing the processes below a supervisor, as `/proc` shows them.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::Read;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::launch::Stacks;
use super::strikes::Strikes;

/// Rounds in which a tree that grows while it is being stopped is looked at again.
const STOP_ROUNDS: usize = 64;

/// Time that killing everything may take when the daemon shuts down.
const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(2);

/// One line of `/proc/<pid>/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) parent: i32,
    /// It has ended and waits for its parent to notice.
    pub(crate) zombie: bool,
    /// Processor time used, in clock ticks.
    pub(crate) ticks: u64,
    /// Resident memory in pages.
    pub(crate) resident_pages: u64,
}

/// Every process that this process can see.
pub(crate) fn snapshot() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok()).filter_map(read_stat).collect()
}

/// More than a line of `/proc/<pid>/stat` can have: some fifty numbers and a short name.
const STAT_BYTES: usize = 2 << 10;

/// Reads the line in one step: there are as many of these as there are processes.
fn read_stat(pid: i32) -> Option<Process> {
    let mut line = [0; STAT_BYTES];
    let length = fs::File::open(format!("/proc/{pid}/stat")).ok()?.read(&mut line).ok()?;
    parse_stat(pid, line.get(..length)?)
}

/// The name in brackets may hold any bytes, brackets and spaces and halves of characters included, so fields count from
/// the last bracket and only what follows it has to be text.
fn parse_stat(pid: i32, line: &[u8]) -> Option<Process> {
    let after_name = line.get(line.iter().rposition(|byte| *byte == b')')? + 1..)?;
    let fields: Vec<&str> = std::str::from_utf8(after_name).ok()?.split_ascii_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    Some(Process {
        pid,
        parent: fields.get(1)?.parse().ok()?,
        zombie: matches!(*fields.first()?, "Z" | "X" | "x"),
        ticks: number(11)? + number(12)?,
        resident_pages: number(21)?,
    })
}

/// Living processes below `root`, without it.
pub(crate) fn descendants(root: i32) -> Vec<i32> {
    below(&snapshot(), &[root])
}

fn below(processes: &[Process], roots: &[i32]) -> Vec<i32> {
    let mut children: HashMap<i32, Vec<&Process>> = HashMap::new();
    for process in processes {
        children.entry(process.parent).or_default().push(process);
    }
    let mut found = Vec::new();
    let mut pending = roots.to_vec();
    while let Some(parent) = pending.pop() {
        for process in children.get(&parent).into_iter().flatten() {
            pending.push(process.pid);
            if !process.zombie {
                found.push(process.pid);
            }
        }
    }
    found
}

/// Sends a signal to one process; one that is already gone is no fault.
pub(crate) fn send(pid: i32, signal: i32) {
    // SAFETY: the numbers are above 1, so that neither a group nor everything is meant.
    if pid > 1 {
        unsafe { libc::kill(pid, signal) };
    }
}

/// Sends `signal` to everything below `root`, and wakes what is stopped so that it can react.
pub(super) fn signal_all(root: i32, signal: i32) {
    for pid in descendants(root) {
        send(pid, signal);
        send(pid, libc::SIGCONT);
    }
}

/// Kills everything below `root`: stops it first, until nothing new appears, so that it cannot outrun the killing.
/// Returns whether anything was there to kill.
pub(crate) fn kill_all(root: i32) -> bool {
    kill(|| descendants(root))
}

fn kill(find: impl Fn() -> Vec<i32>) -> bool {
    let mut stopped = HashSet::new();
    for _ in 0..STOP_ROUNDS {
        let fresh: Vec<i32> = find().into_iter().filter(|pid| stopped.insert(*pid)).collect();
        if fresh.is_empty() {
            break;
        }
        for pid in fresh {
            send(pid, libc::SIGSTOP);
        }
    }
    for pid in &stopped {
        send(*pid, libc::SIGKILL);
    }
    !stopped.is_empty()
}

/// Stacks that are kept for the next commands.
const SPARE_STACKS: usize = 4;

/// The daemon's own children: live supervisors, and orphans whose supervisor was killed.
#[derive(Default)]
pub(crate) struct Supervisors {
    /// Each with the stacks that it stands on.
    live: Mutex<HashMap<i32, Option<Stacks>>>,
    /// What ended supervisors stood on: fresh memory costs more than it looks.
    spare: Mutex<Vec<Stacks>>,
    /// Wakes who waits for one.
    arrival: Notify,
    /// Processes that were killed because the sandbox is beyond a bound.
    pub(crate) strikes: Strikes,
}

impl Supervisors {
    fn live(&self) -> std::sync::MutexGuard<'_, HashMap<i32, Option<Stacks>>> {
        // The set is valid at every moment, so a panic elsewhere does not spoil it.
        self.live.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn spare(&self) -> std::sync::MutexGuard<'_, Vec<Stacks>> {
        self.spare.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Stacks that nobody stands on.
    pub(super) fn stacks(&self) -> rustix::io::Result<Stacks> {
        self.spare().pop().map_or_else(Stacks::new, Ok)
    }

    pub(super) fn add(&self, pid: i32, stacks: Option<Stacks>) {
        self.live().insert(pid, stacks);
        self.arrival.notify_one();
    }

    /// Waits until there is one.
    pub(crate) async fn busy(&self) {
        while self.live().is_empty() {
            self.arrival.notified().await;
        }
    }

    /// All live supervisors.
    pub(crate) fn all(&self) -> Vec<i32> {
        self.live().keys().copied().collect()
    }

    /// Reaps every ended child of the daemon. Orphans come to the daemon since it is process 1 or a child subreaper.
    pub(crate) fn reap(&self) {
        loop {
            let mut status = 0;
            // SAFETY: waits for any child without blocking; the status is a local.
            let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
            if pid <= 0 {
                return;
            }
            let stacks = self.live().remove(&pid).flatten();
            let mut spare = self.spare();
            if spare.len() < SPARE_STACKS {
                spare.extend(stacks);
            }
        }
    }

    /// Whether that supervisor's process still exists. Its pipe closes a moment before its children come to the daemon.
    pub(super) fn has(&self, pid: i32) -> bool {
        self.live().contains_key(&pid)
    }

    /// Kills every process that came to the daemon because its supervisor is gone, and everything below those. What
    /// nobody watches cannot be told of, so it is not left running. Returns whether there was anything.
    pub(super) fn kill_orphans(&self) -> bool {
        let own = std::process::id().cast_signed();
        kill(|| {
            let processes = snapshot();
            let live = self.live();
            let orphans: Vec<&Process> =
                processes.iter().filter(|process| process.parent == own && !live.contains_key(&process.pid)).collect();
            let roots: Vec<i32> = orphans.iter().map(|process| process.pid).collect();
            let mut found = below(&processes, &roots);
            found.extend(orphans.iter().filter(|process| !process.zombie).map(|process| process.pid));
            found
        })
    }

    /// Kills everything and waits for it, within bounds. It blocks the event loop on purpose: a stream must break off
    /// rather than tell of an end that the shutdown made, and nothing is started again.
    pub(crate) fn shut_down(&self) {
        let deadline = Instant::now() + SHUTDOWN_PATIENCE;
        while Instant::now() < deadline {
            let mut busy = self.kill_orphans();
            for supervisor in self.all() {
                kill_all(supervisor);
                busy = true;
            }
            if !busy {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
            self.reap();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_process_name_does_not_confuse_the_parser() {
        let line = b"42 (a) b (c) 1 1\xff\xc3) S 7 42 42 0 -1 4194560 1 0 0 0 3 4 0 0 20 0 1 0 100 1000 55 x";
        let expected = Process { pid: 42, parent: 7, zombie: false, ticks: 7, resident_pages: 55 };
        assert_eq!(parse_stat(42, line), Some(expected));
        assert_eq!(parse_stat(42, b"42 (a"), None);
    }

    #[test]
    fn all_generations_are_found_and_zombies_are_not_alive() {
        let process = |pid, parent, zombie| Process { pid, parent, zombie, ticks: 0, resident_pages: 0 };
        let table = [process(2, 1, false), process(3, 2, true), process(4, 3, false), process(5, 9, false)];
        let mut found = below(&table, &[1]);
        found.sort_unstable();
        assert_eq!(found, [2, 4]);
    }

    #[test]
    fn this_process_is_in_the_snapshot() {
        assert!(snapshot().iter().any(|process| process.pid == std::process::id().cast_signed()));
    }
}
