//! A compiler for wasm32-unknown-unknown.
//!
//! The ordinary way is the toolchain on the PATH with the target that rustup adds. Where that cannot be downloaded, Debian's
//! compiler builds the target's standard library once (see `debian_std`), and only the Worker is compiled with it.

use super::{Cost, Requirement, apt, debian_std, rustup};
use crate::terminal;
use anyhow::{Result, bail};
use std::path::PathBuf;
use std::process::Command;

pub(crate) const TARGET: &str = "wasm32-unknown-unknown";

pub(crate) enum WasmCompiler {
    /// The toolchain on the PATH.
    Ordinary,
    /// Debian's compiler behind a wrapper script that names a private sysroot.
    Debian { sysroot: PathBuf, linker: PathBuf },
}

impl WasmCompiler {
    pub(crate) fn find() -> Result<Option<Self>> {
        if rustup::has_target(TARGET) {
            return Ok(Some(Self::Ordinary));
        }
        debian_std::find()
    }

    /// Makes a Cargo command (or worker-build, which runs Cargo) use this compiler.
    pub(crate) fn apply(&self, command: &mut Command) {
        if let Self::Debian { sysroot, linker } = self {
            command.env("RUSTC", sysroot.join("bin/rustc"));
            command.env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", linker);
        }
    }

    /// The folder to put first on the PATH: worker-build asks `rustc` there for the sysroot.
    pub(crate) fn folder(&self) -> Option<PathBuf> {
        match self {
            Self::Ordinary => None,
            Self::Debian { sysroot, .. } => Some(sysroot.join("bin")),
        }
    }
}

pub(crate) struct WasmTarget;

impl Requirement for WasmTarget {
    fn name(&self) -> String {
        format!("Rust target {TARGET}")
    }

    fn missing(&self) -> Result<Option<Cost>> {
        if WasmCompiler::find()?.is_some() {
            return Ok(None);
        }
        let how = "from rustup; where that cannot be had, Debian's rustc-web and a build of the standard library";
        Ok(Some(Cost::new(how, 25, 4)))
    }

    fn install(&self) -> Result<()> {
        let Err(ordinary) = rustup::add_target(TARGET) else { return Ok(()) };
        let first_line = ordinary.to_string().lines().next().unwrap_or_default().to_owned();
        terminal::note(&format!("rustup could not add it ({first_line}); trying Debian's compiler"));
        if !apt::available() {
            bail!("run `rustup target add {TARGET}` where rustup can download, then this command again\n{ordinary}");
        }
        debian_std::install()
    }
}
