//! What the Worker needs to put a sandbox to sleep and to change it while it runs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Answer of `GET /v1/activity`. Asking is no activity, and neither are health and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Activity {
    /// Execs that run. Background processes do not count: a server that nobody calls is idle.
    pub execs: u64,
    /// Requests under way, streams and transfers among them.
    pub requests: u64,
    /// Milliseconds since the last request or exec ended; zero while there is one.
    pub idle_ms: u64,
}

/// Body and answer of `PUT /v1/environment`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Environment {
    /// Environment of every command that begins from now on, in place of what the sandbox was started with.
    pub env: BTreeMap<String, String>,
}

/// Answer of `POST /v1/sandboxes/{name}/stop` of a host, which succeeds for a name that does not run too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostStopped {
    /// Processes that were ended.
    pub processes: u64,
}
