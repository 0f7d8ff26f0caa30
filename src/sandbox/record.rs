//! What is known of one sandbox, and what is said to its object.

use sandbox_api::{API_VERSION, Metrics, ResourcesReleased};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::settings::{self, Settings};
use super::state::State;
use crate::error::{Error, ErrorCode};
use crate::identifier::SandboxId;
use crate::tenant::admission::Listed;

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
    /// Made by `exec` for one command: it goes when nobody uses it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub temporary: bool,
    /// When it was last used; written when a minute has passed since, and whenever it is asked whether it idles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_used_at: Option<i64>,
    /// Starts that failed since the last one that succeeded.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub start_failures: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_reason: Option<StartReason>,
    /// Counts changes of what commands get as environment.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub environment_revision: u32,
    /// The revision that the running boot has; `None` when that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment_in_force: Option<u32>,
    /// Whether the last start let commands reach the internet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub internet_in_force: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git: Option<GitSource>,
}

// Signature that serde asks for.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Record {
    /// A sandbox that was never started.
    pub fn created(sandbox_id: SandboxId, settings: Settings, now: i64) -> Self {
        Self {
            temporary: false,
            last_used_at: None,
            start_failures: 0,
            start_reason: None,
            environment_revision: 0,
            environment_in_force: None,
            internet_in_force: None,
            git: None,
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

    /// Says which setting of a repeated creation differs from what the sandbox has.
    pub fn accepts(&self, asked: &Create) -> Result<(), Error> {
        let differs = self.settings.difference(&asked.settings);
        let differs = differs.or_else(|| match (&self.git, &asked.git) {
            (None, None) => None,
            (Some(known), Some(asked)) if known.url == asked.url && known.branch == asked.branch => None,
            _ => Some("gitUrl"),
        });
        differs.map_or(Ok(()), |field| Err(settings::differs(self.sandbox_id.as_str(), field)))
    }

    /// When somebody last used it, as far as that is stored.
    pub fn last_use(&self) -> i64 {
        self.last_used_at.max(self.started_at).unwrap_or(self.created_at)
    }

    /// When it will be destroyed if nobody uses it any more and nothing is changed.
    pub fn expires_at(&self) -> Option<i64> {
        let idle = self.temporary.then(|| super::timers::idle_due(self)).flatten();
        [self.settings.expires_at, idle].into_iter().flatten().min()
    }

    /// Whether its time is over, although it may not have been destroyed yet.
    pub fn expired(&self, now: i64) -> bool {
        self.settings.expires_at.is_some_and(|at| at <= now)
    }

    /// Notes that a start failed, and says so in the error once that has become a habit.
    pub fn start_failed(&mut self, error: Error) -> Error {
        self.start_failures = self.start_failures.saturating_add(1);
        if self.start_failures < MANY_FAILURES {
            return error;
        }
        let message = format!(
            "{}; it has failed to start {} times in a row: destroy it, or create one under another id",
            error.message, self.start_failures
        );
        Error { message, ..error }.detail("startFailures", self.start_failures)
    }

    /// Notes a start that succeeded. `resumed`: another start of it was under way when the object lost its memory.
    pub fn started(&mut self, boot_id: String, now: i64, reason: StartReason, resumed: bool) {
        self.start_failures = 0;
        if self.boot_id.as_ref() == Some(&boot_id) {
            return;
        }
        self.generation += 1;
        self.started_at = Some(now);
        self.start_reason = Some(reason);
        self.boot_id = Some(boot_id);
        // A start that was resumed may have found a boot that an earlier environment was given to.
        self.environment_in_force = (!resumed).then_some(self.environment_revision);
    }
}

/// Failed starts in a row after which an error says what to do.
const MANY_FAILURES: u32 = 3;

/// Why the last start was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum StartReason {
    /// It was new.
    Created,
    /// It slept.
    Woken,
    /// It had stopped unasked, or had failed to start: what ran in it is gone.
    Restarted,
}

impl StartReason {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Woken => "woken",
            Self::Restarted => "restarted",
        }
    }

    /// The reason of a start from that state.
    pub fn of(state: State, generation: u32) -> Self {
        match state {
            _ if generation == 0 => Self::Created,
            State::Sleeping | State::Created => Self::Woken,
            _ => Self::Restarted,
        }
    }
}

/// A repository that the sandbox was created with. Its URL holds no credentials.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GitSource {
    pub url: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// Whether the clone is there.
    #[serde(default)]
    pub cloned: bool,
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
    /// Repository to be cloned into it by whoever creates it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git: Option<GitSource>,
}

/// What a sandbox's object answers when it was woken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Woken {
    pub record: Record,
    /// Whether it had to be started.
    pub started: bool,
}

/// What a sandbox's object answers when it was stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Stopped {
    pub record: Record,
    /// Processes that were ended.
    pub processes: u64,
    /// Whether the files of the workspace are still there.
    pub files_kept: bool,
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
    use std::collections::BTreeMap;

    use super::*;
    use crate::tenant::admission::{Origin, SandboxClaim};

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

    fn create(settings: Settings, git: Option<GitSource>) -> Create {
        let sandbox_id = SandboxId::parse("a").unwrap();
        let claim = SandboxClaim::Create { sandbox_id, labels: BTreeMap::new(), origin: Origin::CreateSandbox };
        Create { listed: Listed::new(&claim, 0, "root").unwrap(), settings, git }
    }

    #[test]
    fn a_repeated_creation_may_not_change_settings() {
        let record = Record::created(SandboxId::parse("a").unwrap(), Settings::default(), 0);
        assert!(record.accepts(&create(Settings::default(), None)).is_ok());
        let other = Settings { labels: BTreeMap::from([("a".into(), "b".into())]), ..Settings::default() };
        let error = record.accepts(&create(other, None)).unwrap_err();
        assert_eq!((error.code, error.details["field"].as_str()), (ErrorCode::Conflict, Some("labels")));
        let git = GitSource { url: "https://host/a.git".into(), branch: None, cloned: false };
        let error = record.accepts(&create(Settings::default(), Some(git))).unwrap_err();
        assert_eq!(error.details["field"], "gitUrl");
    }

    #[test]
    fn many_failed_starts_say_what_to_do_and_one_that_succeeds_begins_anew() {
        let mut record = Record::created(SandboxId::parse("a").unwrap(), Settings::default(), 0);
        let failure = || Error::new(ErrorCode::SandboxUnavailable, "no");
        let texts: Vec<String> = (0..3).map(|_| record.start_failed(failure()).message).collect();
        assert_eq!((texts[0].as_str(), texts[1].as_str()), ("no", "no"));
        assert!(texts[2].contains("3 times in a row") && texts[2].contains("another id"), "{}", texts[2]);
        record.started("b1".into(), 5, StartReason::Created, false);
        assert_eq!(record.start_failed(failure()).message, "no");
        assert_eq!((record.generation, record.started_at), (1, Some(5)));
    }

    #[test]
    fn a_new_boot_is_a_new_generation_and_the_same_one_is_not() {
        let mut record = Record::created(SandboxId::parse("a").unwrap(), Settings::default(), 0);
        record.started("b1".into(), 1, StartReason::Created, false);
        record.environment_revision = 3;
        record.started("b1".into(), 2, StartReason::Woken, false);
        assert_eq!((record.generation, record.environment_in_force), (1, Some(0)));
        record.started("b2".into(), 3, StartReason::of(State::Error, record.generation), false);
        assert_eq!((record.generation, record.start_reason), (2, Some(StartReason::Restarted)));
        assert_eq!(record.environment_in_force, Some(3));
        record.started("b3".into(), 4, StartReason::Woken, true);
        assert_eq!(record.environment_in_force, None, "what a resumed start found is not known");
    }
}
