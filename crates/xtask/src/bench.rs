//! `cargo xtask bench`: measures calls and the daemon on the real stack; the program is in `tests/bench/`.
//!
//! A measurement belongs on a machine that does nothing else. As a tier of the tests it runs with `--smoke`: everything a few
//! times and no number judged, so that it does not rot.

use crate::run::{self, Task};
use crate::setup::{self, Bubblewrap, Bundler, NativeTarget, Node, NodeModules, Requirement, WasmTarget};
use crate::{terminal, test, workspace};
use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(40 * 60);

const PROGRAM: &str = "stack-bench";

#[derive(Args)]
pub(crate) struct Options {
    /// Do everything a few times, to see that it works; the numbers mean nothing
    #[arg(long)]
    smoke: bool,
    /// Only this part
    #[arg(long, value_enum)]
    only: Option<Part>,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Part {
    /// sandboxd by itself
    Sandboxd,
    /// Calls through the whole stack
    Calls,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let bundler = Bundler::pinned()?;
    let needed: [&dyn Requirement; 6] = [&Bubblewrap, &WasmTarget, &NativeTarget, &Node, &NodeModules, &bundler];
    setup::ensure(&needed)?;
    measure(options.smoke, options.only)
}

/// With everything installed.
pub(crate) fn measure(smoke: bool, only: Option<Part>) -> Result<()> {
    let name = if smoke { "smoke.json" } else { "bench.json" };
    let output = workspace::target().join("bench").join(name);
    // A smoke run takes the client as the tests have compiled its parts already.
    let profile = if smoke { "dev" } else { "bench" };
    // Of the whole workspace, as the tests are, so that dependencies are not compiled once more with fewer features.
    let mut build = run::command("cargo");
    build.args(["build", "--workspace", "--bin", PROGRAM, "--profile", profile]);
    Task::new("cargo build for the measurements", build, LIMIT).run()?;
    let folder = if smoke { "debug" } else { "release" };
    let mut command = test::stack_command(workspace::target().join(folder).join(PROGRAM))?;
    command.arg("--output").arg(&output);
    if smoke {
        command.arg("--smoke");
    }
    if let Some(part) = only {
        command.args(["--only", if matches!(part, Part::Sandboxd) { "sandboxd" } else { "calls" }]);
    }
    let status = Task::new("bench", command, LIMIT).show(|_| {})?;
    terminal::note(&format!("as JSON: {}", output.display()));
    ensure!(status.success(), "the measurement failed, or a target was missed ({status})");
    Ok(())
}
