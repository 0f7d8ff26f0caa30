//! The Durable Object of one WebSocket.
//!
//! It is an object so that an idle connection costs nothing: the runtime keeps the socket, answers pings, and wakes the object for
//! the next message. It stores nothing on disk. The key that was presented stays with the socket, in the memory of the runtime, and
//! is presented anew with each call.
//!
//! It answers `GET /` with `Upgrade: websocket`. The headers `authorization` and `x-tenant` are there only when the Worker has found
//! them good.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use futures_channel::oneshot;
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use serde::{Deserialize, Serialize};
use worker::{
    DurableObject, Env, Request, Response, State, WebSocket, WebSocketIncomingMessage, WebSocketPair,
    WebSocketRequestResponsePair, durable_object,
};

use super::message::{self, Answer, Asked, Cancel, Failure, Init, LONGEST_MESSAGE, Ready, Unread};
use super::sink::Open;
use super::socket::Flow;
use super::{DOOR, close, invocation, subscription};
use crate::api::rest::{self, header};
use crate::call::{Backend, CallHead};
use crate::error::{Error, ErrorCode, Result};
use crate::log_line::{CallLine, DataPoint};
use crate::platform::Platform;
use crate::tenant::credential::{Presented, Principal};
use crate::trace::Trace;
use crate::workers::auto_response::AutoResponses;
use crate::workers::backend::WorkersBackend;
use crate::workers::platform::{Lifetime, WorkersPlatform, random, uuid};

/// Header with the id of the request that opened the connection.
pub const REQUEST_ID_HEADER: &str = "x-request-id";

/// Most calls and subscriptions of a connection at once.
const MOST_OPEN: usize = 100;

/// How long a client that presented nothing may take to do so.
const TIME_TO_INIT: Duration = Duration::from_secs(10);

/// How long a client that has sent a ping may be silent while something of it is open, in milliseconds.
const LONGEST_SILENCE: i64 = 60_000;

/// What the runtime keeps of a connection while the object is not in memory.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Attached {
    /// As in the header `Authorization`; nothing before it was found good.
    authorization: Option<String>,
    /// As in the header `X-Tenant`.
    named_tenant: Option<String>,
    /// Tenant of the key.
    pub(super) tenant: String,
    request_id: String,
}

impl Attached {
    pub(super) fn presented(&self) -> Presented {
        Presented { authorization: self.authorization.clone(), tenant: self.named_tenant.clone() }
    }
}

#[durable_object(websocket)]
pub struct ConnectionActor {
    inner: Rc<Inner>,
}

/// What the messages of the connection share.
pub(super) struct Inner {
    pub(super) state: Rc<State>,
    pub(super) env: Env,
    pub(super) platform: WorkersPlatform,
    auto_responses: AutoResponses,
    pub(super) flow: Flow,
    /// By what the client calls them.
    open: RefCell<BTreeMap<String, Rc<Open>>>,
    /// Messages that came while the key is looked at, in their order.
    waiting: RefCell<Option<Vec<oneshot::Sender<()>>>>,
    /// When the last message came, in this memory.
    heard_at: Cell<i64>,
}

impl DurableObject for ConnectionActor {
    fn new(state: State, env: Env) -> Self {
        let (auto_responses, state) = AutoResponses::of(state);
        let state = Rc::new(state);
        let platform = WorkersPlatform(Lifetime::Object(state.clone()));
        let inner = Inner {
            state,
            env,
            platform,
            auto_responses,
            flow: Flow::default(),
            open: RefCell::default(),
            waiting: RefCell::default(),
            heard_at: Cell::new(0),
        };
        Self { inner: Rc::new(inner) }
    }

    async fn fetch(&self, request: Request) -> worker::Result<Response> {
        let inner = &self.inner;
        let pair = WebSocketPair::new()?;
        let socket = pair.server;
        inner.state.accept_web_socket(&socket);
        inner.state.set_websocket_auto_response(&WebSocketRequestResponsePair::new(message::PING, message::PONG)?);
        let attached = Attached {
            authorization: header(&request, "authorization"),
            named_tenant: header(&request, "x-tenant"),
            tenant: String::new(),
            request_id: header(&request, REQUEST_ID_HEADER).unwrap_or_default(),
        };
        let attached = match inner.who(&attached) {
            Ok(principal) => inner.ready(&socket, attached, principal),
            // The Worker has found no fault in what it passes on.
            Err(_) => Attached { authorization: None, ..attached },
        };
        socket.serialize_attachment(&attached)?;
        if attached.authorization.is_none() {
            inner.background(expire(inner.clone(), socket.clone()).boxed_local());
        }
        Response::from_websocket(pair.client)
    }

    async fn websocket_message(&self, socket: WebSocket, message: WebSocketIncomingMessage) -> worker::Result<()> {
        let inner = &self.inner;
        inner.heard_at.set(inner.platform.now_millis());
        match message {
            WebSocketIncomingMessage::String(text) => take(inner, &socket, &text).await,
            WebSocketIncomingMessage::Binary(_) => {
                inner.shut(&socket, close::UNSUPPORTED, "messages are JSON in text frames");
            }
        }
        Ok(())
    }

    async fn websocket_close(&self, socket: WebSocket, code: usize, _: String, _: bool) -> worker::Result<()> {
        self.inner.end_all();
        // Some codes say that there was none, and may not be sent.
        let code = u16::try_from(code).ok().filter(|code| *code == 1000 || (3000..5000).contains(code));
        // It may be closed already.
        let _ = socket.close(code.or(Some(1000)), None::<&str>);
        Ok(())
    }

    async fn websocket_error(&self, _: WebSocket, _: worker::Error) -> worker::Result<()> {
        self.inner.end_all();
        Ok(())
    }
}

async fn expire(inner: Rc<Inner>, socket: WebSocket) {
    inner.platform.sleep(TIME_TO_INIT).await;
    if inner.attached(&socket).authorization.is_none() && inner.waiting.borrow().is_none() {
        inner.shut(&socket, close::TOO_LATE, "no init came within 10 seconds");
    }
}

async fn take(inner: &Rc<Inner>, socket: &WebSocket, text: &str) {
    let asked = message::read(text);
    if !inner.turn().await {
        return inner.shut(socket, close::TRY_AGAIN, "too many messages came before the key was looked at");
    }
    let attached = inner.attached(socket);
    if attached.authorization.is_none() {
        return match asked {
            Ok(Asked::Init(init)) => begin(inner, socket, attached, init).await,
            Ok(Asked::Ping) => inner.answer(socket, &Answer::Pong),
            Err(Unread { is_init: true, error, .. }) => inner.refuse_entry(socket, &error),
            _ => inner.refuse_entry(socket, &Error::new(ErrorCode::Unauthenticated, "the first message must be init")),
        };
    }
    match asked {
        Ok(Asked::Invoke(invoke)) => invocation::invoke(inner, socket, &attached, invoke).await,
        Ok(Asked::Subscribe(subscribe)) => subscription::subscribe(inner, socket, &attached, subscribe).await,
        Ok(Asked::Cancel(Cancel { id })) => inner.cancel(socket, &id),
        Ok(Asked::Ping) => inner.answer(socket, &Answer::Pong),
        Ok(Asked::Init(_)) => {
            let error = Error::new(
                ErrorCode::Conflict,
                "a key was presented already; another one needs a connection of its own",
            );
            inner.refuse(socket, None, &error);
        }
        Err(Unread { id, error, .. }) => {
            let id = id.filter(|id| !inner.open.borrow().contains_key(id));
            inner.refuse(socket, id, &error);
        }
    }
}

/// Looks at the key of the first message. What came behind it waits meanwhile.
async fn begin(inner: &Rc<Inner>, socket: &WebSocket, attached: Attached, init: Init) {
    inner.waiting.replace(Some(Vec::new()));
    let attached =
        Attached { authorization: Some(format!("Bearer {}", init.token)), named_tenant: init.tenant, ..attached };
    let trace = Trace::of_request(None, None, random);
    let backend = WorkersBackend::of_object(inner.env.clone(), inner.state.clone(), trace.clone());
    let head = CallHead::plain(uuid(), DOOR, attached.presented(), trace);
    let identified = match rest::shared() {
        Ok(shared) => shared.registry.identify(&backend, &head).await.result,
        Err(error) => Err(error),
    };
    let ready = identified.and_then(|(principal, _)| {
        let attached = inner.ready(socket, attached, principal);
        socket.serialize_attachment(&attached).map_err(Error::internal)
    });
    if let Err(error) = ready {
        inner.refuse_entry(socket, &message::by_field(error));
    }
    for next in inner.waiting.take().into_iter().flatten() {
        // Whoever waits is there, in this memory.
        let _ = next.send(());
    }
}

impl Inner {
    pub(super) fn attached(&self, socket: &WebSocket) -> Attached {
        socket.deserialize_attachment().ok().flatten().unwrap_or_default()
    }

    /// Waits until it is known who speaks; `false` where too many wait for that already.
    async fn turn(&self) -> bool {
        let turn = match self.waiting.borrow_mut().as_mut() {
            Some(waiting) if waiting.len() >= MOST_OPEN => return false,
            Some(waiting) => {
                let (sender, receiver) = oneshot::channel();
                waiting.push(sender);
                receiver
            }
            None => return true,
        };
        // Whoever looks at the key is in this memory, too.
        turn.await.is_ok()
    }

    fn who(&self, attached: &Attached) -> Result<Principal> {
        let trace = Trace::of_request(None, None, random);
        let backend = WorkersBackend::of_object(self.env.clone(), self.state.clone(), trace.clone());
        let head = CallHead::plain(attached.request_id.clone(), DOOR, attached.presented(), trace);
        rest::shared()?.registry.authenticate(&backend, &head)
    }

    /// Tells that calls may be made.
    fn ready(&self, socket: &WebSocket, attached: Attached, principal: Principal) -> Attached {
        let ready = Ready {
            request_id: attached.request_id.clone(),
            key_id: principal.key_id,
            tenant: principal.tenant.clone(),
            maximum_message_bytes: u32::try_from(LONGEST_MESSAGE).unwrap_or(u32::MAX),
            maximum_open: u32::try_from(MOST_OPEN).unwrap_or(u32::MAX),
        };
        // One that left has a close event of its own.
        let _ = self.flow.send(socket, &Answer::Ready(ready));
        Attached { tenant: principal.tenant, ..attached }
    }

    /// Notes what is open from here on; a refusal is told, and means `false`.
    pub(super) fn begin(self: &Rc<Self>, socket: &WebSocket, id: &str, open: &Rc<Open>) -> bool {
        let (is_known, count) = {
            let open = self.open.borrow();
            (open.contains_key(id), open.len())
        };
        if is_known {
            // Told with the id, it would be taken for the end of the one that is open.
            let error = Error::new(ErrorCode::Conflict, "id: it is that of a call that is open").detail("id", id);
            self.refuse(socket, None, &error);
            return false;
        }
        if count >= MOST_OPEN {
            let message = format!("a connection has {MOST_OPEN} calls and subscriptions open at most");
            let error = Error::new(ErrorCode::QuotaExceeded, message).detail("limit", MOST_OPEN);
            self.refuse(socket, Some(id.to_owned()), &error);
            return false;
        }
        self.open.borrow_mut().insert(id.to_owned(), open.clone());
        true
    }

    /// Tells the last message of what was open. From there on its id is free.
    pub(super) async fn end_with(&self, socket: &WebSocket, id: &str, answer: &Answer) {
        // Cancelled or not, its end is told.
        if self.flow.room(socket, &self.platform, || false).await.is_ok() {
            // The reader may have left.
            let _ = self.flow.send(socket, answer);
        }
        self.open.borrow_mut().remove(id);
    }

    fn cancel(self: &Rc<Self>, socket: &WebSocket, id: &str) {
        let open = self.open.borrow().get(id).cloned();
        match open {
            Some(open) => open.end(self),
            None => {
                let error = Error::new(ErrorCode::NotFound, "id: no call of it is open").detail("id", id);
                self.refuse(socket, None, &error);
            }
        }
    }

    /// Ends everything that is open: nobody waits for it.
    fn end_all(self: &Rc<Self>) {
        let all: Vec<Rc<Open>> = self.open.borrow().values().cloned().collect();
        for open in all {
            open.end(self);
        }
    }

    /// Whether a client that sends pings has stopped to; its connection is closed then.
    pub(super) fn has_fallen_silent(self: &Rc<Self>, socket: &WebSocket) -> bool {
        let Some(pinged_at) = self.auto_responses.last_at(socket) else { return false };
        let heard_at = pinged_at.max(self.heard_at.get());
        let is_silent = self.platform.now_millis() - heard_at > LONGEST_SILENCE;
        if is_silent {
            self.shut(socket, close::GONE, "nothing was heard for 60 seconds");
        }
        is_silent
    }

    /// Closes the connection. The runtime tells nobody of it.
    fn shut(self: &Rc<Self>, socket: &WebSocket, code: u16, reason: &str) {
        // It may be closed already.
        let _ = socket.close(Some(code), Some(reason));
        self.end_all();
    }

    /// Answers a message at once. Who sends more of them than it reads answers to is closed.
    fn answer(self: &Rc<Self>, socket: &WebSocket, answer: &Answer) {
        if self.flow.is_flooded(socket) {
            return self.shut(socket, close::GONE, "answers were not read");
        }
        // The reader may have left.
        let _ = self.flow.send(socket, answer);
    }

    /// Refuses a message.
    fn refuse(self: &Rc<Self>, socket: &WebSocket, id: Option<String>, error: &Error) {
        let request_id = uuid();
        let trace = Trace::of_request(None, None, random);
        let line =
            CallLine::new("refused", self.platform.now_millis(), &request_id, DOOR, &trace).ended(Some(error), 0);
        let backend = WorkersBackend::of_object(self.env.clone(), self.state.clone(), trace.clone());
        backend.tell(serde_json::to_value(&line).unwrap_or_default(), DataPoint::from(&line));
        self.answer(socket, &Answer::Failure(Failure { id, error: error.problem(&request_id) }));
    }

    /// Refuses who presented no good key, and closes the connection.
    fn refuse_entry(self: &Rc<Self>, socket: &WebSocket, error: &Error) {
        self.refuse(socket, None, error);
        self.shut(socket, close::of_entry(error.code), error.code.title());
    }

    pub(super) fn background(&self, work: LocalBoxFuture<'static, ()>) {
        self.platform.background(work);
    }

    /// Logs what nobody is told.
    pub(super) fn complain(&self, message: &str, call_id: &str, error: &Error) {
        let line = serde_json::json!({
            "level": "error",
            "message": message,
            "requestId": call_id,
            "error": error.message,
            "source": error.cause,
        });
        self.platform.log(&line);
    }
}
