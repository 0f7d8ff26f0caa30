//! The way to the machine that a sandbox runs on: the seam between its object and where commands run.
//!
//! `SANDBOX_HOST_URL` chooses a [`Host`]. All ways say the same: a boot is started or found running, asked, and ended, and a
//! refusal says whether anything of the request was carried out. Which boot is meant, and what follows from its loss, is decided
//! by the object (`life.rs`, `control.rs`) and not here.

use std::time::Duration;

use sandbox_api::{ControlError, ControlErrorCode, HostStart, ResourcesReleased};
use wasm_bindgen::JsValue;
use worker::Env;

use super::host::Host;
use crate::error::{Error, Result};
use crate::workers::fetch::FetchError;

/// Until a machine answers that it started a sandbox.
pub const BOOT_DEADLINE: Duration = Duration::from_secs(25);

/// A request to the control API of a running sandbox.
pub struct Control<'a> {
    pub method: &'a str,
    /// Path with its query.
    pub path: &'a str,
    pub headers: Vec<(&'a str, String)>,
    pub body: Option<JsValue>,
    pub boot_id: &'a str,
    pub deadline: Duration,
}

/// How a request to a sandbox failed.
pub enum SendError {
    /// It was refused, with the size of the file when that is why; see [`is_gone`].
    Refused(ControlError, Option<u64>),
    /// No answer: it may have been carried out.
    Lost(FetchError),
}

/// A boot that answers.
pub struct Boot {
    pub boot_id: String,
    /// Version of the control API inside.
    pub api_version: u32,
}

/// The machine of one sandbox.
pub enum Transport {
    Host(Host),
}

impl Transport {
    /// The machine that the configuration names.
    pub fn of(env: &Env, tenant: &str, sandbox_id: &str) -> Result<Self> {
        Host::of(env, tenant, sandbox_id).map(Self::Host)
    }

    /// Starts the sandbox or finds it running.
    pub async fn start(&self, start: &HostStart) -> Result<Boot> {
        match self {
            Self::Host(host) => host.start(start).await,
        }
    }

    /// The boot that runs; `None` when none does.
    pub async fn running(&self) -> Result<Option<Boot>> {
        match self {
            Self::Host(host) => host.running().await,
        }
    }

    /// Ends the sandbox and removes its files, within `deadline`.
    pub async fn destroy(&self, deadline: Duration) -> Result<ResourcesReleased> {
        match self {
            Self::Host(host) => host.destroy(deadline).await,
        }
    }

    /// Passes a request on to the sandbox. A success is returned with its body unread.
    pub async fn control(&self, control: Control<'_>) -> Result<web_sys::Response, SendError> {
        match self {
            Self::Host(host) => host.control(control).await,
        }
    }

    /// A refusal in the caller's words.
    pub fn refused(&self, refusal: ControlError) -> Error {
        match self {
            Self::Host(_) => super::host::refused(refusal),
        }
    }
}

/// Whether a refusal says that the boot is gone, and that nothing of the request was carried out.
pub fn is_gone(code: ControlErrorCode) -> bool {
    matches!(code, ControlErrorCode::NotRunning | ControlErrorCode::StaleGeneration)
}
