//! What every tool says of a sandbox, in the same words.

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;

use crate::platform::rfc3339;
use crate::sandbox::record::{Described, Record};
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
    /// Names of the variables it was created with; values are never told.
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
        }
    }
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
