//! `PUT /v1/directories/{path}`: making a directory.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::Uri;
use axum::response::Response;
use hyper::StatusCode;
use rustix::fs::FileType;
use sandbox_api::{ControlError, ControlErrorCode, DirectoryMade};
use serde::Deserialize;
use utoipa::IntoParams;

use super::destination::place;
use super::info::stat_of;
use super::names::entry_target;
use super::{QueryRejection, Workspace, refused};
use crate::http::{Problem, json};

/// Query of `PUT /v1/directories/{path}`.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::serve) struct MakeQuery {
    /// Whether missing parents are made, and a directory that is there is no fault.
    #[serde(default)]
    recursive: bool,
}

/// Makes a directory.
#[utoipa::path(
    put,
    path = "/v1/directories/{path}",
    tag = "files",
    operation_id = "makeDirectory",
    params(("path" = String, Path, description = "As for files"), MakeQuery),
    responses(
        (status = 200, description = "It was there already (`recursive`)", body = DirectoryMade),
        (status = 201, description = "Made", body = DirectoryMade),
        (status = 403, description = "The path leads out of the workspace", body = ControlError),
        (status = 404, description = "No parent directory", body = ControlError),
        (status = 409, description = "There is something of that name", body = ControlError)
    )
)]
pub(in crate::serve) async fn put(
    State(workspace): State<Arc<Workspace>>,
    uri: Uri,
    query: Result<Query<MakeQuery>, QueryRejection>,
) -> Result<Response, Problem> {
    let Query(query) = query?;
    let path = entry_target(&uri, "/v1/directories/", &workspace)?;
    let made = workspace.run(move |workspace| make(workspace, &path, query.recursive)).await?;
    Ok(json(if made.created { StatusCode::CREATED } else { StatusCode::OK }, &made))
}

fn make(workspace: &Workspace, path: &Path, recursive: bool) -> Result<DirectoryMade, Problem> {
    let (parent, name) = place(workspace, "path", path, recursive)?;
    match parent.create_dir(name) {
        Ok(()) => Ok(DirectoryMade { created: true }),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            // A link to a directory is as good as one, as long as it stays inside.
            let there = stat_of(parent.as_fd(), name).map_err(|error| refused(error.into()))?;
            let is_directory = match FileType::from_raw_mode(there.st_mode) {
                FileType::Directory => true,
                FileType::Symlink => workspace.dir.metadata(path).map_err(refused)?.is_dir(),
                _ => false,
            };
            match (is_directory, recursive) {
                (true, true) => Ok(DirectoryMade { created: false }),
                (true, false) => {
                    Err(Problem::new(ControlErrorCode::AlreadyExists, "path: the directory is there already"))
                }
                (false, _) => {
                    Err(Problem::new(ControlErrorCode::WrongFileType, "path: there is something that is no directory"))
                }
            }
        }
        Err(error) => Err(refused(error)),
    }
}
