//! The command line.

use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::host::{Bounds, HostOptions, UplinkArguments};
use crate::secret::{self, Moved};
use crate::serve::{self, Credentials, Endpoint, ServeOptions};

/// Variable that may hold the token of `serve`.
const SERVE_TOKEN: &str = "SANDBOXD_TOKEN";
/// Variable that may hold the environment of commands, as a JSON object of strings.
const SERVE_ENVIRONMENT: &str = "SANDBOX_ENV_JSON";
/// Variable that may hold the token of `host`.
const HOST_TOKEN: &str = "SANDBOX_HOST_TOKEN";
/// Whom commands run as when the daemon is root and is not told otherwise.
const UNPRIVILEGED: Credentials = Credentials { uid: 1000, gid: 1000 };

/// Control server of sandboxes.
#[derive(Parser)]
#[command(name = "sandboxd", version)]
struct Cli {
    #[command(subcommand)]
    mode: Mode,
}

#[derive(Subcommand)]
enum Mode {
    /// Control server of the sandbox that it runs in.
    Serve(ServeArguments),
    /// Starts and serves many sandboxes on this machine.
    Host(HostArguments),
    /// Connects one sandbox of a host; started by the host itself.
    #[command(hide = true)]
    Uplink(UplinkArguments),
    /// Prints the control API as OpenAPI 3.1.
    Openapi,
}

#[derive(Args)]
struct ServeArguments {
    /// Address to listen on.
    #[arg(long, default_value = "0.0.0.0:3000")]
    listen: SocketAddr,
    /// Listening socket that is inherited under this number, instead of --listen.
    #[arg(long, conflicts_with_all = ["listen", "unix"])]
    listen_fd: Option<RawFd>,
    /// Unix socket to listen on, instead of --listen.
    #[arg(long, conflicts_with = "listen")]
    unix: Option<PathBuf>,
    /// Descriptor to read the token from; without it the variable SANDBOXD_TOKEN is needed.
    #[arg(long)]
    token_fd: Option<RawFd>,
    /// Descriptor to read the environment of commands from (a JSON object); else the variable SANDBOX_ENV_JSON.
    #[arg(long)]
    env_fd: Option<RawFd>,
    /// Value of SANDBOX_ID in commands; else the variable SANDBOX_ID.
    #[arg(long)]
    sandbox_id: Option<String>,
    /// The workspace.
    #[arg(long, default_value_os_t = serve::default_root())]
    root: PathBuf,
    /// Whom commands run as, `uid:gid`. Default: 1000:1000 when the daemon is root, else the daemon's own user.
    #[arg(long, value_parser = credentials)]
    user: Option<Credentials>,
    /// What separates this sandbox from its machine, as JSON, for `health`.
    #[arg(long)]
    isolation_json: Option<String>,
    /// Bounds of this sandbox, as JSON, as in `health`: those by `rlimit` and `watch` are held by this daemon.
    #[arg(long)]
    limits_json: Option<String>,
    /// Descriptor of the `memory.events` of this sandbox's control group.
    #[arg(long)]
    memory_events_fd: Option<RawFd>,
}

#[derive(Args)]
struct HostArguments {
    /// Address to listen on; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Where the workspaces are kept.
    #[arg(long)]
    data_dir: PathBuf,
    /// Descriptor to read the token from; without it the variable SANDBOX_HOST_TOKEN is needed.
    #[arg(long)]
    token_fd: Option<RawFd>,
    /// What separates sandboxes.
    #[arg(long, value_enum, default_value_t = IsolationKind::Bubblewrap)]
    isolation: IsolationKind,
    /// Sandboxes at once.
    #[arg(long, default_value_t = 1000)]
    max_sandboxes: usize,
    /// Mebibytes of memory of one sandbox; 0 is no bound.
    #[arg(long, default_value_t = 4096)]
    memory_mib: u64,
    /// Mebibytes of disk of one sandbox; 0 is no bound.
    #[arg(long, default_value_t = 10_240)]
    disk_mib: u64,
    /// Processes and threads of one sandbox; 0 is no bound.
    #[arg(long, default_value_t = 1024)]
    max_processes: u64,
    /// Processors that one sandbox may use, such as 2 or 0.5; only control groups hold it. Default: no bound.
    #[arg(long, value_parser = thousandths)]
    cpus: Option<u64>,
    /// Which network sandboxes with internet have.
    #[arg(long, value_enum, default_value_t = NetworkKind::Own)]
    network: NetworkKind,
    /// Private ranges of the machine's network are in reach of sandboxes; its own addresses never are.
    #[arg(long)]
    allow_private: bool,
}

/// What separates sandboxes from the machine and from each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum IsolationKind {
    /// Linux namespaces, made by bubblewrap.
    Bubblewrap,
    /// Nothing: for trusted commands only.
    None,
}

/// Which network sandboxes with internet have. Those without have none in either case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum NetworkKind {
    /// One of their own: the machine and private ranges are out of reach.
    Own,
    /// The machine's, with everything that the machine reaches.
    Shared,
}

/// Runs what the command line says.
pub fn run() -> Result<(), String> {
    match Cli::parse().mode {
        Mode::Serve(arguments) => serve::run(serve_options(arguments)?),
        Mode::Host(arguments) => crate::host::run(host_options(arguments)?),
        Mode::Uplink(arguments) => crate::host::uplink(arguments),
        Mode::Openapi => {
            print!("{}", crate::openapi::yaml()?);
            Ok(())
        }
    }
}

fn serve_options(arguments: ServeArguments) -> Result<ServeOptions, String> {
    secret::move_out_of_environment(&[
        Moved { variable: SERVE_TOKEN, option: "--token-fd" },
        Moved { variable: SERVE_ENVIRONMENT, option: "--env-fd" },
    ])
    .map_err(|error| format!("could not move secrets out of the environment: {error}"))?;
    let isolation = arguments
        .isolation_json
        .map(|json| serde_json::from_str(&json))
        .transpose()
        .map_err(|error| format!("--isolation-json: {error}"))?;
    let limits = arguments
        .limits_json
        .map(|json| serde_json::from_str(&json))
        .transpose()
        .map_err(|error| format!("--limits-json: {error}"))?;
    let endpoint = match (arguments.listen_fd, arguments.unix) {
        (Some(number), _) => Endpoint::Descriptor(number),
        (None, Some(path)) => Endpoint::Unix(path),
        (None, None) => Endpoint::Tcp(arguments.listen),
    };
    let root_user = rustix::process::geteuid().is_root();
    Ok(ServeOptions {
        endpoint,
        token_fd: arguments.token_fd.ok_or(format!("no token: give --token-fd or set {SERVE_TOKEN}"))?,
        env_fd: arguments.env_fd,
        sandbox_id: arguments.sandbox_id.or_else(|| std::env::var("SANDBOX_ID").ok()),
        root: arguments.root,
        credentials: arguments.user.or(root_user.then_some(UNPRIVILEGED)),
        isolation,
        limits: limits.unwrap_or_default(),
        memory_events_fd: arguments.memory_events_fd,
    })
}

fn host_options(arguments: HostArguments) -> Result<HostOptions, String> {
    secret::move_out_of_environment(&[Moved { variable: HOST_TOKEN, option: "--token-fd" }])
        .map_err(|error| format!("could not move the token out of the environment: {error}"))?;
    Ok(HostOptions {
        listen: arguments.listen,
        data_dir: arguments.data_dir,
        token_fd: arguments.token_fd.ok_or(format!("no token: give --token-fd or set {HOST_TOKEN}"))?,
        isolation: arguments.isolation,
        max_sandboxes: arguments.max_sandboxes,
        bounds: Bounds {
            memory_bytes: arguments.memory_mib.saturating_mul(1 << 20),
            disk_bytes: arguments.disk_mib.saturating_mul(1 << 20),
            processes: arguments.max_processes,
            cpu_thousandths: arguments.cpus.unwrap_or(0),
        },
        network: arguments.network,
        allow_private: arguments.allow_private,
    })
}

fn thousandths(text: &str) -> Result<u64, String> {
    let cpus = text.parse::<f64>().ok().filter(|cpus| (0.01..=10_000.0).contains(cpus));
    // In range, so nothing is cut off but the fraction.
    cpus.map(|cpus| (cpus * 1000.0).round() as u64).ok_or_else(|| "it must be a number from 0.01 to 10000".into())
}

fn credentials(text: &str) -> Result<Credentials, String> {
    let parsed = text.split_once(':').and_then(|(uid, gid)| Some((uid.parse().ok()?, gid.parse().ok()?)));
    let (uid, gid) = parsed.ok_or("it must be uid:gid, two numbers")?;
    Ok(Credentials { uid, gid })
}
