//! `sandboxd serve` by itself, as in a container.

use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command, Stdio};

use serde_json::json;
use tempfile::TempDir;

use crate::support::{Reply, call, eventually, mark, scratch, signal, sleepers};

/// Every token begins so.
const TOKEN: &str = "token-of-one-sandbox";

struct Daemon {
    process: Child,
    address: SocketAddr,
    root: TempDir,
    token: String,
}

impl Daemon {
    fn start(arguments: &[&str]) -> Self {
        for _ in 0..10 {
            let mut daemon = Self::begin(arguments);
            let mut ended = false;
            eventually("the daemon", || {
                ended = daemon.process.try_wait().expect("a child").is_some();
                ended || daemon.answers()
            });
            if !ended {
                return daemon;
            }
        }
        panic!("it does not start");
    }

    /// On a port that was free a moment ago; the daemon has no way to tell which one it took. It ends where somebody
    /// else has the port by now, who does not know its token.
    fn begin(arguments: &[&str]) -> Self {
        let (root, token) = (scratch(), format!("{TOKEN}-{}", mark()));
        let address = std::net::TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a free port");
        let process = Command::new(env!("CARGO_BIN_EXE_sandboxd"))
            .args(["serve", "--listen", &address.to_string(), "--root"])
            .arg(root.path())
            .args(arguments)
            .env("SANDBOXD_TOKEN", &token)
            .env("SANDBOX_ENV_JSON", r#"{"GIVEN":"s3cr3t-given"}"#)
            .env("SANDBOX_ID", "the-id")
            .stdin(Stdio::null())
            .spawn()
            .expect("it starts");
        Self { process, address, root, token }
    }

    fn answers(&self) -> bool {
        std::net::TcpStream::connect(self.address).is_ok() && self.call("GET", "/v1/health", b"").status == 200
    }

    fn call(&self, method: &str, path: &str, body: &[u8]) -> Reply {
        call(self.address, method, path, &[("authorization", &format!("Bearer {}", self.token))], body)
    }

    fn output(&self, command: &str) -> String {
        let request = json!({"id": crate::support::unique(), "command": command, "timeoutMs": 90_000});
        self.call("POST", "/v1/execs", request.to_string().as_bytes()).json()["stdout"]["data"]
            .as_str()
            .expect("text")
            .to_owned()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn secrets_leave_the_environment() {
    let daemon = Daemon::start(&[]);
    let environment = std::fs::read(format!("/proc/{}/environ", daemon.process.id())).unwrap_or_default();
    let command_line = std::fs::read(format!("/proc/{}/cmdline", daemon.process.id())).expect("the command line");
    for text in [environment, command_line] {
        let text = String::from_utf8_lossy(&text).into_owned();
        assert!(!text.contains(TOKEN) && !text.contains("s3cr3t-given"), "{text}");
    }
    assert_eq!(daemon.output("echo $GIVEN $SANDBOX_ID; env | grep -c TOKEN"), "s3cr3t-given the-id\n0\n");
}

#[test]
fn as_root_it_runs_commands_as_another_user() {
    let daemon = Daemon::start(&[]);
    if !rustix::process::geteuid().is_root() {
        assert_eq!(daemon.output("id -u").trim(), rustix::process::geteuid().as_raw().to_string());
        return;
    }
    assert_eq!(
        daemon.output("id -u; id -g; id -G; grep NoNewPrivs /proc/self/status"),
        "1000\n1000\n1000\nNoNewPrivs:\t1\n"
    );
    daemon.call("PUT", "/v1/files/new/dir/f", b"x");
    for path in ["new", "new/dir", "new/dir/f"] {
        assert_eq!(std::fs::metadata(daemon.root.path().join(path)).expect(path).uid(), 1000, "{path}");
    }
    assert_eq!(
        daemon.output("echo more >> new/dir/f; kill -9 $PPID 2>/dev/null || cat new/dir/f; cat /proc/$PPID/environ"),
        "xmore\n"
    );
}

#[test]
fn another_user_can_be_chosen() {
    if rustix::process::geteuid().is_root() {
        let daemon = Daemon::start(&["--user", "4321:8765"]);
        assert_eq!(daemon.output("id -u; id -g"), "4321\n8765\n");
    }
}

#[test]
fn a_term_ends_it_and_its_commands_quickly_and_well() {
    let mut daemon = Daemon::start(&[]);
    let seconds = mark();
    daemon.output(&format!("setsid sleep {seconds} >/dev/null 2>&1 & setsid sleep {seconds} >/dev/null 2>&1 &"));
    let started = std::time::Instant::now();
    signal(daemon.process.id(), "TERM");
    let status = daemon.process.wait().expect("it ends");
    assert!(status.success(), "{status}");
    assert!(started.elapsed() < std::time::Duration::from_secs(30), "{:?}", started.elapsed());
    assert!(sleepers(&seconds).is_empty());
}

#[test]
fn without_a_token_or_with_a_bad_one_it_does_not_start() {
    let root = scratch();
    for token in [None, Some("short")] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sandboxd"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--root"]).arg(root.path()).stdin(Stdio::null());
        command.env_remove("SANDBOXD_TOKEN");
        if let Some(token) = token {
            command.env("SANDBOXD_TOKEN", token);
        }
        let output = command.output().expect("it runs");
        assert_eq!(output.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&output.stderr).contains("token"));
    }
}

#[test]
fn work_on_files_has_the_rights_of_whom_commands_run_as() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let daemon = Daemon::start(&[]);
    let root = daemon.root.path();
    // Things of root in the workspace, as a mount or an image may bring them.
    std::fs::create_dir_all(root.join("roots/closed")).expect("directories");
    std::fs::write(root.join("roots/closed/f"), "secret").expect("a file");
    std::fs::set_permissions(root.join("roots/closed"), std::os::unix::fs::PermissionsExt::from_mode(0o700))
        .expect("the mode");
    for (method, path, body) in [
        ("GET", "/v1/files/roots/closed/f", ""),
        ("GET", "/v1/directories/roots/closed", ""),
        ("GET", "/v1/entries/roots/closed/f", ""),
        ("GET", "/v1/archives/roots", ""),
        ("PUT", "/v1/files/roots/new", "x"),
        ("PUT", "/v1/directories/roots/new", ""),
        ("PUT", "/v1/archives/roots/new", "x"),
        ("DELETE", "/v1/entries/roots/closed?recursive=true", ""),
        ("POST", "/v1/moves", r#"{"from":"roots/closed","to":"mine"}"#),
        ("GET", "/v1/watches/roots/closed", ""),
    ] {
        daemon.call(method, path, body.as_bytes()).refused(403, "permission_denied", ":");
    }
    let search = br#"{"content":"secret","limit":10,"timeoutMs":20000}"#;
    let found = daemon.call("POST", "/v1/searches", search).json();
    assert_eq!((found["matches"].as_array().map(Vec::len), found["unread"].as_u64()), (Some(0), Some(1)));
    // What it makes is the user's, made in whatever way.
    daemon.call("PUT", "/v1/directories/d/e?recursive=true", b"");
    daemon.call("POST", "/v1/moves", br#"{"from":"d/e","to":"d/new/e"}"#);
    let pieces = [("authorization", format!("Bearer {}", daemon.token)), ("content-range", "bytes 0-0/1".to_owned())];
    let pieces: Vec<(&str, &str)> = pieces.iter().map(|(name, value)| (*name, value.as_str())).collect();
    assert_eq!(call(daemon.address, "PUT", "/v1/files/p/f", &pieces, b"x").status, 201);
    let archive = daemon.call("GET", "/v1/archives/d?format=tar.gz", b"").body;
    assert_eq!(daemon.call("PUT", "/v1/archives/u", &archive).status, 200);
    for path in ["d", "d/new", "d/new/e", "p", "p/f", "u", "u/new/e"] {
        let metadata = std::fs::symlink_metadata(root.join(path)).expect(path);
        assert_eq!((metadata.uid(), metadata.gid()), (1000, 1000), "{path}");
    }
}
