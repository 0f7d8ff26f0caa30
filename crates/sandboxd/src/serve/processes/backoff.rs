//! How long a process that ended waits until it is started again: longer each time, until a run was stable.

use std::time::Duration;

/// Before the first restart.
const FIRST: Duration = Duration::from_millis(250);
/// At most.
const LONGEST: Duration = Duration::from_secs(30);
/// A run of this length was stable: the next wait is the first again.
const STABLE: Duration = Duration::from_secs(10);

/// The waits so far.
#[derive(Default)]
pub(super) struct Backoff {
    unstable_runs: u32,
}

impl Backoff {
    /// The wait after a run of that length.
    pub(super) fn after(&mut self, run: Duration) -> Duration {
        if run >= STABLE {
            self.unstable_runs = 0;
        }
        let wait = FIRST.saturating_mul(1 << self.unstable_runs.min(16)).min(LONGEST);
        self.unstable_runs = self.unstable_runs.saturating_add(1);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_bound_and_begin_again_after_a_stable_run() {
        let mut backoff = Backoff::default();
        let mut waits: Vec<u128> = (0..40).map(|_| backoff.after(Duration::ZERO).as_millis()).collect();
        assert_eq!(waits[..4], [250, 500, 1000, 2000]);
        assert_eq!(waits.pop(), Some(30_000));
        assert_eq!(backoff.after(STABLE), FIRST);
        assert_eq!(backoff.after(Duration::ZERO), 2 * FIRST);
    }
}
