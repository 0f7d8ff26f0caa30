//! `PUT` of a file.
//!
//! The bytes go to a hidden file in the same directory. Only when exactly the declared number has arrived does it take
//! the name; in every other case (the caller leaves, the disk is full, the request is dropped) it is removed and the old
//! file is as it was.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use axum::response::Response;
use cap_std::fs::{Dir, OpenOptions, OpenOptionsExt};
use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::header::CONTENT_LENGTH;
use sandbox_api::{ControlError, ControlErrorCode, FileWritten};

use super::{Workspace, blocking, not_a_file, path, refused};
use crate::http::{Problem, json, random_hex};
use crate::serve::Credentials;

/// Bytes gathered before they are written.
const GATHER_BYTES: usize = 256 << 10;

/// Permissions of a new file.
const NEW_FILE_MODE: u32 = 0o644;

/// Replaces or makes a file, whole or not at all.
#[utoipa::path(
    put,
    path = "/v1/files/{path}",
    tag = "files",
    operation_id = "putFile",
    params(
        ("path" = String, Path, description = "As for `GET`"),
        ("Content-Length" = u64, Header, description = "Bytes of the file")
    ),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses(
        (status = 200, description = "Replaced", body = FileWritten),
        (status = 201, description = "Made", body = FileWritten),
        (status = 400, description = "The upload ended early", body = ControlError),
        (status = 403, description = "The path leads out of the workspace", body = ControlError),
        (status = 409, description = "Not a regular file", body = ControlError),
        (status = 411, description = "No declared length", body = ControlError),
        (status = 507, description = "No space left", body = ControlError)
    )
)]
pub(in crate::serve) async fn put(
    State(workspace): State<Arc<Workspace>>,
    uri: Uri,
    headers: HeaderMap,
    mut body: Body,
) -> Result<Response, Problem> {
    let path = path(&uri, &workspace.root)?;
    let declared = declared_length(&headers)?;
    let mut upload = blocking(move || Upload::begin(&workspace, &path)).await?;
    let mut gathered = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| aborted(upload.received + gathered.len() as u64, declared))?;
        let Ok(data) = frame.into_data() else { continue };
        gathered.extend_from_slice(&data);
        if gathered.len() >= GATHER_BYTES {
            let bytes = std::mem::take(&mut gathered);
            upload = blocking(move || upload.write(&bytes)).await?;
        }
    }
    let written = blocking(move || upload.write(&gathered)?.commit(declared)).await?;
    Ok(json(if written.created { StatusCode::CREATED } else { StatusCode::OK }, &written))
}

fn declared_length(headers: &HeaderMap) -> Result<u64, Problem> {
    headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok()).ok_or_else(|| {
        let message =
            "Content-Length: an upload must declare its length, so that an aborted one is not taken for complete";
        Problem::new(ControlErrorCode::LengthRequired, message)
    })
}

fn aborted(received: u64, declared: u64) -> Problem {
    let message = format!("the upload ended after {received} of {declared} bytes; the old file is untouched");
    Problem::new(ControlErrorCode::UploadAborted, message)
}

/// An upload on its way. Dropping it removes the hidden file.
struct Upload {
    directory: Dir,
    name: PathBuf,
    hidden: Option<PathBuf>,
    file: File,
    received: u64,
    created: bool,
}

impl Upload {
    fn begin(workspace: &Workspace, path: &Path) -> Result<Self, Problem> {
        let path = follow_link(&workspace.dir, path)?;
        let Some(Component::Normal(name)) = path.components().next_back() else {
            return Err(not_a_file());
        };
        if path.as_os_str().as_encoded_bytes().ends_with(b"/") {
            return Err(not_a_file());
        }
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let directory = match parent {
            None => workspace.dir.try_clone().map_err(refused)?,
            Some(parent) => open_or_make(&workspace.dir, parent, workspace.owner)?,
        };
        let old = match directory.symlink_metadata(name) {
            Ok(metadata) if metadata.is_file() => Some(metadata),
            Ok(metadata) if metadata.is_symlink() => None,
            Ok(_) => return Err(not_a_file()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(refused(error)),
        };
        let mode = match &old {
            Some(metadata) => cap_std::fs::PermissionsExt::mode(&metadata.permissions()) & 0o7777,
            None => NEW_FILE_MODE,
        };
        let hidden = PathBuf::from(format!(".upload-{}", random_hex(12).map_err(Problem::internal)?));
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let file = directory.open_with(&hidden, &options).map_err(refused)?.into_std();
        let upload =
            Self { directory, name: name.into(), hidden: Some(hidden), file, received: 0, created: old.is_none() };
        if let Some(Credentials { uid, gid }) = workspace.owner {
            std::os::unix::fs::fchown(&upload.file, Some(uid), Some(gid)).map_err(refused)?;
        }
        upload.file.set_permissions(PermissionsExt::from_mode(mode)).map_err(refused)?;
        Ok(upload)
    }

    fn write(mut self, bytes: &[u8]) -> Result<Self, Problem> {
        self.file.write_all(bytes).map_err(refused)?;
        self.received += bytes.len() as u64;
        Ok(self)
    }

    fn commit(mut self, declared: u64) -> Result<FileWritten, Problem> {
        let size = self.file.metadata().map_err(refused)?.size();
        if self.received != declared || size != declared {
            return Err(aborted(self.received, declared));
        }
        if let Some(hidden) = &self.hidden {
            self.directory.rename(hidden, &self.directory, &self.name).map_err(refused)?;
        }
        self.hidden = None;
        Ok(FileWritten { size, created: self.created })
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if let Some(hidden) = self.hidden.take()
            && let Err(cause) = self.directory.remove_file(hidden)
        {
            tracing::warn!(%cause, "the hidden file of an upload could not be removed");
        }
    }
}

/// A link is written through, as a shell's redirection does, as long as it stays inside. One that leads nowhere is
/// replaced.
fn follow_link(dir: &Dir, path: &Path) -> Result<PathBuf, Problem> {
    match dir.symlink_metadata(path) {
        Ok(metadata) if metadata.is_symlink() => match dir.canonicalize(path) {
            Ok(target) => Ok(target),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(path.to_owned()),
            Err(error) => Err(refused(error)),
        },
        _ => Ok(path.to_owned()),
    }
}

/// Opens the directory, making what is missing on the way; what it makes belongs to the sandbox's user.
fn open_or_make(root: &Dir, path: &Path, owner: Option<Credentials>) -> Result<Dir, Problem> {
    match root.open_dir(path) {
        Ok(directory) => return Ok(directory),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(refused(error)),
    }
    let mut reached = PathBuf::new();
    for component in path.components() {
        reached.push(component);
        match root.create_dir(&reached) {
            Ok(()) => {
                if let Some(Credentials { uid, gid }) = owner {
                    let mut options = OpenOptions::new();
                    options.read(true).custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW);
                    let made = root.open_with(&reached, &options).map_err(refused)?.into_std();
                    std::os::unix::fs::fchown(&made, Some(uid), Some(gid)).map_err(refused)?;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            // `.` and `..` exist, though making them says otherwise.
            Err(_) if !matches!(component, Component::Normal(_)) => {}
            Err(error) => return Err(refused(error)),
        }
    }
    root.open_dir(path).map_err(refused)
}
