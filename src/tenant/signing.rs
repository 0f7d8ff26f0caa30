//! What the Worker signs, so that it knows its own again without asking an object: ids of keys, and short-lived tokens; and the keys
//! that it seals with.
//!
//! `SIGNING_SECRET` may hold several values separated by commas: the first signs, all verify, so that it can be replaced
//! while what the earlier one signed is still in use. Every use has its own purpose in the signed text; a signature made
//! for one never verifies for another.

use hkdf::Hkdf;
use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::error::{Error, ErrorCode, Result};

/// A shorter value could be guessed; it counts as not configured.
const SHORTEST_SECRET: usize = 16;

/// Tells keys of this service from those that others may make of the same secret.
const HKDF_SALT: &[u8] = b"cloudflare-ops";

/// What a signature is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The id of a key of a tenant.
    KeyId,
    /// The key of a tenant's tokens, derived.
    TokenKey,
    /// The arguments of a call, as the books compare them.
    Arguments,
    /// The key of a tenant's webhooks, derived.
    Webhook,
    /// What a client of MCP brings back when it goes on with a call.
    RequestState,
    /// The key that one secret of a tenant is sealed with, derived.
    Sealing,
    /// The name of the keys that secrets of a tenant are sealed with, derived.
    SealingKeyName,
}

impl Purpose {
    fn label(self) -> &'static str {
        match self {
            Self::KeyId => "key-id",
            Self::TokenKey => "token-key",
            Self::Arguments => "arguments",
            Self::Webhook => "webhook",
            Self::RequestState => "request-state",
            Self::Sealing => "sealing",
            Self::SealingKeyName => "sealing-key-name",
        }
    }
}

/// Signs and verifies with the configured secrets.
#[derive(Clone, Default)]
pub struct Signer {
    secrets: Vec<String>,
}

impl Signer {
    pub fn new(configured: Option<&str>) -> Self {
        let secrets = configured.unwrap_or_default().split(',').map(str::trim);
        Self { secrets: secrets.filter(|secret| secret.len() >= SHORTEST_SECRET).map(str::to_owned).collect() }
    }

    pub fn is_configured(&self) -> bool {
        !self.secrets.is_empty()
    }

    /// Signs for a tenant; 503 when no secret is configured.
    pub fn sign(&self, purpose: Purpose, tenant: &str, message: &[u8]) -> Result<[u8; 32]> {
        let secret = self.secrets.first().ok_or_else(not_configured)?;
        Ok(mac(secret, purpose, tenant, message)?.finalize().into_bytes().into())
    }

    /// What every secret makes of `message`: keys of their own for a purpose, that of the first secret first.
    pub fn derive(&self, purpose: Purpose, tenant: &str, message: &[u8]) -> Vec<[u8; 32]> {
        let made = self.secrets.iter().filter_map(|secret| mac(secret, purpose, tenant, message).ok());
        made.map(|mac| mac.finalize().into_bytes().into()).collect()
    }

    /// Keys for a cipher (HKDF, RFC 5869) made of every secret, that of the first secret first; 503 when none is configured.
    pub fn expand(&self, purpose: Purpose, tenant: &str, message: &[u8]) -> Result<Vec<[u8; 32]>> {
        if self.secrets.is_empty() {
            return Err(not_configured());
        }
        let expanded = |secret: &String| {
            let mut key = [0; 32];
            let info = [purpose.label().as_bytes(), &[0], tenant.as_bytes(), &[0], message];
            let made = Hkdf::<Sha256>::new(Some(HKDF_SALT), secret.as_bytes()).expand_multi_info(&info, &mut key);
            made.map(|()| key).map_err(Error::internal)
        };
        self.secrets.iter().map(expanded).collect()
    }

    /// Whether one of the secrets signed `message`; `signature` may be the first bytes of one, at least eight.
    pub fn verify(&self, purpose: Purpose, tenant: &str, message: &[u8], signature: &[u8]) -> bool {
        signature.len() >= 8
            && self.secrets.iter().any(|secret| {
                mac(secret, purpose, tenant, message).is_ok_and(|mac| mac.verify_truncated_left(signature).is_ok())
            })
    }
}

/// 503: there is nothing to sign or seal with.
fn not_configured() -> Error {
    let message = format!(
        "SIGNING_SECRET is not set to at least {SHORTEST_SECRET} characters; set it with `wrangler secret put`"
    );
    Error::new(ErrorCode::NotConfigured, message).detail("secret", "SIGNING_SECRET")
}

fn mac(secret: &str, purpose: Purpose, tenant: &str, message: &[u8]) -> Result<Hmac<Sha256>> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).map_err(Error::internal)?;
    // Neither a label nor the name of a tenant holds a zero byte.
    for part in [purpose.label(), tenant] {
        mac.update(part.as_bytes());
        mac.update(&[0]);
    }
    mac.update(message);
    Ok(mac)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "old-old-old-old-old";
    const NEW: &str = "new-new-new-new-new";

    #[test]
    fn nothing_is_signed_or_verified_without_a_secret() {
        for configured in [None, Some(""), Some("short"), Some(" , ")] {
            let signer = Signer::new(configured);
            let error = signer.sign(Purpose::TokenKey, "a", b"x").unwrap_err();
            assert_eq!(error.code, ErrorCode::NotConfigured);
            assert!(!signer.verify(Purpose::TokenKey, "a", b"x", &[0; 32]));
        }
    }

    #[test]
    fn a_signature_holds_for_its_purpose_tenant_and_message_only() {
        let signer = Signer::new(Some(OLD));
        let signature = signer.sign(Purpose::KeyId, "a", b"x").unwrap();
        assert!(signer.verify(Purpose::KeyId, "a", b"x", &signature));
        assert!(signer.verify(Purpose::KeyId, "a", b"x", &signature[..8]));
        assert!(!signer.verify(Purpose::KeyId, "a", b"x", &signature[..7]));
        assert!(!signer.verify(Purpose::KeyId, "a", b"x", b""));
        assert!(!signer.verify(Purpose::TokenKey, "a", b"x", &signature));
        assert!(!signer.verify(Purpose::KeyId, "b", b"x", &signature));
        assert!(!signer.verify(Purpose::KeyId, "a", b"y", &signature));
        assert!(!Signer::new(Some(NEW)).verify(Purpose::KeyId, "a", b"x", &signature));
    }

    #[test]
    fn the_first_secret_signs_and_all_verify() {
        let both = Signer::new(Some(&format!("{NEW}, {OLD}")));
        let by_old = Signer::new(Some(OLD)).sign(Purpose::TokenKey, "a", b"x").unwrap();
        let by_new = Signer::new(Some(NEW)).sign(Purpose::TokenKey, "a", b"x").unwrap();
        assert_eq!(both.sign(Purpose::TokenKey, "a", b"x").unwrap(), by_new);
        assert!(both.verify(Purpose::TokenKey, "a", b"x", &by_old));
    }
}
