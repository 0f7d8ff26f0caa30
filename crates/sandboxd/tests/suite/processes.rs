//! Background processes: their life, their ends, their restarts and their input.

use serde_json::{Value, json};

use crate::support::{Host, Reply, Sandbox, eventually, mark, sleepers};

impl Sandbox {
    pub(crate) fn try_start(&self, request: Value) -> Reply {
        self.call("POST", "/v1/processes", &[], request.to_string().as_bytes())
    }

    pub(crate) fn start(&self, request: Value) -> String {
        let reply = self.try_start(request);
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.json()["id"].as_str().expect("an id").to_owned()
    }

    /// Asks about one process: `path` is what follows its id.
    pub(crate) fn of(&self, id: &str, path: &str) -> Value {
        let reply = self.call("GET", &format!("/v1/processes/{id}{path}"), &[], b"");
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.json()
    }

    pub(crate) fn tell(&self, id: &str, action: &str, body: Value) -> Reply {
        self.call("POST", &format!("/v1/processes/{id}/{action}"), &[], body.to_string().as_bytes())
    }

    pub(crate) fn end(&self, id: &str) -> Value {
        let reply = self.tell(id, "kill", json!({}));
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.json()
    }

    /// What it wrote to both channels, as text.
    pub(crate) fn log(&self, id: &str) -> String {
        let logs = self.of(id, "/logs");
        logs["chunks"].as_array().expect("chunks").iter().filter_map(|chunk| chunk["data"].as_str()).collect()
    }
}

#[test]
fn fast_commands_have_a_pid_and_their_whole_log() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    for _ in 0..100 {
        let id = sandbox.start(json!({"name": "hi", "command": "echo hi; echo there >&2"}));
        let waited = sandbox.of(&id, "/wait?timeoutMs=90000");
        let process = &waited["process"];
        assert_eq!((&waited["outcome"], &process["status"]), (&json!("met"), &json!("exited")), "{waited}");
        assert_eq!(process["exitCode"], 0);
        assert!(process["pid"].as_i64().is_some_and(|pid| pid > 1), "{waited}");
        let logs = sandbox.of(&id, "/logs");
        assert_eq!(logs["totalBytes"], 9, "{logs}");
        let of = |channel: &str| -> String {
            let chunks = logs["chunks"].as_array().expect("chunks").iter();
            chunks.filter(|chunk| chunk["channel"] == channel).filter_map(|chunk| chunk["data"].as_str()).collect()
        };
        assert_eq!((of("stdout").as_str(), of("stderr").as_str()), ("hi\n", "there\n"));
    }
    let listed = sandbox.call("GET", "/v1/processes", &[], b"").json();
    assert_eq!(listed["processes"].as_array().map(Vec::len), Some(32), "what ended is kept within bounds");
}

#[test]
fn a_program_that_is_not_there_is_an_error_and_no_phantom() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    for policy in ["never", "always", "on-failure"] {
        let reply = sandbox.try_start(json!({"name": "x", "argv": ["/nonexistent"], "restartPolicy": policy}));
        let process = reply.json();
        assert_eq!((reply.status, &process["status"]), (200, &json!("error")), "{process}");
        assert!(process["error"].as_str().is_some_and(|it| it.contains("No such file")), "{process}");
        assert!(process.get("pid").is_none() && process.get("restartInMs").is_none(), "{process}");
    }
    let listed = sandbox.call("GET", "/v1/processes", &[], b"").json();
    assert!(listed["processes"].as_array().is_some_and(|all| all.iter().all(|one| one["status"] == "error")));
    assert_eq!(sandbox.call("GET", "/v1/metrics", &[], b"").json()["backgroundProcesses"], 0);
    // Again where the machine is too busy for it to settle in that time.
    eventually("an end that the answer tells of", || {
        let shell = sandbox.try_start(json!({"name": "x", "command": "/nonexistent", "settleMs": 5000})).json();
        shell["status"] == "exited" && shell["exitCode"] == 127
    });
    sandbox.try_start(json!({"name": "x", "command": "true", "cwd": "/none"})).refused(400, "invalid_arguments", "cwd");
}

#[test]
fn killing_leaves_nothing_of_the_tree() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let command = "sleep 981 & (setsid sleep 982 &) ; echo up; wait";
    let id = sandbox.start(json!({"name": "tree", "argv": ["sh", "-c", command]}));
    assert_eq!(sandbox.of(&id, "/wait?text=up&timeoutMs=90000")["outcome"], "met");
    let ended = sandbox.end(&id);
    assert_eq!((&ended["status"], &ended["endedBy"]), (&json!("killed"), &json!("kill")), "{ended}");
    assert_eq!(sandbox.shell("pgrep -f 'sleep 98[12]$'")["exitCode"], 1);
    assert_eq!(sandbox.end(&id), ended, "killing what has ended tells the same again");
    sandbox.tell("none", "kill", json!({})).refused(404, "not_found", "id");
}

#[test]
fn the_first_signal_and_the_grace_are_the_callers() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let polite = "trap 'echo bye; exit 7' INT; echo up; while :; do sleep .02; done";
    let id = sandbox.start(json!({"name": "polite", "command": polite}));
    sandbox.of(&id, "/wait?text=up&timeoutMs=90000");
    let ended = sandbox.tell(&id, "kill", json!({"signal": "SIGINT", "graceMs": 60_000})).json();
    assert_eq!((&ended["status"], &ended["exitCode"]), (&json!("killed"), &json!(7)), "{ended}");
    assert_eq!(sandbox.log(&id), "up\nbye\n");
    let deaf = "trap '' TERM; echo up; while :; do sleep .02; done";
    let id = sandbox.start(json!({"name": "deaf", "command": deaf}));
    sandbox.of(&id, "/wait?text=up&timeoutMs=90000");
    let ended = sandbox.tell(&id, "kill", json!({"graceMs": 50})).json();
    assert_eq!((&ended["status"], &ended["signal"]), (&json!("killed"), &json!("SIGKILL")), "{ended}");
    sandbox.tell(&id, "kill", json!({"signal": "SIGNOPE"})).refused(400, "invalid_arguments", "signal");
    sandbox.tell(&id, "kill", json!({"graceMs": 60_001})).refused(400, "invalid_arguments", "graceMs");
}

#[test]
fn what_a_command_left_behind_is_told_of_and_ended_on_request() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let id = sandbox.start(json!({"name": "daemon", "command": "(sleep .3; echo late; exec sleep 983) & exit 3"}));
    let waited = sandbox.of(&id, "/wait?timeoutMs=90000");
    assert_eq!((&waited["process"]["status"], &waited["process"]["exitCode"]), (&json!("exited"), &json!(3)));
    assert_eq!(waited["process"]["leftBehind"], true, "{waited}");
    assert_eq!(sandbox.of(&id, "/wait?text=late&timeoutMs=90000")["outcome"], "met", "its output is kept as well");
    let ended = sandbox.end(&id);
    assert_eq!((&ended["status"], &ended["leftBehind"]), (&json!("exited"), &json!(false)), "{ended}");
    assert_eq!(sandbox.shell("pgrep -f 'sleep 983$'")["exitCode"], 1);
}

#[test]
fn a_process_is_started_again_as_its_policy_says() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let twice = "echo run >> runs; sleep 984 & test $(wc -l < runs) -ge 3";
    let id = sandbox.start(json!({"name": "retry", "command": twice, "restartPolicy": "on-failure"}));
    let process = sandbox.of(&id, "/wait?timeoutMs=90000")["process"].clone();
    assert_eq!((&process["status"], &process["restarts"]), (&json!("exited"), &json!(2)), "{process}");
    assert_eq!(process["exitCode"], 0);
    // The last run may end before its child has become what it is to be. A new run finds nothing of the one before.
    eventually("one is left", || sandbox.output("pgrep -fc 'sleep 984$' || true").trim() == "1");
    sandbox.end(&id);
    let id = sandbox.start(json!({"name": "always", "command": "echo once more", "restartPolicy": "always"}));
    eventually("three runs", || sandbox.of(&id, "")["restarts"].as_u64() >= Some(3));
    let ended = sandbox.end(&id);
    assert_eq!(ended["status"], "killed", "{ended}");
    assert_eq!(sandbox.of(&id, "/wait?timeoutMs=700")["process"]["restarts"], ended["restarts"], "and stays ended");
    let never = sandbox.start(json!({"name": "never", "command": "exit 1"}));
    assert_eq!(sandbox.of(&never, "/wait?timeoutMs=90000")["process"]["restarts"], 0);
}

#[test]
fn the_same_request_finds_the_process_and_another_one_is_refused() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let request = json!({"id": "once", "name": "once", "command": "echo ran >> ran; sleep 985"});
    let first = sandbox.try_start(request.clone()).json();
    eventually("it ran", || sandbox.shell("cat ran")["stdout"]["data"] == "ran\n");
    assert_eq!(sandbox.try_start(request.clone()).json()["pid"], first["pid"]);
    sandbox.end("once");
    assert_eq!(sandbox.try_start(request).json()["status"], "killed", "not even once it has ended");
    assert_eq!(sandbox.output("cat ran"), "ran\n");
    let other = json!({"id": "once", "name": "once", "command": "echo other"});
    sandbox.try_start(other).refused(400, "invalid_arguments", "id");
}

#[test]
fn ten_run_at_once_and_the_next_one_is_refused() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    assert_eq!(sandbox.call("GET", "/v1/health", &[], b"").json()["limits"]["concurrentProcesses"], 10);
    let ids: Vec<String> = (0..10).map(|_| sandbox.start(json!({"name": "s", "argv": ["sleep", "986"]}))).collect();
    sandbox.try_start(json!({"name": "s", "command": "true"})).refused(429, "too_many_processes", "10");
    assert_eq!(sandbox.call("GET", "/v1/metrics", &[], b"").json()["backgroundProcesses"], 10);
    sandbox.end(&ids[0]);
    eventually("room again", || sandbox.try_start(json!({"name": "s", "command": "true"})).status == 200);
}

#[test]
fn input_arrives_in_order_once_and_exactly() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let id = sandbox.start(json!({"name": "cat", "argv": ["cat"], "keepStdin": true}));
    assert_eq!(sandbox.of(&id, "")["stdinOpen"], true);
    for _ in 0..3 {
        let taken = sandbox.tell(&id, "input", json!({"id": "w1", "data": {"data": "one "}})).json();
        assert_eq!((&taken["bytes"], &taken["closed"]), (&json!(4), &json!(false)));
    }
    let bytes = json!({"data": "//4A", "encoding": "base64"});
    assert_eq!(sandbox.tell(&id, "input", json!({"data": bytes, "close": true})).json()["closed"], true);
    let process = sandbox.of(&id, "/wait?timeoutMs=90000")["process"].clone();
    assert_eq!((&process["status"], &process["exitCode"]), (&json!("exited"), &json!(0)), "{process}");
    let logs = sandbox.of(&id, "/logs");
    let all: Vec<u8> = logs["chunks"].as_array().expect("chunks").iter().flat_map(crate::support::decode).collect();
    assert_eq!(all, b"one \xff\xfe\x00");
    sandbox.tell(&id, "input", json!({"data": {"data": "late"}})).refused(409, "process_ended", "data");
    let closed = sandbox.start(json!({"name": "cat", "argv": ["cat"]}));
    assert_eq!(sandbox.of(&closed, "/wait?timeoutMs=90000")["process"]["exitCode"], 0, "its input is at its end");
}

#[test]
fn a_process_that_does_not_read_takes_bounded_memory() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let id = sandbox.start(json!({"name": "deaf", "argv": ["sleep", "987"], "keepStdin": true}));
    let piece = json!({"data": {"data": "x".repeat(400_000)}});
    let refusal = (0..10).map(|_| sandbox.tell(&id, "input", piece.clone())).find(|reply| reply.status != 200);
    refusal.expect("a bound").refused(503, "unavailable", "data");
    sandbox.tell(&id, "input", json!({"data": {"data": "x".repeat(1_100_000)}})).refused(
        400,
        "invalid_arguments",
        "data",
    );
}

#[test]
fn values_of_the_environment_are_on_no_command_line() {
    let host = Host::start();
    let sandbox = host.sandbox_with("a", json!({"sandboxId": "a", "env": {"A": "1", "B": "1"}}));
    let request =
        json!({"name": "env", "command": "echo $A$B$SECRET; ps auxww", "env": {"B": "2", "SECRET": "s3cr3t"}});
    let id = sandbox.start(request);
    sandbox.of(&id, "/wait?timeoutMs=90000");
    let log = sandbox.log(&id);
    assert!(log.starts_with("12s3cr3t\n") && log.matches("s3cr3t").count() == 1, "{log}");
    assert!(!sandbox.of(&id, "").to_string().contains("s3cr3t"));
}

#[test]
fn wrong_fields_are_refused_by_name() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    for (request, field) in [
        (json!({"command": "true"}), "name"),
        (json!({"name": "", "command": "true"}), "name"),
        (json!({"name": "a\nb", "command": "true"}), "name"),
        (json!({"name": "x".repeat(129), "command": "true"}), "name"),
        (json!({"name": "a"}), "command"),
        (json!({"name": "a", "command": "true", "argv": ["true"]}), "argv"),
        (json!({"name": "a", "command": "true", "id": "a/b"}), "id"),
        (json!({"name": "a", "command": "true", "restartPolicy": "often"}), "restartPolicy"),
        (json!({"name": "a", "command": "true", "env": {"A=B": "x"}}), "env"),
        (json!({"name": "a", "command": "true", "settleMs": 5001}), "settleMs"),
        (json!({"name": "a", "command": "true", "nosuch": 1}), "nosuch"),
    ] {
        sandbox.try_start(request).refused(400, "invalid_arguments", field);
    }
    let id = sandbox.start(json!({"name": "a", "command": "true"}));
    for (query, field) in [
        ("/wait", "timeoutMs"),
        ("/wait?timeoutMs=86400001", "timeoutMs"),
        ("/wait?timeoutMs=1&port=0", "port"),
        ("/wait?timeoutMs=1&port=65536", "port"),
        ("/wait?timeoutMs=1&port=80&text=a", "port"),
        ("/wait?timeoutMs=1&text=", "text"),
        ("/wait?timeoutMs=1&pattern=(", "pattern"),
        ("/logs?offset=-1", "offset"),
        ("/logs?limitBytes=0", "limitBytes"),
        ("/logs?nosuch=1", "nosuch"),
    ] {
        let reply = sandbox.call("GET", &format!("/v1/processes/{id}{query}"), &[], b"");
        reply.refused(400, "invalid_arguments", field);
    }
    sandbox.call("GET", "/v1/processes/none", &[], b"").refused(404, "not_found", "id");
}

#[test]
fn killing_the_supervisor_gives_an_unknown_end_and_leaves_nothing() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let id = sandbox.start(json!({"name": "x", "command": "setsid sleep 988 & kill -9 $PPID; sleep 988"}));
    let process = sandbox.of(&id, "/wait?timeoutMs=90000")["process"].clone();
    assert_eq!((&process["status"], &process["endedBy"]), (&json!("error"), &json!("unknown")), "{process}");
    assert!(process.get("exitCode").is_none(), "{process}");
    assert_eq!(sandbox.shell("pgrep -f 'sleep 988$'")["exitCode"], 1);
}

#[test]
fn a_daemon_that_ends_takes_its_processes_along() {
    let seconds = mark();
    let host = Host::start();
    let sandbox = host.sandbox("a");
    sandbox.start(json!({"name": "x", "argv": ["sleep", seconds], "restartPolicy": "always"}));
    eventually("it runs", || !sleepers(&seconds).is_empty());
    crate::support::signal(crate::support::daemons(&host)[0], "TERM");
    eventually("nothing of it is left", || sleepers(&seconds).is_empty());
}
