//! `sandboxd serve`: the control server of one sandbox.
//!
//! Every route needs the boot's token, every answer carries the boot id, and a request that means another boot is
//! refused before anything happens. Leaves out sessions and ports, which have routes of their own later.

mod activity;
mod bounds;
mod events;
mod exec;
mod files;
mod metrics;
mod processes;
mod settings;
mod signals;
mod tree;

use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::StatusCode;
use hyper::header::HeaderValue;
use sandbox_api::{API_VERSION, BOOT_ID_HEADER, Bound, ControlErrorCode, Health, Isolation, Limits, Means, Metrics};

use crate::http::{Listener, Problem, Token, discard, json, random_hex};
use crate::secret;

pub(crate) use bounds::HEADROOM;
pub(crate) use settings::{Settings, default_root};
pub(crate) use tree::{Credentials, check_environment, descendants, kill_all, send};

/// Where the daemon listens.
pub(crate) enum Endpoint {
    /// A listening socket that the parent left open.
    Descriptor(RawFd),
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// The command line of `sandboxd serve`, with secrets still behind their descriptors.
pub(crate) struct ServeOptions {
    pub(crate) endpoint: Endpoint,
    pub(crate) token_fd: RawFd,
    pub(crate) env_fd: Option<RawFd>,
    pub(crate) sandbox_id: Option<String>,
    pub(crate) root: PathBuf,
    pub(crate) credentials: Option<Credentials>,
    pub(crate) isolation: Option<Isolation>,
    pub(crate) limits: Limits,
    pub(crate) memory_events_fd: Option<RawFd>,
}

/// Runs until a signal ends it.
pub(crate) fn run(options: ServeOptions) -> Result<(), String> {
    let kept = [Some(options.token_fd), options.env_fd, options.endpoint.descriptor(), options.memory_events_fd];
    let kept: Vec<RawFd> = kept.into_iter().flatten().collect();
    secret::close_all_but(&kept).map_err(|error| format!("could not close inherited descriptors: {error}"))?;
    // A daemon that was started from a descriptor would be listed under its number.
    // SAFETY: the name ends in NUL and is copied.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"sandboxd".as_ptr()) };
    if options.isolation.is_some() {
        bounds::go_first();
    }
    secret::forbid_inspection().map_err(|error| format!("could not protect the process: {error}"))?;
    let token = secret::read(options.token_fd).map_err(|error| format!("could not read the token: {error}"))?;
    let given = options
        .env_fd
        .map(secret::read)
        .transpose()
        .map_err(|error| format!("could not read the sandbox's environment: {error}"))?;
    if let Some(number) = options.memory_events_fd {
        let events = secret::inherited(number).map_err(|error| format!("--memory-events-fd: {error}"))?;
        tree::count_kills_in(events.into());
    }
    let open_files = raise_open_files();
    let mut limits = options.limits.clone();
    let processes = bounds::bound_processes(&mut limits);
    limits.open_files = Some(Bound { most: open_files.rlim_max, by: Means::Rlimit });
    limits.concurrent_execs = Some(exec::CONCURRENT_EXECS as u64);
    limits.concurrent_processes = Some(processes::CONCURRENT_PROCESSES as u64);
    // A file that grows beyond a limit is an error of that write, not the end of the daemon. Commands get the default
    // action back.
    // SAFETY: ignoring a signal installs no handler.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    prepare_root(&options)?;
    if options.credentials.is_some() {
        // Work on files takes the user's ids, and the groups of the daemon must not open more to it.
        // SAFETY: there is one thread yet, and an empty list is read from nowhere.
        unsafe { libc::setgroups(0, std::ptr::null()) };
    }
    let root = options.root.canonicalize().map_err(|error| format!("--root {}: {error}", options.root.display()))?;
    let settings = Settings {
        boot_id: random_hex(16).map_err(|error| error.to_string())?.into(),
        token: Token::parse(&token)?,
        environment: settings::environment(given.as_deref(), options.sandbox_id.as_deref(), &root)?.into(),
        sandbox_id: options.sandbox_id,
        shell: settings::shell(),
        isolation: options.isolation.unwrap_or_else(|| settings::unstated_isolation(options.credentials)),
        credentials: options.credentials,
        limits,
        processes,
        open_files,
        root,
    };
    tree::forbid_limits().map_err(|error| format!("could not restrict what commands ask the kernel for: {error}"))?;
    if std::process::id() != 1 {
        // Orphans of a supervisor that was killed must come here, where they are found.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(|error| error.to_string())?;
    }
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(4)
        .thread_stack_size(256 << 10)
        .build()
        .map_err(|error| error.to_string())?
        .block_on(serve(Arc::new(settings), options.endpoint))
        .map_err(|error| error.to_string())
}

impl Endpoint {
    fn descriptor(&self) -> Option<RawFd> {
        match self {
            Self::Descriptor(number) => Some(*number),
            _ => None,
        }
    }

    fn listen(self) -> std::io::Result<Listener> {
        match self {
            Self::Descriptor(number) => Listener::from_fd(secret::inherited(number)?),
            Self::Tcp(address) => {
                let listener = std::net::TcpListener::bind(address)?;
                Listener::from_fd(listener.into())
            }
            Self::Unix(path) => {
                let listener = std::os::unix::net::UnixListener::bind(path)?;
                Listener::from_fd(listener.into())
            }
        }
    }
}

async fn serve(settings: Arc<Settings>, endpoint: Endpoint) -> std::io::Result<()> {
    let signals = signals::Signals::new()?;
    let listener = endpoint.listen()?;
    let supervisors = Arc::new(tree::Supervisors::default());
    let table = Arc::new(exec::Table::new(settings.clone(), supervisors.clone()));
    let router = router(settings.clone(), supervisors.clone(), table)?;
    tracing::info!("ready");
    let obey = async {
        loop {
            match signals.next().await? {
                signals::Event::Child => supervisors.reap(),
                signals::Event::Terminate => return std::io::Result::Ok(()),
            }
        }
    };
    tokio::select! {
        () = listener.serve(router) => {}
        result = obey => result?,
        () = bounds::watch(settings, supervisors.clone()) => {}
    }
    supervisors.shut_down();
    Ok(())
}

/// The routes of a sandbox, as a document.
#[derive(utoipa::OpenApi)]
#[openapi(paths(
    health,
    metrics,
    activity::activity,
    activity::environment,
    exec::routes::start,
    exec::routes::attach,
    exec::routes::kill,
    exec::routes::lease,
    exec::routes::forbid,
    processes::routes::start,
    processes::routes::list,
    processes::routes::tell,
    processes::routes::kill,
    processes::routes::write,
    processes::routes::logs,
    processes::routes::wait,
    files::download::get,
    files::download::head,
    files::upload::put,
    files::entries::get,
    files::entries::delete,
    files::list::get,
    files::directories::put,
    files::moves::post,
    files::search::post,
    files::archives::get,
    files::archives::put,
    files::watch::get
))]
pub(crate) struct Document;

struct Sandbox {
    settings: Arc<Settings>,
    meter: Arc<metrics::Meter>,
    started: Instant,
}

fn router(
    settings: Arc<Settings>,
    supervisors: Arc<tree::Supervisors>,
    table: Arc<exec::Table>,
) -> std::io::Result<Router> {
    let processes = Arc::new(processes::Table::new(settings.clone(), supervisors.clone()));
    let meter = Arc::new(metrics::Meter::new(settings.clone(), supervisors, processes.clone()));
    let first_reading = meter.clone();
    tokio::task::spawn_blocking(move || {
        first_reading.begin();
        tree::look_for_counter();
    });
    let activity = Arc::new(activity::Meter::new());
    let sandbox = Arc::new(Sandbox { settings: settings.clone(), meter, started: Instant::now() });
    Ok(Router::new()
        .route("/v1/health", get(health))
        .route("/v1/metrics", get(metrics))
        .with_state(sandbox)
        .merge(activity::routes(settings.clone(), activity.clone(), table.clone()))
        .merge(exec::routes(table))
        .merge(processes::routes(processes))
        .merge(files::routes(&settings)?)
        .fallback(|| async { Problem::new(ControlErrorCode::NotFound, "path: no such route") })
        .method_not_allowed_fallback(|| async {
            let problem = Problem::invalid("method: this route does not take it").into_response();
            (StatusCode::METHOD_NOT_ALLOWED, problem).into_response()
        })
        .layer(middleware::from_fn_with_state(activity, activity::count))
        .layer(middleware::from_fn_with_state(settings, guard))
        .layer(middleware::from_fn(discard)))
}

/// Token first, then the boot that the caller means.
async fn guard(State(settings): State<Arc<Settings>>, request: Request, next: Next) -> Response {
    let verdict = settings.token.check(request.headers()).and_then(|()| match request.headers().get(BOOT_ID_HEADER) {
        Some(meant) if meant.as_bytes() != settings.boot_id.as_bytes() => Err(Problem::new(
            ControlErrorCode::StaleGeneration,
            format!("{BOOT_ID_HEADER}: that boot of the sandbox is gone; nothing was done"),
        )),
        _ => Ok(()),
    });
    let mut response = match verdict {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    };
    if let Ok(value) = HeaderValue::from_str(&settings.boot_id) {
        response.headers_mut().insert(BOOT_ID_HEADER, value);
    }
    response
}

/// What this sandbox is.
#[utoipa::path(get, path = "/v1/health", tag = "sandbox", operation_id = "health", responses((status = 200, body = Health)))]
async fn health(State(sandbox): State<Arc<Sandbox>>) -> Response {
    let health = Health {
        status: "ok".into(),
        boot_id: sandbox.settings.boot_id.to_string(),
        version: env!("CARGO_PKG_VERSION").into(),
        api_version: API_VERSION,
        uptime: sandbox.started.elapsed().as_secs_f64(),
        limits: sandbox.settings.limits.clone(),
        isolation: sandbox.settings.isolation.clone(),
    };
    json(StatusCode::OK, &health)
}

/// What this sandbox uses.
#[utoipa::path(get, path = "/v1/metrics", tag = "sandbox", operation_id = "metrics", responses((status = 200, body = Metrics)))]
async fn metrics(State(sandbox): State<Arc<Sandbox>>) -> Result<Response, Problem> {
    Ok(json(StatusCode::OK, &sandbox.meter.read()?))
}

/// Raises the daemon's own limit of open files as far as it may go; returns what it was, for commands.
fn raise_open_files() -> libc::rlimit {
    let mut limit = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
    // SAFETY: both calls work on locals.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            let raised = libc::rlimit { rlim_cur: limit.rlim_max, ..limit };
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised);
        }
    }
    limit
}

/// The workspace exists and belongs to whom commands run as.
fn prepare_root(options: &ServeOptions) -> Result<(), String> {
    let root = &options.root;
    std::fs::create_dir_all(root).map_err(|error| format!("--root {}: {error}", root.display()))?;
    if let Some(Credentials { uid, gid }) = options.credentials {
        std::os::unix::fs::chown(root, Some(uid), Some(gid))
            .map_err(|error| format!("--root {}: {error}", root.display()))?;
    }
    Ok(())
}
