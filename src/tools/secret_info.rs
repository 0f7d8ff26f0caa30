//! A named secret as tools tell of it: never its value.

use serde::Serialize;
use utoipa::ToSchema;

use crate::error::Result;
use crate::platform::rfc3339;
use crate::registry::Context;
use crate::tenant::sealing::{self, KeyNames};
use crate::tenant::secrets::SecretRecord;

/// One secret. Its value is told by nothing.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretInfo {
    /// Its name.
    pub name: String,
    /// What its owner says of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// When it was first set: RFC 3339, UTC.
    pub created_at: String,
    /// When its value was last set: RFC 3339, UTC.
    pub updated_at: String,
    /// When a command or a sandbox was last given it: RFC 3339, UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_used_at: Option<String>,
    /// Which value of SIGNING_SECRET it is stored under: `current` is the first one, `earlier` another one that is configured, `lost`
    /// none that is: set the secret again.
    pub sealed_with: SealedWith,
}

/// Which value of SIGNING_SECRET a secret is stored under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum SealedWith {
    Current,
    Earlier,
    Lost,
}

impl SecretInfo {
    pub fn of(record: SecretRecord, names: &KeyNames) -> Self {
        Self {
            name: record.name,
            description: record.description,
            created_at: rfc3339(record.created_at),
            updated_at: rfc3339(record.updated_at),
            last_used_at: record.last_used_at.map(rfc3339),
            sealed_with: match names.sealed_with(&record.sealed_by) {
                sealing::SealedWith::Current => SealedWith::Current,
                sealing::SealedWith::Earlier => SealedWith::Earlier,
                sealing::SealedWith::Lost => SealedWith::Lost,
            },
        }
    }
}

/// Names of what the caller's tenant seals with; 503 when nothing is configured.
pub fn key_names(context: &Context) -> Result<KeyNames> {
    KeyNames::of(&context.services.signer, &context.principal.tenant)
}
