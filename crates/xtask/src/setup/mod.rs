//! Installing what a command needs and the machine lacks.
//!
//! A [`Requirement`] knows whether it is there, what getting it costs, and how to get it: the ordinary way first, then
//! its fallbacks, each bounded in time. [`ensure`] says what will be done before it does anything. Nothing is written to
//! the system's own folders except by its package manager; everything else goes to the cache.

mod apt;
mod bubblewrap;
mod bundler;
mod debian_std;
mod docker;
mod native_target;
mod node;
mod node_modules;
mod python;
mod rustup;
mod slirp4netns;
mod wasm_target;

pub(crate) use bubblewrap::Bubblewrap;
pub(crate) use bundler::Bundler;
pub(crate) use debian_std::clippy_driver;
pub(crate) use docker::{Debootstrap, Docker};
pub(crate) use native_target::{NativeTarget, StaticTarget};
pub(crate) use node::Node;
pub(crate) use node_modules::NodeModules;
pub(crate) use python::Python;
pub(crate) use slirp4netns::Slirp4netns;
pub(crate) use wasm_target::{WasmCompiler, WasmTarget};

use crate::terminal;
use anyhow::{Context, Result};
use std::env;
use std::path::PathBuf;

pub(crate) trait Requirement {
    fn name(&self) -> String;
    /// What getting it takes, or nothing when it is there. Quick: it is asked at every start.
    fn missing(&self) -> Result<Option<Cost>>;
    fn install(&self) -> Result<()>;
}

/// What the person is told before something is installed.
pub(crate) struct Cost {
    pub(crate) how: String,
    pub(crate) megabytes: u32,
    pub(crate) minutes: u32,
}

impl Cost {
    pub(crate) fn new(how: impl Into<String>, megabytes: u32, minutes: u32) -> Self {
        Self { how: how.into(), megabytes, minutes }
    }
}

/// Tells what is missing with size and time, then installs it in the given order.
pub(crate) fn ensure(requirements: &[&dyn Requirement]) -> Result<()> {
    let mut missing = Vec::new();
    for requirement in requirements {
        if let Some(cost) = requirement.missing()? {
            missing.push((requirement, cost));
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    // Nothing is installed that nobody was told of.
    terminal::aloud(|| install(&missing))
}

fn install(missing: &[(&&dyn Requirement, Cost)]) -> Result<()> {
    let (megabytes, minutes) =
        missing.iter().fold((0, 0), |(size, time), (_, cost)| (size + cost.megabytes, time + cost.minutes));
    terminal::step(&format!(
        "Installing {} things first: about {megabytes} MB, up to {minutes} min on 2 cores",
        missing.len()
    ));
    for (number, (requirement, cost)) in missing.iter().enumerate() {
        let line = format!("{}. {}: {}", number + 1, requirement.name(), cost.how);
        terminal::note(&format!("{line} ({} MB, up to {} min)", cost.megabytes, cost.minutes));
    }
    for (requirement, _) in missing {
        terminal::step(&format!("Installing {}", requirement.name()));
        requirement.install().with_context(|| format!("{} could not be installed", requirement.name()))?;
    }
    Ok(())
}

/// The full path of a program on the PATH.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join(name)).find(|candidate| is_executable(candidate))
}

pub(crate) fn is_executable(path: &std::path::Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}
