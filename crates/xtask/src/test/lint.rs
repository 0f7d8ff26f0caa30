//! rustfmt and clippy, for both targets, with warnings denied.
//!
//! Where the Worker is compiled with Debian's compiler, clippy for WebAssembly is Debian's too (`rust-web-clippy`): a clippy
//! reads only libraries of its own compiler.

use super::count::Count;
use crate::build::Tools;
use crate::run::{self, Task};
use crate::setup::{Cost, Requirement, WasmCompiler, clippy_driver};
use crate::terminal;
use anyhow::{Result, bail, ensure};
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(1200);

/// The rustfmt and clippy of the toolchain.
pub(crate) struct Components;

impl Requirement for Components {
    fn name(&self) -> String {
        "rustfmt and clippy".to_owned()
    }

    fn missing(&self) -> Result<Option<Cost>> {
        let present = |program: &str| run::ask(run::command("cargo").args([program, "--version"])).is_some();
        if present("fmt") && present("clippy") {
            return Ok(None);
        }
        Ok(Some(Cost::new("components of the Rust toolchain, from rustup", 10, 1)))
    }

    fn install(&self) -> Result<()> {
        let mut command = run::command("rustup");
        command.args(["component", "add", "rustfmt", "clippy"]);
        Task::new("rustup component add", command, Duration::from_secs(180)).run()
    }
}

type MakeCommand = fn() -> Result<Command>;

pub(crate) fn run(count: &mut Count) -> Result<()> {
    let checks: [(&str, MakeCommand); 4] = [
        ("rustfmt", format),
        ("clippy, native", native),
        ("clippy, tests of the stack", stack_tests),
        ("clippy, wasm32", wasm),
    ];
    let mut failed = Vec::new();
    for (name, make) in checks {
        terminal::note(name);
        let status = make().and_then(|command| Task::new(name, command, LIMIT).show(|_| {}));
        match status {
            Ok(status) if status.success() => count.passed += 1,
            other => {
                if let Err(error) = other {
                    terminal::failure(&error);
                }
                if run::was_interrupted() {
                    bail!("interrupted");
                }
                count.failed += 1;
                failed.push(name);
            }
        }
    }
    ensure!(failed.is_empty(), "lint failed: {} (`cargo fmt --all` mends the format)", failed.join("; "));
    Ok(())
}

fn format() -> Result<Command> {
    let mut command = run::command("cargo");
    command.args(["fmt", "--all", "--check"]);
    Ok(command)
}

fn native() -> Result<Command> {
    Ok(clippy(&["--all-targets"]))
}

/// `--all-targets` leaves these out, as `cargo test` does, and a name beside it is ignored.
fn stack_tests() -> Result<Command> {
    Ok(clippy(&["--test", "workerd", "--test", "container", "--test", "clients"]))
}

fn clippy(targets: &[&str]) -> Command {
    let mut command = run::command("cargo");
    command.args(["clippy", "--quiet", "--workspace"]).args(targets).args(["--", "--deny", "warnings"]);
    command
}

fn wasm() -> Result<Command> {
    let tools = Tools::ensure()?;
    let mut command = tools.command("cargo")?;
    match tools.compiler() {
        WasmCompiler::Ordinary => {
            command.args([
                "clippy",
                "--quiet",
                "--lib",
                "--target",
                "wasm32-unknown-unknown",
                "--",
                "--deny",
                "warnings",
            ]);
        }
        WasmCompiler::Debian { sysroot, .. } => {
            // cargo-clippy would run the toolchain's own driver; Cargo's wrapper variable names Debian's. The arguments
            // that cargo-clippy would pass are separated as the driver expects them.
            command
                .args(["check", "--quiet", "--lib", "--target", "wasm32-unknown-unknown"])
                .env("SYSROOT", sysroot)
                .env("RUSTC_WORKSPACE_WRAPPER", clippy_driver()?)
                .env("CLIPPY_ARGS", "--deny__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__");
        }
    }
    Ok(command)
}
