//! Callers that end a call of theirs from another connection, and keys that end while a call of theirs is under way.
//!
//! ```text
//!  cancel ─▶ the tenant's object: the one open call of that mark, noted as unwanted
//!                 │
//!                 ├─ a command: killed in its sandbox, where that runs; its call tells how it ended
//!                 ├─ a job that its caller waits for: cancelled
//!                 └─ anything else that tells events, or a command that comes later: sees the note as its next event is due,
//!                    and ends as it does when its reader leaves
//! ```
//!
//! A call whose key was revoked or has expired ends at its next event in the same way, and is answered with `unauthenticated`.
//! What ends by itself meanwhile has ended as it did. The books tell what the call saw.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use serde_json::json;

use super::{Answered, Backend, CallHead, millis};
use crate::error::{Error, ErrorCode, Result};
use crate::events::{Channel, Event, EventSink, Process, ReaderGone};
use crate::identifier::SandboxId;
use crate::job::record::{Cancellation, KILLED};
use crate::platform::Platform;
use crate::registry::Registry;
use crate::sandbox::exec;
use crate::sandbox::state::State;
use crate::services::{Jobs, Sandboxes, Tenant};
use crate::tenant::credential::{Credential, Principal};
use crate::tenant::marks::{CancelRequest, Marked, Wanted, WantedRequest};

/// `reason` in the error of a call that its caller ended.
pub const CANCELLED: &str = "cancelled";

/// Between two looks at whether a call is wanted. The events of a silent call are further apart.
const LOOK: Duration = Duration::from_secs(4);

/// Between two looks at whether the key of a call that nobody can cancel so is still one.
const KEY_LOOK: Duration = Duration::from_secs(10);

/// Questions to a job's object that does not know its job yet, and the pause between two of them.
const ATTEMPTS: u32 = 10;
const PAUSE: Duration = Duration::from_millis(300);

impl Registry {
    /// Ends the one open call that the same caller made under the mark of `head`. Where there is none, or more than one, nothing happens.
    pub async fn cancel(&self, backend: &dyn Backend, head: &CallHead) -> Result<()> {
        let principal = self.authenticate(backend, head)?;
        let Some(digest) = head.mark.clone() else { return Ok(()) };
        let platform = backend.platform();
        let at = platform.now_millis();
        let (tenant, key_id) = (principal.tenant.clone(), principal.key_id.clone());
        let marked = backend.tenant(&tenant).cancel(CancelRequest { principal, digest, at }).await?;
        let end = match marked {
            Marked::Nothing | Marked::Call { sandbox_id: None, .. } => return Ok(()),
            Marked::Call { call_id, sandbox_id: Some(sandbox_id) } => {
                end_command(backend.sandboxes(&tenant), sandbox_id, call_id).boxed_local()
            }
            Marked::Job { job_id } => {
                let wish = Cancellation { key_id, call_id: head.id.clone(), at };
                end_job(backend.jobs(&tenant), platform.clone(), job_id, wish).boxed_local()
            }
        };
        let (log, id) = (platform.clone(), head.id.clone());
        let told = async move {
            if let Err(error) = end.await {
                let line = json!({
                    "level": "warn",
                    "requestId": id,
                    "message": "a cancelled call was not seen to end",
                    "error": error.message,
                    "source": error.cause,
                });
                log.log(&line);
            }
        };
        platform.background(told.boxed_local());
        Ok(())
    }
}

/// Kills the command of a call in the boot that runs; none is started for that.
async fn end_command(sandboxes: Rc<dyn Sandboxes>, sandbox_id: SandboxId, call_id: String) -> Result<()> {
    // Whether it answered in time says nothing: one that is busy has something to be killed.
    let record = sandboxes.describe(&sandbox_id).await.ok().map(|described| described.record);
    let running = record.filter(|record| record.state == State::Running).and_then(|record| record.boot_id);
    let Some(boot_id) = running else { return Ok(()) };
    match exec::kill(&*sandboxes, &Process { sandbox_id, boot_id }, &call_id).await {
        // There is no such command: not yet, not any more, or never.
        Err(error) if matches!(error.code, ErrorCode::NotFound | ErrorCode::StaleGeneration) => Ok(()),
        killed => killed,
    }
}

/// Cancels a job, which may be on its way to its object.
async fn end_job(jobs: Rc<dyn Jobs>, platform: Rc<dyn Platform>, job_id: String, wish: Cancellation) -> Result<()> {
    for _ in 0..ATTEMPTS {
        match jobs.cancel(&job_id, &wish).await {
            Err(error) if error.code == ErrorCode::NotFound => platform.sleep(PAUSE).await,
            // It is over, or of a tool that cannot be ended under way.
            Err(error) if error.code == ErrorCode::Conflict => return Ok(()),
            told => return told.map(drop),
        }
    }
    Ok(())
}

/// Passes events on until the caller of the call wants it to end or its key has ended: then its reader has left, for whatever tells
/// them.
pub(super) struct Cancellable {
    inner: Rc<dyn EventSink>,
    tenant: Rc<dyn Tenant>,
    platform: Rc<dyn Platform>,
    call_id: String,
    key_id: String,
    /// Whether its caller may end it from another connection.
    is_marked: bool,
    looked_at: Cell<i64>,
    wanted: RefCell<Wanted>,
}

impl Cancellable {
    /// Around the events of an ordinary call; nothing where there is nothing to look at.
    pub(super) fn around(
        inner: &Rc<dyn EventSink>,
        backend: &dyn Backend,
        head: &CallHead,
        who: &Principal,
    ) -> Option<Self> {
        let is_marked = head.mark.is_some();
        if !is_marked && who.credential == Credential::Root {
            return None;
        }
        let platform = backend.platform();
        Some(Self {
            inner: inner.clone(),
            tenant: backend.tenant(&who.tenant),
            looked_at: Cell::new(platform.now_millis()),
            platform,
            call_id: head.id.clone(),
            key_id: who.key_id.clone(),
            is_marked,
            wanted: RefCell::new(Wanted::Still),
        })
    }

    /// The same answer, which says of a call that was ended for its caller, or with its key, that it was.
    pub(super) fn told<A>(&self, answered: Answered<A>) -> Answered<A> {
        let result = answered.result.map_err(|error| {
            if error.code != ErrorCode::Interrupted {
                return error;
            }
            // Nobody else kills the command of a marked call that is no job.
            let was_killed = error.details.get("reason").is_some_and(|reason| reason == KILLED);
            match &*self.wanted.borrow() {
                // Whoever has the key now is told nothing more.
                Wanted::KeyEnded(ended) => {
                    let message = format!("{}, and the call that was under way was ended", ended.message);
                    Error::new(ErrorCode::Unauthenticated, message).because(error.message)
                }
                wanted if *wanted == Wanted::Cancelled || (was_killed && self.is_marked) => {
                    let message = "the caller cancelled the call, and it was ended";
                    let cancelled = Error { details: error.details, ..Error::new(ErrorCode::Interrupted, message) };
                    cancelled.detail("reason", CANCELLED).because(error.message)
                }
                _ => error,
            }
        });
        Answered { result, ..answered }
    }

    async fn look(&self) {
        let now = self.platform.now_millis();
        let pause = if self.is_marked { LOOK } else { KEY_LOOK };
        if now - self.looked_at.get() < millis(pause) {
            return;
        }
        self.looked_at.set(now);
        let request = WantedRequest { call_id: self.call_id.clone(), key_id: self.key_id.clone(), at: now };
        // Who cannot be asked is asked again later.
        if let Ok(wanted) = self.tenant.wanted(request).await {
            self.wanted.replace(wanted);
        }
    }
}

impl EventSink for Cancellable {
    fn streams(&self) -> bool {
        self.inner.streams()
    }

    fn emit(&self, event: Event) -> LocalBoxFuture<'_, Result<(), ReaderGone>> {
        async move {
            self.look().await;
            let is_wanted = *self.wanted.borrow() == Wanted::Still;
            if is_wanted { self.inner.emit(event).await } else { Err(ReaderGone) }
        }
        .boxed_local()
    }

    fn takes(&self, channel: Channel, end: u64) {
        self.inner.takes(channel, end);
    }

    fn runs_as(&self, process: &Process) {
        self.inner.runs_as(process);
    }

    fn bytes(&self) -> u64 {
        self.inner.bytes()
    }
}
