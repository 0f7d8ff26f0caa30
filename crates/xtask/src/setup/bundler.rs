//! worker-build and wasm-bindgen from the Rust crate registry, at pinned versions, in the cache.
//!
//! Both are compiled by one `cargo install`, because they share most of their dependencies, and with little optimisation,
//! because they run for a second a build.

use super::{Cost, Requirement, is_executable};
use crate::run::{self, Task};
use crate::{cache, versions, workspace};
use anyhow::{Context, Result};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(crate) struct Bundler {
    wasm_bindgen_version: String,
}

impl Bundler {
    /// wasm-bindgen's command must equal the library exactly, so its version is the lock file's.
    pub(crate) fn pinned() -> Result<Self> {
        let lock_file = workspace::read("Cargo.lock")?;
        let version = versions::locked(&lock_file, "wasm-bindgen").context("Cargo.lock has no wasm-bindgen")?;
        Ok(Self { wasm_bindgen_version: version })
    }

    fn cache_name(&self) -> String {
        format!("worker-build-{}-wasm-bindgen-{}", versions::WORKER_BUILD, self.wasm_bindgen_version)
    }

    pub(crate) fn worker_build(&self) -> Result<PathBuf> {
        Ok(cache::folder(&self.cache_name())?.join("bin/worker-build"))
    }

    pub(crate) fn wasm_bindgen(&self) -> Result<PathBuf> {
        Ok(cache::folder(&self.cache_name())?.join("bin/wasm-bindgen"))
    }
}

fn works(folder: &Path) -> bool {
    ["worker-build", "wasm-bindgen"].iter().all(|program| is_executable(&folder.join("bin").join(program)))
}

impl Requirement for Bundler {
    fn name(&self) -> String {
        format!("worker-build {} and wasm-bindgen {}", versions::WORKER_BUILD, self.wasm_bindgen_version)
    }

    fn missing(&self) -> Result<Option<Cost>> {
        if works(&cache::folder(&self.cache_name())?) {
            return Ok(None);
        }
        Ok(Some(Cost::new("compiled from the crate registry", 30, 5)))
    }

    fn install(&self) -> Result<()> {
        cache::make(&self.cache_name(), works, |folder| {
            let build = folder.join("build");
            let mut command = run::command("cargo");
            command
                .args(["install", "--locked", "--no-track", "--root"])
                .arg(folder)
                .arg(format!("worker-build@{}", versions::WORKER_BUILD))
                .arg(format!("wasm-bindgen-cli@{}", self.wasm_bindgen_version))
                .env("CARGO_TARGET_DIR", &build)
                .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
                .env("CARGO_PROFILE_RELEASE_LTO", "off")
                .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
                .env("CARGO_PROFILE_RELEASE_STRIP", "symbols");
            Task::new("cargo install worker-build", command, Duration::from_secs(1500)).run()?;
            match fs::remove_dir_all(&build) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    Err(error).context("cannot remove the build folder")
                }
                _ => Ok(()),
            }
        })?;
        Ok(())
    }
}
