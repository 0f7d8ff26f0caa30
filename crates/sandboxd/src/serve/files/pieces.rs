//! Uploads in pieces: `PUT /v1/files/{path}` with `Content-Range`.
//!
//! What has arrived is one hidden file in a directory of its own at the top of the workspace, and nothing in memory: an upload
//! goes on after the daemon was replaced, and also after a piece that broke off. The file's name tells which upload it is,
//! its size how far it got, and a lock on it who writes. The last piece moves it to its destination.

use std::collections::hash_map::DefaultHasher;
use std::fs::File;
use std::hash::{Hash, Hasher};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::body::Body;
use axum::http::HeaderMap;
use axum::response::Response;
use cap_std::fs::{Dir, OpenOptions, OpenOptionsExt};
use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::header::CONTENT_RANGE;
use rustix::fs::FlockOperation;
use sandbox_api::{ControlErrorCode, FileWritten, UPLOAD_ID_HEADER, UploadProgress};

use super::destination::Destination;
use super::precondition::Precondition;
use super::upload::GATHER_BYTES;
use super::{Workspace, not_a_file, refused};
use crate::http::{Problem, json, random_hex};

/// Where pieces are gathered, below the workspace.
pub(super) const DIRECTORY: &str = ".sandboxd-uploads";

/// An upload without a new piece for so long is removed.
const STALE: Duration = Duration::from_secs(24 * 60 * 60);

/// Uploads in pieces that are under way in a sandbox at once.
const MOST: usize = 64;

/// What `Content-Range` says.
#[derive(Debug, PartialEq, Eq)]
enum Range {
    /// How far did it get?
    Question { total: u64 },
    /// `first` to `last`, both included.
    Piece { first: u64, last: u64, total: u64 },
}

/// Answers one piece or question.
pub(super) async fn put(
    workspace: &Arc<Workspace>,
    path: PathBuf,
    headers: &HeaderMap,
    length: u64,
    precondition: Precondition,
    mut body: Body,
) -> Result<Response, Problem> {
    let range = headers.get(CONTENT_RANGE).and_then(|value| value.to_str().ok()).and_then(parse);
    let range = range.ok_or_else(|| {
        Problem::invalid("Content-Range: has the form `bytes 0-99/1000` with a known total, or `bytes */1000`")
    })?;
    let id = headers.get(UPLOAD_ID_HEADER).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    let (first, last, total) = match range {
        Range::Question { total } => {
            if length != 0 {
                return Err(Problem::invalid("Content-Length: a question how far an upload got has no body"));
            }
            let progress = workspace
                .run(move |workspace| {
                    let key = Key::of(&Destination::resolve(workspace, &path)?, total);
                    let found = Store::open(workspace)?.map(|store| store.find(&key, id.as_deref())).transpose()?;
                    let found = found.flatten();
                    let received = found.as_ref().map_or(0, |upload| upload.received);
                    Ok(UploadProgress { upload_id: found.map(|upload| upload.id), received, total })
                })
                .await?;
            return Ok(json(StatusCode::ACCEPTED, &progress));
        }
        Range::Piece { first, last, total } => (first, last, total),
    };
    if length != last - first + 1 {
        return Err(Problem::invalid(format!("Content-Length: the range has {} bytes", last - first + 1)));
    }
    let (mut upload, precondition) = workspace
        .run(move |workspace| Ok((Upload::resume(workspace, &path, first, total, id, &precondition)?, precondition)))
        .await?;
    let mut gathered = Vec::new();
    while let Some(frame) = body.frame().await {
        // What has arrived is kept: the next piece begins there.
        let Ok(frame) = frame else {
            upload = workspace.run(move |_| upload.write(&gathered)).await?;
            return Err(broken(&upload));
        };
        let Ok(data) = frame.into_data() else { continue };
        gathered.extend_from_slice(&data);
        if gathered.len() >= GATHER_BYTES {
            let bytes = std::mem::take(&mut gathered);
            upload = workspace.run(move |_| upload.write(&bytes)).await?;
        }
    }
    upload = workspace.run(move |_| upload.write(&gathered)).await?;
    if upload.received != last + 1 {
        return Err(broken(&upload));
    }
    if upload.received < total {
        let progress = UploadProgress { upload_id: Some(upload.id), received: upload.received, total };
        return Ok(json(StatusCode::ACCEPTED, &progress));
    }
    let written = workspace.run(move |workspace| upload.commit(workspace, &precondition)).await?;
    Ok(json(if written.created { StatusCode::CREATED } else { StatusCode::OK }, &written))
}

fn broken(upload: &Upload) -> Problem {
    let message =
        format!("the piece ended early; {} bytes of the upload have arrived: go on from there", upload.received);
    Problem::new(ControlErrorCode::UploadAborted, message)
}

fn conflict(received: u64) -> Problem {
    let message = format!("Content-Range: {received} bytes of this upload have arrived; the next piece begins there");
    Problem::new(ControlErrorCode::UploadConflict, message)
}

fn parse(header: &str) -> Option<Range> {
    let (range, total) = header.trim().strip_prefix("bytes ")?.trim().split_once('/')?;
    let number =
        |text: &str| if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse::<u64>().ok() } else { None };
    let total = number(total)?;
    if range == "*" {
        return Some(Range::Question { total });
    }
    let (first, last) = range.split_once('-')?;
    let (first, last) = (number(first)?, number(last)?);
    (first <= last && last < total).then_some(Range::Piece { first, last, total })
}

/// What an upload without a name is known by.
struct Key {
    path: u64,
    total: u64,
}

impl Key {
    fn of(destination: &Destination, total: u64) -> Self {
        let mut hasher = DefaultHasher::new();
        let plain: PathBuf = destination.path.components().collect();
        plain.as_os_str().as_bytes().hash(&mut hasher);
        Self { path: hasher.finish(), total }
    }
}

/// The directory of pieces.
struct Store {
    directory: Dir,
}

/// What is there of an upload.
struct Known {
    name: String,
    id: String,
    received: u64,
}

impl Store {
    /// `None` when no upload in pieces is under way.
    fn open(workspace: &Workspace) -> Result<Option<Self>, Problem> {
        match workspace.dir.open_dir(DIRECTORY) {
            Ok(directory) => Ok(Some(Self { directory })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(refused(error)),
        }
    }

    fn open_or_make(workspace: &Workspace) -> Result<Self, Problem> {
        match workspace.dir.create_dir(DIRECTORY) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(refused(error)),
            _ => {}
        }
        Self::open(workspace)?.ok_or_else(|| {
            Problem::new(
                ControlErrorCode::Unavailable,
                "the directory of uploads was removed in this moment; try again",
            )
        })
    }

    /// The upload of that id, or that the path and the total name. Removes what is stale on the way.
    fn find(&self, key: &Key, id: Option<&str>) -> Result<Option<Known>, Problem> {
        let mut found = None;
        for entry in self.directory.entries().map_err(refused)? {
            let entry = entry.map_err(refused)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some((upload_id, total, path)) = parts(&name) else { continue };
            let Ok(metadata) = entry.metadata() else { continue };
            if stale(&metadata) {
                let _ = self.directory.remove_file(&name);
                continue;
            }
            if (total, path) == (key.total, key.path) && id.is_none_or(|id| id == upload_id) {
                found = Some(Known { id: upload_id.to_owned(), received: metadata.len(), name });
            }
        }
        Ok(found)
    }

    fn count(&self) -> Result<usize, Problem> {
        Ok(self.directory.entries().map_err(refused)?.count())
    }
}

/// `{id}.{total}.{hash of the path}`
fn parts(name: &str) -> Option<(&str, u64, u64)> {
    let mut parts = name.split('.');
    let (id, total, path) = (parts.next()?, parts.next()?, parts.next()?);
    let parsed = (id, total.parse().ok()?, u64::from_str_radix(path, 16).ok()?);
    parts.next().is_none().then_some(parsed)
}

fn stale(metadata: &cap_std::fs::Metadata) -> bool {
    let age = metadata.modified().ok().and_then(|at| SystemTime::now().duration_since(at.into_std()).ok());
    age.is_some_and(|age| age > STALE)
}

/// Removes what an earlier boot left and nobody will go on with.
pub(super) fn sweep(dir: &Dir) {
    let Ok(directory) = dir.open_dir(DIRECTORY) else { return };
    for entry in directory.entries().into_iter().flatten().flatten().take(MOST * 16) {
        if entry.metadata().is_ok_and(|metadata| stale(&metadata)) {
            let _ = directory.remove_file(entry.file_name());
        }
    }
    let _ = dir.remove_dir(DIRECTORY);
}

/// A piece on its way. The file is locked as long as this lives.
struct Upload {
    destination: Destination,
    store: Store,
    name: String,
    id: String,
    file: File,
    received: u64,
    total: u64,
}

impl Upload {
    fn resume(
        workspace: &Workspace,
        path: &Path,
        first: u64,
        total: u64,
        id: Option<String>,
        precondition: &Precondition,
    ) -> Result<Self, Problem> {
        let destination = Destination::resolve(workspace, path)?;
        destination.check(precondition)?;
        let key = Key::of(&destination, total);
        let store = Store::open_or_make(workspace)?;
        let known = store.find(&key, id.as_deref())?;
        let known = match known {
            None if first == 0 && id.is_none() => None,
            None => return Err(conflict(0)),
            // A first piece without a name begins anew, whatever is there: its sender knows of nothing.
            Some(known) if first == 0 && id.is_none() => {
                store.lock(&known.name)?;
                store.directory.remove_file(&known.name).map_err(refused)?;
                None
            }
            Some(known) if first != known.received => return Err(conflict(known.received)),
            known => known,
        };
        let (name, id) = match known {
            Some(known) => (known.name, known.id),
            None => {
                if store.count()? >= MOST {
                    let message = format!("{MOST} uploads in pieces are under way in this sandbox already");
                    return Err(Problem::new(ControlErrorCode::Unavailable, message));
                }
                let id = random_hex(8).map_err(Problem::internal)?;
                let name = format!("{id}.{total}.{:016x}", key.path);
                let mut options = OpenOptions::new();
                options.write(true).create_new(true).mode(0o600);
                store.directory.open_with(&name, &options).map_err(refused)?;
                (name, id)
            }
        };
        let file = store.lock(&name)?;
        // Another request may have written since the look.
        let received = file.metadata().map_err(refused)?.len();
        if received != first {
            return Err(conflict(received));
        }
        Ok(Self { destination, store, name, id, file, received, total })
    }

    fn write(mut self, bytes: &[u8]) -> Result<Self, Problem> {
        self.file.write_all_at(bytes, self.received).map_err(refused)?;
        self.received += bytes.len() as u64;
        Ok(self)
    }

    fn commit(self, workspace: &Workspace, precondition: &Precondition) -> Result<FileWritten, Problem> {
        if self.file.metadata().map_err(refused)?.len() != self.total {
            return Err(conflict(self.received));
        }
        let source = (&self.store.directory, Path::new(&self.name));
        let written = self.destination.replace(workspace, &self.file, source, precondition)?;
        // Succeeds when it was the last one.
        let _ = workspace.dir.remove_dir(DIRECTORY);
        Ok(written)
    }
}

impl Store {
    /// Opens the gathered bytes for one writer. Commands may have put anything there: no link, no pipe.
    fn lock(&self, name: &str) -> Result<File, Problem> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY);
        let file = self.directory.open_with(name, &options).map_err(refused)?.into_std();
        if !file.metadata().map_err(refused)?.is_file() {
            return Err(not_a_file());
        }
        match rustix::fs::flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(file),
            Err(rustix::io::Errno::AGAIN) => {
                let message = "Content-Range: another piece of this upload is being written";
                Err(Problem::new(ControlErrorCode::UploadConflict, message))
            }
            Err(error) => Err(refused(error.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_has_a_first_a_last_and_a_total() {
        assert_eq!(parse("bytes 0-99/1000"), Some(Range::Piece { first: 0, last: 99, total: 1000 }));
        assert_eq!(parse("bytes 999-999/1000"), Some(Range::Piece { first: 999, last: 999, total: 1000 }));
        assert_eq!(parse("bytes */1000"), Some(Range::Question { total: 1000 }));
        for bad in [
            "",
            "bytes",
            "bytes 0-99",
            "bytes 0-99/*",
            "bytes 5-4/10",
            "bytes 0-10/10",
            "lines 0-1/2",
            "bytes -5/10",
            "bytes 0-/10",
            "bytes +1-2/10",
            "bytes 0-18446744073709551615/18446744073709551615",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_name_of_the_gathered_bytes_says_whose_they_are() {
        assert_eq!(parts("abc.10.00000000000000ff"), Some(("abc", 10, 255)));
        for bad in ["", "abc", "abc.x.ff", "abc.1.zz", "abc.1.ff.more"] {
            assert_eq!(parts(bad), None, "{bad}");
        }
    }
}
