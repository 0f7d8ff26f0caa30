//! Where things are: the checkout, its target folders, and the cache that all checkouts of this user share.

use anyhow::{Context, Result, bail};
use std::env;
use std::path::{Path, PathBuf};

/// The root of the checkout. `cargo run` tells the folder of this package, so a moved checkout is found too.
pub(crate) fn root() -> PathBuf {
    let package = env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    package.ancestors().nth(2).map_or(package.clone(), Path::to_path_buf)
}

/// Cargo's target folder for native code.
pub(crate) fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |folder| root().join(folder))
}

/// The WebAssembly build has a folder of its own: where it needs another compiler, neither invalidates the other, and
/// neither waits for the other's lock.
pub(crate) fn wasm_target() -> PathBuf {
    target().join("wasm")
}

/// Where long output goes; git ignores it.
pub(crate) fn logs() -> PathBuf {
    target().join("xtask-logs")
}

/// `$XDG_CACHE_HOME/cloudflare-ops`, by default `~/.cache/cloudflare-ops`.
pub(crate) fn cache() -> Result<PathBuf> {
    let absolute = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    if let Some(folder) = absolute("XDG_CACHE_HOME") {
        return Ok(folder.join("cloudflare-ops"));
    }
    let Some(home) = absolute("HOME") else {
        bail!("neither XDG_CACHE_HOME nor HOME is set to an absolute path: set one, the tools are kept below it");
    };
    Ok(home.join(".cache/cloudflare-ops"))
}

/// A file of the checkout as text.
pub(crate) fn read(relative: &str) -> Result<String> {
    let path = root().join(relative);
    std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
}
