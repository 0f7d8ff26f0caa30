//! What is known of one sandbox, and what is said to its object.

use std::collections::BTreeMap;

use sandbox_api::{API_VERSION, Metrics, ResourcesReleased};
use serde::{Deserialize, Serialize};

use super::state::State;
use crate::error::{Error, ErrorCode};
use crate::identifier::SandboxId;
use crate::tenant::admission::Listed;

/// What a caller decides about a sandbox when it is created.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Settings {
    /// Free words to find it by.
    pub labels: BTreeMap<String, String>,
    /// Environment of every command in it.
    pub env: BTreeMap<String, String>,
}

/// The truth about one sandbox, as its object stores it. Times are milliseconds since 1970 in UTC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    pub sandbox_id: SandboxId,
    pub state: State,
    /// Number of successful starts.
    pub generation: u32,
    /// Boot id of the daemon of this generation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    pub created_at: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destroyed_at: Option<i64>,
    pub settings: Settings,
}

impl Record {
    /// A sandbox that was never started.
    pub fn created(sandbox_id: SandboxId, settings: Settings, now: i64) -> Self {
        Self {
            sandbox_id,
            state: State::Created,
            generation: 0,
            boot_id: None,
            created_at: now,
            started_at: None,
            destroyed_at: None,
            settings,
        }
    }

    /// Says which setting of a repeated creation differs from what the sandbox was created with.
    pub fn accepts(&self, asked: &Settings) -> Result<(), Error> {
        let differs = match (self.settings.labels == asked.labels, self.settings.env == asked.env) {
            (true, true) => return Ok(()),
            (false, _) => "labels",
            (true, false) => "env",
        };
        Err(Error::new(
            ErrorCode::Conflict,
            format!(
                "sandbox {:?} exists with other {differs}; destroy it first or use another id",
                self.sandbox_id.as_str()
            ),
        )
        .detail("sandboxId", self.sandbox_id.as_str())
        .detail("field", differs))
    }
}

/// A running image may be older than the Worker by one version of the control API.
pub fn version_accepted(api_version: u32) -> Result<(), Error> {
    if api_version == API_VERSION || api_version.checked_add(1) == Some(API_VERSION) {
        return Ok(());
    }
    let message = format!(
        "the sandbox speaks version {api_version} of the control API and this Worker {API_VERSION}; deploy both from one release"
    );
    Err(Error::new(ErrorCode::VersionMismatch, message))
}

/// Body of a creation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Create {
    /// The sandbox as the tenant lists it.
    pub listed: Listed,
    pub settings: Settings,
}

/// What a sandbox's object answers about itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Described {
    pub record: Record,
    /// Read from the running sandbox; absent when it does not run or did not answer in time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<Metrics>,
}

/// What a sandbox's object answers once the sandbox is gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Destroyed {
    pub destroyed_at: i64,
    pub released: ResourcesReleased,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stored_form_does_not_change() {
        let mut record = Record::created(SandboxId::parse("my-box").unwrap(), Settings::default(), 1_000);
        record.boot_id = Some("b1".into());
        let stored = serde_json::to_string(&record).unwrap();
        assert_eq!(
            stored,
            r#"{"sandboxId":"my-box","state":"created","generation":0,"bootId":"b1","createdAt":1000,"settings":{"labels":{},"env":{}}}"#
        );
        assert_eq!(serde_json::from_str::<Record>(&stored).unwrap(), record);
    }

    #[test]
    fn this_version_of_the_control_api_and_the_one_before_are_accepted() {
        assert!(version_accepted(API_VERSION).is_ok() && version_accepted(API_VERSION - 1).is_ok());
        for other in [API_VERSION + 1, u32::MAX] {
            assert_eq!(version_accepted(other).unwrap_err().code, ErrorCode::VersionMismatch);
        }
    }

    #[test]
    fn a_repeated_creation_may_not_change_settings() {
        let record = Record::created(SandboxId::parse("a").unwrap(), Settings::default(), 0);
        assert!(record.accepts(&Settings::default()).is_ok());
        let other = Settings { labels: BTreeMap::from([("a".into(), "b".into())]), ..Settings::default() };
        let error = record.accepts(&other).unwrap_err();
        assert_eq!((error.code, error.details["field"].as_str()), (ErrorCode::Conflict, Some("labels")));
    }
}
