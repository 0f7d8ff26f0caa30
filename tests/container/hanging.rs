//! What takes a connection and never answers: in a start, and in the middle of calls. Every answer comes in time, says why, and is true.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use test_support::{
    Answer, ContainerOptions, ContainerStack, NamedImage, PATIENCE, Sandbox, docker, eventually, find_by_argument,
    random_name, within,
};

use crate::{first_sh, refused_start};

/// A start has 25 s, and its refusal is on its way for a moment.
const START: Duration = PATIENCE;

/// Of a call: the silence of its stream and three requests, and a slow machine.
const CALL: Duration = Duration::from_secs(150);

/// Wakes a sandbox whose port hangs.
async fn refused_wake(sandbox: &Sandbox) -> Answer {
    refused_start(|| within("a refusal", START, sandbox.call("wakeSandbox", json!({})))).await
}

fn names_the_port(answer: &Answer) {
    let problem = answer.problem(503, "sandbox_unavailable");
    assert!(problem.retryable && problem.headers.contains_key("retry-after"), "{}", answer.text());
    assert_eq!(problem.details["reason"], "port_not_ready", "{}", answer.text());
    assert_eq!(problem.details["port"], 3000, "{}", answer.text());
    assert!(problem.detail.contains("3000"), "{}", problem.detail);
}

#[tokio::test]
async fn a_port_that_hangs_during_a_start_is_named_in_time_and_a_good_start_follows() {
    let image = NamedImage::new("sandbox");
    let stack = ContainerStack::start(ContainerOptions { image: image.name, ..ContainerOptions::default() });
    let (known, new) = (stack.sandbox().await, stack.unmade_sandbox());
    known.call("stopSandbox", json!({})).await.ok();
    image.name("hanging");
    let create = json!({"id": new.id});
    let create = new.client.call("createSandbox", &create);
    let (woken, created) = tokio::join!(refused_wake(&known), within("a refusal", START, create));
    names_the_port(&woken);
    let problem = created.problem(503, "sandbox_unavailable");
    assert!(["port_not_ready", "container_start_failed"].contains(&problem.details["reason"].as_str().unwrap()));
    new.call("getSandbox", json!({})).await.problem(404, "not_found");
    assert_eq!(known.call("getSandbox", json!({})).await.ok()["state"], "error");
    let ended = || async { stack.running().is_empty().then_some(()) };
    eventually("what never became ready does not go on", PATIENCE, ended).await;
    image.name("sandbox");
    assert_eq!(within("a call", START, first_sh(&known, "echo back")).await, "back\n");
    assert_eq!(known.call("getSandbox", json!({})).await.ok()["generation"], 2, "no failed start counts");
    new.make(json!({})).await;
    assert_eq!(new.sh("echo new").await, "new\n");
}

/// The daemon of a sandbox takes connections and does nothing with them, or goes on again.
fn signal(stack: &ContainerStack, sandbox: &Sandbox, signal: &str) {
    docker(&["kill", "--signal", signal, &stack.container_of(sandbox).unwrap()]);
}

/// What a call was told whose sandbox did not answer: whether it may have acted decides which of the two it is.
fn unresponsive(what: &str, answer: &Answer, may_have_acted: bool) {
    let problem = match may_have_acted {
        true => answer.problem(502, "outcome_unknown"),
        false => answer.problem(503, "sandbox_unavailable"),
    };
    assert_eq!(problem.details["reason"], "sandbox_unresponsive", "{what}: {}", answer.text());
    assert_eq!(problem.retryable, !may_have_acted, "{what}: {}", answer.text());
}

#[tokio::test]
async fn a_daemon_that_hangs_during_calls_is_told_of_in_time_and_nothing_runs_twice() {
    let stack = ContainerStack::shared();
    let sandbox = stack.sandbox().await;
    sandbox.sh("echo kept > file").await;
    let mut stream =
        sandbox.open_stream(json!({"command": "echo begun; echo ran >> streamed; sleep 300", "timeout": 400})).await;
    within("the first output", PATIENCE, stream.next()).await.unwrap();
    signal(stack, &sandbox, "STOP");
    let call = |tool: &'static str, arguments: Value| within(tool, CALL, sandbox.call(tool, arguments));
    let upload = sandbox.client.request(Method::PUT, &sandbox.file_path("raw")).body("raw");
    let ended = within("the stream's end", CALL, stream.transcript());
    let (ended, exec, process, write, read, list, upload, told) = tokio::join!(
        ended,
        call("exec", json!({"command": "echo ran >> buffered", "timeout": 5})),
        call("startBackgroundProcess", json!({"name": "x", "command": "echo ran >> process"})),
        call("writeFile", json!({"path": "written", "content": "x"})),
        call("readFile", json!({"path": "file"})),
        call("listProcesses", json!({})),
        within("an upload", CALL, sandbox.client.send(upload)),
        call("getSandbox", json!({})),
    );
    let problem = ended.error();
    assert_eq!(problem["code"], "outcome_unknown", "{problem}");
    assert_eq!(
        (&problem["details"]["reason"], &problem["retryable"]),
        (&json!("sandbox_unresponsive"), &json!(false)),
        "{problem}"
    );
    unresponsive("exec", &exec, true);
    unresponsive("startBackgroundProcess", &process, true);
    unresponsive("readFile", &read, false);
    unresponsive("listProcesses", &list, false);
    unresponsive("upload", &upload, false);
    // Whether a small file is sent before it is known that nobody answers is the tool's affair; what it says must fit.
    unresponsive("writeFile", &write, write.status == 502);
    assert_eq!(told.ok()["state"], "running", "it has not been seen to end");
    signal(stack, &sandbox, "CONT");
    assert_eq!(sandbox.sh("cat file").await, "kept\n");
    assert_eq!(sandbox.call("getSandbox", json!({})).await.ok()["generation"], 1);
    // What had arrived may be carried out now, each once: the same was asked for several times, with one id.
    for file in ["streamed", "buffered", "process"] {
        let runs = sandbox.sh(&format!("sleep 0.3; cat {file} 2>/dev/null | wc -l")).await;
        assert!(runs == "1\n" || runs == "0\n" && file != "streamed", "{file}: {runs}");
    }
}

#[tokio::test]
async fn a_sandbox_whose_daemon_hangs_for_good_can_be_stopped_and_destroyed() {
    let stack = ContainerStack::shared();
    let (stopped, destroyed) = (stack.sandbox().await, stack.sandbox().await);
    let marker = random_name("hung");
    for sandbox in [&stopped, &destroyed] {
        sandbox.sh(&format!("(exec -a {marker} sleep 300) >&- 2>&- & echo")).await;
        signal(stack, sandbox, "STOP");
    }
    let (stop, destroy) = tokio::join!(
        within("a stop", CALL, stopped.call("stopSandbox", json!({}))),
        within("a destruction", CALL, destroyed.call("destroySandbox", json!({}))),
    );
    assert_eq!(stop.ok()["state"], "sleeping");
    assert_eq!(destroy.ok()["status"], "destroyed");
    assert!(find_by_argument(&marker).is_empty(), "told only once it is so");
    assert_eq!(within("a wake", START, first_sh(&stopped, "ls -A; echo back")).await, "back\n");
    assert_eq!(stopped.call("getSandbox", json!({})).await.ok()["generation"], 2);
}
