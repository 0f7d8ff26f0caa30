//! The way to the machine that a sandbox runs on: the seam between its object and where commands run.
//!
//! `SANDBOX_HOST_URL` chooses a [`Host`]; without it the object's own [`Container`] is taken where its class has one. Both say the same: a boot is started or found running, asked, and ended, and a
//! refusal says whether anything of the request was carried out. Which boot is meant, and what follows from its loss, is decided
//! by the object (`life.rs`, `control.rs`) and not here.

use std::rc::Rc;
use std::time::Duration;

use sandbox_api::{ControlError, ControlErrorCode, HostStart, ResourcesReleased};
use wasm_bindgen::JsValue;

use super::actor::{Inner, Stored};
use super::container::{self, Container};
use super::host::{self, Host};
use crate::error::{Error, ErrorCode, Result};
use crate::workers::backend::configured;
use crate::workers::fetch::{self, FetchError};

/// Until a machine answers that it started a sandbox.
pub const BOOT_DEADLINE: Duration = Duration::from_secs(25);

/// Until the body of a refusal is read.
const REFUSAL_DEADLINE: Duration = Duration::from_secs(3);

/// Largest body of a refusal.
const LARGEST_REFUSAL: usize = 256 * 1024;

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
    Container(Container),
}

impl Transport {
    /// The machine that the configuration names.
    pub fn of(inner: &Rc<Inner>, stored: &Stored) -> Result<Self> {
        if configured(&inner.env, host::URL_VARIABLE).is_some() {
            return Host::of(&inner.env, &stored.tenant, stored.record.sandbox_id.as_str())
                .map(|host| Self::Host(host.traced(inner.cause.headers())));
        }
        Container::of(inner, stored.token.clone()).map(Self::Container).ok_or_else(|| {
            let message = format!(
                "there is no machine to run sandboxes on: set {} and {}, or give the class SandboxActor a container",
                host::URL_VARIABLE,
                host::TOKEN_VARIABLE
            );
            Error::new(ErrorCode::NotConfigured, message)
        })
    }

    /// Starts the sandbox or finds it running.
    pub async fn start(&self, start: &HostStart) -> Result<Boot> {
        match self {
            Self::Host(host) => host.start(start).await,
            Self::Container(container) => container.start(start).await,
        }
    }

    /// The boot that runs; `None` when none does.
    pub async fn running(&self) -> Result<Option<Boot>> {
        match self {
            Self::Host(host) => host.running().await,
            Self::Container(container) => container.running().await,
        }
    }

    /// Ends the sandbox and removes its files, within `deadline`.
    pub async fn destroy(&self, deadline: Duration) -> Result<ResourcesReleased> {
        match self {
            Self::Host(host) => host.destroy(deadline).await,
            Self::Container(container) => container.destroy(deadline).await,
        }
    }

    /// Ends the sandbox within `deadline` and tells how many processes that ended. One that does not run is no error.
    pub async fn stop(&self, deadline: Duration) -> Result<u64> {
        match self {
            Self::Host(host) => host.stop(deadline).await.map(|stopped| stopped.processes),
            Self::Container(container) => container.stop(deadline).await,
        }
    }

    /// Ends what a start left that failed and that nobody waits for. A host has nothing of what it does not tell of.
    pub fn abandon(&self) {
        if let Self::Container(container) = self {
            container.abandon();
        }
    }

    /// Whether the files of the workspace are still there after a stop.
    pub fn keeps_files(&self) -> bool {
        matches!(self, Self::Host(_))
    }

    /// Passes a request on to the sandbox. A success is returned with its body unread.
    pub async fn control(&self, control: Control<'_>) -> Result<web_sys::Response, SendError> {
        match self {
            Self::Host(host) => host.control(control).await,
            Self::Container(container) => container.control(control).await,
        }
    }

    /// A refusal in the caller's words.
    pub fn refused(&self, refusal: ControlError) -> Error {
        match self {
            Self::Host(_) => host::refused(refusal),
            Self::Container(_) => container::refused(refusal),
        }
    }
}

/// Whether a refusal says that the boot is gone, and that nothing of the request was carried out.
pub fn is_gone(code: ControlErrorCode) -> bool {
    matches!(code, ControlErrorCode::NotRunning | ControlErrorCode::StaleGeneration)
}

/// Reads why a request was refused. What is no answer of this API keeps its status and text.
pub async fn refusal(response: &web_sys::Response) -> SendError {
    let size = response
        .headers()
        .get("content-range")
        .ok()
        .flatten()
        .and_then(|range| range.rsplit('/').next().and_then(|size| size.parse().ok()));
    let text = fetch::text(response, LARGEST_REFUSAL, REFUSAL_DEADLINE).await.unwrap_or_default();
    let refusal = serde_json::from_str::<ControlError>(&text).unwrap_or_else(|_| by_status(response.status(), &text));
    SendError::Refused(refusal, size)
}

/// An answer without the API's own body: of `HEAD`, or of something in between.
fn by_status(status: u16, text: &str) -> ControlError {
    let code = match status {
        400 => ControlErrorCode::InvalidArguments,
        401 => ControlErrorCode::Unauthenticated,
        403 => ControlErrorCode::PermissionDenied,
        404 => ControlErrorCode::NotFound,
        409 => ControlErrorCode::WrongFileType,
        410 => ControlErrorCode::StaleGeneration,
        412 => ControlErrorCode::PreconditionFailed,
        413 => ControlErrorCode::PayloadTooLarge,
        416 => ControlErrorCode::RangeNotSatisfiable,
        502..=504 => ControlErrorCode::NoAnswer,
        _ => ControlErrorCode::Unknown,
    };
    let text: String = text.chars().take(500).collect();
    ControlError { code, message: format!("the sandbox answered {status} {text}").trim_end().to_owned() }
}
