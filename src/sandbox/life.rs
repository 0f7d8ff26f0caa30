//! How a sandbox is created, started, found lost, described and destroyed: the steps of [`super::actor`] that change its record.
//!
//! Steps overlap while they wait for the machine. The record is read and written without awaiting in between, so that each change
//! of it is atomic; a start and a destruction are one shared future each.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use sandbox_api::{HostStart, Metrics, ResourcesReleased};

use super::actor::{Inner, SharedWork, Stored};
use super::change::Changes;
use super::clock::arm;
use super::record::{Create, Described, Destroyed, Record, StartReason, Woken, version_accepted};
use super::secrets::environment_now;
use super::settings::Update;
use super::sleep::{Use, note_use};
use super::state::{Event, State};
use super::transport::{Control, SendError, is_gone};
use crate::error::{Error, ErrorCode, Result};
use crate::platform::Platform;
use crate::tenant::admission::{Origin, StartTold};
use crate::workers::fetch;

/// Until a sandbox that does not run is started, the books of its tenant included.
pub const START_DEADLINE: Duration = Duration::from_secs(30);

/// Until a host answers that it ended a sandbox: many files take a while.
pub const DESTROY_DEADLINE: Duration = Duration::from_secs(40);

/// The same for one that never ran, while its creator waits for the refusal.
const CLEANUP_DEADLINE: Duration = Duration::from_secs(5);

/// Until a running sandbox tells its metrics.
pub const METRICS_DEADLINE: Duration = Duration::from_secs(3);

pub async fn create_and_start(inner: &Rc<Inner>, tenant: String, create: Create) -> Result<Record> {
    if inner.destruction.borrow().is_some() {
        let message = "a sandbox of this name is being destroyed; try again in a moment";
        let error = Error::new(ErrorCode::Conflict, message).detail("reason", "being_destroyed");
        return Err(Error { retryable: true, retry_after: Some(1), ..error });
    }
    let _creation = Creation::begin(inner);
    let is_new = inner.load()?.is_none();
    if is_new {
        // The one of that name which the call found listed may have been removed since.
        inner.tell_tenant(&tenant, "/sandboxes/ensure", &create.listed).await?;
    }
    match inner.load()? {
        Some(stored) => stored.record.accepts(&create)?,
        None => {
            let created_at = create.listed.created_at;
            let temporary = create.listed.origin == Origin::Exec;
            let record = Record::created(create.listed.sandbox_id, create.settings, created_at);
            let record = Record { temporary, git: create.git, ..record };
            inner.save(&Stored { tenant, record, token: None, changes: Changes::default() })?;
        }
    }
    match ensure_running(inner).await {
        // What never ran is not kept, unless the host may hold something of it: then it stays listed, to be tried again
        // or destroyed.
        Err(error) if is_new => {
            let force = error.code == ErrorCode::NotConfigured;
            drop(destroy(inner, force, CLEANUP_DEADLINE).await);
            Err(error)
        }
        result => result,
    }
}

/// One creation that is under way.
struct Creation(Rc<Inner>);

impl Creation {
    fn begin(inner: &Rc<Inner>) -> Self {
        inner.creations.set(inner.creations.get() + 1);
        Self(inner.clone())
    }
}

impl Drop for Creation {
    fn drop(&mut self) {
        self.0.creations.set(self.0.creations.get().saturating_sub(1));
    }
}

/// Starts the sandbox where it does not run. A use like any other.
pub async fn wake(inner: &Rc<Inner>) -> Result<Woken> {
    let _use = Use::begin(inner);
    let before = inner.existing()?.record;
    let record = ensure_running(inner).await?;
    note_use(inner, &record)?;
    Ok(Woken { started: before.state != State::Running || before.boot_id != record.boot_id, record })
}

/// Changes settings. What runs already keeps its environment; what is run next has the new one.
pub async fn update(inner: &Rc<Inner>, update: &Update) -> Result<Record> {
    refuse_while_destroyed(inner)?;
    let now = inner.platform.now_millis();
    let mut stored = existing_in_time(inner)?;
    let record = &mut stored.record;
    let settings = update.applied_to(&record.settings, now)?;
    // A secret that is named again may have another value now.
    let has_other_secrets = settings.secrets != record.settings.secrets || !update.secrets.is_empty();
    if settings.environment() != record.settings.environment() || has_other_secrets {
        record.environment_revision = record.environment_revision.wrapping_add(1);
    }
    record.temporary = record.temporary && !update.adopts();
    record.settings = settings;
    inner.save(&stored)?;
    arm(inner).await;
    inner.report(&stored).await;
    Ok(stored.record)
}

/// Notes that the repository of the creation is there.
pub fn cloned(inner: &Rc<Inner>) -> Result<()> {
    let change = |record: &mut Record| record.git.iter_mut().for_each(|git| git.cloned = true);
    inner.change(change).map(drop)
}

/// The stored sandbox. One whose time is over is not found, and goes.
fn existing_in_time(inner: &Rc<Inner>) -> Result<Stored> {
    let stored = inner.existing()?;
    if stored.record.expired(inner.platform.now_millis()) {
        drop(destroy_shared(inner, false, DESTROY_DEADLINE));
        return Err(Error::new(ErrorCode::NotFound, "the time of the sandbox is over; it is being destroyed"));
    }
    Ok(stored)
}

/// Waits for a stop under way: a start on a machine that is going down would go with it.
pub async fn after_stops(inner: &Rc<Inner>) -> Result<()> {
    loop {
        refuse_while_destroyed(inner)?;
        let stopping = inner.stop.borrow().clone();
        match stopping {
            Some(stopping) => drop(stopping.await),
            None => return Ok(()),
        }
    }
}

/// The record of the running sandbox. What is stored as running is believed until a request shows otherwise.
pub async fn ensure_running(inner: &Rc<Inner>) -> Result<Record> {
    after_stops(inner).await?;
    let stored = existing_in_time(inner)?;
    if stored.record.state == State::Running {
        return Ok(stored.record);
    }
    join(inner, |inner| &inner.start, |inner| async move { start(&inner).await }.boxed_local()).await
}

/// Joins the work in a slot, or begins it there. It goes on for the others although whoever asked leaves.
pub fn join<T: Clone + 'static>(
    inner: &Rc<Inner>,
    slot: fn(&Inner) -> &RefCell<Option<SharedWork<T>>>,
    begin: impl FnOnce(Rc<Inner>) -> LocalBoxFuture<'static, Result<T>>,
) -> SharedWork<T> {
    let running = slot(inner).borrow().clone();
    if let Some(running) = running {
        return running;
    }
    let owner = inner.clone();
    let work = begin(inner.clone());
    let work = async move {
        let result = work.await;
        slot(&owner).borrow_mut().take();
        result
    };
    let shared = work.boxed_local().shared();
    slot(inner).borrow_mut().replace(shared.clone());
    let background = shared.clone();
    inner.platform.background(async move { drop(background.await) }.boxed_local());
    shared
}

pub fn refuse_while_destroyed(inner: &Inner) -> Result<()> {
    if inner.destruction.borrow().is_some() {
        return Err(Error::new(ErrorCode::NotFound, "the sandbox is being destroyed"));
    }
    Ok(())
}

async fn start(inner: &Rc<Inner>) -> Result<Record> {
    let began_at = inner.platform.now_millis();
    let before = inner.existing()?.record.state;
    let stored = inner.transition(Event::Start, |_| ())?;
    arm(inner).await;
    let revision = stored.record.environment_revision;
    let internet = stored.record.settings.internet;
    let prepared = environment_now(inner, &stored).await.and_then(|env| Ok((env, inner.transport(&stored)?)));
    let started = match prepared {
        Ok((env, transport)) => {
            let start = HostStart {
                sandbox_id: stored.record.sandbox_id.to_string(),
                env,
                internet: stored.record.settings.internet,
            };
            transport.start(&start).await.and_then(|started| version_accepted(started.api_version).map(|()| started))
        }
        Err(error) => Err(error),
    };
    let now = inner.platform.now_millis();
    let reason = StartReason::of(before, stored.record.generation);
    let (stored, result) = match started {
        Ok(started) => {
            let stored = inner.transition(Event::Started, |record| {
                record.started(started.boot_id, now, reason, before == State::Starting);
                record.last_used_at = Some(now);
                record.internet_in_force = Some(internet);
                // An update may have come in since the start was asked for.
                if record.environment_revision != revision {
                    record.environment_in_force = None;
                }
            })?;
            (stored.clone(), Ok(stored.record))
        }
        Err(error) => {
            let mut told = error.clone();
            let stored = inner.transition(Event::StartFailed, |record| told = record.start_failed(error))?;
            (stored, Err(told))
        }
    };
    arm(inner).await;
    let error = result.as_ref().err().map(|error| error.code);
    inner.cause.start_ended(now - began_at);
    inner.report_start(&stored, Some(StartTold { reason, duration_ms: now - began_at, error })).await;
    result
}

/// The boot that was thought to run is gone. Does nothing when another start has already replaced it.
pub async fn lost(inner: &Rc<Inner>, boot_id: &str) -> Result<()> {
    let stored = inner.existing()?;
    // Of a sandbox that is being stopped the end is no loss.
    let is_stopped = inner.stop.borrow().is_some();
    if !is_stopped && stored.record.state == State::Running && stored.record.boot_id.as_deref() == Some(boot_id) {
        let stored = inner.transition(Event::Lost, |_| ())?;
        arm(inner).await;
        inner.report(&stored).await;
    }
    Ok(())
}

pub async fn describe(inner: &Rc<Inner>) -> Result<Described> {
    let mut stored = inner.existing()?;
    // What this object remembers is newer than what it stored.
    stored.record.last_used_at = stored.record.last_used_at.max(Some(inner.last_used.get()).filter(|used| *used > 0));
    let last_used_at = stored.record.last_used_at;
    let Some(boot_id) = stored.record.boot_id.clone().filter(|_| stored.record.state == State::Running) else {
        return Ok(Described { record: stored.record, metrics: None });
    };
    let control = Control {
        method: "GET",
        path: "/v1/metrics",
        headers: Vec::new(),
        body: None,
        boot_id: &boot_id,
        deadline: METRICS_DEADLINE,
    };
    let metrics = match inner.transport(&stored)?.control(control).await {
        Ok(response) => {
            let text = fetch::text(&response, 64 * 1024, METRICS_DEADLINE).await;
            text.ok().and_then(|text| serde_json::from_str::<Metrics>(&text).ok())
        }
        Err(SendError::Refused(refusal, _)) if is_gone(refusal.code) => {
            lost(inner, &boot_id).await?;
            None
        }
        Err(_) => None,
    };
    let record = inner.existing()?.record;
    Ok(Described { record: Record { last_used_at: record.last_used_at.max(last_used_at), ..record }, metrics })
}

pub async fn destroy(inner: &Rc<Inner>, force: bool, patience: Duration) -> Result<Destroyed> {
    destroy_shared(inner, force, patience).await
}

/// The same, begun at once; whoever asks may leave.
pub fn destroy_shared(inner: &Rc<Inner>, force: bool, patience: Duration) -> SharedWork<Destroyed> {
    join(inner, |inner| &inner.destruction, |inner| async move { end(&inner, force, patience).await }.boxed_local())
}

async fn end(inner: &Rc<Inner>, force: bool, patience: Duration) -> Result<Destroyed> {
    let now = inner.platform.now_millis();
    let Some(stored) = inner.load()? else {
        return Ok(Destroyed { destroyed_at: now, released: ResourcesReleased::default() });
    };
    // A start under way would outlive the sandbox: it ends first, whatever comes of it.
    let starting = inner.start.borrow().clone();
    if let Some(starting) = starting {
        drop(starting.await);
    }
    let stopping = inner.stop.borrow().clone();
    if let Some(stopping) = stopping {
        drop(stopping.await);
    }
    let ended = match inner.transport(&stored) {
        Ok(transport) => transport.destroy(patience).await,
        Err(error) => Err(error),
    };
    let released = match ended {
        Ok(released) => released,
        Err(_) if force => ResourcesReleased::default(),
        Err(error) => return Err(error),
    };
    // What came before its end is told before it, as far as that can be.
    if let Some(stored) = inner.load()?.filter(|stored| !stored.changes.untold().is_empty()) {
        inner.report(&stored).await;
    }
    // The list first: a sandbox that is listed and gone is mended by the next destruction, the reverse never.
    inner.tell_tenant(&stored.tenant, "/sandboxes/remove", &stored.record.sandbox_id).await?;
    // Platforms differ in whether the alarm goes with everything else.
    inner.state.storage().delete_alarm().await.map_err(Error::internal)?;
    inner.erase().await?;
    inner.last_used.set(0);
    inner.alarm.set(None);
    Ok(Destroyed { destroyed_at: now, released })
}
