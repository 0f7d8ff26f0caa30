//! A client of the REST door that holds every answer against what all answers must have.

use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use reqwest::{Method, RequestBuilder, header::HeaderMap};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::sse::EventStream;

/// How long a connection is kept that nobody uses. workerd closes one after about 5 s, and a POST that meets this is not repeated.
const IDLE: Duration = Duration::from_secs(2);

/// Starts of one sandbox after which its host or its engine is taken for broken.
pub const STARTS: u32 = 5;

/// Speaks to one Worker, with or without a key.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    base: String,
    key: Option<String>,
}

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// Headers.
    pub headers: HeaderMap,
    /// Body.
    pub body: Bytes,
    secret: Option<String>,
}

/// A problem object that has been held against the contract.
#[derive(Clone, Debug)]
pub struct Problem {
    /// `code`.
    pub code: String,
    /// `detail`.
    pub detail: String,
    /// `retryable`.
    pub retryable: bool,
    /// `details`.
    pub details: Value,
    /// Headers of the answer.
    pub headers: HeaderMap,
}

impl Client {
    pub(crate) fn new(base: &str, key: Option<&str>) -> Self {
        let http = reqwest::Client::builder().no_proxy().pool_idle_timeout(IDLE).build();
        let http = http.expect("a plain HTTP client needs nothing");
        Self { http, base: base.to_owned(), key: key.map(str::to_owned) }
    }

    /// The same Worker with another key, or with none.
    pub fn with_key(&self, key: Option<&str>) -> Self {
        Self { key: key.map(str::to_owned), ..self.clone() }
    }

    /// Where the Worker listens.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// The key it uses.
    pub fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// A request with this client's key.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.base));
        match &self.key {
            Some(key) => request.header("authorization", format!("Bearer {key}")),
            None => request,
        }
    }

    /// Sends a request and reads its whole answer.
    ///
    /// # Panics
    /// When there is none.
    pub async fn send(&self, request: RequestBuilder) -> Answer {
        let response = request.send().await.unwrap_or_else(|error| panic!("no answer: {error:?}"));
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let body = response.bytes().await.unwrap_or_else(|error| panic!("the answer broke off: {error:?}"));
        Answer { status, headers, body, secret: self.key.clone() }
    }

    /// The same where the Worker may be killed meanwhile; nothing then.
    pub async fn try_send(&self, request: RequestBuilder) -> Option<Answer> {
        let response = request.send().await.ok()?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Some(Answer { status, headers, body: response.bytes().await.ok()?, secret: self.key.clone() })
    }

    /// `GET` of a path.
    pub async fn get(&self, path: &str) -> Answer {
        self.send(self.request(Method::GET, path)).await
    }

    /// A buffered tool call.
    pub fn call<'a>(&'a self, tool: &'a str, arguments: &Value) -> impl Future<Output = Answer> + use<'a> {
        let body = arguments.to_string();
        async move { self.post(&format!("/v1/tools/{tool}"), body).await }
    }

    /// The output of a call that starts a sandbox. A host or an engine under load gives up a start now and then; then the Worker
    /// says so, and it is asked again, also while what that start left is still being destroyed.
    ///
    /// # Panics
    /// When it is refused for another reason, or too often.
    pub async fn started(&self, tool: &str, arguments: &Value) -> Value {
        for _ in 1..STARTS {
            let answer = self.call(tool, arguments).await;
            if ![409, 503].contains(&answer.status) || !answer.any_problem().retryable {
                return answer.ok();
            }
            // Shown with what the test says where it fails.
            eprintln!("{tool} is asked again: {}", answer.text());
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        self.call(tool, arguments).await.ok()
    }

    /// `POST` of bytes that may or may not be JSON, as `curl -d` does it.
    pub async fn post(&self, path: &str, body: impl Into<reqwest::Body>) -> Answer {
        self.send(self.request(Method::POST, path).header("content-type", "application/json").body(body)).await
    }

    /// Sends bytes as they are on a connection of their own, and gives whatever comes back until it closes.
    ///
    /// For requests that no well-behaved client makes. `{key}` in `head` becomes this client's key.
    ///
    /// # Panics
    /// When the Worker cannot be reached.
    pub async fn raw(&self, head: &str) -> String {
        let mut connection = self.connect(head).await;
        let mut answer = Vec::new();
        // A reset after the answer is no matter here: what came is what is judged.
        let _ = connection.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// Opens a connection and sends `head` with `\n` turned into the line ends of HTTP; the caller goes on from there.
    ///
    /// # Panics
    /// When the Worker cannot be reached.
    pub async fn connect(&self, head: &str) -> TcpStream {
        let address = self.base.strip_prefix("http://").unwrap_or(&self.base);
        let mut connection = TcpStream::connect(address).await.expect("the Worker listens");
        let head = head.replace("{key}", self.key.as_deref().unwrap_or_default()).replace('\n', "\r\n");
        connection.write_all(head.as_bytes()).await.expect("the Worker reads");
        connection
    }

    /// A streamed tool call.
    ///
    /// # Panics
    /// When the answer is not an event stream.
    pub async fn stream(&self, tool: &str, arguments: &Value) -> EventStream {
        let request = self.request(Method::POST, &format!("/v1/tools/{tool}")).header("accept", "text/event-stream");
        let response = request.json(arguments).send().await.unwrap_or_else(|error| panic!("no answer: {error:?}"));
        let kind = response.headers().get("content-type").map(|value| value.as_bytes().to_vec()).unwrap_or_default();
        let status = response.status();
        assert!(kind.starts_with(b"text/event-stream"), "not an event stream: {status} {:?}", response.text().await);
        assert_eq!(status, 200, "a stream that began is a success; its end tells the outcome");
        EventStream::new(response.bytes_stream().map(|chunk| chunk.map_err(|error| format!("{error:?}"))))
    }
}

impl Answer {
    /// The body as JSON.
    ///
    /// # Panics
    /// When it is not.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {} {:?}", self.status, self.text()))
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The output of a call that succeeded.
    ///
    /// # Panics
    /// When it did not, or when the answer lacks what every answer has.
    #[track_caller]
    pub fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text());
        self.has_what_every_answer_has();
        self.json()
    }

    /// The problem of a call that failed with `status` and `code`.
    ///
    /// # Panics
    /// When it did not, or when the problem is not whole.
    #[track_caller]
    pub fn problem(&self, status: u16, code: &str) -> Problem {
        let problem = self.any_problem();
        assert_eq!((self.status, problem.code.as_str()), (status, code), "{}", self.text());
        problem
    }

    /// The problem of a call that failed, whatever its code.
    ///
    /// # Panics
    /// When the answer is not a whole problem.
    #[track_caller]
    pub fn any_problem(&self) -> Problem {
        self.has_what_every_answer_has();
        let kind = self.header("content-type").unwrap_or_default();
        assert!(kind.starts_with("application/problem+json"), "{kind}: {} {}", self.status, self.text());
        let value = self.json();
        let text = |field: &str| match value[field].as_str() {
            Some(text) if !text.is_empty() => text.to_owned(),
            _ => panic!("a problem without `{field}`: {value}"),
        };
        assert_eq!(value["status"], self.status, "the status stands in the body too");
        text("type");
        text("title");
        assert_eq!(Some(text("requestId").as_str()), self.header("x-request-id"));
        Problem {
            code: text("code"),
            detail: text("detail"),
            retryable: value["retryable"].as_bool().unwrap_or_else(|| panic!("`retryable` is a boolean: {value}")),
            details: value["details"].clone(),
            headers: self.headers.clone(),
        }
    }

    #[track_caller]
    fn has_what_every_answer_has(&self) {
        assert!(self.header("x-request-id").is_some_and(|id| !id.is_empty()), "no X-Request-Id: {:?}", self.headers);
        assert!(self.header("access-control-allow-origin").is_some(), "no CORS headers: {:?}", self.headers);
        // A guess of a test is no secret, and may well be a word of the answer.
        if let Some(secret) = self.secret.as_ref().filter(|secret| secret.len() >= 16) {
            assert!(!self.text().contains(secret.as_str()), "the answer holds the caller's key");
        }
    }
}
