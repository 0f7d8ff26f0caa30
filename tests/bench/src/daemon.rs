//! sandboxd by itself, without a host and without isolation: its size, its start, its memory, and what it adds to a command.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, chown};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;
use test_support::{GuardedChild, random_name, resident_bytes, sandboxd, scratch_folder};

use crate::Effort;
use crate::report::{Report, Samples};

const MIB: f64 = 1024.0 * 1024.0;
/// Whom commands run as when the daemon is root, as sandboxd itself decides.
const UNPRIVILEGED: u32 = 1000;
/// Pause between two looks whether the daemon listens, far below what is measured.
const LOOK: Duration = Duration::from_micros(50);
/// What commands of sandboxd have.
const ENVIRONMENT: [(&str, &str); 4] = [
    ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
    ("HOME", "/tmp"),
    ("LANG", "C.UTF-8"),
    ("TERM", "dumb"),
];
const READY_LIMIT: Duration = Duration::from_secs(30);

/// A daemon on a port of its own, and a connection to it.
struct Daemon {
    child: GuardedChild,
    connection: TcpStream,
    token: String,
    ready_after: Duration,
}

impl Daemon {
    /// Starts it as an image does: its token in the environment, from where it moves it.
    fn start() -> Self {
        let token = random_name("token");
        let root = scratch_folder("root");
        if root.metadata().expect("the folder is there").uid() == 0 {
            chown(&root, Some(UNPRIVILEGED), Some(UNPRIVILEGED)).expect("root gives files away");
        }
        let address = free_address();
        let mut command = Command::new(sandboxd());
        command.arg("serve").args(["--listen", &address.to_string()]).arg("--root").arg(&root);
        command.env("SANDBOXD_TOKEN", &token).stderr(Stdio::null());
        let started = Instant::now();
        let child = GuardedChild::spawn(&mut command);
        let connection = loop {
            match TcpStream::connect(address) {
                Ok(connection) => break connection,
                Err(_) if started.elapsed() < READY_LIMIT => std::thread::sleep(LOOK),
                Err(error) => panic!("sandboxd does not listen: {error}"),
            }
        };
        connection.set_nodelay(true).expect("the connection is open");
        let mut daemon = Self { child, connection, token, ready_after: Duration::ZERO };
        daemon.request("GET", "/v1/health", b"");
        daemon.ready_after = started.elapsed();
        daemon
    }

    /// A request, its answer read whole. A small client of its own: what a large one does would be measured with it.
    fn request(&mut self, method: &str, path: &str, body: &[u8]) {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: d\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            self.token,
            body.len()
        );
        self.connection.write_all(&[head.as_bytes(), body].concat()).expect("sandboxd reads");
        let mut answer = Vec::new();
        let mut buffer = [0; 16 << 10];
        loop {
            let count = self.connection.read(&mut buffer).expect("sandboxd answers");
            assert!(count > 0, "sandboxd closed the connection");
            answer.extend_from_slice(&buffer[..count]);
            let Some(end) = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n") else { continue };
            let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
            let length: usize = length.and_then(|length| length.trim().parse().ok()).expect("a declared length");
            if answer.len() >= end + 4 + length {
                assert!(head.starts_with("http/1.1 20"), "{}", String::from_utf8_lossy(&answer));
                return;
            }
        }
    }

    fn exec(&mut self, mut what: serde_json::Value) -> Duration {
        what["id"] = json!(random_name("bench"));
        what["timeoutMs"] = json!(30_000);
        let body = what.to_string();
        let started = Instant::now();
        self.request("POST", "/v1/execs", body.as_bytes());
        started.elapsed()
    }

    fn resident_mib(&self) -> f64 {
        resident_bytes(self.child.pid()).expect("sandboxd runs") as f64 / MIB
    }
}

/// A port that is free now, and a moment later too as far as nobody asks for just this one.
fn free_address() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
    listener.local_addr().expect("it is bound")
}

/// The same without sandboxd: output taken over pipes, and the environment that sandboxd gives commands. With another one
/// bash would do less: it reads a locale.
fn bare(program: &str, arguments: &[&str]) -> Duration {
    let mut command = Command::new(program);
    command.args(arguments).env_clear().envs(ENVIRONMENT).current_dir(std::env::temp_dir()).stdin(Stdio::null());
    let started = Instant::now();
    let output = command.output().expect("the program is there");
    let took = started.elapsed();
    assert!(output.status.success());
    took
}

pub(crate) fn measure(effort: Effort, report: &mut Report) {
    let size = sandboxd().metadata().expect("sandboxd is built").len();
    report.value("sandboxd, the binary", size as f64 / 1e6, "MB", Some(5.0));
    starts(effort, report);
    commands(effort, report);
    memory(effort, report);
}

fn starts(effort: Effort, report: &mut Report) {
    let mut ready = Samples::default();
    for round in 0..effort.starts + 1 {
        let mut daemon = Daemon::start();
        // The first one reads the program from the disk.
        if round > 0 {
            ready.push(daemon.ready_after);
        }
        daemon.child.kill();
    }
    report.time("sandboxd, from its start to its first answer", &ready, Some(5.0));
}

fn commands(effort: Effort, report: &mut Report) {
    let mut daemon = Daemon::start();
    let mut samples: [Samples; 4] = Default::default();
    for round in 0..effort.warm_up + effort.rounds {
        let took = [
            bare("/bin/true", &[]),
            daemon.exec(json!({"argv": ["/bin/true"]})),
            bare("/bin/bash", &["-c", "--", "true"]),
            daemon.exec(json!({"command": "true"})),
        ];
        if round >= effort.warm_up {
            samples.iter_mut().zip(took).for_each(|(samples, took)| samples.push(took));
        }
    }
    let [spawn, argv, bash, shell] = samples;
    let ratio = |mine: f64, bare: f64| mine / bare;
    report.time("`/bin/true`, a bare spawn", &spawn, None);
    report.time("`/bin/true`, exec at sandboxd", &argv, None);
    report.spread("that exec against the bare spawn", &argv.against(&spawn, ratio), "times", Some(1.25));
    report.time("`bash -c true`, a bare spawn", &bash, None);
    report.time("`bash -c true`, exec at sandboxd", &shell, None);
    report.spread("that exec against bare bash", &shell.against(&bash, ratio), "times", Some(1.15));
}

fn memory(effort: Effort, report: &mut Report) {
    let mut daemon = Daemon::start();
    report.value("sandboxd, memory when idle", daemon.resident_mib(), "MiB", Some(4.0));
    for _ in 0..effort.execs {
        daemon.exec(json!({"command": "true"}));
    }
    daemon.request("PUT", "/v1/files/large.bin", &vec![b'x'; effort.file_bytes]);
    let megabytes = effort.file_bytes / 1_000_000;
    let what = format!("sandboxd, memory after {} execs and a file of {megabytes} MB", effort.execs);
    report.value(&what, daemon.resident_mib(), "MiB", Some(8.0));
}
