//! What the Worker and its objects say to each other: JSON both ways, and errors whole.
//!
//! An error travels in a header, since the answer to `HEAD` has no body.

use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use worker::{Delay, Env, Headers, ObjectNamespace, Response};

use super::fetch::{self, Destination, FetchError, Outgoing};
use crate::error::{Error, Result};
use crate::fetch_error::{Repeat, asked};

/// Holds an [`Error`] as percent-encoded JSON.
const ERROR_HEADER: &str = "x-cloudflare-ops-error";

/// Binding of the tenants' objects.
pub const TENANT_BINDING: &str = "TENANT";
/// Binding of the sandboxes' objects.
pub const SANDBOX_BINDING: &str = "SANDBOX";

/// Binding of the jobs' objects.
pub const JOB_BINDING: &str = "JOB";

/// Binding of the connections' objects.
pub const CONNECTION_BINDING: &str = "CONNECTION";

/// Origin of requests to objects; it goes nowhere.
pub const ORIGIN: &str = "https://object.internal";

/// The objects behind a binding.
pub fn namespace(env: &Env, binding: &str) -> Result<ObjectNamespace> {
    env.durable_object(binding).map_err(|error| {
        Error::new(crate::error::ErrorCode::NotConfigured, format!("the Durable Object binding {binding} is missing"))
            .because(error)
    })
}

/// A question to the object of that name.
pub struct Question<'a> {
    pub objects: &'a ObjectNamespace,
    pub name: &'a str,
    pub path: &'a str,
    pub deadline: Duration,
    pub repeat: Repeat,
    /// What it means when no answer comes.
    pub lost: fn(FetchError) -> Error,
    /// Headers that name the trace.
    pub trace: Vec<(&'static str, String)>,
}

impl Question<'_> {
    /// Asks with `body` as JSON. `see` gets the head of the answer.
    pub async fn ask<Q: Serialize, A: DeserializeOwned>(
        self,
        body: &Q,
        see: impl FnOnce(&web_sys::Response),
    ) -> Result<A> {
        let body = serde_json::to_string(body).map_err(Error::internal)?;
        let (response, answer) = self.ask_with(&body).await;
        if let Some(response) = response {
            see(&response);
        }
        serde_json::from_str(&answer?).map_err(Error::internal)
    }

    /// The head of the answer, where one came, and its text. Apart, since everything that is asked for is a type of its own.
    async fn ask_with(self, body: &str) -> (Option<web_sys::Response>, Result<String>) {
        let Self { objects, name, path, deadline, repeat, lost, trace } = self;
        let headers: Vec<_> = trace.into_iter().chain([("content-type", "application/json".to_owned())]).collect();
        let send = async || {
            let (headers, body) = (headers.clone(), Some(body.into()));
            let outgoing = Outgoing { method: "POST", url: format!("{ORIGIN}{path}"), headers, body, deadline };
            fetch::ask(Destination::Object(objects, name), outgoing).await
        };
        let (response, text) = match asked(repeat, pause, send).await {
            Ok(answer) => answer,
            Err(error) => return (None, Err(told(error, lost))),
        };
        let text = match (error_of(&response), response.status()) {
            (Some(error), _) => Err(error),
            (None, 200) => Ok(text),
            (None, status) => Err(Error::internal(format!("object {name} answered {status}: {text}"))),
        };
        (Some(response), text)
    }
}

/// The error for an answer that did not come: the platform's fault, or whatever `lost` makes of it.
pub fn told(error: FetchError, lost: fn(FetchError) -> Error) -> Error {
    error.of_platform().unwrap_or_else(|| lost(error))
}

/// Waits before something is asked again.
pub async fn pause(duration: Duration) {
    Delay::from(duration).await;
}

/// An object's answer.
pub fn answer<A: Serialize>(result: Result<A>) -> worker::Result<Response> {
    match result {
        Ok(value) => Response::from_json(&value),
        Err(error) => refusal(&error),
    }
}

/// An object's answer that is an error.
pub fn refusal(error: &Error) -> worker::Result<Response> {
    let text = serde_json::to_string(error)?;
    let headers = Headers::new();
    headers.set(ERROR_HEADER, &utf8_percent_encode(&text, NON_ALPHANUMERIC).to_string())?;
    Ok(Response::empty()?.with_status(error.code.status()).with_headers(headers))
}

/// The error that an object answered; `None` when it answered something else.
pub fn error_of(response: &web_sys::Response) -> Option<Error> {
    let encoded = response.headers().get(ERROR_HEADER).ok().flatten()?;
    let text = percent_decode_str(&encoded).decode_utf8_lossy().into_owned();
    Some(serde_json::from_str(&text).unwrap_or_else(Error::internal))
}
