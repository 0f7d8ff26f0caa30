//! `cargo xtask build`: the Worker as WebAssembly in `build/`, ready for wrangler. It is wrangler's build command too.
//!
//! Cargo decides whether anything changed. Only when its output, the tools or the metadata differ from the last time do
//! wasm-bindgen, wasm-opt and esbuild run again (through worker-build), so that a build of nothing takes a second.

use crate::run::{self, Task};
use crate::setup::{self, Bundler, Node, NodeModules, WasmCompiler, WasmTarget};
use crate::{cache, terminal, wasm_size, workspace};
use anyhow::{Context, Result};
use std::collections::hash_map::DefaultHasher;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::hash::Hasher;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The tools of the WebAssembly build, all present.
pub(crate) struct Tools {
    compiler: WasmCompiler,
    bundler: Bundler,
}

impl Tools {
    pub(crate) fn ensure() -> Result<Self> {
        let bundler = Bundler::pinned()?;
        setup::ensure(&[&WasmTarget, &Node, &NodeModules, &bundler])?;
        let compiler = WasmCompiler::find()?.context("the compiler for WebAssembly vanished")?;
        Ok(Self { compiler, bundler })
    }

    pub(crate) fn compiler(&self) -> &WasmCompiler {
        &self.compiler
    }

    /// A Cargo command for wasm32; worker-build runs Cargo with the same environment, so that it finds everything fresh.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Result<Command> {
        let mut command = run::command(program);
        self.compiler.apply(&mut command);
        command
            .env("PATH", self.path_variable()?)
            .env("CARGO_TARGET_DIR", workspace::wasm_target())
            .env("WASM_BINDGEN_USE_JS_SYS", "1");
        Ok(command)
    }

    fn path_variable(&self) -> Result<OsString> {
        let inherited = Node.path_variable()?;
        let folders = self.compiler.folder().into_iter().chain(env::split_paths(&inherited));
        env::join_paths(folders).context("a folder on the PATH has a colon in its name")
    }
}

/// Whether wasm-opt runs. It makes the Worker a third smaller and takes most of a minute, which the local stack would pay
/// at each change.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Size {
    Optimized,
    AsCompiled,
}

/// Tells the `cargo xtask build` that wrangler runs inside the local stack to leave out wasm-opt.
pub(crate) const AS_COMPILED_VARIABLE: &str = "CLOUDFLARE_OPS_SKIP_WASM_OPT";

/// The Worker as the command line asks for it.
pub(crate) fn from_command_line() -> Result<()> {
    let skip = env::var(AS_COMPILED_VARIABLE).is_ok_and(|value| value == "1");
    worker(if skip { Size::AsCompiled } else { Size::Optimized })
}

pub(crate) fn worker(size: Size) -> Result<()> {
    build_with(&Tools::ensure()?, size)
}

fn build_with(tools: &Tools, size: Size) -> Result<()> {
    let _lock = cache::lock(&workspace::wasm_target().join("build.lock"))?;
    copy_viewer()?;
    terminal::step("Building the Worker");
    let mut compile = tools.command("cargo")?;
    compile.args(["build", "--lib", "--release", "--target", "wasm32-unknown-unknown"]);
    Task::new("cargo build for wasm32", compile, Duration::from_secs(1800)).run()?;

    let stamp = workspace::wasm_target().join("bundled");
    let optimized = size == Size::Optimized;
    let inputs = fingerprint(&input_files(tools)?)?;
    let outputs = [output("index.js"), output("index_bg.wasm")];
    // No value where an output is missing, and a missing stamp is no value either: only two values can be equal.
    let state = || fingerprint(&outputs).ok().map(|outputs| format!("{inputs:016x} {outputs:016x} {optimized}\n"));
    let last_time = fs::read_to_string(&stamp).ok();
    if last_time.is_none() || last_time != state() {
        let mut bundle = tools.command(tools.bundler.worker_build()?)?;
        bundle
            .arg("--release")
            .env("WASM_BINDGEN_BIN", tools.bundler.wasm_bindgen()?)
            .env("ESBUILD_BIN", NodeModules::esbuild())
            .env("WASM_OPT_BIN", NodeModules::program("wasm-opt"));
        if !optimized {
            bundle.arg("--no-opt");
        }
        Task::new("worker-build", bundle, Duration::from_secs(600)).run()?;
        cache::write(&stamp, state().context("worker-build left no output in build/")?)?;
    }
    if optimized { wasm_size::check(&output("index_bg.wasm")) } else { Ok(()) }
}

/// The viewer's files into the folder of the static assets, next to its page.
fn copy_viewer() -> Result<()> {
    for name in ["swagger-ui.css", "swagger-ui-bundle.js"] {
        let from = NodeModules::file("swagger-ui-dist", name);
        let to = workspace::root().join("openapi/docs").join(name);
        let bytes = fs::read(&from).with_context(|| format!("cannot read {}", from.display()))?;
        if fs::read(&to).ok().as_ref() != Some(&bytes) {
            cache::write(&to, bytes)?;
        }
    }
    Ok(())
}

fn output(name: &str) -> PathBuf {
    workspace::root().join("build").join(name)
}

/// What the bundle is made of; the paths of the tools carry their versions.
fn input_files(tools: &Tools) -> Result<Vec<PathBuf>> {
    let root = workspace::root();
    Ok(vec![
        workspace::wasm_target().join("wasm32-unknown-unknown/release/cloudflare_ops.wasm"),
        root.join("Cargo.toml"),
        root.join("package-lock.json"),
        tools.bundler.worker_build()?,
        tools.bundler.wasm_bindgen()?,
    ])
}

/// A hash of names and contents. It guards against stale output, not against an adversary.
fn fingerprint(files: &[impl AsRef<Path>]) -> Result<u64> {
    let mut hasher = DefaultHasher::new();
    for file in files {
        let file = file.as_ref();
        hasher.write(file.as_os_str().as_encoded_bytes());
        hasher.write(&fs::read(file).with_context(|| format!("cannot read {}", file.display()))?);
    }
    Ok(hasher.finish())
}
