//! A host, its sandboxes, and what is said to them.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Token of every host in these tests.
pub(crate) const TOKEN: &str = "token-of-the-host-in-tests";

/// Takes memory and touches it, in steps.
pub(crate) const HOG: &str =
    "import time\nkept = []\nwhile True:\n    kept.append(b'x' * (8 << 20))\n    time.sleep(0.005)\n";

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(90);

/// A running `sandboxd host`, ended when dropped.
pub(crate) struct Host {
    process: Child,
    pub(crate) address: SocketAddr,
    pub(crate) data: TempDir,
}

impl Host {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    pub(crate) fn start_with(arguments: &[&str]) -> Self {
        Self::start_in(scratch(), arguments)
    }

    /// A host that may write no file larger than that.
    pub(crate) fn start_with_file_limit(bytes: u64) -> Self {
        let mut command = Command::new("prlimit");
        command.arg(format!("--fsize={bytes}")).arg(env!("CARGO_BIN_EXE_sandboxd"));
        Self::spawn(command, scratch(), &[])
    }

    /// A host that finds no programs but those in that directory.
    pub(crate) fn start_with_programs(programs: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sandboxd"));
        command.env("PATH", programs);
        Self::spawn(command, scratch(), &[])
    }

    /// A host on a machine whose tunnel device is open to all, as that user. Only root can arrange this.
    pub(crate) fn start_with_open_device(uid: u32) -> Self {
        let data = scratch();
        std::os::unix::fs::chown(data.path(), Some(uid), Some(uid)).expect("root changes owners");
        let script = "mount -t tmpfs none /dev/net && mknod -m 0666 /dev/net/tun c 10 200 && \
                      exec setpriv --reuid=\"$1\" --regid=\"$1\" --clear-groups -- \"$2\" \"${@:3}\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "bash", "-c", script, "bash", &uid.to_string(), env!("CARGO_BIN_EXE_sandboxd")]);
        Self::spawn(command, data, &[])
    }

    /// A host that begins in that control group.
    pub(crate) fn start_in_group(group: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new("sh");
        command
            .args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\""])
            .arg(group)
            .arg(env!("CARGO_BIN_EXE_sandboxd"));
        Self::spawn(command, scratch(), arguments)
    }

    pub(crate) fn start_in(data: TempDir, arguments: &[&str]) -> Self {
        Self::spawn(Command::new(env!("CARGO_BIN_EXE_sandboxd")), data, arguments)
    }

    fn spawn(mut command: Command, data: TempDir, arguments: &[&str]) -> Self {
        let bubblewrap = Command::new("bwrap").arg("--version").stdout(Stdio::null()).status();
        assert!(bubblewrap.is_ok_and(|status| status.success()), "these tests need bubblewrap: install bubblewrap");
        let mut process = command
            .args(["host", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(data.path())
            .args(arguments)
            .env("SANDBOX_HOST_TOKEN", TOKEN)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the host starts");
        let mut line = String::new();
        BufReader::new(process.stdout.take().expect("a pipe")).read_line(&mut line).expect("the host says something");
        let address = line.trim().strip_prefix("listening on http://").expect("the line").parse().expect("an address");
        Self { process, address, data }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn call(&self, method: &str, path: &str, body: &[u8]) -> Reply {
        call(self.address, method, path, &[("authorization", &format!("Bearer {TOKEN}"))], body)
    }

    /// Starts a sandbox of that name.
    pub(crate) fn sandbox(&self, name: &str) -> Sandbox {
        self.sandbox_with(name, json!({"sandboxId": name}))
    }

    pub(crate) fn sandbox_with(&self, name: &str, request: Value) -> Sandbox {
        let mut boot_id = String::new();
        // Again where the machine is too busy for the time that the host gives to one start.
        eventually("a start in time", || {
            let reply = self.call("PUT", &format!("/v1/sandboxes/{name}"), request.to_string().as_bytes());
            if reply.status == 503 && reply.text().contains("did not answer within") {
                return false;
            }
            assert_eq!(reply.status, 200, "{}", reply.text());
            boot_id = reply.json()["bootId"].as_str().expect("a boot id").to_owned();
            true
        });
        Sandbox { address: self.address, prefix: format!("/v1/sandboxes/{name}/control"), boot_id }
    }

    pub(crate) fn delete(&self, name: &str) -> Reply {
        self.call("DELETE", &format!("/v1/sandboxes/{name}"), b"")
    }

    pub(crate) fn workspace(&self, name: &str) -> PathBuf {
        self.data.path().join(name).join("workspace")
    }

    /// Ends the host in good order and gives its directory back.
    pub(crate) fn end(mut self) -> TempDir {
        signal(self.pid(), "TERM");
        let status = self.process.wait().expect("the host ends");
        assert!(status.success(), "{status}");
        std::mem::replace(&mut self.data, scratch())
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().expect("the host can be killed");
        self.process.wait().expect("the host ends");
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if self.process.try_wait().is_ok_and(|status| status.is_none()) {
            signal(self.pid(), "TERM");
            let _ = self.process.wait();
        }
    }
}

/// A directory whose path is open to the users of sandboxes.
pub(crate) fn scratch() -> TempDir {
    tempfile::Builder::new()
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .tempdir()
        .expect("a scratch directory")
}

/// One sandbox, through its host.
#[derive(Clone)]
pub(crate) struct Sandbox {
    pub(crate) address: SocketAddr,
    pub(crate) prefix: String,
    pub(crate) boot_id: String,
}

impl Sandbox {
    pub(crate) fn call(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        let authorization = format!("Bearer {TOKEN}");
        let mut all = vec![("authorization", authorization.as_str())];
        all.extend_from_slice(headers);
        call(self.address, method, &format!("{}{path}", self.prefix), &all, body)
    }

    /// Runs to the end and answers how it ended. An id and a timeout are filled in where they are missing.
    pub(crate) fn exec(&self, request: Value) -> Value {
        let reply = self.try_exec(request);
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.json()
    }

    pub(crate) fn try_exec(&self, request: Value) -> Reply {
        self.call("POST", "/v1/execs", &[], complete(request).to_string().as_bytes())
    }

    pub(crate) fn shell(&self, command: &str) -> Value {
        self.exec(json!({"command": command}))
    }

    /// Standard output of a command that must succeed.
    pub(crate) fn output(&self, command: &str) -> String {
        let exit = self.shell(command);
        assert_eq!(exit["exitCode"], 0, "{exit}");
        exit["stdout"]["data"].as_str().expect("text").to_owned()
    }

    pub(crate) fn stream(&self, request: Value) -> Events {
        self.events("POST", "/v1/execs", complete(request).to_string().as_bytes())
    }

    pub(crate) fn attach(&self, id: &str, query: &str) -> Events {
        self.events("GET", &format!("/v1/execs/{id}{query}"), b"")
    }

    /// A stream about one background process.
    pub(crate) fn follow(&self, id: &str, path: &str) -> Events {
        self.events("GET", &format!("/v1/processes/{id}{path}"), b"")
    }

    pub(crate) fn events(&self, method: &str, path: &str, body: &[u8]) -> Events {
        self.try_events(method, path, body).unwrap_or_else(|status| panic!("{method} {path}: {status}"))
    }

    /// A stream, or the status of its refusal.
    pub(crate) fn try_events(&self, method: &str, path: &str, body: &[u8]) -> Result<Events, u16> {
        let url = format!("http://{}{}{path}", self.address, self.prefix);
        let request = ureq::http::Request::builder()
            .method(method)
            .uri(url)
            .header("authorization", format!("Bearer {TOKEN}"))
            .header("accept", "text/event-stream")
            .body(body.to_vec())
            .expect("a request");
        let response = agent().run(request).expect("an answer");
        match response.status().as_u16() {
            200 => {
                Ok(Events { lines: BufReader::new(response.into_body().into_with_config().limit(u64::MAX).reader()) })
            }
            status => Err(status),
        }
    }

    pub(crate) fn put(&self, path: &str, content: &[u8]) -> Reply {
        self.call("PUT", &format!("/v1/files/{path}"), &[], content)
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        self.call("GET", &format!("/v1/files/{path}"), &[], b"")
    }
}

fn complete(mut request: Value) -> Value {
    if request.get("id").is_none() {
        request["id"] = unique().into();
    }
    if request.get("timeoutMs").is_none() {
        request["timeoutMs"] = 90_000.into();
    }
    request
}

/// A name that nothing else in this run has.
pub(crate) fn unique() -> String {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    format!("x{}", NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
}

/// Digits that no other test on this machine has, always as many: for a process to be found by. As seconds to sleep
/// they are longer than any test.
pub(crate) fn mark() -> String {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    format!("{:07}{:04}", std::process::id(), NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
}

/// Events of a stream, as they come.
pub(crate) struct Events {
    lines: BufReader<ureq::BodyReader<'static>>,
}

impl Events {
    /// The next event that is no heartbeat; `None` when the stream is over.
    pub(crate) fn next(&mut self) -> Option<(String, Value)> {
        loop {
            let (name, data) = self.next_of_any_kind()?;
            if name != "heartbeat" {
                return Some((name, data));
            }
        }
    }

    pub(crate) fn next_of_any_kind(&mut self) -> Option<(String, Value)> {
        let (mut name, mut data) = (None, None);
        loop {
            let mut line = String::new();
            if self.lines.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let line = line.trim_end_matches('\n');
            if let Some(value) = line.strip_prefix("event: ") {
                name = Some(value.to_owned());
            } else if let Some(value) = line.strip_prefix("data: ") {
                data = Some(serde_json::from_str(value).expect("JSON"));
            } else if line.is_empty() {
                return Some((name?, data?));
            }
        }
    }

    /// Reads to the end: bytes of stdout, bytes of stderr, and the exit. Offsets are checked on the way.
    pub(crate) fn finish(mut self) -> (Vec<u8>, Vec<u8>, Value) {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        while let Some((name, data)) = self.next() {
            match name.as_str() {
                "exit" => {
                    assert!(self.next().is_none(), "exit is the last event");
                    return (stdout, stderr, data);
                }
                "stdout" => append(&mut stdout, &data),
                "stderr" => append(&mut stderr, &data),
                "started" => {}
                other => panic!("unknown event {other}"),
            }
        }
        panic!("the stream ended without an exit");
    }
}

fn append(bytes: &mut Vec<u8>, chunk: &Value) {
    assert_eq!(chunk["offset"], bytes.len(), "offsets follow each other");
    bytes.extend(decode(chunk));
}

/// The bytes of `{data, encoding}`.
pub(crate) fn decode(value: &Value) -> Vec<u8> {
    serde_json::from_value::<sandbox_api::EncodedBytes>(json!({"data": value["data"], "encoding": value["encoding"]}))
        .expect("encoded bytes")
        .decode()
        .expect("good base64")
}

/// An answer, read to its end.
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: ureq::http::HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("not JSON: {}", self.text()))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// Asserts a refusal, and that its message names the field.
    pub(crate) fn refused(&self, status: u16, code: &str, field: &str) {
        assert_eq!((self.status, self.json()["code"].as_str()), (status, Some(code)), "{}", self.text());
        assert!(self.json()["message"].as_str().is_some_and(|it| it.contains(field)), "{field}: {}", self.text());
    }
}

fn agent() -> ureq::Agent {
    ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(Duration::from_secs(400)))
        .build()
        .into()
}

pub(crate) fn call(address: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
    let mut request = ureq::http::Request::builder().method(method).uri(format!("http://{address}{path}"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = if body.is_empty() && method != "PUT" && method != "POST" {
        agent().run(request.body(()).expect("a request"))
    } else {
        agent().run(request.body(body.to_vec()).expect("a request"))
    };
    let response = response.unwrap_or_else(|error| panic!("{method} {path}: {error}"));
    let (parts, body) = response.into_parts();
    let mut bytes = Vec::new();
    body.into_with_config().limit(u64::MAX).reader().read_to_end(&mut bytes).expect("the whole body");
    Reply { status: parts.status.as_u16(), headers: parts.headers, body: bytes }
}

/// Waits for a condition, with a bound.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "never seen: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) fn signal(pid: u32, name: &str) {
    let status = Command::new("kill").args([format!("-{name}"), pid.to_string()]).status().expect("kill runs");
    assert!(status.success(), "kill -{name} {pid}");
}

/// Command lines of all processes on the machine that hold `marker`, this test's own left out.
pub(crate) fn processes_with(marker: &str) -> Vec<u32> {
    let own = std::process::id();
    std::fs::read_dir("/proc")
        .expect("/proc")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| *pid != own)
        .filter(|pid| {
            std::fs::read(Path::new("/proc").join(pid.to_string()).join("cmdline"))
                .is_ok_and(|line| String::from_utf8_lossy(&line).contains(marker))
        })
        .collect()
}

/// Processes on the machine that sleep for so many seconds, see [`mark`].
pub(crate) fn sleepers(seconds: &str) -> Vec<u32> {
    processes_with(&format!("sleep\u{0}{seconds}"))
}

/// Resident bytes of a process.
pub(crate) fn resident_bytes(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process lives");
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().expect("a number") * 1024
}

/// The daemons of a host's sandboxes: the children of its bubblewrap processes.
pub(crate) fn daemons(host: &Host) -> Vec<u32> {
    children(host.pid()).into_iter().flat_map(children).collect()
}

pub(crate) fn children(pid: u32) -> Vec<u32> {
    std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))
        .unwrap_or_default()
        .split_whitespace()
        .filter_map(|pid| pid.parse().ok())
        .collect()
}
