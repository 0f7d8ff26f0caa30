//! From what a caller presents to who they are, before any object is touched.
//!
//! `WORKER_API_KEY_SECRET` is the root key of tenant `default`; two values separated by a comma are both valid while one
//! replaces the other. Unset, nothing is served. Compares take the same time for every wrong key.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

use crate::error::{Error, ErrorCode, Result};
use crate::guardrails::Role;

/// Tenant of the root key.
pub const DEFAULT_TENANT: &str = "default";

/// Name of the root key in the audit.
const ROOT_KEY_ID: &str = "root";

/// A shorter root key could be guessed; it counts as not configured.
const SHORTEST_ROOT_KEY: usize = 16;

/// Who calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Principal {
    pub tenant: String,
    pub key_id: String,
    #[serde(skip, default = "admin")]
    pub role: Role,
}

fn admin() -> Role {
    Role::Admin
}

/// Decides who presents `authorization`, the value of the header of that name.
pub fn authenticate(configured: Option<&str>, authorization: Option<&str>) -> Result<Principal> {
    let roots: Vec<&str> =
        configured.unwrap_or_default().split(',').map(str::trim).filter(|key| key.len() >= SHORTEST_ROOT_KEY).collect();
    if roots.is_empty() {
        let message = format!(
            "WORKER_API_KEY_SECRET is not set to at least {SHORTEST_ROOT_KEY} characters; set it with `wrangler secret put`"
        );
        return Err(Error::new(ErrorCode::NotConfigured, message));
    }
    let presented = authorization.and_then(bearer).ok_or_else(|| {
        Error::new(ErrorCode::Unauthenticated, "send the key in the header `Authorization: Bearer <key>`")
    })?;
    let digest = Sha256::digest(presented.as_bytes());
    let known = roots.iter().fold(Choice::from(0), |known, root| {
        known | Sha256::digest(root.as_bytes()).as_slice().ct_eq(digest.as_slice())
    });
    if bool::from(known) {
        Ok(Principal { tenant: DEFAULT_TENANT.to_owned(), key_id: ROOT_KEY_ID.to_owned(), role: Role::Admin })
    } else {
        Err(Error::new(ErrorCode::Unauthenticated, "the key is not valid"))
    }
}

/// The token of a bearer credential; the scheme's case does not matter (RFC 9110, section 11.1).
pub fn bearer(authorization: &str) -> Option<&str> {
    let (scheme, token) = authorization.trim().split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "0123456789abcdef";

    fn code(configured: Option<&str>, authorization: Option<&str>) -> Option<ErrorCode> {
        authenticate(configured, authorization).err().map(|error| error.code)
    }

    #[test]
    fn nothing_is_open_without_a_configured_key() {
        for configured in [None, Some(""), Some(" "), Some(","), Some("short")] {
            assert_eq!(code(configured, Some("Bearer x")), Some(ErrorCode::NotConfigured));
            assert_eq!(code(configured, Some("Bearer ")), Some(ErrorCode::NotConfigured));
        }
    }

    #[test]
    fn only_the_whole_key_passes() {
        for wrong in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer 0123456789abcde",
            "Bearer 0123456789abcdefg",
            "Basic 0123456789abcdef",
            KEY,
        ] {
            assert_eq!(code(Some(KEY), Some(wrong)), Some(ErrorCode::Unauthenticated), "{wrong:?}");
        }
        assert_eq!(code(Some(KEY), None), Some(ErrorCode::Unauthenticated));
        assert_eq!(code(Some(KEY), Some("Bearer 0123456789abcdef")), None);
        assert_eq!(code(Some(KEY), Some("bearer  0123456789abcdef ")), None);
    }

    #[test]
    fn both_keys_are_valid_while_one_replaces_the_other() {
        let both = Some("0123456789abcdef, fedcba9876543210");
        assert_eq!(code(both, Some("Bearer 0123456789abcdef")), None);
        assert_eq!(code(both, Some("Bearer fedcba9876543210")), None);
        assert_eq!(code(both, Some("Bearer 0123456789abcdef, fedcba9876543210")), Some(ErrorCode::Unauthenticated));
    }
}
