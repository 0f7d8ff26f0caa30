//! Places in the tenant's storage: given with the admission of a job or when its object asks, freed by its report, and looked at when
//! nothing was heard of it. Decisions are those of `places.rs`.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use super::actor::{Inner, TextRow, now, read};
use super::idempotency::{Answer, is_kept};
use super::job_books;
use super::places::{Change, MOST_RUNNING, Most, Pace, Place, Places, Placing, Wanted};
use super::sweep;
use crate::error::{Error, Result};
use crate::job::message::{Message, Queue, Way, given_up, send};
use crate::job::record::{Change as JobChange, Job};
use crate::job::state::State;
use crate::workers::backend::configured;
use crate::workers::queue::{JobQueue, QueueObjects};

/// How many jobs of a tenant run at once; [`MOST_RUNNING`] without it.
const MOST_VARIABLE: &str = "RUNNING_JOBS";

/// Looks in a row that neither the queue nor the job's object answered, before the job is given up without a dead letter.
const MOST_FAILURES: u32 = 8;

/// Until places are looked at again that could not be read, in milliseconds.
const GRACE: i64 = 5_000;

pub(super) const SCHEMA: &[&str] = &[
    "CREATE TABLE IF NOT EXISTS job_places (job_id TEXT PRIMARY KEY, place TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS job_line (seq INTEGER PRIMARY KEY AUTOINCREMENT, job_id TEXT NOT NULL UNIQUE, wanted TEXT NOT NULL)",
];

/// Jobs of the line that are read first: it may be long, and few places become free at once.
const MOST_READ: i64 = 32;

/// More than ever wait.
const ALL: i64 = 1_000_000;

/// What is read of the line.
#[derive(Clone, Copy)]
enum Part<'a> {
    /// This job.
    Of(&'a str),
    /// So many from its beginning.
    First(i64),
}

/// What this memory knows of places.
pub(super) struct PlacesClock {
    /// Whether somebody may be next, or has to be told.
    has_news: Cell<bool>,
    /// When a place is to be looked at next.
    pub(super) due_at: Cell<Option<i64>>,
}

impl Default for PlacesClock {
    fn default() -> Self {
        // What the memory before this one left is found by looking.
        Self { has_news: Cell::new(true), due_at: Cell::default() }
    }
}

impl PlacesClock {
    /// Has places looked at by the next [`hand_out`].
    pub(super) fn look(&self) {
        self.has_news.set(true);
    }
}

impl Inner {
    fn pace(&self) -> Pace {
        Pace::of(sweep::millis_between(&self.env))
    }

    /// All places that are taken, and this part of the line.
    fn places(&self, part: Part<'_>) -> Result<Places> {
        let taken: Vec<TextRow> = self.rows("SELECT place AS text FROM job_places", Vec::new())?;
        let (rest, value) = match part {
            Part::Of(job_id) => ("WHERE job_id = ?", job_id.into()),
            Part::First(most) => ("ORDER BY seq LIMIT ?", most.into()),
        };
        let line: Vec<TextRow> = self.rows(&format!("SELECT wanted AS text FROM job_line {rest}"), vec![value])?;
        Ok(Places {
            taken: taken.iter().map(|row| read(&row.text)).collect::<Result<_>>()?,
            line: line.iter().map(|row| read(&row.text)).collect::<Result<_>>()?,
        })
    }

    fn most_running(&self) -> u32 {
        let configured = configured(&self.env, MOST_VARIABLE).and_then(|text| text.trim().parse().ok());
        configured.unwrap_or(MOST_RUNNING).max(1)
    }

    /// Reads them, has them changed, and writes what changed, in one turn.
    fn change_places<T>(&self, part: Part<'_>, change: impl FnOnce(&mut Places, &Most<'_>) -> T) -> Result<T> {
        let before = self.places(part)?;
        let mut after = before.clone();
        let limits = Cell::new(BTreeMap::new());
        let of_key = |key_id: &str| {
            let mut known: BTreeMap<String, u32> = limits.take();
            // The root key has no limits, and what a key asked for that is gone fails when it begins.
            let limit = || self.key(key_id).ok().flatten().map_or(u32::MAX, |key| key.limits.running_jobs());
            let limit = *known.entry(key_id.to_owned()).or_insert_with(limit);
            limits.set(known);
            limit
        };
        let most = Most { of_tenant: self.most_running(), of_key: &of_key };
        let result = change(&mut after, &most);
        let changes = before.changes(&after);
        if !changes.is_empty() {
            self.places.look();
        }
        changes.iter().try_for_each(|change| self.write_change(change))?;
        Ok(result)
    }

    fn write_change(&self, change: &Change) -> Result<()> {
        let text = |wanted: &Wanted| serde_json::to_string(wanted).map_err(Error::internal);
        match change {
            Change::Took(place) => {
                let text = serde_json::to_string(place).map_err(Error::internal)?;
                let values = vec![place.by.job_id.as_str().into(), text.into()];
                self.write("INSERT OR REPLACE INTO job_places (job_id, place) VALUES (?, ?)", values)
            }
            Change::Freed(job_id) => {
                self.write("DELETE FROM job_places WHERE job_id = ?", vec![job_id.as_str().into()])
            }
            Change::Joined(wanted) => {
                let values = vec![wanted.job_id.as_str().into(), text(wanted)?.into()];
                self.write("INSERT INTO job_line (job_id, wanted) VALUES (?, ?)", values)?;
                let waits = "UPDATE jobs SET job = json_set(job, '$.waitsForPlace', json('true')) WHERE job_id = ?";
                self.write(waits, vec![wanted.job_id.as_str().into()])
            }
            Change::Renewed(wanted) => {
                let values = vec![text(wanted)?.into(), wanted.job_id.as_str().into()];
                self.write("UPDATE job_line SET wanted = ? WHERE job_id = ?", values)
            }
            Change::Left(job_id) => {
                self.write("DELETE FROM job_line WHERE job_id = ?", vec![job_id.as_str().into()])?;
                let waits = "UPDATE jobs SET job = json_remove(job, '$.waitsForPlace') WHERE job_id = ?";
                self.write(waits, vec![job_id.as_str().into()])
            }
        }
    }

    /// Gives a new job a place, or puts it into the line; true where it waits.
    pub(super) fn place_new(&self, job: &Job) -> Result<bool> {
        self.ask_for_place(&wanted(job)).map(|is_placed| !is_placed)
    }

    fn ask_for_place(&self, wanted: &Wanted) -> Result<bool> {
        let taken = self.number("SELECT count(*) AS number FROM job_places", Vec::new())?;
        // Where none is free it matters only whether it stands in the line already.
        let part = if taken < self.most_running() { Part::First(ALL) } else { Part::Of(&wanted.job_id) };
        let pace = self.pace();
        self.change_places(part, |places, most| places.ask(wanted, most, now(), pace))
    }

    /// Gives free places to who is next, and takes those that are to be looked at; when there is next something to look at.
    fn fill_places(&self, now: i64) -> Result<(Vec<Place>, Option<i64>)> {
        let pace = self.pace();
        let fill = |most: i64| {
            self.change_places(Part::First(most), |places, limits| {
                let waited = places.line.len();
                places.fill(limits, now);
                // Those who were read may all wait for others of their own keys.
                let is_free = places.taken.len() < usize::try_from(limits.of_tenant).unwrap_or(usize::MAX);
                let is_all = !is_free || i64::try_from(waited).unwrap_or(most) < most;
                is_all.then(|| (places.due(now, pace), places.next_look()))
            })
        };
        match fill(MOST_READ)? {
            Some(due) => Ok(due),
            None => fill(ALL).map(Option::unwrap_or_default),
        }
    }

    /// A job's object asks for a place.
    pub(super) fn place(&self, wanted: &Wanted) -> Result<Placing> {
        let job = self.job(&wanted.job_id)?;
        // A list that is behind its object does not know better.
        match job {
            None => return Ok(Placing::Over(None)),
            Some(job) if job.state.is_over() && job.version >= wanted.version => return Ok(Placing::Over(job.error)),
            Some(_) => {}
        }
        Ok(if self.ask_for_place(wanted)? { Placing::Granted } else { Placing::Waits })
    }

    /// A job's object told something new.
    pub(super) fn place_told(&self, job: &Job, takes_place: bool) -> Result<()> {
        if job.state == State::Running && !takes_place {
            return Ok(());
        }
        let (wanted, pace) = (wanted(job), self.pace());
        self.change_places(Part::Of(&job.job_id), |places, _| places.told(&wanted, job.state, now(), pace))
    }

    /// Ends a job whose object cannot be asked, if this attempt has its place. A second time changes nothing.
    pub(super) fn give_up(&self, message: &Message) -> Result<()> {
        let Message { job_id, attempt, .. } = message;
        if !self.places(Part::Of(job_id))?.has(job_id, *attempt) {
            return Ok(());
        }
        let Some(before) = self.job(job_id)?.filter(|job| !job.state.is_over()) else {
            return self.change_places(Part::Of(job_id), |places, _| places.forget(job_id));
        };
        let job = given_up(before.clone(), now());
        let line = serde_json::json!({
            "level": "error",
            "message": "a job was given up, since its object cannot be asked",
            "jobId": job_id,
            "attempt": attempt,
            "before": before.state,
            "state": job.state,
        });
        worker::console_error!("{line}");
        let answer = job.error.clone().filter(|error| is_kept(Some(error))).map(Answer::Error);
        self.take_news(&before, &job, &[JobChange::of(&job)], answer.as_ref())?;
        self.change_places(Part::Of(job_id), |places, _| places.forget(job_id))
    }

    /// What came of a look, unless another attempt has the place by now.
    fn note_look(&self, looked: &Place, note: impl FnOnce(&mut Place)) -> Result<()> {
        self.change_places(Part::Of(&looked.by.job_id), |places, _| {
            if let Some(place) = places.place(&looked.by.job_id).filter(|place| place.by.attempt == looked.by.attempt) {
                note(place);
            }
        })
    }
}

/// What a job needs a place for, as the list has it.
fn wanted(job: &Job) -> Wanted {
    let attempt = if job.state == State::Running { job.attempts } else { job.attempts + 1 };
    // Its object counts from 1 on.
    let version = job.version.max(1);
    Wanted { job_id: job.job_id.clone(), key_id: job.key_id.clone(), attempt, version }
}

/// Gives free places to who is next, and begins to tell those, and to look after those that were not heard of.
pub(super) fn hand_out(inner: &Rc<Inner>) {
    let now = now();
    let clock = &inner.places;
    if !clock.has_news.get() && clock.due_at.get().is_none_or(|at| at > now) {
        return;
    }
    let due = inner.fill_places(now);
    clock.has_news.set(false);
    match due {
        Ok((due, next)) => {
            clock.due_at.set(next);
            for place in due {
                let owner = inner.clone();
                inner.state.wait_until(async move {
                    if let Err(error) = look(&owner, &place).await {
                        let cause = error.cause.unwrap_or(error.message);
                        worker::console_error!("a job that has a place was not looked at: {} {cause}", place.by.job_id);
                    }
                    hand_out(&owner);
                    owner.ensure_alarm().await;
                });
            }
        }
        Err(error) => {
            worker::console_error!("the places of a tenant's jobs could not be read: {:?}", error.cause);
            clock.due_at.set(Some(now + GRACE));
        }
    }
}

/// Tells a job that it may begin, or asks whether one that ran is still there.
async fn look(inner: &Inner, place: &Place) -> Result<()> {
    let Some(tenant) = inner.name()? else { return Ok(()) };
    let message = Message { tenant, job_id: place.by.job_id.clone(), attempt: place.by.attempt };
    if place.has_begun {
        match job_books::is_known(inner, &message.tenant, &message.job_id).await {
            Ok(true) => {
                let at = now() + inner.pace().seldom;
                return inner.note_look(place, |place| (place.look_at, place.failures) = (at, 0));
            }
            Ok(false) => return inner.give_up(&message),
            // The queue asks it until it is a dead letter.
            Err(_) => {}
        }
    }
    let queue = JobQueue::of(&inner.env);
    let objects = QueueObjects { env: inner.env.clone() };
    match send(queue.as_ref().map(|queue| queue as &dyn Queue), &objects, &message).await {
        Way::Queue => {
            let at = now() + inner.pace().later;
            inner.note_look(place, |place| place.look_at = at)
        }
        Way::Object => inner.note_look(place, |place| place.failures = 0),
        Way::Neither(_) if place.failures + 1 >= MOST_FAILURES => inner.give_up(&message),
        Way::Neither(error) => {
            inner.note_look(place, |place| place.failures += 1)?;
            Err(error)
        }
    }
}
