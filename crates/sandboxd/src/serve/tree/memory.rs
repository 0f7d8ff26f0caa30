//! Whether the kernel's out-of-memory killer struck while a command ran: its counter, before and after.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, OnceLock};

/// The counter of this sandbox's own control group, where it has one.
static OWN: OnceLock<File> = OnceLock::new();

/// Takes the counter of this sandbox alone, from its open file.
pub(crate) fn count_kills_in(events: File) {
    // It is given once, before anything runs.
    let _ = OWN.set(events);
}

/// Counters that the kernel keeps, the narrower one first.
const COUNTERS: [&str; 2] = ["/sys/fs/cgroup/memory.events", "/proc/vmstat"];
/// More than `memory.events` has.
const OWN_BYTES: usize = 1 << 10;
/// More than such a file has.
const COUNTERS_BYTES: usize = 16 << 10;

/// The last reading that was over before its command began.
static EARLIER: Mutex<Option<u64>> = Mutex::new(None);

/// The counter as it was when the command started, or earlier.
pub(super) struct OutOfMemory {
    before: Option<u64>,
}

impl OutOfMemory {
    /// Reads the counter, which takes a while, beside the start of a command. When the command may have `begun` meanwhile, the
    /// reading may count what befell it, and an earlier one is taken.
    pub(super) fn watch(begun: &dyn Fn() -> bool) -> Self {
        let now = count();
        let mut earlier = EARLIER.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if earlier.is_none() || !begun() {
            *earlier = now;
        }
        Self { before: *earlier }
    }

    /// Whether the killer struck since. Where there is no counter the answer is no.
    pub(super) fn struck(&self) -> bool {
        matches!((self.before, count()), (Some(before), Some(after)) if after > before)
    }
}

fn count() -> Option<u64> {
    if let Some(own) = OWN.get() {
        let mut bytes = [0; OWN_BYTES];
        let length = own.read_at(&mut bytes, 0).ok()?;
        return parse(&bytes[..length]);
    }
    COUNTERS.iter().find_map(|path| parse(&read(path)?))
}

/// Reads it in as few steps as the kernel allows, which makes its text anew for each.
fn read(path: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(COUNTERS_BYTES);
    File::open(path).ok()?.take(COUNTERS_BYTES as u64).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

fn parse(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counter_is_found_among_others() {
        assert_eq!(parse(b"oom 5\noom_kill 3\noom_group_kill 1\n"), Some(3));
        assert_eq!(parse(b"nr_free_pages 5\n"), None);
    }

    #[test]
    fn a_higher_count_means_it_struck() {
        let now = count();
        assert!(!OutOfMemory { before: now }.struck() || now != count());
        if let Some(now) = now.filter(|now| *now > 0) {
            assert!(OutOfMemory { before: Some(now - 1) }.struck());
        }
    }
}
