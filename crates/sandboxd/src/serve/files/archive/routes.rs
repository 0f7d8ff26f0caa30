//! The routes of archives.

use std::io::{self, Read};
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use axum::response::Response;
use bytes::{Buf, Bytes};
use futures_util::stream;
use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use percent_encoding::percent_decode_str;
use sandbox_api::{ArchiveExtracted, ArchiveFormat, ControlError, ControlErrorCode};
use tokio::sync::{mpsc, oneshot};

use super::super::destination::open_or_make;
use super::super::globs::Globs;
use super::super::identity::act_as;
use super::super::names::target;
use super::super::upload::declared_length;
use super::super::{Workspace, refused};
use super::{QUEUE, pack, place, spawn, unpack};
use crate::http::{Problem, json};

/// Entries that were left out of an archive: named pipes, sockets and devices.
const OMITTED_HEADER: &str = "x-archive-omitted";

/// Most bytes of files that one archive may hold when the request does not say.
const DEFAULT_BYTES: u64 = 16 << 30;

/// A directory as an archive.
///
/// Names in it are relative to the directory. Links are stored as links. An archive that ends before its end is not
/// whole: something could not be read, or shrank meanwhile.
#[utoipa::path(
    get,
    path = "/v1/archives/{path}",
    tag = "files",
    operation_id = "getArchive",
    params(
        ("path" = String, Path, description = "As for files; empty for the workspace"),
        ("format" = Option<ArchiveFormat>, Query, description = "`tar`, `tar.gz` (the default) or `tar.zst`"),
        ("exclude" = Option<Vec<String>>, Query, description = "Globs of what is left out; may be given several times")
    ),
    responses(
        (status = 200, description = "The archive", body = Vec<u8>, content_type = "application/octet-stream"),
        (status = 403, description = "The path leads out of the workspace, or something in it may not be read", body = ControlError),
        (status = 404, description = "No such directory", body = ControlError),
        (status = 409, description = "Not a directory", body = ControlError),
        (status = 413, description = "More than 200,000 entries in one directory", body = ControlError)
    )
)]
pub(in crate::serve) async fn get(State(workspace): State<Arc<Workspace>>, uri: Uri) -> Result<Response, Problem> {
    let path = target(&uri, "/v1/archives/", &workspace)?;
    let (mut format, mut excluded) = (ArchiveFormat::default(), Vec::new());
    for (name, value) in query(&uri)? {
        match name.as_str() {
            "format" => format = parse_format(&value)?,
            "exclude" => excluded.push(value),
            _ => return Err(unknown(&name)),
        }
    }
    let exclude = Globs::of("exclude", &excluded)?;
    let place = place(&workspace)?;
    let (directory, exclude, omitted) = workspace
        .run_long(move |workspace, cancelled| {
            let (_, directory) = workspace.open_directory(&path)?;
            let omitted = pack::survey(&directory, &exclude, cancelled)?;
            Ok((directory, exclude, omitted))
        })
        .await?;
    let (sender, receiver) = mpsc::channel(QUEUE);
    let owner = workspace.owner;
    spawn(move || {
        let _place = place;
        let packed = act_as(owner, || pack::pack(directory, &exclude, format, &sender));
        if let Err(cause) = packed.and_then(|packed| packed) {
            tracing::warn!(%cause, "an archive was not packed to its end");
            // Breaks the connection, so that what was sent is not taken for all.
            let _ = sender.blocking_send(Err(cause));
        }
    })?;
    let pieces = stream::unfold(receiver, |mut receiver| async move {
        let piece: io::Result<Bytes> = receiver.recv().await?;
        Some((piece, receiver))
    });
    let mut response = Response::new(Body::from_stream(pieces));
    let kind = match format {
        ArchiveFormat::Tar => "application/x-tar",
        ArchiveFormat::TarGz => "application/gzip",
        ArchiveFormat::TarZst => "application/zstd",
    };
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response.headers_mut().insert(OMITTED_HEADER, HeaderValue::from(omitted));
    Ok(response)
}

/// Unpacks an archive into a directory, which is made where it is missing.
///
/// The format is seen from the first bytes. Files are replaced one by one, each whole or not at all; what was written
/// before a fault stays. Refused are names that lead out of the directory, devices and pipes. Set-id bits are dropped,
/// and everything belongs to the sandbox's user.
#[utoipa::path(
    put,
    path = "/v1/archives/{path}",
    tag = "files",
    operation_id = "putArchive",
    params(
        ("path" = String, Path, description = "As for files; empty for the workspace"),
        ("Content-Length" = u64, Header, description = "Bytes of the archive"),
        ("maxBytes" = Option<u64>, Query, description = "Most bytes of all files in it; default 16 GiB")
    ),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses(
        (status = 200, description = "Unpacked", body = ArchiveExtracted),
        (status = 400, description = "Not an archive, or one with entries that are refused", body = ControlError),
        (status = 403, description = "A path leads out of the workspace", body = ControlError),
        (status = 409, description = "Something that is no file is in the way", body = ControlError),
        (status = 411, description = "No declared length", body = ControlError),
        (status = 413, description = "More entries or bytes than are taken", body = ControlError),
        (status = 507, description = "No space left", body = ControlError)
    )
)]
pub(in crate::serve) async fn put(
    State(workspace): State<Arc<Workspace>>,
    uri: Uri,
    headers: HeaderMap,
    mut body: Body,
) -> Result<Response, Problem> {
    let path = target(&uri, "/v1/archives/", &workspace)?;
    declared_length(&headers)?;
    let mut most_bytes = DEFAULT_BYTES;
    for (name, value) in query(&uri)? {
        match name.as_str() {
            "maxBytes" => most_bytes = value.parse().map_err(|_| Problem::invalid("maxBytes: is no number"))?,
            _ => return Err(unknown(&name)),
        }
    }
    let place = place(&workspace)?;
    let directory = workspace.run(move |workspace| open_or_make(&workspace.dir, &path)).await?;
    let (sender, receiver) = mpsc::channel(QUEUE);
    let (told, outcome) = oneshot::channel();
    let owner = workspace.owner;
    spawn(move || {
        let _place = place;
        let source = Received { receiver, piece: Bytes::new(), ended: false };
        let unpacked = act_as(owner, || unpack::unpack(&directory, source, most_bytes));
        // The caller may have left.
        let _ = told.send(unpacked.map_err(refused).and_then(|unpacked| unpacked));
    })?;
    loop {
        let piece = match body.frame().await {
            None => Piece::End,
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => Piece::Data(data),
                Err(_) => continue,
            },
            // Dropping the sender without the end says that there is none.
            Some(Err(_)) => break,
        };
        let ended = matches!(piece, Piece::End);
        // Fails when the unpacking has ended already, which then says why.
        if sender.send(piece).await.is_err() || ended {
            break;
        }
    }
    drop(sender);
    let extracted: ArchiveExtracted = outcome.await.map_err(Problem::internal)??;
    Ok(json(StatusCode::OK, &extracted))
}

/// What comes of the body.
enum Piece {
    Data(Bytes),
    /// All of it has arrived. Without this the caller left, or the connection broke.
    End,
}

/// The body as a blocking reader has it.
struct Received {
    receiver: mpsc::Receiver<Piece>,
    piece: Bytes,
    ended: bool,
}

impl Read for Received {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() && !self.ended {
            match self.receiver.blocking_recv() {
                Some(Piece::Data(bytes)) => self.piece = bytes,
                Some(Piece::End) => self.ended = true,
                None => return Err(io::Error::from(io::ErrorKind::ConnectionAborted)),
            }
        }
        let length = self.piece.len().min(buffer.len());
        self.piece.copy_to_slice(&mut buffer[..length]);
        Ok(length)
    }
}

fn parse_format(text: &str) -> Result<ArchiveFormat, Problem> {
    match text {
        "tar" => Ok(ArchiveFormat::Tar),
        "tar.gz" => Ok(ArchiveFormat::TarGz),
        "tar.zst" => Ok(ArchiveFormat::TarZst),
        _ => Err(Problem::invalid("format: `tar`, `tar.gz` or `tar.zst`")),
    }
}

fn unknown(name: &str) -> Problem {
    let name: String = name.chars().take(40).collect();
    Problem::invalid(format!("query: there is no parameter {name:?}"))
}

/// Parameters in their order; a name may come several times.
fn query(uri: &Uri) -> Result<Vec<(String, String)>, Problem> {
    let decode = |text: &str| {
        let text = text.replace('+', " ");
        let text = percent_decode_str(&text).decode_utf8().map(std::borrow::Cow::into_owned);
        text.map_err(|_| Problem::new(ControlErrorCode::InvalidArguments, "query: is not UTF-8"))
    };
    let pairs = uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Ok((decode(name)?, decode(value)?))
        })
        .collect()
}
