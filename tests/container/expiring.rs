//! Ends that come by themselves, although nobody is there to bring them about, and creations that are asked for again.

use std::time::Duration;

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::json;
use test_support::{ContainerOptions, ContainerStack, PATIENCE, eventually, find_by_argument, random_name};

#[tokio::test]
async fn a_container_whose_worker_was_killed_goes_when_its_time_is_over_without_being_asked_for() {
    let stack = ContainerStack::start(ContainerOptions::default());
    let sandbox = stack.sandbox_with(json!({"expiresAfter": 60})).await;
    let marker = random_name("killed");
    sandbox.sh(&format!("(exec -a {marker} sleep 300) >&- 2>&- & echo")).await;
    stack.kill_workerd().await;
    // From here on nobody asks for it: its object has no memory, and nothing but its alarm.
    let gone = || async { stack.containers().is_empty().then_some(()) };
    eventually("its container goes", Duration::from_secs(180), gone).await;
    assert!(find_by_argument(&marker).is_empty());
    let unlisted = || async {
        let listed = stack.client().call("listSandboxes", &json!({})).await.ok();
        (!listed.to_string().contains(&sandbox.id)).then_some(())
    };
    eventually("it leaves the list", PATIENCE, unlisted).await;
}

#[tokio::test]
async fn a_creation_that_is_asked_for_again_with_its_key_makes_one_container() {
    let stack = ContainerStack::start(ContainerOptions::default());
    let (client, key) = (stack.client(), random_name("key"));
    let ask = || async {
        let request = client.request(Method::POST, "/v1/tools/createSandbox").header("idempotency-key", &key);
        client.send(request.json(&json!({}))).await
    };
    for answer in join_all((0..5).map(|_| ask())).await {
        if answer.status != 200 {
            let problem = answer.any_problem();
            assert!(problem.retryable, "{}", answer.text());
        }
    }
    let mut ids = Vec::new();
    for _ in 0..2 {
        let made = || async { Some(ask().await).filter(|answer| answer.status == 200) };
        let made = eventually("it is made", Duration::from_secs(120), made).await;
        ids.push(made.ok()["sandboxId"].clone());
    }
    assert_eq!(ids[0], ids[1]);
    assert_eq!(stack.containers().len(), 1, "one for all of them");
    client.call("destroySandbox", &json!({"sandboxId": ids[0]})).await.ok();
}
