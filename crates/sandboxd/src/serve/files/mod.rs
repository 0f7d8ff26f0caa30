//! Files of the workspace: raw bytes, whole directories as archives, and what is done with entries.
//!
//! A capability handle on the workspace does the containment: no `..` and no link leads out of it. Names are bytes. Work
//! that waits for a disk runs beside the event loop and with the rights of whom commands run as; what may take long waits
//! for a place, so that it never takes all of them.

mod archive;
mod destination;
pub(super) mod directories;
pub(super) mod download;
pub(super) mod entries;
mod globs;
mod identity;
mod info;
pub(super) mod list;
pub(super) mod moves;
mod names;
mod pieces;
mod precondition;
mod range;
pub(super) mod search;
mod tree;
pub(super) mod upload;
pub(super) mod watch;

pub(super) use archive::routes as archives;

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::routing::{get, post, put};
use cap_std::ambient_authority;
use cap_std::fs::Dir;
use sandbox_api::ControlErrorCode;
use tokio::sync::Semaphore;

use super::settings::Settings;
use super::tree::Credentials;
use crate::http::Problem;

/// Work at once that may take seconds: fewer than the threads that there are for blocking work.
const LONG_WORK: usize = 2;

/// Archives packed and unpacked at once: each has a thread of its own.
const ARCHIVES: usize = 4;

/// Watches at once.
const WATCHES: usize = 16;

/// How long work may wait for a place.
const PLACE_PATIENCE: Duration = Duration::from_secs(10);

/// The workspace, and whom its files belong to.
pub(super) struct Workspace {
    dir: Dir,
    root: PathBuf,
    owner: Option<Credentials>,
    long_work: Semaphore,
    archives: Arc<Semaphore>,
    watches: Arc<Semaphore>,
    /// Held from the look at an old file until a new one has taken its name.
    commit: Mutex<()>,
}

pub(super) fn routes(settings: &Settings) -> io::Result<Router> {
    let workspace = Arc::new(Workspace {
        dir: Dir::open_ambient_dir(&settings.root, ambient_authority())?,
        root: settings.root.clone(),
        owner: settings.credentials,
        long_work: Semaphore::new(LONG_WORK),
        archives: Arc::new(Semaphore::new(ARCHIVES)),
        watches: Arc::new(Semaphore::new(WATCHES)),
        commit: Mutex::new(()),
    });
    // What an earlier boot left is one look away: mostly there is nothing.
    identity::act_as(workspace.owner, || pieces::sweep(&workspace.dir))?;
    let mut router = Router::new().route("/v1/moves", post(moves::post)).route("/v1/searches", post(search::post));
    for (prefix, methods) in [
        ("files", get(download::get).head(download::head).put(upload::put)),
        ("entries", get(entries::get).delete(entries::delete)),
        ("directories", get(list::get).put(directories::put)),
        ("archives", get(archives::get).merge(put(archives::put))),
        ("watches", get(watch::get)),
    ] {
        router =
            router.route(&format!("/v1/{prefix}/"), methods.clone()).route(&format!("/v1/{prefix}/{{*path}}"), methods);
    }
    Ok(router.with_state(workspace))
}

impl Workspace {
    /// Runs file work off the event loop, which must not wait for a disk, and with the rights of the sandbox's user.
    async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        let workspace = self.clone();
        blocking(move || identity::act_as(workspace.owner, || work(&workspace)).map_err(Problem::internal)?).await
    }

    /// The same for work that may take seconds. It is told when its caller has left.
    async fn run_long<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self, &Cancelled) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        let cancelled = Cancelled::default();
        let _guard = CancelOnDrop(cancelled.clone());
        let place = tokio::time::timeout(PLACE_PATIENCE, self.long_work.acquire()).await;
        let Ok(Ok(place)) = place else {
            let message = "too much work on files at once in this sandbox; try again";
            return Err(Problem::new(ControlErrorCode::Unavailable, message));
        };
        // A caller that leaves gives its place back although the work may still be on its way to its next look.
        let result = self.run(move |workspace| work(workspace, &cancelled)).await;
        drop(place);
        result
    }

    /// Opens a directory, links on the way followed as long as they stay inside, and tells its path without them.
    fn open_directory(&self, path: &Path) -> Result<(PathBuf, OwnedFd), Problem> {
        let path = if path.as_os_str().is_empty() { PathBuf::new() } else { self.canonical(path)? };
        let shown = if path.as_os_str().is_empty() { Path::new(".") } else { &path };
        let directory = self.dir.open_dir(shown).map_err(refused)?;
        Ok((path, directory.into_std_file().into()))
    }

    /// The path without links, `.` and `..`; empty for the workspace.
    fn canonical(&self, path: &Path) -> Result<PathBuf, Problem> {
        if path.as_os_str().is_empty() {
            return Ok(PathBuf::new());
        }
        let path = self.dir.canonicalize(path).map_err(refused)?;
        Ok(if path == Path::new(".") { PathBuf::new() } else { path })
    }
}

/// Whether the caller of some work has left.
#[derive(Clone, Default)]
struct Cancelled(Arc<AtomicBool>);

impl Cancelled {
    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

struct CancelOnDrop(Cancelled);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}

fn escapes() -> Problem {
    Problem::new(ControlErrorCode::PathEscapes, "path: leads out of the workspace")
}

fn not_a_file() -> Problem {
    Problem::new(ControlErrorCode::WrongFileType, "path: is not a regular file")
}

/// What the operating system's error on a path means for the caller.
fn refused(error: io::Error) -> Problem {
    match error.raw_os_error() {
        // The containment reports what leads out without an error number of the system.
        None if error.kind() == io::ErrorKind::PermissionDenied => escapes(),
        Some(libc::EXDEV) => escapes(),
        Some(libc::ENOENT) => Problem::new(ControlErrorCode::NotFound, "path: no such file"),
        Some(libc::EACCES | libc::EPERM | libc::EROFS) => {
            Problem::new(ControlErrorCode::PermissionDenied, "path: the operating system refuses access")
        }
        Some(libc::ENOTDIR) => Problem::new(ControlErrorCode::WrongFileType, "path: a part of it is not a directory"),
        Some(libc::EISDIR | libc::ENXIO | libc::ENODEV | libc::ENOTEMPTY | libc::ETXTBSY) => not_a_file(),
        Some(libc::EEXIST) => Problem::new(ControlErrorCode::WrongFileType, "path: a part of it is not a directory"),
        Some(libc::E2BIG) => Problem::new(
            ControlErrorCode::PayloadTooLarge,
            "path: a directory has more entries than one request takes (200,000)",
        ),
        Some(libc::ENAMETOOLONG) => Problem::invalid(
            "path: longer than the file system takes (255 bytes a name), or leads to more than 128 directories in each other",
        ),
        Some(libc::EINVAL | libc::EILSEQ) => Problem::invalid("path: the file system does not take this name"),
        Some(libc::ELOOP) => Problem::invalid("path: too many links"),
        Some(libc::EAGAIN | libc::EBUSY) => {
            Problem::new(ControlErrorCode::Unavailable, "path: a process of the sandbox holds the file; try again")
        }
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM) => {
            Problem::new(ControlErrorCode::Unavailable, "the sandbox has no resources left to open the file")
        }
        Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG) => {
            Problem::new(ControlErrorCode::NoSpace, "no space left on the sandbox's disk; the old file is untouched")
        }
        _ => Problem::internal(error),
    }
}

/// Runs file work off the event loop, which must not wait for a disk.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Problem> + Send + 'static) -> Result<T, Problem> {
    tokio::task::spawn_blocking(work).await.map_err(Problem::internal)?
}
