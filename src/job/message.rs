//! The queue: a job that waited is told by a message that it may begin, and what nobody can deliver ends as a dead letter. Pure.
//!
//! ```text
//!  tenant ── Message ──▶ queue ──▶ the job's object: its attempt begins, if it is still to begin
//!     │ not taken                       │ cannot be asked, again and again
//!     └──▶ the object itself            └──▶ dead letter queue ──▶ the object once more, else the tenant: the job is given up
//! ```
//!
//! A message has no authority: it makes an object look. So one that is lost, that comes twice, late, or in another order changes nothing;
//! the object looks by itself, too.

use futures_util::future::LocalBoxFuture;
use serde::{Deserialize, Serialize};

use super::record::Job;
use super::state::State;
use crate::error::{Error, ErrorCode, Result};

/// Longest pause between two deliveries of a message, in seconds.
const LONGEST_PAUSE: i64 = 120;

/// What a message of the queue says: this attempt may begin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Message {
    pub tenant: String,
    pub job_id: String,
    pub attempt: u32,
}

/// Where messages are sent.
pub trait Queue {
    fn send<'a>(&'a self, message: &'a Message) -> LocalBoxFuture<'a, Result<()>>;
}

/// The objects that a message is about.
pub trait Objects {
    /// Has the job's object look whether the attempt is to begin; false where it knows of no job.
    fn begin<'a>(&'a self, message: &'a Message) -> LocalBoxFuture<'a, Result<bool>>;

    /// Has the tenant end the job, if the attempt is still the one that has its place.
    fn give_up<'a>(&'a self, message: &'a Message) -> LocalBoxFuture<'a, Result<()>>;
}

/// How a job was told that it may begin.
#[derive(Debug, PartialEq)]
pub enum Way {
    Queue,
    /// The queue did not take the message, so its object was asked.
    Object,
    /// Neither took it.
    Neither(Error),
}

/// What becomes of a delivered message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Done,
    /// It is delivered again later.
    Again,
}

/// Tells a job that it may begin: by the queue, or where there is none or it does not take the message, itself.
pub async fn send(queue: Option<&dyn Queue>, objects: &dyn Objects, message: &Message) -> Way {
    if let Some(queue) = queue
        && queue.send(message).await.is_ok()
    {
        return Way::Queue;
    }
    match look(objects, message).await {
        Ok(()) => Way::Object,
        Err(error) => Way::Neither(error),
    }
}

/// A message came out of the queue.
pub async fn delivered(objects: &dyn Objects, message: &Message) -> Verdict {
    match look(objects, message).await {
        Ok(()) => Verdict::Done,
        Err(_) => Verdict::Again,
    }
}

/// A message came out of the dead letter queue: its object is asked once more, and its job is given up where that does not answer.
pub async fn dead(objects: &dyn Objects, message: &Message) -> Verdict {
    if look(objects, message).await.is_ok() {
        return Verdict::Done;
    }
    match objects.give_up(message).await {
        Ok(()) => Verdict::Done,
        Err(_) => Verdict::Again,
    }
}

async fn look(objects: &dyn Objects, message: &Message) -> Result<()> {
    match objects.begin(message).await {
        Ok(true) => Ok(()),
        // It may be on its way there.
        Ok(false) => Err(Error::new(ErrorCode::NotFound, "the object knows of no such job")),
        Err(error) => Err(error),
    }
}

/// Seconds until a message is delivered again: as long as it is old, so that each pause is twice the one before.
pub fn pause(age: i64, first: i64) -> u32 {
    let seconds = (age / 1000).clamp(first / 1000, LONGEST_PAUSE);
    u32::try_from(seconds).unwrap_or(0)
}

/// The job once it was given up: its object did not answer, or knows nothing of it. Whether one that ran did its work is not known.
pub fn given_up(job: Job, now: i64) -> Job {
    let (state, error) = match job.state {
        State::Running => {
            let message = "the job ran when its object was last heard of, and what is stored of it cannot be read any more; it may have acted";
            (State::Interrupted, Error::new(ErrorCode::OutcomeUnknown, message))
        }
        _ => {
            let message = "what is stored of the job could not be read when it was to begin, again and again; it was not seen to begin, and was given up";
            (State::Failed, Error::new(ErrorCode::Internal, message))
        }
    };
    // What its object should tell after all has a version that is greater.
    let version = job.version.max(1);
    let error = error.detail("reason", GIVEN_UP);
    Job { state, version, waits_for_place: false, updated_at: now, ended_at: Some(now), error: Some(error), ..job }
}

/// `reason` in the error of a job that was given up.
const GIVEN_UP: &str = "given_up";

/// Whether the tenant's list has it as given up.
pub fn is_given_up(job: &Job) -> bool {
    let reason = job.error.as_ref().and_then(|error| error.details.get("reason"));
    reason.is_some_and(|reason| reason == GIVEN_UP)
}

#[cfg(test)]
mod tests;
