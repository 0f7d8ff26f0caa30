//! What the tenant's sweep asks of an object: whether what is listed is so. It mends what a lost memory or a lost report left.

use std::rc::Rc;
use std::time::Duration;

use futures_util::FutureExt;
use sandbox_api::ResourcesReleased;

use super::actor::{Inner, Stored};
use super::change::Changes;
use super::clock::arm;
use super::life::{DESTROY_DEADLINE, destroy_shared, join, lost};
use super::record::{Destroyed, Record, StartReason};
use super::state::{Event, State};
use super::transport::Transport;
use crate::error::Result;
use crate::identifier::SandboxId;
use crate::platform::Platform;

/// Until a machine has removed what it may hold of a sandbox that nobody knows.
const CLEANUP_DEADLINE: Duration = Duration::from_secs(5);

/// What the tenant's sweep is told.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind", content = "record")]
pub enum Finding {
    /// It is there, and the list was told of its state.
    Known,
    /// It is being created or destroyed.
    Changing,
    /// There is none, and the machine holds nothing of it.
    Unknown,
}

/// Compares what is stored with what runs.
pub async fn reconcile(inner: &Rc<Inner>, tenant: String, sandbox_id: SandboxId) -> Result<Finding> {
    let changing = inner.creations.get() > 0
        || inner.destruction.borrow().is_some()
        || inner.start.borrow().is_some()
        || inner.stop.borrow().is_some();
    if changing {
        return Ok(Finding::Changing);
    }
    let Some(stored) = inner.load()? else {
        // Nobody can create it meanwhile: a creation waits for a destruction.
        let clean = |inner: Rc<Inner>| async move { clean_up(&inner, tenant, sandbox_id).await }.boxed_local();
        join(inner, |inner| &inner.destruction, clean).await?;
        return Ok(Finding::Unknown);
    };
    if stored.record.expired(inner.platform.now_millis()) {
        drop(destroy_shared(inner, false, DESTROY_DEADLINE));
        return Ok(Finding::Changing);
    }
    match stored.record.state {
        State::Starting => settle_start(inner).await?,
        State::Running => {
            let boot_id = stored.record.boot_id.clone().unwrap_or_default();
            let runs = inner.transport(&stored)?.running().await?;
            if runs.is_none_or(|boot| boot.boot_id != boot_id) {
                lost(inner, &boot_id).await?;
            }
        }
        _ => {}
    }
    arm(inner).await;
    inner.report(&inner.existing()?).await;
    Ok(Finding::Known)
}

/// Ends a start that nobody waits for any more: it runs, or it has failed.
pub async fn settle_start(inner: &Rc<Inner>) -> Result<()> {
    let Some(stored) = inner.load()? else { return Ok(()) };
    if stored.record.state != State::Starting || inner.start.borrow().is_some() {
        return Ok(());
    }
    let transport = inner.transport(&stored)?;
    let boot = match transport.running().await {
        // A container that does not answer by now was never used and will not be ready; a host may only be away.
        Err(_) if !transport.keeps_files() => None,
        boot => boot?,
    };
    // Somebody may have begun another start while the machine was asked.
    if inner.start.borrow().is_some() || inner.existing()?.record.state != State::Starting {
        return Ok(());
    }
    let now = inner.platform.now_millis();
    let stored = match boot {
        Some(boot) => inner.transition(Event::Started, |record| {
            let reason = StartReason::of(State::Starting, record.generation);
            record.started(boot.boot_id, now, reason, true);
        })?,
        None => {
            transport.abandon();
            inner.transition(Event::StartFailed, |_| ())?
        }
    };
    arm(inner).await;
    inner.report(&stored).await;
    Ok(())
}

async fn clean_up(inner: &Rc<Inner>, tenant: String, sandbox_id: SandboxId) -> Result<Destroyed> {
    let now = inner.platform.now_millis();
    let record = Record::created(sandbox_id, super::settings::Settings::default(), now);
    let transport = Transport::of(inner, &Stored { tenant, record, token: None, changes: Changes::default() });
    let released = match transport {
        Ok(transport) => transport.destroy(CLEANUP_DEADLINE).await?,
        Err(_) => ResourcesReleased::default(),
    };
    Ok(Destroyed { destroyed_at: now, released })
}
