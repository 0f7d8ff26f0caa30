//! The one alarm of a job's object. What is due when is decided in `stored.rs`.

use std::rc::Rc;
use std::time::Duration;

use super::actor::Inner;
use super::stored::{Due, LONGEST_ATTEMPT, PULSE};
use super::{pipeline, place, run};
use crate::error::{Error, Result};
use crate::platform::Platform;
use crate::workers::backend::configured;

/// How long one alarm looks after an attempt at most.
const ALARM_TIME: Duration = Duration::from_millis(LONGEST_ATTEMPT.unsigned_abs());

/// Things done by one alarm; what is left is done by the next.
const MOST_DONE: usize = 8;

/// Until an alarm leaves an attempt to the next one. `JOB_ALARM_SECONDS` shortens it, for tests.
pub(super) fn alarm_time(inner: &Inner) -> Duration {
    let seconds = configured(&inner.env, "JOB_ALARM_SECONDS").and_then(|text| text.parse().ok());
    seconds.map_or(ALARM_TIME, |seconds: u64| Duration::from_secs(seconds.max(1))).min(ALARM_TIME)
}

/// Sets or clears the alarm. A failure is logged: the next change mends it.
pub(super) async fn arm(inner: &Rc<Inner>) {
    if let Err(error) = rearm(inner, 0).await {
        inner.complain("the alarm of a job could not be set", &error);
    }
}

async fn rearm(inner: &Rc<Inner>, not_before: i64) -> Result<()> {
    let now = inner.platform.now_millis();
    let due = inner.load()?.and_then(|stored| stored.alarm());
    // While an attempt is under way the alarm only looks after it.
    let due = due.map(|at| if inner.is_attempting.get() { at.max(now + PULSE) } else { at.max(not_before) });
    let storage = inner.state.storage();
    let set = match due {
        Some(at) => storage.set_alarm(Duration::from_millis(u64::try_from(at - now).unwrap_or(0))).await,
        None => storage.delete_alarm().await,
    };
    set.map_err(Error::internal)
}

/// What the alarm does: everything that is due, then the alarm again. After a failure it is a while until that. It fails where the alarm
/// could not be set, so that the platform repeats it: nothing else would.
pub(super) async fn run(inner: &Rc<Inner>) -> Result<()> {
    let done = work(inner).await;
    let not_before = if done.is_ok() { 0 } else { inner.platform.now_millis() + PULSE };
    if let Err(error) = done {
        inner.complain("the alarm of a job failed", &error);
    }
    let set = rearm(inner, not_before).await;
    if let Err(error) = &set {
        inner.complain("the alarm of a job could not be set", error);
    }
    set
}

async fn work(inner: &Rc<Inner>) -> Result<()> {
    for _ in 0..MOST_DONE {
        let Some(mut stored) = inner.load()? else { return Ok(()) };
        let now = inner.platform.now_millis();
        let due = stored.due().into_iter().find(|(_, at)| *at <= now).map(|(due, _)| due);
        let has_time = match due {
            None => return Ok(()),
            Some(Due::Expire) => {
                stored.expire(now)?;
                inner.save(&stored)?;
                true
            }
            Some(Due::Begin) if stored.is_pipeline() => pipeline::attempt(inner, stored).await?,
            Some(Due::Begin) => match place::taken(inner, stored).await? {
                Some(stored) => run::attempt(inner, stored).await?,
                None => true,
            },
            Some(Due::Pulse) if inner.is_attempting.get() && !stored.is_overdue(now) => return Ok(()),
            Some(Due::Pulse) if stored.is_pipeline() => pipeline::go_on(inner).await?,
            Some(Due::Pulse) => {
                inner.is_attempting.set(false);
                run::go_on(inner, stored).await?
            }
            Some(Due::Report) => {
                run::report(inner).await?;
                true
            }
            Some(Due::Forget) => return inner.state.storage().delete_all().await.map_err(Error::internal),
        };
        if !has_time {
            return Ok(());
        }
    }
    Ok(())
}
