//! What becomes of a due time, and of the run that is made for it.

use super::record::{LastRun, Overlap, Pause, Run, RunOutcome, Schedule, State};
use super::zone::Zones;
use crate::error::{Error, ErrorCode};
use crate::job::record::Job;
use crate::plan::{self, Refused};

/// How late a run may be begun that is not made up for, in milliseconds: a minute, which two runs are apart at least.
const LATE: i64 = 60_000;

/// What is done with a run that was refused.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// It is tried again then: it was refused for now, or may have become a job all the same.
    TryAgain(i64),
    /// It is over, with this error; it may be a job if `may_be_a_job`.
    GiveUp { error: Error, may_be_a_job: bool },
}

impl Schedule {
    /// Takes a time that is due: when the next one is, and the due time for which a run is to be made. Of several that passed while nobody
    /// looked only the first counts: it is made up for, or missed, once. `is_open` while a run before is not over.
    pub fn due(&mut self, is_open: bool, zones: &dyn Zones, now: i64) -> Option<i64> {
        let due_at = self.next_at.filter(|at| *at <= now && self.state == State::Active)?;
        self.next_at = self.when.next_after(now, zones).filter(|next| self.expires_at.is_none_or(|end| *next < end));
        let is_missed = (!self.catch_up && now - due_at > LATE) || self.expires_at.is_some_and(|end| end <= now);
        let run = match self.overlap {
            _ if is_missed => {
                self.counts.missed = self.counts.missed.saturating_add(1);
                None
            }
            Overlap::Skip if is_open => self.skip(),
            Overlap::Queue if is_open || self.waiting.is_some() => match self.waiting {
                Some(_) => self.skip(),
                None => {
                    self.waiting = Some(due_at);
                    None
                }
            },
            _ => Some(due_at),
        };
        self.end_if_over(now);
        run
    }

    /// A due time is left out.
    fn skip(&mut self) -> Option<i64> {
        self.counts.skipped = self.counts.skipped.saturating_add(1);
        None
    }

    /// Takes the due time that waited, once no run is open.
    pub fn waited(&mut self, is_open: bool, now: i64) -> Option<i64> {
        let due_at = if is_open || self.state != State::Active { None } else { self.waiting.take() };
        if self.waiting.is_some() && self.expires_at.is_some_and(|end| end <= now) {
            self.waiting = None;
            self.skip();
        }
        self.end_if_over(now);
        due_at.filter(|_| self.expires_at.is_none_or(|end| end > now))
    }

    fn end_if_over(&mut self, now: i64) {
        if self.state == State::Active && self.next_at.is_none() && self.waiting.is_none() {
            self.state = State::Ended;
            self.ended_at = Some(now);
        }
    }

    /// A run became a job. Its end is told by itself, be it before.
    pub fn made(&mut self, run: &Run, job: &Job, now: i64) {
        if self.last.as_ref().is_some_and(|last| last.job_id.as_ref() == Some(&run.job_id)) {
            return;
        }
        self.counts.made = self.counts.made.saturating_add(1);
        let outcome = job.state.into();
        let job_id = Some(run.job_id.clone());
        self.last = Some(LastRun { job_id, due_at: run.due_at, at: now, outcome, error: job.error.clone() });
    }

    /// A run was refused for good. Where its key may not call at all any more, so is every other: the schedule is paused.
    pub fn refused(&mut self, run: &Run, error: &Error, now: i64) {
        // What was there to choose from is for who asked.
        let error = Error { details: serde_json::Map::new(), ..error.clone() };
        self.counts.refused = self.counts.refused.saturating_add(1);
        self.counts.failures_in_a_row = self.counts.failures_in_a_row.saturating_add(1);
        let is_hopeless = matches!(error.code, ErrorCode::Unauthenticated | ErrorCode::Forbidden);
        if is_hopeless && self.state != State::Paused {
            (self.state, self.next_at, self.waiting, self.ended_at) = (State::Paused, None, None, None);
            self.pause = Some(Pause { at: now, key_id: None, error: Some(error.clone()) });
        }
        let (job_id, outcome, error) = (None, RunOutcome::Refused, Some(error));
        self.last = Some(LastRun { job_id, due_at: run.due_at, at: now, outcome, error });
    }

    /// A job of this schedule changed.
    pub fn told(&mut self, before: &Job, job: &Job) {
        let outcome = job.state.into();
        if let Some(last) = self.last.as_mut().filter(|last| last.job_id.as_ref() == Some(&job.job_id)) {
            (last.outcome, last.error) = (outcome, job.error.clone());
        }
        if job.state.is_over() && !before.state.is_over() {
            self.count_end(outcome);
        }
    }

    fn count_end(&mut self, outcome: RunOutcome) {
        let failures = &mut self.counts.failures_in_a_row;
        *failures = if outcome == RunOutcome::Succeeded { 0 } else { failures.saturating_add(1) };
    }
}

impl Run {
    /// A due time of a schedule that is to become a job.
    pub fn of(schedule: &Schedule, due_at: i64, now: i64) -> Self {
        let schedule_id = schedule.schedule_id.clone();
        Self { job_id: Self::job_id(&schedule_id, due_at), schedule_id, due_at, since: now, try_at: now }
    }

    /// What is done after a refusal: as with a step of a pipeline, it is asked for again for up to an hour where that can help.
    pub fn after(&self, error: Error, now: i64) -> Next {
        let call = plan::Call { started_at: Some(self.since), ..plan::Call::default() };
        match plan::refused(call, error.clone(), false, now) {
            Refused::AskAgain(at) => Next::TryAgain(at),
            Refused::Over(call) => Next::GiveUp { error, may_be_a_job: call.has_begun },
        }
    }
}
