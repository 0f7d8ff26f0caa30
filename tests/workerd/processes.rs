//! Background processes through the Worker: they belong to one start of their sandbox and to nobody else.

use serde_json::{Value, json};
use test_support::{
    Fault, Operation, PATIENCE, Sandbox, Stack, StackOptions, daemon_around, eventually, find_by_argument,
    kill_process, random_name, within,
};

/// Starts a process and returns its id.
async fn start(sandbox: &Sandbox, arguments: Value) -> String {
    let started = sandbox.call("startBackgroundProcess", arguments).await.ok();
    started["processId"].as_str().expect("an id").to_owned()
}

async fn of(sandbox: &Sandbox, tool: &str, id: &str, mut arguments: Value) -> Value {
    arguments["processId"] = json!(id);
    sandbox.call(tool, arguments).await.ok()
}

fn text(logs: &Value) -> String {
    logs["chunks"].as_array().unwrap().iter().filter_map(|chunk| chunk["data"].as_str()).collect()
}

#[tokio::test]
async fn a_process_lives_its_life_through_every_tool() {
    let stack = Stack::shared();
    let sandbox = stack.sandbox_with(json!({"env": {"A": "1", "B": "1"}})).await;
    let command = "echo up $A$B$C; read line; echo got $line >&2; exec sleep 300";
    let arguments = json!({"name": "web", "command": command, "restartPolicy": "never", "env": {"B": "2", "C": "3"}, "keepStdin": true});
    let started = sandbox.call("startBackgroundProcess", arguments).await.ok();
    assert_eq!((&started["status"], &started["sandboxId"]), (&json!("running"), &json!(sandbox.id)), "{started}");
    assert!(started["pid"].as_i64().unwrap() > 1 && started["startTime"].as_str().unwrap().ends_with('Z'));
    let id = started["processId"].as_str().unwrap();
    let up = of(&sandbox, "waitForProcess", id, json!({"pattern": "^up \\d+$"})).await;
    assert_eq!((&up["outcome"], &up["line"]["text"]), (&json!("met"), &json!("up 123")));
    let written = of(&sandbox, "writeProcessInput", id, json!({"data": "it\n", "close": true})).await;
    assert_eq!((&written["bytes"], &written["closed"]), (&json!(3), &json!(true)));
    of(&sandbox, "waitForProcess", id, json!({"text": "got it"})).await;
    let logs = of(&sandbox, "getProcessLogs", id, json!({})).await;
    assert_eq!((text(&logs).as_str(), &logs["nextOffset"]), ("up 123\ngot it\n", &json!(14)));
    assert_eq!(logs["chunks"][1]["channel"], "stderr");
    assert_eq!(text(&of(&sandbox, "getProcessLogs", id, json!({"offset": 7, "limit": 3})).await), "got");
    let late = of(&sandbox, "waitForProcess", id, json!({"port": 1, "timeout": 0.1})).await;
    assert_eq!(late["outcome"], "timedOut");
    let listed = sandbox.call("listProcesses", json!({})).await.ok();
    assert_eq!((&listed["running"], &listed["processes"][0]["processId"]), (&json!(true), &json!(id)));
    let ended = of(&sandbox, "killProcess", id, json!({"grace": 2})).await;
    assert_eq!((&ended["status"], &ended["pid"]), (&json!("killed"), &started["pid"]), "{ended}");
    assert_eq!(of(&sandbox, "getProcess", id, json!({})).await, ended);
    let arguments = json!({"processId": id, "data": "late"});
    sandbox.call("writeProcessInput", arguments).await.problem(409, "conflict");
}

#[tokio::test]
async fn resource_routes_do_what_the_tools_do() {
    let stack = Stack::shared();
    let sandbox = stack.sandbox().await;
    let base = format!("/v1/sandboxes/{}/processes", sandbox.id);
    let body = json!({"name": "a", "command": "cat; echo end", "keepStdin": true}).to_string();
    let started = sandbox.client.post(&base, body).await.ok();
    let path = format!("{base}/{}", started["processId"].as_str().unwrap());
    assert_eq!(sandbox.client.get(&base).await.ok()["processes"].as_array().unwrap().len(), 1);
    assert_eq!(sandbox.client.get(&path).await.ok()["pid"], started["pid"]);
    sandbox.client.post(&format!("{path}/input"), json!({"data": "in\n"}).to_string()).await.ok();
    assert_eq!(sandbox.client.get(&format!("{path}/wait?text=in&timeout=90")).await.ok()["outcome"], "met");
    assert_eq!(text(&sandbox.client.get(&format!("{path}/logs?offset=1")).await.ok()), "n\n");
    let request = sandbox.client.request(reqwest::Method::DELETE, &format!("{path}?signal=SIGKILL"));
    assert_eq!(sandbox.client.send(request).await.ok()["signal"], "SIGKILL");
}

#[tokio::test]
async fn killing_leaves_nothing_and_fast_commands_are_whole() {
    let stack = Stack::shared();
    let sandbox = stack.sandbox().await;
    let marker = random_name("tree");
    let command =
        format!("(exec -a {marker} sleep 999) & (setsid bash -c 'exec -a {marker} sleep 998' &) ; echo up; wait");
    let id = start(&sandbox, json!({"name": "tree", "command": command})).await;
    of(&sandbox, "waitForProcess", &id, json!({"text": "up"})).await;
    let both = || async { (find_by_argument(&marker).len() >= 2).then_some(()) };
    eventually("both run", PATIENCE, both).await;
    of(&sandbox, "killProcess", &id, json!({})).await;
    assert!(find_by_argument(&marker).is_empty(), "nothing is left once that is answered");
    let fast = sandbox.call("startBackgroundProcess", json!({"name": "fast", "command": "echo hi"})).await.ok();
    assert!(fast["pid"].is_i64(), "{fast}");
    let id = fast["processId"].as_str().unwrap();
    assert_eq!(of(&sandbox, "waitForProcess", id, json!({})).await["process"]["exitCode"], 0);
    assert_eq!(text(&of(&sandbox, "getProcessLogs", id, json!({})).await), "hi\n");
    let missing = sandbox.call("startBackgroundProcess", json!({"name": "x", "command": "/nonexistent"})).await.ok();
    let waited = of(&sandbox, "waitForProcess", missing["processId"].as_str().unwrap(), json!({})).await;
    assert_eq!((&waited["process"]["status"], &waited["process"]["exitCode"]), (&json!("exited"), &json!(127)));
}

#[tokio::test]
async fn an_eleventh_process_is_refused() {
    let stack = Stack::shared();
    let sandbox = stack.sandbox().await;
    for _ in 0..10 {
        start(&sandbox, json!({"name": "s", "command": "sleep 300"})).await;
    }
    let answer = sandbox.call("startBackgroundProcess", json!({"name": "s", "command": "sleep 300"})).await;
    answer.problem(429, "quota_exceeded");
}

#[tokio::test]
async fn logs_are_followed_as_events_and_a_reader_that_leaves_ends_nothing() {
    let stack = Stack::shared();
    let sandbox = stack.sandbox().await;
    let command = "echo one; read x; echo two >&2; read x; echo three";
    let id = start(&sandbox, json!({"name": "x", "command": command, "keepStdin": true})).await;
    let arguments = json!({"sandboxId": sandbox.id, "processId": id, "follow": true, "timeout": 300});
    let mut left = sandbox.client.stream("getProcessLogs", &arguments).await;
    assert_eq!(left.next().await.unwrap().name, "stdout");
    drop(left);
    stack.proxy.inject_times(&sandbox.id, Operation::Processes, Fault::ClosesAfterFirstOutput, 1);
    let mut events = sandbox.client.stream("getProcessLogs", &arguments).await;
    let mut told = Vec::new();
    for line in ["", "\n", "\n"] {
        if !line.is_empty() {
            of(&sandbox, "writeProcessInput", &id, json!({"data": line})).await;
        }
        let event = within("output", PATIENCE, events.next()).await.unwrap();
        let data: Value = serde_json::from_str(&event.data).unwrap();
        told.push((event.name, data["data"].as_str().unwrap().to_owned(), data["offset"].as_u64().unwrap()));
    }
    let expected = [("stdout", "one\n", 0), ("stderr", "two\n", 4), ("stdout", "three\n", 8)];
    assert_eq!(told, expected.map(|(name, data, offset)| (name.to_owned(), data.to_owned(), offset)));
    let last = within("the result", PATIENCE, events.next()).await.unwrap();
    let result: Value = serde_json::from_str(&last.data).unwrap();
    assert_eq!((last.name.as_str(), &result["ended"], &result["nextOffset"]), ("result", &json!(true), &json!(14)));
    assert_eq!(result["process"]["status"], "exited");
}

#[tokio::test]
async fn a_start_whose_answer_is_lost_starts_once() {
    let stack = Stack::shared();
    let sandbox = stack.sandbox().await;
    for fault in [Fault::LosesAnswer, Fault::ClosesAtOnce] {
        stack.proxy.inject_times(&sandbox.id, Operation::ProcessStart, fault, 1);
        start(&sandbox, json!({"name": "x", "command": "echo ran >> ran; sleep 300"})).await;
    }
    let twice = || async { (sandbox.sh("cat ran 2>/dev/null || true").await == "ran\nran\n").then_some(()) };
    eventually("each ran once", PATIENCE, twice).await;
    let listed = sandbox.call("listProcesses", json!({})).await.ok();
    assert_eq!(listed["processes"].as_array().unwrap().len(), 2, "{listed}");
    stack.proxy.inject(&sandbox.id, Operation::ProcessStart, Fault::LosesAnswer);
    let answer = sandbox.call("startBackgroundProcess", json!({"name": "x", "command": "sleep 300"})).await;
    let problem = answer.problem(502, "outcome_unknown");
    assert!(!problem.retryable);
    let listed = sandbox.call("listProcesses", json!({})).await.ok();
    assert_eq!(listed["processes"].as_array().unwrap().len(), 3, "asked for three times, started once: {listed}");
}

#[tokio::test]
async fn a_process_outlives_the_commands_and_callers_around_it_and_has_its_sandboxs_variables() {
    let sandbox = Stack::shared().sandbox_with(json!({"env": {"A": "1", "B": "1"}})).await;
    let arguments =
        json!({"name": "x", "command": "echo $A $B; read x; echo $x", "env": {"B": "2"}, "keepStdin": true});
    let id = start(&sandbox, arguments).await;
    let before = of(&sandbox, "getProcess", &id, json!({})).await;
    let mut left = sandbox.open_stream(json!({"command": "echo; sleep 300", "timeout": 600})).await;
    within("output", PATIENCE, left.next()).await;
    drop(left);
    sandbox.call("exec", json!({"command": "sleep 300", "timeout": 1})).await.problem(504, "timeout");
    sandbox.sh("exit 0").await;
    // The command of the reader that left is ended; what stands beside it is not.
    let ended = || async { (sandbox.sh("pgrep -xc sleep || true").await == "0\n").then_some(()) };
    eventually("the commands around it have ended", PATIENCE, ended).await;
    let after = of(&sandbox, "getProcess", &id, json!({})).await;
    assert_eq!((&after["pid"], &after["status"]), (&before["pid"], &json!("running")));
    of(&sandbox, "writeProcessInput", &id, json!({"data": "after\n"})).await;
    of(&sandbox, "waitForProcess", &id, json!({})).await;
    assert_eq!(text(&of(&sandbox, "getProcessLogs", &id, json!({})).await), "1 2\nafter\n");
}

#[tokio::test]
async fn a_process_survives_workerd_with_its_whole_log() {
    let stack = Stack::start(StackOptions::default());
    let mut sandbox = stack.sandbox().await;
    let id = start(&sandbox, json!({"name": "x", "command": "echo begun; read x; echo $x", "keepStdin": true})).await;
    let before = of(&sandbox, "getProcess", &id, json!({})).await;
    let arguments = json!({"sandboxId": sandbox.id, "processId": id, "follow": true, "timeout": 300});
    let mut followed = sandbox.client.stream("getProcessLogs", &arguments).await;
    followed.next().await;
    stack.worker().restart();
    // Connections end with each Worker.
    sandbox.client = stack.client();
    let after = of(&sandbox, "getProcess", &id, json!({})).await;
    assert_eq!((&after["pid"], &after["status"]), (&before["pid"], &json!("running")));
    of(&sandbox, "writeProcessInput", &id, json!({"data": "after\n"})).await;
    let waited = of(&sandbox, "waitForProcess", &id, json!({})).await;
    assert_eq!(waited["process"]["exitCode"], 0);
    assert_eq!(text(&of(&sandbox, "getProcessLogs", &id, json!({})).await), "begun\nafter\n");
}

#[tokio::test]
async fn a_process_of_an_earlier_start_is_stale_and_nothing_is_started_to_say_so() {
    let stack = Stack::shared();
    let sandbox = stack.sandbox().await;
    let marker = random_name("stale");
    let id = start(&sandbox, json!({"name": "x", "command": format!("exec -a {marker} sleep 300")})).await;
    kill_process(daemon_around(&marker).await);
    let gone = || async { find_by_argument(&marker).is_empty().then_some(()) };
    eventually("the sandbox is dead", PATIENCE, gone).await;
    let starts = sandbox.starts();
    for (tool, more) in [
        ("getProcess", json!({})),
        ("killProcess", json!({})),
        ("getProcessLogs", json!({})),
        ("waitForProcess", json!({})),
        ("writeProcessInput", json!({"data": "x"})),
    ] {
        let mut arguments = more;
        arguments["processId"] = json!(id);
        let problem = sandbox.call(tool, arguments).await.problem(410, "stale_generation");
        assert_eq!(problem.details["processId"], id, "{tool}");
    }
    let listed = sandbox.call("listProcesses", json!({})).await.ok();
    assert_eq!((&listed["running"], &listed["processes"]), (&json!(false), &json!([])));
    assert_eq!(sandbox.starts(), starts, "no start to say that nothing runs");
    // The next generation does not know it either.
    let next = start(&sandbox, json!({"name": "y", "command": "sleep 300"})).await;
    sandbox.call("getProcess", json!({"processId": id})).await.problem(410, "stale_generation");
    let unknown = format!("{}.nosuch", next.split('.').next().unwrap());
    for unknown in [unknown.as_str(), "nosuch", "../x"] {
        let problem = sandbox.call("getProcess", json!({"processId": unknown})).await.problem(404, "not_found");
        assert!(problem.detail.contains(unknown), "{}", problem.detail);
    }
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_by_name() {
    let stack = Stack::shared();
    let sandbox = stack.sandbox().await;
    let id = start(&sandbox, json!({"name": "x", "command": "sleep 300"})).await;
    for (tool, arguments, field) in [
        ("startBackgroundProcess", json!({"command": "true"}), "name"),
        ("startBackgroundProcess", json!({"name": "a\u{7}", "command": "true"}), "name"),
        ("startBackgroundProcess", json!({"name": "a", "command": "a\u{0}b"}), "command"),
        ("startBackgroundProcess", json!({"name": "a", "command": "true", "restartPolicy": "often"}), "restartPolicy"),
        ("startBackgroundProcess", json!({"name": "a", "command": "true", "cwd": "/none"}), "cwd"),
        ("startBackgroundProcess", json!({"name": "a", "command": "true", "env": {"A=B": "x"}}), "env"),
        ("waitForProcess", json!({"processId": id, "port": 80, "text": "a"}), "port"),
        ("waitForProcess", json!({"processId": id, "pattern": "("}), "pattern"),
        ("waitForProcess", json!({"processId": id, "timeout": 91}), "timeout"),
        ("killProcess", json!({"processId": id, "signal": "SIGNOPE"}), "signal"),
        ("killProcess", json!({"processId": id, "grace": 31}), "grace"),
        ("writeProcessInput", json!({"processId": id}), "data"),
        ("writeProcessInput", json!({"processId": id, "data": "%", "encoding": "base64"}), "data"),
        ("getProcessLogs", json!({"processId": id, "limit": 0}), "limit"),
    ] {
        let problem = sandbox.call(tool, arguments).await.problem(400, "invalid_arguments");
        assert!(problem.detail.starts_with(field), "{tool} {field}: {}", problem.detail);
    }
}
