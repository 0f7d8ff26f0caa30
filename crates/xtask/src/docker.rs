//! Docker: a client that can build images, and an engine that answers.
//!
//! BuildKit is needed, since Dockerfiles here name stages that only some builds want. A client with the buildx plugin has it; so has
//! one older than 23 when it is asked by environment. A newer client without the plugin has not, and another one on the machine is
//! looked for.

use crate::run::{self, Task};
use crate::setup::{self, find_program};
use crate::{terminal, versions, workspace};
use anyhow::{Context, Result, bail};
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Until an engine that was started here answers.
const ENGINE_PATIENCE: Duration = Duration::from_secs(60);

/// The bridge's own network. Without it an older engine leaves out the gateway, and workerd cannot start containers.
const BRIDGE: &str = "172.17.0.1/16";

/// What is found of Docker's client.
pub(crate) enum Client {
    /// One that can build with BuildKit.
    Able(PathBuf),
    /// Only ones that cannot.
    WithoutBuildKit,
    Missing,
}

impl Client {
    pub(crate) fn find() -> Self {
        let candidates = find_program("docker").into_iter().chain([PathBuf::from("/usr/bin/docker")]);
        let mut found = Self::Missing;
        for docker in candidates.filter(|path| setup::is_executable(path)) {
            if has_buildkit(&docker) {
                return Self::Able(docker);
            }
            found = Self::WithoutBuildKit;
        }
        found
    }

    pub(crate) fn path(self) -> Result<PathBuf> {
        match self {
            Self::Able(path) => Ok(path),
            Self::WithoutBuildKit => bail!(
                "this Docker client cannot use BuildKit: install its buildx plugin (https://docs.docker.com/build/buildx), or \
                 Debian's docker.io beside it"
            ),
            Self::Missing => bail!(
                "Docker is not installed: install Docker Engine (https://docs.docker.com/engine/install) and run this again"
            ),
        }
    }
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

/// Whether an engine answers this client.
pub(crate) fn answers(docker: &Path) -> bool {
    run::ask(run::command(docker).args(["version", "--format", "{{.Server.Version}}"])).is_some()
}

/// A client that can build, with an engine that answers.
pub(crate) fn ready() -> Result<PathBuf> {
    let docker = Client::find().path()?;
    if !answers(&docker) {
        bail!("Docker Engine does not answer: start it (`systemctl start docker`, or `dockerd`) and run this again");
    }
    Ok(docker)
}

/// The program of the engine, where root may start it and it finds the program it makes its network with.
pub(crate) fn startable() -> Option<PathBuf> {
    let program = system_program("dockerd")?;
    (rustix::process::geteuid().is_root() && system_program("iptables").is_some()).then_some(program)
}

/// A program of the system, whose folder may be missing in `PATH`.
fn system_program(name: &str) -> Option<PathBuf> {
    let usual = ["/usr/sbin", "/sbin"].map(|folder| Path::new(folder).join(name));
    find_program(name).or_else(|| usual.into_iter().find(|path| setup::is_executable(path)))
}

/// An engine that answers. One that was started here ends with this value.
pub(crate) struct Engine {
    docker: PathBuf,
    started: Option<Child>,
}

impl Engine {
    /// The engine that runs, or a new one where root may start it.
    pub(crate) fn ensure() -> Result<Self> {
        let docker = Client::find().path()?;
        if answers(&docker) {
            return Ok(Self { docker, started: None });
        }
        let Some(program) = startable() else {
            bail!("Docker Engine does not answer: start it (`systemctl start docker`) and run this again");
        };
        terminal::note("starting Docker Engine; it ends with this command");
        fs::create_dir_all(workspace::logs()).context("cannot create the folder for logs")?;
        let log = workspace::logs().join("dockerd.log");
        let file = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let child = Command::new(&program)
            .args(["--bip", BRIDGE])
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let mut engine = Self { docker, started: Some(child) };
        let deadline = Instant::now() + ENGINE_PATIENCE;
        while !answers(&engine.docker) {
            let ended = engine.started.as_mut().and_then(|child| child.try_wait().transpose()).transpose()?;
            if ended.is_some() || Instant::now() > deadline {
                bail!("Docker Engine could not be started\n{}\n  whole log: {}", run::tail(&log, 15), log.display());
            }
            run::pause(Duration::from_millis(200))?;
        }
        Ok(engine)
    }

    pub(crate) fn client(&self) -> &Path {
        &self.docker
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = run::command(&self.docker);
        command.args(arguments).env("DOCKER_BUILDKIT", "1");
        command
    }

    pub(crate) fn has_image(&self, name: &str) -> bool {
        run::ask(&mut self.command(&["image", "inspect", "--format", "{{.Id}}", name])).is_some()
    }

    /// Builds one stage of a Dockerfile.
    pub(crate) fn build(
        &self,
        dockerfile: &str,
        target: Option<&str>,
        tag: &str,
        arguments: &[(&str, &str)],
    ) -> Result<()> {
        let mut command = self.command(&["build", "--file", dockerfile, "--tag", tag]);
        if let Some(target) = target {
            command.args(["--target", target]);
        }
        for (name, value) in arguments {
            command.args(["--build-arg", &format!("{name}={value}")]);
        }
        command.arg(".");
        Task::new(&format!("docker build {tag}"), command, Duration::from_secs(1800)).run()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Some(child) = &mut self.started {
            run::end_group(child);
        }
    }
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
