//! One attempt of a job, and what the tenant's list is told.

use std::rc::Rc;
use std::time::Duration;

use futures_util::FutureExt;
use serde_json::json;

use super::actor::Inner;
use super::clock;
use super::record::{Report, Stored};
use crate::api::rest;
use crate::call::{Answered, Attempt, Reply};
use crate::error::{Error, ErrorCode, Result};
use crate::events::NoEvents;
use crate::fetch_error::Repeat;
use crate::platform::Platform;
use crate::tenant::idempotency::{Answer, is_kept};
use crate::trace::Trace;
use crate::workers::backend::WorkersBackend;
use crate::workers::fetch::FetchError;
use crate::workers::internal::{Question, TENANT_BINDING, namespace};
use crate::workers::platform::random;

/// Until the tenant's object has taken a report.
const REPORT_DEADLINE: Duration = Duration::from_secs(5);

/// Carries the call out. That it begins is stored before it does, so that no other attempt begins, whatever becomes of this one.
pub(super) async fn attempt(inner: &Rc<Inner>, mut stored: Stored) -> Result<()> {
    let shared = rest::shared()?;
    stored.begin(inner.platform.now_millis())?;
    inner.save(&stored)?;
    inner.is_attempting.set(true);
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
        trace,
    });
    let answered = match attempt {
        Ok(attempt) => shared.registry.attempt(&backend, attempt, Rc::new(NoEvents)).await,
        Err(error) => Answered { result: Err(error), standing: None, is_replayed: false, has_begun: false },
    };
    inner.is_attempting.set(false);
    let now = inner.platform.now_millis();
    let mut stored = inner.existing()?;
    let result = match answered.result {
        Err(mut error) => {
            inner.keep_details(&json!(std::mem::take(&mut error.details)))?;
            Err(error)
        }
        output => output,
    };
    match result {
        Ok(Reply::Output(output)) => {
            let exit_code = output.get("exitCode").and_then(serde_json::Value::as_i64);
            inner.keep_output(&output)?;
            stored.ended(None, exit_code.and_then(|code| i32::try_from(code).ok()), now)?;
        }
        Ok(Reply::Job(_)) => stored.ended(Some(Error::internal("an attempt became a job")), None, now)?,
        Err(error) if answered.has_begun => stored.ended(Some(error), None, now)?,
        Err(error) => stored.not_begun(error, now)?,
    }
    inner.save(&stored)
}

/// Tells the tenant's list how the job stands, unless it knows. One that cannot be reached is told later.
pub(super) async fn report(inner: &Rc<Inner>) -> Result<()> {
    let stored = inner.existing()?;
    let version = stored.job.version;
    if stored.reported >= version {
        return Ok(());
    }
    let report = Report { answer: answer(inner, &stored)?, job: stored.job };
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
