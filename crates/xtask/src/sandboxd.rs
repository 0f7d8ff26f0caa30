//! Static release builds of native programs, sandboxd first. Cargo decides whether anything changed.

use crate::run::{self, Task};
use crate::setup::{StaticTarget, find_program};
use crate::workspace;
use anyhow::{Result, ensure};
use std::env;
use std::path::PathBuf;
use std::time::Duration;

/// Builds sandboxd and tells where the binary is.
pub(crate) fn build() -> Result<PathBuf> {
    build_static("sandboxd")
}

/// Builds the program of this package, which has its name, so that it runs in any image.
pub(crate) fn build_static(package: &str) -> Result<PathBuf> {
    let StaticTarget { triple, flags } = StaticTarget::find()?;
    let mut command = run::command("cargo");
    command.args(["build", "--profile", "native", "--package", package, "--bin", package, "--target", &triple]);
    if let Some(flags) = flags {
        command.env("RUSTFLAGS", flags);
    }
    // What little C there is (the TLS of cfops) needs nothing of a C library, so that any compiler will do.
    let compiler = format!("CC_{}", triple.replace('-', "_"));
    if triple.ends_with("musl") && find_program("musl-gcc").is_none() && env::var_os(&compiler).is_none() {
        command.env(compiler, "cc");
    }
    Task::new(&format!("cargo build for {package}"), command, Duration::from_secs(1800)).run()?;
    let binary = workspace::target().join(&triple).join("native").join(package);
    ensure!(binary.is_file(), "cargo built {package}, and {} is not there", binary.display());
    Ok(binary)
}
