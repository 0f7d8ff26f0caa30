//! Idempotency keys: the same call again gives the first answer, and acts once.

use futures_util::future::join_all;

use reqwest::Method;
use serde_json::{Value, json};
use test_support::{Answer, Client, PATIENCE, Stack, StackOptions, eventually, random_name};

async fn ask(client: &Client, key: &str, tool: &str, arguments: &Value) -> Answer {
    let request = client.request(Method::POST, &format!("/v1/tools/{tool}")).header("idempotency-key", key);
    client.send(request.json(arguments)).await
}

#[tokio::test]
async fn a_call_that_is_asked_again_is_answered_again() {
    let sandbox = Stack::shared().sandbox().await;
    let (client, key) = (Stack::shared().client(), random_name("key"));
    let run = json!({ "sandboxId": sandbox.id, "command": "echo x >> runs; wc -l < runs; date +%N" });
    let first = ask(&client, &key, "exec", &run).await;
    assert_eq!(first.header("idempotency-replayed"), None);
    // The order of fields is no difference.
    let text = format!(r#"{{ "command": {}, "sandboxId": {} }}"#, run["command"], run["sandboxId"]);
    let request = client.request(Method::POST, "/v1/tools/exec").header("idempotency-key", &key);
    let second = client.send(request.header("content-type", "application/json").body(text)).await;
    assert_eq!(second.header("idempotency-replayed"), Some("true"));
    assert_eq!(second.ok(), first.ok());
    let id = second.header("x-request-id").unwrap();
    let books = client.call("getAuditLog", &json!({ "requestId": id })).await.ok();
    assert_eq!(books["calls"][0]["result"], "replayed", "{books}");
    let other = json!({ "sandboxId": sandbox.id, "command": "true" });
    ask(&client, &key, "exec", &other).await.problem(409, "idempotency_mismatch");
    ask(&client, &key, "getSandbox", &json!({ "sandboxId": sandbox.id })).await.problem(409, "idempotency_mismatch");
    assert_eq!(sandbox.sh("wc -l < runs").await, "1\n");
    // A stream replays its result.
    let request = client.request(Method::POST, "/v1/tools/exec").header("idempotency-key", &key);
    let stream = client.send(request.header("accept", "text/event-stream").json(&run)).await;
    assert!(stream.text().contains("event: result"), "{}", stream.text());
    assert_eq!(sandbox.sh("wc -l < runs").await, "1\n");
}

#[tokio::test]
async fn parallel_calls_with_one_key_act_once() {
    let stack = Stack::shared();
    let (client, key, place) = (stack.client(), random_name("key"), stack.sandbox().await);
    let run = json!({ "sandboxId": place.id, "command": "sleep 1; echo x >> runs" });
    let answers = join_all((0..20).map(|_| ask(&client, &key, "exec", &run))).await;
    for answer in &answers {
        if answer.status != 200 {
            let problem = answer.problem(409, "in_progress");
            assert!(problem.retryable && problem.headers.contains_key("retry-after"));
        }
    }
    assert!(answers.iter().any(|answer| answer.status == 200));
    assert_eq!(place.sh("wc -l < runs").await, "1\n");
    // A creation without a name makes one sandbox however often it is asked for.
    let key = random_name("key");
    let mut names = Vec::new();
    for _ in 0..3 {
        names.push(ask(&client, &key, "createSandbox", &json!({})).await.ok()["sandboxId"].clone());
    }
    let made = stack.adopt(names[0].as_str().unwrap());
    assert!(names.iter().all(|name| *name == made.id.as_str()), "{names:?}");
}

#[tokio::test]
async fn a_refused_call_leaves_the_key_unused_and_a_bad_key_is_refused() {
    let stack = Stack::shared();
    let (client, key, place) = (stack.client(), random_name("key"), stack.unmade_sandbox());
    let run = json!({ "sandboxId": place.id, "command": "echo x" });
    ask(&client, &key, "exec", &run).await.problem(404, "not_found");
    client.call("createSandbox", &json!({ "id": place.id })).await.ok();
    assert_eq!(ask(&client, &key, "exec", &run).await.ok()["stdout"], "x\n");
    for bad in ["a b", "", &"k".repeat(256)] {
        let problem = ask(&client, bad, "exec", &run).await.problem(400, "invalid_arguments");
        assert_eq!(problem.details["header"], "idempotency-key");
    }
    let path = format!("/v1/sandboxes/{}/files/a", place.id);
    let upload = client.request(Method::PUT, &path).header("idempotency-key", &key).body("x");
    client.send(upload).await.problem(400, "invalid_arguments");
}

#[tokio::test]
async fn a_secret_that_is_told_once_is_not_told_again() {
    let (client, key) = (Stack::shared().client(), random_name("key"));
    let wanted = json!({ "name": "once", "permissions": { "role": "viewer" } });
    let first = ask(&client, &key, "createKey", &wanted).await.ok();
    let second = ask(&client, &key, "createKey", &wanted).await.ok();
    assert_eq!(first["keyId"], second["keyId"]);
    assert!(first["key"].is_string() && second.get("key").is_none(), "{second}");
}

#[tokio::test]
async fn a_worker_killed_in_the_middle_never_runs_a_call_twice() {
    let stack = Stack::start(StackOptions { sweep_seconds: Some(1), ..StackOptions::default() });
    let sandbox = stack.sandbox().await;
    let client = stack.client();
    for round in 0..5 {
        let key = random_name("key");
        let file = format!("runs{round}");
        let run = json!({ "sandboxId": sandbox.id, "command": format!("echo x >> {file}; sleep 1"), "timeout": 60 });
        let request = client.request(Method::POST, "/v1/tools/exec").header("idempotency-key", &key);
        let lost = tokio::spawn(request.json(&run).send());
        let began = format!("cat {file} 2>/dev/null | wc -l");
        let has_begun = || async { (sandbox.sh(&began).await == "1\n").then_some(()) };
        eventually("the command began", PATIENCE, has_begun).await;
        stack.worker().restart();
        let _ = lost.await;
        let again = ask(&client, &key, "exec", &run).await;
        // The first call is open until its deadline; then its outcome is unknown for good.
        if again.status != 200 {
            let problem = again.any_problem();
            assert!(["in_progress", "outcome_unknown"].contains(&problem.code.as_str()), "{}", problem.code);
        }
        assert_eq!(sandbox.sh(&began).await, "1\n", "round {round}");
    }
}
