//! How many jobs of a tenant run at once: the places that they have, and the line of those that wait for one. Pure.
//!
//! ```text
//!            a place is free, or becomes free        its report: it runs
//!   line ────────────────────────────────▶ granted ─────────────────────▶ held
//!    │ over                                   │                            │
//!    └──────────────▶ gone ◀──────────────────┴── over, or queued again ◀──┘
//! ```
//!
//! A place belongs to one attempt of one job. Jobs get one in the order in which they came; who has to wait only for others of its own
//! key lets those of other keys pass. What runs is counted, whether it was given a place or not. Each place is looked at again when
//! nothing was heard of its job for a while, so that none is held by a job that is gone.
//!
//! A pipeline has no place, its steps have: it would keep them from running.

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::job::state::State;

/// Jobs of a tenant that run at once, where the variable `RUNNING_JOBS` does not say otherwise.
pub const MOST_RUNNING: u32 = 20;

/// An attempt that needs a place: what a job's object says when it asks for one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Wanted {
    pub job_id: String,
    /// Key whose job it is.
    pub key_id: String,
    /// The attempt that is next.
    pub attempt: u32,
    /// Version of the job when it asked: what was told before then frees no place.
    pub version: u32,
}

/// What a job is answered that asks for a place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Placing {
    Granted,
    /// It stands in the line.
    Waits,
    /// The list has it as over: it must not begin any more.
    Over(Option<Error>),
}

/// A place that is taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Place {
    pub by: Wanted,
    /// Whether its job was heard to run.
    pub has_begun: bool,
    /// When it is to be looked at next, in milliseconds.
    pub look_at: i64,
    /// Looks in a row that found nobody.
    #[serde(default)]
    pub failures: u32,
}

/// All of a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    pub taken: Vec<Place>,
    /// The first one is next.
    pub line: Vec<Wanted>,
}

/// How many jobs may run at once.
pub struct Most<'a> {
    pub of_tenant: u32,
    /// Of a key.
    pub of_key: &'a dyn Fn(&str) -> u32,
}

/// When places are looked at, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// After a place was given to a job that asked: it begins at once.
    pub soon: i64,
    /// After the queue took a message: it is repeated there.
    pub later: i64,
    /// While it runs.
    pub seldom: i64,
}

impl Pace {
    /// By the time between two sweeps.
    pub fn of(sweep: i64) -> Self {
        Self { soon: sweep, later: 5 * sweep, seldom: 10 * sweep }
    }
}

/// How a row changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Took(Place),
    Freed(String),
    /// Behind all others.
    Joined(Wanted),
    /// Another attempt of a job that stands there.
    Renewed(Wanted),
    Left(String),
}

impl Places {
    /// A job asks for a place, for the first time or again; true where it has one.
    pub fn ask(&mut self, wanted: &Wanted, most: &Most<'_>, now: i64, pace: Pace) -> bool {
        let has_place = self.taken.iter().any(|place| place.by.job_id == wanted.job_id);
        if !has_place {
            match self.line.iter_mut().find(|other| other.job_id == wanted.job_id) {
                Some(other) => *other = wanted.clone(),
                None => self.line.push(wanted.clone()),
            }
            self.fill(most, now);
        }
        let Some(place) = self.place(&wanted.job_id) else { return false };
        // Who asks needs no message.
        *place = Place { by: wanted.clone(), has_begun: false, look_at: now + pace.soon, failures: 0 };
        true
    }

    /// Gives free places to those that are next. They are looked at, and so told, at once.
    pub fn fill(&mut self, most: &Most<'_>, now: i64) {
        let of_tenant = usize::try_from(most.of_tenant).unwrap_or(usize::MAX);
        while self.taken.len() < of_tenant {
            let Some(next) = self.line.iter().position(|wanted| self.has_room(&wanted.key_id, most)) else { return };
            let by = self.line.remove(next);
            self.taken.push(Place { by, has_begun: false, look_at: now, failures: 0 });
        }
    }

    fn has_room(&self, key_id: &str, most: &Most<'_>) -> bool {
        let taken = self.taken.iter().filter(|place| place.by.key_id == key_id).count();
        u32::try_from(taken).unwrap_or(u32::MAX) < (most.of_key)(key_id)
    }

    /// A job's object told something new.
    pub fn told(&mut self, job: &Wanted, state: State, now: i64, pace: Pace) {
        match state {
            State::Running => {
                self.line.retain(|wanted| wanted.job_id != job.job_id);
                let runs = Place { by: job.clone(), has_begun: true, look_at: now + pace.seldom, failures: 0 };
                match self.place(&job.job_id) {
                    Some(place) => *place = runs,
                    None => self.taken.push(runs),
                }
            }
            // It may have asked again since.
            State::Queued => {
                self.taken.retain(|place| place.by.job_id != job.job_id || place.by.version >= job.version);
            }
            state if state.is_over() => self.forget(&job.job_id),
            _ => {}
        }
    }

    /// A job that is over, or that nobody knows.
    pub fn forget(&mut self, job_id: &str) {
        self.taken.retain(|place| place.by.job_id != job_id);
        self.line.retain(|wanted| wanted.job_id != job_id);
    }

    pub fn place(&mut self, job_id: &str) -> Option<&mut Place> {
        self.taken.iter_mut().find(|place| place.by.job_id == job_id)
    }

    /// Whether this attempt has a place.
    pub fn has(&self, job_id: &str, attempt: u32) -> bool {
        self.taken.iter().any(|place| place.by.job_id == job_id && place.by.attempt == attempt)
    }

    /// The places that are to be looked at; nobody else does before `pace.soon` is over.
    pub fn due(&mut self, now: i64, pace: Pace) -> Vec<Place> {
        let due = self.taken.iter_mut().filter(|place| place.look_at <= now);
        due.map(|place| {
            place.look_at = now + pace.soon;
            place.clone()
        })
        .collect()
    }

    /// When the next of them is to be looked at.
    pub fn next_look(&self) -> Option<i64> {
        self.taken.iter().map(|place| place.look_at).min()
    }

    /// What has to be written for these to become `after`.
    pub fn changes(&self, after: &Self) -> Vec<Change> {
        let mut changes = Vec::new();
        let has = |places: &Self, job_id: &str| places.taken.iter().any(|place| place.by.job_id == job_id);
        let freed = self.taken.iter().filter(|place| !has(after, &place.by.job_id));
        changes.extend(freed.map(|place| Change::Freed(place.by.job_id.clone())));
        let waits = |places: &Self, job_id: &str| places.line.iter().any(|wanted| wanted.job_id == job_id);
        let left = self.line.iter().filter(|wanted| !waits(after, &wanted.job_id));
        changes.extend(left.map(|wanted| Change::Left(wanted.job_id.clone())));
        changes.extend(after.taken.iter().filter(|place| !self.taken.contains(place)).cloned().map(Change::Took));
        let renewed = |wanted: Wanted| match waits(self, &wanted.job_id) {
            true => Change::Renewed(wanted),
            false => Change::Joined(wanted),
        };
        changes.extend(after.line.iter().filter(|wanted| !self.line.contains(wanted)).cloned().map(renewed));
        changes
    }
}

#[cfg(test)]
mod tests;
