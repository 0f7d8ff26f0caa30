//! The REST door: `POST /v1/tools/{tool}`, resource routes, raw routes, and the few open pages.
//!
//! ```text
//! OPTIONS ─▶ 204, before anything else
//! route ─▶ key ─▶ body ─▶ one call ─▶ JSON | events | raw bytes | problem
//! ```
//!
//! A call goes on to its end and is settled although its caller leaves, so it runs as background work that the answer waits
//! for. With `Accept: text/event-stream` the answer is a stream from the moment the call is admitted; what is refused before
//! that is an ordinary problem with its status.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use futures_channel::oneshot;
use serde_json::{Value, json};
use wasm_bindgen::JsCast;
use worker::{Context, Env, Headers, Request, Response, ResponseBuilder};

use super::pages::Page;
use super::routes::{self, Matched, Routes, Target};
use super::stream::{Frame, events};
use super::{body, mcp};
use crate::call::{Answered, Backend, CallHead, RawCall, Reply, ToolCall};
use crate::error::{Error, ErrorCode, Result};
use crate::events::NoEvents;
use crate::log_line::{CallLine, DataPoint};
use crate::raw::{RawRequest, RawResponse};
use crate::registry::{Method, Registry};
use crate::tenant::credential::Presented;
use crate::tenant::limits::Standing;
use crate::tools::job_info::JobInfo;
use crate::trace::{TRACEPARENT, TRACESTATE, Trace};
use crate::workers::backend::WorkersBackend;
use crate::workers::body::{JsBody, to_js};
use crate::workers::platform::{random, uuid};
use crate::{connection, platform, raw, tools};

const DOOR: &str = "rest";

/// How long a caller that is told nothing meanwhile is kept waiting: proxies on the way give up after 100 s.
const LONGEST_HELD: Duration = Duration::from_secs(90);

/// What every request of the isolate shares: no tenant's data, only descriptions.
pub struct Shared {
    pub registry: Registry,
    routes: Routes,
}

thread_local! {
    static SHARED: Result<Rc<Shared>> = {
        let registry = tools::registry();
        Routes::new(&registry).map(|routes| Rc::new(Shared { registry, routes }))
    };
}

/// What every request of the isolate shares.
pub fn shared() -> Result<Rc<Shared>> {
    SHARED.with(Clone::clone)
}

/// Answers one request.
pub async fn serve(request: Request, env: Env, context: Rc<Context>) -> worker::Result<Response> {
    let request_id = uuid();
    if request.inner().method() == "OPTIONS" {
        return preflight(&request, &request_id);
    }
    let sent = |name| header(&request, name);
    let trace = Trace::of_request(sent(TRACEPARENT).as_deref(), sent(TRACESTATE).as_deref(), random);
    let backend = Rc::new(WorkersBackend::new(env, context.clone(), trace.clone()));
    let began_at = backend.platform().now_millis();
    let preference = sent("prefer").and_then(|prefer| routes::patience(&prefer));
    let patience = match preference {
        Some(asked) => Some(asked.min(LONGEST_HELD)),
        None => (!wants_events(&request)).then_some(LONGEST_HELD),
    };
    let door = Door {
        backend,
        prefers_job: preference.is_some(),
        patience,
        context,
        request_id,
        trace,
        began_at,
        door: Cell::new(DOOR),
        is_logged: Cell::default(),
        standing: Cell::default(),
        is_replayed: Cell::default(),
    };
    match door.answer(&request).await {
        Ok(response) => door.finish(response),
        Err(error) => {
            body::drain(&request, &*door.backend.platform()).await;
            door.finish(door.problem(&error)?)
        }
    }
}

/// Headers that a page may send.
const ALLOWED_HEADERS: &str = "authorization, content-type, accept, range, content-range, if-match, if-none-match, upload-id, \
    prefer, idempotency-key, webhook-url, x-tenant, traceparent, tracestate, mcp-protocol-version, mcp-method, mcp-name, mcp-session-id, \
    last-event-id";

fn preflight(request: &Request, request_id: &str) -> worker::Result<Response> {
    let headers = Headers::new();
    cors(&headers)?;
    headers.set("x-request-id", request_id)?;
    headers.set("access-control-allow-methods", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS")?;
    let mut allowed = ALLOWED_HEADERS.to_owned();
    // MCP has headers that are named by a tool's parameters.
    for name in mcp::headers::parameters(&header(request, "access-control-request-headers").unwrap_or_default()) {
        allowed.push_str(", ");
        allowed.push_str(name);
    }
    headers.set("access-control-allow-headers", &allowed)?;
    headers.set("access-control-max-age", "86400")?;
    Ok(ResponseBuilder::new().with_status(204).with_headers(headers).empty())
}

/// Any page may call: what counts is the key, and no cookie is ever read.
fn cors(headers: &Headers) -> worker::Result<()> {
    headers.set("access-control-allow-origin", "*")?;
    headers.set(
        "access-control-expose-headers",
        "x-request-id, traceparent, retry-after, content-length, content-range, accept-ranges, etag, last-modified, location, \
         x-archive-omitted, x-ratelimit-limit, x-ratelimit-remaining, x-ratelimit-reset, idempotency-replayed, preference-applied, \
         mcp-session-id",
    )
}

/// One request on its way through the door.
pub(super) struct Door {
    pub(super) backend: Rc<WorkersBackend>,
    pub(super) context: Rc<Context>,
    pub(super) request_id: String,
    trace: Trace,
    began_at: i64,
    /// The door as the log names it.
    door: Cell<&'static str>,
    /// Whether the caller takes a job for an answer: `Prefer: respond-async`.
    prefers_job: bool,
    /// How long it waits for what can be a job; nothing where it reads events.
    patience: Option<Duration>,
    /// Whether the error that is answered has its line already: a call writes its own.
    is_logged: Cell<bool>,
    /// How the caller's window of calls stands.
    pub(super) standing: Cell<Option<Standing>>,
    /// Whether the answer is that of an earlier call.
    is_replayed: Cell<bool>,
}

impl Door {
    async fn answer(&self, request: &Request) -> Result<Response> {
        let shared = shared()?;
        let path = request.path();
        // The method as it was sent: the bindings take a method that they do not know for GET.
        let Matched { target, parameters } = shared.routes.find(&request.inner().method(), &path)?;
        if matches!(target, Target::Mcp) {
            self.door.set(mcp::DOOR);
        }
        if matches!(target, Target::WebSocket) {
            self.door.set(connection::DOOR);
        }
        let head = CallHead {
            id: self.request_id.clone(),
            door: self.door.get(),
            presented: Presented {
                authorization: header(request, "authorization"),
                tenant: header(request, "x-tenant"),
            },
            idempotency_key: header(request, "idempotency-key"),
            patience: self.patience,
            webhook_url: header(request, "webhook-url"),
            mark: None,
            trace: self.trace.clone(),
        };
        match target {
            Target::Index => self.index(request),
            Target::Health => self.health(),
            Target::Page(page) => self.page(page).await,
            Target::ListTools => {
                let described = self.described(&shared, &head).await?;
                Response::from_json(&described).map_err(Error::internal)
            }
            Target::Mcp => self.mcp(shared, request, head).await,
            Target::WebSocket => self.websocket(&shared, request, head).await,
            Target::CallTool => {
                // Who calls is decided before a stranger's body is read.
                shared.registry.authenticate(&*self.backend, &head)?;
                let tool = parameters.get("tool").and_then(|name| routes::percent_decode(name)).unwrap_or_default();
                let arguments =
                    body::json(request, &*self.backend.platform()).await.map(|body| body.unwrap_or_else(|| json!({})));
                self.call(shared, request, ToolCall { head, tool, arguments }).await
            }
            Target::Resource(tool) => {
                shared.registry.authenticate(&*self.backend, &head)?;
                let arguments = self.resource_arguments(&shared.registry, tool, request, &parameters).await;
                self.call(shared, request, ToolCall { head, tool: tool.to_owned(), arguments }).await
            }
            Target::Raw(tool) => {
                let call = RawCall { head, tool: tool.to_owned(), request: raw_request(request, parameters) };
                self.call_raw(shared, call).await
            }
        }
    }

    /// Descriptions of the tools that the caller may call.
    pub(super) async fn described(&self, shared: &Shared, head: &CallHead) -> Result<Value> {
        let Answered { result, standing, .. } = shared.registry.describe(&*self.backend, head).await;
        self.standing.set(standing);
        result
    }

    fn index(&self, request: &Request) -> Result<Response> {
        let origin = request.url().map(|url| url.origin().ascii_serialization()).map_err(Error::internal)?;
        let index = json!({
            "ok": true,
            "status": "ok",
            "name": "cloudflare-ops",
            "version": env!("CARGO_PKG_VERSION"),
            "tools": format!("{origin}/v1/tools"),
            "openapi": format!("{origin}/openapi.json"),
            "docs": format!("{origin}/docs"),
            "mcp": format!("{origin}/mcp"),
            "websocket": format!("{}/ws", origin.replacen("http", "ws", 1)),
            "health": format!("{origin}/health"),
        });
        Response::from_json(&index).map_err(Error::internal)
    }

    fn health(&self) -> Result<Response> {
        let now = platform::rfc3339(self.backend.platform().now_millis());
        Response::from_json(&json!({ "ok": true, "status": "ok", "timestamp": now })).map_err(Error::internal)
    }

    async fn page(&self, page: &Page) -> Result<Response> {
        let asset = self.backend.asset(page.asset).await?;
        let mut headers = vec![("content-type", page.kind), ("x-content-type-options", "nosniff")];
        headers.extend(page.policy.map(|policy| ("content-security-policy", policy)));
        let mut builder = ResponseBuilder::new();
        for (name, value) in headers {
            builder = builder.with_header(name, value).map_err(Error::internal)?;
        }
        match asset.body() {
            Some(stream) => Ok(builder.stream(stream)),
            None => Err(Error::internal(format!("{} is empty", page.asset))),
        }
    }

    async fn call(&self, shared: Rc<Shared>, request: &Request, call: ToolCall) -> Result<Response> {
        if wants_events(request) { self.stream(shared, call).await } else { self.buffer(shared, call).await }
    }

    async fn buffer(&self, shared: Rc<Shared>, call: ToolCall) -> Result<Response> {
        let backend = self.backend.clone();
        let work = async move { shared.registry.call(&*backend, call, Rc::new(NoEvents)).await };
        match self.note(self.to_its_end(work).await?)? {
            Reply::Output(output) => Response::from_json(&output).map_err(Error::internal),
            Reply::Job(job) => self.accepted(&job),
        }
    }

    async fn call_raw(&self, shared: Rc<Shared>, call: RawCall) -> Result<Response> {
        let backend = self.backend.clone();
        let work = async move { shared.registry.call_raw(&*backend, call).await };
        let RawResponse { status, headers, body } = match self.note(self.to_its_end(work).await?)? {
            Reply::Output(response) => response,
            Reply::Job(job) => return self.accepted(&job),
        };
        let init = web_sys::ResponseInit::new();
        init.set_status(status);
        let response_headers = web_sys::Headers::new().map_err(|error| Error::internal(format!("{error:?}")))?;
        for (name, value) in &headers {
            response_headers.set(name, value).map_err(|error| Error::internal(format!("{error:?}")))?;
        }
        init.set_headers(&response_headers);
        // Any body that JavaScript takes goes through here: a stream, or an array of bytes.
        let body = to_js(body).map(JsCast::unchecked_into::<js_sys::Object>);
        web_sys::Response::new_with_opt_buffer_source_and_init(body.as_ref(), &init)
            .map(Response::from)
            .map_err(|error| Error::internal(format!("{error:?}")))
    }

    /// Runs `work` to its end whatever becomes of the caller, and gives its result to whoever still waits.
    pub(super) async fn to_its_end<T: 'static>(&self, work: impl Future<Output = T> + 'static) -> Result<T> {
        let (sender, receiver) = oneshot::channel();
        self.context.wait_until(async move {
            // Nobody waits any more when this fails.
            let _ = sender.send(work.await);
        });
        receiver.await.map_err(Error::internal)
    }

    /// Keeps what the headers say of a call, and gives its result.
    pub(super) fn note<A>(&self, answered: Answered<A>) -> Result<A> {
        let Answered { result, standing, is_replayed, .. } = answered;
        self.standing.set(standing);
        self.is_replayed.set(is_replayed);
        result.inspect_err(|_| self.is_logged.set(true))
    }

    async fn stream(&self, shared: Rc<Shared>, call: ToolCall) -> Result<Response> {
        let (first, rest) = self.begin(shared, call).await?;
        let first = match first {
            Frame::Last(answered) => {
                let Answered { standing, is_replayed, has_begun, .. } = *answered;
                let reply = match self.note(*answered)? {
                    Reply::Job(job) => return self.accepted(&job),
                    reply => reply,
                };
                Frame::Last(Box::new(Answered { result: Ok(reply), standing, is_replayed, has_begun }))
            }
            frame => frame,
        };
        let request_id = self.request_id.clone();
        events(first, rest, move |frame| frame.encode(&request_id))
    }

    async fn resource_arguments(
        &self,
        registry: &Registry,
        tool: &str,
        request: &Request,
        path: &BTreeMap<String, String>,
    ) -> Result<Value> {
        let entry = registry.get(tool).ok_or_else(|| Error::internal(format!("route of an unknown tool {tool}")))?;
        let url = request.url().map_err(Error::internal)?;
        let query: Vec<(String, String)> =
            url.query_pairs().map(|(name, value)| (name.into_owned(), value.into_owned())).collect();
        // Of every method: what a body says of a removal must not be passed over.
        let body = body::json(request, &*self.backend.platform()).await?;
        routes::arguments(&entry.description().input_schema, body, query.into_iter(), path)
    }

    /// 202: the call became a job, which `Location` names.
    fn accepted(&self, job: &JobInfo) -> Result<Response> {
        let response = Response::from_json(job).map_err(Error::internal)?.with_status(202);
        let location = format!("/v1/jobs/{}", job.job_id);
        response.headers().set("location", &location).map_err(Error::internal)?;
        if self.prefers_job {
            response.headers().set("preference-applied", "respond-async").map_err(Error::internal)?;
        }
        Ok(response)
    }

    /// The line of a request that did not become a call. Of what was sent it repeats nothing: a stranger may have sent it.
    pub(super) fn log_refusal(&self, error: &Error) {
        if self.is_logged.get() {
            return;
        }
        let platform = self.backend.platform();
        let line = CallLine::new("refused", self.began_at, &self.request_id, self.door.get(), &self.trace);
        let line = line.ended(Some(error), platform.now_millis() - self.began_at);
        self.backend.tell(serde_json::to_value(&line).unwrap_or_default(), DataPoint::from(&line));
    }

    fn problem(&self, error: &Error) -> worker::Result<Response> {
        self.log_refusal(error);
        let headers = Headers::new();
        if let Some(seconds) = error.retry_after {
            headers.set("retry-after", &seconds.to_string())?;
        }
        if error.code == ErrorCode::Unauthenticated {
            headers.set("www-authenticate", "Bearer realm=\"cloudflare-ops\"")?;
        }
        if let Some(allow) = error.details.get("allow").and_then(Value::as_str) {
            headers.set("allow", allow)?;
        }
        if let (ErrorCode::RangeNotSatisfiable, Some(size)) = (error.code, error.details.get("size")) {
            headers.set("content-range", &format!("bytes */{size}"))?;
        }
        let response = Response::from_json(&error.problem(&self.request_id))?;
        headers.set("content-type", "application/problem+json")?;
        Ok(response.with_status(error.code.status()).with_headers(headers))
    }

    /// What every answer carries.
    fn finish(&self, response: Response) -> worker::Result<Response> {
        let headers = response.headers();
        cors(headers)?;
        headers.set("x-request-id", &self.request_id)?;
        headers.set(TRACEPARENT, &self.trace.traceparent())?;
        headers.set("x-content-type-options", "nosniff")?;
        if let Some(Standing { limit, remaining, reset_seconds }) = self.standing.get() {
            headers.set("x-ratelimit-limit", &limit.to_string())?;
            headers.set("x-ratelimit-remaining", &remaining.to_string())?;
            headers.set("x-ratelimit-reset", &reset_seconds.to_string())?;
        }
        if self.is_replayed.get() {
            headers.set("idempotency-replayed", "true")?;
        }
        if !headers.has("cache-control")? {
            headers.set("cache-control", "no-store")?;
        }
        Ok(response)
    }
}

pub fn header(request: &Request, name: &str) -> Option<String> {
    request.headers().get(name).ok().flatten()
}

fn wants_events(request: &Request) -> bool {
    header(request, "accept").is_some_and(|accept| super::routes::accepts_events(&accept))
}

fn raw_request(request: &Request, parameters: BTreeMap<String, String>) -> Result<RawRequest> {
    let method = match request.method() {
        worker::Method::Put => Method::Put,
        worker::Method::Head => Method::Head,
        _ => Method::Get,
    };
    if method == Method::Put && header(request, "if-unmodified-since").is_some() {
        let message = "an upload takes the conditions If-Match and If-None-Match; times are too coarse for one";
        return Err(Error::new(ErrorCode::InvalidArguments, message).detail("header", "if-unmodified-since"));
    }
    let length = header(request, "content-length");
    let length = length
        .map(|text| text.parse::<u64>().map_err(|_| Error::invalid("/Content-Length", "is not a number of bytes")))
        .transpose()?;
    // A range that holds only for one version of the file is answered with the whole file, which is always right.
    let whole = header(request, "if-range").is_some();
    let headers = raw::HEADERS.into_iter().filter(|name| !(whole && *name == "range"));
    let headers: Vec<_> = headers.filter_map(|name| header(request, name).map(|value| (name, value))).collect();
    if let Some((name, _)) = headers.iter().find(|(_, value)| value.len() > raw::LONGEST_HEADER) {
        let message = format!("the header {name} is longer than {} bytes", raw::LONGEST_HEADER);
        return Err(Error::new(ErrorCode::InvalidArguments, message).detail("header", *name));
    }
    let query = request.url().map_err(Error::internal)?.query().map(|query| format!("?{query}")).unwrap_or_default();
    let body = (method == Method::Put).then(|| Box::new(JsBody(request.inner().body())) as _);
    Ok(RawRequest { method, parameters, headers, query, length, body })
}
