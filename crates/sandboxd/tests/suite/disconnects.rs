//! Callers that leave and come back.

use std::time::Duration;

use serde_json::json;

use crate::support::{Host, Sandbox, eventually};

fn state(sandbox: &Sandbox, id: &str) -> serde_json::Value {
    sandbox.call("GET", &format!("/v1/execs/{id}?wait=false"), &[], b"").json()
}

#[test]
fn a_caller_who_leaves_ends_the_command_after_the_grace() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let mut events =
        sandbox.stream(json!({"id": "left", "command": "yes | head -c 100; sleep 600", "disconnectGraceMs": 200}));
    events.next();
    drop(events);
    eventually("the end", || state(&sandbox, "left")["state"] == "ended");
    assert_eq!(state(&sandbox, "left")["exit"]["endedBy"], "disconnect");
    assert_eq!(sandbox.shell("pgrep sleep")["exitCode"], 1);
}

#[test]
fn a_caller_who_comes_back_in_time_stops_the_clock() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let mut events =
        sandbox.stream(json!({"id": "back", "command": "echo one; until [ -e go ]; do sleep .02; done; echo two", "disconnectGraceMs": 20_000}));
    events.next();
    events.next();
    drop(events);
    let again = sandbox.attach("back", "");
    // Longer than the grace.
    std::thread::sleep(Duration::from_secs(22));
    assert_eq!(state(&sandbox, "back")["state"], "running");
    sandbox.put("go", b"");
    let (stdout, _, exit) = again.finish();
    assert_eq!((stdout.as_slice(), &exit["endedBy"]), (b"one\ntwo\n".as_slice(), &json!("exit")));
}

#[test]
fn a_detached_command_runs_to_its_end() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let mut events = sandbox.stream(
        json!({"id": "free", "command": "sleep .5; echo done", "onDisconnect": "detach", "disconnectGraceMs": 0}),
    );
    events.next();
    drop(events);
    let exit = sandbox.call("GET", "/v1/execs/free", &[], b"").json();
    assert_eq!((&exit["endedBy"], &exit["stdout"]["data"]), (&json!("exit"), &json!("done\n")));
}

#[test]
fn a_lease_that_is_not_renewed_runs_out_although_the_stream_is_open() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let (_, _, exit) = sandbox.stream(json!({"argv": ["sleep", "600"], "leaseMs": 300})).finish();
    assert_eq!(exit["endedBy"], "disconnect");
}

#[test]
fn a_lease_that_is_renewed_holds() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let command = "until [ -e go ]; do sleep .02; done";
    let events = sandbox.stream(json!({"id": "kept", "command": command, "leaseMs": 20_000}));
    // Longer than the lease.
    for _ in 0..8 {
        std::thread::sleep(Duration::from_secs(3));
        assert_eq!(sandbox.call("POST", "/v1/execs/kept/lease", &[], b"").status, 204);
    }
    sandbox.put("go", b"");
    let (_, _, exit) = events.finish();
    assert_eq!(exit["endedBy"], "exit");
    sandbox.call("POST", "/v1/execs/none/lease", &[], b"").refused(404, "not_found", "id");
}

#[test]
fn an_ended_exec_is_replayed_from_any_offset() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let exit = sandbox.exec(json!({"id": "old", "command": "echo 0123456789; echo err >&2"}));
    let mut events = sandbox.attach("old", "?stdoutOffset=4&stderrOffset=4");
    assert_eq!(events.next().map(|(name, _)| name).as_deref(), Some("started"));
    let (name, chunk) = events.next().expect("a chunk");
    assert_eq!((name.as_str(), &chunk["data"], &chunk["offset"]), ("stdout", &json!("456789\n"), &json!(4)));
    assert_eq!(events.next(), Some(("exit".into(), exit)));
    sandbox.call("GET", "/v1/execs/old?stdoutOffset=x", &[], b"").refused(400, "invalid_arguments", "stdoutOffset");
    sandbox.call("GET", "/v1/execs/none", &[], b"").refused(404, "not_found", "id");
}

#[test]
fn the_same_request_again_runs_nothing_twice() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let request = json!({"id": "once", "command": "echo x >> count; sleep .3; wc -l < count"});
    std::thread::scope(|scope| {
        for _ in 0..5 {
            scope.spawn(|| assert_eq!(sandbox.exec(request.clone())["stdout"]["data"], "1\n"));
        }
    });
    assert_eq!(sandbox.exec(request)["stdout"]["data"], "1\n");
    sandbox.try_exec(json!({"id": "once", "command": "something else"})).refused(400, "invalid_arguments", "id");
}

#[test]
fn many_callers_who_leave_chatty_streams_leave_nothing_behind() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    for _ in 0..50 {
        let mut events = sandbox.stream(json!({"command": "yes", "disconnectGraceMs": 0}));
        events.next();
        events.next();
    }
    eventually("no process", || sandbox.shell("pgrep yes")["exitCode"] == 1);
    assert_eq!(sandbox.output("echo ok"), "ok\n");
}

#[test]
fn a_reader_that_stands_still_slows_the_command_and_not_the_others() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let mut slow = sandbox.stream(json!({"id": "slow", "command": "seq 3000000"}));
    slow.next();
    assert_eq!(sandbox.output("echo ok"), "ok\n");
    assert_eq!(state(&sandbox, "slow")["state"], "running");
    let (stdout, _, exit) = slow.finish();
    assert_eq!((stdout.len(), &exit["exitCode"]), (22_888_896, &json!(0)));
}

#[test]
fn a_reader_that_stands_still_does_not_hold_up_a_timeout() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let mut slow = sandbox.stream(json!({"id": "slow", "command": "yes", "timeoutMs": 500}));
    slow.next();
    eventually("the end", || state(&sandbox, "slow")["state"] == "ended");
    assert_eq!(state(&sandbox, "slow")["exit"]["endedBy"], "timeout");
    let (stdout, _, exit) = slow.finish();
    assert_eq!(exit["stdout"]["totalBytes"], stdout.len(), "the slow reader gets every byte");
}
