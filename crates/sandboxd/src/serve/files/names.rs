//! Paths on their way in and out. Names are bytes: see `sandbox_api::files` for the one form that all operations share.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use axum::http::Uri;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode, percent_encode};
use sandbox_api::{ControlErrorCode, PathEncoding, WORKSPACE};

use super::{Workspace, escapes};
use crate::http::Problem;

/// What stands as `%` and two digits.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

/// Longest path, as the kernel has it.
const LONGEST_PATH: usize = 4096;

/// A path as JSON holds it.
pub(super) fn encode(path: &Path) -> (String, PathEncoding) {
    match path.to_str() {
        Some(text) => (text.to_owned(), PathEncoding::Utf8),
        None => (percent(path), PathEncoding::Percent),
    }
}

/// A path as URLs hold it.
pub(super) fn percent(path: &Path) -> String {
    percent_encode(path.as_os_str().as_bytes(), ENCODED).to_string()
}

/// The path that a field of JSON holds, relative to the workspace; empty for the workspace itself.
pub(super) fn decode(
    workspace: &Workspace,
    field: &str,
    text: &str,
    encoding: PathEncoding,
) -> Result<PathBuf, Problem> {
    let bytes = match encoding {
        PathEncoding::Utf8 => text.as_bytes().to_vec(),
        PathEncoding::Percent => unpercent(text).ok_or_else(|| {
            Problem::invalid(format!("{field}: has a % that is not followed by two hexadecimal digits"))
        })?,
    };
    relative(field, bytes, &workspace.root)
}

/// The bytes behind percent-encoding; `None` when it is malformed.
pub(super) fn unpercent(text: &str) -> Option<Vec<u8>> {
    let mut parts = text.split('%');
    parts.next();
    let whole = |part: &str| part.len() >= 2 && part.bytes().take(2).all(|byte| byte.is_ascii_hexdigit());
    parts.all(whole).then(|| percent_decode(text.as_bytes()).collect())
}

/// The path in a request's target after `prefix`, relative to the workspace. Taken from the raw target, since names are
/// bytes and need not be UTF-8.
pub(super) fn target(uri: &Uri, prefix: &str, workspace: &Workspace) -> Result<PathBuf, Problem> {
    let raw = uri.path().strip_prefix(prefix).unwrap_or_default();
    relative("path", percent_decode(raw.as_bytes()).collect(), &workspace.root)
}

/// The same for what cannot be the workspace itself.
pub(super) fn entry_target(uri: &Uri, prefix: &str, workspace: &Workspace) -> Result<PathBuf, Problem> {
    inside(target(uri, prefix, workspace)?)
}

/// Refuses the workspace itself.
pub(super) fn inside(path: PathBuf) -> Result<PathBuf, Problem> {
    if path.as_os_str().is_empty() {
        return Err(Problem::new(ControlErrorCode::WrongFileType, "path: the workspace is a directory"));
    }
    Ok(path)
}

fn relative(field: &str, bytes: Vec<u8>, root: &Path) -> Result<PathBuf, Problem> {
    if bytes.contains(&0) {
        return Err(Problem::invalid(format!("{field}: has a NUL byte")));
    }
    if bytes.len() > LONGEST_PATH {
        return Err(Problem::invalid(format!("{field}: longer than {LONGEST_PATH} bytes")));
    }
    let path = PathBuf::from(OsString::from_vec(bytes));
    if !path.is_absolute() {
        return Ok(path);
    }
    let relative = path
        .strip_prefix(WORKSPACE)
        .or_else(|_| path.strip_prefix(root))
        .map_err(|_| escapes().renamed("path", field))?;
    Ok(relative.to_owned())
}

/// Parent and last component of a path that is to be made, moved or removed.
pub(super) fn split<'a>(field: &str, path: &'a Path) -> Result<(&'a Path, &'a OsStr), Problem> {
    match path.components().next_back() {
        Some(Component::Normal(name)) => Ok((path.parent().unwrap_or(Path::new("")), name)),
        Some(Component::ParentDir) => Err(Problem::invalid(format!("{field}: ends in `..`"))),
        _ => Err(Problem::new(ControlErrorCode::WrongFileType, format!("{field}: is the workspace itself"))),
    }
}

/// Whether a name is left out where hidden entries are.
pub(super) fn is_hidden(name: &OsStr) -> bool {
    name.as_bytes().first() == Some(&b'.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_and_other_bytes_are_percent_encoded() {
        assert_eq!(encode(Path::new("a b/é%")), ("a b/é%".into(), PathEncoding::Utf8));
        let bytes = OsStr::from_bytes(b"d/\xff\x01%");
        assert_eq!(encode(Path::new(bytes)), ("d/%FF%01%25".into(), PathEncoding::Percent));
        assert_eq!(unpercent("d/%FF%01%25").as_deref(), Some(bytes.as_bytes()));
    }

    #[test]
    fn malformed_percent_encoding_is_no_path() {
        for bad in ["%", "a%f", "%zz", "%%41", "%é"] {
            assert_eq!(unpercent(bad), None, "{bad}");
        }
    }

    #[test]
    fn absolute_paths_are_of_the_workspace_or_refused() {
        let path = |text: &str| relative("path", text.as_bytes().to_vec(), Path::new("/srv/box")).ok();
        assert_eq!(path("a/b"), Some("a/b".into()));
        assert_eq!(path("/workspace/a"), Some("a".into()));
        assert_eq!(path("/srv/box/a"), Some("a".into()));
        assert_eq!(path("/workspace"), Some("".into()));
        for bad in ["/etc/passwd", "/workspacex/a", "//etc", "a\0b"] {
            assert_eq!(path(bad), None, "{bad}");
        }
    }
}
