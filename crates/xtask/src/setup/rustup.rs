//! Targets of the installed Rust toolchain, and how rustup adds one.

use super::find_program;
use crate::run::{self, Task};
use anyhow::{Result, bail};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Whether the compiler on the PATH has the standard library of a target.
pub(crate) fn has_target(target: &str) -> bool {
    let answer = run::ask(run::command("rustc").args(["--print", "target-libdir", "--target", target]));
    answer.is_some_and(|folder| holds_std(Path::new(&folder)))
}

pub(crate) fn holds_std(folder: &Path) -> bool {
    let Ok(entries) = folder.read_dir() else { return false };
    entries.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with("libstd-"))
}

/// The ordinary way. Without a network it fails within seconds; a slow one has three minutes.
pub(crate) fn add_target(target: &str) -> Result<()> {
    if find_program("rustup").is_none() {
        bail!("rustup is not installed");
    }
    let mut command = run::command("rustup");
    command.args(["target", "add", target]);
    Task::new(&format!("rustup target add {target}"), command, Duration::from_secs(180)).run()?;
    if !has_target(target) {
        bail!("rustup added {target}, and rustc does not have it");
    }
    Ok(())
}

/// The triple of this machine, as the compiler names it.
pub(crate) fn host_triple() -> Result<String> {
    let answer = run::ask(run::command("rustc").arg("-vV")).unwrap_or_default();
    match answer.lines().find_map(|line| line.strip_prefix("host: ")) {
        Some(host) => Ok(host.to_owned()),
        None => bail!("`rustc -vV` does not tell its host: is Rust installed? See https://rustup.rs"),
    }
}

/// The LLVM linker that comes with the toolchain.
pub(crate) fn rust_lld() -> Option<PathBuf> {
    let sysroot = run::ask(run::command("rustc").args(["--print", "sysroot"]))?;
    let path = Path::new(&sysroot).join("lib/rustlib").join(host_triple().ok()?).join("bin/rust-lld");
    path.is_file().then_some(path)
}
