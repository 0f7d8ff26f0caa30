//! What sandboxed code cannot do.

use serde_json::json;

use crate::support::{Host, TOKEN, daemons};

/// Everything that commands can find out about the daemon.
const SNOOP: &str = "cat /proc/*/environ /proc/*/cmdline /proc/*/mem /proc/*/maps 2>&1; env; ls -l /proc/1/fd /proc/1/cwd /proc/1/root 2>&1";

#[test]
fn the_token_cannot_be_found() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let exit = sandbox.exec(json!({"command": SNOOP, "outputLimitBytes": 8 << 20}));
    let found = exit["stdout"]["data"].as_str().unwrap_or_default();
    assert!(!found.contains("Bearer") && !found.contains(TOKEN));
    let denied = sandbox.shell(
        "for f in environ mem maps fd auxv; do cat /proc/1/$f >/dev/null && echo $f; ls /proc/1/$f/ 2>/dev/null; done",
    );
    assert_eq!(denied["stdout"]["data"], "", "{denied}");
    // The supervisor is a fork of the daemon and holds the same memory.
    let supervisor = sandbox.shell("for f in environ mem maps; do cat /proc/$PPID/$f >/dev/null && echo $f; done");
    assert_eq!(supervisor["stdout"]["data"], "", "{supervisor}");
    let traced = sandbox.shell(
        "python3 -c \"import ctypes; c = ctypes.CDLL(None, use_errno=True); print(c.ptrace(16, 1, 0, 0), ctypes.get_errno())\"",
    );
    assert_eq!(traced["stdout"]["data"], "-1 1\n", "{traced}");
}

#[test]
fn the_token_is_in_no_command_line_and_no_environment_on_the_machine() {
    let host = Host::start();
    host.sandbox("a");
    assert!(crate::support::processes_with(TOKEN).is_empty());
    for pid in daemons(&host).into_iter().chain([host.pid()]) {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&environment).contains(TOKEN));
    }
}

#[test]
fn the_machine_is_out_of_sight() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    assert_eq!(
        sandbox.output("ls /home /root /opt /srv /mnt /sys /boot 2>/dev/null; ls -A /run /tmp | grep -v :"),
        "\n"
    );
    assert_eq!(sandbox.output("cut -d: -f1 /etc/passwd"), "root\nsandbox\nnobody\n");
    // How many there are depends on the moment; whose they are does not.
    let names =
        sandbox.output("for each in /proc/[0-9]*; do read -r name < $each/comm && echo $name; done 2>/dev/null");
    assert!(names.lines().all(|name| ["sandboxd", "exec-supervisor", "bash", "sh"].contains(&name)), "{names}");
    assert_eq!(sandbox.output("cat /proc/sys/kernel/hostname"), "sandbox\n");
    let data = host.data.path().display().to_string();
    assert_eq!(sandbox.shell(&format!("ls {data}"))["exitCode"], 2);
}

#[test]
fn the_system_cannot_be_written_to() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    for path in ["/usr/x", "/etc/x", "/x", "/bin/x", "/lib/x", "/etc/passwd", "/var/x"] {
        assert_ne!(sandbox.shell(&format!("echo > {path}"))["exitCode"], 0, "{path}");
    }
    // Some of these belong to the sandbox's user, and namespaces of its own give a command privileges in them.
    for change in ["rm -f /etc/hosts", "chmod 666 /etc/passwd", "mv /etc/group /etc/passwd", "touch /etc/passwd"] {
        for with in ["", "mount -o remount,rw,bind /; mount -o remount,rw /; "] {
            let exit = sandbox.exec(json!({"argv": ["unshare", "-Urm", "sh", "-c", format!("{with}{change}")]}));
            assert_ne!(exit["exitCode"], 0, "{with}{change}");
            assert_ne!(sandbox.shell(change)["exitCode"], 0, "{change}");
        }
    }
    assert_eq!(sandbox.output("grep -c . /etc/passwd /etc/group"), "/etc/passwd:3\n/etc/group:3\n");
    for path in ["/workspace/x", "/tmp/x", "/run/x", "/var/tmp/x", "/dev/shm/x"] {
        assert_eq!(sandbox.shell(&format!("echo > {path}"))["exitCode"], 0, "{path}");
    }
}

#[test]
fn what_a_sandbox_has_of_the_machines_etc_is_the_machines() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    for name in ["protocols", "services", "ld.so.conf", "ld.so.cache", "mime.types"] {
        let machines = std::fs::read(format!("/etc/{name}")).ok();
        let read = sandbox.exec(json!({"argv": ["cat", format!("/etc/{name}")], "outputLimitBytes": 8 << 20}));
        assert_eq!(read["exitCode"] == 0, machines.is_some(), "{name}");
        assert_eq!(read["stdout"]["totalBytes"].as_u64(), Some(machines.map_or(0, |it| it.len() as u64)), "{name}");
    }
    assert_eq!(sandbox.output("stat -c %a /etc/passwd /etc/resolv.conf"), "644\n644\n");
}

#[test]
fn commands_have_no_privileges() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let status = sandbox.output("grep -E '^(Cap(Eff|Prm|Bnd|Amb)|NoNewPrivs)' /proc/self/status");
    for line in status.lines() {
        let value = line.split_whitespace().last();
        let expected = if line.starts_with("NoNewPrivs") { "1" } else { "0000000000000000" };
        assert_eq!(value, Some(expected), "{line}");
    }
    assert_eq!(sandbox.output("id -u; id -g; id -G"), "1000\n1000\n1000\n");
    assert_ne!(sandbox.shell("mount -t tmpfs x /tmp")["exitCode"], 0);
}

#[test]
fn sandboxes_share_nothing() {
    let host = Host::start();
    let (first, second) = (host.sandbox("a"), host.sandbox("b"));
    first.put("secret", b"of the first");
    first.output("echo secret > /tmp/secret; echo secret > /dev/shm/secret; ipcmk -M 100 >/dev/null");
    let mut events = first.stream(json!({"command": "sleep 9876", "env": {"S": "s3cr3t"}}));
    events.next();
    assert_eq!(second.get("secret").status, 404);
    assert_eq!(second.output("ls -A /tmp /dev/shm | grep secret; pgrep sleep; ipcs -m | grep -c 1000 || true"), "0\n");
    use std::os::unix::fs::MetadataExt;
    let owner = |name: &str| std::fs::metadata(host.workspace(name)).expect("the workspace").uid();
    if rustix::process::geteuid().is_root() {
        assert_ne!(owner("a"), owner("b"), "each sandbox has a user of its own");
        assert!(owner("a") >= 100_000 && owner("b") >= 100_000);
    }
    // Another sandbox's token is of no use: the host puts in the right one.
    assert_ne!(first.boot_id, second.boot_id);
}

#[test]
fn health_says_what_holds() {
    let host = Host::start();
    let health = host.sandbox("a").call("GET", "/v1/health", &[], b"").json();
    assert_eq!(health["status"], "ok");
    assert_eq!(health["apiVersion"], sandbox_api::API_VERSION);
    let expected =
        json!({"kind": "bubblewrap", "user": true, "processes": true, "mounts": true, "ipc": true, "network": "own"});
    assert_eq!(health["isolation"], expected);
    assert_eq!(host.call("GET", "/v1/health", b"").json()["isolation"], expected);
}

#[test]
fn a_command_cannot_take_the_daemons_limits_away() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    for limit in ["--nofile=4:4", "--as=1:1", "--fsize=1:1"] {
        let exit = sandbox.shell(&format!("prlimit --pid 1 {limit}"));
        assert_ne!(exit["exitCode"], 0, "{limit}: {exit}");
    }
    assert_eq!(sandbox.output("echo still here"), "still here\n");
    // Its own it may set, and anyone's it may read.
    assert_eq!(sandbox.output("ulimit -n 64; ulimit -n"), "64\n");
    assert_eq!(sandbox.shell("prlimit --pid 1 --nofile >/dev/null")["exitCode"], 0);
}
