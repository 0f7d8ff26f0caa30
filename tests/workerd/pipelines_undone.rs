//! Pipelines that fail: what they did not make stays, and what their steps answered is told to who may call the tools only.

use reqwest::Method;
use serde_json::{Value, json};
use test_support::{Client, PATIENCE, Stack, eventually, random_name};

async fn failed(client: &Client, tool: &str, arguments: &Value) -> Value {
    let told = client.ended(&client.deferred(tool, arguments).await.job_id()).await;
    assert_eq!((&told["state"], &told["error"]["code"]), (&json!("failed"), &json!("step_failed")), "{told}");
    told
}

async fn made(client: &Client, permissions: Value) -> Client {
    let made = client.call("createKey", &json!({ "name": "a test", "permissions": permissions })).await.ok();
    client.with_key(made["key"].as_str())
}

#[tokio::test]
async fn a_sandbox_that_a_pipeline_did_not_make_outlives_its_roll_back() {
    let (root, sandbox) = (Stack::shared().client(), Stack::shared().sandbox().await);
    sandbox.sh("echo precious > data").await;
    // Refused: it is there with other settings. Nothing is cloned.
    let arguments = json!({
        "gitUrl": "https://host.invalid/app.git", "sandboxId": sandbox.id, "destroyOnFailure": true, "build": "true",
    });
    let told = failed(&root, "deployPipeline", &arguments).await;
    assert_eq!(
        (&told["steps"][0]["error"]["code"], &told["steps"][0]["rollBack"]["state"]),
        (&json!("conflict"), &json!("pending")),
        "{told}"
    );
    assert_eq!(sandbox.sh("cat data").await.trim(), "precious");
    // It succeeds and makes nothing, which is not what is expected, or which a later step makes worth nothing.
    let found = root.call("getSandbox", &json!({ "sandboxId": sandbox.id })).await.ok();
    let creation = json!({ "id": sandbox.id, "labels": found["labels"] });
    let undo = json!({ "tool": "destroySandbox", "arguments": { "sandboxId": sandbox.id } });
    let create = json!({ "name": "start", "tool": "createSandbox", "arguments": creation, "rollBack": undo });
    let mut expects = create.clone();
    expects["expect"] = json!({ "created": true });
    let broken =
        json!({ "name": "broken", "tool": "exec", "arguments": { "sandboxId": sandbox.id, "command": "exit 1" } });
    let told = failed(&root, "runPipeline", &json!({ "steps": [expects] })).await;
    let error = &told["steps"][0]["error"];
    assert_eq!((&error["details"]["field"], &error["details"]["actual"]), (&json!("created"), &json!(false)), "{told}");
    let told = failed(&root, "runPipeline", &json!({ "steps": [create, broken] })).await;
    assert_eq!(
        (&told["steps"][0]["state"], &told["error"]["details"]["step"]),
        (&json!("succeeded"), &json!("broken"))
    );
    assert_eq!(sandbox.sh("cat data").await.trim(), "precious");
}

#[tokio::test]
async fn what_a_step_answered_instead_is_told_to_who_may_call_its_tool_only() {
    let (root, sandbox) = (Stack::shared().client(), Stack::shared().sandbox().await);
    let word = random_name("told");
    // The word is in the answer and not in the arguments.
    sandbox.sh(&format!("printf {word} > word")).await;
    let run = json!({ "sandboxId": sandbox.id, "command": "cat word" });
    let steps = json!([{ "name": "say", "tool": "exec", "arguments": run, "expect": { "stdout": "something else" } }]);
    let told = failed(&root, "runPipeline", &json!({ "steps": steps })).await;
    assert_eq!(told["steps"][0]["error"]["details"]["actual"], word.as_str(), "{told}");
    let id = told["jobId"].as_str().unwrap();
    let viewer = made(&root, json!({ "role": "viewer" })).await;
    for path in [format!("/v1/jobs/{id}"), format!("/v1/jobs/{id}-s1"), "/v1/jobs?limit=500".to_owned()] {
        let told = viewer.get(&path).await.ok();
        assert!(told.to_string().contains(id) && !told.to_string().contains(&word), "{path}: {told}");
    }
    let books = root.call("getAuditLog", &json!({ "requestId": id })).await.ok();
    assert!(!books.to_string().contains(&word), "{books}");
}

#[tokio::test]
async fn who_needs_approval_for_what_destroys_stops_its_own_work_at_once() {
    let (root, sandbox) = (Stack::shared().client(), Stack::shared().sandbox().await);
    let rules = json!({ "destructive": true });
    let agent = made(&root, json!({ "role": "operator", "approval": rules })).await;
    let waits = agent.deferred("exec", &json!({ "sandboxId": sandbox.id, "command": "true" })).await.job_id();
    let cancelled = agent.call("cancelJob", &json!({ "jobId": waits })).await.ok();
    assert_eq!(cancelled["state"], "cancelled", "{cancelled}");
    // A rule that names it holds.
    let rules = json!({ "destructive": true, "tools": ["cancelJob"] });
    let held = made(&root, json!({ "role": "operator", "approval": rules })).await;
    let waits = held.deferred("exec", &json!({ "sandboxId": sandbox.id, "command": "true" })).await.job_id();
    let answer = held.call("cancelJob", &json!({ "jobId": waits })).await;
    assert_eq!((answer.status, &answer.json()["state"]), (202, &json!("awaiting_approval")), "{}", answer.text());
}

#[tokio::test]
async fn a_job_tells_the_sandbox_that_was_made_for_it() {
    let root = Stack::shared().client();
    let id = root.deferred("exec", &json!({ "command": "sleep 600", "timeout": 600 })).await.job_id();
    let is_known = || async {
        let told = root.get(&format!("/v1/jobs/{id}")).await.ok();
        told["sandboxId"].as_str().map(str::to_owned)
    };
    let sandbox = eventually("the job tells its sandbox while it runs", PATIENCE, is_known).await;
    let is_listed = || async {
        let listed = root.get(&format!("/v1/jobs?sandboxId={sandbox}")).await.ok();
        (listed["jobs"][0]["jobId"] == id.as_str()).then_some(())
    };
    eventually("the list has it by its sandbox", PATIENCE, is_listed).await;
    root.send(root.request(Method::POST, &format!("/v1/jobs/{id}/cancel"))).await.ok();
    assert_eq!(root.ended(&id).await["sandboxId"], sandbox.as_str());
    root.call("destroySandbox", &json!({ "sandboxId": sandbox })).await.ok();
}
