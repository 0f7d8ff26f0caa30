//! `PUT` of a file.
//!
//! The bytes go to a hidden file in the same directory. Only when exactly the declared number has arrived does it take
//! the name; in every other case (the caller leaves, the disk is full, the request is dropped) it is removed and the old
//! file is as it was.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use axum::response::Response;
use cap_std::fs::{OpenOptions, OpenOptionsExt};
use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::header::{CONTENT_LENGTH, CONTENT_RANGE};
use sandbox_api::{ControlError, ControlErrorCode, FileWritten, UploadProgress};

use super::destination::{Destination, hidden_name};
use super::names::entry_target;
use super::precondition::Precondition;
use super::{Workspace, pieces, refused};
use crate::http::{Problem, json};

/// Bytes gathered before they are written.
pub(super) const GATHER_BYTES: usize = 256 << 10;

/// Replaces or makes a file, whole or not at all.
///
/// With `Content-Range: bytes a-b/total` the body is one piece of it. Pieces come in order; the last one commits, the
/// others are answered 202. `Content-Range: bytes */total` with an empty body asks how far an upload got. A first piece
/// begins anew. What is left of an upload without a new piece is removed after a day.
#[utoipa::path(
    put,
    path = "/v1/files/{path}",
    tag = "files",
    operation_id = "putFile",
    params(
        ("path" = String, Path, description = "As for `GET`"),
        ("Content-Length" = u64, Header, description = "Bytes of the file, or of the piece"),
        ("Content-Range" = Option<String>, Header, description = "`bytes a-b/total`: a piece; `bytes */total`: a question"),
        ("Upload-Id" = Option<String>, Header, description = "Upload that the piece belongs to, as the first piece was told"),
        ("If-Match" = Option<String>, Header, description = "Tags of which the old file must have one"),
        ("If-None-Match" = Option<String>, Header, description = "`*`: there must be no file")
    ),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses(
        (status = 200, description = "Replaced", body = FileWritten),
        (status = 201, description = "Made", body = FileWritten),
        (status = 202, description = "A piece has arrived, or the answer to a question", body = UploadProgress),
        (status = 400, description = "The upload ended early", body = ControlError),
        (status = 403, description = "The path leads out of the workspace", body = ControlError),
        (status = 409, description = "Not a regular file, or a piece that does not follow", body = ControlError),
        (status = 411, description = "No declared length", body = ControlError),
        (status = 412, description = "The file is not the one that `If-Match` means", body = ControlError),
        (status = 507, description = "No space left", body = ControlError)
    )
)]
pub(in crate::serve) async fn put(
    State(workspace): State<Arc<Workspace>>,
    uri: Uri,
    headers: HeaderMap,
    mut body: Body,
) -> Result<Response, Problem> {
    let path = entry_target(&uri, "/v1/files/", &workspace)?;
    let declared = declared_length(&headers)?;
    let precondition = Precondition::of(&headers)?;
    if headers.contains_key(CONTENT_RANGE) {
        return pieces::put(&workspace, path, &headers, declared, precondition, body).await;
    }
    let (mut upload, precondition) =
        workspace.run(move |workspace| Ok((Upload::begin(workspace, &path, &precondition)?, precondition))).await?;
    let mut gathered = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| aborted(upload.received + gathered.len() as u64, declared))?;
        let Ok(data) = frame.into_data() else { continue };
        gathered.extend_from_slice(&data);
        if gathered.len() >= GATHER_BYTES {
            let bytes = std::mem::take(&mut gathered);
            upload = workspace.run(move |_| upload.write(&bytes)).await?;
        }
    }
    let written =
        workspace.run(move |workspace| upload.write(&gathered)?.commit(workspace, declared, &precondition)).await?;
    Ok(json(if written.created { StatusCode::CREATED } else { StatusCode::OK }, &written))
}

pub(super) fn declared_length(headers: &HeaderMap) -> Result<u64, Problem> {
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
    destination: Destination,
    hidden: Option<PathBuf>,
    file: File,
    received: u64,
}

impl Upload {
    fn begin(workspace: &Workspace, path: &Path, precondition: &Precondition) -> Result<Self, Problem> {
        let destination = Destination::resolve(workspace, path)?;
        // Who will be refused in the end is told before all the bytes are sent.
        destination.check(precondition)?;
        let hidden = hidden_name()?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let file = destination.directory.open_with(&hidden, &options).map_err(refused)?.into_std();
        Ok(Self { destination, hidden: Some(hidden), file, received: 0 })
    }

    fn write(mut self, bytes: &[u8]) -> Result<Self, Problem> {
        self.file.write_all(bytes).map_err(refused)?;
        self.received += bytes.len() as u64;
        Ok(self)
    }

    fn commit(
        mut self,
        workspace: &Workspace,
        declared: u64,
        precondition: &Precondition,
    ) -> Result<FileWritten, Problem> {
        let size = self.file.metadata().map_err(refused)?.size();
        if self.received != declared || size != declared {
            return Err(aborted(self.received, declared));
        }
        let Some(hidden) = &self.hidden else { return Err(Problem::internal("an upload without a hidden file")) };
        let written =
            self.destination.replace(workspace, &self.file, (&self.destination.directory, hidden), precondition)?;
        self.hidden = None;
        Ok(written)
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if let Some(hidden) = self.hidden.take()
            && let Err(cause) = self.destination.directory.remove_file(hidden)
        {
            tracing::warn!(%cause, "the hidden file of an upload could not be removed");
        }
    }
}
