//! `GET` and `HEAD` of a file: streamed in pieces, so that memory does not depend on its size.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Method, Uri};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use cap_std::fs::{OpenOptions, OpenOptionsExt};
use futures_util::{Stream, stream};
use hyper::StatusCode;
use hyper::header::{
    ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderName, HeaderValue, LAST_MODIFIED, RANGE,
};
use sandbox_api::{ControlError, ControlErrorCode};

use super::info::etag;
use super::names::entry_target;
use super::range::{Wanted, wanted};
use super::{Workspace, not_a_file, refused};
use crate::http::Problem;

/// Bytes read from the file at once.
const PIECE_BYTES: u64 = 128 << 10;

/// Bytes of a file.
#[utoipa::path(
    get,
    path = "/v1/files/{path}",
    tag = "files",
    operation_id = "getFile",
    params(
        ("path" = String, Path, description = "Percent-encoded bytes, relative to the workspace or absolute inside it"),
        ("Range" = Option<String>, Header, description = "One range of bytes")
    ),
    responses(
        (status = 200, description = "The file", body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 206, description = "The range", body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 403, description = "The path leads out of the workspace", body = ControlError),
        (status = 404, description = "No such file", body = ControlError),
        (status = 409, description = "Not a regular file", body = ControlError),
        (status = 416, description = "The range begins beyond the end", body = ControlError)
    )
)]
pub(in crate::serve) async fn get(
    State(workspace): State<Arc<Workspace>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let path = entry_target(&uri, "/v1/files/", &workspace)?;
    let (file, metadata, etag) = workspace
        .run(move |workspace| {
            // Not waiting matters for a named pipe, whose opening would hang until somebody writes.
            let mut options = OpenOptions::new();
            options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
            let file = workspace.dir.open_with(&path, &options).map_err(refused)?.into_std();
            let metadata = file.metadata().map_err(refused)?;
            let stat = rustix::fs::fstat(&file).map_err(|error| refused(error.into()))?;
            if metadata.is_file() { Ok((file, metadata, etag(&stat))) } else { Err(not_a_file()) }
        })
        .await?;

    let size = metadata.len();
    let (status, bytes) = match wanted(headers.get(RANGE).and_then(|value| value.to_str().ok()), size) {
        Wanted::Whole => (StatusCode::OK, 0..size),
        Wanted::Part(bytes) => (StatusCode::PARTIAL_CONTENT, bytes),
        Wanted::Unsatisfiable => {
            let message = format!("Range: begins beyond the end of the file, which has {size} bytes");
            let mut response = Problem::new(ControlErrorCode::RangeNotSatisfiable, message).into_response();
            set(&mut response, CONTENT_RANGE, format!("bytes */{size}"));
            return Ok(response);
        }
    };
    let body = if method == Method::HEAD { Body::empty() } else { Body::from_stream(pieces(file, bytes.clone())) };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    set(&mut response, CONTENT_LENGTH, (bytes.end - bytes.start).to_string());
    if status == StatusCode::PARTIAL_CONTENT {
        set(&mut response, CONTENT_RANGE, format!("bytes {}-{}/{size}", bytes.start, bytes.end - 1));
    }
    set(&mut response, ETAG, etag);
    if let Ok(modified) = metadata.modified() {
        set(&mut response, LAST_MODIFIED, httpdate::fmt_http_date(modified));
    }
    let headers = response.headers_mut();
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    Ok(response)
}

/// Size, time and tag of a file.
#[utoipa::path(
    head,
    path = "/v1/files/{path}",
    tag = "files",
    operation_id = "headFile",
    params(("path" = String, Path, description = "As for `GET`")),
    responses((status = 200, description = "As for `GET`, without the bytes"))
)]
pub(in crate::serve) async fn head(
    workspace: State<Arc<Workspace>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    get(workspace, method, uri, headers).await
}

fn set(response: &mut Response, name: HeaderName, value: String) {
    // Only digits, dates and hexadecimal come here, all of which a header takes.
    if let Ok(value) = HeaderValue::from_str(&value) {
        response.headers_mut().insert(name, value);
    }
}

/// The bytes of the range. A file that shrinks meanwhile breaks the stream, so that it is not taken for complete.
fn pieces(file: File, bytes: Range<u64>) -> impl Stream<Item = io::Result<Bytes>> {
    let file = Arc::new(file);
    stream::try_unfold((file, bytes), |(file, bytes)| async move {
        let length = PIECE_BYTES.min(bytes.end - bytes.start);
        if length == 0 {
            return Ok(None);
        }
        let (reader, offset) = (file.clone(), bytes.start);
        let piece = tokio::task::spawn_blocking(move || {
            let mut piece = vec![0; length as usize];
            reader.read_exact_at(&mut piece, offset)?;
            io::Result::Ok(Bytes::from(piece))
        })
        .await
        .map_err(io::Error::other)??;
        Ok(Some((piece, (file, offset + length..bytes.end))))
    })
}
