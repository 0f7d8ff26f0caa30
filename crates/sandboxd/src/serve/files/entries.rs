//! `GET` and `DELETE /v1/entries/{path}`: what is told of one entry, and its removal.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{Query, State};
use axum::http::Uri;
use axum::response::Response;
use hyper::StatusCode;
use rustix::fs::{AtFlags, Dir, FileType};
use rustix::io::Errno;
use sandbox_api::{ControlError, ControlErrorCode, EntryDeleted, FileInfo};
use serde::Deserialize;
use utoipa::IntoParams;

use super::info::{directory_info, info, stat_of};
use super::names::{entry_target, split, target};
use super::tree::open;
use super::{Cancelled, QueryRejection, Workspace, refused};
use crate::http::{Problem, json, random_hex};

/// Time for one removal; the same request goes on.
const REMOVAL_PATIENCE: Duration = Duration::from_secs(10);

/// Directories below each other that are entered; what is deeper is moved up first, since each level holds a descriptor.
const DEPTH_LIMIT: usize = 64;

/// Query of `GET /v1/entries/{path}`.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::serve) struct StatQuery {
    /// Whether a link at the end of the path is followed.
    #[serde(default)]
    follow: bool,
}

/// What is told of one entry.
#[utoipa::path(
    get,
    path = "/v1/entries/{path}",
    tag = "files",
    operation_id = "statEntry",
    params(("path" = String, Path, description = "As for files; empty for the workspace"), StatQuery),
    responses(
        (status = 200, body = FileInfo),
        (status = 403, description = "The path leads out of the workspace", body = ControlError),
        (status = 404, description = "No such entry", body = ControlError)
    )
)]
pub(in crate::serve) async fn get(
    State(workspace): State<Arc<Workspace>>,
    uri: Uri,
    query: Result<Query<StatQuery>, QueryRejection>,
) -> Result<Response, Problem> {
    let Query(query) = query?;
    let path = target(&uri, "/v1/entries/", &workspace)?;
    let found = workspace.run(move |workspace| stat(workspace, &path, query.follow)).await?;
    Ok(json(StatusCode::OK, &found))
}

fn stat(workspace: &Workspace, path: &Path, follow: bool) -> Result<FileInfo, Problem> {
    let followed;
    let path = if follow {
        followed = workspace.canonical(path)?;
        &followed
    } else {
        path
    };
    // The workspace itself, or a path that ends in `..`, has no name of its own.
    let Ok((parent, name)) = split("path", path) else {
        let (path, directory) = workspace.open_directory(path)?;
        let stat = rustix::fs::fstat(directory).map_err(|error| refused(error.into()))?;
        return Ok(directory_info(&path, &stat));
    };
    let (parent, directory) = workspace.open_directory(parent)?;
    let stat = stat_of(directory.as_fd(), name).map_err(|error| refused(error.into()))?;
    Ok(info(&parent.join(name), &stat, directory.as_fd(), name))
}

/// Query of `DELETE /v1/entries/{path}`.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::serve) struct DeleteQuery {
    /// Whether a directory goes with all that is in it; otherwise it must be empty.
    #[serde(default)]
    recursive: bool,
}

/// Removes an entry. Of a link the link goes, not what it leads to.
#[utoipa::path(
    delete,
    path = "/v1/entries/{path}",
    tag = "files",
    operation_id = "deleteEntry",
    params(("path" = String, Path, description = "As for files"), DeleteQuery),
    responses(
        (status = 200, description = "Removed, or as much of it as one request removes", body = EntryDeleted),
        (status = 403, description = "The path leads out of the workspace, or a permission is missing", body = ControlError),
        (status = 404, description = "No such entry", body = ControlError),
        (status = 409, description = "The directory is not empty, or it is the workspace", body = ControlError)
    )
)]
pub(in crate::serve) async fn delete(
    State(workspace): State<Arc<Workspace>>,
    uri: Uri,
    query: Result<Query<DeleteQuery>, QueryRejection>,
) -> Result<Response, Problem> {
    let Query(query) = query?;
    let path = entry_target(&uri, "/v1/entries/", &workspace)?;
    let deleted =
        workspace.run_long(move |workspace, cancelled| remove(workspace, &path, query.recursive, cancelled)).await?;
    Ok(json(StatusCode::OK, &deleted))
}

fn remove(workspace: &Workspace, path: &Path, recursive: bool, cancelled: &Cancelled) -> Result<EntryDeleted, Problem> {
    let (parent, name) = split("path", path)?;
    let (_, parent) = workspace.open_directory(parent)?;
    let stat = stat_of(parent.as_fd(), name).map_err(|error| refused(error.into()))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        rustix::fs::unlinkat(&parent, name, AtFlags::empty()).map_err(|error| refused(error.into()))?;
        return Ok(EntryDeleted { removed: 1, complete: true });
    }
    let mut removal =
        Removal { removed: 0, deadline: Instant::now() + REMOVAL_PATIENCE, cancelled, moved: String::new() };
    if recursive {
        let top = open(parent.as_fd(), name).map_err(|error| refused(error.into()))?;
        if !removal.empty(top).map_err(refused)? {
            return Ok(EntryDeleted { removed: removal.removed, complete: false });
        }
    }
    match rustix::fs::unlinkat(&parent, name, AtFlags::REMOVEDIR) {
        Ok(()) => Ok(EntryDeleted { removed: removal.removed + 1, complete: true }),
        Err(Errno::NOTEMPTY | Errno::EXIST) => {
            let message = if recursive {
                "path: something was made in the directory while it was removed; ask again"
            } else {
                "path: the directory is not empty; ask for `recursive`"
            };
            Err(Problem::new(ControlErrorCode::AlreadyExists, message))
        }
        Err(error) => Err(refused(error.into())),
    }
}

struct Removal<'a> {
    removed: u64,
    deadline: Instant,
    cancelled: &'a Cancelled,
    moved: String,
}

/// A directory on the way down.
struct Level {
    directory: OwnedFd,
    entries: Dir,
    /// Its name in the level above.
    name: OsString,
}

impl Removal<'_> {
    /// Removes everything below `top`; false when the time was over first. Never through a link.
    fn empty(&mut self, top: OwnedFd) -> io::Result<bool> {
        // What was moved up shows up in the next round.
        loop {
            let moved_before = self.moved.clone();
            if !self.round(top.as_fd())? {
                return Ok(false);
            }
            if self.moved == moved_before {
                return Ok(true);
            }
        }
    }

    fn round(&mut self, top: BorrowedFd<'_>) -> io::Result<bool> {
        let mut levels =
            vec![Level { directory: top.try_clone_to_owned()?, entries: Dir::read_from(top)?, name: OsString::new() }];
        while let Some(level) = levels.last_mut() {
            if self.cancelled.is_set() || Instant::now() > self.deadline {
                return Ok(false);
            }
            let Some(entry) = level.entries.next().transpose()? else {
                let name = std::mem::take(&mut level.name);
                levels.pop();
                if let Some(above) = levels.last() {
                    match rustix::fs::unlinkat(&above.directory, name.as_os_str(), AtFlags::REMOVEDIR) {
                        Ok(()) => self.removed += 1,
                        // Filled again meanwhile, or gone: the end of it all says so.
                        Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOENT | Errno::NOTDIR) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                continue;
            };
            let name = OsString::from_vec(entry.file_name().to_bytes().to_vec());
            if name == "." || name == ".." {
                continue;
            }
            match rustix::fs::unlinkat(&level.directory, name.as_os_str(), AtFlags::empty()) {
                Ok(()) => {
                    self.removed += 1;
                    continue;
                }
                Err(Errno::NOENT) => continue,
                // Linux says so of directories; POSIX says EPERM.
                Err(Errno::ISDIR) => {}
                Err(error) => {
                    let kind = stat_of(level.directory.as_fd(), &name);
                    if !kind.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory) {
                        return Err(error.into());
                    }
                }
            }
            if levels.len() >= DEPTH_LIMIT {
                let up = format!(".removing-{}", random_hex(12)?);
                let Some(level) = levels.last() else { break };
                rustix::fs::renameat(&level.directory, name.as_os_str(), top, up.as_str())?;
                self.moved = up;
                continue;
            }
            let Some(level) = levels.last() else { break };
            match open(level.directory.as_fd(), &name) {
                Ok(directory) => {
                    let entries = Dir::read_from(&directory)?;
                    levels.push(Level { directory, entries, name });
                }
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }
}
