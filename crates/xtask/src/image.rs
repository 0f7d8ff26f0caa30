//! `cargo xtask image`: the sandbox image, with the sandboxd that was built here.
//!
//! The Dockerfile names its stages so that BuildKit skips the one that would compile sandboxd again. A client with the
//! buildx plugin has BuildKit; so has one older than 23 when it is asked by environment. A newer client without the plugin
//! has not, and another one on the machine is looked for.

use crate::run::{self, Task};
use crate::setup::{self, NativeTarget, find_program};
use crate::{sandboxd, terminal, versions, workspace};
use anyhow::{Context, Result, bail};
use clap::Args;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Args)]
pub(crate) struct Options {
    /// Name of the image
    #[arg(long, default_value = "cloudflare-ops-sandbox:dev")]
    tag: String,
}

pub(crate) fn build(options: &Options) -> Result<()> {
    let docker = client()?;
    setup::ensure(&[&NativeTarget])?;
    terminal::step("Building sandboxd");
    let binary = sandboxd::build()?;
    // Where .dockerignore lets it into the build's context.
    let context = workspace::target().join("image");
    if !context.starts_with(workspace::root()) {
        bail!(
            "CARGO_TARGET_DIR lies outside the checkout, where `docker build` does not look: unset it for this command"
        );
    }
    fs::create_dir_all(&context)?;
    fs::copy(&binary, context.join("sandboxd")).context("cannot copy sandboxd beside the Dockerfile")?;
    terminal::step(&format!("Building the image {} (the first time about 1.5 GB and 5 min)", options.tag));
    let mut command = run::command(docker);
    command
        .args(["build", "--file", "Dockerfile.sandbox", "--build-arg", "SANDBOXD=prebuilt", "--tag", &options.tag, "."])
        .env("DOCKER_BUILDKIT", "1");
    Task::new("docker build", command, Duration::from_secs(1800)).run()
}

/// A Docker client that can use BuildKit, with an engine that answers.
pub(crate) fn client() -> Result<PathBuf> {
    let candidates = find_program("docker").into_iter().chain([PathBuf::from("/usr/bin/docker")]);
    let mut found = false;
    for docker in candidates.filter(|path| setup::is_executable(path)) {
        found = true;
        if !has_buildkit(&docker) {
            continue;
        }
        if run::ask(run::command(&docker).args(["version", "--format", "{{.Server.Version}}"])).is_none() {
            bail!(
                "Docker Engine does not answer: start it (`systemctl start docker`, or `dockerd`) and run this again"
            );
        }
        return Ok(docker);
    }
    if found {
        bail!(
            "this Docker client cannot use BuildKit: install its buildx plugin (https://docs.docker.com/build/buildx), or \
             Debian's docker.io beside it"
        );
    }
    bail!("Docker is not installed: install Docker Engine (https://docs.docker.com/engine/install) and run this again")
}

fn has_buildkit(docker: &Path) -> bool {
    let version = run::ask(run::command(docker).args(["version", "--format", "{{.Client.Version}}"]))
        // Without an engine the command fails although it knows its own version.
        .or_else(|| run::ask(run::command(docker).arg("--version")));
    version.as_deref().is_some_and(built_in) || run::ask(run::command(docker).args(["buildx", "version"])).is_some()
}

/// Whether a client of this version has BuildKit without a plugin.
fn built_in(version: &str) -> bool {
    let number = version.split(' ').find_map(versions::major_minor);
    number.is_some_and(|(major, _)| (18..23).contains(&major))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_clients_have_buildkit_and_new_ones_need_the_plugin() {
        assert!(built_in("20.10.24+dfsg1"));
        assert!(built_in("Docker version 20.10.24+dfsg1, build 297e128"));
        assert!(!built_in("Docker version 27.3.1, build ce12230"));
        assert!(!built_in(""));
    }
}
