//! Pipelines: the order of their steps, conditions, roll-backs, what goes on where it failed, and whose rights they have.

use reqwest::Method;
use serde_json::{Value, json};
use test_support::{Answer, Client, PATIENCE, Sandbox, Stack, eventually, random_name};

use crate::jobs::{FAMILY, family_is_gone, family_lives};

/// A step that runs a command, which leaves its name in a file.
fn step(sandbox: &Sandbox, name: &str, command: &str) -> Value {
    let arguments = json!({ "sandboxId": sandbox.id, "command": format!("echo {name} >> ran; {command}") });
    json!({ "name": name, "tool": "exec", "arguments": arguments })
}

/// The same with a roll-back, which leaves its name as well.
fn undoable(sandbox: &Sandbox, name: &str, command: &str) -> Value {
    let mut step = step(sandbox, name, command);
    let arguments = json!({ "sandboxId": sandbox.id, "command": format!("echo undo-{name} >> ran; echo undone") });
    step["rollBack"] = json!({ "tool": "exec", "arguments": arguments });
    step
}

fn with(mut step: Value, name: &str, value: Value) -> Value {
    step[name] = value;
    step
}

async fn ran(sandbox: &Sandbox) -> Vec<String> {
    sandbox.sh("cat ran 2>/dev/null || true").await.lines().map(str::to_owned).collect()
}

async fn run(client: &Client, steps: Value) -> Answer {
    client.deferred("runPipeline", &json!({ "steps": steps })).await
}

fn states(told: &Value) -> Vec<&str> {
    told["steps"].as_array().unwrap().iter().map(|step| step["state"].as_str().unwrap()).collect()
}

async fn made(client: &Client, mut arguments: Value) -> Client {
    arguments["name"] = json!("a test");
    let made = client.call("createKey", &arguments).await.ok();
    client.with_key(made["key"].as_str())
}

async fn retry(client: &Client, id: &str, arguments: Value) -> Answer {
    client.send(client.request(Method::POST, &format!("/v1/jobs/{id}/retry")).json(&arguments)).await
}

/// Waits until a step of a pipeline is in this state.
async fn stands(client: &Client, id: &str, step: usize, state: &str) -> Value {
    let stands = || async {
        let told = client.get(&format!("/v1/jobs/{id}")).await.ok();
        (told["steps"][step]["state"] == state).then_some(told)
    };
    eventually(&format!("step {step} is {state}"), PATIENCE, stands).await
}

#[tokio::test]
async fn steps_run_in_order_and_each_is_a_job_of_its_own() {
    let (root, sandbox) = (Stack::shared().client(), Stack::shared().sandbox().await);
    let write = json!({ "sandboxId": sandbox.id, "path": "message", "content": "from a file" });
    let steps = json!([
        { "name": "write", "tool": "writeFile", "arguments": write },
        step(&sandbox, "read", "cat message; echo problem >&2"),
        with(step(&sandbox, "three", "exit 3"), "expect", json!({ "exitCode": 3 })),
        with(step(&sandbox, "tolerated", "exit 4"), "continueOnError", json!(true)),
        with(step(&sandbox, "on failure", "true"), "condition", json!("onFailure")),
        with(step(&sandbox, "last", "echo bye"), "condition", json!("always")),
    ]);
    // Who waits is answered as by any call.
    let answer = root.call("runPipeline", &json!({ "steps": steps })).await;
    let output = answer.ok();
    assert_eq!(states(&output), ["succeeded", "succeeded", "succeeded", "failed", "skipped", "succeeded"], "{output}");
    assert_eq!(ran(&sandbox).await, ["read", "three", "tolerated", "last"]);
    let id = answer.header("x-request-id").unwrap().to_owned();
    let told = root.get(&format!("/v1/jobs/{id}")).await.ok();
    assert_eq!(
        (&told["state"], &told["tool"], states(&told)),
        (&json!("succeeded"), &json!("runPipeline"), states(&output))
    );
    assert_eq!(told["steps"][3]["error"]["code"], "step_failed", "{told}");
    let three = &told["steps"][2];
    assert_eq!((&three["exitCode"], &three["jobId"]), (&json!(3), &json!(format!("{id}-s3"))));
    assert!(three["startedAt"].as_str().unwrap() <= three["endedAt"].as_str().unwrap(), "{three}");
    // What a step answered is told by its own job.
    let read = root.get(&format!("/v1/jobs/{id}-s2")).await.ok();
    assert_eq!((&read["output"]["stdout"], &read["stepOf"]["step"]), (&json!("from a file"), &json!("read")), "{read}");
    assert_eq!(read["stepOf"]["jobId"], id.as_str());
    // The log has the output of all of them.
    let log = root.get(&format!("/v1/jobs/{id}/logs")).await.ok();
    let chunk = |data: &str| {
        let chunks = log["chunks"].as_array().unwrap();
        chunks.iter().find(|chunk| chunk["data"] == data).unwrap_or_else(|| panic!("{data}: {log}")).clone()
    };
    assert_eq!((&chunk("from a file")["step"], &chunk("from a file")["channel"]), (&json!("read"), &json!("stdout")));
    assert_eq!((&chunk("problem\n")["step"], &chunk("problem\n")["channel"]), (&json!("read"), &json!("stderr")));
    assert_eq!((&chunk("bye\n")["step"], &log["ended"]), (&json!("last"), &json!(true)));
    let mut followed = root.stream("getJobLogs", &json!({ "jobId": id, "follow": true })).await;
    let mut told = Vec::new();
    while let Some(event) = followed.next().await {
        told.push((event.name, serde_json::from_str::<Value>(&event.data).unwrap()));
    }
    let is_last =
        |(name, data): &(String, Value)| name == "stdout" && data["data"] == "bye\n" && data["step"] == "last";
    assert!(told.iter().any(is_last), "{told:?}");
    // The books have the pipeline and each of its steps.
    for (request, tool) in [(id.clone(), "runPipeline"), (format!("{id}-s2"), "exec")] {
        let is_recorded = || async {
            let books = root.call("getAuditLog", &json!({ "requestId": request })).await.ok();
            let calls = books["calls"].as_array().unwrap().clone();
            (calls.len() == 1 && calls[0]["tool"] == tool && calls[0]["result"] == "succeeded").then_some(())
        };
        eventually("the call is in the books", PATIENCE, is_recorded).await;
    }
}

#[tokio::test]
async fn a_failure_is_rolled_back_in_reverse_after_the_steps_that_are_for_it() {
    let (root, sandbox) = (Stack::shared().client(), Stack::shared().sandbox().await);
    let steps = json!([
        undoable(&sandbox, "one", "true"),
        step(&sandbox, "two", "true"),
        undoable(&sandbox, "three", "echo broken >&2; exit 9"),
        undoable(&sandbox, "never", "true"),
        with(step(&sandbox, "report", "true"), "condition", json!("onFailure")),
        with(step(&sandbox, "clean", "true"), "condition", json!("always")),
    ]);
    let id = run(&root, steps.clone()).await.job_id();
    let told = root.ended(&id).await;
    assert_eq!(ran(&sandbox).await, ["one", "two", "three", "report", "clean", "undo-three", "undo-one"]);
    assert_eq!(states(&told), ["rolledBack", "succeeded", "failed", "skipped", "succeeded", "succeeded"], "{told}");
    assert_eq!((&told["state"], &told["error"]["code"]), (&json!("failed"), &json!("step_failed")));
    let details = &told["error"]["details"];
    assert_eq!(
        (&details["step"], &details["exitCode"], details.get("notRolledBack")),
        (&json!("three"), &json!(9), None)
    );
    assert_eq!(told["steps"][0]["rollBack"]["state"], "succeeded");
    assert_eq!(told["steps"][3]["rollBack"]["state"], "pending");
    let log = root.get(&format!("/v1/jobs/{id}/logs")).await.ok();
    let undone = log["chunks"].as_array().unwrap().iter().filter(|chunk| chunk["data"] == "undone\n");
    let undone: Vec<_> = undone.map(|chunk| chunk["step"].as_str().unwrap()).collect();
    assert_eq!(undone, ["rollBack:three", "rollBack:one"]);
    // Who waits is told the same.
    let problem = root.call("runPipeline", &json!({ "steps": steps })).await.problem(422, "step_failed");
    assert_eq!(problem.details["step"], "three");
}

#[tokio::test]
async fn a_pipeline_goes_on_where_it_failed_or_begins_anew() {
    let (root, sandbox) = (Stack::shared().client(), Stack::shared().sandbox().await);
    let steps = json!([
        step(&sandbox, "one", "true"),
        undoable(&sandbox, "two", "true"),
        step(&sandbox, "three", "[ -e mended ]"),
        step(&sandbox, "four", "true"),
    ]);
    let id = run(&root, steps).await.job_id();
    assert_eq!(states(&root.ended(&id).await), ["succeeded", "rolledBack", "failed", "skipped"]);
    // A step is none to be begun again by itself.
    retry(&root, &format!("{id}-s3"), json!({})).await.problem(409, "conflict");
    sandbox.sh("touch mended; rm ran").await;
    retry(&root, &id, json!({ "fromFailed": true })).await.ok();
    let told = root.ended(&id).await;
    // What was undone is done again.
    assert_eq!(ran(&sandbox).await, ["two", "three", "four"], "{told}");
    assert_eq!((&told["state"], states(&told)), (&json!("succeeded"), vec!["succeeded"; 4]));
    assert_eq!(
        (&told["steps"][0]["jobId"], &told["steps"][2]["jobId"]),
        (&json!(format!("{id}-s1")), &json!(format!("{id}-2-s3")))
    );
    // From the first step.
    sandbox.sh("rm mended ran").await;
    let whole = json!([step(&sandbox, "a", "true"), step(&sandbox, "b", "[ -e mended ]")]);
    let id = run(&root, whole).await.job_id();
    assert_eq!(root.ended(&id).await["state"], "failed");
    sandbox.sh("touch mended").await;
    retry(&root, &id, json!({})).await.ok();
    assert_eq!(root.ended(&id).await["state"], "succeeded");
    assert_eq!(ran(&sandbox).await, ["a", "b", "a", "b"]);
    // Other jobs have no failed step.
    let late = json!({ "sandboxId": sandbox.id, "command": "sleep 60", "timeout": 1 });
    let id = root.deferred("exec", &late).await.job_id();
    root.ended(&id).await;
    retry(&root, &id, json!({ "fromFailed": true })).await.problem(409, "conflict");
}

#[tokio::test]
async fn a_cancelled_pipeline_ends_its_step_begins_no_other_and_is_rolled_back() {
    let (root, sandbox) = (Stack::shared().client(), Stack::shared().sandbox().await);
    let steps = json!([
        undoable(&sandbox, "one", "true"),
        undoable(&sandbox, "two", FAMILY),
        with(step(&sandbox, "three", "true"), "condition", json!("always")),
    ]);
    let id = run(&root, steps).await.job_id();
    family_lives(&sandbox).await;
    let dry = root.call("cancelJob", &json!({ "jobId": id, "dryRun": true })).await.ok();
    assert!(dry["effects"].to_string().contains("rolled back"), "{dry}");
    root.call("cancelJob", &json!({ "jobId": id })).await.ok();
    let told = root.ended(&id).await;
    assert_eq!(
        (&told["state"], states(&told)),
        (&json!("cancelled"), vec!["rolledBack", "cancelled", "cancelled"]),
        "{told}"
    );
    assert_eq!(ran(&sandbox).await, ["one", "two", "undo-two", "undo-one"]);
    family_is_gone(&sandbox).await;
}

#[tokio::test]
async fn a_wrong_step_is_refused_by_its_field_before_anything_runs() {
    let (root, sandbox) = (Stack::shared().client(), Stack::shared().sandbox().await);
    let refused = |second: Value, text: &'static str| {
        let (root, first) = (root.clone(), step(&sandbox, "first", "true"));
        async move {
            let problem = run(&root, json!([first, second])).await.problem(400, "invalid_arguments");
            assert!(problem.detail.starts_with(text), "{text}: {}", problem.detail);
            assert!(problem.details["violations"][0]["pointer"].as_str().unwrap().starts_with("/steps/1"));
        }
    };
    let exec = |arguments: Value| json!({ "name": "second", "tool": "exec", "arguments": arguments });
    refused(exec(json!({ "command": "" })), "steps.1.arguments.command:").await;
    refused(exec(json!({ "command": "true", "timeout": 1e9 })), "steps.1.arguments.timeout:").await;
    refused(json!({ "name": "second", "tool": "nothing" }), "steps.1.tool:").await;
    refused(json!({ "name": "second", "tool": "deployPipeline" }), "steps.1.tool:").await;
    refused(step(&sandbox, "first", "true"), "steps.1.name:").await;
    refused(json!({ "name": "second", "tool": "exec", "condition": "sometimes" }), "steps.1.condition:").await;
    let none = root.request(Method::POST, "/v1/pipelines").json(&json!({ "steps": [] }));
    root.send(none).await.problem(400, "invalid_arguments");
    assert_eq!(ran(&sandbox).await, Vec::<String>::new());
    let dry = json!({ "steps": [step(&sandbox, "first", "true")], "dryRun": true });
    let dry = root.call("runPipeline", &dry).await.ok();
    assert!(dry["effects"][0].as_str().unwrap().contains("calls exec"), "{dry}");
    assert_eq!(ran(&sandbox).await, Vec::<String>::new());
}

#[tokio::test]
async fn steps_have_the_rights_and_limits_of_the_key_and_no_more() {
    let (root, sandbox) = (Stack::shared().client(), Stack::shared().sandbox().await);
    let tools = json!(["runPipeline", "readFile", "getJob"]);
    let reader = made(&root, json!({ "permissions": { "role": "operator", "tools": tools } })).await;
    let read = json!({ "name": "read", "tool": "readFile", "arguments": { "sandboxId": sandbox.id, "path": "ran" } });
    let problem = run(&reader, json!([read, step(&sandbox, "run", "true")])).await.problem(403, "forbidden");
    assert_eq!(
        (problem.detail.as_str(), &problem.details["pointer"]),
        ("steps.1.tool: exec is not among the tools of this key", &json!("/steps/1/tool"))
    );
    assert_eq!(ran(&sandbox).await, Vec::<String>::new());
    // A sandbox that the key does not see is none; that is found when it is the step's turn.
    let labels = json!({ "team": random_name("team") });
    let narrow = made(&root, json!({ "permissions": { "role": "operator", "sandboxLabels": labels } })).await;
    let told = narrow.ended(&run(&narrow, json!([step(&sandbox, "run", "true")])).await.job_id()).await;
    assert_eq!(
        (&told["steps"][0]["state"], &told["steps"][0]["error"]["code"]),
        (&json!("failed"), &json!("not_found")),
        "{told}"
    );
    assert_eq!(ran(&sandbox).await, Vec::<String>::new());
    // A pipeline counts as one job, and its steps as none.
    let one = made(
        &root,
        json!({ "permissions": { "role": "operator" }, "limits": { "openJobs": 1, "concurrentCalls": 2 } }),
    )
    .await;
    let mut gated = step(&sandbox, "b", "read x < gate");
    gated["arguments"]["timeout"] = json!(300);
    let steps = json!([step(&sandbox, "a", "true"), gated]);
    sandbox.sh("mkfifo gate").await;
    let id = run(&one, steps.clone()).await.job_id();
    stands(&root, &id, 1, "running").await;
    let refused = run(&one, steps).await.problem(429, "quota_exceeded");
    assert_eq!(refused.details["limitName"], "openJobs");
    sandbox.sh("echo go > gate").await;
    assert_eq!(root.ended(&id).await["state"], "succeeded");
}

#[tokio::test]
async fn a_step_that_has_to_be_approved_makes_the_pipeline_wait() {
    let (root, sandbox) = (Stack::shared().client(), Stack::shared().sandbox().await);
    let rule = json!({ "tool": "exec", "pointer": "/command", "pattern": "*second*" });
    let agent =
        made(&root, json!({ "permissions": { "role": "operator", "approval": { "arguments": [rule] } } })).await;
    let steps =
        json!([undoable(&sandbox, "first", "true"), step(&sandbox, "second", "true"), step(&sandbox, "third", "true")]);
    let id = run(&agent, steps.clone()).await.job_id();
    let told = stands(&root, &id, 1, "awaiting_approval").await;
    let waiting = told["steps"][1]["jobId"].as_str().unwrap().to_owned();
    assert_eq!(root.get(&format!("/v1/jobs/{waiting}")).await.ok()["state"], "awaiting_approval");
    assert_eq!(ran(&sandbox).await, ["first"]);
    root.call("approveJob", &json!({ "jobId": waiting })).await.ok();
    let told = root.ended(&id).await;
    assert_eq!(
        (&told["state"], ran(&sandbox).await),
        (&json!("succeeded"), ["first", "second", "third"].map(str::to_owned).to_vec())
    );
    // It is told of the decision: by itself it looks every five minutes only, which nobody waits for here. Rejected, it fails the pipeline.
    sandbox.sh("rm ran").await;
    let id = run(&agent, steps.clone()).await.job_id();
    let waiting = stands(&root, &id, 1, "awaiting_approval").await["steps"][1]["jobId"].as_str().unwrap().to_owned();
    let is_rejected =
        || async { (root.call("rejectJob", &json!({ "jobId": waiting })).await.status == 200).then_some(()) };
    eventually("the step is rejected", PATIENCE, is_rejected).await;
    let told = root.ended(&id).await;
    assert_eq!((&told["state"], states(&told)), (&json!("failed"), vec!["rolledBack", "failed", "skipped"]), "{told}");
    assert_eq!(told["steps"][1]["error"]["code"], "approval_rejected");
    assert_eq!(ran(&sandbox).await, ["first", "undo-first"]);
    // While it waits it is cancelled at once.
    let id = run(&agent, steps.clone()).await.job_id();
    stands(&root, &id, 1, "awaiting_approval").await;
    root.call("cancelJob", &json!({ "jobId": id })).await.ok();
    assert_eq!(states(&root.ended(&id).await), ["rolledBack", "cancelled", "cancelled"]);
    // And so is one that nobody decides in time, or that is cancelled alone.
    let rules = json!({ "tools": ["exec"], "expiresAfter": 2 });
    let hasty = made(&root, json!({ "permissions": { "role": "operator", "approval": rules } })).await;
    let told = root.ended(&run(&hasty, steps.clone()).await.job_id()).await;
    assert_eq!((&told["state"], &told["steps"][0]["error"]["code"]), (&json!("failed"), &json!("approval_rejected")));
    let id = run(&agent, steps).await.job_id();
    let waiting = stands(&root, &id, 1, "awaiting_approval").await["steps"][1]["jobId"].as_str().unwrap().to_owned();
    let is_cancelled =
        || async { (root.call("cancelJob", &json!({ "jobId": waiting })).await.status == 200).then_some(()) };
    eventually("the step is cancelled", PATIENCE, is_cancelled).await;
    let told = root.ended(&id).await;
    assert_eq!((&told["state"], &told["steps"][1]["state"]), (&json!("failed"), &json!("cancelled")), "{told}");
}

#[tokio::test]
async fn secrets_of_steps_are_in_no_record_of_the_pipeline() {
    let (root, sandbox) = (Stack::shared().client(), Stack::shared().sandbox().await);
    let secret = random_name("s3cr3t");
    let arguments = json!({ "sandboxId": sandbox.id, "command": "echo $MY_TOKEN", "env": { "MY_TOKEN": secret } });
    let id = run(&root, json!([{ "name": "tell", "tool": "exec", "arguments": arguments }])).await.job_id();
    let told = root.ended(&id).await;
    assert_eq!(told["arguments"]["steps"][0]["arguments"]["env"]["MY_TOKEN"], "[not recorded]", "{told}");
    let log = root.get(&format!("/v1/jobs/{id}/logs")).await.ok();
    assert!(log.to_string().contains("[redacted]"), "{log}");
    let books = root.call("getAuditLog", &json!({ "requestId": id })).await.ok();
    for text in [told, log, books] {
        assert!(!text.to_string().contains(&secret), "{text}");
    }
}
