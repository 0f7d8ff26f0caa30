//! `sandboxd host`: many sandboxes on one machine.
//!
//! ```text
//!   caller ── host token ──► host ── that boot's token, Unix socket ──► sandboxd serve, process 1 of its sandbox
//! ```
//!
//! The host makes each listening socket and hands the descriptor in, so that nothing inside has a path to it. Workspaces
//! live on in the data directory until they are deleted; everything else ends with the host.

mod bounds;
mod bubblewrap;
mod groups;
mod identity;
mod launch;
mod layout;
mod network;
mod proxy;
mod remove;
pub(crate) mod routes;
mod sandboxes;

use std::io::Write;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::sync::Arc;

use sandbox_api::{Isolation, NetworkIsolation};
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::{IsolationKind, NetworkKind};
use crate::http::{Listener, Token};
use crate::secret;
pub(crate) use bounds::Bounds;
use groups::ControlGroups;
use layout::Layout;
pub(crate) use network::uplink::{UplinkArguments, run as uplink};
use network::{Network, WayOut};
use sandboxes::Sandboxes;

/// The command line of `sandboxd host`, with the token still behind its descriptor.
pub(crate) struct HostOptions {
    pub(crate) listen: SocketAddr,
    pub(crate) data_dir: PathBuf,
    pub(crate) token_fd: RawFd,
    pub(crate) isolation: IsolationKind,
    pub(crate) max_sandboxes: usize,
    pub(crate) bounds: Bounds,
    pub(crate) network: NetworkKind,
    pub(crate) allow_private: bool,
}

/// Runs until a signal ends it.
pub(crate) fn run(options: HostOptions) -> Result<(), String> {
    secret::close_all_but(&[options.token_fd])
        .map_err(|error| format!("could not close inherited descriptors: {error}"))?;
    secret::forbid_inspection().map_err(|error| format!("could not protect the process: {error}"))?;
    let token = secret::read(options.token_fd).map_err(|error| format!("could not read the token: {error}"))?;
    let token = Token::parse(&token)?;
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(4)
        .thread_stack_size(512 << 10)
        .build()
        .map_err(|error| error.to_string())?
        .block_on(serve(options, token))
}

async fn serve(options: HostOptions, token: Token) -> Result<(), String> {
    let mut launcher = launch::Launcher::new(options.isolation).map_err(|error| error.to_string())?;
    let layout = Layout::prepare(&options.data_dir, launcher.changes_user())?;
    match options.isolation {
        IsolationKind::Bubblewrap => {
            bubblewrap::prove(&launcher, &layout).await?;
            let groups = ControlGroups::prepare(layout.data(), options.bounds, &launcher).await;
            launcher.bound(options.bounds, groups);
            launcher.give(way_out(&launcher, &layout, &options).await);
        }
        IsolationKind::None => tracing::warn!(
            "--isolation none: commands run on this machine as they are, with its files, processes and network in reach"
        ),
    }
    let listener =
        std::net::TcpListener::bind(options.listen).map_err(|error| format!("--listen {}: {error}", options.listen))?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    let listener = Listener::from_fd(listener.into()).map_err(|error| error.to_string())?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(|error| error.to_string())?;
    let mut terminate = signal(SignalKind::terminate()).map_err(|error| error.to_string())?;
    let sandboxes = Arc::new(Sandboxes::new(launcher, layout, options.max_sandboxes));
    let router = routes::router(sandboxes.clone(), token);
    let mut stdout = std::io::stdout();
    // Whoever started the host waits for this line; a closed standard output is no reason to end.
    let _ = writeln!(stdout, "listening on http://{address}").and_then(|()| stdout.flush());
    tokio::select! {
        () = listener.serve(router) => {}
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    sandboxes.stop_all().await;
    Ok(())
}

/// How sandboxes get to the internet. Where they do not, the host says why and refuses those that want to.
async fn way_out(launcher: &launch::Launcher, layout: &Layout, options: &HostOptions) -> WayOut {
    if options.network == NetworkKind::Shared {
        tracing::warn!(
            "--network shared: sandboxes with internet reach all that this machine reaches, its loopback included"
        );
        return WayOut::Shared;
    }
    let complaint = match Network::find(options.allow_private) {
        Some(network) => match network.prove(launcher, layout).await {
            Ok(()) => return WayOut::Own(network),
            Err(reason) => format!("slirp4netns does not work here: {reason}"),
        },
        None => "slirp4netns is not installed".to_owned(),
    };
    let reason = format!(
        "{complaint}; make slirp4netns work (it needs /dev/net/tun), give sandboxes `internet: false`, or start the host \
         with --network shared"
    );
    tracing::warn!(reason, "sandboxes with internet are refused");
    WayOut::Missing(reason)
}

/// What a kind of isolation separates, for `health`.
fn isolation(kind: IsolationKind, own_user: bool, network: NetworkIsolation) -> Isolation {
    let bubblewrap = kind == IsolationKind::Bubblewrap;
    Isolation {
        kind: if bubblewrap { "bubblewrap" } else { "none" }.into(),
        user: bubblewrap || own_user,
        processes: bubblewrap,
        mounts: bubblewrap,
        ipc: bubblewrap,
        network,
    }
}
