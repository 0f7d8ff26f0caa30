//! Identifiers: validated once, at the door.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

/// Most characters of a sandbox's id: one DNS label.
const LONGEST_SANDBOX_ID: usize = 63;
const SANDBOX_ID_PATTERN: &str = "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$";

/// RFC 4648 base32 in lower case.
const BASE32: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// Name of a sandbox within its tenant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SandboxId(String);

impl SandboxId {
    /// Takes `[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?` and nothing else.
    pub fn parse(text: &str) -> Result<Self, InvalidSandboxId> {
        let bytes = text.as_bytes();
        let allowed = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-';
        let valid = !bytes.is_empty()
            && bytes.len() <= LONGEST_SANDBOX_ID
            && bytes.iter().all(allowed)
            && bytes.first() != Some(&b'-')
            && bytes.last() != Some(&b'-');
        if valid { Ok(Self(text.to_owned())) } else { Err(InvalidSandboxId) }
    }

    /// 26 characters of base32: 128 random bits.
    pub fn from_random(random: [u8; 16]) -> Self {
        let bits = u128::from_be_bytes(random);
        let digit = |place: u32| {
            let index = (bits >> (place * 5)) & 31;
            usize::try_from(index).ok().and_then(|index| BASE32.get(index)).map_or('a', |&byte| char::from(byte))
        };
        Self((0..26).rev().map(digit).collect())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for SandboxId {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl TryFrom<String> for SandboxId {
    type Error = InvalidSandboxId;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text)
    }
}

impl From<SandboxId> for String {
    fn from(id: SandboxId) -> Self {
        id.0
    }
}

impl PartialSchema for SandboxId {
    fn schema() -> RefOr<Schema> {
        RefOr::T(Schema::Object(
            ObjectBuilder::new()
                .schema_type(Type::String)
                .pattern(Some(SANDBOX_ID_PATTERN))
                .description(Some("Name of a sandbox: lower-case letters, digits and inner hyphens, at most 63."))
                .build(),
        ))
    }
}

impl ToSchema for SandboxId {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("SandboxId")
    }
}

/// The text is not a sandbox's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a sandbox id is 1 to {LONGEST_SANDBOX_ID} of a-z 0-9 and inner hyphens")]
pub struct InvalidSandboxId;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_names_pass() {
        for good in ["a", "0", "my-box", &"a".repeat(63)] {
            assert!(SandboxId::parse(good).is_ok(), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a_b", "../x", "a/b", "é", "a.b", "a b", &"a".repeat(64)] {
            assert!(SandboxId::parse(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn random_ids_are_ids_of_the_bridge_alphabet(random: [u8; 16]) {
            let id = SandboxId::from_random(random);
            prop_assert!(SandboxId::parse(id.as_str()).is_ok());
            prop_assert_eq!(id.as_str().len(), 26);
            prop_assert!(id.as_str().bytes().all(|byte| BASE32.contains(&byte)));
        }
    }
}
