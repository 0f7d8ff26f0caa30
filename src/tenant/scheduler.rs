//! Runs of schedules: made by the tenant's alarm as calls like any other, which become jobs.

use std::rc::Rc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use serde_json::Value;

use super::actor::{Inner, now};
use super::credential::{Credential, Principal};
use crate::api::rest;
use crate::call::{Backend, Reply, ScheduledCall};
use crate::error::{Error, ErrorCode, Result};
use crate::platform::within;
use crate::schedule::record::{Question, Run, Schedule, ScheduleReport, ScheduleRequest, State};
use crate::schedule::turn::Next;
use crate::trace::Trace;
use crate::workers::backend::WorkersBackend;
use crate::workers::platform::random;

/// Runs that one alarm makes; what is left is made by the next, which follows at once.
const MOST_MADE: i64 = 20;

/// Runs that are made at once.
const AT_ONCE: usize = 5;

/// Until a run that is being made is left to be asked for again.
const MAKING_DEADLINE: Duration = Duration::from_secs(20);

/// What an answer about one schedule is.
fn one(schedule: Schedule) -> ScheduleReport {
    ScheduleReport { schedules: vec![schedule], more: false }
}

/// Answers a tool.
pub(super) async fn ask(inner: &Rc<Inner>, request: &ScheduleRequest) -> Result<ScheduleReport> {
    let ScheduleRequest { seen_by, question } = request;
    let seen_by = seen_by.as_deref();
    let seen = |schedule_id: &str| inner.seen_schedule(schedule_id, seen_by);
    match question {
        Question::Add(schedule) => inner.add_schedule((**schedule).clone(), now()).map(one),
        Question::Get { schedule_id } => seen(schedule_id).map(one),
        Question::List(list) => inner.list_schedules(list, seen_by),
        Question::Change { schedule_id, change } => {
            inner.change_schedule(seen(schedule_id)?, (**change).clone(), now()).map(one)
        }
        Question::Remove { schedule_id } => {
            let schedule = inner.schedule(schedule_id)?;
            inner.remove_schedule(schedule_id)?;
            Ok(ScheduleReport { schedules: schedule.into_iter().collect(), more: false })
        }
        Question::Run { schedule_id, job_id } => run_now(inner, seen(schedule_id)?, job_id).await.map(one),
    }
}

/// Makes a run that somebody asked for. It is written down first: a lost answer loses no run.
async fn run_now(inner: &Rc<Inner>, schedule: Schedule, job_id: &str) -> Result<Schedule> {
    let schedule_id = schedule.schedule_id.as_str();
    if inner.job(job_id)?.is_none() {
        if inner.is_open(schedule_id)? {
            let message = "a run of this schedule is not over";
            return Err(Error::new(ErrorCode::Conflict, message).detail("scheduleId", schedule_id));
        }
        let now = now();
        // The alarm leaves it alone while it is being made here.
        let try_at = now + i64::try_from(MAKING_DEADLINE.as_millis()).unwrap_or(0);
        let run = Run { job_id: job_id.to_owned(), try_at, ..Run::of(&schedule, now, now) };
        inner.store_run(&run)?;
        match make(inner, &schedule, &run).await {
            Ok(()) => note_made(inner, &run)?,
            // It is listed, and was not heard of: it is asked for again.
            Err(_) if inner.job(job_id)?.is_some() => inner.store_run(&Run { try_at: now, ..run })?,
            Err(error) => {
                inner.forget_run(job_id)?;
                return Err(told(error, &schedule));
            }
        }
    }
    inner.seen_schedule(schedule_id, None)
}

/// A refusal as it is told to who asked for the run: it is the key of the schedule that may not call, not theirs.
fn told(error: Error, schedule: &Schedule) -> Error {
    if error.code != ErrorCode::Unauthenticated {
        return error;
    }
    let message =
        format!("the key of the schedule cannot run it: {}; whoever updates the schedule takes it over", error.message);
    Error::new(ErrorCode::Conflict, message).detail("keyId", schedule.key_id.as_str())
}

/// What the alarm does.
pub(super) async fn run(inner: &Rc<Inner>) {
    if let Err(error) = work(inner).await {
        worker::console_error!("the schedules of a tenant could not be looked at: {:?}", error.cause);
    }
    if let Err(error) = inner.plan_schedules() {
        worker::console_error!("the next schedule is not known: {:?}", error.cause);
    }
}

async fn work(inner: &Rc<Inner>) -> Result<()> {
    inner.take_due(now())?;
    let runs = inner.runs_to_try(now(), MOST_MADE)?;
    stream::iter(runs).for_each_concurrent(AT_ONCE, |run| try_run(inner, run)).await;
    Ok(())
}

async fn try_run(inner: &Rc<Inner>, run: Run) {
    if let Err(error) = carry_out(inner, &run).await {
        worker::console_error!("a run of a schedule was not noted: {} {:?}", run.job_id, error.cause);
        let later = inner.try_later(&run, now());
        if let Err(error) = later {
            worker::console_error!("it is not put off either: {:?}", error.cause);
        }
    }
}

async fn carry_out(inner: &Rc<Inner>, run: &Run) -> Result<()> {
    // It may have been paused while others were made.
    if !inner.is_wanted(run)? {
        return Ok(());
    }
    let Some(schedule) = inner.schedule(&run.schedule_id)? else { return inner.forget_run(&run.job_id) };
    // What was admitted is what the schedule said then: another call must not take its place. Where its object was never made, the list
    // closes it.
    if inner.job(&run.job_id)?.is_some_and(|job| schedule.updated_at >= job.created_at) {
        return note_made(inner, run);
    }
    match make(inner, &schedule, run).await {
        Ok(()) => note_made(inner, run),
        Err(error) => note_refused(inner, run, error),
    }
}

/// Has the call made, by whom the schedule is of. The same one again finds the job that is there.
async fn make(inner: &Rc<Inner>, schedule: &Schedule, run: &Run) -> Result<()> {
    let tenant = inner.name()?.ok_or_else(|| Error::internal("a tenant with schedules does not know its name"))?;
    let credential = Credential::Job { permissions: None, token_id: None, sandbox_created_at: None };
    let trace = Trace::of_request(None, None, random);
    let call = ScheduledCall {
        id: run.job_id.clone(),
        who: Principal { tenant, key_id: schedule.key_id.clone(), credential },
        tool: schedule.call.tool.clone(),
        arguments: Value::Object(schedule.call.arguments.clone()),
        schedule_id: schedule.schedule_id.clone(),
        trace: trace.clone(),
    };
    let backend = WorkersBackend::of_object(inner.env.clone(), inner.state.clone(), trace);
    let shared = rest::shared()?;
    match within(&*backend.platform(), MAKING_DEADLINE, shared.registry.scheduled(&backend, call)).await {
        Ok(answered) => match answered.result? {
            Reply::Job(_) => Ok(()),
            Reply::Output(_) => Err(Error::internal("a run of a schedule did not become a job")),
        },
        Err(_) => Err(Error::new(ErrorCode::OutcomeUnknown, "the run was not made in time")),
    }
}

/// The run is a job. Whatever waited for its end is next, if that has come already.
fn note_made(inner: &Inner, run: &Run) -> Result<()> {
    inner.forget_run(&run.job_id)?;
    let Some(job) = inner.job(&run.job_id)? else { return Err(Error::internal("the job of a run is not in the list")) };
    let Some(mut schedule) = inner.schedule(&run.schedule_id)? else { return Ok(()) };
    schedule.made(run, &job, now());
    inner.store_schedule(&schedule)?;
    inner.take_waiting(&schedule, &job, now())
}

fn note_refused(inner: &Inner, run: &Run, error: Error) -> Result<()> {
    // It may have been paused or deleted meanwhile.
    if !inner.is_wanted(run)? {
        return Ok(());
    }
    match run.after(error, now()) {
        Next::TryAgain(try_at) => inner.store_run(&Run { try_at, ..run.clone() }),
        Next::GiveUp { error, may_be_a_job } => {
            if may_be_a_job && inner.job(&run.job_id)?.is_some() {
                return note_made(inner, run);
            }
            inner.forget_run(&run.job_id)?;
            let Some(mut schedule) = inner.schedule(&run.schedule_id)? else { return Ok(()) };
            let was_paused = schedule.state == State::Paused;
            schedule.refused(run, &error, now());
            if schedule.state == State::Paused && !was_paused {
                worker::console_warn!("a schedule was paused: {} {}", schedule.schedule_id, error.message);
            }
            inner.store_schedule(&schedule)
        }
    }
}
