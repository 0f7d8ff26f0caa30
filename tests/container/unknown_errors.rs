//! Errors of the platform whose text nobody knows, and those of want of capacity, put in the way of real containers: see
//! `tests/support/doubles.mjs`. None of them is taken for something that it does not say, and the sandbox is usable afterwards.

use std::time::Duration;

use serde_json::{Value, json};
use test_support::{ContainerOptions, ContainerStack, PATIENCE, Sandbox, docker, eventually, within};

/// What the platform says of its own faults.
const UNKNOWN: &str = "internal error; reference = 0a1b2c3d";

/// A start has 25 s, and its refusal is on its way for a moment.
const START: Duration = PATIENCE;

/// Wakes a sandbox whose container fails so, and gives why that was refused.
async fn refused_wake(stack: &ContainerStack, sandbox: &Sandbox, how: &str) -> Value {
    stack.fail(sandbox, how).await;
    let answer = within("a refusal", START, sandbox.call("wakeSandbox", json!({}))).await;
    let problem = answer.problem(503, "sandbox_unavailable");
    assert!(problem.retryable && problem.headers.contains_key("retry-after"), "{}", answer.text());
    assert!(!answer.text().contains("0a1b2c3d"), "the platform's own words are for the log: {}", answer.text());
    assert_eq!(sandbox.call("getSandbox", json!({})).await.ok()["state"], "error", "{how}");
    let ended = || async { stack.running().is_empty().then_some(()) };
    eventually("no container of it runs", PATIENCE, ended).await;
    stack.fail(sandbox, "").await;
    problem.details["reason"].clone()
}

#[tokio::test]
async fn starts_that_fail_in_unknown_ways_are_told_as_what_they_are_and_good_ones_follow() {
    let stack = ContainerStack::start(ContainerOptions::default());
    let sandbox = stack.sandbox().await;
    for (generation, (how, reason)) in (2..).zip([
        (format!("start 1 0 {UNKNOWN}"), "container_start_failed"),
        ("start 1 0 Failed to start container: undefined".to_owned(), "container_start_failed"),
        ("start 1 0 Maximum number of running container instances exceeded.".to_owned(), "max_instances_exceeded"),
        // The platform no longer watches a container that may go on: that is no exit.
        (format!("monitor 1 1 {UNKNOWN}"), "container_lost"),
        (format!("fetch * 0 {UNKNOWN}"), "port_not_ready"),
    ]) {
        sandbox.call("stopSandbox", json!({})).await.ok();
        assert_eq!(refused_wake(&stack, &sandbox, &how).await, reason, "{how}");
        // An engine under load fails now and then, and says so.
        let woken = || async { (sandbox.call("wakeSandbox", json!({})).await.status == 200).then_some(()) };
        eventually("a good start", Duration::from_secs(120), woken).await;
        let told = sandbox.call("getSandbox", json!({})).await.ok();
        assert_eq!((&told["state"], &told["generation"]), (&json!("running"), &json!(generation)), "{how}: {told}");
        assert_eq!(sandbox.sh("echo well").await, "well\n");
        assert_eq!(stack.running().len(), 1, "{how}");
    }
    let log = stack.worker().log();
    assert!(log.contains(UNKNOWN), "the platform's own words are in the log");
}

#[tokio::test]
async fn a_sandbox_that_the_platform_lost_sight_of_is_not_said_to_run_and_its_next_use_finds_it() {
    let stack = ContainerStack::start(ContainerOptions::default());
    let sandbox = stack.unmade_sandbox();
    // The first watch is over its start, the second one over what runs. A command that begins after the end of that one
    // finds the sandbox again.
    stack.fail(&sandbox, &format!("monitor 2 15000 {UNKNOWN}")).await;
    sandbox.make(json!({})).await;
    let command = "echo kept > file; until [ -e go ]; do sleep 0.1; done; echo done";
    let (ran, container) = tokio::join!(sandbox.exec(json!({"command": command, "timeout": 90})), async {
        let noticed = || async { (sandbox.call("getSandbox", json!({})).await.ok()["state"] == "error").then_some(()) };
        eventually("it is not said to run", PATIENCE, noticed).await;
        let container = stack.container_of(&sandbox).unwrap();
        // Past the Worker, whose next use finds it again.
        docker(&["exec", &container, "touch", "/workspace/go"]);
        container
    });
    assert_eq!(ran["stdout"], "done\n", "what was seen to its end is told: {ran}");
    assert!(stack.worker().log().contains("the platform lost sight of a container"), "no exit is claimed");
    stack.fail(&sandbox, "").await;
    assert_eq!(sandbox.sh("cat file").await, "kept\n", "it had never ended");
    let told = sandbox.call("getSandbox", json!({})).await.ok();
    assert_eq!((&told["state"], &told["generation"]), (&json!("running"), &json!(1)), "{told}");
    assert_eq!(stack.container_of(&sandbox), Some(container));
}

#[tokio::test]
async fn a_request_that_fails_in_an_unknown_way_is_asked_again_and_carried_out_once() {
    let stack = ContainerStack::shared();
    let sandbox = stack.sandbox().await;
    // Before it reaches the daemon, and after the daemon has taken it.
    for milliseconds in [0, 300] {
        stack.fail(&sandbox, &format!("fetch 1 {milliseconds} {UNKNOWN}")).await;
        let ran = sandbox.exec(json!({"command": "echo x >> runs; sleep 1; echo done", "timeout": 20})).await;
        assert_eq!(ran["stdout"], "done\n", "{ran}");
    }
    assert_eq!(sandbox.sh("wc -l < runs").await, "2\n");
    stack.fail(&sandbox, &format!("fetch * 0 {UNKNOWN}")).await;
    let answer = sandbox.call("exec", json!({"command": "echo x >> runs", "timeout": 5})).await;
    let problem = within("an answer", START, async { answer.problem(502, "outcome_unknown") }).await;
    assert_eq!((&problem.details["reason"], problem.retryable), (&json!("sandbox_unresponsive"), false));
    let answer = sandbox.call("readFile", json!({"path": "runs"})).await;
    let problem = answer.problem(503, "sandbox_unavailable");
    assert_eq!((&problem.details["reason"], problem.retryable), (&json!("sandbox_unresponsive"), true));
    stack.fail(&sandbox, "").await;
    assert_eq!(sandbox.sh("wc -l < runs").await, "2\n", "none of them had reached it");
}

#[tokio::test]
async fn a_container_that_the_platform_does_not_end_is_not_said_to_have_ended() {
    let stack = ContainerStack::start(ContainerOptions::default());
    let sandbox = stack.sandbox().await;
    stack.fail(&sandbox, &format!("destroy * 0 {UNKNOWN}")).await;
    let destroyed = within("an answer", START, sandbox.call("destroySandbox", json!({}))).await;
    let problem = destroyed.problem(503, "sandbox_unavailable");
    assert_eq!(problem.details["reason"], "container_not_ended", "{}", destroyed.text());
    let listed = sandbox.client.call("listSandboxes", &json!({})).await.ok();
    assert!(listed.to_string().contains(&sandbox.id), "it is not lost from sight: {listed}");
    assert_eq!(sandbox.sh("echo on").await, "on\n");
    stack.fail(&sandbox, "").await;
    assert_eq!(sandbox.call("destroySandbox", json!({})).await.ok()["status"], "destroyed");
    assert_eq!(stack.containers(), Vec::<String>::new());
}
