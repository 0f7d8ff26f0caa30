//! `GET /v1/directories/{path}`: what is in a directory, page by page.

use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{Query, State};
use axum::http::Uri;
use axum::response::Response;
use hyper::StatusCode;
use sandbox_api::{ControlError, DirectoryListing};
use serde::Deserialize;
use utoipa::IntoParams;

use super::info::info;
use super::names::{is_hidden, percent, target, unpercent};
use super::tree::{Walk, components};
use super::{QueryRejection, Workspace, refused};
use crate::http::{Problem, json};

/// Entries of a page when the request does not say.
const DEFAULT_LIMIT: usize = 200;
/// Most entries of a page.
const LARGEST_LIMIT: usize = 1000;
/// Bytes of paths that a page holds at most, beside its last entry.
const PAGE_BYTES: usize = 256 << 10;
/// A page that takes longer ends where it is.
const PATIENCE: Duration = Duration::from_secs(5);

/// Query of a listing.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::serve) struct ListQuery {
    /// Whether directories are entered. Links never are.
    #[serde(default)]
    recursive: bool,
    /// Whether entries whose name begins with a dot are told. Default true.
    #[serde(default = "yes")]
    hidden: bool,
    /// Entries of a page, 1 to 1000; default 200.
    #[serde(default)]
    limit: Option<usize>,
    /// `nextCursor` of the page before.
    #[serde(default)]
    cursor: Option<String>,
}

fn yes() -> bool {
    true
}

/// Entries of a directory, in the order of their bytes. What comes and goes between two pages may be missing; nothing is
/// told twice.
#[utoipa::path(
    get,
    path = "/v1/directories/{path}",
    tag = "files",
    operation_id = "listDirectory",
    params(("path" = String, Path, description = "As for files; empty for the workspace"), ListQuery),
    responses(
        (status = 200, body = DirectoryListing),
        (status = 403, description = "The path leads out of the workspace", body = ControlError),
        (status = 404, description = "No such directory", body = ControlError),
        (status = 409, description = "Not a directory", body = ControlError),
        (status = 413, description = "More than 200,000 entries in one directory", body = ControlError)
    )
)]
pub(in crate::serve) async fn get(
    State(workspace): State<Arc<Workspace>>,
    uri: Uri,
    query: Result<Query<ListQuery>, QueryRejection>,
) -> Result<Response, Problem> {
    let Query(query) = query?;
    let path = target(&uri, "/v1/directories/", &workspace)?;
    let limit = query.limit.unwrap_or(DEFAULT_LIMIT);
    if !(1..=LARGEST_LIMIT).contains(&limit) {
        return Err(Problem::invalid(format!("limit: 1 to {LARGEST_LIMIT}")));
    }
    let listing = workspace.run_long(move |workspace, _| page(workspace, path, &query, limit)).await?;
    Ok(json(StatusCode::OK, &listing))
}

fn page(workspace: &Workspace, path: PathBuf, query: &ListQuery, limit: usize) -> Result<DirectoryListing, Problem> {
    let unreadable = || Problem::invalid("cursor: none that this API gave");
    let cursor = match &query.cursor {
        Some(text) => PathBuf::from(std::ffi::OsString::from_vec(unpercent(text).ok_or_else(unreadable)?)),
        None => PathBuf::new(),
    };
    let last = components(&cursor).ok_or_else(unreadable)?;
    let (path, directory) = workspace.open_directory(&path)?;
    let mut walk = Walk::after(directory, &last, query.recursive).map_err(refused)?;
    let deadline = Instant::now() + PATIENCE;
    let (mut entries, mut bytes, mut visited) = (Vec::new(), 0, None);
    let next_cursor = loop {
        if entries.len() == limit || bytes > PAGE_BYTES || (visited.is_some() && Instant::now() > deadline) {
            break visited.as_deref().map(percent);
        }
        let Some(found) = walk.next() else { break None };
        if query.hidden || !is_hidden(&found.name) {
            let entry = info(&path.join(&found.path), &found.stat, walk.parent(), &found.name);
            bytes += entry.path.len() + entry.link_target.as_ref().map_or(0, String::len);
            entries.push(entry);
            if query.recursive && found.is_directory() {
                walk.enter(&found);
            }
        }
        visited = Some(found.path);
    };
    Ok(DirectoryListing { entries, next_cursor, unread_directories: walk.unread })
}
