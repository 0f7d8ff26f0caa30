//! Raw files of the workspace: `GET`, `HEAD` and `PUT /v1/files/{path}`.
//!
//! A capability handle on the workspace does the containment: no `..` and no link leads out of it. Names are bytes.

pub(super) mod download;
mod range;
pub(super) mod upload;

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::Router;
use axum::http::Uri;
use axum::routing::get;
use cap_std::ambient_authority;
use cap_std::fs::Dir;
use percent_encoding::percent_decode_str;
use sandbox_api::{ControlErrorCode, WORKSPACE};

use super::settings::Settings;
use super::tree::Credentials;
use crate::http::Problem;

/// The workspace, and whom its files belong to.
pub(super) struct Workspace {
    dir: Dir,
    root: PathBuf,
    owner: Option<Credentials>,
}

pub(super) fn routes(settings: &Settings) -> io::Result<Router> {
    let workspace = Workspace {
        dir: Dir::open_ambient_dir(&settings.root, ambient_authority())?,
        root: settings.root.clone(),
        owner: settings.credentials,
    };
    let methods = get(download::get).head(download::head).put(upload::put);
    Ok(Router::new()
        .route("/v1/files/", methods.clone())
        .route("/v1/files/{*path}", methods)
        .with_state(Arc::new(workspace)))
}

/// The path in a request's target, relative to the workspace. Taken from the raw target, since names are bytes and need
/// not be UTF-8.
fn path(uri: &Uri, root: &Path) -> Result<PathBuf, Problem> {
    let raw = uri.path().strip_prefix("/v1/files/").unwrap_or_default();
    let bytes: Vec<u8> = percent_decode_str(raw).collect();
    if bytes.contains(&0) {
        return Err(Problem::invalid("path: has a NUL byte"));
    }
    let path = Path::new(OsStr::from_bytes(&bytes));
    let relative = if path.is_absolute() {
        path.strip_prefix(WORKSPACE).or_else(|_| path.strip_prefix(root)).map_err(|_| escapes())?
    } else {
        path
    };
    if relative.as_os_str().is_empty() {
        return Err(Problem::new(ControlErrorCode::WrongFileType, "path: the workspace is a directory"));
    }
    Ok(relative.to_owned())
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
        Some(libc::ENAMETOOLONG) => Problem::invalid("path: longer than the file system takes"),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn relative(target: &str) -> Option<PathBuf> {
        path(&target.parse().expect("a good target"), Path::new("/srv/box")).ok()
    }

    #[test]
    fn absolute_paths_are_of_the_workspace_or_refused() {
        assert_eq!(relative("/v1/files/a/b"), Some("a/b".into()));
        assert_eq!(relative("/v1/files//workspace/a"), Some("a".into()));
        assert_eq!(relative("/v1/files/%2Fworkspace%2Fa"), Some("a".into()));
        assert_eq!(relative("/v1/files//srv/box/a"), Some("a".into()));
        assert_eq!(relative("/v1/files//etc/passwd"), None);
        assert_eq!(relative("/v1/files//workspacex/a"), None);
        assert_eq!(relative("/v1/files//workspace"), None);
        assert_eq!(relative("/v1/files/a%00b"), None);
    }

    #[test]
    fn names_are_bytes() {
        let path = relative("/v1/files/%ff%01bad").expect("a path");
        assert_eq!(path.as_os_str().as_bytes(), b"\xff\x01bad");
    }
}
