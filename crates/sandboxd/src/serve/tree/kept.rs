//! What is remembered of trees that ended: bounded in time, number and memory.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// How much is remembered.
pub(crate) struct Bounds {
    pub(crate) time: Duration,
    pub(crate) count: usize,
    pub(crate) bytes: usize,
}

struct Ended {
    id: String,
    at: Instant,
    bytes: usize,
}

/// Ids of those that ended, oldest first. Who keeps the things themselves forgets what this says.
pub(crate) struct Kept {
    bounds: Bounds,
    ended: VecDeque<Ended>,
    bytes: usize,
}

impl Kept {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self { bounds, ended: VecDeque::new(), bytes: 0 }
    }

    /// Remembers one that ended now and holds so many bytes.
    pub(crate) fn add(&mut self, id: String, bytes: usize) {
        self.ended.push_back(Ended { id, at: Instant::now(), bytes });
        self.bytes += bytes;
    }

    /// The next to forget, if it is too old, or they are too many or too large; the newest is kept until it is too old.
    pub(crate) fn next_to_forget(&mut self, now: Instant) -> Option<String> {
        let oldest = self.ended.front()?;
        let expired = now >= oldest.at + self.bounds.time;
        let crowded = self.ended.len() > 1 && (self.ended.len() > self.bounds.count || self.bytes > self.bounds.bytes);
        if !expired && !crowded {
            return None;
        }
        self.bytes -= oldest.bytes;
        self.ended.pop_front().map(|forgotten| forgotten.id)
    }

    /// When the last one ended, as long as that is remembered.
    pub(crate) fn last_end(&self) -> Option<Instant> {
        self.ended.back().map(|ended| ended.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(count: usize, bytes: usize) -> Kept {
        Kept::new(Bounds { time: Duration::from_secs(60), count, bytes })
    }

    #[test]
    fn the_oldest_of_too_many_or_too_large_go_and_the_newest_stays() {
        let mut many = kept(2, 100);
        for id in ["a", "b", "c"] {
            many.add(id.into(), 1);
        }
        let now = Instant::now();
        assert_eq!(many.next_to_forget(now).as_deref(), Some("a"));
        assert_eq!(many.next_to_forget(now), None);
        many.add("huge".into(), 1000);
        let gone: Vec<String> = std::iter::from_fn(|| many.next_to_forget(now)).collect();
        assert_eq!(gone, ["b", "c"]);
        assert!(many.last_end().is_some());
    }

    #[test]
    fn everything_goes_when_its_time_is_over() {
        let mut old = kept(9, 100);
        old.add("a".into(), 1);
        let later = Instant::now() + Duration::from_secs(61);
        assert_eq!(old.next_to_forget(later).as_deref(), Some("a"));
        assert_eq!((old.next_to_forget(later), old.last_end()), (None, None));
    }
}
