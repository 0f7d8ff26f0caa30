//! Keys of a tenant: `cfo_<tenant>_<keyId>_<secret>`.
//!
//! The second half of a key's id is a signature over its first, so that the Worker turns a stranger's key-shaped string
//! away before any object is touched. The tenant's object keeps the digest of the secret, never the secret.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::signing::{Purpose, Signer};
use crate::error::Result;

/// What every key begins with.
pub const PREFIX: &str = "cfo_";

/// Most characters of a tenant's name.
const LONGEST_TENANT: usize = 32;

/// Characters of the random half of a key's id, and of its signed half.
const HALF: usize = 16;

/// Whether `name` can be a tenant's: `[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?`.
pub fn is_tenant_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=LONGEST_TENANT).contains(&name.len())
        && name.bytes().all(allowed)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

/// Digest of a secret in hexadecimal; what the tenant's object keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SecretDigest(String);

impl SecretDigest {
    pub fn of(secret: &str) -> Self {
        Self(format!("{:x}", Sha256::digest(secret.as_bytes())))
    }

    /// Compares in the same time for every wrong secret.
    pub fn matches(&self, other: &Self) -> bool {
        self.0.as_bytes().ct_eq(other.0.as_bytes()).into()
    }
}

/// A key as its owner presents it, its shape and its id found right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PresentedKey {
    pub tenant: String,
    pub key_id: String,
    pub secret: SecretDigest,
}

impl PresentedKey {
    /// Takes `text` apart; `None` when it is not a key whose id was made here.
    pub fn parse(text: &str, signer: &Signer) -> Option<Self> {
        let mut parts = text.strip_prefix(PREFIX)?.split('_');
        let (tenant, key_id, secret) = (parts.next()?, parts.next()?, parts.next()?);
        let is_hexadecimal = |text: &str| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let well_formed = parts.next().is_none()
            && is_tenant_name(tenant)
            && key_id.len() == 2 * HALF
            && secret.len() == 64
            && is_hexadecimal(key_id)
            && is_hexadecimal(secret);
        if !well_formed || !is_key_id(tenant, key_id, signer) {
            return None;
        }
        Some(Self { tenant: tenant.to_owned(), key_id: key_id.to_owned(), secret: SecretDigest::of(secret) })
    }
}

/// Whether `key_id` was made here for `tenant`.
pub fn is_key_id(tenant: &str, key_id: &str, signer: &Signer) -> bool {
    let Some((random, signature)) = key_id.split_at_checked(HALF) else {
        return false;
    };
    hex::decode(signature).is_ok_and(|signature| signer.verify(Purpose::KeyId, tenant, random.as_bytes(), &signature))
}

/// A key at its making, the only time when its secret is known.
pub struct NewKey {
    pub key_id: String,
    pub digest: SecretDigest,
    /// What its owner is told, once.
    pub text: String,
}

/// Makes a key of `tenant` from three draws of 16 unpredictable bytes.
pub fn make(tenant: &str, signer: &Signer, draw: impl Fn() -> [u8; 16]) -> Result<NewKey> {
    let key_id = new_id(tenant, signer, &draw)?;
    Ok(with_secret(tenant, key_id, draw))
}

/// A new secret for the key of that id.
pub fn with_secret(tenant: &str, key_id: String, draw: impl Fn() -> [u8; 16]) -> NewKey {
    let secret = format!("{}{}", hex::encode(draw()), hex::encode(draw()));
    let text = format!("{PREFIX}{tenant}_{key_id}_{secret}");
    NewKey { key_id, digest: SecretDigest::of(&secret), text }
}

fn new_id(tenant: &str, signer: &Signer, draw: &impl Fn() -> [u8; 16]) -> Result<String> {
    let random = draw();
    let random: String = hex::encode(random).chars().take(HALF).collect();
    let signature = signer.sign(Purpose::KeyId, tenant, random.as_bytes())?;
    let signature: String = hex::encode(signature).chars().take(HALF).collect();
    Ok(format!("{random}{signature}"))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn signer() -> Signer {
        Signer::new(Some("signing-signing-signing"))
    }

    fn made() -> NewKey {
        let draws = Cell::new(0);
        let draw = || {
            draws.set(draws.get() + 1);
            [draws.get(); 16]
        };
        make("team-a", &signer(), draw).unwrap()
    }

    #[test]
    fn a_made_key_is_known_again() {
        let key = made();
        let presented = PresentedKey::parse(&key.text, &signer()).unwrap();
        assert_eq!((presented.tenant.as_str(), presented.key_id.as_str()), ("team-a", key.key_id.as_str()));
        assert!(presented.secret.matches(&key.digest));
        assert!(!key.digest.0.contains(key.text.rsplit('_').next().unwrap()));
    }

    #[test]
    fn what_was_not_made_here_is_no_key() {
        let text = made().text;
        assert!(PresentedKey::parse(&text, &Signer::new(Some("another-another-another"))).is_none());
        assert!(PresentedKey::parse(&text, &Signer::new(None)).is_none());
        let parts: Vec<&str> = text.split('_').collect();
        let changed = |index: usize, part: &str| {
            let mut parts = parts.clone();
            parts[index] = part;
            parts.join("_")
        };
        for wrong in [
            changed(0, "cfx"),
            changed(1, "team-b"),
            changed(1, ""),
            changed(1, "Team-a"),
            changed(2, &"0".repeat(32)),
            changed(2, &parts[2].to_uppercase()),
            changed(2, &parts[2][..31]),
            changed(2, "é"),
            changed(3, ""),
            changed(3, &parts[3][..63]),
            format!("{text}_"),
            format!("{text}0"),
            String::new(),
            "cfo_".into(),
        ] {
            assert!(PresentedKey::parse(&wrong, &signer()).is_none(), "{wrong}");
        }
        // A secret that is wrong but well formed is for the tenant's object to refuse.
        let other = PresentedKey::parse(&changed(3, &"0".repeat(64)), &signer()).unwrap();
        assert!(!other.secret.matches(&made().digest));
    }

    #[test]
    fn a_rotated_key_keeps_its_id() {
        let key = made();
        let rotated = with_secret("team-a", key.key_id.clone(), || [9; 16]);
        let presented = PresentedKey::parse(&rotated.text, &signer()).unwrap();
        assert_eq!(presented.key_id, key.key_id);
        assert!(presented.secret.matches(&rotated.digest) && !presented.secret.matches(&key.digest));
    }

    #[test]
    fn names_of_tenants_are_labels() {
        assert!(["a", "default", "team-a", "0", &"a".repeat(32)].into_iter().all(is_tenant_name));
        assert!(
            ["", "-a", "a-", "A", "a_b", "a b", "é", &"a".repeat(33)].into_iter().all(|name| !is_tenant_name(name))
        );
    }
}
