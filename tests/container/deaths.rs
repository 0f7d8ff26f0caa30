//! Killing things for real: the container, the daemon in it, and workerd, each in the middle of work.

use std::time::Duration;

use serde_json::{Value, json};
use test_support::{
    ContainerOptions, ContainerStack, EventStream, PATIENCE, Sandbox, daemon_around, docker, eventually, kill_process,
    random_name, sandbox_daemon_of, within,
};

use crate::first_sh;

/// Starts a long command as a stream and reads it until the command is seen to run.
async fn long_command(sandbox: &Sandbox, marker: &str) -> EventStream {
    let command = format!("echo begun; echo ran >> count; sleep 300; : {marker}");
    let mut stream = sandbox.open_stream(json!({"command": command, "timeout": 600})).await;
    let first = within("the first output", PATIENCE, stream.next()).await.unwrap();
    assert_eq!(first.name, "stdout");
    stream
}

/// The error in which the stream of an interrupted command must end.
async fn interrupted(mut stream: EventStream) -> Value {
    let event = within("the terminal event", PATIENCE, async {
        loop {
            let event = stream.next().await.expect("a stream ends in a terminal event");
            if event.name == "error" || event.name == "result" {
                return event;
            }
        }
    });
    let event = event.await;
    assert_eq!(event.name, "error", "{event:?}");
    let problem: Value = serde_json::from_str(&event.data).unwrap();
    assert!(["interrupted", "outcome_unknown"].contains(&problem["code"].as_str().unwrap()), "{problem}");
    assert_eq!(problem["retryable"], false, "it may have had effects: {problem}");
    problem
}

async fn generation(sandbox: &Sandbox) -> u64 {
    sandbox.call("getSandbox", json!({})).await.ok()["generation"].as_u64().unwrap()
}

/// The next call runs, in a new generation, in a container without what the old one held.
async fn starts_again(sandbox: &Sandbox, before: u64) {
    let next = within("the next call", PATIENCE, first_sh(sandbox, "echo back; ls -A")).await;
    assert_eq!(next, "back\n", "the command was not repeated, and files are gone with their container");
    assert_eq!(generation(sandbox).await, before + 1);
    let told = sandbox.call("getSandbox", json!({})).await.ok();
    assert_eq!((&told["status"], &told["startReason"]), (&json!("running"), &json!("restarted")), "{told}");
}

#[tokio::test]
async fn a_container_killed_in_the_middle_of_a_command_interrupts_it() {
    let stack = ContainerStack::shared();
    let sandbox = stack.sandbox().await;
    let before = generation(&sandbox).await;
    let process =
        sandbox.call("startBackgroundProcess", json!({"name": "web", "command": "exec sleep 300"})).await.ok();
    let stream = long_command(&sandbox, &random_name("killed")).await;
    docker(&["kill", &stack.container_of(&sandbox).unwrap()]);
    let problem = interrupted(stream).await;
    assert_eq!(problem["code"], "interrupted");
    starts_again(&sandbox, before).await;
    let old = json!({"processId": process["processId"]});
    sandbox.call("getProcess", old).await.problem(410, "stale_generation");
    assert_eq!(sandbox.call("listProcesses", json!({})).await.ok()["processes"], json!([]));
}

#[tokio::test]
async fn a_buffered_call_whose_container_dies_is_told() {
    let stack = ContainerStack::shared();
    let sandbox = stack.sandbox().await;
    let marker = random_name("buffered");
    let arguments = json!({"command": format!("sleep 600; : {marker}"), "timeout": 90});
    let call = within("an answer", 2 * PATIENCE, sandbox.call("exec", arguments));
    let kill = async {
        // A daemon that ends by itself: Docker starts the container again, with the same token and without what ran.
        kill_process(daemon_around(&marker).await);
    };
    let (answer, ()) = tokio::join!(call, kill);
    let problem = answer.any_problem();
    assert!(["interrupted", "outcome_unknown"].contains(&problem.code.as_str()), "{}", answer.text());
    assert!(!problem.retryable, "{}", answer.text());
    assert_eq!(first_sh(&sandbox, "echo back").await, "back\n");
    assert!(generation(&sandbox).await >= 2);
}

#[tokio::test]
async fn a_container_that_dies_between_two_calls_is_noticed_and_replaced() {
    let stack = ContainerStack::shared();
    let sandbox = stack.sandbox().await;
    let before = generation(&sandbox).await;
    docker(&["kill", &stack.container_of(&sandbox).unwrap()]);
    // Nobody asks the container anything: its exit itself is noted, in the sandbox's own books and in the list.
    let noticed = || async {
        let listed = sandbox.client.call("listSandboxes", &json!({})).await.ok();
        let own = listed["sandboxes"].as_array().unwrap().iter().find(|one| one["sandboxId"] == sandbox.id.as_str());
        (own.unwrap()["status"] == "error").then_some(())
    };
    eventually("its exit is noted", PATIENCE, noticed).await;
    starts_again(&sandbox, before).await;
}

#[tokio::test]
async fn a_container_that_hangs_gives_an_answer_in_time() {
    let stack = ContainerStack::shared();
    let sandbox = stack.sandbox().await;
    let container = stack.container_of(&sandbox).unwrap();
    docker(&["pause", &container]);
    let call = sandbox.call("exec", json!({"command": "true", "timeout": 2}));
    let answer = within("an answer", Duration::from_secs(90), call).await;
    docker(&["unpause", &container]);
    let problem = answer.any_problem();
    assert!(["outcome_unknown", "sandbox_unavailable"].contains(&problem.code.as_str()), "{}", answer.text());
    assert_eq!(sandbox.sh("echo back").await, "back\n");
}

#[tokio::test]
async fn a_workerd_killed_in_the_middle_finds_its_containers_again() {
    let stack = ContainerStack::start(ContainerOptions::default());
    let mut sandbox = stack.sandbox().await;
    sandbox.sh("echo kept > file").await;
    let marker = random_name("killed");
    let command = json!({"command": format!("echo begun; sleep 300; : {marker}"), "timeout": 600});
    let mut stream = sandbox.open_stream(command).await;
    within("the first output", PATIENCE, stream.next()).await.unwrap();
    let container = stack.container_of(&sandbox).unwrap();
    stack.kill_workerd().await;
    sandbox.client = stack.client();
    assert_eq!(stack.container_of(&sandbox), Some(container), "the container outlived workerd");
    // The token was stored: the sandbox is the same, and nothing of it was lost.
    assert_eq!(sandbox.sh("cat file").await, "kept\n");
    assert_eq!(generation(&sandbox).await, 1);
    let ended = || async { sandbox_daemon_of(&marker).is_none().then_some(()) };
    eventually("the command whose reader is gone is ended", PATIENCE, ended).await;
}

#[tokio::test]
async fn after_a_restart_without_its_containers_the_sandbox_starts_anew() {
    let stack = ContainerStack::start(ContainerOptions::default());
    let mut sandbox = stack.sandbox().await;
    stack.worker().restart();
    // Not on the connection to the Worker that was.
    sandbox.client = stack.client();
    starts_again(&sandbox, 1).await;
}
