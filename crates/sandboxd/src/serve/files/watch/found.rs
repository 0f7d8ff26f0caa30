//! What a watch has told of because it looked, so that the kernel's own event of it is not told again.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// Paths found by looking, which the kernel may tell of once more: a directory is watched before it is looked through, so
/// what appears in between comes twice. Such an event is in the queue when the look is over, and read by the next read that
/// empties the queue; one that empties it before the look does not count.
#[derive(Default)]
pub(super) struct Found {
    by_this_read: HashSet<PathBuf>,
    by_earlier_reads: HashSet<PathBuf>,
}

impl Found {
    pub(super) fn add(&mut self, path: PathBuf) {
        self.by_this_read.insert(path);
    }

    /// Whether it was found; the next event of that path is news.
    pub(super) fn take(&mut self, path: &Path) -> bool {
        let this = self.by_this_read.remove(path);
        self.by_earlier_reads.remove(path) || this
    }

    /// A read is over; `drained` when it emptied the queue.
    pub(super) fn next_read(&mut self, drained: bool) {
        if drained {
            self.by_earlier_reads.clear();
        }
        self.by_earlier_reads.extend(self.by_this_read.drain());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_is_known_until_a_later_read_has_emptied_the_queue() {
        let mut found = Found::default();
        found.add("new/x".into());
        found.next_read(true);
        assert!(found.take(Path::new("new/x")), "its event came after the read that found it");
        assert!(!found.take(Path::new("new/x")), "the next one is news");
        found.add("new/y".into());
        found.next_read(true);
        found.next_read(false);
        assert!(found.by_earlier_reads.contains(Path::new("new/y")));
        found.next_read(true);
        assert!(!found.take(Path::new("new/y")));
    }
}
