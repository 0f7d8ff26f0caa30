//! The request and its answer: everything of MCP that knows the Workers runtime.

use std::rc::Rc;
use std::time::Duration;

use serde_json::Value;
use worker::{Request, Response, ResponseBuilder};

use super::approval::{self, Round};
use super::asking::Asking;
use super::cancelled::{SESSION_HEADER, is_cancelled, mark};
use super::envelope::{self, Asked, Fault, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, Message, PARSE_ERROR};
use super::headers::{self, Era, Sent};
use super::progress::Progress;
use super::reading::Reading;
use super::{MODERN, fitting, origin, result, tools};
use crate::api::body;
use crate::api::rest::{Door, Shared, header};
use crate::api::routes::accepts_events;
use crate::api::stream::{Frame, events};
use crate::call::{Backend, CallHead, Reply, ToolCall};
use crate::error::{Error, ErrorCode, Result};
use crate::events::NoEvents;
use crate::sse;
use crate::workers::platform::uuid;

/// How long a client is kept waiting that is told nothing meanwhile.
const LONGEST_SILENCE: Duration = Duration::from_secs(50);

/// Pages that may speak to this service beside its own, separated by commas.
const ALLOWED_ORIGINS: &str = "MCP_ALLOWED_ORIGINS";

impl Door {
    /// Answers one message.
    pub(in crate::api) async fn mcp(&self, shared: Rc<Shared>, request: &Request, head: CallHead) -> Result<Response> {
        self.check_origin(request)?;
        // Who calls is decided before the protocol is spoken, and before a stranger's body is read.
        shared.registry.authenticate(&*self.backend, &head)?;
        let body = match body::json(request, &*self.backend.platform()).await {
            Ok(body) => body.unwrap_or_default(),
            Err(error) => return self.refused(&unreadable(&error), &Value::Null),
        };
        let asked = match envelope::read(body) {
            Ok(Message::Request(asked)) => asked,
            Ok(Message::Told) => return Ok(taken()),
            Ok(Message::Cancelled(id)) => {
                // A client of the stateless revision closes the stream of its call instead.
                if header(request, "mcp-protocol-version").as_deref() != Some(MODERN) {
                    let head = CallHead { mark: Some(mark(header(request, SESSION_HEADER).as_deref(), &id)), ..head };
                    shared.registry.cancel(&*self.backend, &head).await?;
                }
                return Ok(taken());
            }
            Err(fault) => return self.refused(&fault, &Value::Null),
        };
        let sent = Sent {
            version: header(request, "mcp-protocol-version"),
            method: header(request, "mcp-method"),
            name: header(request, "mcp-name"),
        };
        let era = match headers::era(&sent, &asked) {
            Ok(era) => era,
            Err(fault) => return self.refused(&fault, &asked.id),
        };
        let head = match era {
            Era::Legacy => CallHead { mark: Some(mark(header(request, SESSION_HEADER).as_deref(), &asked.id)), ..head },
            Era::Modern => head,
        };
        let as_events = AsEvents::wanted(request);
        let told = match (asked.method.as_str(), era) {
            ("initialize", _) => Ok(result::initialized(asked.params.get("protocolVersion").and_then(Value::as_str))),
            ("ping", Era::Legacy) => Ok(serde_json::json!({})),
            ("server/discover", Era::Modern) => Ok(result::discovered()),
            ("tools/list", _) if asked.params.get("cursor").is_some_and(|cursor| !cursor.is_null()) => {
                Err(Fault::new(200, INVALID_PARAMS, "cursor: the list has one page, and no cursor was given out"))
            }
            ("tools/list", _) => {
                let described = self.described(&shared, &head).await?;
                let described = described.get("tools").and_then(Value::as_array);
                Ok(result::listed(era, described.into_iter().flatten().map(tools::listed).collect()))
            }
            ("resources/list" | "resources/templates/list" | "resources/read", era) => {
                let head = CallHead { mark: None, idempotency_key: None, ..head };
                Reading { door: self, shared, head, era }.answer(&asked).await?
            }
            ("tools/call", _) => return self.mcp_call(shared, head, asked, era, as_events).await,
            (method, _) => {
                let status = if era == Era::Modern { 404 } else { 200 };
                let shown: String = method.chars().take(64).collect();
                Err(Fault::new(status, METHOD_NOT_FOUND, format!("there is no method {shown:?} in this era")))
            }
        };
        match told {
            Ok(told) => {
                let response =
                    as_events.respond(&envelope::success(&asked.id, result::of_era(era, told)), &self.request_id)?;
                if asked.method == "initialize" {
                    response.headers().set(SESSION_HEADER, &uuid()).map_err(Error::internal)?;
                }
                Ok(response)
            }
            Err(fault) => self.refused(&fault, &asked.id),
        }
    }

    /// What became no call. The log has its code, and nothing of what was sent.
    fn refused(&self, fault: &Fault, id: &Value) -> Result<Response> {
        self.log_refusal(&Error::new(ErrorCode::MalformedRequest, format!("JSON-RPC error {}", fault.code)));
        let response = Response::from_json(&fault.answer(id)).map_err(Error::internal)?;
        Ok(response.with_status(fault.status))
    }

    fn check_origin(&self, request: &Request) -> Result<()> {
        let Some(sent) = header(request, "origin") else {
            return Ok(());
        };
        let own = request.url().map(|url| url.origin().ascii_serialization()).map_err(Error::internal)?;
        if origin::is_allowed(&sent, &own, self.backend.setting(ALLOWED_ORIGINS).as_deref()) {
            return Ok(());
        }
        let message =
            "pages of this origin may not speak MCP to this service; MCP_ALLOWED_ORIGINS lists those that may";
        Err(Error::new(ErrorCode::Forbidden, message))
    }

    async fn mcp_call(
        &self,
        shared: Rc<Shared>,
        head: CallHead,
        asked: Asked,
        era: Era,
        as_events: AsEvents,
    ) -> Result<Response> {
        let Asked { id, mut params, .. } = asked;
        let progress = Progress::wanted(&params);
        let Some(Value::String(tool)) = params.remove("name") else {
            let fault = Fault::new(200, INVALID_PARAMS, "params.name must be a string, the name of a tool");
            return self.refused(&fault, &id);
        };
        let progress = progress.filter(|_| !matches!(as_events, AsEvents::No));
        // Clients give up after 60 seconds in which they are told nothing.
        let patience = progress.is_none().then_some(LONGEST_SILENCE);
        let head = CallHead { patience, ..head };
        let arguments = params.remove("arguments").filter(|arguments| !arguments.is_null());
        let arguments = arguments.unwrap_or_else(|| Value::Object(Default::default()));
        let retry = match era {
            Era::Modern => approval::retry(&mut params),
            Era::Legacy => Ok(None),
        };
        let retry = match retry {
            Ok(retry) => retry,
            Err(fault) => return self.refused(&fault, &id),
        };
        let asks = era == Era::Modern && approval::can_ask(&params);
        let asking = if asks || retry.is_some() {
            let principal = shared.registry.authenticate(&*self.backend, &head)?;
            Some(Asking::new(asks, principal, &tool, &arguments))
        } else {
            None
        };
        // What was asked about is no new call, whatever becomes of it.
        if let (Some(asking), Some(retry)) = (&asking, &retry) {
            let head = CallHead { patience: Some(LONGEST_SILENCE), ..head };
            return match asking.answer(self, &shared, head, retry).await? {
                Ok(told) => as_events.respond(&envelope::success(&id, result::of_era(era, told)), &self.request_id),
                Err(fault) => self.refused(&fault, &id),
            };
        }
        let call = ToolCall { head, tool, arguments: Ok(arguments) };
        let Some(progress) = progress else {
            let backend = self.backend.clone();
            let work = async move { shared.registry.call(&*backend, call, Rc::new(NoEvents)).await };
            let reply = self.noted(self.to_its_end(work).await?)?;
            return self.told(reply, &id, era, as_events, asking.as_ref());
        };
        let (first, rest) = self.begin(shared, call).await?;
        if let Frame::Last(answered) = first {
            let reply = self.noted(*answered)?;
            return self.told(reply, &id, era, as_events, asking.as_ref());
        }
        let request_id = self.request_id.clone();
        events(first, rest, move |frame| match frame {
            Frame::Event(event) => match progress.notification(&event) {
                Some(notification) => sse::encode("message", &notification.to_string()),
                None => sse::HEARTBEAT.to_owned(),
            },
            // Nobody waits for the answer to a call that was cancelled.
            Frame::Last(answered) if answered.result.as_ref().is_err_and(is_cancelled) => sse::HEARTBEAT.to_owned(),
            Frame::Last(answered) => fitting::event(&response(answered.result, &id, era, &request_id).1, &request_id),
        })
    }

    /// What the headers say of a call is kept. A caller who turned out to be none is answered before the protocol is spoken.
    fn noted(&self, answered: crate::call::Answered<Reply<Value>>) -> Result<Result<Reply<Value>>> {
        match self.note(answered) {
            Err(error) if matches!(error.code, ErrorCode::Unauthenticated) => Err(error),
            result => Ok(result),
        }
    }

    fn told(
        &self,
        reply: Result<Reply<Value>>,
        id: &Value,
        era: Era,
        as_events: AsEvents,
        asking: Option<&Asking>,
    ) -> Result<Response> {
        if let (Some(asking), Ok(Reply::Job(job))) = (asking, &reply) {
            let (round, job) = (Round::first(&job.job_id), serde_json::to_value(job).unwrap_or_default());
            if let Some(question) = asking.question(self, &job, &round) {
                return as_events.respond(&envelope::success(id, question), &self.request_id);
            }
        }
        let (status, message) = response(reply, id, era, &self.request_id);
        as_events.respond(&message, &self.request_id).map(|response| response.with_status(status))
    }
}

/// The message that tells what became of a call, and its status.
fn response(reply: Result<Reply<Value>>, id: &Value, era: Era, request_id: &str) -> (u16, Value) {
    match result::called(reply, request_id) {
        Ok(told) => (200, envelope::success(id, result::of_era(era, told))),
        Err(fault) => (fault.status, fault.answer(id)),
    }
}

/// 202: a message that has no answer.
fn taken() -> Response {
    ResponseBuilder::new().with_status(202).empty()
}

fn unreadable(error: &Error) -> Fault {
    let code = if error.code == ErrorCode::MalformedRequest { PARSE_ERROR } else { INVALID_REQUEST };
    Fault::new(error.code.status(), code, error.message.clone())
}

/// Whether the client takes its answer as a stream of events.
#[derive(Clone, Copy)]
enum AsEvents {
    /// It takes JSON alone.
    No,
    /// It takes both: an answer is JSON unless there is something to tell before it.
    Offered,
    /// It takes nothing else.
    Only,
}

impl AsEvents {
    fn wanted(request: &Request) -> Self {
        let accept = header(request, "accept").unwrap_or_default().to_ascii_lowercase();
        let json = ["application/json", "application/*", "*/*"].iter().any(|kind| accept.contains(kind));
        match (accepts_events(&accept), json) {
            (false, _) => Self::No,
            (true, true) => Self::Offered,
            (true, false) => Self::Only,
        }
    }

    fn respond(self, message: &Value, request_id: &str) -> Result<Response> {
        match self {
            Self::No | Self::Offered => Response::from_json(message).map_err(Error::internal),
            Self::Only => {
                let builder = ResponseBuilder::new();
                let builder = builder.with_header("content-type", "text/event-stream; charset=utf-8");
                let text = fitting::event(message, request_id);
                Ok(builder.map_err(Error::internal)?.fixed(text.into_bytes()))
            }
        }
    }
}
