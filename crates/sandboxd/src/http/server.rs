//! Accepting connections, on TCP or on a Unix socket, and speaking HTTP/1.1 on them.
//!
//! Leaves out HTTP/2, TLS and upgrades: what terminates those stands in front.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};

/// How long a client may take to send the head of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes that hyper may buffer in each direction of one connection.
const CONNECTION_BUFFER_BYTES: usize = 64 << 10;

/// Pause after a failed accept, such as one for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A bound socket that waits for connections.
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// Takes over a listening socket of either family.
    pub(crate) fn from_fd(descriptor: OwnedFd) -> io::Result<Self> {
        rustix::io::fcntl_setfd(&descriptor, rustix::io::FdFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&descriptor, true)?;
        let domain = rustix::net::sockopt::socket_domain(&descriptor)?;
        if domain == rustix::net::AddressFamily::UNIX {
            UnixListener::from_std(descriptor.into()).map(Self::Unix)
        } else {
            TcpListener::from_std(descriptor.into()).map(Self::Tcp)
        }
    }

    /// Accepts for ever; each connection is a task of its own. Must run inside a tokio runtime.
    pub(crate) async fn serve(self, router: Router) {
        loop {
            let accepted = match &self {
                Self::Tcp(listener) => listener.accept().await.map(|(stream, _)| {
                    // Small events must not wait for the acknowledgement of earlier ones.
                    let _ = stream.set_nodelay(true);
                    spawn_connection(stream, router.clone());
                }),
                Self::Unix(listener) => {
                    listener.accept().await.map(|(stream, _)| spawn_connection(stream, router.clone()))
                }
            };
            if let Err(cause) = accepted {
                tracing::warn!(%cause, "could not accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn spawn_connection(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, router: Router) {
    tokio::spawn(async move {
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .max_buf_size(CONNECTION_BUFFER_BYTES)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
        if let Err(cause) = connection.await {
            tracing::debug!(%cause, "a connection broke");
        }
    });
}
