//! `cargo xtask dev`: the local stack on one machine, without an account and without Docker.
//!
//! ```text
//! install what is missing ─ build sandboxd and the Worker ─ sandboxd host ─ wrangler dev (workerd) ─ a real exec ─ print
//! ```
//!
//! Then it watches: it ends when a child ends (and says why), on Ctrl-C, on SIGTERM, and when the terminal closes. State is
//! kept in `.cloudflare-ops/` (keys, workspaces of sandboxes; root's workspaces are in `/var/lib/cloudflare-ops/`) and
//! `.wrangler/` (Durable Objects).
//!
//! Left out: running the host inside Docker where bubblewrap may not run; then the host says what to change.

mod call_line;
mod family;
mod probe;
pub(crate) mod secrets;

use crate::build::Size;
use crate::setup::{self, Bubblewrap, Bundler, NativeTarget, Node, NodeModules, Requirement, Slirp4netns, WasmTarget};
use crate::{build, run, sandboxd, terminal, workspace};
use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use family::Family;
use probe::Probe;
use secrets::{Secrets, private_folder};
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const HOST_START: Duration = Duration::from_secs(20);
const WORKER_START: Duration = Duration::from_secs(180);
const HEALTH_INTERVAL: Duration = Duration::from_secs(5);
/// A reload after a change may swallow a question or two.
const UNANSWERED_LIMIT: u32 = 4;

#[derive(Args)]
pub(crate) struct Options {
    /// Port of the Worker on 127.0.0.1; a free one is taken when it is busy
    #[arg(long, default_value_t = 8787)]
    port: u16,
    /// How sandboxes are kept apart
    #[arg(long, value_enum, default_value_t = Isolation::Bubblewrap)]
    isolation: Isolation,
    /// Show what the Worker logs of calls as it is, as lines of JSON
    #[arg(long)]
    raw_log: bool,
    /// Which network sandboxes with internet have
    #[arg(long, value_enum, default_value_t = Network::Own)]
    network: Network,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Isolation {
    /// Own user, process, mount, network and ipc namespaces
    Bubblewrap,
    /// No isolation at all: commands run as this user, with this user's files
    None,
}

impl Isolation {
    fn as_str(self) -> &'static str {
        match self {
            Self::Bubblewrap => "bubblewrap",
            Self::None => "none",
        }
    }
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Network {
    /// One of their own: this machine and private ranges are out of reach
    Own,
    /// This machine's, with everything it reaches
    Shared,
}

impl Network {
    fn as_str(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Shared => "shared",
        }
    }
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let folder = workspace::root().join(".cloudflare-ops");
    let secrets = Secrets::load(&folder)?;
    let mut running = only_one(&folder)?;
    ensure_tools(options)?;
    terminal::step("Building sandboxd");
    let binary = sandboxd::build()?;
    build::worker(Size::AsCompiled)?;
    fs::create_dir_all(workspace::logs())?;

    let mut family = Family::new()?;
    terminal::step(&format!("Starting the sandbox host (isolation: {})", options.isolation.as_str()));
    let host_url = start_host(&mut family, &binary, &folder, &secrets, options)?;

    let port = probe::free_port(options.port)?;
    if port != options.port {
        terminal::note(&format!("port {} is busy; taking {port}", options.port));
    }
    terminal::step("Starting the Worker in workerd");
    let url = format!("http://127.0.0.1:{port}");
    let log = start_worker(&mut family, &folder, &secrets, &host_url, port)?;
    let probe = Probe::new(&url, &secrets.key);
    let deadline = Instant::now() + WORKER_START;
    while !probe.healthy() {
        family.check()?;
        if Instant::now() > deadline {
            bail!("the Worker did not answer in {} s\n{}", WORKER_START.as_secs(), run::tail(&log, 25));
        }
        run::pause(Duration::from_millis(100))?;
    }
    probe
        .exec()
        .with_context(|| format!("the Worker runs, but a first command failed; its log is {}", log.display()))?;
    writeln!(running, "{url}").context("cannot note the URL for who starts a second stack")?;
    greet(&url, &secrets.key, &log);
    watch(&mut family, &log, &probe, options.raw_log)
}

/// Holds the checkout's stack: two would share state and keys. Its URL is to be written into the file.
fn only_one(folder: &Path) -> Result<File> {
    let path = folder.join("dev.lock");
    let open = File::options().read(true).write(true).create(true).truncate(false).open(&path);
    let mut file = open.with_context(|| format!("cannot create {}", path.display()))?;
    if file.try_lock().is_err() {
        let mut url = String::new();
        let _ = file.read_to_string(&mut url);
        let state = match url.trim() {
            "" => "is being started already".to_owned(),
            url => format!("is running already, at {url}"),
        };
        bail!("`cargo xtask dev` of this checkout {state}: use that one, or end it with Ctrl-C first");
    }
    file.set_len(0).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(file)
}

fn ensure_tools(options: &Options) -> Result<()> {
    let bundler = Bundler::pinned()?;
    let mut needed: Vec<&dyn Requirement> = vec![];
    if options.isolation == Isolation::Bubblewrap {
        // First, because it may ask for a password.
        needed.push(&Bubblewrap);
        if options.network == Network::Own {
            needed.push(&Slirp4netns);
        }
    }
    needed.extend([&WasmTarget as &dyn Requirement, &NativeTarget, &Node, &NodeModules, &bundler]);
    setup::ensure(&needed)
}

/// Starts `sandboxd host` and tells the URL it prints once it listens.
fn start_host(
    family: &mut Family,
    binary: &Path,
    folder: &Path,
    secrets: &Secrets,
    options: &Options,
) -> Result<String> {
    let log = workspace::logs().join("sandboxd-host.log");
    let mut command = run::command(binary);
    command.args(["host", "--listen", "127.0.0.1:0", "--isolation", options.isolation.as_str()]);
    command.args(["--network", options.network.as_str(), "--data-dir"]);
    command.arg(sandbox_data(folder)).env("SANDBOX_HOST_TOKEN", &secrets.host_token);
    family.start("the sandbox host", command, &log)?;
    let deadline = Instant::now() + HOST_START;
    loop {
        let text = fs::read_to_string(&log).unwrap_or_default();
        if let Some(url) = listening_url(&text) {
            return Ok(url);
        }
        family.check().context("the sandbox host did not start")?;
        if Instant::now() > deadline {
            bail!("the sandbox host did not listen in {} s\n{}", HOST_START.as_secs(), run::tail(&log, 25));
        }
        run::pause(Duration::from_millis(20))?;
    }
}

/// Where the files of sandboxes are kept. Root runs each sandbox as a user of its own, who must be able to get there, which
/// a checkout in a home folder does not allow: then it is a folder of the system, one for each checkout.
fn sandbox_data(folder: &Path) -> PathBuf {
    if !rustix::process::geteuid().is_root() {
        return folder.join("sandboxes");
    }
    let mut hasher = DefaultHasher::new();
    folder.hash(&mut hasher);
    Path::new("/var/lib/cloudflare-ops").join(format!("dev-{:016x}", hasher.finish()))
}

/// The URL in a whole line `listening on http://…`.
fn listening_url(log: &str) -> Option<String> {
    let whole_lines = log.rsplit_once('\n')?.0;
    whole_lines.lines().find_map(|line| line.trim().strip_prefix("listening on ").map(str::to_owned))
}

fn start_worker(
    family: &mut Family,
    folder: &Path,
    secrets: &Secrets,
    host_url: &str,
    port: u16,
) -> Result<std::path::PathBuf> {
    // What the Worker stores, arguments of calls among it.
    private_folder(&workspace::root().join(".wrangler"))?;
    let variables = folder.join("worker.env");
    secrets.write_worker_file(&variables, host_url)?;
    let log = workspace::logs().join("wrangler-dev.log");
    let mut command: Command = NodeModules::wrangler()?;
    command
        .args(["dev", "--enable-containers=false", "--show-interactive-dev-session=false", "--ip", "127.0.0.1"])
        .args(["--inspector-port", "0", "--port", &port.to_string(), "--env-file"])
        .arg(variables)
        .env("NO_COLOR", "1")
        // Its explorer would show what the Worker stores to whoever reaches the port, without a key.
        .env("X_LOCAL_EXPLORER", "false")
        .env(build::AS_COMPILED_VARIABLE, "1");
    family.start("the Worker (wrangler dev)", command, &log)?;
    Ok(log)
}

fn greet(url: &str, key: &str, log: &Path) {
    // Keys go to standard output alone, so that what is logged of standard error holds none.
    let mut out = std::io::stdout().lock();
    let _ = writeln!(
        out,
        "\nReady. Paste this into another terminal:\n\n\
         URL={url}\n\
         KEY={key}\n\
         curl -s $URL/v1/tools/exec -H \"Authorization: Bearer $KEY\" -d '{{\"command\":\"python3 -c \\\"print(6*7)\\\"; uname -a\"}}'\n\n\
         A change under src/ is built and served at once. Log of the Worker: {}\nCtrl-C ends everything.\n",
        log.display()
    );
    let _ = out.flush();
}

/// Shows calls and errors among what wrangler says, until something ends. wrangler does not end when its workerd does, so the
/// Worker is also asked whether it lives.
fn watch(family: &mut Family, log: &Path, probe: &Probe, raw_log: bool) -> Result<()> {
    let mut next_question = Instant::now() + HEALTH_INTERVAL;
    let mut unanswered = 0;
    let mut lines = BufReader::new(File::open(log)?);
    let mut line = String::new();
    while !run::was_interrupted() {
        family.check()?;
        if Instant::now() > next_question {
            unanswered = if probe.healthy() { 0 } else { unanswered + 1 };
            // wrangler holds requests back while a change does not compile: the Worker is not dead then.
            if unanswered == UNANSWERED_LIMIT && family.has("workerd") {
                terminal::note(&format!(
                    "the Worker does not answer; a change that does not compile? {}",
                    log.display()
                ));
            } else if unanswered >= UNANSWERED_LIMIT && !family.has("workerd") {
                bail!("the Worker stopped answering\n{}\n  whole log: {}", run::tail(log, 25), log.display());
            }
            family.reap_orphans();
            next_question = Instant::now() + HEALTH_INTERVAL;
        }
        while lines.read_line(&mut line).is_ok_and(|count| count > 0) {
            // A line may be read while it is being written: it is shown once it is whole.
            if !line.ends_with('\n') {
                break;
            }
            match call_line::readable(&line) {
                Some(readable) if !raw_log => terminal::raw(&format!("{readable}\n")),
                Some(_) => terminal::raw(&line),
                None if worth_showing(&line) => terminal::raw(&format!("worker: {line}")),
                None => {}
            }
            line.clear();
        }
        if run::pause(Duration::from_millis(100)).is_err() {
            break;
        }
    }
    terminal::step("Ending the local stack");
    Ok(())
}

fn worth_showing(line: &str) -> bool {
    // Without a network wrangler cannot fetch an example of `Request.cf`; it goes on with its own.
    if line.contains("workers.cloudflare.com") {
        return false;
    }
    let text = line.to_ascii_lowercase();
    text.contains("error") || text.contains("[custom build] ==>") || text.contains("panicked")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_is_taken_only_from_a_whole_line() {
        assert_eq!(listening_url("warming up\nlistening on http://127.0.0.1:41"), None);
        assert_eq!(
            listening_url("warming up\nlistening on http://127.0.0.1:4123\n").as_deref(),
            Some("http://127.0.0.1:4123")
        );
    }

    #[test]
    fn a_second_stack_of_a_checkout_is_told_where_the_first_one_is() {
        let folder = std::env::temp_dir().join(format!("cloudflare-ops-dev-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let refusal = || only_one(&folder).unwrap_err().to_string();
        let mut first = only_one(&folder).unwrap();
        assert!(refusal().contains("is being started"), "{}", refusal());
        writeln!(first, "http://127.0.0.1:8787").unwrap();
        assert!(refusal().contains("at http://127.0.0.1:8787:"), "{}", refusal());
        drop(first);
        // A child that another test starts at this moment holds the file too, until it has become its program.
        let mut again = only_one(&folder);
        for _ in 0..1000 {
            if again.is_ok() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
            again = only_one(&folder);
        }
        let again = again.unwrap();
        assert_eq!(again.metadata().unwrap().len(), 0, "a URL of a stack that has ended is no longer there");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn errors_and_rebuilds_are_shown_and_requests_are_not() {
        assert!(worth_showing("[custom build] error[E0308]: mismatched types\n"));
        assert!(worth_showing("[custom build] ==> Building the Worker\n"));
        assert!(!worth_showing("[wrangler:info] GET /health 200 OK (2ms)\n"));
    }
}
