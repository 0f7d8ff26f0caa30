//! The one alarm of a job's object. What is due when is decided in `stored.rs`.

use std::rc::Rc;
use std::time::Duration;

use super::actor::Inner;
use super::stored::{Due, PULSE};
use super::{pipeline, place, run};
use crate::error::{Error, Result};
use crate::platform::Platform;

/// Things done by one alarm; what is left is done by the next.
const MOST_DONE: usize = 8;

/// Sets or clears the alarm. A failure is logged: the next change mends it.
pub(super) async fn arm(inner: &Rc<Inner>) {
    if let Err(error) = rearm(inner).await {
        inner.complain("the alarm of a job could not be set", &error);
    }
}

async fn rearm(inner: &Rc<Inner>) -> Result<()> {
    let now = inner.platform.now_millis();
    let due = inner.load()?.and_then(|stored| stored.alarm());
    // While an attempt is under way the alarm only looks after it.
    let due = due.map(|at| if inner.is_attempting.get() { at.max(now + PULSE) } else { at });
    let storage = inner.state.storage();
    let set = match due {
        Some(at) => storage.set_alarm(Duration::from_millis(u64::try_from(at - now).unwrap_or(0))).await,
        None => storage.delete_alarm().await,
    };
    set.map_err(Error::internal)
}

/// What the alarm does: everything that is due, then the alarm again. It never fails, so the platform never repeats it.
pub(super) async fn run(inner: &Rc<Inner>) {
    if let Err(error) = work(inner).await {
        inner.complain("the alarm of a job failed", &error);
    }
    arm(inner).await;
}

async fn work(inner: &Rc<Inner>) -> Result<()> {
    for _ in 0..MOST_DONE {
        let Some(mut stored) = inner.load()? else { return Ok(()) };
        let now = inner.platform.now_millis();
        let due = stored.due().into_iter().find(|(_, at)| *at <= now).map(|(due, _)| due);
        match due {
            None => return Ok(()),
            Some(Due::Expire) => {
                stored.expire(now)?;
                inner.save(&stored)?;
            }
            Some(Due::Begin) if stored.is_pipeline() => pipeline::attempt(inner, stored).await?,
            Some(Due::Begin) => {
                if let Some(stored) = place::taken(inner, stored).await? {
                    run::attempt(inner, stored).await?;
                }
            }
            Some(Due::Pulse) if inner.is_attempting.get() && !stored.is_overdue(now) => return Ok(()),
            Some(Due::Pulse) if stored.is_pipeline() => pipeline::go_on(inner).await?,
            Some(Due::Pulse) => {
                inner.is_attempting.set(false);
                run::go_on(inner, stored).await?;
            }
            Some(Due::Report) => run::report(inner).await?,
            Some(Due::Forget) => return inner.state.storage().delete_all().await.map_err(Error::internal),
        }
    }
    Ok(())
}
