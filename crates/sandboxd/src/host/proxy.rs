//! Passing the control API of one sandbox through: status, headers and body in both directions, nothing buffered.
//!
//! A connection that breaks on one side is broken on the other too, so that half an answer or half an upload is never
//! taken for a whole one.

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use hyper::header::{
    AUTHORIZATION, CONNECTION, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING, UPGRADE,
};
use hyper::{Request, Uri};
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::client::legacy::{Client, Error};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::UnixStream;

use crate::http::Token;

/// How long an unused connection is kept.
const IDLE: Duration = Duration::from_secs(30);

/// Speaks to one sandbox.
pub(super) struct Proxy {
    client: Client<Connector, Body>,
    authorization: HeaderValue,
    socket: PathBuf,
}

impl Proxy {
    pub(super) fn new(socket: PathBuf, token: &Token) -> io::Result<Self> {
        let mut authorization =
            HeaderValue::try_from(format!("Bearer {}", token.reveal())).map_err(io::Error::other)?;
        authorization.set_sensitive(true);
        let client = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(IDLE)
            .pool_timer(TokioTimer::new())
            .http1_max_buf_size(64 << 10)
            .build(Connector { socket: socket.clone() });
        Ok(Self { client, authorization, socket })
    }

    /// Whether nobody listens any more: the daemon ended, also where the rest of its sandbox is still to be seen.
    pub(super) async fn is_deserted(&self) -> bool {
        let gone = [io::ErrorKind::ConnectionRefused, io::ErrorKind::NotFound];
        UnixStream::connect(&self.socket).await.is_err_and(|error| gone.contains(&error.kind()))
    }

    /// Sends the request on, with this sandbox's token in place of the caller's; `target` begins with a slash.
    pub(super) async fn pass(&self, mut request: Request<Body>, target: &str) -> Result<Response, Error> {
        // The pool wants an absolute form; the authority has no meaning on a Unix socket.
        if let Ok(uri) = Uri::builder().scheme("http").authority("sandbox").path_and_query(target).build() {
            *request.uri_mut() = uri;
        }
        strip(request.headers_mut());
        request.headers_mut().remove(HOST);
        request.headers_mut().insert(AUTHORIZATION, self.authorization.clone());
        let mut response = self.client.request(request).await?;
        strip(response.headers_mut());
        Ok(response.map(Body::new))
    }
}

/// Removes what concerns one connection only (RFC 9110, section 7.6.1).
fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in [CONNECTION, EXPECT, TRANSFER_ENCODING, UPGRADE] {
        headers.remove(name);
    }
    for name in ["keep-alive", "te", "proxy-connection"] {
        headers.remove(name);
    }
}

/// Connects to the sandbox's socket, whatever the URL says.
#[derive(Clone)]
struct Connector {
    socket: PathBuf,
}

impl tower_service::Service<Uri> for Connector {
    type Response = Socket;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Socket>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let socket = self.socket.clone();
        Box::pin(async move { Ok(Socket(TokioIo::new(UnixStream::connect(socket).await?))) })
    }
}

/// A connection as the pool wants it.
struct Socket(TokioIo<UnixStream>);

impl Connection for Socket {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl hyper::rt::Read for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl hyper::rt::Write for Socket {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
