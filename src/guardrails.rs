//! What a tool says about the danger of calling it. There is no default: each tool states its own.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Who may call, in rising order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum Role {
    /// Reads.
    Viewer,
    /// Makes, runs and removes sandboxes.
    Operator,
    /// Everything.
    Admin,
}

impl Role {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

/// A right that a key may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
pub enum Scope {
    #[serde(rename = "sandbox:read")]
    SandboxRead,
    #[serde(rename = "sandbox:write")]
    SandboxWrite,
    #[serde(rename = "sandbox:exec")]
    SandboxExec,
    #[serde(rename = "metrics:read")]
    MetricsRead,
    #[serde(rename = "keys:read")]
    KeysRead,
    #[serde(rename = "keys:admin")]
    KeysAdmin,
    #[serde(rename = "tokens:create")]
    TokensCreate,
    #[serde(rename = "audit:read")]
    AuditRead,
    #[serde(rename = "usage:read")]
    UsageRead,
    #[serde(rename = "jobs:read")]
    JobsRead,
    #[serde(rename = "jobs:write")]
    JobsWrite,
    #[serde(rename = "jobs:approve")]
    JobsApprove,
    #[serde(rename = "schedules:read")]
    SchedulesRead,
    #[serde(rename = "schedules:write")]
    SchedulesWrite,
    #[serde(rename = "usage:admin")]
    UsageAdmin,
    #[serde(rename = "secrets:read")]
    SecretsRead,
    #[serde(rename = "secrets:write")]
    SecretsWrite,
    /// What a call asks for that uses a secret, beside the scopes of its tool.
    #[serde(rename = "secrets:use")]
    SecretsUse,
}

impl Scope {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SandboxRead => "sandbox:read",
            Self::SandboxWrite => "sandbox:write",
            Self::SandboxExec => "sandbox:exec",
            Self::MetricsRead => "metrics:read",
            Self::KeysRead => "keys:read",
            Self::KeysAdmin => "keys:admin",
            Self::TokensCreate => "tokens:create",
            Self::AuditRead => "audit:read",
            Self::UsageRead => "usage:read",
            Self::JobsRead => "jobs:read",
            Self::JobsWrite => "jobs:write",
            Self::JobsApprove => "jobs:approve",
            Self::SchedulesRead => "schedules:read",
            Self::SchedulesWrite => "schedules:write",
            Self::UsageAdmin => "usage:admin",
            Self::SecretsRead => "secrets:read",
            Self::SecretsWrite => "secrets:write",
            Self::SecretsUse => "secrets:use",
        }
    }
}

/// Whether another key has to approve a call before it acts. Rules of a key can ask for more, see `tenant::approval`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum Approval {
    #[default]
    NotNeeded,
    Needed,
    /// Not needed, nor asked for by a rule about what is destructive: it only ends what goes on, and must not wait for that.
    Brake,
}

/// How a call runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum Execution {
    /// Within the request.
    Inline,
    /// Within the request, and never as a job, nor as a step of one: what it is given is stored nowhere but where it belongs.
    Immediate,
    /// Within the request, or as a job for a caller that prefers not to wait.
    Deferrable,
    /// Always as a job, whose steps are calls of other tools.
    Job,
    /// Within the request, or as a job, as one process of a sandbox that has the id of the call: it can be ended, and found again.
    Process,
}

impl Execution {
    /// Whether a caller may have it carried out as a job.
    pub fn may_be_a_job(self) -> bool {
        !matches!(self, Self::Inline | Self::Immediate)
    }
}

/// Which window of the rate limits a call is taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum RateClass {
    /// Calls a minute.
    Read,
    /// Calls a minute and sandbox operations an hour.
    SandboxOperation,
}

/// The guardrails of one tool.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Guardrails {
    /// Least role that may call.
    pub role: Role,
    /// Rights that the key must hold, all of them.
    pub scopes: &'static [Scope],
    /// Whether another key has to approve every call first.
    pub approval: Approval,
    /// Seconds within which a call is answered when its arguments name none.
    pub default_timeout: u32,
    /// Most seconds that a call may ask for.
    pub maximum_timeout: u32,
    /// Most bytes of an answer in JSON.
    pub output_cap_bytes: u64,
    /// Window that the call is taken from.
    pub rate_class: RateClass,
    /// JSON pointers of arguments that the audit records as present, without their values.
    pub unrecorded_arguments: &'static [&'static str],
    /// JSON pointers of what an answer tells once: it is not kept for an idempotency key.
    pub told_once: &'static [&'static str],
}

/// What a client may assume of a tool, in MCP's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Annotations {
    pub title: &'static str,
    pub read_only_hint: bool,
    pub destructive_hint: bool,
    pub idempotent_hint: bool,
    pub open_world_hint: bool,
}
