//! A command from the Rust crate registry, at a pinned version, in the cache.

use super::{Cost, Requirement, is_executable};
use crate::cache;
use crate::run::{self, Task};
use anyhow::Result;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(crate) struct CargoTool {
    package: &'static str,
    program: &'static str,
    version: String,
}

impl CargoTool {
    pub(crate) fn new(package: &'static str, program: &'static str, version: impl Into<String>) -> Self {
        Self { package, program, version: version.into() }
    }

    fn cache_name(&self) -> String {
        format!("{}-{}", self.package, self.version)
    }

    pub(crate) fn path(&self) -> Result<PathBuf> {
        Ok(self.program_in(&cache::folder(&self.cache_name())?))
    }

    fn program_in(&self, folder: &Path) -> PathBuf {
        folder.join("bin").join(self.program)
    }
}

impl Requirement for CargoTool {
    fn name(&self) -> String {
        format!("{} {}", self.package, self.version)
    }

    fn missing(&self) -> Result<Option<Cost>> {
        if is_executable(&self.path()?) {
            return Ok(None);
        }
        Ok(Some(Cost::new("compiled from the crate registry", 20, 3)))
    }

    fn install(&self) -> Result<()> {
        let works = |folder: &Path| is_executable(&self.program_in(folder));
        cache::make(&self.cache_name(), works, |folder| {
            let build = folder.join("build");
            let mut command = run::command("cargo");
            command
                .args(["install", "--locked", "--no-track", "--root"])
                .arg(folder)
                .arg(format!("{}@{}", self.package, self.version))
                .env("CARGO_TARGET_DIR", &build)
                // A tool that runs for a second a build is not worth minutes of optimising.
                .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
                .env("CARGO_PROFILE_RELEASE_LTO", "off")
                .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
                .env("CARGO_PROFILE_RELEASE_STRIP", "symbols");
            Task::new(&format!("cargo install {}", self.package), command, Duration::from_secs(900)).run()?;
            fs::remove_dir_all(&build).or_else(|error| match error.kind() {
                std::io::ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            })?;
            Ok(())
        })?;
        Ok(())
    }
}
