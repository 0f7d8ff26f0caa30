//! What bounds each sandbox of a host, and what holds it.
//!
//! Memory, processes and the processor are held by the sandbox's control group, where the host can make one. Where not,
//! memory is held by the daemon inside, which watches, processes by a resource limit, where the kernel counts them for the
//! sandbox alone, and the processor by nothing. The disk is watched in either case; files in memory are held by their file
//! systems. Without isolation nothing is bounded.

use std::fs;

use sandbox_api::{Bound, Limits, Means};

use super::bubblewrap;
use super::groups::ControlGroups;
use crate::cli::IsolationKind;

/// What the command line asks for; 0 is no bound.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) memory_bytes: u64,
    pub(crate) disk_bytes: u64,
    pub(crate) processes: u64,
    /// Thousandths of a processor.
    pub(crate) cpu_thousandths: u64,
}

impl Bounds {
    /// What will hold. `own_user`: each sandbox has a user of the machine to itself.
    pub(super) fn limits(self, kind: IsolationKind, own_user: bool, groups: &ControlGroups) -> Limits {
        if kind == IsolationKind::None {
            return Limits::default();
        }
        let bound = |most: u64, by| (most > 0).then_some(Bound { most, by });
        let counted = own_user || fs::read_to_string(KERNEL).is_ok_and(|release| counts_in_namespaces(&release));
        Limits {
            memory: bound(self.memory_bytes, if groups.holds("memory") { Means::Cgroup } else { Means::Watch }),
            memory_files: bound(bubblewrap::memory_files_bytes(), Means::Filesystem),
            disk: bound(self.disk_bytes, Means::Watch),
            processes: match groups.holds("pids") {
                true => bound(self.processes, Means::Cgroup),
                false => bound(self.processes, Means::Rlimit).filter(|_| counted),
            },
            cpu: bound(self.cpu_thousandths, Means::Cgroup).filter(|_| groups.holds("cpu")),
            ..Limits::default()
        }
    }
}

const KERNEL: &str = "/proc/sys/kernel/osrelease";

/// Since Linux 5.14 the processes of a user are counted in each user namespace; before, for the whole machine.
fn counts_in_namespaces(release: &str) -> bool {
    let mut numbers = release.split(|it: char| !it.is_ascii_digit()).map(|it| it.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (5, 14)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_what_will_hold() {
        let bounds = Bounds { memory_bytes: 1, disk_bytes: 0, processes: 2, cpu_thousandths: 500 };
        let none = ControlGroups::Missing(String::new());
        let limits = bounds.limits(IsolationKind::Bubblewrap, true, &none);
        assert_eq!(limits.memory, Some(Bound { most: 1, by: Means::Watch }));
        assert_eq!(limits.processes, Some(Bound { most: 2, by: Means::Rlimit }));
        assert_eq!((limits.disk, limits.cpu), (None, None));
        assert_eq!(bounds.limits(IsolationKind::None, true, &none), Limits::default());
    }

    #[test]
    fn kernels_are_told_apart() {
        assert!(counts_in_namespaces("5.14.0-generic") && counts_in_namespaces("6.1.2"));
        assert!(!counts_in_namespaces("5.4.300") && !counts_in_namespaces("4.19") && !counts_in_namespaces("odd"));
    }
}
