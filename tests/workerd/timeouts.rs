//! Deadlines: a timeout ends the whole tree, says so, and counts from the start of the command.

use std::time::Duration;

use serde_json::json;
use test_support::{Fault, Operation, PATIENCE, Stack, find_by_argument, random_name, within};
use tokio::io::AsyncWriteExt;

#[tokio::test]
async fn a_timeout_ends_the_whole_tree_before_it_is_told() {
    let sandbox = Stack::shared().sandbox().await;
    let marker = random_name("tree");
    // A child, a child of a child in a session of its own, and one that ignores TERM.
    let command = format!(
        "echo before; bash -c 'sleep 300; : {marker}' & (setsid bash -c 'sleep 300; : {marker}' &) ; \
         bash -c 'trap \"\" TERM; while :; do sleep 1; done; : {marker}' & sleep 300; touch late"
    );
    let answer = sandbox.call("exec", json!({"command": command, "timeout": 15})).await;
    let problem = answer.problem(504, "timeout");
    assert!(find_by_argument(&marker).is_empty(), "nothing of the tree is left when the timeout is told");
    assert_eq!(problem.details["stdout"], "before\n", "what it wrote is not lost: {}", problem.details);
    assert_eq!(problem.details["stderr"], "");
    assert_eq!(problem.details["sandboxId"], json!(sandbox.id));
    let next = within("the next command", PATIENCE, sandbox.sh("echo ok; ls; pgrep -c sleep || true")).await;
    assert!(next.starts_with("ok\n") && !next.contains("late"), "{next}");
}

#[tokio::test]
async fn a_streamed_timeout_is_the_same_problem_as_its_last_event() {
    let sandbox = Stack::shared().sandbox().await;
    let marker = random_name("stream");
    let command = format!("echo before; bash -c 'sleep 300; : {marker}'");
    let transcript = sandbox.exec_streamed(json!({"command": command, "timeout": 15})).await;
    let problem = transcript.error();
    assert_eq!((&problem["code"], &problem["status"]), (&json!("timeout"), &json!(504)), "{problem}");
    assert_eq!(problem["details"]["stdout"], "before\n");
    assert!(problem["requestId"].is_string() && problem["retryable"].is_boolean(), "{problem}");
    assert_eq!(transcript.stdout, b"before\n");
    assert!(find_by_argument(&marker).is_empty());
}

#[tokio::test]
async fn a_fraction_of_a_second_counts() {
    let sandbox = Stack::shared().sandbox().await;
    let answer = sandbox.call("exec", json!({"command": "sleep 300", "timeout": 1.5})).await;
    let time = answer.problem(504, "timeout").details["executionTime"].as_u64().unwrap();
    assert!(time >= 1500, "{time} ms");
    let output = sandbox.exec(json!({"command": "sleep 1.2; echo done", "timeout": 29.5})).await;
    assert_eq!(output["stdout"], "done\n");
    let time = output["executionTime"].as_u64().unwrap();
    assert!(time >= 1200, "{time} ms");
}

#[tokio::test]
async fn a_command_lasts_an_hour_at_most() {
    let sandbox = Stack::shared().sandbox().await;
    let transcript = sandbox.exec_streamed(json!({"command": "echo ok", "timeout": 3600})).await;
    assert_eq!(transcript.result()["stdout"], "ok\n");
    let problem = sandbox.call("exec", json!({"command": "true", "timeout": 3601})).await;
    assert!(problem.problem(400, "invalid_arguments").detail.contains("timeout"));
}

#[tokio::test]
async fn a_slow_start_of_the_sandbox_is_not_the_commands_time() {
    let stack = Stack::shared();
    let sandbox = stack.sandbox().await;
    sandbox.call("stopSandbox", json!({})).await.ok();
    stack.proxy.inject(&sandbox.id, Operation::Start, Fault::Delays(Duration::from_secs(11)));
    let output = sandbox.exec(json!({"command": "sleep 0.1; echo ok", "timeout": 10})).await;
    assert_eq!(output["stdout"], "ok\n");
    assert!(output["executionTime"].as_u64().unwrap() < 10_000, "{output}");
    assert_eq!(sandbox.call("getSandbox", json!({})).await.ok()["generation"], 2, "the command waited for a start");
}

#[tokio::test]
async fn a_slow_way_to_the_sandbox_is_not_the_commands_time() {
    let stack = Stack::shared();
    let sandbox = stack.sandbox().await;
    stack.proxy.inject_times(&sandbox.id, Operation::ExecStart, Fault::Delays(Duration::from_millis(4500)), 1);
    let output = sandbox.exec(json!({"command": "sleep 0.1; echo ok", "timeout": 4})).await;
    assert_eq!(output["stdout"], "ok\n");
}

#[tokio::test]
async fn a_request_whose_body_never_ends_does_not_start_anything() {
    let sandbox = Stack::shared().sandbox().await;
    let marker = random_name("unsent");
    let head = "POST /v1/tools/exec HTTP/1.1\nHost: x\nAuthorization: Bearer {key}\nAccept: text/event-stream\n\
                Transfer-Encoding: chunked\n\n";
    let mut connection = sandbox.client.connect(head).await;
    let body = format!("{{\"sandboxId\":\"{}\",\"timeout\":1,\"command\":\"sleep 30; : {marker}\"", sandbox.id);
    connection.write_all(format!("{:x}\r\n{body}\r\n", body.len()).as_bytes()).await.unwrap();
    assert_eq!(sandbox.sh("echo ok").await, "ok\n", "others are not held up");
    drop(connection);
    assert!(find_by_argument(&marker).is_empty());
}
