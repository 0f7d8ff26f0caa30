//! What the Worker and its objects say to each other: JSON both ways, and errors whole.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use worker::{Env, Headers, ObjectNamespace, Response};

use super::fetch::{self, Destination, FetchError, Outgoing};
use crate::error::{Error, Result};

/// Marks an answer whose body is an [`Error`].
pub const ERROR_HEADER: &str = "x-cloudflare-ops-error";

/// Largest JSON body between the Worker and an object.
const LARGEST_ANSWER: usize = 8 * 1024 * 1024;

/// Binding of the tenants' objects.
pub const TENANT_BINDING: &str = "TENANT";
/// Binding of the sandboxes' objects.
pub const SANDBOX_BINDING: &str = "SANDBOX";

/// Origin of requests to objects; it goes nowhere.
pub const ORIGIN: &str = "https://object.internal";

/// The objects behind a binding.
pub fn namespace(env: &Env, binding: &str) -> Result<ObjectNamespace> {
    env.durable_object(binding).map_err(|error| {
        Error::new(crate::error::ErrorCode::NotConfigured, format!("the Durable Object binding {binding} is missing"))
            .because(error)
    })
}

/// Asks the object of that name. `lost` says what it means when no answer comes.
pub async fn ask<Q: Serialize, A: DeserializeOwned>(
    namespace: &ObjectNamespace,
    name: &str,
    path: &str,
    question: &Q,
    deadline: Duration,
    lost: fn(FetchError) -> Error,
) -> Result<A> {
    let body = serde_json::to_string(question).map_err(Error::internal)?;
    let outgoing = Outgoing {
        method: "POST",
        url: format!("{ORIGIN}{path}"),
        headers: vec![("content-type", "application/json".to_owned())],
        body: Some(body.into()),
        deadline,
    };
    let response = fetch::send(Destination::Object(namespace, name), outgoing).await.map_err(lost)?;
    let text = fetch::text(&response, LARGEST_ANSWER, deadline).await.map_err(lost)?;
    if response.headers().has(ERROR_HEADER).unwrap_or(false) {
        return Err(serde_json::from_str::<Error>(&text).unwrap_or_else(Error::internal));
    }
    if response.status() != 200 {
        return Err(Error::internal(format!("object {name} answered {}: {text}", response.status())));
    }
    serde_json::from_str(&text).map_err(Error::internal)
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
    let headers = Headers::new();
    headers.set(ERROR_HEADER, "1")?;
    Ok(Response::from_json(error)?.with_status(error.code.status()).with_headers(headers))
}
