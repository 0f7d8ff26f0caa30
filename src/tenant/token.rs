//! Short-lived tokens for browsers, sockets and agents: JSON Web Tokens (RFC 7519), signed with HMAC-SHA-256 only.
//!
//! Each tenant has a signing key of its own, derived from `SIGNING_SECRET`. A token names the key it was made with; what it
//! may do is never more than that key may at the moment of the call, so a token ends with its key.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use super::key::{is_key_id, is_tenant_name};
use super::permissions::Permissions;
use super::signing::{Purpose, Signer};
use crate::error::{Error, ErrorCode, Result};

/// Longest life of a token, in seconds.
pub const LONGEST_LIFE: u32 = 3600;

/// Seconds by which the clock of who made a token may be ahead.
const CLOCK_SKEW: i64 = 60;

/// A longer text is no token of ours.
const LONGEST_TOKEN: usize = 8192;

const ISSUER: &str = "cloudflare-ops";

/// Who the root key is to its own tokens.
pub const ROOT_KEY_ID: &str = "root";

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    alg: String,
    typ: String,
    kid: String,
}

/// What a token says. Times are seconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claims {
    iss: String,
    /// Id of the token, in the audit.
    pub jti: String,
    /// Name of the tenant.
    pub tenant: String,
    pub permissions: Permissions,
    pub iat: i64,
    pub exp: i64,
}

/// A token that is valid in itself; whether its key still is, the tenant's object knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PresentedToken {
    pub key_id: String,
    pub claims: Claims,
}

/// Makes a token with a subset of the rights of `key_id`.
pub fn make(
    signer: &Signer,
    tenant: &str,
    key_id: &str,
    token_id: String,
    permissions: Permissions,
    now_millis: i64,
    life_seconds: u32,
) -> Result<String> {
    let key = signer.sign(Purpose::TokenKey, tenant, b"")?;
    let header = Header { alg: "HS256".into(), typ: "JWT".into(), kid: key_id.to_owned() };
    let iat = now_millis.div_euclid(1000);
    let exp = iat + i64::from(life_seconds.min(LONGEST_LIFE));
    let claims = Claims { iss: ISSUER.into(), jti: token_id, tenant: tenant.to_owned(), permissions, iat, exp };
    let signed = format!("{}.{}", encode(&header)?, encode(&claims)?);
    let signature = mac(&key, &signed)?.finalize().into_bytes();
    let token = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature));
    if token.len() > LONGEST_TOKEN {
        let message = format!("makes a token of more than {LONGEST_TOKEN} characters; name fewer tools or labels");
        return Err(Error::invalid("/permissions", message));
    }
    Ok(token)
}

/// Whether `text` has the shape of a token, so that it is not taken for a key.
pub fn looks_like_token(text: &str) -> bool {
    text.starts_with("eyJ") && text.matches('.').count() == 2
}

/// Reads a token; 401 when it was not made here, is too old, or comes from the future.
pub fn read(text: &str, signer: &Signer, now_millis: i64) -> Result<PresentedToken> {
    let invalid = || Error::new(ErrorCode::Unauthenticated, "the token is not valid");
    let token = parse(text, signer).ok_or_else(invalid)?;
    let now = now_millis.div_euclid(1000);
    let Claims { iss, iat, exp, .. } = &token.claims;
    if iss != ISSUER || *iat > now + CLOCK_SKEW || exp - iat > i64::from(LONGEST_LIFE) {
        return Err(invalid());
    }
    if *exp <= now {
        return Err(Error::new(ErrorCode::Unauthenticated, "the token has expired; make a new one with createToken"));
    }
    Ok(token)
}

fn parse(text: &str, signer: &Signer) -> Option<PresentedToken> {
    if text.len() > LONGEST_TOKEN {
        return None;
    }
    let (signed, signature) = text.rsplit_once('.')?;
    let (header, claims) = signed.split_once('.')?;
    let header: Header = decode(header)?;
    let claims: Claims = decode(claims)?;
    let tenant = &claims.tenant;
    let known_key = header.kid == ROOT_KEY_ID || is_key_id(tenant, &header.kid, signer);
    if header.alg != "HS256" || header.typ != "JWT" || !is_tenant_name(tenant) || !known_key {
        return None;
    }
    let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
    let keys = signer.derive(Purpose::TokenKey, tenant, b"");
    let is_signed = keys.iter().any(|key| mac(key, signed).is_ok_and(|mac| mac.verify_slice(&signature).is_ok()));
    is_signed.then_some(PresentedToken { key_id: header.kid, claims })
}

fn mac(key: &[u8; 32], signed: &str) -> Result<Hmac<Sha256>> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).map_err(Error::internal)?;
    mac.update(signed.as_bytes());
    Ok(mac)
}

fn encode<T: Serialize>(part: &T) -> Result<String> {
    serde_json::to_vec(part).map(|json| URL_SAFE_NO_PAD.encode(json)).map_err(Error::internal)
}

fn decode<T: serde::de::DeserializeOwned>(part: &str) -> Option<T> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guardrails::Role;
    use serde_json::{Value, json};

    const NOW: i64 = 1_800_000_000_000;

    fn signer() -> Signer {
        Signer::new(Some("signing-signing-signing"))
    }

    fn token() -> String {
        make(&signer(), "a", ROOT_KEY_ID, "t1".into(), Permissions::of(Role::Viewer), NOW, 900).unwrap()
    }

    fn code(text: &str, now: i64) -> Option<ErrorCode> {
        read(text, &signer(), now).err().map(|error| error.code)
    }

    /// The token with its parts changed and signed again with `key`.
    fn forged(change: impl Fn(&mut Value, &mut Value), key: &[u8; 32]) -> String {
        let text = token();
        let parts: Vec<&str> = text.split('.').collect();
        let (mut header, mut claims): (Value, Value) = (decode(parts[0]).unwrap(), decode(parts[1]).unwrap());
        change(&mut header, &mut claims);
        let signed = format!("{}.{}", encode(&header).unwrap(), encode(&claims).unwrap());
        let signature = mac(key, &signed).unwrap().finalize().into_bytes();
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    #[test]
    fn a_token_is_read_until_it_expires() {
        let read_again = read(&token(), &signer(), NOW).unwrap();
        assert_eq!((read_again.key_id.as_str(), read_again.claims.tenant.as_str()), ("root", "a"));
        assert_eq!(read_again.claims.permissions, Permissions::of(Role::Viewer));
        assert!(looks_like_token(&token()));
        assert_eq!(code(&token(), NOW + 899_999), None);
        assert_eq!(code(&token(), NOW + 900_000), Some(ErrorCode::Unauthenticated));
        // Its maker's clock may be a little ahead, and no more.
        assert_eq!(code(&token(), NOW - 60_000), None);
        assert_eq!(code(&token(), NOW - 61_000), Some(ErrorCode::Unauthenticated));
    }

    #[test]
    fn no_token_lives_longer_than_the_bound() {
        let long =
            make(&signer(), "a", ROOT_KEY_ID, "t1".into(), Permissions::of(Role::Viewer), NOW, u32::MAX).unwrap();
        assert_eq!(code(&long, NOW + 3_599_000), None);
        assert!(code(&long, NOW + 3_600_000).is_some());
    }

    #[test]
    fn nothing_but_a_token_signed_here_passes() {
        let ours = signer().derive(Purpose::TokenKey, "a", b"")[0];
        assert_eq!(code(&forged(|_, _| (), &ours), NOW), None, "the forgery itself is sound");
        let stranger = [1; 32];
        for text in [
            forged(|_, _| (), &stranger),
            forged(|header, _| header["alg"] = json!("none"), &ours),
            forged(|header, _| header["alg"] = json!("HS512"), &ours),
            forged(|header, _| header["kid"] = json!("0".repeat(32)), &ours),
            forged(|header, _| header["crit"] = json!(["x"]), &ours),
            forged(|_, claims| claims["tenant"] = json!("b"), &ours),
            forged(|_, claims| claims["iss"] = json!("x"), &ours),
            forged(|_, claims| claims["exp"] = json!(NOW), &ours),
            forged(|_, claims| claims["permissions"]["role"] = json!("emperor"), &ours),
            token().replace('.', ".."),
            format!("{}.", token().rsplit_once('.').unwrap().0),
            format!("{}A", token()),
            "eyJ.eyJ.x".into(),
            "..".into(),
            "é.é.é".into(),
            "eyJ".repeat(10_000),
        ] {
            assert_eq!(code(&text, NOW), Some(ErrorCode::Unauthenticated), "{text:.80}");
        }
        let other = Signer::new(Some("another-another-another"));
        assert!(read(&token(), &other, NOW).is_err());
    }
}
