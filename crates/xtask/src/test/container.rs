//! The tier of real containers: Docker Engine, the sandbox image, and the Worker in workerd between them.
//!
//! Everything is built here. Images are pulled where that works; where it does not, the base is made with debootstrap, and the
//! networking sidecar is a stand-in in any case (`tests/sidecar`). What the tests make is found by its name and removed; the base
//! stays, since it takes minutes.

use super::{Tier, run_tests, stack_tests};
use crate::docker::{self, Client, Engine};
use crate::run::{self, Task};
use crate::setup::{self, Debootstrap};
use crate::test::report::Report;
use crate::{cache, image, sandboxd, terminal, workspace};
use anyhow::{Context, Result, bail};
use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

/// The base that Dockerfiles name.
const BASE: &str = "debian:bookworm-slim";

/// The one that is made where that cannot be pulled.
const MADE_BASE: &str = "cloudflare-ops-base:bookworm";

/// Before the names of the images that tests use.
const IMAGES: &str = "cloudflare-ops-test";

/// Stages of the Dockerfile of the tests, each an image.
const STAGES: [&str; 6] = ["sidecar", "sidecar-full", "silent", "hanging", "crashing", "other"];

/// Until a registry has answered.
const PULL_LIMIT: Duration = Duration::from_secs(90);

/// Why the tier is left out on this machine, unless it was asked for by name.
pub(super) fn absence() -> Option<String> {
    let ready = matches!(Client::find(), Client::Able(client) if docker::answers(&client));
    // Root can install it and start it, and continuous integration must.
    if ready || rustix::process::geteuid().is_root() || terminal::continuous_integration() {
        return None;
    }
    Some("no Docker Engine answers here; start one, or say `--only container` to be told what is missing".to_owned())
}

pub(super) fn run(images: &Images, filter: Option<&str>, report: &mut Report) -> Result<()> {
    let mut command = stack_tests(Tier::Container)?;
    command
        .env("CLOUDFLARE_OPS_DOCKER", images.engine.client())
        .env("CLOUDFLARE_OPS_TEST_IMAGES", IMAGES)
        .env("CLOUDFLARE_OPS_TEST_NAME", &images.name);
    run_tests(Tier::Container, command, filter, report)
}

/// The images of the tests in an engine that runs. What the tests leave is removed with this value, whatever became of them.
pub(super) struct Images {
    // Ends after the images, and before another run begins.
    engine: Engine,
    /// The name of this run, which is in that of each container.
    name: String,
    _alone: File,
}

impl Images {
    pub(super) fn make() -> Result<Self> {
        // Another run would find its images removed, and its engine ended, when this one ends.
        let alone = cache::lock(&workspace::cache()?.join("container-tests.lock"))?;
        let name = format!("ops-test-{}", std::process::id());
        let images = Self { engine: Engine::ensure()?, name, _alone: alone };
        let engine = &images.engine;
        let base = base(engine)?;
        image::build_with(engine, &format!("{IMAGES}/sandbox"), &[("BASE", base)])?;
        image::put_into_context(&sandboxd::build_static("container-sidecar")?, "sidecar")?;
        for stage in STAGES {
            engine.build("tests/container/Dockerfile", Some(stage), &format!("{IMAGES}/{stage}"), &[("BASE", base)])?;
        }
        Ok(images)
    }
}

/// The base image, pulled or made.
fn base(engine: &Engine) -> Result<&'static str> {
    for name in [BASE, MADE_BASE] {
        if engine.has_image(name) {
            return Ok(name);
        }
    }
    terminal::step("Getting the base image (30 MB)");
    let pulled = Task::new("docker pull", engine.command(&["pull", "--quiet", BASE]), PULL_LIMIT).run();
    if pulled.is_ok() {
        return Ok(BASE);
    }
    if !rustix::process::geteuid().is_root() {
        return pulled.map(|()| BASE).context("only root can make the base image where it cannot be pulled");
    }
    terminal::note("it could not be pulled: it is made with debootstrap (100 MB, up to 3 min)");
    setup::ensure(&[&Debootstrap])?;
    let folder = workspace::target().join("base-image");
    let made = make_base(engine, &folder);
    fs::remove_dir_all(&folder).or_else(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    })?;
    made.map(|()| MADE_BASE)
}

fn make_base(engine: &Engine, folder: &Path) -> Result<()> {
    let _ = fs::remove_dir_all(folder);
    let mut command = run::command("debootstrap");
    command.args(["--variant=minbase", "--include=ca-certificates", "bookworm"]).arg(folder);
    Task::new("debootstrap", command, Duration::from_secs(600)).run()?;
    let mut tar = run::command("tar")
        .arg("-C")
        .arg(folder)
        .args(["-c", "."])
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start tar")?;
    let mut import = engine.command(&["import", "-", MADE_BASE]);
    import.stdin(tar.stdout.take().context("standard output is piped")?).stdout(Stdio::null());
    let imported = import.status().context("cannot start docker import")?;
    let packed = tar.wait()?;
    if !imported.success() || !packed.success() {
        bail!("the base image could not be imported (tar: {packed}, docker import: {imported})");
    }
    Ok(())
}

impl Drop for Images {
    fn drop(&mut self) {
        let filter = format!("name={}", self.name);
        let found = run::ask(&mut self.engine.command(&["ps", "--all", "--quiet", "--filter", &filter]));
        let containers: Vec<&str> = found.as_deref().unwrap_or_default().lines().collect();
        if !containers.is_empty() {
            terminal::note(&format!("removing {} containers that the tests left", containers.len()));
            let _ = run::ask(self.engine.command(&["rm", "--force", "--volumes"]).args(containers));
        }
        let images: Vec<String> = STAGES.iter().chain(&["sandbox"]).map(|stage| format!("{IMAGES}/{stage}")).collect();
        // The layers stay in the builder's cache.
        let _ = run::ask(self.engine.command(&["rmi", "--force"]).args(images));
    }
}
