//! The sandboxes of this host.
//!
//! ```text
//!   absent ── PUT ──► running ── process exits ──► absent (workspace kept)
//!                        ├────── stop ───────────► absent (workspace kept)
//!                        └────── DELETE ─────────► absent (workspace removed)
//! ```
//!
//! Starting, stopping and deleting take the name's own lock, so of fifty starts at once one starts and the others find it running.

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Body;
use http_body_util::BodyExt;
use hyper::Request;
use sandbox_api::{
    ControlErrorCode, Health, HostHealth, HostSandbox, HostStart, HostStopped, NetworkIsolation, ResourcesReleased,
};
use tokio::process::Child;
use tokio::sync::watch;

use super::groups::{ControlGroups, Group};
use super::identity::{Identities, is_of_sandbox};
use super::launch::{Launcher, Start};
use super::layout::Layout;
use super::network::Uplink;
use super::proxy::Proxy;
use super::remove;
use crate::cli::IsolationKind;
use crate::http::{Problem, Token};
use crate::serve::{Credentials, descendants, kill_all, send};

/// How long a daemon may take to its first answer: less than the Worker waits for a start, so that the host tells why it failed.
const START_PATIENCE: Duration = Duration::from_secs(20);
/// How long a daemon may take to end, before and after the last resort.
const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// All sandboxes, and what they are made with.
pub(super) struct Sandboxes {
    launcher: Launcher,
    layout: Arc<Layout>,
    identities: Identities,
    limit: usize,
    running: Arc<AtomicUsize>,
    /// Of the next start: its socket and its control group are named so.
    next_number: AtomicU64,
    slots: Mutex<HashMap<String, Arc<Slot>>>,
}

/// One name.
#[derive(Default)]
struct Slot {
    /// Held while it is started or deleted.
    change: tokio::sync::Mutex<()>,
    running: Mutex<Option<Arc<Running>>>,
}

/// One running sandbox.
pub(super) struct Running {
    pub(super) boot_id: String,
    api_version: u32,
    pub(super) proxy: Proxy,
    /// The process that the host started: bubblewrap, or the daemon itself.
    process: i32,
    /// Whether its end was seen, and only what it left is still being removed: its number may be another's.
    reaped: Arc<AtomicBool>,
    exited: watch::Receiver<bool>,
    group: Option<Arc<Group>>,
    /// Its way out, which ends with it.
    _uplink: Option<Uplink>,
}

impl Slot {
    /// Never held across an await, and valid at every moment.
    fn running(&self) -> MutexGuard<'_, Option<Arc<Running>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes away the one that ended. Another start of that name may have put its own there.
    fn clear(&self, ended: &watch::Receiver<bool>) {
        let mut running = self.running();
        if running.as_ref().is_some_and(|running| running.exited.same_channel(ended)) {
            *running = None;
        }
    }
}

impl Running {
    fn describe(&self, name: &str, started: bool) -> HostSandbox {
        HostSandbox { name: name.into(), boot_id: self.boot_id.clone(), api_version: self.api_version, started }
    }

    /// Waits until the process is gone; returns whether it is.
    async fn exits_within(&self, patience: Duration) -> bool {
        let mut exited = self.exited.clone();
        tokio::time::timeout(patience, exited.wait_for(|exited| *exited)).await.is_ok_and(|result| result.is_ok())
    }
}

impl Sandboxes {
    pub(super) fn new(launcher: Launcher, layout: Layout, limit: usize) -> Self {
        let layout = Arc::new(layout);
        let identities = Identities::new(layout.owners().unwrap_or_default());
        let trash = layout.clone();
        tokio::task::spawn_blocking(move || {
            if let Err(cause) = trash.empty_trash() {
                tracing::warn!(%cause, "what an earlier host left could not be removed");
            }
        });
        Self {
            launcher,
            layout,
            identities,
            limit,
            running: Arc::default(),
            next_number: AtomicU64::new(0),
            slots: Mutex::default(),
        }
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<String, Arc<Slot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn health(&self) -> HostHealth {
        let reach = self.launcher.reach(true);
        HostHealth {
            status: "ok".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            api_version: sandbox_api::API_VERSION,
            sandboxes: self.running.load(Ordering::Relaxed) as u64,
            isolation: self.launcher.isolation(reach.unwrap_or(NetworkIsolation::None)),
            limits: self.launcher.limits().clone(),
            no_internet: reach.err().map(str::to_owned),
            no_control_groups: self.launcher.groups().missing(),
        }
    }

    /// The running sandbox of that name.
    pub(super) fn get(&self, name: &str) -> Result<Arc<Running>, Problem> {
        self.slots().get(name).and_then(|slot| slot.running().clone()).ok_or_else(not_running)
    }

    pub(super) fn describe(&self, name: &str) -> Result<HostSandbox, Problem> {
        Ok(self.get(name)?.describe(name, false))
    }

    /// Starts the sandbox, or finds it running.
    pub(super) async fn start(&self, name: &str, request: &HostStart) -> Result<HostSandbox, Problem> {
        let slot = self.slots().entry(name.to_owned()).or_default().clone();
        let change = slot.change.lock().await;
        let found = slot.running().clone();
        let result = async {
            if let Some(running) = found {
                if !running.proxy.is_deserted().await {
                    return Ok((running, false));
                }
                // Its end is on the way to being noticed, and the next start must not begin beside what is left of it.
                self.end(&running).await?;
            }
            self.boot(name, request, &slot).await.map(|running| (running, true))
        };
        let result = result.await;
        drop(change);
        self.forget(name, slot);
        result.map(|(running, started)| running.describe(name, started))
    }

    /// Drops the entry of a name that nothing runs under and nobody else is about to change.
    fn forget(&self, name: &str, slot: Arc<Slot>) {
        let mut slots = self.slots();
        // The map's own handle and this one.
        if Arc::strong_count(&slot) == 2 && slot.running().is_none() {
            slots.remove(name);
        }
    }

    async fn boot(&self, name: &str, request: &HostStart, slot: &Arc<Slot>) -> Result<Arc<Running>, Problem> {
        let network = self.launcher.reach(request.internet).map_err(|reason| match request.internet {
            true => unavailable(&format!("internet: this host has no way out: {reason}")),
            false => Problem::invalid(format!("internet: {reason}")),
        })?;
        let place = Place::take(&self.running, self.limit)?;
        let token = Token::random().map_err(Problem::internal)?;
        let (workspace, credentials) = self.workspace(name).map_err(Problem::internal)?;
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let socket = SocketFile(self.layout.socket(number));
        let listening = std::os::unix::net::UnixListener::bind(&socket.0).map_err(Problem::internal)?;
        let group = match self.launcher.groups() {
            ControlGroups::Held(groups) => Some(Arc::new(groups.make_for(number, name).map_err(Problem::internal)?)),
            ControlGroups::Missing(_) => None,
        };
        let start = Start {
            layout: &self.layout,
            workspace: &workspace,
            credentials,
            request,
            network,
            group: group.as_deref(),
            token: &token,
            socket: listening.into(),
        };
        let (child, told) = match self.launcher.start(start) {
            Ok(started) => started,
            Err(error) => {
                if let Some(group) = &group {
                    group.remove().await;
                }
                return Err(Problem::internal(error));
            }
        };
        let process = child.id().map_or(0, u32::cast_signed);
        let proxy = Proxy::new(socket.0.clone(), &token).map_err(Problem::internal)?;
        let (exit, exited) = watch::channel(false);
        let reaped = Arc::new(AtomicBool::new(false));
        let seen = (reaped.clone(), exit);
        tokio::spawn(watch_over(name.to_owned(), child, seen, slot.clone(), (socket, group.clone()), place));
        // A start that the caller abandons, or that fails, must not leave a sandbox that nobody knows.
        let abandoned = Abandoned { process, kind: self.launcher.kind(), group: group.clone(), armed: true };
        let connect = async {
            match (self.launcher.network(), told) {
                (Some(network), Some(told)) => {
                    let uplink = network.connect(&self.launcher, told, credentials, false).await;
                    uplink.map(Some).map_err(|reason| unavailable(&reason))
                }
                _ => Ok(None),
            }
        };
        // Commands come after the answer to the start, so that none meets a network that does not stand yet.
        let (health, uplink) = tokio::try_join!(first_answer(&proxy, exited.clone()), connect)?;
        let running = Arc::new(Running {
            boot_id: health.boot_id,
            api_version: health.api_version,
            proxy,
            process,
            reaped,
            exited,
            group,
            _uplink: uplink,
        });
        *slot.running() = Some(running.clone());
        if *running.exited.borrow() {
            *slot.running() = None;
            return Err(unavailable("it ended as soon as it had started"));
        }
        abandoned.disarm();
        tracing::info!(name, boot_id = running.boot_id, "started");
        Ok(running)
    }

    /// The workspace of that name, which belongs to the user that the sandbox runs as.
    fn workspace(&self, name: &str) -> io::Result<(PathBuf, Option<Credentials>)> {
        let workspace = self.layout.make_workspace(name)?;
        if !self.launcher.changes_user() {
            return Ok((workspace, None));
        }
        let owner = std::fs::symlink_metadata(&workspace)?.uid();
        if is_of_sandbox(owner) {
            return Ok((workspace, Some(Credentials { uid: owner, gid: owner })));
        }
        let credentials = self.identities.take().ok_or_else(|| io::Error::other("no user id is free"))?;
        chown(&workspace, Some(credentials.uid), Some(credentials.gid))?;
        Ok((workspace, Some(credentials)))
    }

    /// Ends the sandbox and keeps its files. A name that does not run is no fault.
    pub(super) async fn stop(&self, name: &str) -> Result<HostStopped, Problem> {
        let slot = self.slots().entry(name.to_owned()).or_default().clone();
        let change = slot.change.lock().await;
        let found = slot.running().clone();
        let result = match found {
            Some(running) => self.end(&running).await,
            None => Ok(0),
        };
        drop(change);
        self.forget(name, slot);
        let processes = result?;
        tracing::info!(name, processes, "stopped");
        Ok(HostStopped { processes })
    }

    /// Ends the sandbox and removes its files. A name that is not there is no fault.
    pub(super) async fn delete(&self, name: &str) -> Result<ResourcesReleased, Problem> {
        let slot = self.slots().entry(name.to_owned()).or_default().clone();
        let change = slot.change.lock().await;
        let result = self.delete_locked(name, &slot).await;
        drop(change);
        self.forget(name, slot);
        result
    }

    async fn delete_locked(&self, name: &str, slot: &Slot) -> Result<ResourcesReleased, Problem> {
        let found = slot.running().clone();
        let processes = match found {
            Some(running) => self.end(&running).await?,
            None => 0,
        };
        let owner = std::fs::symlink_metadata(self.layout.workspace(name)).map(|metadata| metadata.uid());
        let trash = self.layout.trash().map_err(Problem::internal)?;
        match std::fs::rename(self.layout.home(name), &trash) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(ResourcesReleased { processes, disk_bytes: 0 });
            }
            Err(error) => return Err(Problem::internal(error)),
        }
        let disk_bytes = tokio::task::spawn_blocking(move || remove::tree(&trash))
            .await
            .map_err(Problem::internal)?
            .map_err(Problem::internal)?;
        if let Ok(owner) = owner {
            self.identities.give_back(owner);
        }
        tracing::info!(name, processes, disk_bytes, "deleted");
        Ok(ResourcesReleased { processes, disk_bytes })
    }

    /// Ends a sandbox and waits for it; returns how many processes that ended.
    async fn end(&self, running: &Running) -> Result<u64, Problem> {
        let kind = self.launcher.kind();
        let process = || Some(running.process).filter(|_| !running.reaped.load(Ordering::Acquire));
        let processes = process().map_or(0, |process| match kind {
            IsolationKind::Bubblewrap => descendants(process).len(),
            IsolationKind::None => descendants(process).len() + 1,
        });
        if let Some(process) = process() {
            end(process, kind, false);
        }
        if running.exits_within(STOP_PATIENCE).await {
            return Ok(processes as u64);
        }
        if let Some(process) = process() {
            end(process, kind, true);
        }
        if let Some(group) = &running.group {
            group.kill();
        }
        if running.exits_within(STOP_PATIENCE).await {
            return Ok(processes as u64);
        }
        Err(unavailable("its processes were killed and are not seen to be gone"))
    }

    /// Ends every sandbox; workspaces stay.
    pub(super) async fn stop_all(&self) {
        let running: Vec<Arc<Running>> = self.slots().values().filter_map(|slot| slot.running().clone()).collect();
        let stops = running.iter().map(|running| self.end(running));
        for result in futures_util::future::join_all(stops).await {
            if let Err(problem) = result {
                tracing::error!(?problem, "a sandbox could not be ended");
            }
        }
    }
}

/// Ends the process that the host started. The first process of a process namespace takes all others with it, and its
/// own end is the proof that they are gone; bubblewrap then ends by itself.
fn end(process: i32, kind: IsolationKind, last_resort: bool) {
    match (kind, last_resort) {
        (IsolationKind::Bubblewrap, false) => {
            kill_all(process);
        }
        (IsolationKind::None, false) => send(process, libc::SIGTERM),
        (_, true) => {
            kill_all(process);
            send(process, libc::SIGKILL);
        }
    }
}

/// Ends a start that did not succeed.
struct Abandoned {
    process: i32,
    kind: IsolationKind,
    group: Option<Arc<Group>>,
    armed: bool,
}

impl Abandoned {
    fn disarm(mut self) {
        self.armed = false;
    }
}

impl Drop for Abandoned {
    fn drop(&mut self) {
        if self.armed {
            end(self.process, self.kind, true);
            if let Some(group) = &self.group {
                group.kill();
            }
        }
    }
}

/// One of the places that the limit allows.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(running: &Arc<AtomicUsize>, limit: usize) -> Result<Self, Problem> {
        running
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| (count < limit).then_some(count + 1))
            .map_err(|_| unavailable(&format!("this host runs {limit} sandboxes, its limit")))?;
        Ok(Self(running.clone()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A socket's file, removed with the sandbox.
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Err(cause) = std::fs::remove_file(&self.0) {
            tracing::debug!(%cause, "the file of a socket was gone already");
        }
    }
}

/// Waits for the process to end and makes the name free again.
async fn watch_over(
    name: String,
    mut child: Child,
    (reaped, exit): (Arc<AtomicBool>, watch::Sender<bool>),
    slot: Arc<Slot>,
    (socket, group): (SocketFile, Option<Arc<Group>>),
    place: Place,
) {
    match child.wait().await {
        Ok(status) => tracing::info!(name, %status, "ended"),
        Err(cause) => tracing::error!(name, %cause, "the end of a sandbox could not be seen"),
    }
    reaped.store(true, Ordering::Release);
    if let Some(group) = group {
        // Whatever is left in it, by whatever way its first process ended.
        group.kill();
        group.remove().await;
    }
    drop((socket, place));
    // Who waits for its end finds it gone; who has just put it there sees that it ended, or it is taken away after that.
    let ended = exit.subscribe();
    slot.clear(&ended);
    exit.send_replace(true);
    slot.clear(&ended);
}

/// Asks the daemon for its health. The socket listens from the beginning, so the question waits for the daemon.
async fn first_answer(proxy: &Proxy, mut exited: watch::Receiver<bool>) -> Result<Health, Problem> {
    let ask = async {
        let response =
            proxy.pass(Request::new(Body::empty()), "/v1/health").await.map_err(|error| error.to_string())?;
        let body = response.into_body().collect().await.map_err(|error| error.to_string())?.to_bytes();
        serde_json::from_slice::<Health>(&body).map_err(|error| error.to_string())
    };
    tokio::select! {
        answer = tokio::time::timeout(START_PATIENCE, ask) => match answer {
            Ok(Ok(health)) => Ok(health),
            Ok(Err(reason)) => Err(unavailable(&format!("it did not answer: {reason}"))),
            Err(_) => Err(unavailable(&format!("it did not answer within {} s", START_PATIENCE.as_secs()))),
        },
        _ = exited.wait_for(|exited| *exited) => Err(unavailable("it ended before its first answer; the host's log has why")),
    }
}

pub(super) fn not_running() -> Problem {
    Problem::new(ControlErrorCode::NotRunning, "name: no sandbox of this name runs here; nothing was done")
}

fn unavailable(reason: &str) -> Problem {
    Problem::new(ControlErrorCode::Unavailable, format!("the sandbox could not be started or ended: {reason}"))
}
