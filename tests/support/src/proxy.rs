//! The seam: an HTTP proxy between the Worker and the host that breaks chosen requests in chosen ways.
//!
//! What no rule strikes passes through unchanged in both directions, streamed. A rule names a sandbox, so that tests
//! which share a stack do not meet each other's faults. Every request is noted, for tests that count starts.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::{
    Request, Response, Uri,
    body::{Frame, Incoming},
    header::{CONTENT_TYPE, HeaderValue},
    service::service_fn,
};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo},
};
use sandbox_api::{BOOT_ID_HEADER, HostSandbox};
use serde_json::json;

use crate::{
    RUNTIME,
    fault::{Fault, Operation, Rule, split_path},
};

type Body = BoxBody<Bytes, Failure>;

/// Why the proxy gives no answer, or no whole one. For a connection it means: close it.
#[derive(Debug)]
struct Failure(String);

impl std::fmt::Display for Failure {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}

fn failure(cause: impl std::error::Error) -> Failure {
    Failure(cause.to_string())
}

/// A boot id that no daemon has.
const OTHER_BOOT: &str = "00000000-another-boot";

/// A request that the Worker made of the host.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Name of the sandbox in the path.
    pub sandbox: String,
    /// Method.
    pub method: String,
    /// Path after the sandbox's name.
    pub rest: String,
    /// Whether the host started a machine in answer.
    pub started: bool,
}

impl Seen {
    pub(crate) fn is(&self, operation: Operation) -> bool {
        operation.strikes(&self.method, &self.rest)
    }
}

#[derive(Default)]
struct State {
    rules: Vec<Rule>,
    seen: Vec<Seen>,
    /// Names of the sandboxes of the requests that wait, or went on and have no answer yet.
    delayed: Vec<String>,
}

/// Handle of a running proxy.
#[derive(Clone)]
pub struct FaultProxy {
    state: Arc<Mutex<State>>,
    upstream: Client<HttpConnector, Body>,
    upstream_port: u16,
    port: u16,
}

impl FaultProxy {
    /// Starts a proxy before the host on `upstream_port`.
    pub(crate) fn start(upstream_port: u16) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("the loopback has a free port");
        listener.set_nonblocking(true).expect("a socket can be made non-blocking");
        let port = listener.local_addr().expect("a bound socket has an address").port();
        let _guard = RUNTIME.enter();
        let upstream = Client::builder(TokioExecutor::new()).build_http();
        let proxy = Self { state: Arc::default(), upstream, upstream_port, port };
        RUNTIME.spawn(proxy.clone().accept(listener));
        proxy
    }

    /// Where it listens.
    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Breaks every request of that kind for that sandbox.
    pub fn inject(&self, sandbox: &str, operation: Operation, fault: Fault) {
        self.add(sandbox, operation, fault, None);
    }

    /// Breaks the next `times` requests of that kind for that sandbox.
    pub fn inject_times(&self, sandbox: &str, operation: Operation, fault: Fault, times: u32) {
        self.add(sandbox, operation, fault, Some(times));
    }

    fn add(&self, sandbox: &str, operation: Operation, fault: Fault, left: Option<u32>) {
        self.state().rules.push(Rule { sandbox: sandbox.to_owned(), operation, fault, left });
    }

    /// Takes every fault of a sandbox back.
    pub fn heal(&self, sandbox: &str) {
        self.state().rules.retain(|rule| rule.sandbox != sandbox);
    }

    /// What the Worker asked of the host about a sandbox.
    pub fn seen(&self, sandbox: &str) -> Vec<Seen> {
        self.state().seen.iter().filter(|seen| names(&seen.sandbox, sandbox)).cloned().collect()
    }

    /// How many requests about a sandbox are delayed, and not answered by the host yet; their senders may be gone.
    pub fn delays(&self, sandbox: &str) -> usize {
        self.state().delayed.iter().filter(|name| names(name, sandbox)).count()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    async fn accept(self, listener: std::net::TcpListener) {
        let listener = tokio::net::TcpListener::from_std(listener).expect("the runtime takes the socket");
        loop {
            let Ok((connection, _)) = listener.accept().await else { continue };
            let _ = connection.set_nodelay(true);
            let proxy = self.clone();
            tokio::spawn(async move {
                let service = service_fn(move |request| {
                    let proxy = proxy.clone();
                    async move { proxy.answer(request).await }
                });
                // An error here is a fault that was asked for, or a peer that left.
                let _ = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(connection), service)
                    .await;
            });
        }
    }

    fn fault_for(&self, sandbox: &str, method: &str, rest: &str) -> Option<Fault> {
        let mut state = self.state();
        let rule = state.rules.iter_mut().find(|rule| {
            names(sandbox, &rule.sandbox) && rule.operation.strikes(method, rest) && rule.left != Some(0)
        })?;
        rule.left = rule.left.map(|left| left - 1);
        Some(rule.fault.clone())
    }

    async fn answer(self, request: Request<Incoming>) -> Result<Response<Body>, Failure> {
        let path = request.uri().path().to_owned();
        let Some((sandbox, rest)) = split_path(&path) else { return self.forward(request).await };
        let method = request.method().as_str().to_owned();
        let fault = self.fault_for(sandbox, &method, rest);
        let mut seen = Seen { sandbox: sandbox.to_owned(), method, rest: rest.to_owned(), started: false };
        let answer = match fault {
            Some(Fault::Delays(time)) => return self.delayed(request, time, seen).await,
            None if seen.is(Operation::Start) => self.forward_start(request, &mut seen).await,
            None => self.forward(request).await,
            Some(fault) => self.broken(request, fault).await,
        };
        self.state().seen.push(seen);
        answer
    }

    async fn delayed(
        self,
        request: Request<Incoming>,
        time: Duration,
        mut seen: Seen,
    ) -> Result<Response<Body>, Failure> {
        let (head, body) = request.into_parts();
        let request = Request::from_parts(head, whole(body.collect().await.map_err(failure)?.to_bytes()));
        self.state().delayed.push(seen.sandbox.clone());
        let late = tokio::spawn(async move {
            tokio::time::sleep(time).await;
            let answer = match seen.is(Operation::Start) {
                true => self.forward_start(request, &mut seen).await,
                false => self.forward(request).await,
            };
            let mut state = self.state();
            if let Some(index) = state.delayed.iter().position(|name| *name == seen.sandbox) {
                state.delayed.swap_remove(index);
            }
            state.seen.push(seen);
            answer
        });
        late.await.map_err(failure)?
    }

    async fn broken(&self, request: Request<Incoming>, fault: Fault) -> Result<Response<Body>, Failure> {
        match fault {
            Fault::NeverAnswers => std::future::pending().await,
            // It has waited before it came here.
            Fault::Delays(_) => self.forward(request).await,
            Fault::ClosesAtOnce => Err(Failure("the connection is closed on purpose".into())),
            Fault::LosesAnswer => {
                self.forward(request).await?.into_body().collect().await?;
                Err(Failure("the answer is lost on purpose".into()))
            }
            Fault::Answers(status, body) => json_answer(status, &body),
            Fault::StaleGeneration => {
                let body = json!({"code": "stale_generation", "message": "this is another boot of the sandbox"});
                let mut answer = json_answer(410, &body)?;
                answer.headers_mut().insert(BOOT_ID_HEADER, HeaderValue::from_static(OTHER_BOOT));
                Ok(answer)
            }
            Fault::SplitsBytes => Ok(self.forward(request).await?.map(split_bytes)),
            Fault::ClosesAfterFirstOutput => Ok(self.forward(request).await?.map(|body| cut(body, Cut::Break))),
            Fault::FallsSilent => Ok(self.forward(request).await?.map(|body| cut(body, Cut::Silence))),
            Fault::OmitsExit => Ok(self.forward(request).await?.map(|body| cut(body, Cut::EndBeforeExit))),
        }
    }

    async fn forward<B>(&self, mut request: Request<B>) -> Result<Response<Body>, Failure>
    where
        B: hyper::body::Body<Data = Bytes, Error: std::error::Error> + Send + Sync + 'static,
    {
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        let target = format!("http://127.0.0.1:{}{path}", self.upstream_port);
        *request.uri_mut() = target.parse::<Uri>().map_err(failure)?;
        let answer = self.upstream.request(request.map(|body| body.map_err(failure).boxed())).await.map_err(failure)?;
        Ok(answer.map(|body| body.map_err(failure).boxed()))
    }

    /// Forwards a start and notes whether it made a machine.
    async fn forward_start<B>(&self, request: Request<B>, seen: &mut Seen) -> Result<Response<Body>, Failure>
    where
        B: hyper::body::Body<Data = Bytes, Error: std::error::Error> + Send + Sync + 'static,
    {
        let (head, body) = self.forward(request).await?.into_parts();
        let bytes = body.collect().await?.to_bytes();
        seen.started = serde_json::from_slice::<HostSandbox>(&bytes).is_ok_and(|sandbox| sandbox.started);
        Ok(Response::from_parts(head, whole(bytes)))
    }
}

/// Whether the host's name for a sandbox means the sandbox with this id: `{tenant}` and a separator may stand before it.
fn names(name: &str, id: &str) -> bool {
    name.strip_suffix(id).is_some_and(|before| before.is_empty() || before.ends_with(['.', '-', '~']))
}

fn whole(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never: Infallible| match never {}).boxed()
}

fn json_answer(status: u16, body: &serde_json::Value) -> Result<Response<Body>, Failure> {
    let bytes = Bytes::from(body.to_string());
    let answer = Response::builder().status(status).header(CONTENT_TYPE, "application/json");
    answer.body(whole(bytes)).map_err(failure)
}

/// One byte a frame, each flushed by itself.
fn split_bytes(body: Body) -> Body {
    let pieces = stream::unfold((body, Bytes::new()), |(mut body, mut rest)| async move {
        while rest.is_empty() {
            match body.frame().await? {
                Ok(frame) => rest = frame.into_data().unwrap_or_default(),
                Err(failure) => return Some((Err(failure), (body, rest))),
            }
        }
        tokio::time::sleep(Duration::from_micros(100)).await;
        let byte = rest.split_to(1);
        Some((Ok(Frame::data(byte)), (body, rest)))
    });
    StreamBody::new(pieces).boxed()
}

#[derive(Clone, Copy)]
enum Cut {
    Break,
    Silence,
    EndBeforeExit,
}

/// Passes whole events on and cuts the stream where `how` says.
fn cut(body: Body, how: Cut) -> Body {
    let start = (body, Vec::new(), false);
    let events = stream::unfold(start, move |(mut body, mut buffer, mut done)| async move {
        loop {
            if done {
                return match how {
                    Cut::Break => Some((Err(Failure("the connection breaks on purpose".into())), (body, buffer, done))),
                    Cut::Silence => std::future::pending().await,
                    Cut::EndBeforeExit => None,
                };
            }
            if let Some(event) = take_event(&mut buffer) {
                let text = String::from_utf8_lossy(&event).into_owned();
                let has = |name: &str| {
                    text.lines().filter_map(|line| line.strip_prefix("event:")).any(|value| value.trim() == name)
                };
                if matches!(how, Cut::EndBeforeExit) && has("exit") {
                    return None;
                }
                done = !matches!(how, Cut::EndBeforeExit) && has("stdout");
                return Some((Ok(Frame::data(Bytes::from(event))), (body, buffer, done)));
            }
            match body.frame().await? {
                Ok(frame) => buffer.extend_from_slice(&frame.into_data().unwrap_or_default()),
                Err(failure) => return Some((Err(failure), (body, buffer, done))),
            }
        }
    });
    StreamBody::new(events).boxed()
}

/// The first whole event of the buffer, with the empty line that ends it.
fn take_event(buffer: &mut Vec<u8>) -> Option<Vec<u8>> {
    let end = buffer.windows(2).position(|pair| pair == b"\n\n")?;
    Some(buffer.drain(..end + 2).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_may_stand_before_an_id_and_nothing_else() {
        assert!(names("default.abc", "abc"));
        assert!(names("abc", "abc"));
        assert!(!names("xabc", "abc"));
        assert!(!names("abcd", "abc"));
    }

    #[test]
    fn whole_events_are_taken_one_by_one() {
        let mut buffer = b"event: a\ndata: 1\n\nevent: b\nda".to_vec();
        assert_eq!(take_event(&mut buffer).as_deref(), Some(&b"event: a\ndata: 1\n\n"[..]));
        assert_eq!(take_event(&mut buffer), None);
        assert_eq!(buffer, b"event: b\nda");
    }
}
