//! What a tenant's object is asked about its keys.

use serde::{Deserialize, Serialize};

use super::key::SecretDigest;
use super::keyring::KeyRecord;
use super::limits::Limits;
use crate::error::{Error, ErrorCode, Result};

/// Most keys of a tenant, revoked ones included.
pub const MOST_KEYS: u32 = 10_000;

/// A question or a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum KeyRequest {
    /// Adds a key.
    Add(Box<KeyRecord>),
    /// The key of that id.
    #[serde(rename_all = "camelCase")]
    Get { key_id: String },
    /// Keys in the order of their ids.
    #[serde(rename_all = "camelCase")]
    List { after: Option<String>, limit: u32 },
    #[serde(rename_all = "camelCase")]
    Change { key_id: String, at: i64, change: KeyChange },
}

/// A change of one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum KeyChange {
    #[serde(rename_all = "camelCase")]
    Rotate {
        secret: SecretDigest,
        grace_millis: i64,
    },
    Revoke,
    Limits(Limits),
}

impl KeyChange {
    /// The key after the change; revoking twice changes nothing, and a revoked key takes no other change.
    pub fn apply(self, key: KeyRecord, at: i64) -> Result<KeyRecord> {
        match self {
            Self::Revoke => Ok(KeyRecord { revoked_at: key.revoked_at.or(Some(at)), previous: None, ..key }),
            _ if key.revoked_at.is_some() => {
                Err(Error::new(ErrorCode::Conflict, "the key was revoked; make a new one with createKey"))
            }
            Self::Rotate { secret, grace_millis } => Ok(key.rotated(secret, at, grace_millis)),
            Self::Limits(limits) => Ok(KeyRecord { limits: key.limits.with(limits), ..key }),
        }
    }
}

/// The keys that were asked for, or the changed one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Keys {
    pub keys: Vec<KeyRecord>,
    pub more: bool,
}

impl Keys {
    /// The one key of an answer.
    pub fn one(self) -> Result<KeyRecord> {
        self.keys.into_iter().next().ok_or_else(|| Error::internal("an answer about one key holds none"))
    }
}

/// 404: there is no key of that id.
pub fn no_such_key(key_id: &str) -> Error {
    Error::new(ErrorCode::NotFound, format!("there is no key {key_id:?}; listKeys lists them")).detail("keyId", key_id)
}
