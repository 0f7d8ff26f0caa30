//! Calls that wait for an approval, at MCP: a question where the client can ask its user, and a job anywhere else.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use test_support::{Client, PATIENCE, Sandbox, Stack, random_name};

use crate::mcp::{legacy, modern_with};

fn forms() -> Value {
    json!({ "elicitation": { "form": {} } })
}

/// An operator whose commands wait.
async fn agent(client: &Client) -> Client {
    let rules = json!({ "role": "operator", "approval": { "tools": ["exec"] } });
    let key = client.call("createKey", &json!({ "name": random_name("agent"), "permissions": rules })).await.ok();
    client.with_key(key["key"].as_str())
}

fn run(sandbox: &Sandbox) -> Value {
    let command = "echo x >> runs; wc -l < runs";
    json!({ "name": "exec", "arguments": { "sandboxId": sandbox.id, "command": command } })
}

async fn called(client: &Client, params: Value) -> Value {
    modern_with(client, forms(), "tools/call", params).await.ok()
}

/// The same call again, with what the user said.
fn again(mut params: Value, state: &Value, answer: Value) -> Value {
    params["requestState"] = state.clone();
    params["inputResponses"] = json!({ "approval": answer });
    params
}

fn waits() -> Value {
    json!({ "action": "accept", "content": { "wait": true } })
}

/// What the call is answered in the end: where a round was over before it, the next ones are waited for too.
async fn answered(client: &Client, sandbox: &Sandbox, mut told: Value) -> Value {
    for _ in 0..3 {
        if told["resultType"] != "input_required" {
            break;
        }
        told = called(client, again(run(sandbox), &told["requestState"], waits())).await["result"].clone();
    }
    told
}

async fn jobs(client: &Client, sandbox: &Sandbox) -> Vec<Value> {
    let listed = client.call("listJobs", &json!({ "sandboxId": sandbox.id })).await.ok();
    listed["jobs"].as_array().unwrap().clone()
}

#[tokio::test]
async fn a_call_that_waits_is_asked_about_and_answered_once_another_key_has_approved() {
    let stack = Stack::shared();
    let (root, sandbox) = (stack.client(), stack.sandbox().await);
    let agent = agent(&root).await;
    let asked = called(&agent, run(&sandbox)).await["result"].clone();
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    assert!(asked.get("content").is_none() && asked.get("isError").is_none(), "{asked}");
    let question = &asked["inputRequests"]["approval"];
    assert_eq!((&question["method"], &question["params"]["mode"]), (&json!("elicitation/create"), &json!("form")));
    assert_eq!(
        question["params"]["requestedSchema"]["properties"].as_object().unwrap().len(),
        1,
        "whether to wait, and nothing else"
    );
    let waiting = jobs(&root, &sandbox).await;
    let [job] = waiting.as_slice() else { panic!("{waiting:?}") };
    assert_eq!(job["state"], "awaiting_approval");
    let id = job["jobId"].as_str().unwrap();
    assert!(question["params"]["message"].as_str().unwrap().contains(id), "{question}");
    let state = &asked["requestState"];
    // Who does not want to wait has the job.
    for answer in [
        json!({ "action": "decline" }),
        json!({ "action": "cancel" }),
        json!({ "action": "accept", "content": { "wait": false } }),
    ] {
        let told = called(&agent, again(run(&sandbox), state, answer)).await["result"].clone();
        assert_eq!(told["resultType"], "complete", "{told}");
        assert_eq!(told["structuredContent"]["job"]["state"], "awaiting_approval", "{told}");
    }
    // Whatever the user says approves nothing.
    let mut answers = waits();
    answers["content"]["approve"] = json!(true);
    answers["content"]["approved"] = json!(true);
    let asking = agent.clone();
    let params = again(run(&sandbox), state, answers);
    let waiting = tokio::spawn(async move { called(&asking, params).await });
    agent.call("approveJob", &json!({ "jobId": id })).await.problem(403, "forbidden");
    assert_eq!(jobs(&root, &sandbox).await[0]["state"], "awaiting_approval");
    root.call("approveJob", &json!({ "jobId": id })).await.ok();
    let told = waiting.await.unwrap()["result"].clone();
    let told = answered(&agent, &sandbox, told).await;
    assert_eq!((&told["resultType"], &told["isError"]), (&json!("complete"), &json!(false)), "{told}");
    assert_eq!(told["structuredContent"]["stdout"], "1\n", "{told}");
    // The state tells how it ended from then on, and nothing is carried out again.
    let told = called(&agent, again(run(&sandbox), state, waits())).await["result"].clone();
    assert_eq!(told["structuredContent"]["stdout"], "1\n", "{told}");
    assert_eq!((sandbox.sh("wc -l < runs").await.as_str(), jobs(&root, &sandbox).await.len()), ("1\n", 1));
}

#[tokio::test]
async fn a_rejected_call_is_an_error_for_who_waits() {
    let stack = Stack::shared();
    let (root, sandbox) = (stack.client(), stack.sandbox().await);
    let agent = agent(&root).await;
    let state = called(&agent, run(&sandbox)).await["result"]["requestState"].clone();
    let id = jobs(&root, &sandbox).await[0]["jobId"].clone();
    root.call("rejectJob", &json!({ "jobId": id, "comment": "not today" })).await.ok();
    let told = called(&agent, again(run(&sandbox), &state, waits())).await["result"].clone();
    assert_eq!(
        (&told["isError"], &told["_meta"]["cloudflare-ops/problem"]["code"]),
        (&json!(true), &json!("approval_rejected")),
        "{told}"
    );
    assert!(told.get("structuredContent").is_none());
}

#[tokio::test]
async fn a_state_is_taken_from_the_same_key_with_the_same_call_only_and_makes_no_second_one() {
    let stack = Stack::shared();
    let (root, sandbox) = (stack.client(), stack.sandbox().await);
    let (mine, other) = (agent(&root).await, agent(&root).await);
    let state = called(&mine, run(&sandbox)).await["result"]["requestState"].clone();
    let text = state.as_str().unwrap();
    let mut changed = run(&sandbox);
    changed["arguments"]["command"] = json!("rm -rf /workspace");
    let forged = json!(text.replace('a', "b").replace('1', "2"));
    let no_state =
        json!({ "name": "exec", "arguments": run(&sandbox)["arguments"], "inputResponses": { "approval": waits() } });
    for (client, params) in [
        (&other, again(run(&sandbox), &state, waits())),
        (&mine, again(changed, &state, waits())),
        (&mine, again(run(&sandbox), &forged, waits())),
        (&mine, again(run(&sandbox), &json!(""), waits())),
        (&mine, again(run(&sandbox), &json!(7), waits())),
        (&mine, no_state),
    ] {
        let answer = called(client, params.clone()).await;
        assert_eq!(answer["error"]["code"], -32602, "{params}: {answer}");
    }
    // A client that says on its way back that it cannot ask is told the job.
    let told =
        modern_with(&mine, json!({}), "tools/call", again(run(&sandbox), &state, json!({ "action": "decline" })))
            .await
            .ok();
    assert_eq!(told["result"]["structuredContent"]["job"]["state"], "awaiting_approval", "{told}");
    assert_eq!(jobs(&root, &sandbox).await.len(), 1);
    assert_eq!(sandbox.sh("ls").await, "");
}

#[tokio::test]
async fn clients_that_cannot_ask_have_the_job() {
    let stack = Stack::shared();
    let (root, sandbox) = (stack.client(), stack.sandbox().await);
    let agent = agent(&root).await;
    for capabilities in [json!({}), json!({ "elicitation": { "url": {} } }), json!({ "sampling": {} })] {
        let told = modern_with(&agent, capabilities, "tools/call", run(&sandbox)).await.ok();
        assert_eq!(told["result"]["structuredContent"]["job"]["state"], "awaiting_approval", "{told}");
        assert_eq!(told["result"]["resultType"], "complete");
    }
    let told = legacy(&agent, "tools/call", run(&sandbox)).await.ok();
    assert_eq!(told["result"]["structuredContent"]["job"]["state"], "awaiting_approval", "{told}");
    // What need not wait is answered as ever.
    let listed = called(&agent, json!({ "name": "listSandboxes", "arguments": {} })).await;
    assert_eq!(listed["result"]["resultType"], "complete", "{listed}");
}

#[tokio::test]
async fn who_waits_too_long_is_asked_again() {
    let stack = Stack::shared();
    let (root, sandbox) = (stack.client(), stack.sandbox().await);
    let agent = agent(&root).await;
    let first = called(&agent, run(&sandbox)).await["result"]["requestState"].clone();
    let asked_at = Instant::now();
    let asked = called(&agent, again(run(&sandbox), &first, waits())).await["result"].clone();
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    assert_ne!(asked["requestState"], first, "it is the next round");
    let took = asked_at.elapsed();
    let least = Duration::from_secs(45);
    assert!(took > least && took < least + PATIENCE, "{took:?}");
    let id = jobs(&root, &sandbox).await[0]["jobId"].clone();
    root.call("approveJob", &json!({ "jobId": id })).await.ok();
    let told = answered(&agent, &sandbox, asked).await;
    assert_eq!(told["structuredContent"]["stdout"], "1\n", "{told}");
}
