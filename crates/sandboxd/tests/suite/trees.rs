//! Process trees: whatever a command starts is found, killed and waited for.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Host, Sandbox, daemons, eventually, signal, unique};

fn kill(sandbox: &Sandbox, id: &str, body: Value) -> Value {
    let reply = sandbox.call("POST", &format!("/v1/execs/{id}/kill"), &[], body.to_string().as_bytes());
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()
}

#[test]
fn killing_reaches_what_hid_in_sessions_of_its_own() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let command = "sleep 991 & (setsid sleep 992 &); (setsid sh -c 'sleep 993 & sleep 994' &); touch up; wait";
    let mut events = sandbox.stream(json!({"id": "tree", "command": command}));
    eventually("the tree", || sandbox.output("pgrep -xc sleep || true").trim() == "4");
    let exit = kill(&sandbox, "tree", json!({}));
    assert_eq!(exit["endedBy"], "kill");
    assert_eq!(sandbox.shell("pgrep -f 'sleep 99[1-4]$'")["exitCode"], 1);
    while let Some((name, data)) = events.next() {
        if name == "exit" {
            assert_eq!(data, exit);
        }
    }
    // Killing what has ended tells the same again.
    assert_eq!(kill(&sandbox, "tree", json!({})), exit);
}

#[test]
fn killing_an_ended_exec_ends_what_it_left_behind() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let ended = sandbox.exec(json!({"id": "left", "command": "sleep 995 & setsid sleep 996 & exit 3"}));
    // The shell may end before its children have become what they are to be.
    eventually("both run", || sandbox.output("pgrep -fc 'sleep 99[56]$' || true").trim() == "2");
    assert_eq!(kill(&sandbox, "left", json!({})), ended);
    assert_eq!(sandbox.shell("pgrep -f 'sleep 99[56]$'")["exitCode"], 1);
}

#[test]
fn the_first_signal_is_the_callers() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let mut id = String::new();
    // Again where the machine is too busy for the command to answer in the two seconds that it is given.
    eventually("an end by its own choice", || {
        id = unique();
        let command = "trap 'echo got it; exit 9' INT; echo up; while :; do sleep .05; done";
        let mut events = sandbox.stream(json!({"id": id, "command": command}));
        events.next();
        events.next();
        let exit = kill(&sandbox, &id, json!({"signal": "SIGINT"}));
        assert_eq!(exit["endedBy"], "kill", "{exit}");
        exit["exitCode"] == 9 && exit["stdout"]["data"] == "up\ngot it\n"
    });
    let reply = sandbox.call("POST", &format!("/v1/execs/{id}/kill"), &[], br#"{"signal":"SIGNOPE"}"#);
    reply.refused(400, "invalid_arguments", "signal");
    sandbox.call("POST", "/v1/execs/none/kill", &[], b"").refused(404, "not_found", "id");
}

#[test]
fn a_tree_that_forks_all_the_time_is_killed() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let command = "f() { while :; do (setsid sh -c 'sleep 997' &) ; sleep .005; done; }; f & f & wait";
    let exit = sandbox.exec(json!({"command": command, "timeoutMs": 300}));
    assert_eq!(exit["endedBy"], "timeout");
    assert_eq!(sandbox.shell("pgrep -f 'sleep 997$'")["exitCode"], 1);
}

#[test]
fn stopped_processes_are_killed_too() {
    let host = Host::start();
    let exit = host.sandbox("a").exec(json!({"command": "kill -STOP $$", "timeoutMs": 200}));
    assert_eq!(exit["endedBy"], "timeout");
}

#[test]
fn killing_the_supervisor_gives_an_unknown_outcome_and_leaves_nothing() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let started = Instant::now();
    let exit = sandbox.shell("setsid sleep 998 & kill -9 $PPID; sleep 999");
    assert_eq!(exit["endedBy"], "unknown", "{exit}");
    assert!(exit.get("exitCode").is_none(), "{exit}");
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    assert_eq!(sandbox.shell("pgrep -f 'sleep 99[89]$'")["exitCode"], 1);
}

#[test]
fn stopping_the_supervisor_does_not_stop_a_timeout() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let exit = sandbox.exec(json!({"command": "kill -STOP $PPID; sleep 999", "timeoutMs": 200}));
    assert_eq!((&exit["endedBy"], &exit["exitCode"]), (&json!("timeout"), &json!(143)), "{exit}");
    assert_eq!(sandbox.shell("pgrep -f 'sleep 999$'")["exitCode"], 1);
}

#[test]
fn commands_cannot_end_the_daemon() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    for signal in ["TERM", "KILL", "INT", "STOP", "SEGV", "HUP", "CHLD"] {
        sandbox.shell(&format!("kill -{signal} 1"));
    }
    sandbox.shell("kill -9 -1");
    let health = sandbox.call("GET", "/v1/health", &[], b"").json();
    assert_eq!(health["bootId"], sandbox.boot_id);
}

#[test]
fn zombies_are_reaped() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    sandbox.output("for i in $(seq 50); do (setsid true &); done");
    eventually("no zombies", || sandbox.output("ps -e -o stat= | grep -c Z || true").trim() == "0");
}

#[test]
fn a_term_from_outside_ends_the_daemon_and_all_its_commands() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let mut events = sandbox.stream(json!({"command": "setsid sleep 989 & sleep 989"}));
    events.next();
    signal(daemons(&host)[0], "TERM");
    let mut last = None;
    while let Some((name, _)) = events.next() {
        last = Some(name);
    }
    assert_ne!(last.as_deref(), Some("exit"), "nobody was there to see it end");
    eventually("the sandbox is gone", || host.call("GET", "/v1/sandboxes/a", b"").status == 404);
}

#[test]
fn killing_or_stopping_the_supervisor_at_once_does_not_stop_the_daemon() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    // A shell's built-in command comes as early as anything can, often before the supervisor has said a word.
    for signal in ["STOP", "KILL"].into_iter().cycle().take(20) {
        // A stopped supervisor says nothing until the timeout, so that one is waited for.
        let timeout = if signal == "STOP" { 1000 } else { 15_000 };
        let command = format!("kill -{signal} $PPID; exit 4");
        let exit = sandbox.exec(json!({"argv": ["sh", "-c", command], "timeoutMs": timeout}));
        let told = (exit["endedBy"].as_str(), exit["exitCode"].as_i64());
        // The supervisor may have seen the end before the signal reached it; otherwise nobody knows. The timeout may
        // come before the shell's own end.
        let expected = match signal {
            "STOP" => matches!(told, (Some("exit" | "timeout"), Some(4)) | (Some("timeout"), Some(143))),
            _ => matches!(told, (Some("exit"), Some(4)) | (Some("unknown"), None)),
        };
        assert!(expected, "{signal}: {exit}");
    }
    assert_eq!(sandbox.output("echo ok"), "ok\n");
}

#[test]
fn a_process_whose_name_is_not_text_is_killed_like_any_other() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let hidden = "import os, time, ctypes, signal\n\
        if os.fork() == 0:\n \
        os.setsid()\n \
        signal.signal(signal.SIGTERM, signal.SIG_IGN)\n \
        ctypes.CDLL(None).prctl(15, b'\\xff\\xfehid\\xff', 0, 0, 0)\n \
        open('hidden.pid', 'w').write(str(os.getpid()))\n \
        time.sleep(600)\n\
        time.sleep(600)\n";
    let exit = sandbox.exec(json!({"argv": ["python3", "-c", hidden], "timeoutMs": 15_000}));
    assert_eq!(exit["endedBy"], "timeout");
    assert_eq!(sandbox.shell("test -s hidden.pid && ! test -e /proc/$(cat hidden.pid)")["exitCode"], 0);
}
