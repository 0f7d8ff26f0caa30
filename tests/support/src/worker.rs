//! The built Worker in a workerd of its own.

use std::{path::PathBuf, process::Command};

use crate::{
    guardian::GuardedChild,
    host::announced,
    locate::{node, project_root},
    process,
};

/// Variables and storage of one Worker. An absent variable is absent in the Worker too.
#[derive(Clone, Debug)]
pub struct WorkerSettings {
    /// `WORKER_API_KEY_SECRET`.
    pub key: Option<String>,
    /// `SANDBOX_HOST_URL`.
    pub host_url: Option<String>,
    /// `SANDBOX_HOST_TOKEN`.
    pub host_token: Option<String>,
    /// `SWEEP_SECONDS`.
    pub sweep_seconds: Option<u32>,
    /// Folder of the Durable Objects' storage.
    pub storage: PathBuf,
}

/// A Worker that listens.
pub struct Worker {
    child: GuardedChild,
    settings: WorkerSettings,
    url: String,
}

impl Worker {
    /// Starts it and waits until it listens.
    pub fn start(settings: WorkerSettings) -> Self {
        let (child, url) = launch(&settings, 0);
        Self { child, settings, url }
    }

    /// Where it listens, without a slash at the end.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// SIGKILL to workerd and to the process that started it.
    pub fn kill(&mut self) {
        self.child.kill();
    }

    /// Starts it again on the same port and storage.
    pub fn restart(&mut self) {
        self.kill();
        let port = self.url.rsplit(':').next().and_then(|port| port.parse().ok()).unwrap_or(0);
        let (child, url) = launch(&self.settings, port);
        self.child = child;
        self.url = url;
    }

    /// Folder of the Durable Objects' storage.
    pub fn storage(&self) -> &std::path::Path {
        &self.settings.storage
    }

    /// Everything it has logged so far, and what its launcher said.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.settings.storage.with_extension("log")).unwrap_or_default()
    }

    /// Process id of workerd.
    pub fn workerd_pid(&self) -> i32 {
        let children = process::descendants(self.child.pid());
        let workerd = children.into_iter().find(|pid| process::name(*pid).is_some_and(|name| name == "workerd"));
        workerd.expect("workerd runs below its launcher")
    }
}

fn launch(settings: &WorkerSettings, port: u16) -> (GuardedChild, String) {
    std::fs::create_dir_all(&settings.storage).expect("the stack's folder is writable");
    let log = settings.storage.with_extension("log");
    let mut command = Command::new(node());
    command
        .arg(project_root().join("tests/support/launch-worker.mjs"))
        .current_dir(project_root())
        .env("TEST_PORT", port.to_string())
        .env("TEST_STORAGE", &settings.storage)
        .env("WRANGLER_SEND_METRICS", "false")
        .env("CLOUDFLARE_LOAD_DEV_VARS_FROM_DOT_ENV", "false")
        .stderr(std::fs::OpenOptions::new().create(true).append(true).open(&log).expect("the log file opens"));
    let sweep_seconds = settings.sweep_seconds.map(|seconds| seconds.to_string());
    let variables = [
        ("WORKER_API_KEY_SECRET", &settings.key),
        ("SANDBOX_HOST_URL", &settings.host_url),
        ("SANDBOX_HOST_TOKEN", &settings.host_token),
        ("SWEEP_SECONDS", &sweep_seconds),
    ];
    for (name, value) in variables {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let mut child = GuardedChild::spawn(&mut command);
    let url = announced(&mut child, "ready ", &log);
    (child, url.trim_end_matches('/').to_owned())
}
