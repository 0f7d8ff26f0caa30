//! One attempt of a job, and what the tenant's list is told.

use std::rc::Rc;
use std::time::Duration;

use futures_util::FutureExt;
use serde_json::{Value, json};

use super::actor::Inner;
use super::follower::{self, Follower};
use super::look::{self, Found};
use super::record::Report;
use super::state::State;
use super::stored::{Stored, is_lost};
use super::{clock, parent};
use crate::api::rest;
use crate::call::{Answered, Attempt, Backend, Reply};
use crate::error::{Error, ErrorCode, Result};
use crate::events::Resumed;
use crate::fetch_error::Repeat;
use crate::identifier::SandboxId;
use crate::platform::{Platform, within};
use crate::sandbox::exec;
use crate::tenant::admission::{Outcome, Settlement};
use crate::tenant::idempotency::{Answer, is_kept};
use crate::tenant::usage::Spent;
use crate::trace::Trace;
use crate::workers::backend::WorkersBackend;
use crate::workers::fetch::FetchError;
use crate::workers::internal::{Question, TENANT_BINDING, namespace};
use crate::workers::platform::random;

/// Until the tenant's object has taken a report.
const REPORT_DEADLINE: Duration = Duration::from_secs(5);

/// Carries the call out. That it begins is stored before it does, so that no other attempt begins, whatever becomes of this one.
/// False where the alarm's time is over.
pub(super) async fn attempt(inner: &Rc<Inner>, mut stored: Stored) -> Result<bool> {
    stored.begin(inner.platform.now_millis())?;
    inner.save(&stored)?;
    inner.forget_passed_on()?;
    carry_out(inner, stored, None).await
}

/// Goes on with an attempt that is in nobody's memory: its process is asked for by its id. Nothing is begun again.
/// False where the alarm's time is over.
pub(super) async fn go_on(inner: &Rc<Inner>, mut stored: Stored) -> Result<bool> {
    let now = inner.platform.now_millis();
    stored.go_on_at = None;
    inner.save(&stored)?;
    let found = if stored.is_overdue(now) { Found::Lost } else { look::find(inner, &stored).await? };
    // Somebody may have wanted its end meanwhile.
    let mut stored = inner.existing()?;
    let before = stored.clone();
    let outcome = match found {
        Found::Began(process) => {
            let passed_on = inner.passed_on()?;
            return carry_out(inner, stored, Some(Resumed { process, passed_on })).await;
        }
        Found::Silent if stored.is_silent(now) => return inner.save(&stored).map(|()| true),
        Found::NeverBegan => {
            stored.never_began(now)?;
            Outcome::Refused(ErrorCode::SandboxUnavailable)
        }
        Found::Silent | Found::Lost => {
            if !(may_be_done_twice(&stored) && stored.again(jitter(), now)?) {
                stored.lost(now)?;
            }
            Outcome::Failed(ErrorCode::OutcomeUnknown)
        }
    };
    inner.forget_answer()?;
    inner.save(&stored)?;
    settle(inner, &before, outcome);
    Ok(true)
}

/// One alarm's work on an attempt that has begun. A process that outlasts it is gone on with by the next.
async fn carry_out(inner: &Rc<Inner>, stored: Stored, resumes: Option<Resumed>) -> Result<bool> {
    let shared = rest::shared()?;
    let resumed = resumes.as_ref().map(|resumed| resumed.process.clone());
    let is_resumed = resumed.is_some();
    inner.is_attempting.set(true);
    inner.is_unwanted.set(stored.job.cancellation.is_some());
    clock::arm(inner).await;
    let telling = inner.clone();
    // What is not told now is told at the end.
    inner.platform.background(async move { drop(report(&telling).await) }.boxed_local());
    let trace = Trace::of_request(None, None, random);
    let backend = WorkersBackend::of_object(inner.env.clone(), inner.state.clone(), trace.clone());
    let attempt = inner.arguments().map(|arguments| Attempt {
        id: stored.attempt_id(),
        who: stored.principal(),
        tool: stored.job.tool.clone(),
        arguments,
        arguments_signature: stored.order.arguments_signature.clone(),
        resumes,
        trace,
    });
    let answered = match attempt {
        Ok(attempt) => {
            let work = shared.registry.attempt(&backend, attempt, Rc::new(Follower::new(inner.clone())));
            match within(&inner.platform, clock::alarm_time(inner), work).await {
                Ok(answered) => answered,
                Err(_) => return pause(inner).map(|()| false),
            }
        }
        Err(error) => Answered { result: Err(error), standing: None, is_replayed: false, has_begun: false },
    };
    // Nobody could cancel the command of a job that may not go on, since its key ended.
    let is_refused = !answered.has_begun && matches!(&answered.result, Err(error) if !error.retryable);
    if let Some(process) = resumed.filter(|_| is_refused) {
        let of = inner.existing()?;
        follower::kill(inner, &of.order.tenant, &of.attempt_id(), process).await;
    }
    inner.is_attempting.set(false);
    let now = inner.platform.now_millis();
    let mut stored = inner.existing()?;
    if let Err(error) = &answered.result {
        inner.keep_details(&json!(error.details))?;
    }
    if let (true, Some(sandbox_id)) = (answered.has_begun, sandbox_of(&answered.result)) {
        stored.runs_in(sandbox_id);
    }
    let left_open =
        answered.result.as_ref().err().filter(|error| exec::may_be_told_later(error)).map(|error| error.code);
    let before = stored.clone();
    match answered.result {
        Ok(Reply::Output(output)) => {
            let exit_code = output.get("exitCode").and_then(Value::as_i64);
            inner.keep_output(&output)?;
            stored.ended(None, exit_code.and_then(|code| i32::try_from(code).ok()), now)?;
        }
        Ok(Reply::Job(_)) => stored.ended(Some(Error::internal("an attempt became a job")), None, now)?,
        // The sandbox may tell later.
        Err(error)
            if answered.has_begun
                && exec::may_be_told_later(&error)
                && look::is_process(&stored)?
                && stored.is_silent(now) => {}
        Err(error)
            if answered.has_begun
                && is_lost(&error)
                && may_be_done_twice(&stored)
                && stored.again(jitter(), now)? => {}
        Err(error) if answered.has_begun => stored.ended(Some(error), None, now)?,
        // It began before, and is looked for again.
        Err(error) if is_resumed && error.retryable => stored.looked_at = now,
        Err(_) if is_resumed => stored.lost(now)?,
        Err(error) => stored.not_begun(error, now)?,
    }
    stored.keep_no_details();
    inner.save(&stored)?;
    // One that is not admitted again was open before.
    let left_open = left_open.or_else(|| (is_resumed && !answered.has_begun).then_some(ErrorCode::OutcomeUnknown));
    if let (Some(code), true) = (left_open, stored.job.state != State::Running) {
        settle(inner, &before, Outcome::Failed(code));
    }
    Ok(true)
}

/// Closes the call of an attempt that did not see its own end, so that it is open for its key no longer. What fails is closed at its deadline.
fn settle(inner: &Rc<Inner>, attempt: &Stored, outcome: Outcome) {
    let now = inner.platform.now_millis();
    let begun_at = attempt.job.begun_at.unwrap_or(now);
    // A command whose own time was not told ran for as long as it was followed.
    let exec_ms = if attempt.process.is_some() { now - begun_at } else { 0 };
    let spent = Spent { exec_ms, ..Spent::default() };
    let settlement = Settlement { outcome, spent, ..Settlement::never_settled(attempt.attempt_id(), begun_at, now) };
    let trace = Trace::of_request(None, None, random);
    let backend = WorkersBackend::of_object(inner.env.clone(), inner.state.clone(), trace);
    let (telling, tenant) = (inner.clone(), backend.tenant(&attempt.order.tenant));
    let settled = async move {
        if let Err(error) = tenant.settle(settlement).await {
            telling.complain("the call of an attempt was not closed", &error);
        }
    };
    inner.platform.background(settled.boxed_local());
}

/// The sandbox that an answer names.
fn sandbox_of(result: &Result<Reply<Value>>) -> Option<SandboxId> {
    let named = match result {
        Ok(Reply::Output(output)) => output.get("sandboxId"),
        Ok(Reply::Job(_)) => None,
        Err(error) => error.details.get("sandboxId"),
    };
    SandboxId::parse(named?.as_str()?).ok()
}

/// Whether the tool says that calling it twice does what calling it once does.
fn may_be_done_twice(stored: &Stored) -> bool {
    let shared = rest::shared().ok();
    let entry = shared.as_ref().and_then(|shared| shared.registry.get(&stored.job.tool));
    entry.is_some_and(|entry| entry.description().annotations.idempotent_hint)
}

pub(super) fn jitter() -> u8 {
    random().first().copied().unwrap_or(0)
}

/// The alarm's time is over. The next one goes on with the process, where there is one.
fn pause(inner: &Inner) -> Result<()> {
    inner.is_attempting.set(false);
    let mut stored = inner.existing()?;
    stored.hand_over(inner.platform.now_millis());
    inner.save(&stored)
}

/// Tells the tenant's list how the job stands, unless it knows. One that cannot be reached is told later.
pub(super) async fn report(inner: &Rc<Inner>) -> Result<()> {
    let stored = inner.existing()?;
    let version = stored.job.version;
    if stored.reported >= version {
        return Ok(());
    }
    if let Some(of) = stored.waits_for_it() {
        let wake = parent::wake(inner.clone(), stored.order.tenant.clone(), of.clone());
        inner.platform.background(wake.boxed_local());
    }
    let (answer, takes_place) = (answer(inner, &stored)?, !stored.is_pipeline());
    let report = Report { answer, takes_place, job: stored.job, changes: stored.changes };
    let lost = |error: FetchError| Error::internal(error);
    let objects = &namespace(&inner.env, TENANT_BINDING)?;
    let name = stored.order.tenant.as_str();
    let (path, deadline, repeat, trace) = ("/jobs/report", REPORT_DEADLINE, Repeat::Harmless, Vec::new());
    let told: Result<()> = Question { objects, name, path, deadline, repeat, lost, trace }.ask(&report, |_| ()).await;
    if let Err(error) = &told {
        inner.complain("the tenant's list did not take a change of a job", error);
    }
    let mut stored = inner.existing()?;
    stored.told(version, told.is_ok(), inner.platform.now_millis());
    inner.save(&stored)
}

/// What is kept for the idempotency key of a job that is over.
fn answer(inner: &Inner, stored: &Stored) -> Result<Option<Answer>> {
    if !stored.job.state.is_over() || !stored.order.holds_key {
        return Ok(None);
    }
    let details = inner.details()?;
    Ok(match &stored.job.error {
        Some(error) => is_kept(Some(error)).then(|| Answer::Error(error.clone().with_details(details))),
        None => Some(match inner.output()? {
            Some(output) => Answer::Output(output),
            None => {
                let message = "the answer was too long to be kept";
                Answer::Error(Error::new(ErrorCode::PayloadTooLarge, message))
            }
        }),
    })
}
