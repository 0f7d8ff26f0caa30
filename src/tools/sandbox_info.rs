//! What every tool says of a sandbox, in the same words.

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;

use crate::platform::rfc3339;
use crate::sandbox::record::{Described, Record, StartReason};
use crate::sandbox::state::{State, Status};
use crate::tenant::admission::Listed;

/// A sandbox's use of its machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    /// Percent of one processor; 100 is one full core.
    pub cpu: f64,
    /// Resident megabytes (1,000,000 bytes).
    pub memory: f64,
}

/// What the environment of a sandbox holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct EnvironmentInfo {
    /// Whether `ANTHROPIC_API_KEY` is set in it.
    pub has_anthropic_credentials: bool,
    /// Names of its variables; values are never told.
    pub variables: Vec<String>,
}

/// One sandbox in a list.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxSummary {
    /// Its name.
    pub sandbox_id: String,
    /// running, stopped or error.
    pub status: Status,
    /// The exact state behind `status`.
    pub state: State,
    /// When it was created: RFC 3339, UTC.
    pub created_at: String,
    /// When it last started: RFC 3339, UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<String>,
    /// Number of starts. What ran in one generation is gone in the next.
    pub generation: u32,
    /// Free words to find it by.
    pub labels: BTreeMap<String, String>,
    /// Key that created it.
    pub owner: String,
    /// When it was last used, to within a minute: RFC 3339, UTC. Absent before its first start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_used_at: Option<String>,
    /// When it will be destroyed: RFC 3339, UTC. Absent when it will not be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// Seconds without use after which it sleeps, unless it is kept alive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sleep_after: Option<u32>,
    /// Whether it stays awake although nobody uses it.
    pub keep_alive: bool,
}

/// One sandbox after a change.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SandboxNow {
    /// Its name.
    pub sandbox_id: String,
    /// running, stopped or error.
    pub status: Status,
    /// The exact state behind `status`.
    pub state: State,
    /// When it was created: RFC 3339, UTC.
    pub created_at: String,
    /// Number of starts. What ran in one generation is gone in the next.
    pub generation: u32,
    /// Why it last started: created, woken after it slept, or restarted after it was lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_reason: Option<StartReason>,
    /// Free words to find it by.
    pub labels: BTreeMap<String, String>,
    /// When it will be destroyed: RFC 3339, UTC. Absent when it will not be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// Seconds without use after which it sleeps, unless it is kept alive.
    pub sleep_after: u32,
    /// Whether it stays awake although nobody uses it.
    pub keep_alive: bool,
    /// Whether commands reach the internet.
    pub internet: bool,
    /// Present and true when `internet` was changed and holds from the next start on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub internet_pending: Option<bool>,
    /// Names of its variables; values are never told.
    pub variables: Vec<String>,
    /// Of wakeSandbox: whether the call had to start it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub woken: Option<bool>,
    /// Of stopSandbox: processes that were ended; zero when it did not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes_ended: Option<u64>,
    /// Of stopSandbox: whether the files of /workspace are there again when it wakes. True on a sandbox host, false in a Cloudflare
    /// Container, whose disk goes with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files_kept: Option<bool>,
}

impl From<Record> for SandboxNow {
    fn from(record: Record) -> Self {
        Self {
            status: record.state.status(),
            state: record.state,
            created_at: rfc3339(record.created_at),
            generation: record.generation,
            start_reason: record.start_reason,
            expires_at: record.expires_at().map(rfc3339),
            sleep_after: record.settings.sleep_after(),
            keep_alive: record.settings.keep_alive,
            variables: record.settings.env.keys().cloned().collect(),
            internet: record.settings.internet,
            internet_pending: internet_pending(&record),
            woken: None,
            processes_ended: None,
            files_kept: None,
            sandbox_id: record.sandbox_id.into(),
            labels: record.settings.labels,
        }
    }
}

impl From<Listed> for SandboxSummary {
    fn from(listed: Listed) -> Self {
        Self {
            sandbox_id: listed.sandbox_id.into(),
            status: listed.state.status(),
            state: listed.state,
            created_at: rfc3339(listed.created_at),
            started_at: listed.started_at.map(rfc3339),
            generation: listed.generation,
            labels: listed.labels,
            owner: listed.owner,
            last_used_at: listed.last_used_at.map(rfc3339),
            expires_at: listed.expires_at.map(rfc3339),
            sleep_after: listed.sleep_after,
            keep_alive: listed.keep_alive,
        }
    }
}

/// Whether the running sandbox has another access to the internet than it is set to.
pub fn internet_pending(record: &Record) -> Option<bool> {
    let runs_otherwise = record.internet_in_force.is_some_and(|in_force| in_force != record.settings.internet);
    (record.state == State::Running && runs_otherwise).then_some(true)
}

/// Seconds since the last start; zero while it does not run.
pub fn uptime(record: &Record, now: i64) -> f64 {
    match (record.state, record.started_at) {
        (State::Running, Some(started_at)) => {
            std::time::Duration::from_millis((now - started_at).unsigned_abs()).as_secs_f64()
        }
        _ => 0.0,
    }
}

/// Use of the machine, as read from the running sandbox; nothing when that did not answer, zero when it does not run.
pub fn resources(described: &Described) -> Option<Resources> {
    let read =
        described.metrics.as_ref().map(|metrics| Resources { cpu: metrics.cpu_percent, memory: metrics.memory_mb });
    read.or_else(|| (described.record.state != State::Running).then(Resources::default))
}

/// What the environment holds, by name.
pub fn environment(record: &Record) -> EnvironmentInfo {
    EnvironmentInfo {
        has_anthropic_credentials: record.settings.env.contains_key("ANTHROPIC_API_KEY"),
        variables: record.settings.env.keys().cloned().collect(),
    }
}
