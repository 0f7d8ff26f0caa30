//! The sweep over the tenant's list: what a lost memory, a lost object or a lost machine leaves is mended without being asked for.

use serde_json::{Value, json};
use test_support::{
    Fault, Operation, PATIENCE, Stack, StackOptions, daemon_around, eventually, find_by_argument, kill_process,
    random_name,
};

fn stack() -> Stack {
    Stack::start(StackOptions { sweep_seconds: Some(1), ..StackOptions::default() })
}

async fn state(stack: &Stack, id: &str) -> Option<Value> {
    let listed = stack.client().call("listSandboxes", &json!({})).await.ok();
    listed["sandboxes"].as_array().unwrap().iter().find(|one| one["sandboxId"] == id).map(|one| one["state"].clone())
}

#[tokio::test]
async fn a_sandbox_whose_object_knows_nothing_leaves_the_list_and_its_machine() {
    let stack = stack();
    let mut sandbox = stack.sandbox_with(json!({"keepAlive": true})).await;
    let marker = random_name("ghost");
    sandbox.sh(&format!("(exec -a {marker} sleep 300) >&- 2>&- & echo")).await;
    assert!(state(&stack, &sandbox.id).await.is_some());
    stack.worker().kill();
    let mut removed = 0;
    let mut folders = vec![stack.worker().storage().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() && path.to_string_lossy().contains("SandboxActor") {
                std::fs::remove_dir_all(&path).unwrap();
                removed += 1;
            } else if path.is_dir() {
                folders.push(path);
            }
        }
    }
    assert_eq!(removed, 1, "the storage of the sandboxes' objects was found");
    stack.worker().restart();
    sandbox.client = stack.client();
    eventually("it leaves the list", PATIENCE, || async { state(&stack, &sandbox.id).await.is_none().then_some(()) })
        .await;
    assert!(find_by_argument(&marker).is_empty(), "its machine holds nothing of it");
}

#[tokio::test]
async fn a_start_that_was_lost_with_the_worker_is_settled() {
    let stack = stack();
    let mut sandbox = stack.sandbox_with(json!({"keepAlive": true})).await;
    sandbox.call("stopSandbox", json!({})).await.ok();
    stack.proxy.inject(&sandbox.id, Operation::Start, Fault::NeverAnswers);
    let client = sandbox.client.clone();
    let id = sandbox.id.clone();
    let wake = tokio::spawn(async move {
        let request = client.request(reqwest::Method::POST, &format!("/v1/sandboxes/{id}/wake"));
        let _ = request.send().await;
    });
    let starting = || async { (sandbox.call("getSandbox", json!({})).await.ok()["state"] == "starting").then_some(()) };
    eventually("the start is under way", PATIENCE, starting).await;
    stack.worker().kill();
    stack.proxy.heal(&sandbox.id);
    let _ = wake.await;
    stack.worker().restart();
    sandbox.client = stack.client();
    let settled = || async { (state(&stack, &sandbox.id).await == Some(json!("error"))).then_some(()) };
    eventually("it is not starting for ever", PATIENCE, settled).await;
    assert_eq!(sandbox.sh("echo well").await, "well\n");
}

#[tokio::test]
async fn a_sandbox_that_died_unnoticed_is_listed_so() {
    let stack = stack();
    let sandbox = stack.sandbox_with(json!({"keepAlive": true})).await;
    let marker = random_name("died");
    sandbox.sh(&format!("(exec -a {marker} sleep 300) >&- 2>&- & echo")).await;
    kill_process(daemon_around(&marker).await);
    let noticed = || async { (state(&stack, &sandbox.id).await == Some(json!("error"))).then_some(()) };
    eventually("the list says so", PATIENCE, noticed).await;
    sandbox.sh("true").await;
    let told = sandbox.call("getSandbox", json!({})).await.ok();
    assert_eq!((&told["startReason"], &told["generation"]), (&json!("restarted"), &json!(2)));
}
