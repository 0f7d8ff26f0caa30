//! `cargo xtask test`: every test, tier by tier, and a summary that hides nothing.
//!
//! A tier that fails, or cannot begin, is counted and the next one runs; the command fails when any did. `check` is the
//! first two tiers by themselves.

mod ahead;
mod container;
mod count;
mod lint;
mod report;

use crate::build::Size;
use crate::deploy::{self, Environment};
use crate::run::{self, Task};
use crate::setup::{
    self, Bubblewrap, Bundler, Docker, NativeTarget, Node, NodeModules, Python, Requirement, Slirp4netns, WasmTarget,
    find_program,
};
use crate::{bench, build, sandboxd, terminal, workspace};
use ahead::Ahead;
use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use container::Images;
use count::Count;
use report::{Failure, Report};
use std::env;
use std::ffi::OsStr;
use std::io::IsTerminal;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

#[derive(Args)]
pub(crate) struct Options {
    /// Only these tiers (may be given several times)
    #[arg(long, value_enum)]
    only: Vec<Tier>,
    /// Only tests whose name contains this
    filter: Option<String>,
}

/// In the order in which they run: the quick ones first.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub(crate) enum Tier {
    /// rustfmt and clippy, for the native and the WebAssembly target, warnings denied
    Lint,
    /// Everything pure, sandboxd and xtask itself
    Native,
    /// Each environment of wrangler.toml, deployed dry
    Deploy,
    /// The real Worker in workerd against the real sandboxd
    Workerd,
    /// The real Worker in workerd against real containers
    Container,
    /// The command line, and clients generated from the OpenAPI document
    Clients,
    /// The measurements of `cargo xtask bench`, a few times each and not judged
    Bench,
}

impl Tier {
    fn name(self) -> &'static str {
        match self {
            Self::Lint => "lint",
            Self::Native => "native",
            Self::Deploy => "deploy",
            Self::Workerd => "workerd",
            Self::Container => "container",
            Self::Clients => "clients",
            Self::Bench => "bench",
        }
    }

    /// Generous: a tier compiles first, on a slow machine with another build beside it.
    fn limit(self) -> Duration {
        let minutes = if matches!(self, Self::Workerd | Self::Container) { 30 } else { 20 };
        Duration::from_secs(60 * minutes)
    }
}

struct Outcome {
    tier: Tier,
    report: Report,
    seconds: u64,
    error: Option<anyhow::Error>,
}

pub(crate) fn check() -> Result<ExitCode> {
    run_tiers(&[Tier::Lint], None, None)
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let mut tiers: Vec<Tier> = Tier::value_variants().to_vec();
    let mut left_out = None;
    if options.only.is_empty() {
        left_out = container::absence();
        tiers.retain(|tier| *tier != Tier::Container || left_out.is_none());
    } else {
        tiers.retain(|tier| options.only.contains(tier));
    }
    if let Some(why) = &left_out {
        terminal::note(&format!("tier container is LEFT OUT: {why}"));
    }
    run_tiers(&tiers, options.filter.as_deref(), left_out.as_deref())
}

fn run_tiers(tiers: &[Tier], filter: Option<&str>, left_out: Option<&str>) -> Result<ExitCode> {
    ensure_tools(tiers)?;
    let mut ahead = Ahead::begin(tiers);
    let mut outcomes = Vec::new();
    for &tier in tiers {
        ahead.finish_before(tier);
        terminal::step(&format!("Tests: {}", tier.name()));
        let started = Instant::now();
        let mut report = Report::default();
        let result = run_tier(tier, filter, &mut ahead, &mut report);
        if run::was_interrupted() {
            bail!("interrupted");
        }
        if let Err(error) = &result {
            terminal::failure(error);
        }
        outcomes.push(Outcome { tier, report, seconds: started.elapsed().as_secs(), error: result.err() });
    }
    Ok(summarize(&outcomes, filter, left_out))
}

fn ensure_tools(tiers: &[Tier]) -> Result<()> {
    let bundler = Bundler::pinned()?;
    let mut needed: Vec<&dyn Requirement> = Vec::new();
    let any = |some: &[Tier]| tiers.iter().any(|tier| some.contains(tier));
    if any(&[Tier::Native, Tier::Workerd, Tier::Clients, Tier::Bench]) {
        needed.push(&Bubblewrap);
        needed.push(&Slirp4netns);
    }
    if any(&[Tier::Lint, Tier::Deploy, Tier::Workerd, Tier::Container, Tier::Clients, Tier::Bench]) {
        needed.push(&WasmTarget);
    }
    if any(&[Tier::Lint]) {
        needed.push(&lint::Components);
    }
    if any(&[Tier::Native, Tier::Deploy, Tier::Workerd, Tier::Container, Tier::Clients, Tier::Bench]) {
        needed.push(&Node);
    }
    if any(&[Tier::Deploy, Tier::Workerd, Tier::Container, Tier::Clients, Tier::Bench]) {
        needed.extend([&NodeModules as &dyn Requirement, &bundler]);
    }
    if any(&[Tier::Workerd, Tier::Container, Tier::Clients, Tier::Bench]) {
        needed.push(&NativeTarget);
    }
    if any(&[Tier::Container]) {
        needed.push(&Docker);
    }
    if any(&[Tier::Clients]) {
        needed.push(&Python);
    }
    setup::ensure(&needed)
}

fn run_tier(tier: Tier, filter: Option<&str>, ahead: &mut Ahead, report: &mut Report) -> Result<()> {
    match tier {
        Tier::Lint => lint::run(&mut report.count),
        Tier::Native => {
            let mut command = run::command("cargo");
            command.args(["test", "--workspace", "--no-fail-fast"]);
            run_tests(tier, command, filter, report)
        }
        Tier::Deploy => dry_deploy(&mut report.count),
        Tier::Container => {
            let images = ahead.images().map_or_else(Images::make, Ok)?;
            container::run(&images, filter, report)
        }
        Tier::Workerd | Tier::Clients => run_tests(tier, stack_tests(tier)?, filter, report),
        Tier::Bench => {
            let result = bench::measure(true, None);
            let count = &mut report.count;
            *(if result.is_ok() { &mut count.passed } else { &mut count.failed }) += 1;
            result
        }
    }
}

/// A test binary of the root package that starts the real stack.
fn stack_tests(tier: Tier) -> Result<Command> {
    let mut command = stack_command("cargo")?;
    // Of the whole workspace: otherwise dependencies would be compiled once more, with fewer features.
    command.args(["test", "--workspace", "--test", tier.name()]);
    // They wait for the stack most of the time: so many run at once, however few processors there are.
    let at_once = match tier {
        Tier::Workerd => "6",
        Tier::Container => "3",
        _ => "4",
    };
    if env::var_os("RUST_TEST_THREADS").is_none() {
        command.env("RUST_TEST_THREADS", at_once);
    }
    if tier == Tier::Clients {
        command.env("CLOUDFLARE_OPS_CFOPS", sandboxd::build_static("cfops")?);
    }
    Ok(command)
}

/// A command that starts the real stack: what it starts is built before.
pub(crate) fn stack_command(program: impl AsRef<OsStr>) -> Result<Command> {
    let binary = sandboxd::build()?;
    build::worker(Size::Optimized)?;
    let mut command = run::command(program);
    let node = Node.folder()?.map_or_else(|| find_program("node"), |folder| Some(folder.join("node")));
    command
        .env("PATH", Node.path_variable()?)
        .env("CLOUDFLARE_OPS_NODE", node.context("node is not on the PATH")?)
        .env("CLOUDFLARE_OPS_SANDBOXD", binary)
        .env("WRANGLER_SEND_METRICS", "false");
    Ok(command)
}

fn run_tests(tier: Tier, mut command: Command, filter: Option<&str>, report: &mut Report) -> Result<()> {
    if std::io::stderr().is_terminal() {
        command.env("CARGO_TERM_COLOR", "always");
    }
    if terminal::continuous_integration() {
        command.arg("--locked");
    }
    if let Some(filter) = filter {
        command.args(["--", filter]);
    }
    let status = Task::new(tier.name(), command, tier.limit()).show(|line| report.read(line))?;
    ensure!(status.success(), "the tests of tier {} failed ({status})", tier.name());
    // Without a filter, a tier in which nothing ran tested nothing.
    ensure!(report.count.passed > 0 || filter.is_some(), "tier {} ran no test", tier.name());
    Ok(())
}

/// What wrangler makes of each environment, without an account and without building the image: the two that are deployed
/// by the command that deploys them, and the top level, which the local stack runs.
fn dry_deploy(count: &mut Count) -> Result<()> {
    let mut failed = Vec::new();
    let environments = Environment::value_variants().iter().map(|one| (one.name(), Some(*one)));
    for (name, environment) in environments.chain([("top level", None)]) {
        match environment.map_or_else(dry_top_level, deploy::dry) {
            Ok(()) => count.passed += 1,
            Err(error) => {
                terminal::failure(&error);
                count.failed += 1;
                failed.push(name);
            }
        }
    }
    ensure!(failed.is_empty(), "wrangler refuses: {}", failed.join(", "));
    Ok(())
}

fn dry_top_level() -> Result<()> {
    build::worker(Size::Optimized)?;
    let mut command: Command = NodeModules::wrangler()?;
    command.args(["deploy", "--dry-run", "--env", "", "--outdir"]).arg(workspace::target().join("dry-run/top-level"));
    command.args(["--containers-rollout", "none"]).env("CI", "true").env("NO_COLOR", "1");
    Task::new("wrangler deploy --dry-run, top level", command, Duration::from_secs(600)).run()
}

fn summarize(outcomes: &[Outcome], filter: Option<&str>, left_out: Option<&str>) -> ExitCode {
    terminal::raw("\n");
    terminal::step(&match filter {
        None => "Summary".to_owned(),
        Some(filter) => format!("Summary of tests whose name contains {filter:?}"),
    });
    let mut total = Count::default();
    for Outcome { tier, report: Report { count, failures, .. }, seconds, error } in outcomes {
        total.passed += count.passed;
        // A tier that failed without a failed test (it did not compile, say) is a failure of its own.
        total.failed += count.failed.max(u64::from(error.is_some()));
        total.ignored += count.ignored;
        let verdict = if error.is_some() { "FAILED" } else { "ok" };
        terminal::note(&format!(
            "{:<9} {verdict:<7} {} passed, {} failed, {} ignored, {seconds} s",
            tier.name(),
            count.passed,
            count.failed,
            count.ignored
        ));
        if let Some(error) = error {
            terminal::note(&format!("          {}", error.to_string().lines().next().unwrap_or_default()));
        }
        failures.iter().for_each(tell);
    }
    if let Some(why) = left_out {
        terminal::note(&format!("container LEFT OUT: {why}"));
    }
    terminal::note(&format!("total: {} passed, {} failed, {} ignored", total.passed, total.failed, total.ignored));
    if total.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Why a test failed, once more where who reads only the end of the output finds it.
fn tell(Failure { test, lines }: &Failure) {
    terminal::note(&format!("          {test}"));
    for line in lines {
        terminal::note(&format!("          | {line}"));
    }
}
