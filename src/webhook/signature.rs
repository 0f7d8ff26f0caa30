//! The signature of Standard Webhooks: HMAC-SHA-256 over `{id}.{timestamp}.{body}`.
//!
//! A tenant has one key for all its webhooks, derived from `SIGNING_SECRET`, so that it need not be stored. While that secret is
//! replaced it has several values, and a message carries the signature by each of them: a receiver that knows one is content.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::error::{Error, ErrorCode, Result};
use crate::tenant::signing::{Purpose, Signer};

/// Stands before a key in its text.
const KEY_PREFIX: &str = "whsec_";

/// The keys of one tenant's webhooks, the current one first.
pub struct Keys(Vec<[u8; 32]>);

impl Keys {
    /// 503 when no secret is configured to derive them from.
    pub fn of(signer: &Signer, tenant: &str) -> Result<Self> {
        match signer.derive(Purpose::Webhook, tenant, &[]) {
            keys if keys.is_empty() => {
                let message = "webhooks are signed with a key derived from SIGNING_SECRET, which is not set";
                Err(Error::new(ErrorCode::NotConfigured, message).detail("secret", "SIGNING_SECRET"))
            }
            keys => Ok(Self(keys)),
        }
    }

    /// The current key as its receivers configure it.
    pub fn text(&self) -> String {
        self.0.first().map(|key| format!("{KEY_PREFIX}{}", STANDARD.encode(key))).unwrap_or_default()
    }

    /// The headers of a message. `id` stays the same when it is sent again; `at` is the time of this attempt in seconds.
    pub fn headers(&self, id: &str, at: i64, body: &str) -> [(&'static str, String); 3] {
        let signatures = self.0.iter().filter_map(|key| signature(key, id, at, body).ok());
        let signatures = signatures.collect::<Vec<_>>().join(" ");
        [("webhook-id", id.to_owned()), ("webhook-timestamp", at.to_string()), ("webhook-signature", signatures)]
    }
}

fn signature(key: &[u8], id: &str, at: i64, body: &str) -> Result<String> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).map_err(Error::internal)?;
    mac.update(format!("{id}.{at}.{body}").as_bytes());
    Ok(format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signature_is_that_of_the_specification() {
        // The example that the specification's own libraries are tested with.
        let key = STANDARD.decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let (id, at, body) = ("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, r#"{"test": 2432232314}"#);
        let expected = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        assert_eq!(signature(&key, id, at, body).unwrap(), expected);
        let keys = Keys(vec![[7; 32]]);
        let told = STANDARD.decode(keys.text().strip_prefix("whsec_").unwrap()).unwrap();
        let headers = keys.headers(id, at, body).map(|(name, value)| format!("{name}: {value}"));
        let signed = signature(&told, id, at, body).unwrap();
        let wanted =
            [format!("webhook-id: {id}"), format!("webhook-timestamp: {at}"), format!("webhook-signature: {signed}")];
        assert_eq!(headers, wanted);
    }

    #[test]
    fn while_the_secret_is_replaced_both_keys_sign() {
        let (old, new) = ("old-old-old-old-old", "new-new-new-new-new");
        let keys = |configured: &str| Keys::of(&Signer::new(Some(configured)), "a").unwrap();
        let [_, _, (_, both)] = keys(&format!("{new},{old}")).headers("m", 1, "{}");
        let [_, _, (_, by_old)] = keys(old).headers("m", 1, "{}");
        let [_, _, (_, by_new)] = keys(new).headers("m", 1, "{}");
        assert_eq!(both, format!("{by_new} {by_old}"));
        assert_eq!(keys(&format!("{new},{old}")).text(), keys(new).text());
        assert_ne!(keys(new).text(), Keys::of(&Signer::new(Some(new)), "b").unwrap().text(), "each tenant has its own");
        assert_eq!(Keys::of(&Signer::default(), "a").err().unwrap().code, ErrorCode::NotConfigured);
    }
}
