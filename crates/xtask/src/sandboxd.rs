//! The static release build of sandboxd. Cargo decides whether anything changed.

use crate::run::{self, Task};
use crate::setup::StaticTarget;
use crate::workspace;
use anyhow::{Result, ensure};
use std::path::PathBuf;
use std::time::Duration;

/// Builds sandboxd and tells where the binary is.
pub(crate) fn build() -> Result<PathBuf> {
    let StaticTarget { triple, flags } = StaticTarget::find()?;
    let mut command = run::command("cargo");
    command.args(["build", "--profile", "native", "--package", "sandboxd", "--bin", "sandboxd", "--target", &triple]);
    if let Some(flags) = flags {
        command.env("RUSTFLAGS", flags);
    }
    Task::new("cargo build for sandboxd", command, Duration::from_secs(1200)).run()?;
    let binary = workspace::target().join(&triple).join("native/sandboxd");
    ensure!(binary.is_file(), "cargo built sandboxd, and {} is not there", binary.display());
    Ok(binary)
}
