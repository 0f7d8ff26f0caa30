//! How the value of a named secret is kept: encrypted and authenticated (XChaCha20-Poly1305), so that storage alone tells nothing.
//!
//! Each secret has a key of its own, derived (HKDF) from a value of `SIGNING_SECRET`, the tenant and the secret's name, which are
//! authenticated beside the text as well: a row that is moved to another name or tenant does not open. The first value of
//! `SIGNING_SECRET` seals, all open; a sealed text says by a name, which tells nothing else, with which of them it was made.

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use serde::{Deserialize, Serialize};

use super::signing::{Purpose, Signer};
use crate::error::{Error, ErrorCode, Result};

/// Bytes of a nonce: enough for random ones never to meet.
const NONCE_BYTES: usize = 24;

/// Bytes of the name of a key.
const NAME_BYTES: usize = 6;

/// A sealed value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sealed {
    /// Name of the value of `SIGNING_SECRET` that it was sealed with.
    pub by: String,
    /// Nonce and encrypted value, in base64.
    pub data: String,
}

/// A value that was opened.
#[derive(Clone, PartialEq, Eq)]
pub struct Opened {
    pub value: String,
    /// Whether the first value of `SIGNING_SECRET` sealed it.
    pub is_current: bool,
}

impl std::fmt::Debug for Opened {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} bytes", self.value.len())
    }
}

/// How what a value of `SIGNING_SECRET` sealed stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SealedWith {
    /// The first value, which seals what is new.
    Current,
    /// Another value that is still configured.
    Earlier,
    /// A value that is configured no more.
    Lost,
}

/// Which value of `SIGNING_SECRET` has which name.
pub struct KeyNames(Vec<String>);

impl KeyNames {
    /// 503 when none is configured.
    pub fn of(signer: &Signer, tenant: &str) -> Result<Self> {
        let names = signer.expand(Purpose::SealingKeyName, tenant, b"")?;
        let name = |key: [u8; 32]| hex::encode(key.get(..NAME_BYTES).unwrap_or_default());
        Ok(Self(names.into_iter().map(name).collect()))
    }

    pub fn sealed_with(&self, by: &str) -> SealedWith {
        match self.0.iter().position(|name| name == by) {
            Some(0) => SealedWith::Current,
            Some(_) => SealedWith::Earlier,
            None => SealedWith::Lost,
        }
    }
}

/// Seals `value`; 503 when no `SIGNING_SECRET` is configured. Random bytes are never used for two values.
pub fn seal(signer: &Signer, tenant: &str, name: &str, value: &str, random: [[u8; 16]; 2]) -> Result<Sealed> {
    let KeyNames(names) = KeyNames::of(signer, tenant)?;
    let keys = signer.expand(Purpose::Sealing, tenant, name.as_bytes())?;
    let (Some(by), Some(key)) = (names.into_iter().next(), keys.first()) else {
        return Err(Error::internal("no key was derived"));
    };
    let mut nonce = [0; NONCE_BYTES];
    nonce.iter_mut().zip(random.as_flattened()).for_each(|(byte, random)| *byte = *random);
    let beside = beside(tenant, name);
    let payload = Payload { msg: value.as_bytes(), aad: &beside };
    let sealed = cipher(key).encrypt(&XNonce::from(nonce), payload).map_err(|_| Error::internal("sealing failed"))?;
    Ok(Sealed { by, data: STANDARD_NO_PAD.encode([nonce.as_slice(), &sealed].concat()) })
}

/// Opens what was sealed for this name; 503 when what sealed it is configured no more.
pub fn open(signer: &Signer, tenant: &str, name: &str, sealed: &Sealed) -> Result<Opened> {
    let keys = signer.expand(Purpose::Sealing, tenant, name.as_bytes())?;
    let names = KeyNames::of(signer, tenant)?;
    let Some(place) = names.0.iter().position(|name| *name == sealed.by) else {
        let message = format!(
            "the secret {name:?} was stored under a value of SIGNING_SECRET that is no longer configured; configure that value \
             again, behind the first one, or set the secret anew with setSecret"
        );
        return Err(Error::new(ErrorCode::NotConfigured, message)
            .detail("secret", "SIGNING_SECRET")
            .detail("secretName", name));
    };
    let unreadable = || Error::internal(format!("the secret {name:?} is not as it was stored"));
    let data = STANDARD_NO_PAD.decode(&sealed.data).map_err(|_| unreadable())?;
    let (nonce, text) = data.split_first_chunk::<NONCE_BYTES>().ok_or_else(unreadable)?;
    let key = keys.get(place).ok_or_else(unreadable)?;
    let beside = beside(tenant, name);
    let payload = Payload { msg: text, aad: &beside };
    let value = cipher(key).decrypt(&XNonce::from(*nonce), payload).map_err(|_| unreadable())?;
    Ok(Opened { value: String::from_utf8(value).map_err(|_| unreadable())?, is_current: place == 0 })
}

fn cipher(key: &[u8; 32]) -> XChaCha20Poly1305 {
    XChaCha20Poly1305::new(&(*key).into())
}

/// What is authenticated beside the value. Neither name holds a zero byte.
fn beside(tenant: &str, name: &str) -> Vec<u8> {
    ["secret", tenant, name].join("\0").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "old-old-old-old-old";
    const NEW: &str = "new-new-new-new-new";
    const RANDOM: [[u8; 16]; 2] = [[1; 16], [2; 16]];
    const VALUE: &str = "s3cr3t-value é\n";

    fn signer(configured: &str) -> Signer {
        Signer::new(Some(configured))
    }

    fn sealed(configured: &str) -> Sealed {
        seal(&signer(configured), "a", "npm", VALUE, RANDOM).unwrap()
    }

    fn code(opened: Result<Opened>) -> Option<ErrorCode> {
        opened.err().map(|error| error.code)
    }

    #[test]
    fn what_was_sealed_opens_and_shows_nothing() {
        let sealed = sealed(NEW);
        let text = serde_json::to_string(&sealed).unwrap();
        assert!(!text.contains("s3cr3t") && !text.contains(&STANDARD_NO_PAD.encode(VALUE)), "{text}");
        let opened = open(&signer(NEW), "a", "npm", &sealed).unwrap();
        assert_eq!((opened.value.as_str(), opened.is_current), (VALUE, true));
        assert!(!format!("{opened:?}").contains("s3cr3t"));
        assert_eq!(serde_json::from_str::<Sealed>(&text).unwrap(), sealed);
    }

    #[test]
    fn the_stored_form_does_not_change() {
        let stored = Sealed { by: "93f9fffbcd9f".into(), data: String::new() };
        assert_eq!(stored.by, sealed(NEW).by, "the same secret has the same name in every release");
        let data = "AQEBAQEBAQEBAQEBAQEBAQICAgICAgICupQzuvjigJ0rA+TRzyJnQzX/wZAxqJWW+6sbZELFZaU";
        let stored = Sealed { data: data.into(), ..stored };
        assert_eq!(open(&signer(NEW), "a", "npm", &stored).unwrap().value, VALUE);
    }

    #[test]
    fn a_row_that_is_moved_or_changed_does_not_open() {
        let sealed = sealed(NEW);
        let signer = signer(NEW);
        assert_eq!(code(open(&signer, "a", "npm2", &sealed)), Some(ErrorCode::Internal), "another name");
        // Of another tenant not even the name of the key is the same.
        assert_eq!(code(open(&signer, "b", "npm", &sealed)), Some(ErrorCode::NotConfigured));
        let by = KeyNames::of(&signer, "b").unwrap().0[0].clone();
        assert_eq!(code(open(&signer, "b", "npm", &Sealed { by, ..sealed.clone() })), Some(ErrorCode::Internal));
        let mut bytes = STANDARD_NO_PAD.decode(&sealed.data).unwrap();
        for place in 0..bytes.len() {
            bytes[place] ^= 1;
            let changed = Sealed { data: STANDARD_NO_PAD.encode(&bytes), ..sealed.clone() };
            assert_eq!(code(open(&signer, "a", "npm", &changed)), Some(ErrorCode::Internal), "byte {place}");
            bytes[place] ^= 1;
        }
        for data in ["", "AAAA", "no base64!", &sealed.data[..40]] {
            let changed = Sealed { data: data.into(), ..sealed.clone() };
            assert_eq!(code(open(&signer, "a", "npm", &changed)), Some(ErrorCode::Internal), "{data:?}");
        }
    }

    #[test]
    fn the_first_value_seals_and_all_open() {
        let both = signer(&format!("{NEW}, {OLD}"));
        let opened = open(&both, "a", "npm", &sealed(OLD)).unwrap();
        assert_eq!((opened.value.as_str(), opened.is_current), (VALUE, false));
        let again = seal(&both, "a", "npm", &opened.value, RANDOM).unwrap();
        assert!(open(&signer(NEW), "a", "npm", &again).unwrap().is_current);
        let names = KeyNames::of(&both, "a").unwrap();
        let with = |configured| names.sealed_with(&sealed(configured).by);
        assert_eq!((with(NEW), with(OLD)), (SealedWith::Current, SealedWith::Earlier));
        assert_eq!(with("other-other-other-other"), SealedWith::Lost);
    }

    #[test]
    fn a_lost_or_missing_signing_secret_is_said() {
        let error = open(&signer(NEW), "a", "npm", &sealed(OLD)).unwrap_err();
        assert_eq!((error.code, &error.details["secretName"]), (ErrorCode::NotConfigured, &"npm".into()));
        assert!(error.message.contains("setSecret"), "{}", error.message);
        let none = Signer::new(None);
        assert_eq!(code(open(&none, "a", "npm", &sealed(OLD))), Some(ErrorCode::NotConfigured));
        let error = seal(&none, "a", "npm", VALUE, RANDOM).unwrap_err();
        assert_eq!((error.code, &error.details["secret"]), (ErrorCode::NotConfigured, &"SIGNING_SECRET".into()));
    }
}
