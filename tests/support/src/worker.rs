//! The built Worker in a workerd of its own.

use std::{path::PathBuf, process::Command};

use crate::{
    guardian::GuardedChild,
    host::announced,
    locate::{node, project_root},
    process,
    queue::QueueKind,
};

/// Variables and storage of one Worker. An absent variable is absent in the Worker too.
#[derive(Clone, Debug)]
pub struct WorkerSettings {
    /// `WORKER_API_KEY_SECRET`.
    pub key: Option<String>,
    /// `SIGNING_SECRET`.
    pub signing: Option<String>,
    /// `SANDBOX_HOST_URL`.
    pub host_url: Option<String>,
    /// `SANDBOX_HOST_TOKEN`.
    pub host_token: Option<String>,
    /// `SWEEP_SECONDS`.
    pub sweep_seconds: Option<u32>,
    /// Whether `WEBHOOK_PRIVATE_ADDRESSES` is `allow`.
    pub private_webhooks: bool,
    /// `EXPORT_SECONDS`.
    pub export_seconds: Option<u32>,
    /// `RUNNING_JOBS`.
    pub running_jobs: Option<u32>,
    /// How the queue of jobs behaves.
    pub queue: QueueKind,
    /// Whether an R2 bucket is bound.
    pub bucket: bool,
    /// `BUSY_JOBS`.
    pub busy_jobs: Option<u32>,
    /// `JOB_ALARM_SECONDS`.
    pub job_alarm_seconds: Option<u32>,
    /// What its sandboxes run in, when that is containers.
    pub containers: Option<ContainerSettings>,
    /// Folder of the Durable Objects' storage.
    pub storage: PathBuf,
}

/// How workerd starts the containers of the sandboxes.
#[derive(Clone, Debug)]
pub struct ContainerSettings {
    /// Image of the sandboxes.
    pub image: String,
    /// Image of what stands in for the networking sidecar.
    pub sidecar: String,
    /// Socket of Docker Engine, as `unix:///…`.
    pub socket: String,
    /// Part of the names of the containers.
    pub name: String,
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

    /// `SIGNING_SECRET`.
    pub fn signing(&self) -> Option<&str> {
        self.settings.signing.as_deref()
    }

    /// The same with another `SIGNING_SECRET`, or without one.
    pub fn restart_signing(&mut self, signing: Option<String>) {
        self.settings.signing = signing;
        self.restart();
    }

    /// Folder of the Durable Objects' storage.
    pub fn storage(&self) -> &std::path::Path {
        &self.settings.storage
    }

    /// Everything it has logged so far, and what its launcher said.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.settings.storage.with_extension("log")).unwrap_or_default()
    }

    /// How many sandboxes' objects have an alarm set.
    ///
    /// # Panics
    /// When workerd keeps alarms in another way than it did.
    pub fn sandbox_alarms(&self) -> usize {
        let books = sandbox_books(self.storage()).expect("workerd keeps the alarms of the sandboxes' objects");
        let mut command = Command::new(node());
        command.arg("--experimental-sqlite").arg(project_root().join("tests/support/count-alarms.mjs")).arg(books);
        let output = command.output().expect("node starts");
        let told = String::from_utf8_lossy(&output.stdout);
        told.trim().parse().unwrap_or_else(|_| panic!("{told}{}", String::from_utf8_lossy(&output.stderr)))
    }

    /// Process id of workerd.
    pub fn workerd_pid(&self) -> i32 {
        self.workerd().expect("workerd runs below its launcher")
    }

    /// Whether the launcher has started another workerd in place of this one.
    pub fn is_back(&self, killed: i32) -> bool {
        self.workerd().is_some_and(|pid| pid != killed)
    }

    fn workerd(&self) -> Option<i32> {
        let children = process::descendants(self.child.pid());
        children.into_iter().find(|pid| process::name(*pid).is_some_and(|name| name == "workerd"))
    }
}

/// Where workerd notes the alarms of the sandboxes' objects.
fn sandbox_books(storage: &std::path::Path) -> Option<PathBuf> {
    let mut folders = vec![storage.to_owned()];
    while let Some(folder) = folders.pop() {
        let books = folder.join("metadata.sqlite");
        if folder.to_string_lossy().ends_with("SandboxActor") && books.is_file() {
            return Some(books);
        }
        let entries = std::fs::read_dir(folder).ok()?.flatten();
        folders.extend(entries.map(|entry| entry.path()).filter(|path| path.is_dir()));
    }
    None
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
    let private_webhooks = settings.private_webhooks.then(|| "allow".to_owned());
    let export_seconds = settings.export_seconds.map(|seconds| seconds.to_string());
    let running_jobs = settings.running_jobs.map(|jobs| jobs.to_string());
    let queue = settings.queue.word();
    let busy_jobs = settings.busy_jobs.map(|most| most.to_string());
    let job_alarm_seconds = settings.job_alarm_seconds.map(|seconds| seconds.to_string());
    let no_bucket = (!settings.bucket).then(|| "1".to_owned());
    let variables = [
        ("WORKER_API_KEY_SECRET", &settings.key),
        ("SIGNING_SECRET", &settings.signing),
        ("SANDBOX_HOST_URL", &settings.host_url),
        ("SANDBOX_HOST_TOKEN", &settings.host_token),
        ("SWEEP_SECONDS", &sweep_seconds),
        ("WEBHOOK_PRIVATE_ADDRESSES", &private_webhooks),
        ("EXPORT_SECONDS", &export_seconds),
        ("RUNNING_JOBS", &running_jobs),
        ("TEST_QUEUE", &queue),
        ("BUSY_JOBS", &busy_jobs),
        ("JOB_ALARM_SECONDS", &job_alarm_seconds),
        ("TEST_NO_BUCKET", &no_bucket),
    ];
    for (name, value) in variables {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    if let Some(containers) = &settings.containers {
        command
            .env("TEST_CONTAINER_IMAGE", &containers.image)
            .env("TEST_SIDECAR_IMAGE", &containers.sidecar)
            .env("TEST_DOCKER_SOCKET", &containers.socket)
            .env("TEST_NAME", &containers.name);
    }
    let mut child = GuardedChild::spawn(&mut command);
    let url = announced(&mut child, "ready ", &log);
    (child, url.trim_end_matches('/').to_owned())
}
