//! Debian packages, where apt-get is the package manager.
//!
//! As root it simply runs; otherwise it needs sudo, which is used after a yes at the terminal, or without a question (and
//! without a password) where CI says so. Elsewhere the person gets the command to run.

use super::find_program;
use crate::run::{self, Task};
use crate::terminal;
use anyhow::{Result, bail};
use std::process::Command;
use std::time::Duration;

pub(crate) fn available() -> bool {
    find_program("apt-get").is_some()
}

/// The installed version of a package.
pub(crate) fn installed(package: &str) -> Option<String> {
    let mut query = run::command("dpkg-query");
    let answer = run::ask(query.args(["-W", "-f", "${db:Status-Status} ${Version}", package]))?;
    answer.strip_prefix("installed ").map(str::to_owned)
}

pub(crate) fn install(packages: &[&str]) -> Result<()> {
    let list = packages.join(" ");
    let root = rustix::process::geteuid().is_root();
    if !root && !terminal::continuous_integration() {
        let question = format!("    `sudo apt-get install {list}` is needed. Run it now?");
        if !terminal::interactive() || !terminal::agree(&question) {
            bail!("run `sudo apt-get install {list}` and then this command again");
        }
    }
    // The password question needs the terminal, so it is asked by itself; what follows runs in the background of it.
    if !root && terminal::interactive() && !Command::new("sudo").arg("--validate").status()?.success() {
        bail!("sudo refused: run `apt-get install {list}` as root and then this command again");
    }
    let with_rights = |program: &str| {
        let mut command = run::command(if root { program } else { "sudo" });
        if !root {
            command.args(["--non-interactive", "DEBIAN_FRONTEND=noninteractive", program]);
        }
        command.env("DEBIAN_FRONTEND", "noninteractive");
        command
    };
    let apt = |arguments: &[&str]| {
        let mut command = with_rights("apt-get");
        command.args(["-o", "DPkg::Lock::Timeout=120"]).args(arguments);
        command
    };
    // What an interrupted installation left half done stops every later one.
    if run::ask(run::command("dpkg").arg("--audit")).is_some_and(|report| !report.is_empty()) {
        let mut command = with_rights("dpkg");
        command.args(["--configure", "--pending"]);
        // A package that is not even unpacked fails here and is mended by the installation that follows.
        let _ = Task::new("dpkg --configure --pending", command, Duration::from_secs(600)).run();
    }
    Task::new("apt-get update", apt(&["update"]), Duration::from_secs(180)).run()?;
    let mut arguments = vec!["install", "--yes", "--no-install-recommends"];
    arguments.extend(packages);
    Task::new(&format!("apt-get install {list}"), apt(&arguments), Duration::from_secs(600)).run()
}
