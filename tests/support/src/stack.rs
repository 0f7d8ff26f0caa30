//! Whole stacks: one that all tests share, and special ones for the tests that break theirs.

use std::{
    io::Read,
    path::PathBuf,
    sync::{LazyLock, Mutex, MutexGuard},
};

use serde_json::{Value, json};

use crate::{
    RUNTIME,
    client::{Answer, Client},
    fault::Operation,
    guardian::process_folder,
    host::Host,
    proxy::{FaultProxy, Seen},
    queue::QueueKind,
    sse::{EventStream, Transcript},
    worker::Worker,
    worker::WorkerSettings,
};

/// What a stack has and lacks.
#[derive(Clone, Copy, Debug)]
pub struct StackOptions {
    /// Whether `WORKER_API_KEY_SECRET` is set.
    pub key: bool,
    /// Whether `SIGNING_SECRET` is set.
    pub signing: bool,
    /// Whether `SANDBOX_HOST_URL` and its token are set.
    pub host: bool,
    /// Whether the fault proxy stands between the Worker and the host.
    pub proxy: bool,
    /// Seconds between two sweeps of a tenant, where they are not the default.
    pub sweep_seconds: Option<u32>,
    /// Whether webhooks may go to private addresses.
    pub private_webhooks: bool,
    /// Seconds between two exports of the audit, where they are not the default.
    pub export_seconds: Option<u32>,
    /// Jobs of a tenant that run at once, where they are not the default.
    pub running_jobs: Option<u32>,
    /// How the queue of jobs behaves.
    pub queue: QueueKind,
    /// Whether an R2 bucket is bound.
    pub bucket: bool,
    /// How many jobs may be queued or running, where that is not the default.
    pub busy_jobs: Option<u32>,
    /// Seconds for which one alarm looks after the command of a job, where they are not the default.
    pub job_alarm_seconds: Option<u32>,
}

impl Default for StackOptions {
    fn default() -> Self {
        Self {
            key: true,
            signing: true,
            host: true,
            proxy: true,
            sweep_seconds: None,
            private_webhooks: false,
            export_seconds: None,
            running_jobs: None,
            queue: QueueKind::Real,
            bucket: true,
            busy_jobs: None,
            job_alarm_seconds: None,
        }
    }
}

/// A Worker, a host, and what lies between.
pub struct Stack {
    /// The key that the Worker takes.
    pub key: String,
    /// The fault proxy.
    pub proxy: FaultProxy,
    worker: Mutex<Worker>,
    host: Mutex<Host>,
    base: String,
}

static SHARED: LazyLock<Stack> = LazyLock::new(|| Stack::start(StackOptions::default()));

impl Stack {
    /// The stack that tests share which leave it as they found it.
    pub fn shared() -> &'static Self {
        &SHARED
    }

    /// Starts a stack of the caller's own.
    pub fn start(options: StackOptions) -> Self {
        let folder = process_folder().join(random_name("stack"));
        let (key, token) = (random_name("test-key"), random_name("host-token"));
        let host = Host::start(&folder.join("host"), &token);
        let proxy = FaultProxy::start(host.port());
        let host_url = if options.proxy { proxy.url() } else { host.url() };
        let worker = Worker::start(WorkerSettings {
            key: options.key.then(|| key.clone()),
            signing: options.signing.then(|| random_name("signing")),
            host_url: options.host.then_some(host_url),
            host_token: options.host.then_some(token),
            sweep_seconds: options.sweep_seconds,
            private_webhooks: options.private_webhooks,
            export_seconds: options.export_seconds,
            running_jobs: options.running_jobs,
            queue: options.queue,
            bucket: options.bucket,
            busy_jobs: options.busy_jobs,
            job_alarm_seconds: options.job_alarm_seconds,
            containers: None,
            storage: folder.join("storage"),
        });
        let base = worker.url().to_owned();
        Self { key, proxy, worker: Mutex::new(worker), host: Mutex::new(host), base }
    }

    /// A client with the right key.
    pub fn client(&self) -> Client {
        Client::new(&self.base, Some(&self.key))
    }

    /// The Worker's process.
    pub fn worker(&self) -> MutexGuard<'_, Worker> {
        self.worker.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The host's process.
    pub fn host(&self) -> MutexGuard<'_, Host> {
        self.host.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
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
        self.adopt(&random_name("s"))
    }

    /// Takes charge of a sandbox that a call made by itself.
    pub fn adopt(&self, id: &str) -> Sandbox {
        Sandbox::new(id, self.client(), Some(self.proxy.clone()))
    }
}

/// A sandbox that belongs to one test.
pub struct Sandbox {
    /// Its id.
    pub id: String,
    /// A client with the right key.
    pub client: Client,
    proxy: Option<FaultProxy>,
}

impl Sandbox {
    pub(crate) fn new(id: &str, client: Client, proxy: Option<FaultProxy>) -> Self {
        Self { id: id.to_owned(), client, proxy }
    }

    /// Makes it with these arguments and its id.
    ///
    /// # Panics
    /// When it is refused.
    pub async fn make(&self, mut arguments: Value) {
        arguments["id"] = json!(self.id);
        self.client.started("createSandbox", &arguments).await;
    }

    fn seen(&self) -> Vec<Seen> {
        self.proxy.as_ref().expect("a fault proxy stands before its host").seen(&self.id)
    }

    /// `exec` with further arguments, buffered, whose output is asked for.
    pub async fn exec(&self, mut arguments: Value) -> Value {
        arguments["sandboxId"] = json!(self.id);
        self.client.call("exec", &arguments).await.ok()
    }

    /// `exec` with further arguments, streamed to its end.
    pub async fn exec_streamed(&self, arguments: Value) -> Transcript {
        self.open_stream(arguments).await.transcript().await
    }

    /// `exec` with further arguments, as a stream that the caller reads.
    pub async fn open_stream(&self, mut arguments: Value) -> EventStream {
        arguments["sandboxId"] = json!(self.id);
        self.client.stream("exec", &arguments).await
    }

    /// The answer of any tool that takes a `sandboxId`.
    pub async fn call(&self, tool: &str, mut arguments: Value) -> Answer {
        arguments["sandboxId"] = json!(self.id);
        self.client.call(tool, &arguments).await
    }

    /// Standard output of a shell command that exits with 0.
    pub async fn sh(&self, command: &str) -> String {
        let output = self.exec(json!({"command": command})).await;
        assert_eq!(output["exitCode"], 0, "{command}: {output}");
        output["stdout"].as_str().expect("stdout is text").to_owned()
    }

    /// Path of the raw file route.
    pub fn file_path(&self, path: &str) -> String {
        format!("/v1/sandboxes/{}/files/{path}", self.id)
    }

    /// How often the host really started a machine for it.
    pub fn starts(&self) -> usize {
        self.seen().iter().filter(|seen| seen.started).count()
    }

    /// Requests of one kind that the Worker made for it.
    pub fn requests(&self, operation: Operation) -> usize {
        self.seen().iter().filter(|seen| seen.is(operation)).count()
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        if let Some(proxy) = &self.proxy {
            proxy.heal(&self.id);
        }
        let client = self.client.clone();
        let path = format!("/v1/sandboxes/{}", self.id);
        // Not on the test's own runtime, which ends with the test. A stack that is gone has no sandboxes to end.
        RUNTIME.spawn(async move {
            let fresh = Client::new(client.base(), client.key());
            let _ = fresh.request(reqwest::Method::DELETE, &path).send().await;
        });
    }
}

/// `prefix` and 64 random bits, in the alphabet of sandbox ids.
pub fn random_name(prefix: &str) -> String {
    let mut bytes = [0; 8];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .expect("/dev/urandom is there");
    format!("{prefix}-{:016x}", u64::from_ne_bytes(bytes))
}

/// A folder for one test's own files, under the folder that ends with this process.
pub fn scratch_folder(name: &str) -> PathBuf {
    let folder = process_folder().join(random_name(name));
    std::fs::create_dir_all(&folder).expect("the temporary folder is writable");
    folder
}
