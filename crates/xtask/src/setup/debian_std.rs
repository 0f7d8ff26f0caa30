//! The fallback compiler for WebAssembly: Debian's `rustc-web` with a standard library that is built here once.
//!
//! The result is a private sysroot in the cache, named after the package's version:
//!
//! ```text
//! bin/rustc                                  runs /usr/bin/rustc with this folder as its sysroot
//! lib/rustlib/<host>                         a link to the system's, for build scripts and procedural macros
//! lib/rustlib/wasm32-unknown-unknown/lib     the library built from rust-web-src
//! ```
//!
//! The system's own folders stay as they are.

use super::wasm_target::{TARGET, WasmCompiler};
use super::{apt, find_program, is_executable, rustup};
use crate::run::{self, Task};
use crate::{cache, versions, workspace};
use anyhow::{Context, Result, bail};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

const COMPILER: &str = "/usr/bin/rustc";
const PACKAGES: [&str; 2] = ["rustc-web", "rust-web-src"];
const CRATE: &str = "standard-library-build";

fn cache_name() -> Option<String> {
    apt::installed(PACKAGES[0]).map(|version| format!("wasm-sysroot-{version}"))
}

fn works(sysroot: &Path) -> bool {
    is_executable(&sysroot.join("bin/rustc")) && rustup::holds_std(&library_in(sysroot))
}

fn library_in(sysroot: &Path) -> PathBuf {
    sysroot.join("lib/rustlib").join(TARGET).join("lib")
}

pub(crate) fn find() -> Result<Option<WasmCompiler>> {
    let Some(name) = cache_name() else { return Ok(None) };
    let sysroot = cache::folder(&name)?;
    if !works(&sysroot) {
        return Ok(None);
    }
    Ok(linker().map(|linker| WasmCompiler::Debian { sysroot, linker }))
}

/// The linker of the installed toolchain, or the system's LLVM linker.
fn linker() -> Option<PathBuf> {
    rustup::rust_lld().or_else(|| find_program("rust-lld")).or_else(|| find_program("wasm-ld"))
}

pub(crate) fn install() -> Result<()> {
    if PACKAGES.iter().any(|package| apt::installed(package).is_none()) {
        apt::install(&PACKAGES)?;
    }
    if linker().is_none() {
        apt::install(&["lld"])?;
    }
    let version = run::ask(run::command(COMPILER).arg("--version")).context("Debian's rustc does not run")?;
    let found = version.split(' ').nth(1).and_then(versions::major_minor);
    let manifest = workspace::read("Cargo.toml")?;
    let wanted = manifest.lines().find_map(|line| line.strip_prefix("rust-version = \"")?.strip_suffix('"'));
    let wanted = wanted.and_then(versions::major_minor).context("Cargo.toml states no rust-version")?;
    if found < Some(wanted) {
        bail!(
            "Debian's compiler is {version}, and this project needs {}.{}: run `rustup target add {TARGET}` where rustup \
             can download, then this command again",
            wanted.0,
            wanted.1
        );
    }
    let name = cache_name().context("rustc-web is installed and dpkg does not know it")?;
    cache::make(&name, works, fill)?;
    Ok(())
}

fn fill(sysroot: &Path) -> Result<()> {
    let build = sysroot.join("build");
    fs::create_dir_all(build.join("src"))?;
    fs::write(build.join("src/lib.rs"), "#![no_std]\n")?;
    let manifest = format!("[package]\nname = \"{CRATE}\"\nversion = \"0.0.0\"\nedition = \"2021\"\n\n[workspace]\n");
    fs::write(build.join("Cargo.toml"), manifest)?;
    let mut command = run::command("cargo");
    command
        .args(["build", "--release", "--target", TARGET, "-Z", "build-std=std,panic_abort,panic_unwind"])
        .current_dir(&build)
        .env("RUSTC", COMPILER)
        .env("RUSTC_BOOTSTRAP", "1")
        // Without bitcode the Worker's link-time optimisation has nothing to read.
        .env("RUSTFLAGS", "-C embed-bitcode=yes")
        .env("CARGO_TARGET_DIR", build.join("target"));
    Task::new("standard library for WebAssembly", command, Duration::from_secs(600)).run()?;

    let library = library_in(sysroot);
    fs::create_dir_all(&library)?;
    let built = build.join("target").join(TARGET).join("release/deps");
    for entry in built.read_dir().with_context(|| format!("cannot read {}", built.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.ends_with(".rlib") && !name.starts_with(&format!("lib{}-", CRATE.replace('-', "_"))) {
            fs::copy(&path, library.join(&name)).with_context(|| format!("cannot copy {name}"))?;
        }
    }
    let host = rustup::host_triple()?;
    symlink(Path::new("/usr/lib/rustlib").join(&host), sysroot.join("lib/rustlib").join(&host))?;
    let wrapper = sysroot.join("bin/rustc");
    fs::create_dir_all(sysroot.join("bin"))?;
    let script = format!(
        "#!/bin/sh\nsysroot=$(dirname \"$(dirname \"$(readlink -f \"$0\")\")\")\nexec {COMPILER} --sysroot \"$sysroot\" \"$@\"\n"
    );
    fs::write(&wrapper, script)?;
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755))?;
    fs::remove_dir_all(&build).context("cannot remove the build folder")
}

/// The clippy that belongs to Debian's compiler, installed when it is missing.
pub(crate) fn clippy_driver() -> Result<PathBuf> {
    let package = "rust-web-clippy";
    if apt::installed(package).is_none() {
        apt::install(&[package])?;
    }
    let driver = PathBuf::from("/usr/bin/clippy-driver");
    anyhow::ensure!(is_executable(&driver), "{package} is installed, and {} is not there", driver.display());
    Ok(driver)
}
