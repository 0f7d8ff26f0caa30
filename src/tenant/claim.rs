//! What a call wants of a sandbox, told by its tool before anything is decided.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::listing::Listed;
use crate::identifier::SandboxId;
use crate::sandbox::state::Status;

/// What a call wants of the tenant's list of sandboxes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum SandboxClaim {
    /// Nothing.
    #[default]
    None,
    /// The sandbox must be listed; it is started where it does not run, and kept running.
    #[serde(rename_all = "camelCase")]
    Existing { sandbox_id: SandboxId },
    /// The sandbox must be listed; where it runs it is kept running, and it is not started.
    #[serde(rename_all = "camelCase")]
    Running { sandbox_id: SandboxId },
    /// The sandbox must be listed; it is neither started nor kept running.
    #[serde(rename_all = "camelCase")]
    Untouched { sandbox_id: SandboxId },
    /// The sandbox may be listed or gone.
    #[serde(rename_all = "camelCase")]
    MaybeGone { sandbox_id: SandboxId },
    /// The sandbox is listed by this call unless it is already.
    #[serde(rename_all = "camelCase")]
    Create { sandbox_id: SandboxId, labels: BTreeMap<String, String>, origin: Origin },
}

impl SandboxClaim {
    /// The sandbox that the call is about.
    pub fn sandbox_id(&self) -> Option<&SandboxId> {
        match self {
            Self::None => None,
            Self::Existing { sandbox_id }
            | Self::Running { sandbox_id }
            | Self::Untouched { sandbox_id }
            | Self::MaybeGone { sandbox_id }
            | Self::Create { sandbox_id, .. } => Some(sandbox_id),
        }
    }

    /// Whether the sandbox has to be listed.
    pub fn is_of_a_listed_one(&self) -> bool {
        matches!(self, Self::Existing { .. } | Self::Running { .. } | Self::Untouched { .. })
    }

    /// Whether the call has the sandbox run longer than it would without it.
    pub fn has_run(&self, listed: Option<&Listed>) -> bool {
        match self {
            Self::Existing { .. } | Self::Create { .. } => true,
            Self::Running { .. } => listed.is_some_and(|listed| listed.state.status() == Status::Running),
            Self::None | Self::Untouched { .. } | Self::MaybeGone { .. } => false,
        }
    }
}

/// Which tool made a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Origin {
    CreateSandbox,
    /// A command that named no sandbox.
    Exec,
}
