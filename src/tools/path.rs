//! Paths inside a sandbox. The sandbox itself holds a path in its workspace; here only what no path can be is refused.
//!
//! Names are bytes. A path in JSON is text, and where its bytes are not UTF-8 it is percent-encoded as in a URL, which
//! `pathEncoding` says. Every tool takes what every other one answers.

use sandbox_api::PathEncoding;

use crate::api::routes::percent_decode;
use crate::error::{Error, ErrorCode, Result};
use crate::identifier::SandboxId;
use crate::raw::RawRequest;
use crate::tenant::admission::SandboxClaim;

/// Routes of the control API that are followed by a path.
pub const FILES: &str = "/v1/files/";
pub const ENTRIES: &str = "/v1/entries/";
pub const DIRECTORIES: &str = "/v1/directories/";
pub const WATCHES: &str = "/v1/watches/";
pub const ARCHIVES: &str = "/v1/archives/";

/// Longest path, as the kernel has it.
const LONGEST: usize = 4096;

/// Refuses what cannot name a file.
pub fn check(pointer: &str, path: &str, encoding: PathEncoding) -> Result<()> {
    check_directory(pointer, path, encoding)?;
    if bytes(pointer, path, encoding)? == b"." {
        return Err(Error::invalid(pointer, "names a directory"));
    }
    Ok(())
}

/// Refuses what cannot name anything; a directory may be the workspace itself.
pub fn check_directory(pointer: &str, path: &str, encoding: PathEncoding) -> Result<()> {
    let bytes = bytes(pointer, path, encoding)?;
    if bytes.contains(&0) {
        return Err(Error::invalid(pointer, "holds a NUL character"));
    }
    if bytes.len() > LONGEST {
        return Err(Error::invalid(pointer, format!("is longer than {LONGEST} bytes")));
    }
    // Alone it is resolved by URL parsers also where it is encoded, and the sandbox would see the path of another route.
    if bytes == b".." {
        let message = format!("{}: leads out of the workspace", pointer.trim_start_matches('/'));
        return Err(Error::new(ErrorCode::Forbidden, message).detail("reason", "path_escapes"));
    }
    Ok(())
}

/// The bytes that a path stands for.
fn bytes(pointer: &str, path: &str, encoding: PathEncoding) -> Result<Vec<u8>> {
    if encoding == PathEncoding::Utf8 {
        return Ok(path.as_bytes().to_vec());
    }
    let whole = |part: &str| part.bytes().take(2).filter(u8::is_ascii_hexdigit).count() == 2;
    if !path.split('%').skip(1).all(whole) {
        return Err(Error::invalid(pointer, "has a % that is not followed by two hexadecimal digits"));
    }
    Ok(percent_encoding::percent_decode_str(path).collect())
}

/// Target of a request to the control API: one of the routes above, and a path.
pub fn control(route: &str, path: &str, encoding: PathEncoding) -> Result<String> {
    let mut target = route.to_owned();
    for byte in bytes("/path", path, encoding)? {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'~') {
            target.push(char::from(byte));
        } else {
            // Slashes and dots as well: URL parsers would otherwise resolve `..` before the sandbox sees it.
            target.push_str(&format!("%{byte:02X}"));
        }
    }
    Ok(target)
}

/// A query, from the parameters that are given.
pub fn query<'a>(parameters: impl IntoIterator<Item = (&'a str, Option<String>)>) -> String {
    let given = parameters.into_iter().filter_map(|(name, value)| {
        let value = value?;
        Some(format!("{name}={}", percent_encoding::utf8_percent_encode(&value, percent_encoding::NON_ALPHANUMERIC)))
    });
    let query = given.collect::<Vec<_>>().join("&");
    if query.is_empty() { query } else { format!("?{query}") }
}

/// The sandbox of a raw file route.
pub fn raw_claim(request: &RawRequest) -> Result<SandboxClaim> {
    let id = percent_decode(request.parameter("sandboxId")).unwrap_or_default();
    let sandbox_id = SandboxId::parse(&id).map_err(|error| Error::invalid("/sandboxId", error.to_string()))?;
    Ok(SandboxClaim::Existing { sandbox_id })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_that_a_url_could_read_otherwise_is_encoded() {
        let control = |path, encoding| control(FILES, path, encoding).unwrap();
        assert_eq!(control("a b/../é?#%", PathEncoding::Utf8), "/v1/files/a%20b%2F%2E%2E%2F%C3%A9%3F%23%25");
        assert_eq!(control("d/%ff%25", PathEncoding::Percent), "/v1/files/d%2F%FF%25");
    }

    #[test]
    fn what_cannot_be_a_path_is_refused_by_its_field() {
        for (path, encoding) in [
            ("a\0b", PathEncoding::Utf8),
            ("a%00b", PathEncoding::Percent),
            ("100%", PathEncoding::Percent),
            ("%4", PathEncoding::Percent),
            ("%zz", PathEncoding::Percent),
        ] {
            assert!(check("/from", path, encoding).unwrap_err().message.starts_with("from:"), "{path}");
        }
        assert!(check("/path", &"x".repeat(5000), PathEncoding::Utf8).is_err());
        assert!(check("/path", ".", PathEncoding::Utf8).is_err());
        assert!(check("/path", "%2e", PathEncoding::Percent).is_err());
        assert!(check_directory("/path", "", PathEncoding::Utf8).is_ok());
        assert!(check("/path", "100%", PathEncoding::Utf8).is_ok());
    }

    #[test]
    fn the_directory_above_is_an_escape_for_every_tool() {
        for (path, encoding) in
            [("..", PathEncoding::Utf8), ("..", PathEncoding::Percent), ("%2e%2E", PathEncoding::Percent)]
        {
            for refused in [check("/to", path, encoding), check_directory("/to", path, encoding)] {
                let error = refused.unwrap_err();
                assert_eq!(
                    (error.code, error.message.as_str()),
                    (ErrorCode::Forbidden, "to: leads out of the workspace")
                );
                assert_eq!(error.details["reason"], "path_escapes");
            }
        }
        assert!(check("/path", "%2e%2e", PathEncoding::Utf8).is_ok(), "a name as it stands");
    }

    #[test]
    fn only_given_parameters_are_in_a_query() {
        assert_eq!(query([("a", None), ("b", None)]), "");
        assert_eq!(
            query([("a", Some("x y&=%".into())), ("b", None), ("c", Some("1".into()))]),
            "?a=x%20y%26%3D%25&c=1"
        );
    }
}
