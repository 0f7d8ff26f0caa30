//! Requests to the service.
//!
//! A failure tells apart what never left this machine (`unreachable`) from what may have been carried out although its
//! answer was lost (`outcome_unknown`).

use crate::failure::{Failure, Problem, Result};
use crate::profile::Profile;
use ops_api::sse::{Decoder, Event};
use serde_json::{Map, Value};
use std::cell::Cell;
use std::collections::VecDeque;
use std::io::{self, Read};
use std::sync::Arc;
use std::time::Duration;
use ureq::http::{HeaderMap, Response, StatusCode};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, Body, BodyReader, SendBody, Timeout};

/// Until there is a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Until the head of an answer that begins as soon as the call is admitted.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);

/// The same of an answer that comes when the call is over: the longest buffered call, and the start of its sandbox.
const BUFFERED_TIMEOUT: Duration = Duration::from_secs(180);

/// Silence of a connection: heartbeats come every few seconds.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(60);

/// Most bytes of an answer in JSON.
const LARGEST_ANSWER: u64 = 64 << 20;

/// Speaks to one service with one key.
pub(crate) struct Client {
    agent: Agent,
    base: String,
    headers: Vec<(&'static str, String)>,
    /// Calls that are left in the caller's minute, as the last answer told; a caller without limits has no such number.
    remaining: Cell<Option<u64>>,
}

/// What a call is asked to answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// One JSON object, once the call is over.
    Output,
    /// Events while it runs.
    Events,
}

/// What a call answered.
pub(crate) enum Reply {
    /// The tool's output.
    Output(Value),
    /// The call became a job.
    Job(Value),
    Events(Events),
}

impl Client {
    pub(crate) fn new(profile: &Profile) -> Self {
        let mut headers = vec![("authorization", format!("Bearer {}", profile.key))];
        headers.extend(profile.tenant.iter().map(|tenant| ("x-tenant", tenant.clone())));
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            // The key goes to the address that it was stored with, and nowhere else.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("cfops/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_recv_response(Some(HEAD_TIMEOUT))
            .timeout_per_read(Some(SILENCE_TIMEOUT))
            .timeout_per_write(Some(SILENCE_TIMEOUT));
        if profile.url.starts_with("https:") {
            config = config.tls_config(TlsConfig::builder().root_certs(roots()).build());
        }
        Self { agent: config.build().new_agent(), base: profile.url.clone(), headers, remaining: Cell::new(None) }
    }

    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    pub(crate) fn remaining(&self) -> Option<u64> {
        self.remaining.get()
    }

    /// `GET` of what is JSON.
    pub(crate) fn get_json(&self, path: &str) -> Result<Value> {
        let mut response = self.get(path, &[])?;
        read_json(response.body_mut()).map_err(|error| self.unreachable(&error))
    }

    /// `GET` of bytes, which the caller reads.
    pub(crate) fn get(&self, path: &str, headers: &[(&'static str, &str)]) -> Result<Response<Body>> {
        let mut request = self.agent.get(format!("{}{path}", self.base));
        for (name, value) in self.own_headers().chain(headers.iter().copied()) {
            request = request.header(name, value);
        }
        self.checked(request.call().map_err(|error| self.unreachable(&error))?)
    }

    /// `PUT` of as many bytes as `length` says.
    pub(crate) fn put(
        &self,
        path: &str,
        headers: &[(&'static str, &str)],
        length: u64,
        body: &mut dyn Read,
    ) -> Result<(StatusCode, Value)> {
        let mut request = self.agent.put(format!("{}{path}", self.base)).header("content-length", length);
        for (name, value) in self.own_headers().chain(headers.iter().copied()) {
            request = request.header(name, value);
        }
        let request = request.config().timeout_recv_response(Some(BUFFERED_TIMEOUT)).build();
        let sent = request.send(SendBody::from_reader(&mut Exactly { inner: body, left: length }));
        let mut response = self.checked(sent.map_err(|error| self.lost(&error))?)?;
        let answer = read_json(response.body_mut()).map_err(|error| self.lost(&error))?;
        Ok((response.status(), answer))
    }

    /// Calls a tool.
    pub(crate) fn call(
        &self,
        tool: &str,
        arguments: &Map<String, Value>,
        wanted: Wanted,
        idempotency_key: Option<&str>,
    ) -> Result<Reply> {
        let tool = percent_encoding::utf8_percent_encode(tool, percent_encoding::NON_ALPHANUMERIC);
        let mut request = self.agent.post(format!("{}/v1/tools/{tool}", self.base));
        let accept = match wanted {
            Wanted::Output => ("accept", "application/json"),
            Wanted::Events => ("accept", "text/event-stream"),
        };
        let key = idempotency_key.map(|key| ("idempotency-key", key));
        for (name, value) in self.own_headers().chain([accept, ("content-type", "application/json")]).chain(key) {
            request = request.header(name, value);
        }
        let config = request.config();
        let request = match wanted {
            Wanted::Events => config.build(),
            Wanted::Output => {
                config.timeout_per_read(Some(BUFFERED_TIMEOUT)).timeout_recv_response(Some(BUFFERED_TIMEOUT)).build()
            }
        };
        let body = Value::Object(arguments.clone()).to_string();
        let mut response = self.checked(request.send(body).map_err(|error| self.lost(&error))?)?;
        if header(response.headers(), "content-type").starts_with("text/event-stream") {
            return Ok(Reply::Events(Events::new(response.into_body())));
        }
        let answer = read_json(response.body_mut()).map_err(|error| self.lost(&error))?;
        Ok(if response.status() == StatusCode::ACCEPTED { Reply::Job(answer) } else { Reply::Output(answer) })
    }

    /// Calls a tool that reads, and gives its output.
    pub(crate) fn output(&self, tool: &str, arguments: Value) -> Result<Value> {
        let Value::Object(arguments) = arguments else { return Err(Failure::Usage("not an object".to_owned())) };
        match self.call(tool, &arguments, Wanted::Output, None)? {
            Reply::Output(output) | Reply::Job(output) => Ok(output),
            Reply::Events(_) => Err(self.stranger("an event stream, although JSON was asked for")),
        }
    }

    fn own_headers(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.headers.iter().map(|(name, value)| (*name, value.as_str()))
    }

    /// The response of a service that did what was asked; what it refused is a failure.
    fn checked(&self, mut response: Response<Body>) -> Result<Response<Body>> {
        let remaining = header(response.headers(), "x-ratelimit-remaining").parse().ok();
        self.remaining.set(remaining.or(self.remaining.get()));
        let status = response.status();
        let kind = header(response.headers(), "content-type").to_owned();
        if kind.starts_with("application/problem+json") {
            let problem = read_json(response.body_mut()).map_err(|error| self.lost(&error))?;
            return Err(Failure::Problem(Problem(problem)));
        }
        if status.is_success() && !header(response.headers(), "x-request-id").is_empty() {
            return Ok(response);
        }
        Err(self.stranger(&format!("{status} with a body of the kind {kind:?}")))
    }

    /// Something answers there that is not this service, or that stands before it.
    fn stranger(&self, answer: &str) -> Failure {
        Failure::Unreachable {
            what: format!("{} answered {answer}, which is not what cloudflare-ops answers", self.base),
            next: "See whether the address is right (`cfops profile list`) and what stands in between.".to_owned(),
        }
    }

    fn unreachable(&self, error: &ureq::Error) -> Failure {
        Failure::Unreachable {
            what: format!("{}: {}", self.base, told(error)),
            next: format!(
                "See whether the address is right and the network is there: `curl {}/health` needs no key.",
                self.base
            ),
        }
    }

    /// A request without an answer: whether it was carried out is known only where it was never sent.
    fn lost(&self, error: &ureq::Error) -> Failure {
        if never_sent(error) { self.unreachable(error) } else { broken_off(&told(error)) }
    }
}

/// An answer that was lost on its way.
pub(crate) fn broken_off(why: &str) -> Failure {
    Failure::OutcomeUnknown(format!("the connection broke off before the answer was whole: {why}"))
}

fn told(error: &ureq::Error) -> String {
    match error {
        ureq::Error::Timeout(Timeout::PerRead | Timeout::PerWrite) => {
            format!("nothing came for {} s", SILENCE_TIMEOUT.as_secs())
        }
        ureq::Error::Timeout(Timeout::RecvResponse) => "no answer in time".to_owned(),
        ureq::Error::Timeout(_) => format!("no connection within {} s", CONNECT_TIMEOUT.as_secs()),
        other => other.to_string(),
    }
}

/// Whether a request failed before any byte of it can have arrived.
fn never_sent(error: &ureq::Error) -> bool {
    use io::ErrorKind::{
        AddrNotAvailable, ConnectionRefused, HostUnreachable, InvalidData, NetworkDown, NetworkUnreachable,
    };
    match error {
        ureq::Error::Io(error) => matches!(
            error.kind(),
            // TLS tells of a certificate as of invalid data.
            ConnectionRefused | HostUnreachable | NetworkUnreachable | NetworkDown | AddrNotAvailable | InvalidData
        ),
        ureq::Error::Timeout(timeout) => matches!(timeout, Timeout::Connect | Timeout::Resolve),
        ureq::Error::HostNotFound
        | ureq::Error::BadUri(_)
        | ureq::Error::Http(_)
        | ureq::Error::Tls(_)
        | ureq::Error::Rustls(_)
        | ureq::Error::InvalidProxyUrl
        | ureq::Error::ConnectProxyFailed(_)
        | ureq::Error::ConnectionFailed => true,
        _ => false,
    }
}

/// Certificates of the machine, which may know a company's own; those of Mozilla where there are none.
fn roots() -> RootCerts {
    let found = rustls_native_certs::load_native_certs().certs;
    if found.is_empty() {
        return RootCerts::WebPki;
    }
    RootCerts::Specific(Arc::new(found.iter().map(|one| Certificate::from_der(one).to_owned()).collect()))
}

pub(crate) fn header<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

fn read_json(body: &mut Body) -> Result<Value, ureq::Error> {
    let bytes = body.with_config().limit(LARGEST_ANSWER).read_to_vec()?;
    serde_json::from_slice(&bytes).map_err(|error| io::Error::new(io::ErrorKind::UnexpectedEof, error).into())
}

/// At most so many bytes of a reader, so that no body is longer than it was said to be.
struct Exactly<'a> {
    inner: &'a mut dyn Read,
    left: u64,
}

impl Read for Exactly<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.inner.read(buffer.get_mut(..most).unwrap_or_default())?;
        if read == 0 && self.left > 0 && most > 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file became shorter while it was sent"));
        }
        self.left -= read as u64;
        Ok(read)
    }
}

/// The events of one call.
pub(crate) struct Events {
    body: BodyReader<'static>,
    decoder: Decoder,
    ready: VecDeque<Event>,
}

impl Events {
    fn new(body: Body) -> Self {
        Self { body: body.into_reader(), decoder: Decoder::default(), ready: VecDeque::new() }
    }

    /// The next one. A stream ends with `result` or `error`, after which the caller does not ask again.
    pub(crate) fn next(&mut self) -> Result<Event> {
        let mut buffer = [0; 16 * 1024];
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(event);
            }
            let read = self.body.read(&mut buffer).map_err(|error| broken_off(&error.to_string()))?;
            if read == 0 {
                return Err(broken_off("it was closed"));
            }
            let bytes = buffer.get(..read).unwrap_or_default();
            self.ready.extend(self.decoder.push(bytes).map_err(|error| broken_off(&error.to_string()))?);
        }
    }
}
