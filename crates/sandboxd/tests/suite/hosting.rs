//! The life of sandboxes on a host.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use serde_json::json;

use crate::support::{Host, TOKEN, daemons, eventually, mark, scratch, signal, sleepers};

#[test]
fn a_start_is_idempotent_and_tells_the_boot() {
    let host = Host::start();
    let first = host.call("PUT", "/v1/sandboxes/t.a-1", br#"{"sandboxId":"a"}"#).json();
    let second = host.call("PUT", "/v1/sandboxes/t.a-1", br#"{"sandboxId":"a"}"#).json();
    assert_eq!((&first["started"], &second["started"]), (&json!(true), &json!(false)));
    assert_eq!(first["bootId"], second["bootId"]);
    assert_eq!(host.call("GET", "/v1/sandboxes/t.a-1", b"").json(), second);
    assert_eq!(host.call("GET", "/v1/health", b"").json()["sandboxes"], 1);
}

#[test]
fn fifty_starts_of_one_name_make_one_sandbox() {
    let host = Host::start();
    let boots: BTreeSet<(String, bool)> = std::thread::scope(|scope| {
        let starts: Vec<_> = (0..50)
            .map(|_| {
                scope.spawn(|| {
                    let reply = host.call("PUT", "/v1/sandboxes/one", br#"{"sandboxId":"one"}"#);
                    assert_eq!(reply.status, 200, "{}", reply.text());
                    let it = reply.json();
                    (it["bootId"].as_str().unwrap_or_default().to_owned(), it["started"] == true)
                })
            })
            .collect();
        starts.into_iter().map(|start| start.join().expect("a start")).collect()
    });
    assert_eq!(boots.len(), 2, "one that started and the others that found it: {boots:?}");
    assert_eq!(daemons(&host).len(), 1);
}

#[test]
fn fifty_names_start_at_once_and_go_at_once() {
    let host = Host::start();
    std::thread::scope(|scope| {
        for number in 0..50 {
            let host = &host;
            scope.spawn(move || host.sandbox(&format!("n{number}")));
        }
    });
    assert_eq!(daemons(&host).len(), 50);
    for number in 0..50 {
        let sandbox = host.sandbox(&format!("n{number}"));
        assert_eq!(sandbox.output("echo $SANDBOX_ID"), format!("n{number}\n"));
    }
    assert_eq!(daemons(&host).len(), 50, "they were found and not started");
    std::thread::scope(|scope| {
        for number in 0..50 {
            let host = &host;
            scope.spawn(move || assert_eq!(host.delete(&format!("n{number}")).status, 200));
        }
    });
    assert!(daemons(&host).is_empty());
    assert_eq!(host.call("GET", "/v1/health", b"").json()["sandboxes"], 0);
}

#[test]
fn the_limit_of_sandboxes_holds_and_frees() {
    let host = Host::start_with(&["--max-sandboxes", "2"]);
    host.sandbox("a");
    host.sandbox("b");
    host.call("PUT", "/v1/sandboxes/c", br#"{"sandboxId":"c"}"#).refused(503, "unavailable", "2 sandboxes");
    host.delete("a");
    host.sandbox("c");
}

#[test]
fn what_does_not_run_is_not_running() {
    let host = Host::start();
    host.call("GET", "/v1/sandboxes/none", b"").refused(404, "not_running", "name");
    host.call("GET", "/v1/sandboxes/none/control/v1/health", b"").refused(404, "not_running", "name");
    for name in ["A", ".x", "-x", "a_b", "a%2fb", "..", &"x".repeat(129)] {
        host.call("PUT", &format!("/v1/sandboxes/{name}"), br#"{"sandboxId":"a"}"#).refused(
            400,
            "invalid_arguments",
            "name",
        );
    }
    host.call("PUT", "/v1/sandboxes/a", br#"{"sandboxId":"a","nosuch":1}"#).refused(400, "invalid_arguments", "nosuch");
    host.call("PUT", "/v1/sandboxes/a", br#"{}"#).refused(400, "invalid_arguments", "sandboxId");
}

#[test]
fn deleting_ends_everything_and_counts_it() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    sandbox.put("f", &vec![1; 1_000_000]);
    let seconds = mark();
    sandbox.output(&format!(
        "setsid sleep {seconds} & mkdir -p closed/d; echo > closed/d/f; chmod 000 closed/d closed; ln -s /usr/bin out"
    ));
    let released = host.delete("a").json();
    assert!(released["processes"].as_u64().is_some_and(|count| count >= 3), "{released}");
    assert!(released["diskBytes"].as_u64().is_some_and(|count| count >= 1_000_000), "{released}");
    assert!(sleepers(&seconds).is_empty());
    assert!(!host.workspace("a").exists());
    assert!(std::path::Path::new("/usr/bin/env").exists());
    let again = host.delete("a");
    assert_eq!((again.status, again.json()), (200, json!({"processes": 0, "diskBytes": 0})));
    assert_eq!(host.delete("never-there").status, 200);
}

#[test]
fn deletes_and_starts_at_once_are_in_order() {
    let host = Host::start();
    host.sandbox("a");
    std::thread::scope(|scope| {
        for number in 0..10 {
            let host = &host;
            scope.spawn(move || {
                if number % 2 == 0 {
                    assert_eq!(host.delete("a").status, 200);
                } else {
                    assert_eq!(host.call("PUT", "/v1/sandboxes/a", br#"{"sandboxId":"a"}"#).status, 200);
                }
            });
        }
    });
    assert_eq!(host.delete("a").status, 200);
    assert!(daemons(&host).is_empty());
}

#[test]
fn a_daemon_that_dies_is_noticed_and_the_workspace_stays() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    sandbox.put("f", b"kept");
    let seconds = mark();
    let mut events = sandbox.stream(json!({"command": format!("echo up; sleep {seconds}")}));
    events.next();
    events.next();
    signal(daemons(&host)[0], "KILL");
    while let Some((name, _)) = events.next() {
        assert_ne!(name, "exit", "an outcome that nobody saw");
    }
    eventually("the end", || host.call("GET", "/v1/sandboxes/a", b"").status == 404);
    assert!(sleepers(&seconds).is_empty());
    let second = host.sandbox("a");
    assert_ne!(second.boot_id, sandbox.boot_id);
    assert_eq!(second.get("f").body, b"kept");
    second.call("GET", "/v1/health", &[("x-sandbox-boot-id", &sandbox.boot_id)], b"").refused(
        410,
        "stale_generation",
        "boot",
    );
}

#[test]
fn an_answer_that_breaks_off_is_never_a_clean_end() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let mut stream = TcpStream::connect(host.address).expect("a connection");
    let body = r#"{"id":"x","command":"echo up; sleep 600","timeoutMs":600000}"#;
    write!(
        stream,
        "POST {}/v1/execs HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\naccept: text/event-stream\r\ncontent-length: {}\r\n\r\n{body}",
        sandbox.prefix,
        body.len()
    )
    .expect("the request");
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains("up") {
        let mut piece = [0; 4096];
        let length = stream.read(&mut piece).expect("the beginning");
        assert_ne!(length, 0);
        seen.extend_from_slice(&piece[..length]);
    }
    signal(daemons(&host)[0], "KILL");
    let _ = stream.read_to_end(&mut seen);
    assert!(!seen.ends_with(b"0\r\n\r\n"), "the last chunk says that the answer is whole");
}

#[test]
fn a_caller_who_leaves_before_the_answer_is_noticed_through_the_host() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let mut stream = TcpStream::connect(host.address).expect("a connection");
    let body = r#"{"id":"x","command":"sleep 600","timeoutMs":600000,"disconnectGraceMs":0}"#;
    write!(
        stream,
        "POST {}/v1/execs HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\ncontent-length: {}\r\n\r\n{body}",
        sandbox.prefix,
        body.len()
    )
    .expect("the request");
    let state = || sandbox.call("GET", "/v1/execs/x?wait=false", &[], b"").json();
    eventually("the start", || state()["state"] == "running");
    drop(stream);
    eventually("the end", || state()["exit"]["endedBy"] == "disconnect");
}

#[test]
fn the_end_of_the_host_is_the_end_of_its_sandboxes_but_not_of_their_files() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    sandbox.put("f", b"kept");
    let seconds = mark();
    sandbox.output(&format!("setsid sleep {seconds} >/dev/null &"));
    let data = host.end();
    assert!(sleepers(&seconds).is_empty());
    let host = Host::start_in(data, &[]);
    host.call("GET", "/v1/sandboxes/a", b"").refused(404, "not_running", "name");
    assert_eq!(host.sandbox("a").get("f").body, b"kept");
}

#[test]
fn killing_the_host_kills_its_sandboxes() {
    let mut host = Host::start();
    let seconds = mark();
    host.sandbox("a").output(&format!("setsid sleep {seconds} >/dev/null &"));
    host.kill();
    eventually("the end of everything", || sleepers(&seconds).is_empty());
}

#[test]
fn two_hosts_cannot_share_a_directory() {
    let host = Host::start();
    let output = Command::new(env!("CARGO_BIN_EXE_sandboxd"))
        .args(["host", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(host.data.path())
        .env("SANDBOX_HOST_TOKEN", TOKEN)
        .stdin(Stdio::null())
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("another host uses it"));
}

#[test]
fn where_bubblewrap_does_not_work_the_host_says_what_to_do() {
    let (data, programs) = (scratch(), scratch());
    let output = Command::new(env!("CARGO_BIN_EXE_sandboxd"))
        .args(["host", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(data.path())
        .env("SANDBOX_HOST_TOKEN", TOKEN)
        .env("PATH", programs.path())
        .stdin(Stdio::null())
        .output()
        .expect("it runs");
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{complaint}");
    assert!(
        complaint.contains("install the package `bubblewrap`") && complaint.contains("--isolation none"),
        "{complaint}"
    );
}

#[test]
fn without_a_token_nothing_starts() {
    let data = scratch();
    let output = Command::new(env!("CARGO_BIN_EXE_sandboxd"))
        .args(["host", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(data.path())
        .env_remove("SANDBOX_HOST_TOKEN")
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("SANDBOX_HOST_TOKEN"));
}

#[test]
fn without_isolation_commands_run_all_the_same() {
    let host = Host::start_with(&["--isolation", "none"]);
    let sandbox = host.sandbox("a");
    sandbox.put("/workspace/f", b"here");
    assert_eq!(sandbox.output("cat f"), "here");
    assert_eq!(sandbox.exec(json!({"argv": ["cat", "f"], "cwd": "/workspace"}))["stdout"]["data"], "here");
    let seconds = mark();
    let command = format!("setsid sleep {seconds} & sleep {seconds}");
    let exit = sandbox.exec(json!({"command": command, "timeoutMs": 200}));
    assert_eq!(exit["endedBy"], "timeout");
    assert!(sleepers(&seconds).is_empty());
    let seconds = mark();
    let exit = sandbox.shell(&format!("setsid sleep {seconds} & kill -9 $PPID; sleep {seconds}"));
    assert_eq!(exit["endedBy"], "unknown");
    assert!(sleepers(&seconds).is_empty());
    assert_eq!(host.call("GET", "/v1/health", b"").json()["isolation"]["kind"], "none");
    assert_eq!(host.delete("a").status, 200);
}
