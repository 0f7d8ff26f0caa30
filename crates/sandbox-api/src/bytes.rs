//! Bytes in JSON: text where they are text, base64 where they are not, never a broken character.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How [`EncodedBytes::data`] holds its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub enum Encoding {
    /// The bytes are valid UTF-8 and stand as they are.
    #[default]
    #[serde(rename = "utf-8")]
    Utf8,
    /// Standard base64 with padding (RFC 4648, section 4).
    #[serde(rename = "base64")]
    Base64,
}

/// A byte string that survives JSON exactly.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EncodedBytes {
    /// The bytes, in the form that `encoding` names.
    pub data: String,
    /// `utf-8` (the default) or `base64`.
    #[serde(default)]
    pub encoding: Encoding,
}

impl EncodedBytes {
    /// Chooses UTF-8 where the bytes are UTF-8 and base64 where they are not.
    pub fn encode(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self { data: text.to_owned(), encoding: Encoding::Utf8 },
            Err(_) => Self { data: STANDARD.encode(bytes), encoding: Encoding::Base64 },
        }
    }

    /// The bytes again; `None` when `data` is not base64 although `encoding` says so.
    pub fn decode(&self) -> Option<Vec<u8>> {
        match self.encoding {
            Encoding::Utf8 => Some(self.data.clone().into_bytes()),
            Encoding::Base64 => STANDARD.decode(&self.data).ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_survive(bytes: Vec<u8>) {
            prop_assert_eq!(EncodedBytes::encode(&bytes).decode(), Some(bytes));
        }
    }

    #[test]
    fn what_is_not_text_becomes_base64() {
        let encoded = EncodedBytes::encode(&[0xff, 0xfe, 0x00, 0x80]);
        assert_eq!(encoded.encoding, Encoding::Base64);
        assert_eq!(encoded.data, "//4AgA==");
    }

    #[test]
    fn bad_base64_is_not_guessed_at() {
        let bad = EncodedBytes { data: "%%%".into(), encoding: Encoding::Base64 };
        assert_eq!(bad.decode(), None);
    }
}
