//! Whether the kernel's out-of-memory killer struck while a command ran: its counter, before and after.

use std::fs;

/// Counters that the kernel keeps, the narrower one first.
const COUNTERS: [&str; 2] = ["/sys/fs/cgroup/memory.events", "/proc/vmstat"];

/// The counter as it was when the command started.
pub(super) struct OutOfMemory {
    before: Option<u64>,
}

impl OutOfMemory {
    pub(super) fn watch() -> Self {
        Self { before: count() }
    }

    /// Whether the killer struck since. Where there is no counter the answer is no.
    pub(super) fn struck(&self) -> bool {
        matches!((self.before, count()), (Some(before), Some(after)) if after > before)
    }
}

fn count() -> Option<u64> {
    COUNTERS.iter().find_map(|path| parse(&fs::read_to_string(path).ok()?))
}

fn parse(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counter_is_found_among_others() {
        assert_eq!(parse("oom 5\noom_kill 3\noom_group_kill 1\n"), Some(3));
        assert_eq!(parse("nr_free_pages 5\n"), None);
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
