//! How often the daemon killed something because its sandbox had used up what it may have: before and after a command.

use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Default)]
pub(crate) struct Strikes {
    memory: AtomicU64,
    disk: AtomicU64,
}

/// The counts as they were when a command started.
pub(super) struct Before {
    memory: u64,
    disk: u64,
}

impl Strikes {
    pub(crate) fn memory(&self) {
        self.memory.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn disk(&self) {
        self.disk.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn before(&self) -> Before {
        Before { memory: self.memory.load(Ordering::Relaxed), disk: self.disk.load(Ordering::Relaxed) }
    }

    /// Whether something was killed for memory since.
    pub(super) fn memory_since(&self, before: &Before) -> bool {
        self.memory.load(Ordering::Relaxed) > before.memory
    }

    /// Whether something was killed for the disk since.
    pub(super) fn disk_since(&self, before: &Before) -> bool {
        self.disk.load(Ordering::Relaxed) > before.disk
    }
}
