//! The seam to the account: every step that leaves this machine is one wrangler command.
//!
//! A secret reaches wrangler on its standard input and in no other way: never as an argument, never in its environment, and
//! what wrangler says is masked before it is told.

use super::{SECRETS, stop};
use crate::run::{self, Task};
use anyhow::Result;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const QUESTION: Duration = Duration::from_secs(120);
/// With the image's build and its upload.
const DEPLOYMENT: Duration = Duration::from_secs(45 * 60);

pub(crate) struct Wrangler {
    program: PathBuf,
    path: OsString,
    environment: String,
    logs: PathBuf,
    masked: Vec<String>,
}

/// What wrangler answered.
pub(crate) struct Answer {
    pub(crate) ok: bool,
    pub(crate) stdout: String,
    /// Both streams, without secrets.
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn tail(&self) -> String {
        run::last_lines(&self.text, 12)
    }
}

impl Wrangler {
    pub(crate) fn new(program: &Path, path: OsString, environment: &str, logs: PathBuf) -> Self {
        Self { program: program.to_owned(), path, environment: environment.to_owned(), logs, masked: Vec::new() }
    }

    /// From here on `value` is shown nowhere.
    pub(crate) fn mask(&mut self, value: &str) {
        self.masked.push(value.to_owned());
    }

    fn command(&self) -> Command {
        let mut command = run::command(&self.program);
        command
            .env("PATH", &self.path)
            .env("WRANGLER_SEND_METRICS", "false")
            // Its own log file would otherwise hold what it sent.
            .env("WRANGLER_LOG_SANITIZE", "true")
            .env("NO_COLOR", "1");
        for secret in SECRETS {
            command.env_remove(secret.name);
        }
        command
    }

    /// A command that answers within moments.
    pub(crate) fn ask(&self, arguments: &[&str], input: &str) -> Result<Answer> {
        let mut command = self.command();
        command.args(arguments);
        let label = format!("wrangler {}", arguments.join(" "));
        let captured = Task::new(&label, command, QUESTION).capture(input.as_bytes())?;
        let mut text = format!("{}\n{}", captured.stdout, captured.stderr);
        for secret in &self.masked {
            text = text.replace(secret.as_str(), "[masked]");
        }
        Ok(Answer { ok: captured.status.success(), stdout: captured.stdout, text })
    }

    /// The same of the environment that is deployed.
    pub(crate) fn ask_environment(&self, arguments: &[&str], input: &str) -> Result<Answer> {
        self.ask(&[arguments, &["--env", &self.environment]].concat(), input)
    }

    /// `wrangler deploy`, which says in `report` what it made.
    pub(crate) fn deploy(&self, more: &[OsString], docker: Option<&Path>, report: &Path) -> Result<()> {
        let mut command = self.command();
        command.args(["deploy", "--env", &self.environment]).args(more).env("WRANGLER_OUTPUT_FILE_PATH", report);
        if let Some(docker) = docker {
            command.env("WRANGLER_DOCKER_BIN", docker);
        }
        let label = format!("wrangler deploy, {}", self.environment);
        Task::new(&label, command, DEPLOYMENT).logged_in(&self.logs).run()
    }
}

/// Fails with what wrangler said and what to do.
pub(crate) fn refused(what: &str, answer: &Answer, next: &str) -> anyhow::Error {
    stop(&format!("{what}\n{}", answer.tail()), next)
}
