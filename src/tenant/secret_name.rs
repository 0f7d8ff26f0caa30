//! The name of a secret of a tenant, validated once, at the door.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

/// Most characters of a name.
const LONGEST: usize = 64;
const PATTERN: &str = "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$";

/// Title of the schema: wherever a tool's input has it, a call names a secret there (`named.rs`).
pub const TITLE: &str = "SecretName";

/// Name of a secret within its tenant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SecretName(String);

impl SecretName {
    pub fn parse(text: &str) -> Result<Self, InvalidSecretName> {
        let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        let fits = text.len() <= LONGEST
            && text.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric())
            && text.bytes().all(is_inner);
        if fits { Ok(Self(text.to_owned())) } else { Err(InvalidSecretName) }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The text is no name of a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the name of a secret has 1 to {LONGEST} letters, digits, `.`, `_` and `-`, and begins with a letter or digit")]
pub struct InvalidSecretName;

impl std::fmt::Display for SecretName {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl TryFrom<String> for SecretName {
    type Error = InvalidSecretName;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text)
    }
}

impl From<SecretName> for String {
    fn from(name: SecretName) -> Self {
        name.0
    }
}

impl PartialSchema for SecretName {
    fn schema() -> RefOr<Schema> {
        let description =
            "Name of a secret: letters, digits, `.`, `_` and `-`, at most 64, the first a letter or digit.";
        let object = ObjectBuilder::new().schema_type(Type::String).pattern(Some(PATTERN)).title(Some(TITLE));
        RefOr::T(Schema::Object(object.description(Some(description)).build()))
    }
}

impl ToSchema for SecretName {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed(TITLE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_a_path_of_a_url_as_they_are() {
        for fine in ["a", "npm-token", "Team.A_1", &"x".repeat(LONGEST)] {
            assert_eq!(SecretName::parse(fine).map(String::from), Ok(fine.to_owned()));
        }
        for bad in ["", ".", "-a", "_a", "a b", "a/b", "é", "a\0", &"x".repeat(LONGEST + 1)] {
            assert_eq!(SecretName::parse(bad), Err(InvalidSecretName), "{bad:?}");
        }
    }
}
