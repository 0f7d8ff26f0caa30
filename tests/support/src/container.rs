//! The Worker with sandboxes in real containers: workerd asks Docker Engine, as it does for `wrangler dev`.
//!
//! Containers of a stack have its name in theirs, so that they are found, counted, killed and removed by it. The images are made
//! before by `cargo xtask test --only container`, which says by environment how they are named.

use std::{
    path::Path,
    process::Command,
    sync::{LazyLock, Mutex, MutexGuard},
};

use serde_json::{Value, json};

use crate::{
    client::Client,
    guardian::{guard_containers, process_folder},
    process::{is_alive, kill_process},
    queue::QueueKind,
    stack::{Sandbox, random_name},
    wait::{PATIENCE, eventually},
    worker::{ContainerSettings, Worker, WorkerSettings},
};

/// What a stack with containers has.
#[derive(Clone, Copy, Debug)]
pub struct ContainerOptions {
    /// Image of its sandboxes, of those that the tier makes.
    pub image: &'static str,
    /// Image of what stands in for the networking sidecar.
    pub sidecar: &'static str,
}

impl Default for ContainerOptions {
    fn default() -> Self {
        Self { image: "sandbox", sidecar: "sidecar" }
    }
}

/// A Worker whose sandboxes are containers.
pub struct ContainerStack {
    /// The key that the Worker takes.
    pub key: String,
    name: String,
    worker: Mutex<Worker>,
    base: String,
}

static SHARED: LazyLock<ContainerStack> = LazyLock::new(|| ContainerStack::start(ContainerOptions::default()));

impl ContainerStack {
    /// The stack that tests share which leave it as they found it.
    pub fn shared() -> &'static Self {
        &SHARED
    }

    /// Starts a stack of the caller's own.
    pub fn start(options: ContainerOptions) -> Self {
        let prefix = std::env::var("CLOUDFLARE_OPS_TEST_NAME").unwrap_or_else(|_| "ops-test-by-hand".to_owned());
        let name = random_name(&prefix);
        let key = random_name("test-key");
        guard_containers(docker_client(), &name);
        let worker = Worker::start(WorkerSettings {
            key: Some(key.clone()),
            signing: Some(random_name("signing")),
            host_url: None,
            host_token: None,
            sweep_seconds: None,
            private_webhooks: false,
            export_seconds: None,
            running_jobs: None,
            queue: QueueKind::Real,
            bucket: true,
            busy_jobs: None,
            job_alarm_seconds: None,
            containers: Some(ContainerSettings {
                image: image(options.image),
                sidecar: image(options.sidecar),
                socket: std::env::var("DOCKER_HOST").unwrap_or_else(|_| "unix:///var/run/docker.sock".to_owned()),
                name: name.clone(),
            }),
            storage: process_folder().join(&name).join("storage"),
        });
        let base = worker.url().to_owned();
        Self { key, name, worker: Mutex::new(worker), base }
    }

    /// A client with the right key.
    pub fn client(&self) -> Client {
        Client::new(&self.base, Some(&self.key))
    }

    /// The Worker's process.
    pub fn worker(&self) -> MutexGuard<'_, Worker> {
        self.worker.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// A sandbox of the caller's own, destroyed when the value is dropped.
    pub async fn sandbox(&self) -> Sandbox {
        self.sandbox_with(json!({})).await
    }

    /// A sandbox made with more arguments than an id.
    pub async fn sandbox_with(&self, arguments: Value) -> Sandbox {
        let sandbox = self.unmade_sandbox();
        sandbox.make(arguments).await;
        sandbox
    }

    /// A name that no sandbox has yet; destroyed like the others in case the test makes it.
    pub fn unmade_sandbox(&self) -> Sandbox {
        Sandbox::new(&random_name("s"), self.client(), None)
    }

    /// Has the container of a sandbox fail as `tests/support/doubles.mjs` says: `METHOD NUMBER MILLISECONDS TEXT`, or nothing to end that.
    ///
    /// # Panics
    /// When the Worker does not answer.
    pub async fn fail(&self, sandbox: &Sandbox, how: &str) {
        let failing = format!("{} {how}", sandbox.id);
        let client = self.client();
        let request = client.request(reqwest::Method::GET, "/health").header("x-test-container", failing.trim());
        assert_eq!(client.send(request).await.status, 200);
    }

    /// SIGKILL to workerd; another one takes its port and its storage. Back once that answers.
    ///
    /// # Panics
    /// When none does.
    pub async fn kill_workerd(&self) {
        let killed = self.worker().workerd_pid();
        kill_process(killed);
        let back = || async { (!is_alive(killed) && self.worker().is_back(killed)).then_some(()) };
        eventually("another workerd runs", PATIENCE, back).await;
        let answers = || async {
            let client = self.client();
            let answer = client.try_send(client.request(reqwest::Method::GET, "/health")).await;
            answer.filter(|answer| answer.status == 200).map(drop)
        };
        eventually("it answers", PATIENCE, answers).await;
    }

    /// Ids of the containers of its sandboxes, the sidecars left out, whether they run or not.
    pub fn containers(&self) -> Vec<String> {
        self.listed(&["--all"])
    }

    /// Ids of those that run.
    pub fn running(&self) -> Vec<String> {
        self.listed(&[])
    }

    fn listed(&self, which: &[&str]) -> Vec<String> {
        let filter = format!("name={}-", self.name);
        let list = ["ps", "--no-trunc", "--filter", &filter, "--format", "{{.ID}} {{.Names}}"];
        let listed = docker(&[&list, which].concat());
        let own = listed.lines().filter(|line| !line.ends_with("-proxy"));
        own.filter_map(|line| Some(line.split_once(' ')?.0.to_owned())).collect()
    }

    /// The container that runs a sandbox.
    pub fn container_of(&self, sandbox: &Sandbox) -> Option<String> {
        let variable = format!("SANDBOX_ID={}", sandbox.id);
        self.containers().into_iter().find(|id| {
            // It may be gone by now.
            let told = try_docker(&["inspect", "--format", "{{json .Config.Env}}", id]);
            told.is_some_and(|env| env.contains(&format!("\"{variable}\"")))
        })
    }
}

impl Drop for ContainerStack {
    fn drop(&mut self) {
        self.worker().kill();
        let filter = format!("name={}-", self.name);
        let left = try_docker(&["ps", "--all", "--quiet", "--filter", &filter]).unwrap_or_default();
        let left: Vec<&str> = left.lines().collect();
        if !left.is_empty() {
            try_docker(&[&["rm", "--force", "--volumes"], &*left].concat());
        }
    }
}

/// A name that can be given to one image of the tier after the other, while a stack starts its sandboxes by that name.
pub struct NamedImage {
    /// The name as [`ContainerOptions::image`] takes it.
    pub name: &'static str,
}

impl NamedImage {
    /// A new name for an image of the tier.
    pub fn new(of: &str) -> Self {
        let named = Self { name: random_name("named").leak() };
        named.name(of);
        named
    }

    /// Gives the name to another one.
    pub fn name(&self, of: &str) {
        docker(&["tag", &image(of), &image(self.name)]);
    }
}

impl Drop for NamedImage {
    fn drop(&mut self) {
        try_docker(&["rmi", &image(self.name)]);
    }
}

fn docker_client() -> &'static Path {
    static CLIENT: LazyLock<std::path::PathBuf> =
        LazyLock::new(|| std::env::var_os("CLOUDFLARE_OPS_DOCKER").map_or_else(|| "docker".into(), Into::into));
    &CLIENT
}

/// Name of an image that the tier makes.
fn image(name: &str) -> String {
    let prefix = std::env::var("CLOUDFLARE_OPS_TEST_IMAGES").unwrap_or_else(|_| "cloudflare-ops-test".to_owned());
    format!("{prefix}/{name}")
}

/// What Docker's client says to these arguments.
///
/// # Panics
/// When it fails.
pub fn docker(arguments: &[&str]) -> String {
    try_docker(arguments).unwrap_or_else(|| panic!("docker {arguments:?} failed"))
}

/// What Docker's client says to these arguments; `None` when it fails.
///
/// # Panics
/// When there is no such client.
pub fn try_docker(arguments: &[&str]) -> Option<String> {
    let output = Command::new(docker_client()).args(arguments).output().expect("Docker's client starts");
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
