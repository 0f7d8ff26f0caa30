//! Requests that leave: each with a deadline, after which it is aborted.

use std::time::Duration;

use futures_util::future::{Either, select};
use wasm_bindgen::{JsCast, JsValue};
use worker::{Delay, ObjectNamespace};

pub use crate::fetch_error::FetchError;
use crate::fetch_error::Thrown;
use crate::sandbox::container_runtime::Port;

/// A request that leaves.
pub struct Outgoing<'a> {
    pub method: &'a str,
    pub url: String,
    pub headers: Vec<(&'a str, String)>,
    pub body: Option<JsValue>,
    /// Until the head of the answer.
    pub deadline: Duration,
}

/// Where a request goes.
pub enum Destination<'a> {
    Network,
    /// The object of that name. A stub is made for each request: one that has failed once fails for ever.
    Object(&'a ObjectNamespace, &'a str),
    /// The files that were uploaded with the Worker.
    Assets(&'a worker::Fetcher),
    /// A port of the container of the object that asks.
    Port(Port),
}

#[wasm_bindgen::prelude::wasm_bindgen]
extern "C" {
    #[wasm_bindgen(catch, js_name = fetch)]
    fn global_fetch(url: &str, init: &web_sys::RequestInit) -> Result<js_sys::Promise, JsValue>;

    /// The stub of an object, or another binding that fetches. The runtime's own bindings keep of an error its text alone.
    type Stub;

    #[wasm_bindgen(method, catch)]
    fn fetch(this: &Stub, url: &str, init: &web_sys::RequestInit) -> Result<js_sys::Promise, JsValue>;
}

/// Sends a request and waits for the head of its answer.
pub async fn send(destination: Destination<'_>, outgoing: Outgoing<'_>) -> Result<web_sys::Response, FetchError> {
    let abort = web_sys::AbortController::new().map_err(failed)?;
    let answer = head(destination, &outgoing, &abort);
    in_time(outgoing.deadline, &abort, answer).await
}

/// Asks an object of ours and waits for its whole answer, which has no limit but the one of whoever made it.
pub async fn ask(
    destination: Destination<'_>,
    outgoing: Outgoing<'_>,
) -> Result<(web_sys::Response, String), FetchError> {
    let abort = web_sys::AbortController::new().map_err(failed)?;
    let answer = async {
        let response = head(destination, &outgoing, &abort).await?;
        let text = whole(&response).await?;
        Ok((response, text))
    };
    in_time(outgoing.deadline, &abort, answer).await
}

async fn in_time<T>(
    deadline: Duration,
    abort: &web_sys::AbortController,
    answer: impl Future<Output = Result<T, FetchError>>,
) -> Result<T, FetchError> {
    let answer = std::pin::pin!(answer);
    match select(answer, Delay::from(deadline)).await {
        Either::Left((answer, _)) => answer,
        Either::Right(((), _)) => {
            abort.abort();
            Err(FetchError::Deadline(deadline))
        }
    }
}

async fn head(
    destination: Destination<'_>,
    outgoing: &Outgoing<'_>,
    abort: &web_sys::AbortController,
) -> Result<web_sys::Response, FetchError> {
    let headers = web_sys::Headers::new().map_err(failed)?;
    for (name, value) in &outgoing.headers {
        headers.set(name, value).map_err(failed)?;
    }
    let init = web_sys::RequestInit::new();
    init.set_method(outgoing.method);
    init.set_headers(&headers);
    init.set_redirect(web_sys::RequestRedirect::Manual);
    init.set_signal(Some(&abort.signal()));
    if let Some(body) = &outgoing.body {
        init.set_body(body);
    }
    let (promise, fault): (_, fn(JsValue) -> FetchError) = match destination {
        Destination::Network => (global_fetch(&outgoing.url, &init).map_err(failed)?, failed),
        Destination::Port(port) => {
            let request = web_sys::Request::new_with_str_and_init(&outgoing.url, &init).map_err(failed)?;
            (port.fetch(&request).map_err(failed)?, failed)
        }
        Destination::Object(namespace, name) => {
            let stub = namespace.get_by_name(name).map_err(|error| FetchError::Failed(error.to_string()))?;
            let stub: Stub = stub.into_rpc();
            (stub.fetch(&outgoing.url, &init).map_err(thrown)?, thrown)
        }
        Destination::Assets(assets) => {
            let assets: &Stub = assets.as_ref().unchecked_ref();
            (assets.fetch(&outgoing.url, &init).map_err(failed)?, failed)
        }
    };
    let value = wasm_bindgen_futures::JsFuture::from(promise).await.map_err(fault)?;
    value.dyn_into::<web_sys::Response>().map_err(failed)
}

/// The whole body as text, at most `limit` bytes of it and within `deadline`.
pub async fn text(response: &web_sys::Response, limit: usize, deadline: Duration) -> Result<String, FetchError> {
    use futures_util::StreamExt;
    let Some(stream) = response.body() else {
        return Ok(String::new());
    };
    let read = async {
        let mut bytes = Vec::new();
        let mut chunks = worker::ByteStream::from(stream);
        while let Some(chunk) = chunks.next().await {
            bytes.extend(chunk.map_err(|error| FetchError::Failed(error.to_string()))?);
            if bytes.len() > limit {
                return Err(FetchError::Failed(format!("the answer is larger than {limit} bytes")));
            }
        }
        String::from_utf8(bytes).map_err(|error| FetchError::Failed(error.to_string()))
    };
    let read = std::pin::pin!(read);
    match select(read, Delay::from(deadline)).await {
        Either::Left((text, _)) => text,
        Either::Right(((), _)) => Err(FetchError::Deadline(deadline)),
    }
}

/// The whole body at once: in pieces it passes from JavaScript several times.
async fn whole(response: &web_sys::Response) -> Result<String, FetchError> {
    let buffer = response.array_buffer().map_err(failed)?;
    let buffer = wasm_bindgen_futures::JsFuture::from(buffer).await.map_err(failed)?;
    let bytes = js_sys::Uint8Array::new(&buffer).to_vec();
    String::from_utf8(bytes).map_err(|error| FetchError::Failed(error.to_string()))
}

fn failed(error: JsValue) -> FetchError {
    FetchError::Failed(describe(&error))
}

/// What the stub of an object threw.
fn thrown(error: JsValue) -> FetchError {
    let is = |property: &str| js_sys::Reflect::get(&error, &property.into()).is_ok_and(|value| value.is_truthy());
    FetchError::Thrown(Thrown {
        message: describe(&error),
        retryable: is("retryable"),
        overloaded: is("overloaded"),
        reset: is("durableObjectReset"),
    })
}

/// The text of what JavaScript threw.
pub fn describe(error: &JsValue) -> String {
    match error.dyn_ref::<js_sys::Error>() {
        Some(error) => String::from(error.message()),
        None => error.as_string().unwrap_or_else(|| "a value that is no error was thrown".to_owned()),
    }
}
