//! Killing things for real: the sandbox's daemon, the host, and workerd, each in the middle of work.

use std::time::Duration;

use serde_json::{Value, json};
use test_support::{
    EventStream, PATIENCE, Sandbox, Stack, StackOptions, daemon_around, eventually, find_by_argument, kill_process,
    random_name, within,
};

/// Starts a long command as a stream and reads it until the command is seen to run, and has noted that it did.
async fn long_command(sandbox: &Sandbox, marker: &str) -> EventStream {
    let command = format!("echo ran >> count; echo begun; sleep 300; : {marker}");
    let mut stream = sandbox.open_stream(json!({"command": command, "timeout": 600})).await;
    let first = within("the first output", PATIENCE, stream.next()).await.unwrap();
    assert_eq!(first.name, "stdout");
    stream
}

async fn rest(stream: EventStream) -> Value {
    let mut stream = stream;
    let terminal = within("the terminal event", PATIENCE, async {
        loop {
            let event = stream.next().await.expect("a stream ends in a terminal event");
            if event.name == "error" || event.name == "result" {
                return event;
            }
        }
    });
    let event = terminal.await;
    assert_eq!(event.name, "error", "{event:?}");
    assert!(stream.next().await.is_none(), "nothing after the terminal event");
    serde_json::from_str(&event.data).unwrap()
}

fn ended_with_its_sandbox(problem: &Value) {
    let code = problem["code"].as_str().unwrap();
    assert!(["interrupted", "outcome_unknown"].contains(&code), "{problem}");
    assert_eq!(problem["retryable"], false, "it may have had effects: {problem}");
}

#[tokio::test]
async fn a_daemon_killed_in_the_middle_of_a_command_interrupts_it() {
    let stack = Stack::shared();
    let sandbox = stack.sandbox().await;
    let marker = random_name("killed");
    let before = sandbox.call("getSandbox", json!({})).await.ok()["generation"].as_u64().unwrap();
    let stream = long_command(&sandbox, &marker).await;
    kill_process(daemon_around(&marker).await);
    ended_with_its_sandbox(&rest(stream).await);
    let counted = within("the next call, which starts it again", PATIENCE, sandbox.sh("cat count")).await;
    assert_eq!(counted, "ran\n", "files survive, and the command was not repeated");
    let after = sandbox.call("getSandbox", json!({})).await.ok();
    assert!(after["generation"].as_u64().unwrap() > before, "{after}");
    assert_eq!(after["status"], "running");
    assert!(find_by_argument(&marker).is_empty(), "nothing of the old boot runs");
}

#[tokio::test]
async fn a_daemon_killed_between_two_calls_is_started_again() {
    let stack = Stack::shared();
    let sandbox = stack.sandbox().await;
    for round in 1..=3 {
        let marker = random_name("idle");
        sandbox.sh(&format!("echo {round} > round; (exec -a {marker} sleep 300) >&- 2>&- & echo")).await;
        kill_process(daemon_around(&marker).await);
        let gone = || async { find_by_argument(&marker).is_empty().then_some(()) };
        eventually("the sandbox is dead", PATIENCE, gone).await;
        assert_eq!(sandbox.sh("cat round").await, format!("{round}\n"));
    }
}

#[tokio::test]
async fn a_buffered_call_whose_daemon_dies_is_told() {
    let stack = Stack::shared();
    let sandbox = stack.sandbox().await;
    let marker = random_name("buffered");
    let arguments = json!({"command": format!("sleep 300; : {marker}"), "timeout": 60});
    let call = within("an answer", PATIENCE, sandbox.call("exec", arguments));
    let kill = async {
        kill_process(daemon_around(&marker).await);
    };
    let (answer, ()) = tokio::join!(call, kill);
    answer.any_problem();
    ended_with_its_sandbox(&answer.json());
}

#[tokio::test]
async fn a_host_killed_in_the_middle_of_a_command_takes_nothing_else_with_it() {
    let stack = Stack::start(StackOptions::default());
    let sandbox = stack.sandbox().await;
    let marker = random_name("host");
    let stream = long_command(&sandbox, &marker).await;
    stack.host().kill();
    ended_with_its_sandbox(&rest(stream).await);
    let gone = || async { find_by_argument(&marker).is_empty().then_some(()) };
    eventually("its sandboxes end with the host", PATIENCE, gone).await;
    // While it is gone: a clear answer, in time, and the Worker lives.
    let call = sandbox.call("exec", json!({"command": "true", "timeout": 1}));
    let answer = within("a refusal", PATIENCE, call).await;
    // Whether a request reached a host that is gone now cannot be known; that a start cannot succeed can.
    let problem = answer.any_problem();
    assert!(["sandbox_unavailable", "outcome_unknown"].contains(&problem.code.as_str()), "{}", problem.code);
    let other = stack.unmade_sandbox();
    let arguments = json!({"id": other.id});
    let answer = within("a refusal", PATIENCE, sandbox.client.call("createSandbox", &arguments)).await;
    let problem = answer.problem(503, "sandbox_unavailable");
    assert!(problem.retryable && problem.headers.contains_key("retry-after"));
    let raw = within("a refusal", PATIENCE, sandbox.client.get(&sandbox.file_path("count"))).await;
    assert!(raw.status >= 500, "{}", raw.text());
    sandbox.client.get("/health").await.ok();
    let listed = sandbox.client.call("listSandboxes", &json!({})).await.ok();
    assert!(listed.to_string().contains(&sandbox.id), "the list needs no host");
    stack.host().restart();
    assert_eq!(sandbox.sh("cat count").await, "ran\n", "files survive, and the command was not repeated");
}

#[tokio::test]
async fn workerd_killed_and_started_again_knows_what_it_knew() {
    let stack = Stack::start(StackOptions::default());
    let (kept, destroyed) = (stack.sandbox_with(json!({"labels": {"a": "b"}})).await, stack.sandbox().await);
    let marker = random_name("workerd");
    kept.sh(&format!("echo kept > file; echo kept > /tmp/file; (exec -a {marker} sleep 300) >&- 2>&- & echo")).await;
    destroyed.call("destroySandbox", json!({})).await.ok();
    let before = kept.call("getSandbox", json!({})).await.ok();
    let running = random_name("running");
    let interrupted = kept.open_stream(json!({"command": format!("echo; sleep 300; : {running}"), "timeout": 600}));
    let mut interrupted = interrupted.await;
    interrupted.next().await;

    stack.worker().restart();

    let listed = kept.client.call("listSandboxes", &json!({})).await.ok();
    let ids: Vec<&str> =
        listed["sandboxes"].as_array().unwrap().iter().filter_map(|one| one["sandboxId"].as_str()).collect();
    assert_eq!(ids, [kept.id.as_str()]);
    let after = kept.call("getSandbox", json!({})).await.ok();
    for field in ["createdAt", "generation", "status", "state"] {
        assert_eq!(after[field], before[field], "{field}");
    }
    assert_eq!(kept.sh("cat file /tmp/file").await, "kept\nkept\n");
    assert!(!find_by_argument(&marker).is_empty(), "the sandbox ran on");
    let again = kept.client.call("createSandbox", &json!({"id": kept.id, "labels": {"a": "b"}})).await.ok();
    assert_eq!(again["created"], false);
    destroyed.call("getSandbox", json!({})).await.problem(404, "not_found");
    // A command whose caller is gone for good is ended by its policy.
    let ended = || async { find_by_argument(&running).is_empty().then_some(()) };
    eventually("the orphaned command ends", PATIENCE, ended).await;
}

#[tokio::test]
async fn workerd_killed_during_a_start_leaves_no_sandbox_unlisted() {
    let stack = Stack::start(StackOptions::default());
    let sandbox = stack.unmade_sandbox();
    // Until the Worker is seen to have asked for it, and is killed.
    let slow = test_support::Fault::Delays(Duration::from_secs(40));
    stack.proxy.inject_times(&sandbox.id, test_support::Operation::Start, slow, 1);
    let request = sandbox.client.request(reqwest::Method::POST, "/v1/tools/createSandbox");
    let pending = tokio::spawn(request.json(&json!({"id": sandbox.id})).send());
    let asked = || async {
        let listed = sandbox.client.call("listSandboxes", &json!({})).await.ok();
        (listed.to_string().contains(&sandbox.id) && stack.proxy.delays(&sandbox.id) == 1).then_some(())
    };
    eventually("the start has begun and is listed", PATIENCE, asked).await;
    stack.worker().restart();
    assert!(pending.await.unwrap().is_err(), "its caller saw the connection break");
    let listed = sandbox.client.call("listSandboxes", &json!({})).await.ok();
    assert!(listed.to_string().contains(&sandbox.id), "{listed}");
    sandbox.client.call("createSandbox", &json!({"id": sandbox.id})).await.ok();
    assert_eq!(sandbox.sh("echo usable").await, "usable\n");
    // The first start is on its way though who asked for it is gone.
    let over = || async { (stack.proxy.delays(&sandbox.id) == 0).then_some(()) };
    eventually("the late start is over", PATIENCE, over).await;
    sandbox.call("destroySandbox", json!({})).await.ok();
    let gone = || async { find_by_argument(&sandbox.id).is_empty().then_some(()) };
    eventually("no process of it is left", PATIENCE, gone).await;
}
