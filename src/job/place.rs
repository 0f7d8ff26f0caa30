//! The place of a job among those of its tenant that run at once: asked for before an attempt begins.

use std::rc::Rc;
use std::time::Duration;

use super::actor::Inner;
use super::clock;
use super::run::jitter;
use super::state::{Event, State};
use super::stored::Stored;
use crate::error::{Error, ErrorCode, Result};
use crate::fetch_error::Repeat;
use crate::platform::Platform;
use crate::tenant::places::Placing;
use crate::tenant::sweep;
use crate::workers::fetch::FetchError;
use crate::workers::internal::{Question, TENANT_BINDING, namespace};

/// Until the tenant's object says whether there is a place.
const PLACE_DEADLINE: Duration = Duration::from_secs(5);

/// The job once it has a place for its next attempt. Where it has none it asks again by itself, and sooner when it is told to.
pub(super) async fn taken(inner: &Rc<Inner>, stored: Stored) -> Result<Option<Stored>> {
    if stored.has_place(inner.platform.now_millis()) {
        return Ok(Some(stored));
    }
    let (wanted, asks_at) = (stored.wanted(), stored.asks_at);
    let lost = |error: FetchError| Error::internal(error);
    let objects = &namespace(&inner.env, TENANT_BINDING)?;
    let name = stored.order.tenant.as_str();
    let (path, deadline, repeat, trace) = ("/jobs/place", PLACE_DEADLINE, Repeat::Harmless, Vec::new());
    let question = Question { objects, name, path, deadline, repeat, lost, trace };
    let placing: Result<Placing> = question.ask(&wanted, |_| ()).await;
    // It may have been cancelled meanwhile.
    let mut stored = inner.existing()?;
    if stored.job.state != State::Queued || stored.wanted() != wanted {
        return Ok(None);
    }
    let now = inner.platform.now_millis();
    let is_placed = matches!(placing, Ok(Placing::Granted));
    match placing {
        Ok(Placing::Granted) => stored.placed(now),
        // It was told that it may begin while the answer was on its way.
        Ok(Placing::Waits) if asks_at.is_some() && stored.asks_at.is_none() => {}
        Ok(Placing::Waits) => stored.waits(jitter(), sweep::millis_between(&inner.env) * 2 / 3, now),
        Ok(Placing::Over(error)) => {
            let message = "the tenant's list has the job as over";
            stored.end(Event::Fail, Some(error.unwrap_or_else(|| Error::new(ErrorCode::Conflict, message))), now)?;
        }
        Err(error) => {
            inner.complain("a job could not ask for a place", &error);
            stored.asks_soon(jitter(), now);
        }
    }
    inner.save(&stored)?;
    Ok(is_placed.then_some(stored))
}

/// Somebody says that this attempt may begin: where it is still to begin, the alarm looks after it at once. False where there is no job.
pub(super) async fn begin(inner: &Rc<Inner>, attempt: u32) -> Result<bool> {
    let Some(mut stored) = inner.load()? else { return Ok(false) };
    if stored.told_to_begin(attempt) {
        inner.save(&stored)?;
    }
    clock::arm(inner).await;
    Ok(true)
}
