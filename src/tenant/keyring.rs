//! The keys of a tenant as its object keeps them, and whether what a caller presents is one of them.

use serde::{Deserialize, Serialize};

use super::credential::Credential;
use super::key::SecretDigest;
use super::limits::Limits;
use super::permissions::Permissions;
use crate::error::{Error, ErrorCode, Result};

/// One key. Its secret is not here, only a digest of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KeyRecord {
    pub key_id: String,
    /// What its owner calls it.
    pub name: String,
    pub permissions: Permissions,
    #[serde(default)]
    pub limits: Limits,
    pub created_at: i64,
    /// Id of the key that made it.
    pub created_by: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotated_at: Option<i64>,
    pub secret: SecretDigest,
    /// The secret before the last rotation, while it is still valid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<Previous>,
}

/// A replaced secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Previous {
    pub secret: SecretDigest,
    pub valid_until: i64,
}

impl KeyRecord {
    /// What the caller may do; 401 when the secret is wrong, or the key is no longer valid.
    pub fn verify(&self, credential: &Credential, now: i64) -> Result<Permissions> {
        let permissions = match credential {
            Credential::Key { secret } if self.knows(secret, now) => self.permissions.clone(),
            Credential::Token { permissions, .. } | Credential::Job { permissions: Some(permissions), .. } => {
                self.permissions.narrowed(permissions)
            }
            Credential::Job { permissions: None, .. } => self.permissions.clone(),
            Credential::Key { .. } | Credential::Root => return Err(invalid()),
        };
        // Only who knows the secret is told what became of the key.
        self.standing(now).map(|()| permissions)
    }

    /// 401 when the key is no longer valid.
    pub fn standing(&self, now: i64) -> Result<()> {
        if self.revoked_at.is_some() {
            return Err(Error::new(ErrorCode::Unauthenticated, "the key was revoked"));
        }
        if self.expires_at.is_some_and(|at| at <= now) {
            return Err(Error::new(ErrorCode::Unauthenticated, "the key has expired"));
        }
        Ok(())
    }

    fn knows(&self, secret: &SecretDigest, now: i64) -> bool {
        let is_current = self.secret.matches(secret);
        let is_previous = self
            .previous
            .as_ref()
            .is_some_and(|previous| previous.secret.matches(secret) & (now < previous.valid_until));
        is_current | is_previous
    }

    /// The same with another secret; the one before stays valid for a while.
    pub fn rotated(self, secret: SecretDigest, now: i64, grace_millis: i64) -> Self {
        let previous = (grace_millis > 0).then(|| Previous { secret: self.secret, valid_until: now + grace_millis });
        Self { secret, previous, rotated_at: Some(now), ..self }
    }
}

/// 401 that says nothing of whether there is such a key.
pub fn invalid() -> Error {
    Error::new(ErrorCode::Unauthenticated, "the key is not valid")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guardrails::Role;

    pub(crate) fn key() -> KeyRecord {
        KeyRecord {
            key_id: "k".into(),
            name: "ci".into(),
            permissions: Permissions::of(Role::Operator),
            limits: Limits::default(),
            created_at: 0,
            created_by: "root".into(),
            expires_at: None,
            revoked_at: None,
            rotated_at: None,
            secret: SecretDigest::of("new"),
            previous: None,
        }
    }

    fn with(secret: &str) -> Credential {
        Credential::Key { secret: SecretDigest::of(secret) }
    }

    fn message(key: &KeyRecord, credential: &Credential, now: i64) -> Option<String> {
        let error = key.verify(credential, now).err()?;
        assert_eq!(error.code, ErrorCode::Unauthenticated);
        Some(error.message)
    }

    #[test]
    fn only_its_secret_opens_a_key() {
        assert_eq!(message(&key(), &with("new"), 0), None);
        assert!(message(&key(), &with("old"), 0).unwrap().contains("not valid"));
        assert!(message(&key(), &Credential::Root, 0).is_some());
    }

    #[test]
    fn the_secret_before_is_valid_for_its_grace() {
        let rotated = key().rotated(SecretDigest::of("newer"), 100, 50);
        assert_eq!(message(&rotated, &with("newer"), 1_000), None);
        assert_eq!(message(&rotated, &with("new"), 149), None);
        assert!(message(&rotated, &with("new"), 150).is_some());
        let at_once = key().rotated(SecretDigest::of("newer"), 100, 0);
        assert!(message(&at_once, &with("new"), 100).is_some());
    }

    #[test]
    fn a_revoked_or_expired_key_says_so_to_its_owner_only() {
        let token = Credential::Token { token_id: "t".into(), permissions: Permissions::of(Role::Admin) };
        let revoked = KeyRecord { revoked_at: Some(1), ..key() };
        assert!(message(&revoked, &with("new"), 2).unwrap().contains("revoked"));
        assert!(message(&revoked, &token, 2).unwrap().contains("revoked"));
        assert!(message(&revoked, &with("other"), 2).unwrap().contains("not valid"));
        let expiring = KeyRecord { expires_at: Some(10), ..key() };
        assert_eq!(message(&expiring, &with("new"), 9), None);
        assert!(message(&expiring, &with("new"), 10).unwrap().contains("expired"));
    }

    #[test]
    fn a_token_never_does_more_than_its_key() {
        let token = |role| Credential::Token { token_id: "t".into(), permissions: Permissions::of(role) };
        assert_eq!(key().verify(&token(Role::Admin), 0).unwrap().role, Role::Operator);
        assert_eq!(key().verify(&token(Role::Viewer), 0).unwrap().role, Role::Viewer);
    }
}
