//! What a job's object stores of it, what is due when, and what each event changes: pure, so that the object only writes down what comes out.

use serde::{Deserialize, Serialize};

use super::record::{Again, Cancellation, Change, Decision, Job, KILLED, Order, Seed, StepOf};
use super::state::{Event, InvalidTransition, State};
use crate::error::{Error, ErrorCode};
use crate::events::Process;
use crate::tenant::credential::{Credential, Principal};

/// First and longest pause after an attempt that did not begin, or a report that was not taken, in milliseconds.
const FIRST_PAUSE: i64 = 2_000;
const LONGEST_PAUSE: i64 = 60_000;

/// How long a job is tried that cannot begin, in milliseconds: an hour.
pub const PATIENCE: i64 = 60 * 60 * 1000;

/// How often the object looks whether an attempt is still in its memory, in milliseconds.
pub const PULSE: i64 = 15_000;

/// Between two looks of a pipeline at a step that waits for an approval, in milliseconds: five minutes. The step tells when it is decided.
pub const APPROVAL_LOOK: i64 = 5 * 60 * 1000;

/// Attempts that may have acted, of a tool that may be called twice.
const MOST_ATTEMPTS: u32 = 4;

/// How long one alarm may look after an attempt, in milliseconds: the platform ends its work after 15 minutes.
pub const LONGEST_ATTEMPT: i64 = 14 * 60 * 1000;

/// How long a process may go on from alarm to alarm, in milliseconds: an hour, and the start of its sandbox and telling its end.
pub const LONGEST_PROCESS: i64 = 62 * 60 * 1000;

/// How long a sandbox may say nothing until its command is given up, in milliseconds: two minutes.
const LONGEST_SILENCE: i64 = 2 * 60 * 1000;

/// Most changes that are kept for a list that does not take them: more than a job makes in the hour in which it is tried.
const MOST_CHANGES: usize = 256;

/// What the object stores beside arguments and output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Stored {
    pub job: Job,
    pub order: Order,
    /// Version that the tenant's list has taken, and failures to tell it since.
    #[serde(default)]
    pub reported: u32,
    #[serde(default)]
    pub report_failures: u32,
    #[serde(default)]
    pub report_at: i64,
    /// Changes of its state that the list has not taken.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<Change>,
    /// When it may begin, attempts that did not, and since when it is tried.
    #[serde(default)]
    pub begin_at: i64,
    #[serde(default)]
    pub not_begun: u32,
    #[serde(default)]
    pub tried_since: i64,
    /// Where its attempt runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<Process>,
    /// The call that last asked for another attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retried_by: Option<String>,
    /// When it was last tried in vain to go on with it.
    #[serde(default)]
    pub looked_at: i64,
    /// Attempts that never began, and whose ids were forbidden to.
    #[serde(default)]
    pub never_begun: u32,
    /// Since when nothing was heard of the sandbox in which it may run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent_since: Option<i64>,
    /// The attempt of a pipeline in which its steps were begun from the first; what a step makes may be named after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planned_by: Option<String>,
    /// The last attempt of a pipeline that its key was seen to have the rights for.
    #[serde(default)]
    pub admitted: u32,
    /// When it is gone on with while it runs, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub go_on_at: Option<i64>,
    /// When the next attempt was given a place among those that run at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placed_at: Option<i64>,
    /// When it asks for one again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asks_at: Option<i64>,
}

/// What the object has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Nobody approved it in time.
    Expire,
    /// It is carried out.
    Begin,
    /// Is its attempt still in memory?
    Pulse,
    /// The tenant's list is told.
    Report,
    /// It is forgotten.
    Forget,
}

impl Stored {
    pub fn new(seed: &Seed) -> Self {
        let job = Job { version: 1, ..seed.job.clone() };
        let begin_at = job.created_at;
        // The list gave it a place, or put it into the line, as it made it a job.
        let is_placed = job.state == State::Queued && !job.waits_for_place;
        let asks_at = job.waits_for_place.then_some(begin_at + place::ASKS_AGAIN);
        Self {
            order: seed.order.clone(),
            reported: 0,
            report_failures: 0,
            report_at: 0,
            changes: Vec::new(),
            begin_at,
            not_begun: 0,
            tried_since: begin_at,
            process: None,
            retried_by: None,
            looked_at: 0,
            silent_since: None,
            never_begun: 0,
            planned_by: None,
            admitted: 0,
            go_on_at: None,
            placed_at: is_placed.then_some(begin_at),
            asks_at,
            job,
        }
    }

    /// What there is to do, and when.
    pub fn due(&self) -> Vec<(Due, i64)> {
        let job = &self.job;
        let mut due = Vec::new();
        match job.state {
            State::AwaitingApproval => {
                due.extend(job.approval.as_ref().map(|approval| (Due::Expire, approval.expires_at)));
            }
            State::Queued => due.push((Due::Begin, self.begin_at.max(self.asks_at.unwrap_or(0)))),
            State::Running => {
                let pulse = self.looked_at.max(job.updated_at) + PULSE;
                due.push((Due::Pulse, self.go_on_at.unwrap_or(pulse)));
            }
            _ => {}
        }
        if self.reported < job.version {
            due.push((Due::Report, self.report_at));
        } else if let Some(expires_at) = job.expires_at() {
            due.push((Due::Forget, expires_at));
        }
        due
    }

    /// Whether its attempt has gone on for longer than one can.
    pub fn is_overdue(&self, now: i64) -> bool {
        if self.is_pipeline() {
            return false;
        }
        let longest = if self.process.is_some() { LONGEST_PROCESS } else { LONGEST_ATTEMPT };
        self.job.begun_at.is_some_and(|begun_at| now > begun_at + longest + PULSE)
    }

    /// The alarm's time is over: the next one goes on at once.
    pub fn hand_over(&mut self, now: i64) {
        self.looked_at = now;
        self.go_on_at = Some(now);
    }

    /// A step does not wait for an approval any more. Whether there is something to go on with.
    pub fn wake(&mut self, now: i64) -> bool {
        let goes_on = self.is_pipeline() && self.job.state == State::Running;
        if goes_on {
            self.go_on_at = Some(self.go_on_at.map_or(now, |at| at.min(now)));
        }
        goes_on
    }

    /// The pipeline that waits for what was decided of this step.
    pub fn waits_for_it(&self) -> Option<&StepOf> {
        let is_decided = self.job.approval.is_some() && self.job.state != State::AwaitingApproval;
        self.job.step_of.as_ref().filter(|_| is_decided)
    }

    /// Whether it is a pipeline, whose steps are jobs of their own.
    pub fn is_pipeline(&self) -> bool {
        !self.order.requirement.steps.is_empty()
    }

    /// When the alarm has to go off.
    pub fn alarm(&self) -> Option<i64> {
        self.due().into_iter().map(|(_, at)| at).min()
    }

    /// Applies `event`. What else is told of the change is set before it.
    pub fn change(&mut self, event: Event, now: i64) -> Result<(), InvalidTransition> {
        let job = &mut self.job;
        job.state = job.state.after(event)?;
        job.version += 1;
        job.updated_at = now;
        job.waits_for_place = false;
        (self.placed_at, self.asks_at) = (None, None);
        if job.state.is_over() {
            job.ended_at = Some(now);
        }
        self.changes.push(Change::of(job));
        let surplus = self.changes.len().saturating_sub(MOST_CHANGES);
        self.changes.drain(..surplus);
        Ok(())
    }

    /// Approves or rejects; the same decision of the same key again changes nothing.
    pub fn decide(&mut self, decision: Decision) -> Result<(), Error> {
        let now = decision.at;
        let Some(approval) = self.job.approval.as_mut() else {
            return Err(Error::new(ErrorCode::Conflict, "the job does not wait for an approval"));
        };
        if let Some(before) = &approval.decision {
            if before.approved == decision.approved && before.key_id == decision.key_id {
                return Ok(());
            }
            return Err(over(&self.job));
        }
        if self.job.state != State::AwaitingApproval || approval.expires_at <= now {
            return Err(over(&self.job));
        }
        approval.decision = Some(decision.clone());
        if decision.approved {
            self.change(Event::Approve, now).map_err(Error::internal)?;
            (self.begin_at, self.tried_since) = (now, now);
            return Ok(());
        }
        let mut error =
            Error::new(ErrorCode::ApprovalRejected, "the call was rejected").detail("rejectedBy", decision.key_id);
        if let Some(comment) = decision.comment {
            error = error.detail("comment", comment);
        }
        self.end(Event::Reject, Some(error), now)
    }

    /// Nobody approved it in time.
    pub fn expire(&mut self, now: i64) -> Result<(), Error> {
        let message = "nobody approved the call in time";
        let error = Error::new(ErrorCode::ApprovalRejected, message).detail("reason", "expired");
        self.end(Event::Reject, Some(error), now)
    }

    /// It ends, with this error or without one.
    pub fn end(&mut self, event: Event, error: Option<Error>, now: i64) -> Result<(), Error> {
        self.job.error = error;
        self.change(event, now).map_err(Error::internal)
    }

    /// Somebody wants it to end. What has not begun is over at once; what runs is over when that is seen, if it can be ended.
    pub fn cancel(&mut self, wish: Cancellation, can_be_ended: bool) -> Result<(), Error> {
        let now = wish.at;
        match self.job.state {
            State::Cancelled => Ok(()),
            State::AwaitingApproval | State::Queued => {
                self.job.cancellation = Some(wish);
                self.end(Event::Cancel, Some(not_carried_out()), now)
            }
            State::Running if can_be_ended => {
                if self.job.cancellation.is_none() {
                    self.job.cancellation = Some(wish);
                    self.job.version += 1;
                    // Who waits for a step, or for the next look, does not wait on.
                    self.go_on_at = Some(now);
                }
                Ok(())
            }
            State::Running => {
                let message = "the call is under way, and what this tool does cannot be stopped; wait for its end";
                Err(Error::new(ErrorCode::Conflict, message)
                    .detail("jobId", self.job.job_id.as_str())
                    .detail("state", self.job.state.as_str()))
            }
            _ => Err(over(&self.job)),
        }
    }

    /// Somebody asks for another attempt; the same call again changes nothing.
    pub fn retry(&mut self, again: &Again) -> Result<(), Error> {
        if self.retried_by.as_ref() == Some(&again.call_id) {
            return Ok(());
        }
        let refuse = |message: &str, job: &Job| {
            let error = Error::new(ErrorCode::Conflict, message).detail("jobId", job.job_id.as_str());
            Err(error.detail("state", job.state.as_str()))
        };
        if self.job.state.after(Event::Retry).is_err() {
            return Err(over(&self.job));
        }
        if let Some(StepOf { job_id, .. }) = &self.job.step_of {
            let message = format!("the job is a step of the pipeline {job_id:?}; retry that");
            return refuse(&message, &self.job);
        }
        if again.from_failed && !self.is_pipeline() {
            return refuse("the job is no pipeline, so that it has no failed step to go on from", &self.job);
        }
        if self.job.approval.is_some() {
            return refuse("an approval is for one attempt; ask for the call anew", &self.job);
        }
        if self.job.state == State::Interrupted && !again.although_it_may_have_acted {
            let message = "the job may have done its work, or its command may still run: look first, then pass althoughItMayHaveActed";
            return refuse(message, &self.job);
        }
        self.job.ended_at = None;
        self.job.error = None;
        self.job.exit_code = None;
        self.job.cancellation = None;
        self.change(Event::Retry, again.at).map_err(Error::internal)?;
        self.retried_by = Some(again.call_id.clone());
        self.go_on_at = None;
        if !again.from_failed {
            self.planned_by = None;
        }
        self.job.recorded_as = Some(format!("{}-{}", self.job.job_id, (self.number() + 1).max(2)));
        (self.begin_at, self.tried_since, self.not_begun) = (again.at, again.at, 0);
        // The idempotency key of the call keeps its first answer.
        self.order.holds_key = false;
        Ok(())
    }

    /// An attempt was lost of a tool that may be called twice: another begins after a pause, which `random` makes longer by up to a half.
    /// False where there were enough, or nobody wants one.
    pub fn again(&mut self, random: u8, now: i64) -> Result<bool, Error> {
        if self.job.attempts >= MOST_ATTEMPTS || self.job.cancellation.is_some() {
            return Ok(false);
        }
        self.begin_at = now + jittered(pause(self.job.attempts.saturating_sub(1)), random);
        self.change(Event::NotBegun, now).map_err(Error::internal)?;
        Ok(true)
    }

    /// The attempt never began, and cannot any more under its id: another is made later, as after a refusal.
    pub fn never_began(&mut self, now: i64) -> Result<(), Error> {
        self.never_begun += 1;
        let message = "the command did not reach its sandbox; nothing was carried out";
        self.not_begun(Error::new(ErrorCode::SandboxUnavailable, message), now)
    }

    /// The sandbox in which it may run says nothing for now: it is looked for again. False where that has lasted too long; a time in
    /// which nobody looked does not count.
    pub fn is_silent(&mut self, now: i64) -> bool {
        if now > self.looked_at + LONGEST_SILENCE {
            self.silent_since = None;
        }
        let since = *self.silent_since.get_or_insert(now);
        self.looked_at = now;
        now < since + LONGEST_SILENCE
    }

    /// An attempt begins.
    pub fn begin(&mut self, now: i64) -> Result<(), Error> {
        self.job.attempts += 1;
        self.job.begun_at = Some(now);
        if self.not_begun == 0 {
            // What waited in line has the whole time from here on.
            self.tried_since = now;
        }
        (self.process, self.silent_since) = (None, None);
        // Another attempt makes another one.
        if self.job.sandbox_created_at.is_none() {
            self.job.sandbox_id = None;
        }
        if self.planned_by.is_none() && self.is_pipeline() {
            self.planned_by = Some(self.attempt_id());
        }
        self.change(Event::Begin, now).map_err(Error::internal)
    }

    /// The attempt was refused before it acted: it is made again later, or given up with that refusal.
    pub fn not_begun(&mut self, error: Error, now: i64) -> Result<(), Error> {
        self.job.attempts = self.job.attempts.saturating_sub(1);
        self.job.begun_at = None;
        if self.job.cancellation.is_some() {
            return self.end(Event::Cancel, Some(not_carried_out()), now);
        }
        let asked = i64::from(error.retry_after.unwrap_or(0)) * 1000;
        let begin_at = now + pause(self.not_begun).max(asked);
        if !error.retryable || begin_at > self.tried_since + PATIENCE {
            return self.end(Event::Fail, Some(error), now);
        }
        self.begin_at = begin_at;
        self.not_begun += 1;
        self.change(Event::NotBegun, now).map_err(Error::internal)
    }

    /// The attempt ended.
    pub fn ended(&mut self, error: Option<Error>, exit_code: Option<i32>, now: i64) -> Result<(), Error> {
        let was_killed = |error: &Error| error.details.get("reason").is_some_and(|reason| reason == KILLED);
        let is_cancelled = self.job.cancellation.is_some() && error.as_ref().is_some_and(was_killed);
        if is_cancelled {
            let message = "the job was cancelled: its command was killed with all its children";
            let error = error.map(|error| Error { message: message.to_owned(), ..error });
            return self.end(Event::Cancel, error, now);
        }
        let event = match &error {
            None => Event::Succeed,
            Some(error) if is_lost(error) => Event::Lose,
            Some(_) => Event::Fail,
        };
        self.job.exit_code = exit_code;
        self.end(event, error, now)
    }

    /// What an error told beside its text is kept elsewhere.
    pub fn keep_no_details(&mut self) {
        if let Some(error) = self.job.error.as_mut() {
            error.details.clear();
        }
    }

    /// The attempt is in nobody's memory any more.
    pub fn lost(&mut self, now: i64) -> Result<(), Error> {
        let message = "the call had begun when this service was interrupted; it may have acted";
        self.end(Event::Lose, Some(Error::new(ErrorCode::OutcomeUnknown, message)), now)
    }

    /// The tenant's list has taken this version, or has not.
    pub fn told(&mut self, version: u32, taken: bool, now: i64) {
        if taken {
            self.reported = self.reported.max(version);
            self.changes.retain(|change| change.version > version);
            self.report_failures = 0;
        } else {
            self.report_at = now + pause(self.report_failures);
            self.report_failures = self.report_failures.saturating_add(1);
        }
    }

    /// Who calls when the job is carried out: the key that asked, as it is then.
    pub fn principal(&self) -> Principal {
        Principal {
            tenant: self.order.tenant.clone(),
            key_id: self.job.key_id.clone(),
            credential: Credential::Job {
                permissions: self.order.permissions.clone(),
                token_id: self.job.token_id.clone(),
                sandbox_created_at: self.job.sandbox_created_at,
            },
        }
    }

    /// The attempts so far, with those that may not begin any more.
    fn number(&self) -> u32 {
        self.job.attempts + self.never_begun
    }

    /// Id of the call of this attempt: a job's first is the job's own.
    pub fn attempt_id(&self) -> String {
        match self.number() {
            0 | 1 => self.job.job_id.clone(),
            more => format!("{}-{more}", self.job.job_id),
        }
    }
}

/// What is told of a job that was cancelled before it began.
fn not_carried_out() -> Error {
    let message = "the job was cancelled before it began; nothing was carried out";
    Error::new(ErrorCode::Interrupted, message).detail("reason", "cancelled")
}

/// Whether nobody saw how it ended. An object that was reset in the middle may have acted.
pub fn is_lost(error: &Error) -> bool {
    matches!(error.code, ErrorCode::OutcomeUnknown | ErrorCode::Interrupted | ErrorCode::ObjectUnavailable)
}

/// 409: what was asked for is not possible any more.
fn over(job: &Job) -> Error {
    Error::new(ErrorCode::Conflict, format!("the job is {}", job.state.as_str()))
        .detail("jobId", job.job_id.as_str())
        .detail("state", job.state.as_str())
}

/// A pause that `random` makes longer by up to a half.
fn jittered(pause: i64, random: u8) -> i64 {
    pause + pause * i64::from(random) / 512
}

fn pause(failures: u32) -> i64 {
    FIRST_PAUSE.saturating_mul(1_i64.checked_shl(failures.min(20)).unwrap_or(i64::MAX)).min(LONGEST_PAUSE)
}

mod place;
mod sandbox;

#[cfg(test)]
mod table;
#[cfg(test)]
mod tests;
