//! Budgets and alerts: at 80 and at 100 percent, once each, signed, and tried until they are taken.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use test_support::{Client, PATIENCE, Received, Receiver, Stack, StackOptions, eventually};

fn stack(private_webhooks: bool) -> Stack {
    Stack::start(StackOptions { sweep_seconds: Some(1), private_webhooks, ..StackOptions::default() })
}

async fn alerts(client: &Client) -> Vec<Value> {
    client.get("/v1/admin/alerts").await.ok()["alerts"].as_array().unwrap().clone()
}

/// The different ones among these.
fn messages(received: &[Received]) -> BTreeSet<(&str, &str)> {
    received.iter().map(|one| (one.id(), one.body.as_str())).collect()
}

/// How many alerts about a key are in the log.
fn logged(stack: &Stack, key_id: &str) -> usize {
    let log = stack.worker().log();
    log.lines().filter(|line| line.contains(r#""message":"alert""#) && line.contains(key_id)).count()
}

async fn spend(client: &Client, calls: usize) {
    for _ in 0..calls {
        client.call("listSandboxes", &json!({ "limit": 1 })).await.ok();
    }
}

#[tokio::test]
async fn a_budget_is_alerted_of_at_80_and_at_100_percent_and_each_message_is_signed() {
    let stack = stack(true);
    let root = stack.client();
    let receiver = Receiver::start(&["200 OK"]).await;
    let set = root.call("setAlerts", &json!({ "webhookUrl": receiver.url })).await.ok();
    let secret = set["webhookSecret"].as_str().unwrap();
    assert!(secret.starts_with("whsec_"), "{set}");
    let made = root.call("createKey", &json!({ "name": "spends", "permissions": { "role": "viewer" } })).await.ok();
    let (key_id, client) = (made["keyId"].as_str().unwrap(), root.with_key(made["key"].as_str()));
    let price = root.get("/v1/admin/usage").await.ok()["prices"]["perCall"].as_f64().unwrap();
    // Ten calls, and what their answers cost beside them is far less than one.
    let budget = json!({ "keyId": key_id, "monthlyUsd": price * 10.0 });
    let stands = root.call("setBudget", &budget).await.ok();
    assert_eq!((&stands["budget"]["used"], &stands["budget"]["keyId"]), (&json!(0.0), &json!(key_id)), "{stands}");
    spend(&client, 5).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(receiver.all().is_empty(), "half of it is no alert");
    spend(&client, 4).await;
    let first = receiver.after(1, PATIENCE).await;
    let message = first[0].json();
    assert_eq!(
        (&message["type"], &message["data"]["thresholdPercent"]),
        (&json!("budget.threshold_reached"), &json!(80))
    );
    assert_eq!((&message["data"]["keyId"], &message["data"]["tenant"]), (&json!(key_id), &json!("default")));
    spend(&client, 3).await;
    let both = receiver.after(2, PATIENCE).await;
    assert_eq!(both[1].json()["data"]["thresholdPercent"], 100);
    assert_ne!(both[0].id(), both[1].id());
    for received in &both {
        assert!(received.is_signed_with(secret) && !received.is_signed_with("whsec_c29tZWJvZHkgZWxzZSdzIHNlY3JldA=="));
        assert_eq!(received.header("content-type"), "application/json");
    }
    // A kill before it is noted that they were taken would have them sent again, and their lines may be on their way.
    let noted = || async {
        let told = alerts(&root).await;
        let are_delivered = told.len() == 2 && told.iter().all(|alert| alert["delivery"] == "delivered");
        (are_delivered && logged(&stack, key_id) == 2).then_some(())
    };
    eventually("both are noted as delivered, and in the log", PATIENCE, noted).await;
    // Once each, also over a restart.
    stack.worker().restart();
    spend(&stack.client().with_key(client.key()), 3).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(receiver.all().len(), 2);
    let told = alerts(&stack.client()).await;
    assert!(told.len() == 2 && told.iter().all(|alert| alert["delivery"] == "delivered"), "{told:?}");
    assert_eq!(logged(&stack, key_id), 2, "and in the log");
    let usage = stack.client().get("/v1/admin/usage").await.ok();
    assert!(
        usage["budgets"].as_array().unwrap().iter().any(|budget| budget["used"].as_f64() >= budget["limit"].as_f64())
    );
    assert!(!usage.to_string().contains("token=abc"), "the URL may hold a secret");
    let books = stack.client().call("getAuditLog", &json!({ "tool": "setAlerts" })).await.ok();
    assert_eq!(books["calls"][0]["arguments"]["webhookUrl"], "[not recorded]");
}

#[tokio::test]
async fn a_message_that_is_not_taken_is_sent_again_under_the_same_id_also_after_a_kill() {
    let stack = stack(true);
    let root = stack.client();
    let receiver = Receiver::start(&["503 Service Unavailable", "302 Found", "200 OK"]).await;
    root.call("setAlerts", &json!({ "webhookUrl": receiver.url })).await.ok();
    // The whole tenant's budget is over at once: both alerts.
    root.call("setBudget", &json!({ "monthlyUsd": 0.000_000_1 })).await.ok();
    spend(&root, 1).await;
    receiver.after(2, PATIENCE).await;
    let pending = || async {
        let told = alerts(&root).await;
        told.iter().all(|alert| alert["attempts"].as_u64() >= Some(1)).then_some(told)
    };
    let told = eventually("the attempts are told", PATIENCE, pending).await;
    // On a slow machine the next attempt may have been made by now.
    let mut tried_once = told.iter().filter(|alert| alert["attempts"] == 1);
    assert!(tried_once.all(|alert| alert["delivery"] == "pending" && alert["nextAttemptAt"].is_string()), "{told:?}");
    assert!(
        told.iter().any(|alert| alert["failure"].as_str().unwrap().contains("redirects are not followed")),
        "{told:?}"
    );
    stack.worker().restart();
    // A kill during an attempt has it made again.
    let all = receiver
        .once("both are sent again", PATIENCE, |all| messages(all.get(2..).unwrap_or_default()).len() >= 2)
        .await;
    assert_eq!(messages(&all[..2]), messages(&all[2..]), "the same messages, under the same ids");
    let root = stack.client();
    let taken = || async { alerts(&root).await.iter().all(|alert| alert["delivery"] == "delivered").then_some(()) };
    eventually("they are delivered", PATIENCE, taken).await;
}

#[tokio::test]
async fn seconds_of_sandboxes_are_alerted_of_and_without_a_webhook_there_is_the_list() {
    let stack = stack(false);
    let root = stack.client();
    let ask = json!({ "name": "runs", "permissions": { "role": "operator" }, "limits": { "sandboxSecondsPerDay": 3 } });
    let made = root.call("createKey", &ask).await.ok();
    let client = root.with_key(made["key"].as_str());
    let sandbox = stack.unmade_sandbox();
    client.call("createSandbox", &json!({ "id": sandbox.id })).await.ok();
    let both = || async {
        let told = alerts(&root).await;
        (told.len() == 2).then_some(told)
    };
    let told = eventually("80 and 100 percent of three seconds", PATIENCE, both).await;
    for alert in &told {
        assert_eq!(
            (&alert["standing"]["budget"], &alert["delivery"]),
            (&json!("sandboxSecondsPerDay"), &json!("none"))
        );
        assert_eq!(alert["standing"]["keyId"], made["keyId"]);
    }
}

#[tokio::test]
async fn a_webhook_goes_to_no_private_address_and_a_budget_to_no_stranger() {
    let stack = Stack::shared();
    let root = stack.client();
    for url in [
        "http://hooks.example.com/",
        "https://127.0.0.1/x",
        "https://169.254.169.254/latest",
        "https://localhost/",
        "nonsense",
    ] {
        let problem = root.call("setAlerts", &json!({ "webhookUrl": url })).await.problem(400, "invalid_arguments");
        assert!(problem.detail.starts_with("webhookUrl:"), "{}", problem.detail);
    }
    for dollars in [0.0, -1.0, 1e12] {
        root.call("setBudget", &json!({ "monthlyUsd": dollars })).await.problem(400, "invalid_arguments");
    }
    root.call("setBudget", &json!({ "keyId": "0".repeat(32), "monthlyUsd": 1 })).await.problem(404, "not_found");
    let made = root
        .call("createKey", &json!({ "name": "x", "permissions": { "role": "admin", "scopes": ["usage:read"] } }))
        .await
        .ok();
    let reader = root.with_key(made["key"].as_str());
    reader.get("/v1/admin/alerts").await.ok();
    reader.call("setBudget", &json!({ "monthlyUsd": 1 })).await.problem(403, "forbidden");
    root.call("setBudget", &json!({ "keyId": made["keyId"], "monthlyUsd": 5 })).await.ok();
    let gone = root.call("setBudget", &json!({ "keyId": made["keyId"] })).await.ok();
    assert_eq!(gone.get("budget"), None);
}
