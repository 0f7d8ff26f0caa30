//! Paths inside a sandbox. The sandbox itself holds a path in its workspace; here only what no path can be is refused.

use crate::api::routes::percent_decode;
use crate::error::{Error, Result};
use crate::identifier::SandboxId;
use crate::raw::RawRequest;
use crate::tenant::admission::SandboxClaim;

/// Refuses what cannot name a file.
pub fn check(pointer: &str, path: &str) -> Result<()> {
    if path.contains('\0') {
        return Err(Error::invalid(pointer, "holds a NUL character"));
    }
    if path.len() > 4096 {
        return Err(Error::invalid(pointer, "is longer than 4096 bytes"));
    }
    if matches!(path, "." | "..") {
        return Err(Error::invalid(pointer, "names a directory"));
    }
    Ok(())
}

/// Route of the control API for a path in clear text.
pub fn control(path: &str) -> String {
    let mut route = String::from("/v1/files/");
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'~') {
            route.push(char::from(byte));
        } else {
            // Slashes and dots as well: URL parsers would otherwise resolve `..` before the sandbox sees it.
            route.push_str(&format!("%{byte:02X}"));
        }
    }
    route
}

/// The sandbox of a raw file route.
pub fn raw_claim(request: &RawRequest) -> Result<SandboxClaim> {
    let id = percent_decode(request.parameter("sandboxId")).unwrap_or_default();
    let sandbox_id = SandboxId::parse(&id).map_err(|error| Error::invalid("/sandboxId", error.to_string()))?;
    if request.parameter("path").is_empty() {
        return Err(Error::invalid("/path", "is empty"));
    }
    Ok(SandboxClaim::Existing { sandbox_id })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_that_a_url_could_read_otherwise_is_encoded() {
        assert_eq!(control("a b/../é?#%"), "/v1/files/a%20b%2F%2E%2E%2F%C3%A9%3F%23%25");
    }
}
