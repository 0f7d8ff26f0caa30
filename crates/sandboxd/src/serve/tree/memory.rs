//! Whether the kernel's out-of-memory killer struck while a command ran: its counter, before and after.
//!
//! A control group's counter is short, and read before the command starts. The machine's is one line among two hundred, which
//! take the kernel longer to write than a process to start. So it is read when the command has started, or not at all when it
//! was read a moment before. By then the killer may have struck the command already: of one that ends at once, what the
//! counter rose by since the reading before counts too.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The counter of a whole machine, or of the control group that is one's own.
struct Counter {
    file: File,
    of_machine: bool,
}

/// Where it is read from for as long as the daemon runs.
static COUNTER: OnceLock<Option<Counter>> = OnceLock::new();

/// Counters that the kernel keeps, the narrower one first, and whether they are the machine's.
const COUNTERS: [(&str, bool); 2] = [("/sys/fs/cgroup/memory.events", false), ("/proc/vmstat", true)];
/// More than such a file has.
const COUNTER_BYTES: usize = 16 << 10;
/// A command that the killer ends before the machine's counter is read is gone so soon.
const BEGINNING: Duration = Duration::from_secs(1);

/// A reading of the machine's counter is good for the commands that start so soon after it.
const FRESH: Duration = Duration::from_millis(50);

/// What the machine's counter said last, and when.
static LAST: Mutex<Option<Reading>> = Mutex::new(None);

#[derive(Clone, Copy)]
struct Reading {
    count: u64,
    at: Instant,
}

/// Takes the counter of this sandbox alone, from its open file.
pub(crate) fn count_kills_in(events: File) {
    // It is given once, before anything runs.
    let _ = COUNTER.set(Some(Counter { file: events, of_machine: false }));
}

/// Finds the counter and reads it, before the first command has to.
pub(crate) fn look_for_counter() {
    if let Some(counter) = counter().filter(|counter| counter.of_machine) {
        let reading = counter.reading();
        let mut last = last();
        *last = last.or(reading);
    }
}

/// The counter as it was when the command started.
pub(super) struct OutOfMemory {
    before: Option<u64>,
    /// Until when an end of the command is put down to a rise before that.
    risen: Option<Instant>,
}

impl OutOfMemory {
    /// Call it before the command starts, then [`OutOfMemory::started`].
    pub(super) fn watch() -> Self {
        Self { before: counter().filter(|counter| !counter.of_machine).and_then(Counter::read), risen: None }
    }

    pub(super) fn started(self) -> Self {
        let Some(counter) = counter().filter(|counter| counter.of_machine) else { return self };
        let mut last = last();
        let now = last.filter(|last| last.at.elapsed() < FRESH).or_else(|| counter.reading());
        Self::since(std::mem::replace(&mut *last, now), now)
    }

    fn since(earlier: Option<Reading>, now: Option<Reading>) -> Self {
        let risen = matches!((earlier, now), (Some(earlier), Some(now)) if now.count > earlier.count);
        Self { before: now.map(|now| now.count), risen: risen.then(|| Instant::now() + BEGINNING) }
    }

    /// Whether the killer struck since. Where there is no counter the answer is no.
    pub(super) fn struck(&self) -> bool {
        let Some(counter) = counter() else { return false };
        let after = counter.reading();
        if counter.of_machine {
            *last() = after;
        }
        self.struck_by(after, Instant::now())
    }

    fn struck_by(&self, after: Option<Reading>, ended: Instant) -> bool {
        matches!((self.before, after), (Some(before), Some(after)) if after.count > before)
            || self.risen.is_some_and(|until| ended < until)
    }
}

fn last() -> MutexGuard<'static, Option<Reading>> {
    LAST.lock().unwrap_or_else(PoisonError::into_inner)
}

fn counter() -> Option<&'static Counter> {
    COUNTER.get_or_init(find).as_ref()
}

fn find() -> Option<Counter> {
    COUNTERS.iter().find_map(|(path, of_machine)| {
        let counter = Counter { file: File::open(path).ok()?, of_machine: *of_machine };
        counter.read().is_some().then_some(counter)
    })
}

impl Counter {
    fn reading(&self) -> Option<Reading> {
        self.read().map(|count| Reading { count, at: Instant::now() })
    }

    /// Reads as far as the line, in as few steps as the kernel allows, which makes its text anew for each.
    fn read(&self) -> Option<u64> {
        let mut text = [0; COUNTER_BYTES];
        let mut length = 0;
        loop {
            let rest = text.get_mut(length..)?;
            length += self.file.read_at(rest, length as u64).ok().filter(|count| *count > 0)?;
            if let Some(count) = parse(text.get(..length)?) {
                return Some(count);
            }
        }
    }
}

/// What is not yet a whole line may lack digits.
fn parse(text: &[u8]) -> Option<u64> {
    let whole = text.iter().rposition(|byte| *byte == b'\n')?;
    let text = std::str::from_utf8(text.get(..whole)?).ok()?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counter_is_found_among_others() {
        assert_eq!(parse(b"oom 5\noom_kill 3\noom_group_kill 1\n"), Some(3));
        assert_eq!(parse(b"nr_free_pages 5\n"), None);
        assert_eq!(parse(b"nr_free_pages 5\noom_kill 1"), None, "the line may go on");
        assert!(counter().is_none_or(|counter| counter.read().is_some()));
    }

    fn reading(count: u64) -> Option<Reading> {
        Some(Reading { count, at: Instant::now() })
    }

    #[test]
    fn a_higher_count_means_it_struck() {
        let now = Instant::now();
        let watched = OutOfMemory::since(reading(3), reading(3));
        assert!(!watched.struck_by(reading(3), now));
        assert!(watched.struck_by(reading(4), now));
        assert!(!watched.struck_by(None, now));
        assert!(!OutOfMemory::since(None, reading(3)).struck_by(reading(3), now), "the first reading of all");
    }

    #[test]
    fn a_rise_before_the_reading_counts_for_what_ends_at_once() {
        let now = Instant::now();
        let watched = OutOfMemory::since(reading(3), reading(4));
        assert!(watched.struck_by(reading(4), now));
        assert!(!watched.struck_by(reading(4), now + 2 * BEGINNING));
        assert!(watched.struck_by(reading(5), now + 2 * BEGINNING));
    }
}
