//! How a job stands among those of its tenant that run at once: what its object knows of its place.

use super::{Stored, jittered};
use crate::job::state::State;
use crate::tenant::places::Wanted;

/// How long a place that was given may be begun in without asking again, in milliseconds.
const GRANT_LASTS: i64 = 30_000;

/// Until a job that waits for a place asks again, at least and without a message, in milliseconds; up to half as long more.
pub const ASKS_AGAIN: i64 = 40_000;

/// The same where the tenant's object did not answer.
const ASKS_SOON: i64 = 5_000;

impl Stored {
    /// The attempt that is next.
    pub fn next_attempt(&self) -> u32 {
        self.job.attempts + 1
    }

    /// What is asked for.
    pub fn wanted(&self) -> Wanted {
        let attempt = if self.job.state == State::Running { self.job.attempts } else { self.next_attempt() };
        Wanted { job_id: self.job.job_id.clone(), key_id: self.job.key_id.clone(), attempt, version: self.job.version }
    }

    /// Whether it has a place to begin in.
    pub fn has_place(&self, now: i64) -> bool {
        self.placed_at.is_some_and(|at| (0..GRANT_LASTS).contains(&(now - at)))
    }

    /// It was given a place.
    pub fn placed(&mut self, now: i64) {
        self.job.waits_for_place = false;
        (self.placed_at, self.asks_at) = (Some(now), None);
    }

    /// It stands in the line, and asks again by itself. `longest` shortens that, for tests.
    pub fn waits(&mut self, random: u8, longest: i64, now: i64) {
        self.job.waits_for_place = true;
        (self.placed_at, self.asks_at) = (None, Some(now + jittered(ASKS_AGAIN.min(longest), random)));
    }

    /// Nobody said whether there is a place.
    pub fn asks_soon(&mut self, random: u8, now: i64) {
        (self.placed_at, self.asks_at) = (None, Some(now + jittered(ASKS_SOON, random)));
    }

    /// Somebody says that this attempt may begin; true where it is still to begin, and so is looked after at once.
    pub fn told_to_begin(&mut self, attempt: u32) -> bool {
        let is_meant = self.job.state == State::Queued && attempt == self.next_attempt();
        is_meant && self.asks_at.take().is_some()
    }
}
