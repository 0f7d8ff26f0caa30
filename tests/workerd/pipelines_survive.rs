//! Pipelines whose Worker is killed in the middle of a step: they go on, and no step runs twice.

use std::path::PathBuf;

use reqwest::Method;
use serde_json::{Value, json};
use test_support::{PATIENCE, Sandbox, Stack, StackOptions, eventually};

use crate::cloning::GitServer;
use crate::jobs_survive::kill;

/// A file that commands append their names to, as the host sees it.
fn file(stack: &Stack, sandbox: &Sandbox) -> PathBuf {
    stack.host().folder().join(format!("default.{}", sandbox.id)).join("workspace/ran")
}

fn ran(file: &PathBuf) -> Vec<String> {
    std::fs::read_to_string(file).unwrap_or_default().lines().map(str::to_owned).collect()
}

async fn reached(file: &PathBuf, name: &str) {
    eventually(name, PATIENCE, || async { ran(file).iter().any(|one| one == name).then_some(()) }).await;
}

fn step(sandbox: &Sandbox, name: &str, command: &str) -> Value {
    let command = format!("echo {name} >> ran; {command}");
    let undo = json!({ "sandboxId": sandbox.id, "command": format!("echo undo-{name} >> ran; sleep 5") });
    json!({
        "name": name, "tool": "exec",
        "arguments": { "sandboxId": sandbox.id, "command": command, "timeout": 200 },
        "rollBack": { "tool": "exec", "arguments": undo },
    })
}

async fn stack_with_sandbox() -> (Stack, Sandbox) {
    let stack = Stack::start(StackOptions::default());
    let sandbox = stack.sandbox_with(json!({ "keepAlive": true })).await;
    (stack, sandbox)
}

#[tokio::test]
async fn a_pipeline_goes_on_through_kills_of_the_worker_and_no_step_runs_twice() {
    let (stack, sandbox) = stack_with_sandbox().await;
    let count = "for i in $(seq 1 10); do echo $i; sleep 0.5; done";
    let steps = json!([step(&sandbox, "one", count), step(&sandbox, "two", count), step(&sandbox, "three", "exit 5")]);
    let id = stack.client().deferred("runPipeline", &json!({ "steps": steps })).await.job_id();
    let file = file(&stack, &sandbox);
    // In the middle of a step, twice, and in the middle of a roll-back.
    for name in ["one", "two", "undo-two"] {
        reached(&file, name).await;
        kill(&stack).await;
    }
    let told = stack.client().ended(&id).await;
    assert_eq!(ran(&file), ["one", "two", "three", "undo-three", "undo-two", "undo-one"], "{told}");
    let states: Vec<_> = told["steps"].as_array().unwrap().iter().map(|step| step["state"].as_str().unwrap()).collect();
    assert_eq!((&told["state"], states), (&json!("failed"), vec!["rolledBack", "rolledBack", "failed"]), "{told}");
    assert_eq!(told["attempts"], 1);
    // Its log has no gap and no repeat.
    let log = stack.client().get(&format!("/v1/jobs/{id}/logs")).await.ok();
    let chunks = log["chunks"].as_array().unwrap();
    let expected: String = (1..=10).map(|number| format!("{number}\n")).collect();
    for name in ["one", "two"] {
        let of_step = chunks.iter().filter(|chunk| chunk["step"] == name);
        let written: String = of_step.map(|chunk| chunk["data"].as_str().unwrap()).collect();
        assert_eq!(written, expected, "{name}: {log}");
    }
}

#[tokio::test]
async fn a_step_whose_end_nobody_saw_is_interrupted_and_not_run_again() {
    let (stack, sandbox) = stack_with_sandbox().await;
    let steps =
        json!([step(&sandbox, "one", "true"), step(&sandbox, "two", "sleep 200"), step(&sandbox, "three", "true")]);
    let id = stack.client().deferred("runPipeline", &json!({ "steps": steps })).await.job_id();
    let file = file(&stack, &sandbox);
    reached(&file, "two").await;
    kill(&stack).await;
    let root = stack.client();
    root.call("stopSandbox", &json!({ "sandboxId": sandbox.id })).await.ok();
    let told = stack.client().ended(&id).await;
    let states: Vec<_> = told["steps"].as_array().unwrap().iter().map(|step| step["state"].as_str().unwrap()).collect();
    assert_eq!(
        (&told["state"], states),
        (&json!("interrupted"), vec!["rolledBack", "interrupted", "skipped"]),
        "{told}"
    );
    assert_eq!((&told["error"]["code"], &told["error"]["details"]["step"]), (&json!("outcome_unknown"), &json!("two")));
    assert_eq!(ran(&file), ["one", "two", "undo-two", "undo-one"]);
    root.call("retryJob", &json!({ "jobId": id, "fromFailed": true })).await.problem(409, "conflict");
}

#[tokio::test]
async fn a_template_clones_builds_and_tests_in_a_sandbox_of_its_own() {
    let server = GitServer::start();
    let root = Stack::shared().client();
    let url = format!("http://{}/public/app.git", server.address);
    let arguments = json!({ "gitUrl": url, "build": "cat file > built; echo $NAME", "test": "grep two built", "env": { "NAME": "n" } });
    let asked = root.deferred("deployPipeline", &arguments).await;
    let id = asked.job_id();
    let told = root.ended(&id).await;
    let named = |field: &str| {
        told["steps"]
            .as_array()
            .unwrap()
            .iter()
            .map(|step| step[field].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(named("name"), ["clone", "build", "test"], "{told}");
    assert_eq!((&told["state"], named("state")), (&json!("succeeded"), vec!["succeeded".to_owned(); 3]), "{told}");
    let built = Stack::shared().adopt(&format!("pipeline-{id}"));
    assert_eq!(built.sh("cat app/built").await, "two");
    let found = root.call("getSandbox", &json!({ "sandboxId": built.id })).await.ok();
    assert!(found["expiresAt"].is_string(), "{found}");
    // Tests that fail leave the sandbox to look at, unless that is not wanted.
    let failing = json!({ "gitUrl": url, "test": "exit 1", "destroyOnFailure": true });
    let failed = root.ended(&root.deferred("deployPipeline", &failing).await.job_id()).await;
    assert_eq!((&failed["state"], &failed["error"]["details"]["step"]), (&json!("failed"), &json!("test")), "{failed}");
    assert_eq!(failed["steps"][0]["state"], "rolledBack", "{failed}");
    let gone = format!("pipeline-{}", failed["jobId"].as_str().unwrap());
    root.call("getSandbox", &json!({ "sandboxId": gone })).await.problem(404, "not_found");
    // A sandbox that is there holds another state of the repository.
    let taken = json!({ "gitUrl": url, "sandboxId": built.id });
    let failed = root.ended(&root.deferred("deployPipeline", &taken).await.job_id()).await;
    assert_eq!(
        (&failed["state"], &failed["error"]["details"]["step"]),
        (&json!("failed"), &json!("clone")),
        "{failed}"
    );
    let wrong = root.request(Method::POST, "/v1/pipelines/deploy").json(&json!({ "gitUrl": "file:///etc" }));
    assert_eq!(root.send(wrong).await.problem(400, "invalid_arguments").details["violations"][0]["pointer"], "/gitUrl");
}
