//! How a sandbox stops, on request or because nobody uses it, and what counts as use.
//!
//! A stop is one shared future like a start. Whoever needs the sandbox meanwhile waits for it and then starts the sandbox anew, so a
//! command right after a stop runs, and never on a machine that is going down. Whether nobody uses it is asked of its daemon, which
//! knows of every command and stream also when this object has lost its memory.

use std::rc::Rc;
use std::time::Duration;

use futures_util::FutureExt;
use sandbox_api::{Activity, ControlErrorCode, Environment};
use wasm_bindgen::JsValue;

use super::actor::{Inner, Stored};
use super::clock::arm;
use super::life::{self, DESTROY_DEADLINE, join, lost, refuse_while_destroyed};
use super::record::{Record, Stopped};
use super::secrets::environment_now;
use super::state::{Event, State};
use super::timers::idle_due;
use super::transport::{Control, SendError, is_gone};
use crate::error::{Error, ErrorCode, Result};
use crate::platform::Platform;
use crate::workers::fetch;

/// Until a machine answers that it ended the processes of a sandbox.
const STOP_DEADLINE: Duration = Duration::from_secs(20);

/// Until a daemon says whether it is used, or takes an environment.
const ACTIVITY_DEADLINE: Duration = Duration::from_secs(3);

/// Failures after which a daemon that does not say whether it is used is stopped all the same.
const PATIENT_ATTEMPTS: u32 = 3;

/// How old the stored time of the last use may be, in milliseconds.
const LAST_USE_GRAIN: i64 = 60_000;

/// What became of a stop.
#[derive(Clone)]
pub enum Halt {
    Stopped(Box<Stopped>),
    /// It is used.
    Busy,
    /// Nobody uses it, and it is one that goes then.
    Destroying,
}

/// One request that uses the sandbox; while there is one it does not sleep.
pub struct Use(Rc<Inner>);

impl Use {
    pub fn begin(inner: &Rc<Inner>) -> Self {
        inner.in_flight.set(inner.in_flight.get() + 1);
        inner.last_used.set(inner.platform.now_millis());
        Self(inner.clone())
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.0.in_flight.set(self.0.in_flight.get().saturating_sub(1));
        self.0.last_used.set(self.0.platform.now_millis());
    }
}

/// Stores the time of the last use now and then, and tells the tenant's list.
pub fn note_use(inner: &Rc<Inner>, record: &Record) -> Result<()> {
    let now = inner.platform.now_millis();
    if now - record.last_use() < LAST_USE_GRAIN {
        return Ok(());
    }
    let stored = inner.change(|record| record.last_used_at = Some(now))?;
    let told = inner.clone();
    inner.platform.background(async move { told.report(&stored).await }.boxed_local());
    Ok(())
}

/// Stops the sandbox on request. One that does not run is left as it is.
pub async fn stop(inner: &Rc<Inner>) -> Result<Stopped> {
    loop {
        refuse_while_destroyed(inner)?;
        let starting = inner.start.borrow().clone();
        if let Some(starting) = starting {
            drop(starting.await);
            continue;
        }
        let stopping = inner.stop.borrow().clone();
        let result = match stopping {
            Some(stopping) => stopping.await,
            None => join(inner, |inner| &inner.stop, |inner| async move { halt(&inner).await }.boxed_local()).await,
        };
        match result? {
            Halt::Stopped(stopped) => return Ok(*stopped),
            // It was only asked whether it is used.
            Halt::Busy | Halt::Destroying => {}
        }
    }
}

async fn halt(inner: &Rc<Inner>) -> Result<Halt> {
    let stored = inner.existing()?;
    let transport = inner.transport(&stored)?;
    let files_kept = transport.keeps_files();
    if matches!(stored.record.state, State::Created | State::Sleeping) {
        return Ok(Halt::Stopped(Box::new(Stopped { record: stored.record, processes: 0, files_kept })));
    }
    let processes = transport.stop(STOP_DEADLINE).await?;
    let used = inner.last_used.get();
    let stored = inner.transition(Event::Stopped, |record| {
        record.last_used_at = record.last_used_at.max((used > 0).then_some(used));
    })?;
    arm(inner).await;
    inner.report(&stored).await;
    Ok(Halt::Stopped(Box::new(Stopped { record: stored.record, processes, files_kept })))
}

/// Puts the sandbox to sleep, or destroys it, when nobody has used it for long enough. `attempt` counts failures to find out.
pub async fn sleep_if_idle(inner: &Rc<Inner>, attempt: u32) -> Result<()> {
    let Some(stored) = inner.load()? else { return Ok(()) };
    let now = inner.platform.now_millis();
    if inner.destruction.borrow().is_some() {
        return life::destroy(inner, false, DESTROY_DEADLINE).await.map(drop);
    }
    let in_use = inner.in_flight.get() > 0 || inner.start.borrow().is_some() || inner.stop.borrow().is_some();
    let used = if in_use { now } else { inner.last_used.get() };
    let stored =
        if used > stored.record.last_use() { inner.change(|record| record.last_used_at = Some(used))? } else { stored };
    if in_use || idle_due(&stored.record).is_none_or(|due| due > now) {
        return Ok(());
    }
    let quiet = |inner: Rc<Inner>| async move { halt_if_idle(&inner, attempt).await }.boxed_local();
    match join(inner, |inner| &inner.stop, quiet).await? {
        Halt::Stopped(_) | Halt::Busy => Ok(()),
        Halt::Destroying => life::destroy(inner, false, DESTROY_DEADLINE).await.map(drop),
    }
}

async fn halt_if_idle(inner: &Rc<Inner>, attempt: u32) -> Result<Halt> {
    let stored = inner.existing()?;
    if stored.record.state == State::Running {
        let idle = match idle_milliseconds(inner, &stored).await {
            Ok(idle) => idle,
            Err(_) if attempt >= PATIENT_ATTEMPTS => None,
            Err(error) => return Err(error),
        };
        let now = inner.platform.now_millis();
        if let Some(idle) = idle {
            let used = now.saturating_sub(i64::try_from(idle).unwrap_or(i64::MAX));
            let stored = inner.change(|record| record.last_used_at = record.last_used_at.max(Some(used)))?;
            if idle_due(&stored.record).is_none_or(|due| due > now) {
                return Ok(Halt::Busy);
            }
        }
    }
    if inner.existing()?.record.temporary {
        // Begun before anybody who waits for this can start it again.
        drop(life::destroy_shared(inner, false, DESTROY_DEADLINE));
        return Ok(Halt::Destroying);
    }
    halt(inner).await
}

/// Milliseconds for which the running boot was not used; `None` when it is gone.
async fn idle_milliseconds(inner: &Rc<Inner>, stored: &Stored) -> Result<Option<u64>> {
    let boot_id = stored.record.boot_id.clone().unwrap_or_default();
    let control = Control {
        method: "GET",
        path: "/v1/activity",
        headers: Vec::new(),
        body: None,
        boot_id: &boot_id,
        deadline: ACTIVITY_DEADLINE,
    };
    let unanswered = |cause: String| {
        Error::new(ErrorCode::SandboxUnavailable, "the sandbox did not say whether it is used").because(cause)
    };
    match inner.transport(stored)?.control(control).await {
        Ok(response) => {
            let text = fetch::text(&response, 64 * 1024, ACTIVITY_DEADLINE).await;
            let text = text.map_err(|error| unanswered(error.to_string()))?;
            let activity: Activity = serde_json::from_str(&text).map_err(|error| unanswered(error.to_string()))?;
            Ok(Some(activity.idle_ms))
        }
        Err(SendError::Refused(refusal, _)) if is_gone(refusal.code) => Ok(None),
        // A daemon of an earlier release: what this object saw has to do.
        Err(SendError::Refused(refusal, _)) if refusal.code == ControlErrorCode::NotFound => Ok(None),
        Err(SendError::Refused(refusal, _)) => Err(unanswered(refusal.message)),
        Err(SendError::Lost(error)) => Err(unanswered(error.to_string())),
    }
}

/// Gives the running boot the environment that holds now, where it has another. Nothing is run in between: the request that needs
/// it waits.
pub async fn renew_environment(inner: &Rc<Inner>, record: &Record) -> Result<()> {
    let revision = record.environment_revision;
    if record.environment_in_force == Some(revision) {
        return Ok(());
    }
    let stored = inner.existing()?;
    let boot_id = record.boot_id.clone().unwrap_or_default();
    let body =
        serde_json::to_string(&Environment { env: environment_now(inner, &stored).await? }).map_err(Error::internal)?;
    let control = Control {
        method: "PUT",
        path: "/v1/environment",
        headers: Vec::new(),
        body: Some(JsValue::from(body)),
        boot_id: &boot_id,
        deadline: ACTIVITY_DEADLINE,
    };
    let transport = inner.transport(&stored)?;
    match transport.control(control).await {
        Ok(_) => inner
            .change(|record| {
                if record.boot_id.as_deref() == Some(boot_id.as_str()) {
                    record.environment_in_force = Some(revision);
                }
            })
            .map(drop),
        // The request itself finds out, and starts it with the right environment.
        Err(SendError::Refused(refusal, _)) if is_gone(refusal.code) => lost(inner, &boot_id).await,
        Err(SendError::Refused(refusal, _)) => Err(transport.refused(refusal)),
        Err(SendError::Lost(error)) => {
            let message = "the sandbox did not take its new environment; nothing was run";
            Err(Error::new(ErrorCode::SandboxUnavailable, message)
                .detail("reason", "sandbox_unresponsive")
                .because(error))
        }
    }
}
