//! `sandboxd host`: many sandboxes on one machine.
//!
//! `PUT /v1/sandboxes/{name}` starts one or finds it running, `DELETE` ends it and removes its files, `GET` tells of it,
//! and `/v1/sandboxes/{name}/control/…` is the control API of that sandbox (`…/control/v1/health`). The host authenticates
//! the caller with its own bearer token and speaks to each sandbox with that boot's token, which never leaves the machine.
//! A name is 1 to 128 of `a-z 0-9 - .` and begins with a letter or digit.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Isolation, Limits};

/// Body of `PUT /v1/sandboxes/{name}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HostStart {
    /// Value of `SANDBOX_ID` inside.
    pub sandbox_id: String,
    /// Environment of every command in the sandbox.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Whether commands reach the network beyond the sandbox. What would not hold is refused.
    #[serde(default = "yes")]
    pub internet: bool,
}

impl Default for HostStart {
    fn default() -> Self {
        Self { sandbox_id: String::new(), env: BTreeMap::new(), internet: yes() }
    }
}

fn yes() -> bool {
    true
}

/// Answer of `PUT` and `GET /v1/sandboxes/{name}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostSandbox {
    /// The name in the path.
    pub name: String,
    /// Boot id of the daemon inside.
    pub boot_id: String,
    /// Version of the control API inside.
    pub api_version: u32,
    /// Whether this request started it.
    pub started: bool,
}

/// Answer of `DELETE /v1/sandboxes/{name}`, which succeeds for a name that is not there too.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourcesReleased {
    /// Processes that were ended.
    pub processes: u64,
    /// Bytes of files that were removed.
    pub disk_bytes: u64,
}

/// Answer of `GET /v1/health` of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostHealth {
    /// Always `ok`.
    pub status: String,
    /// Version of the host.
    pub version: String,
    /// Version of the control API.
    pub api_version: u32,
    /// Sandboxes that run.
    pub sandboxes: u64,
    /// What separates its sandboxes from the machine and from each other.
    pub isolation: Isolation,
    /// What bounds each of its sandboxes.
    #[serde(default)]
    pub limits: Limits,
    /// Why sandboxes with internet are refused, where they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_internet: Option<String>,
    /// Which bounds are not held by control groups, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_control_groups: Option<String>,
}
