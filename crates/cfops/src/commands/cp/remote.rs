//! The two sides of a copy.

use crate::failure::{Failure, Result};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Where a file is.
#[derive(Debug, PartialEq)]
pub(super) enum Side {
    Sandbox(Remote),
    Here(PathBuf),
    /// `-`
    Standard,
}

/// A file in a sandbox.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Remote {
    pub(super) sandbox: String,
    pub(super) path: OsString,
}

impl Side {
    pub(super) fn parse(text: &OsStr) -> Self {
        if text == "-" {
            return Self::Standard;
        }
        let bytes = text.as_bytes();
        let is_id = |id: &[u8]| {
            let inner = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-';
            !id.is_empty() && id.len() <= 63 && id.iter().all(inner)
        };
        if let Some(colon) = bytes.iter().position(|byte| *byte == b':')
            && let (Some(id), Some(path)) = (bytes.get(..colon), bytes.get(colon + 1..))
            && is_id(id)
        {
            let sandbox = String::from_utf8_lossy(id).into_owned();
            return Self::Sandbox(Remote { sandbox, path: OsStr::from_bytes(path).to_owned() });
        }
        Self::Here(PathBuf::from(text))
    }
}

impl Remote {
    /// The raw route of the file.
    pub(super) fn file_route(&self) -> String {
        format!("/v1/sandboxes/{}/files/{}", self.sandbox, self.encoded_path())
    }

    /// That of the directory as an archive.
    pub(super) fn archive_route(&self) -> String {
        match self.encoded_path() {
            path if path.is_empty() => format!("/v1/sandboxes/{}/archive", self.sandbox),
            path => format!("/v1/sandboxes/{}/archive/{path}", self.sandbox),
        }
    }

    /// Names are bytes, and none of them is to be taken for a part of the URL.
    fn encoded_path(&self) -> String {
        let mut encoded = String::new();
        for byte in self.path.as_bytes() {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'~' => encoded.push(char::from(*byte)),
                other => encoded.push_str(&format!("%{other:02X}")),
            }
        }
        encoded
    }

    pub(super) fn names_directory(&self) -> bool {
        self.path.is_empty() || self.path.as_bytes().ends_with(b"/")
    }

    /// The name that it has here, where the other side is a directory.
    pub(super) fn name(&self) -> Result<&OsStr> {
        let name = Path::new(&self.path).file_name();
        name.ok_or_else(|| {
            Failure::Usage(format!("{} names nothing that could be copied into a directory", self.told()))
        })
    }

    pub(super) fn told(&self) -> String {
        format!("{}:{}", self.sandbox, self.path.to_string_lossy())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(text: &str) -> Side {
        Side::parse(OsStr::new(text))
    }

    fn remote(sandbox: &str, path: &[u8]) -> Remote {
        Remote { sandbox: sandbox.to_owned(), path: OsStr::from_bytes(path).to_owned() }
    }

    #[test]
    fn what_looks_like_a_sandbox_is_one() {
        assert_eq!(side("demo:a/b:c"), Side::Sandbox(remote("demo", b"a/b:c")));
        assert_eq!(side("demo:"), Side::Sandbox(remote("demo", b"")));
        assert_eq!(side("-"), Side::Standard);
        for here in ["a/b", "./demo:a", "/tmp/x:y", "C:x", ":x", "a b:c", "demo"] {
            assert_eq!(side(here), Side::Here(PathBuf::from(here)), "{here}");
        }
    }

    #[test]
    fn every_byte_of_a_name_that_a_url_could_read_otherwise_is_encoded() {
        let route = |path: &[u8]| remote("demo", path).file_route();
        assert_eq!(route(b"a b/\xff%.txt"), "/v1/sandboxes/demo/files/a%20b%2F%FF%25%2Etxt");
        assert_eq!(route(b"../x"), "/v1/sandboxes/demo/files/%2E%2E%2Fx");
        assert_eq!(remote("demo", b"").archive_route(), "/v1/sandboxes/demo/archive");
        assert_eq!(remote("demo", b"a/b").archive_route(), "/v1/sandboxes/demo/archive/a%2Fb");
    }
}
