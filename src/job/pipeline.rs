//! A pipeline, gone on with by its object. What comes next is decided in `plan.rs`; here it is done.
//!
//! Each step is a call of its own, which becomes a job of its own: its rights, limits, approval, books, log and end are those of any
//! job. Its id follows from that of the attempt and the number of the step, so that asking again, after a restart or a lost answer,
//! finds the job that is there and begins none. The pipeline copies what that job writes, and waits for its end.

use std::rc::Rc;

use futures_util::FutureExt;
use serde_json::json;

use super::actor::Inner;
use super::record::Cancellation;
use super::run;
use super::state::{Event, State};
use super::stored::{PULSE, Stored};
use super::turn::Turn;
use super::{clock, follower};
use crate::api::rest;
use crate::call::{Answered, Attempt, Backend};
use crate::error::{Error, Result};
use crate::events::NoEvents;
use crate::plan::{self, Call, Next, Outcome, Progress, Step, StepState};
use crate::platform::{Platform, within};
use crate::tools::run_pipeline::Output;
use crate::tools::step_info::StepInfo;
use crate::trace::Trace;
use crate::workers::backend::WorkersBackend;
use crate::workers::platform::random;

/// Goes on with a pipeline for as long as one alarm may; the next one goes on from there. False where the alarm's time is over.
pub(super) async fn go_on(inner: &Rc<Inner>) -> Result<bool> {
    inner.is_attempting.set(true);
    let mut stored = inner.existing()?;
    stored.go_on_at = None;
    inner.save(&stored)?;
    clock::arm(inner).await;
    let telling = inner.clone();
    // What is not told now is told at the end.
    inner.platform.background(async move { drop(run::report(&telling).await) }.boxed_local());
    let done = within(&inner.platform, clock::alarm_time(inner), drive(inner)).await;
    inner.is_attempting.set(false);
    let now = inner.platform.now_millis();
    let has_time = done.is_ok();
    let go_on_at = match done {
        Ok(Ok(go_on_at)) => go_on_at,
        Ok(Err(error)) => {
            inner.complain("a pipeline could not be gone on with", &error);
            Some(now + PULSE)
        }
        Err(_) => Some(now),
    };
    let mut stored = inner.existing()?;
    stored.looked_at = now;
    // A cancellation that came meanwhile does not wait, and neither does what a step told.
    stored.go_on_at = stored.go_on_at.into_iter().chain(go_on_at).min();
    inner.save(&stored)?;
    Ok(has_time)
}

/// Does what comes next until the pipeline is over; answers when to go on where it has to wait.
async fn drive(inner: &Rc<Inner>) -> Result<Option<i64>> {
    loop {
        let stored = inner.existing()?;
        if stored.job.state != State::Running {
            return Ok(None);
        }
        if stored.admitted != stored.job.attempts && !admit(inner, &stored).await? {
            return Ok(None);
        }
        let steps = inner.plan(&stored)?;
        let progress = inner.progress(steps.len())?;
        let (index, is_roll_back) = match plan::next(&steps, &progress, inner.wish()?.is_some()) {
            Next::Skip(index) => {
                inner.keep_progress(index, &in_state(StepState::Skipped))?;
                continue;
            }
            Next::Drop(index) => {
                inner.keep_progress(index, &in_state(StepState::Cancelled))?;
                continue;
            }
            Next::End(outcome) => return finish(inner, &steps, &progress, outcome).map(|()| None),
            Next::Run(index) => (index, false),
            Next::RollBack(index) => (index, true),
        };
        let step = steps.get(index).ok_or_else(|| Error::internal("a step of a pipeline is not there"))?;
        let turn = Turn::new(inner, &stored, step, index, is_roll_back)?;
        if let Some(go_on_at) = turn.carry_out().await? {
            return Ok(Some(go_on_at));
        }
    }
}

fn in_state(state: StepState) -> Progress {
    Progress { call: Call { state, ..Call::default() }, roll_back: None }
}

/// Has the books note the attempt, if its key may still ask for the pipeline. False where it does not go on now.
async fn admit(inner: &Rc<Inner>, stored: &Stored) -> Result<bool> {
    let (shared, trace) = (rest::shared()?, Trace::of_request(None, None, random));
    let backend = WorkersBackend::of_object(inner.env.clone(), inner.state.clone(), trace.clone());
    let attempt = Attempt {
        id: stored.attempt_id(),
        who: stored.principal(),
        tool: stored.job.tool.clone(),
        arguments: inner.arguments()?,
        arguments_signature: stored.order.arguments_signature.clone(),
        resumes: None,
        trace,
    };
    let answered = shared.registry.attempt(&backend, attempt, Rc::new(NoEvents)).await;
    let now = inner.platform.now_millis();
    let mut stored = inner.existing()?;
    match answered {
        Answered { result: Ok(_), .. } => stored.admitted = stored.job.attempts,
        Answered { result: Err(error), has_begun: true, .. } => stored.ended(Some(error), None, now)?,
        Answered { result: Err(error), .. } => stored.not_begun(error, now)?,
    }
    stored.keep_no_details();
    inner.save(&stored)?;
    Ok(stored.job.state == State::Running)
}

/// The pipeline is over.
fn finish(inner: &Rc<Inner>, steps: &[Step], progress: &[Progress], outcome: Outcome) -> Result<()> {
    let mut stored = inner.existing()?;
    let now = inner.platform.now_millis();
    let (event, error) = match outcome {
        Outcome::Succeeded => {
            let steps = inner.steps_told(&stored)?.into_iter().map(StepInfo::from).collect();
            inner.keep_output(&serde_json::to_value(Output { steps }).map_err(Error::internal)?)?;
            (Event::Succeed, None)
        }
        Outcome::Failed(index) => (Event::Fail, Some(plan::failure(steps, progress, index))),
        Outcome::Interrupted(index) => (Event::Lose, Some(plan::loss(steps, progress, index))),
        Outcome::Cancelled => (Event::Cancel, Some(plan::cancellation(steps, progress))),
    };
    let error = error.map(|error| error.detail("jobId", stored.job.job_id.as_str()));
    if let Some(error) = &error {
        inner.keep_details(&json!(error.details))?;
    }
    stored.end(event, error, now)?;
    stored.keep_no_details();
    inner.save(&stored)
}

/// Has the step that runs ended, and waits a while for the end of the pipeline.
pub(super) async fn end(inner: &Rc<Inner>, wish: Cancellation) -> Result<()> {
    let stored = inner.existing()?;
    let steps = inner.plan(&stored)?;
    let running = inner.progress(steps.len())?.into_iter().find(|step| step.call.is_under_way());
    if let Some(call_id) = running.and_then(|step| step.call.call_id) {
        let trace = Trace::of_request(None, None, random);
        let backend = WorkersBackend::of_object(inner.env.clone(), inner.state.clone(), trace);
        let jobs = backend.jobs(&stored.order.tenant);
        // Where this fails, the pipeline asks for it again as it goes on.
        let cancel = async move { drop(jobs.cancel(&call_id, &wish).await) };
        inner.platform.background(cancel.boxed_local());
    }
    let until = inner.platform.now_millis() + follower::LONGEST_WAIT;
    while !inner.existing()?.job.state.is_over() && inner.platform.now_millis() < until {
        inner.platform.sleep(follower::LOOK).await;
    }
    Ok(())
}

/// Begins an attempt.
pub(super) async fn attempt(inner: &Rc<Inner>, mut stored: Stored) -> Result<bool> {
    stored.begin(inner.platform.now_millis())?;
    inner.save(&stored)?;
    go_on(inner).await
}
