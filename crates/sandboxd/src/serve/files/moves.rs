//! `POST /v1/moves`: a new path for an entry, in one step of the file system.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use hyper::StatusCode;
use rustix::fs::{RenameFlags, renameat, renameat_with};
use rustix::io::Errno;
use sandbox_api::{ControlError, ControlErrorCode, MoveRequest, Moved};

use super::destination::place;
use super::info::stat_of;
use super::names::decode;
use super::{Workspace, refused};
use crate::http::{Problem, json, read_json};

/// Moves an entry. Of a link the link moves. Nothing is replaced without `overwrite`, and never a directory that has
/// entries.
#[utoipa::path(
    post,
    path = "/v1/moves",
    tag = "files",
    operation_id = "moveEntry",
    request_body = MoveRequest,
    responses(
        (status = 200, body = Moved),
        (status = 400, description = "A directory cannot go into itself", body = ControlError),
        (status = 403, description = "A path leads out of the workspace", body = ControlError),
        (status = 404, description = "Nothing is at `from`", body = ControlError),
        (status = 409, description = "There is something at `to`", body = ControlError)
    )
)]
pub(in crate::serve) async fn post(State(workspace): State<Arc<Workspace>>, body: Body) -> Result<Response, Problem> {
    let request: MoveRequest = read_json(body).await?;
    let from = decode(&workspace, "from", &request.from, request.path_encoding)?;
    let to = decode(&workspace, "to", &request.to, request.path_encoding)?;
    let moved = workspace.run(move |workspace| rename(workspace, &from, &to, request.overwrite)).await?;
    Ok(json(StatusCode::OK, &moved))
}

fn rename(workspace: &Workspace, from: &Path, to: &Path, overwrite: bool) -> Result<Moved, Problem> {
    let (source, old) = place(workspace, "from", from, false).map_err(|problem| named("from", problem))?;
    // Before anything is made for it.
    let moving = stat_of(source.as_fd(), old).map_err(|error| named("from", refused(error.into())))?;
    let (target, new) = place(workspace, "to", to, true).map_err(|problem| named("to", problem))?;
    let _commit = workspace.commit.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let there = match stat_of(target.as_fd(), new) {
        Ok(there) => Some(there),
        Err(Errno::NOENT) => None,
        Err(error) => return Err(named("to", refused(error.into()))),
    };
    let same = there.as_ref().is_some_and(|there| (there.st_ino, there.st_dev) == (moving.st_ino, moving.st_dev));
    if there.is_some() && !overwrite && !same {
        return Err(taken());
    }
    let renamed = if overwrite || same {
        renameat(&source, old, &target, new)
    } else {
        match renameat_with(&source, old, &target, new, RenameFlags::NOREPLACE) {
            // Some file systems do not know the flag; what is there was looked at just now.
            Err(Errno::INVAL | Errno::NOSYS) => renameat(&source, old, &target, new),
            result => result,
        }
    };
    match renamed {
        Ok(()) => Ok(Moved { replaced: there.is_some() && !same }),
        Err(Errno::EXIST) => Err(taken()),
        Err(Errno::NOTEMPTY) => {
            Err(Problem::new(ControlErrorCode::AlreadyExists, "to: a directory that has entries is not replaced"))
        }
        Err(Errno::ISDIR) => Err(Problem::new(ControlErrorCode::WrongFileType, "to: is a directory")),
        Err(Errno::NOTDIR) => {
            Err(Problem::new(ControlErrorCode::WrongFileType, "to: a directory replaces directories only"))
        }
        Err(Errno::INVAL) => Err(Problem::invalid("to: lies inside `from`")),
        Err(Errno::XDEV) => {
            Err(Problem::new(ControlErrorCode::WrongFileType, "to: lies on another file system than `from`"))
        }
        Err(error) => Err(refused(error.into())),
    }
}

fn taken() -> Problem {
    Problem::new(ControlErrorCode::AlreadyExists, "to: there is something of that name; ask for `overwrite`")
}

/// A refusal that speaks of `path`, of the field that it is about.
fn named(field: &str, problem: Problem) -> Problem {
    problem.renamed("path", field)
}
