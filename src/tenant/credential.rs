//! From what a caller presents to who they say they are, before any object is touched.
//!
//! `WORKER_API_KEY_SECRET` is the root key; two values separated by a comma are both valid while one replaces the other.
//! Unset, nothing is served. The root key is an admin without limits of whatever tenant the header `X-Tenant` names, of
//! `default` without one. Any other key, and any token, belongs to one tenant, whose object has the last word on it.
//! Compares take the same time for every wrong key.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

use super::key::{self, PresentedKey, SecretDigest};
use super::keyring::{self, KeyRecord};
use super::permissions::Permissions;
use super::signing::Signer;
use super::token::{self, ROOT_KEY_ID};
use crate::error::{Error, ErrorCode, Result};
use crate::guardrails::Role;

/// Tenant of the root key when no other is named.
pub const DEFAULT_TENANT: &str = "default";

/// A shorter root key could be guessed; it counts as not configured.
const SHORTEST_ROOT_KEY: usize = 16;

/// What the Worker knows keys by.
pub struct Configured<'a> {
    /// `WORKER_API_KEY_SECRET`.
    pub root_key: Option<&'a str>,
    /// Of `SIGNING_SECRET`.
    pub signer: &'a Signer,
}

/// What a request says of its caller.
#[derive(Clone, Debug, Default)]
pub struct Presented {
    /// The header `Authorization`, as sent.
    pub authorization: Option<String>,
    /// The header `X-Tenant`, as sent.
    pub tenant: Option<String>,
}

/// Who calls, as far as the Worker can tell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Principal {
    pub tenant: String,
    pub key_id: String,
    pub credential: Credential,
}

impl Principal {
    /// What the caller may do; `key` is the one of that id, where there is one. 401 when it is not valid.
    pub fn permissions(&self, key: Option<&KeyRecord>, now: i64) -> Result<Permissions> {
        let is_root = self.key_id == ROOT_KEY_ID;
        match (&self.credential, key) {
            (Credential::Root, _) => Ok(Permissions::of(Role::Admin)),
            (Credential::Token { permissions, .. }, _) if is_root => Ok(permissions.clone()),
            (Credential::Job { permissions, .. }, _) if is_root => {
                Ok(permissions.clone().unwrap_or_else(|| Permissions::of(Role::Admin)))
            }
            (credential, Some(key)) => key.verify(credential, now),
            (_, None) => Err(keyring::invalid()),
        }
    }

    /// Whose idempotency keys a call uses: those of its key, or those of the tokens of that key that may do the same.
    pub fn holder(&self) -> String {
        match &self.credential {
            Credential::Root | Credential::Key { .. } | Credential::Job { .. } => self.key_id.clone(),
            Credential::Token { permissions, .. } => {
                let text = serde_json::to_string(permissions).unwrap_or_default();
                format!("{}/{:x}", self.key_id, Sha256::digest(text.as_bytes()))
            }
        }
    }
}

/// What was presented, for the tenant's object to decide on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum Credential {
    /// The root key; there is nothing left to decide.
    Root,
    #[serde(rename_all = "camelCase")]
    Key { secret: SecretDigest },
    #[serde(rename_all = "camelCase")]
    Token { token_id: String, permissions: Permissions },
    /// A job that carries out what this key asked for, with what the token that asked may do at most. Nobody can present it.
    #[serde(rename_all = "camelCase")]
    Job {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        permissions: Option<Permissions>,
        /// The token that asked.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token_id: Option<String>,
        /// When the sandbox was made that the call was asked about.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sandbox_created_at: Option<i64>,
    },
}

/// Decides who calls.
pub fn authenticate(configured: &Configured<'_>, presented: &Presented, now: i64) -> Result<Principal> {
    let roots: Vec<&str> = configured.root_key.unwrap_or_default().split(',').map(str::trim).collect();
    let roots: Vec<&str> = roots.into_iter().filter(|key| key.len() >= SHORTEST_ROOT_KEY).collect();
    if roots.is_empty() {
        let message = format!(
            "WORKER_API_KEY_SECRET is not set to at least {SHORTEST_ROOT_KEY} characters; set it with `wrangler secret put`"
        );
        return Err(Error::new(ErrorCode::NotConfigured, message));
    }
    let text = presented.authorization.as_deref().and_then(bearer).ok_or_else(|| {
        Error::new(ErrorCode::Unauthenticated, "send the key in the header `Authorization: Bearer <key>`")
    })?;
    let digest = Sha256::digest(text.as_bytes());
    let is_root = roots.iter().fold(Choice::from(0), |known, root| {
        known | Sha256::digest(root.as_bytes()).as_slice().ct_eq(digest.as_slice())
    });
    let named = presented.tenant.as_deref();
    if bool::from(is_root) {
        let tenant = named.unwrap_or(DEFAULT_TENANT);
        if !key::is_tenant_name(tenant) {
            let message =
                "the header X-Tenant holds 1 to 32 characters of a-z, 0-9 and -, and neither begins nor ends with -";
            return Err(Error::new(ErrorCode::InvalidArguments, message).detail("header", "x-tenant"));
        }
        return Ok(Principal {
            tenant: tenant.to_owned(),
            key_id: ROOT_KEY_ID.to_owned(),
            credential: Credential::Root,
        });
    }
    let principal = if token::looks_like_token(text) {
        let token = token::read(text, configured.signer, now)?;
        let credential = Credential::Token { token_id: token.claims.jti, permissions: token.claims.permissions };
        Principal { tenant: token.claims.tenant, key_id: token.key_id, credential }
    } else {
        let key = PresentedKey::parse(text, configured.signer).ok_or_else(keyring::invalid)?;
        Principal { tenant: key.tenant, key_id: key.key_id, credential: Credential::Key { secret: key.secret } }
    };
    if named.is_some_and(|named| named != principal.tenant) {
        let message = "the header X-Tenant names another tenant than that of the key";
        return Err(Error::new(ErrorCode::Forbidden, message).detail("header", "x-tenant"));
    }
    Ok(principal)
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
    const NOW: i64 = 1_800_000_000_000;

    fn signer() -> Signer {
        Signer::new(Some("signing-signing-signing"))
    }

    fn of_tenant(root_key: Option<&str>, authorization: Option<&str>, tenant: Option<&str>) -> Result<Principal> {
        let presented =
            Presented { authorization: authorization.map(str::to_owned), tenant: tenant.map(str::to_owned) };
        authenticate(&Configured { root_key, signer: &signer() }, &presented, NOW)
    }

    fn code(root_key: Option<&str>, authorization: Option<&str>) -> Option<ErrorCode> {
        of_tenant(root_key, authorization, None).err().map(|error| error.code)
    }

    #[test]
    fn nothing_is_open_without_a_configured_key() {
        let made = key::make("default", &signer(), || [1; 16]).unwrap();
        let key = format!("Bearer {}", made.text);
        for configured in [None, Some(""), Some(" "), Some(","), Some("short")] {
            for presented in ["Bearer x", "Bearer ", &key] {
                assert_eq!(code(configured, Some(presented)), Some(ErrorCode::NotConfigured));
            }
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

    #[test]
    fn the_root_key_names_a_tenant_and_other_keys_have_theirs() {
        let root = "Bearer 0123456789abcdef";
        let tenant = |named| of_tenant(Some(KEY), Some(root), named).map(|principal| principal.tenant);
        assert_eq!(tenant(None).unwrap(), "default");
        assert_eq!(tenant(Some("team-a")).unwrap(), "team-a");
        for bad in ["", "A", "a/b", "a_b", "-", "é"] {
            assert_eq!(tenant(Some(bad)).unwrap_err().code, ErrorCode::InvalidArguments, "{bad:?}");
        }
        let made = key::make("team-b", &signer(), || [1; 16]).unwrap();
        let key = format!("Bearer {}", made.text);
        let principal = of_tenant(Some(KEY), Some(&key), Some("team-b")).unwrap();
        assert_eq!((principal.tenant.as_str(), principal.key_id), ("team-b", made.key_id));
        assert_eq!(principal.credential, Credential::Key { secret: made.digest });
        assert_eq!(of_tenant(Some(KEY), Some(&key), Some("team-a")).unwrap_err().code, ErrorCode::Forbidden);
    }

    #[test]
    fn a_token_says_whose_it_is_and_what_it_may() {
        let viewer = Permissions::of(Role::Viewer);
        let token = token::make(&signer(), "team-a", ROOT_KEY_ID, "t1".into(), viewer.clone(), NOW, 60).unwrap();
        let principal = of_tenant(Some(KEY), Some(&format!("Bearer {token}")), None).unwrap();
        assert_eq!((principal.tenant.as_str(), principal.key_id.as_str()), ("team-a", "root"));
        assert_eq!(principal.credential, Credential::Token { token_id: "t1".into(), permissions: viewer });
    }
}
