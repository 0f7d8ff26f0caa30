//! `cargo xtask deploy --env staging|production`: from a checkout to a Worker that has run a command.
//!
//! ```text
//! checkout ─ wrangler.toml ─ account ─ what is missing ─ [ask] ─ create ─ build ─ deploy ─ a live exec ─ how to roll back
//! └──────────── nothing changes up to here ────────────┘
//! ```
//!
//! Every step is said before it is done, and every failure ends with the next thing to do. A command that failed in the
//! middle is run again: what exists is found and is neither made twice nor replaced. `--dry-run` asks no account and changes
//! nothing; it tells what would be asked and made, and lets wrangler bundle the Worker.
//!
//! Left out: creating an account, a plan, a zone or a token, and rolling back by itself.

mod account;
mod checkout;
mod live;
mod resources;
mod secrets;
mod target;
#[cfg(test)]
mod tests;
mod wrangler;

pub(crate) use secrets::SECRETS;

use crate::build::Size;
use crate::setup::{self, Bundler, Node, NodeModules, WasmTarget};
use crate::{build, docker, terminal, workspace};
use anyhow::{Context, Result, anyhow};
use checkout::Checkout;
use clap::{Args, ValueEnum};
use live::Patience;
use secrets::{KEY, Plan, Values};
use serde_json::Value;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use target::Target;
use wrangler::Wrangler;

#[derive(Args, Default)]
pub(crate) struct Options {
    /// The environment of wrangler.toml
    #[arg(long, value_enum)]
    env: Environment,
    /// Ask no account and change nothing: say what would be done, and let wrangler bundle the Worker
    #[arg(long)]
    dry_run: bool,
    /// Do not ask before production is changed
    #[arg(long)]
    yes: bool,
    /// Deploy although the checkout has changes that are not committed
    #[arg(long)]
    allow_dirty: bool,
    /// Deploy to production although the commit has no tag v*
    #[arg(long)]
    allow_untagged: bool,
    /// Leave the sandbox image and running containers as they are; Docker is not needed then
    #[arg(long)]
    worker_only: bool,
    /// Leave out the command that is run at the end
    #[arg(long)]
    no_exec: bool,
    /// Where to run the command at the end, if it is not the first URL that wrangler tells
    #[arg(long)]
    url: Option<String>,
}

#[derive(Clone, Copy, Default, PartialEq, ValueEnum)]
pub(crate) enum Environment {
    #[default]
    Staging,
    Production,
}

impl Environment {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Staging => "staging",
            Self::Production => "production",
        }
    }

    fn is_production(self) -> bool {
        self == Self::Production
    }
}

/// Everything outside of this module that a deployment meets. Tests put a double in the place of wrangler.
pub(crate) struct Outside<'a> {
    root: PathBuf,
    configuration: String,
    wrangler: PathBuf,
    path: OsString,
    logs: PathBuf,
    variable: &'a dyn Fn(&str) -> Option<String>,
    build: &'a dyn Fn() -> Result<()>,
    docker: &'a dyn Fn() -> Result<PathBuf>,
    agree: &'a dyn Fn(&str) -> bool,
    continuous_integration: bool,
    patience: Patience,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let bundler = Bundler::pinned()?;
    setup::ensure(&[&WasmTarget, &Node, &NodeModules, &bundler])?;
    carry_out(
        options,
        &Outside {
            root: workspace::root(),
            configuration: workspace::read("wrangler.toml")?,
            wrangler: NodeModules::program("wrangler"),
            path: Node.path_variable()?,
            logs: workspace::logs(),
            variable: &|name| env::var(name).ok(),
            build: &|| build::worker(Size::Optimized),
            docker: &docker::ready,
            agree: &|question| terminal::interactive() && terminal::agree(question),
            continuous_integration: terminal::continuous_integration(),
            patience: Patience::USUAL,
        },
    )
}

/// The dry run of one environment, as a test runs it.
pub(crate) fn dry(environment: Environment) -> Result<()> {
    run(&Options { env: environment, dry_run: true, ..Options::default() })
}

/// A failure and the next thing to do.
fn stop(what: &str, next: &str) -> anyhow::Error {
    anyhow!("{what}\n  next: {next}")
}

/// Every failure ends with what to do, also one that nobody foresaw.
fn carry_out(options: &Options, outside: &Outside) -> Result<()> {
    steps(options, outside).map_err(|error| {
        let text = format!("{error:#}");
        if text.contains("next: ") {
            error
        } else {
            stop(&text, "mend that and run this again: what was made so far is found and not made twice")
        }
    })
}

fn steps(options: &Options, outside: &Outside) -> Result<()> {
    let name = options.env.name();
    terminal::step(&format!("Checkout: what would be deployed to {name}"));
    let checkout = Checkout::read(&outside.root)?;
    let target = Target::read(&outside.configuration, name)?;
    terminal::note(&format!("{} as the Worker {}", checkout.name(), target.worker));
    let mut wrangler = Wrangler::new(&outside.wrangler, outside.path.clone(), name, outside.logs.clone());
    if options.dry_run {
        return dry_run(options, outside, &checkout, &target, &wrangler);
    }
    checkout.check(options)?;
    reachable(options, &target)?;
    let docker = docker(options, outside, &target)?;

    terminal::step("Account: who is logged in, what the Worker has, what is missing");
    let account = account::check(&wrangler, (outside.variable)("CLOUDFLARE_ACCOUNT_ID").as_deref())?;
    terminal::note(&format!("account {account}"));
    let mut values = Values::read(&values_file(outside, name), outside.variable)?;
    values.mask(&mut wrangler);
    let present = secrets::present(&wrangler)?;
    let plan = Plan::of(&values, present.as_deref().unwrap_or_default(), !outside.continuous_integration)?;
    let has_key = present.iter().flatten().any(|secret| secret == KEY);
    if has_key && values.key().is_none() && !options.no_exec {
        return Err(stop(
            &format!("the Worker has its {KEY}, and without knowing it no command can be run at the end"),
            &format!("set {KEY} in the environment of this command, or add --no-exec"),
        ));
    }
    let missing = resources::missing(&wrangler, &target)?;
    let before = if present.is_some() { deployed_version(&wrangler)? } else { None };

    let mut doing: Vec<String> = missing.iter().map(|one| format!("create {}", one.describe())).collect();
    doing.extend(plan.describe().into_iter().map(|one| format!("put {one}")));
    let image = if options.worker_only { "without touching containers" } else { "with its sandbox image" };
    doing.push(format!("deploy {} {image}, in the place of {}", target.worker, before.as_deref().unwrap_or("nothing")));
    terminal::step("What will be changed");
    doing.iter().for_each(|line| terminal::note(line));
    if options.env.is_production() && !options.yes && !(outside.agree)("Do this in production?") {
        return Err(stop("nothing was changed: production is changed only when you say so", "answer y, or add --yes"));
    }

    for one in &missing {
        terminal::step(&format!("Creating {}", one.describe()));
        one.create(&wrangler)?;
    }
    if !plan.is_empty() {
        terminal::step("Putting secrets");
        plan.carry_out(&mut values, &mut wrangler)?;
    }
    (outside.build)()?;
    terminal::step(&format!("Deploying {} {image} (the first image takes up to 15 min)", target.worker));
    let report = outside.root.join("target/deploy").join(format!("{name}.ndjson"));
    let mut more = vec![OsString::from("--message"), checkout.name().into()];
    if let Some(tag) = &checkout.tag {
        more.extend(["--tag".into(), tag.into()]);
    }
    let deployed = deploy(&wrangler, options, more, docker.as_deref(), &report);
    let rollback = rollback(before.as_deref(), name);
    let (version, targets) = deployed.map_err(|error| {
        stop(
            &format!("{error:#}"),
            &format!(
                "mend that and run this again. wrangler uploads the Worker before it builds the image, so the new version may \
                 serve already: `node_modules/.bin/wrangler deployments status --env {name}` tells. {rollback}"
            ),
        )
    })?;
    let url = options.url.clone().or_else(|| url(&targets)).or_else(|| target.custom_domain());
    let proven = prove(options, outside, &values, url.as_deref());
    tell(&account, &target, &checkout, &doing, &version, &targets, &rollback);
    proven.map_err(|error| anyhow!("{error:#}. {rollback}"))
}

fn dry_run(
    options: &Options,
    outside: &Outside,
    checkout: &Checkout,
    target: &Target,
    wrangler: &Wrangler,
) -> Result<()> {
    let name = options.env.name();
    let docker = || docker(options, outside, target).map(|_| ());
    let obstacles = [checkout.check(options), reachable(options, target), docker()];
    terminal::step("Without --dry-run");
    for obstacle in obstacles.into_iter().filter_map(Result::err) {
        terminal::note(&format!("it would stop: {obstacle}"));
    }
    terminal::note("ask: wrangler whoami, secret list, deployments status");
    for one in resources::declared(target) {
        terminal::note(&format!("create unless it is there: {}", one.describe()));
    }
    for secret in &SECRETS {
        terminal::note(&format!("put unless it is there: secret {}", secret.name));
    }
    terminal::note(&format!("deploy {} and run a command through its URL", target.worker));
    (outside.build)()?;
    terminal::step("wrangler deploy --dry-run");
    let output = outside.root.join("target/dry-run").join(name);
    let arguments: [OsString; 5] =
        ["--dry-run".into(), "--outdir".into(), output.into(), "--containers-rollout".into(), "none".into()];
    wrangler.deploy(&arguments, None, &outside.root.join("target/deploy").join(format!("{name}-dry.ndjson")))?;
    terminal::note("wrangler takes it; nothing was changed");
    Ok(())
}

fn reachable(options: &Options, target: &Target) -> Result<()> {
    if target.is_reachable() || options.url.is_some() {
        return Ok(());
    }
    let environment = options.env.name();
    Err(stop(
        &format!("nothing would lead to {}: [env.{environment}] has neither a route nor workers_dev", target.worker),
        &format!(
            "add to [env.{environment}] of wrangler.toml `routes = [{{ pattern = \"ops.example.com\", custom_domain = true }}]` \
             with a name in a zone of the account (docs/deploy.md), or `workers_dev = true`"
        ),
    ))
}

fn docker(options: &Options, outside: &Outside, target: &Target) -> Result<Option<PathBuf>> {
    if options.worker_only || !target.builds_image {
        return Ok(None);
    }
    (outside.docker)().map(Some).map_err(|error| {
        stop(
            &format!("wrangler builds the sandbox image with Docker: {error:#}"),
            "start Docker and run this again, or let the workflow .github/workflows/deploy.yml deploy, or add --worker-only \
             to leave the image as it is",
        )
    })
}

fn values_file(outside: &Outside, environment: &str) -> PathBuf {
    outside.root.join(".cloudflare-ops").join(format!("deploy-{environment}.env"))
}

/// The version that serves before anything is changed, if one does alone.
fn deployed_version(wrangler: &Wrangler) -> Result<Option<String>> {
    let answer = wrangler.ask_environment(&["deployments", "status", "--json"], "")?;
    let said: Value = serde_json::from_str(answer.stdout.trim()).unwrap_or(Value::Null);
    // A Worker that only has secrets so far has no deployment; then there is nothing to roll back to.
    let versions = said.get("versions").and_then(Value::as_array);
    let largest = versions.into_iter().flatten().max_by_key(|one| one.get("percentage").and_then(Value::as_u64));
    Ok(largest.and_then(|one| Some(one.get("version_id")?.as_str()?.to_owned())))
}

/// The new version's id and where wrangler says that it answers.
fn deploy(
    wrangler: &Wrangler,
    options: &Options,
    mut more: Vec<OsString>,
    docker: Option<&Path>,
    report: &Path,
) -> Result<(String, Vec<String>)> {
    if options.worker_only {
        more.extend(["--containers-rollout".into(), "none".into()]);
    }
    // wrangler appends to it.
    match fs::remove_file(report) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot replace {}", report.display()));
        }
        _ => {}
    }
    wrangler.deploy(&more, docker, report)?;
    let text = fs::read_to_string(report).unwrap_or_default();
    let mut lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let made = lines.rfind(|line| line.get("type").and_then(Value::as_str) == Some("deploy"));
    let made = made.context("wrangler did not report what it deployed")?;
    let targets = made.get("targets").and_then(Value::as_array).into_iter().flatten();
    let targets = targets.filter_map(|target| target.as_str().map(str::to_owned)).collect();
    let version = made.get("version_id").and_then(Value::as_str).unwrap_or("unknown").to_owned();
    Ok((version, targets))
}

/// The first of wrangler's targets that can be asked: a URL at workers.dev, or the name of a custom domain.
fn url(targets: &[String]) -> Option<String> {
    let custom = || targets.iter().find_map(|target| Some(target.split_once(" (custom domain")?.0));
    let direct = targets.iter().find(|target| target.starts_with("https://") || target.starts_with("http://127.0.0.1"));
    direct.cloned().or_else(|| custom().map(|name| format!("https://{name}")))
}

fn prove(options: &Options, outside: &Outside, values: &Values, url: Option<&str>) -> Result<()> {
    if options.no_exec {
        return Ok(());
    }
    let Some(url) = url else {
        return Err(stop(
            "the Worker is deployed, and its URL is not known, so that no command was run",
            "run this again with --url https://…",
        ));
    };
    terminal::step(&format!("A command in a sandbox, through {url} (a new name and a new image take minutes)"));
    let key = values.key().context("the root key is not known")?;
    live::check(url.trim_end_matches('/'), key, &outside.path, outside.patience)?;
    terminal::note("it ran, and its sandbox is destroyed again");
    Ok(())
}

fn rollback(before: Option<&str>, environment: &str) -> String {
    match before {
        Some(version) => format!("To roll back: node_modules/.bin/wrangler rollback {version} --env {environment}"),
        None => format!(
            "There is no earlier version to roll back to; node_modules/.bin/wrangler delete --env {environment} removes the Worker"
        ),
    }
}

fn tell(
    account: &str,
    target: &Target,
    checkout: &Checkout,
    done: &[String],
    version: &str,
    targets: &[String],
    rollback: &str,
) {
    terminal::step(&format!("Deployed {}, version {version}, from {}", target.worker, checkout.name()));
    terminal::note(&format!("account {account}"));
    done.iter().for_each(|line| terminal::note(&format!("done: {line}")));
    targets.iter().for_each(|line| terminal::note(&format!("answers at {line}")));
    terminal::note(rollback);
}
