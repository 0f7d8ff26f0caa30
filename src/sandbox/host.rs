//! The Host transport: sandboxes of a `sandboxd host`, reached over HTTP.
//!
//! `SANDBOX_HOST_URL` names it and `SANDBOX_HOST_TOKEN` authenticates to it. The host speaks to each sandbox with that boot's
//! own token, which never reaches the Worker.

use std::time::Duration;

use sandbox_api::{
    BOOT_ID_HEADER, ControlError, ControlErrorCode, HostSandbox, HostStart, HostStopped, ResourcesReleased,
};
use serde::de::DeserializeOwned;
use wasm_bindgen::JsValue;
use worker::{Date, Env};

use super::transport::{BOOT_DEADLINE, Boot, Control, SendError, refusal};
use crate::error::{Error, ErrorCode, Result};
use crate::trace::TRACEPARENT;
use crate::workers::backend::configured;
use crate::workers::fetch::{self, Destination, Outgoing};

/// Where the host is.
pub const URL_VARIABLE: &str = "SANDBOX_HOST_URL";
/// What authenticates to it.
pub const TOKEN_VARIABLE: &str = "SANDBOX_HOST_TOKEN";

/// Until a host answers a question.
const QUESTION_DEADLINE: Duration = Duration::from_secs(3);

/// Largest answer that is not passed on.
const LARGEST_ANSWER: usize = 256 * 1024;

/// One sandbox of a host.
#[derive(Clone)]
pub struct Host {
    url: String,
    token: String,
    name: String,
    /// Headers that name the trace, for requests that bring none.
    trace: Vec<(&'static str, String)>,
}

impl Host {
    /// The sandbox `{tenant}.{sandbox_id}` of the configured host.
    pub fn of(env: &Env, tenant: &str, sandbox_id: &str) -> Result<Self> {
        let missing = |name: &str| {
            Error::new(ErrorCode::NotConfigured, format!("{name} is not set: there is no machine to run sandboxes on"))
        };
        let url = configured(env, URL_VARIABLE).ok_or_else(|| missing(URL_VARIABLE))?;
        let token = configured(env, TOKEN_VARIABLE).ok_or_else(|| missing(TOKEN_VARIABLE))?;
        Ok(Self {
            url: url.trim_end_matches('/').to_owned(),
            token,
            name: format!("{tenant}.{sandbox_id}"),
            trace: Vec::new(),
        })
    }

    /// The same on behalf of a trace.
    pub fn traced(self, trace: Vec<(&'static str, String)>) -> Self {
        Self { trace, ..self }
    }

    /// Starts the sandbox or finds it running.
    pub async fn start(&self, start: &HostStart) -> Result<Boot> {
        let body = serde_json::to_string(start).map_err(Error::internal)?;
        let began = Date::now();
        let sent = self.send("PUT", "", Vec::new(), Some(body.into()), BOOT_DEADLINE).await;
        self.read(sent, "start the sandbox", left(&began, BOOT_DEADLINE)).await.map(boot)
    }

    /// The sandbox as the host has it; `None` when it does not run.
    pub async fn running(&self) -> Result<Option<Boot>> {
        let sent = self.send("GET", "", Vec::new(), None, QUESTION_DEADLINE).await;
        match sent {
            Err(SendError::Refused(refusal, _)) if refusal.code == ControlErrorCode::NotRunning => Ok(None),
            sent => self.read(sent, "say whether the sandbox runs", QUESTION_DEADLINE).await.map(boot).map(Some),
        }
    }

    /// Ends the sandbox and removes its files, within `deadline`.
    pub async fn destroy(&self, deadline: Duration) -> Result<ResourcesReleased> {
        let began = Date::now();
        let sent = self.send("DELETE", "", Vec::new(), None, deadline).await;
        self.read(sent, "end the sandbox", left(&began, deadline)).await
    }

    /// Ends the sandbox and keeps its files, within `deadline`.
    pub async fn stop(&self, deadline: Duration) -> Result<HostStopped> {
        let began = Date::now();
        let sent = self.send("POST", "/stop", Vec::new(), None, deadline).await;
        self.read(sent, "stop the sandbox", left(&began, deadline)).await
    }

    /// Passes a request on to the sandbox. A success is returned with its body unread.
    pub async fn control(&self, control: Control<'_>) -> Result<web_sys::Response, SendError> {
        let mut headers = control.headers;
        headers.push((BOOT_ID_HEADER, control.boot_id.to_owned()));
        self.send(control.method, &format!("/control{}", control.path), headers, control.body, control.deadline).await
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        mut headers: Vec<(&str, String)>,
        body: Option<JsValue>,
        deadline: Duration,
    ) -> Result<web_sys::Response, SendError> {
        if !headers.iter().any(|(name, _)| *name == TRACEPARENT) {
            headers.extend(self.trace.iter().cloned());
        }
        headers.push(("authorization", format!("Bearer {}", self.token)));
        if body.as_ref().is_some_and(JsValue::is_string) {
            headers.push(("content-type", "application/json".to_owned()));
        }
        let url = format!("{}/v1/sandboxes/{}{path}", self.url, self.name);
        let outgoing = Outgoing { method, url, headers, body, deadline };
        let response = fetch::send(Destination::Network, outgoing).await.map_err(SendError::Lost)?;
        if (200..300).contains(&response.status()) {
            return Ok(response);
        }
        Err(refusal(&response).await)
    }

    /// The whole answer, which is given `patience` once its head is there.
    async fn read<A: DeserializeOwned>(
        &self,
        sent: Result<web_sys::Response, SendError>,
        task: &str,
        patience: Duration,
    ) -> Result<A> {
        let unavailable = |cause: String| {
            Error::new(ErrorCode::SandboxUnavailable, format!("the sandbox host did not {task}"))
                .detail("reason", "host_unreachable")
                .because(cause)
        };
        let response = match sent {
            Ok(response) => response,
            Err(SendError::Lost(error)) => return Err(unavailable(error.to_string())),
            Err(SendError::Refused(refusal, _)) => return Err(refused(refusal)),
        };
        let text = fetch::text(&response, LARGEST_ANSWER, patience).await;
        let text = text.map_err(|error| unavailable(error.to_string()))?;
        serde_json::from_str(&text).map_err(|error| unavailable(format!("unreadable answer: {error}")))
    }
}

/// What is left of a deadline for the body of an answer: where many sandboxes end at once it follows its head late.
fn left(began: &Date, deadline: Duration) -> Duration {
    let passed = Date::now().as_millis().saturating_sub(began.as_millis());
    deadline.saturating_sub(Duration::from_millis(passed)).max(QUESTION_DEADLINE)
}

fn boot(sandbox: HostSandbox) -> Boot {
    Boot { boot_id: sandbox.boot_id, api_version: sandbox.api_version }
}

/// A refusal in the caller's words.
pub fn refused(refusal: ControlError) -> Error {
    if refusal.code == ControlErrorCode::Unauthenticated {
        let message = "the sandbox host does not accept SANDBOX_HOST_TOKEN";
        return Error::new(ErrorCode::NotConfigured, message).because(refusal.message);
    }
    Error::from(refusal)
}
