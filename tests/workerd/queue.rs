//! How many jobs run at once, in which order the others begin, and a queue with every fault: messages that come twice, at once, in
//! another order, for nobody or never, a queue that throws, jobs that nobody can read.

use reqwest::Method;
use serde_json::{Value, json};
use test_support::{Client, PATIENCE, QueueKind, Sandbox, Stack, StackOptions, damage_job, eventually};

/// A stack in which so many jobs run at once, and a sandbox.
async fn stack(running_jobs: u32, queue: QueueKind) -> (Stack, Sandbox) {
    let options =
        StackOptions { running_jobs: Some(running_jobs), sweep_seconds: Some(1), queue, ..Default::default() };
    let stack = Stack::start(options);
    let sandbox = stack.sandbox_with(json!({ "keepAlive": true })).await;
    (stack, sandbox)
}

/// A job that says its name as it begins, and ends once it is let go.
async fn gated(client: &Client, sandbox: &Sandbox, name: &str) -> String {
    let command = format!("echo {name} >> begun; until [ -e go-{name} ]; do sleep 0.1; done; echo {name} >> ended");
    client.deferred("exec", &json!({ "sandboxId": sandbox.id, "command": command, "timeout": 300 })).await.job_id()
}

fn lines(stack: &Stack, sandbox: &Sandbox, file: &str) -> Vec<String> {
    let path = stack.host().folder().join(format!("default.{}", sandbox.id)).join("workspace").join(file);
    std::fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

async fn begun(stack: &Stack, sandbox: &Sandbox, names: &[&str]) {
    let are = || async { (lines(stack, sandbox, "begun") == names).then_some(()) };
    eventually(&format!("{names:?} began, in this order"), PATIENCE, are).await;
}

async fn let_go(sandbox: &Sandbox, name: &str) {
    sandbox.sh(&format!("touch go-{name}")).await;
}

async fn told(client: &Client, id: &str) -> Value {
    client.get(&format!("/v1/jobs/{id}")).await.ok()
}

fn waits(job: &Value) -> bool {
    job["state"] == "queued" && job["waitsFor"] == "place"
}

#[tokio::test]
async fn so_many_jobs_run_at_once_and_the_others_begin_in_their_order() {
    let (stack, sandbox) = stack(2, QueueKind::Real).await;
    let root = stack.client();
    let mut jobs = Vec::new();
    for name in ["a", "b", "c", "d", "e"] {
        jobs.push(gated(&root, &sandbox, name).await);
        if jobs.len() <= 2 {
            let names = &["a", "b"][..jobs.len()];
            begun(&stack, &sandbox, names).await;
        }
    }
    // Whoever asks is told which wait, one by one and in the list.
    for (index, id) in jobs.iter().enumerate() {
        assert_eq!(waits(&told(&root, id).await), index >= 2, "{index}");
    }
    let list = root.call("listJobs", &json!({ "state": "queued" })).await.ok();
    let listed: Vec<&str> = list["jobs"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|job| waits(job))
        .map(|job| job["jobId"].as_str().unwrap())
        .collect();
    assert_eq!(listed, [&jobs[4], &jobs[3], &jobs[2]]);
    // One that is cancelled leaves the line, and the others keep their order.
    let cancelled = root.call("cancelJob", &json!({ "jobId": jobs[3] })).await.ok();
    assert_eq!((&cancelled["state"], cancelled.get("waitsFor")), (&json!("cancelled"), None));
    let_go(&sandbox, "b").await;
    begun(&stack, &sandbox, &["a", "b", "c"]).await;
    assert!(waits(&told(&root, &jobs[4]).await));
    let_go(&sandbox, "a").await;
    begun(&stack, &sandbox, &["a", "b", "c", "e"]).await;
    let list = root.call("listJobs", &json!({ "state": "running" })).await.ok();
    assert!(list["jobs"].as_array().unwrap().iter().all(|job| job.get("waitsFor").is_none()), "{list}");
    sandbox.sh("touch go-c go-e").await;
    for id in [0, 1, 2, 4] {
        let job = root.ended(&jobs[id]).await;
        assert_eq!((&job["state"], &job["attempts"]), (&json!("succeeded"), &json!(1)), "{job}");
    }
    // A job that is retried takes its turn as any other.
    root.call("retryJob", &json!({ "jobId": jobs[3] })).await.ok();
    begun(&stack, &sandbox, &["a", "b", "c", "e", "d"]).await;
    let_go(&sandbox, "d").await;
    assert_eq!(root.ended(&jobs[3]).await["state"], "succeeded");
}

#[tokio::test]
async fn a_key_has_a_limit_of_its_own_and_pipelines_take_no_place() {
    let (stack, sandbox) = stack(2, QueueKind::Real).await;
    let root = stack.client();
    let key = json!({ "name": "a test", "permissions": { "role": "operator" }, "limits": { "runningJobs": 1 } });
    let key = root.call("createKey", &key).await.ok();
    assert_eq!(key["limits"]["runningJobs"], 1);
    let operator = root.with_key(key["key"].as_str());
    gated(&operator, &sandbox, "a").await;
    begun(&stack, &sandbox, &["a"]).await;
    let second = gated(&operator, &sandbox, "b").await;
    assert!(waits(&told(&root, &second).await));
    // There is one more place, and who came later but has room takes it. The step of a pipeline is a job, the pipeline is none that runs.
    let steps = json!([
        { "name": "one", "tool": "exec", "arguments": { "sandboxId": sandbox.id, "command": "echo 1 >> begun" } },
        { "name": "two", "tool": "exec", "arguments": { "sandboxId": sandbox.id, "command": "echo 2 >> begun" } },
    ]);
    let pipeline = root.deferred("runPipeline", &json!({ "steps": steps })).await.job_id();
    let pipeline = root.ended(&pipeline).await;
    assert_eq!(pipeline["state"], "succeeded", "{pipeline}");
    begun(&stack, &sandbox, &["a", "1", "2"]).await;
    assert!(waits(&told(&root, &second).await));
    // A limit that is raised holds at once.
    root.call("setLimits", &json!({ "keyId": key["keyId"], "limits": { "runningJobs": 2 } })).await.ok();
    begun(&stack, &sandbox, &["a", "1", "2", "b"]).await;
    sandbox.sh("touch go-a go-b").await;
    assert_eq!(root.ended(&second).await["state"], "succeeded");
    let path = format!("/v1/admin/keys/{}/limits", key["keyId"].as_str().unwrap());
    let none = root.send(root.request(Method::PATCH, &path).json(&json!({ "limits": { "runningJobs": 0 } }))).await;
    assert!(none.problem(400, "invalid_arguments").details.to_string().contains("/limits/runningJobs"));
}

#[tokio::test]
async fn messages_that_come_twice_at_once_late_or_for_nobody_change_nothing() {
    let (stack, sandbox) = stack(1, QueueKind::Real).await;
    let root = stack.client();
    let mut jobs = Vec::new();
    for name in ["a", "b", "c", "d"] {
        jobs.push(gated(&root, &sandbox, name).await);
    }
    begun(&stack, &sandbox, &["a"]).await;
    let message = |job: &str, attempt: u32| json!({ "tenant": "default", "jobId": job, "attempt": attempt });
    // All who wait, the last one first, three times each; other attempts; one that runs; what is no message.
    let mut messages: Vec<Value> =
        jobs.iter().rev().flat_map(|job| [message(job, 1), message(job, 2), message(job, 0)]).collect();
    messages.extend(messages.clone());
    messages.extend(jobs.iter().map(|job| message(job, 1)));
    messages.extend([json!("nonsense"), json!({ "jobId": jobs[1] }), json!(null), message("nobody", 1)]);
    root.enqueue(&messages).await;
    let is_read = || async { stack.worker().log().contains("is not readable").then_some(()) };
    eventually("the consumer has read the messages", PATIENCE, is_read).await;
    for id in &jobs[1..] {
        assert!(waits(&told(&root, id).await));
    }
    begun(&stack, &sandbox, &["a"]).await;
    // The same while they begin one after the other.
    for (name, all) in [("a", &["a", "b"][..]), ("b", &["a", "b", "c"]), ("c", &["a", "b", "c", "d"])] {
        root.enqueue(&messages).await;
        let_go(&sandbox, name).await;
        begun(&stack, &sandbox, all).await;
        root.enqueue(&messages).await;
    }
    let_go(&sandbox, "d").await;
    for id in &jobs {
        let job = root.ended(id).await;
        assert_eq!((&job["state"], &job["attempts"]), (&json!("succeeded"), &json!(1)), "{job}");
    }
    root.enqueue(&messages).await;
    let after = gated(&root, &sandbox, "after").await;
    begun(&stack, &sandbox, &["a", "b", "c", "d", "after"]).await;
    let_go(&sandbox, "after").await;
    root.ended(&after).await;
    assert_eq!(lines(&stack, &sandbox, "ended"), ["a", "b", "c", "d", "after"]);
    let verified = root.call("verifyAuditLog", &json!({})).await.ok();
    assert_eq!(verified["valid"], true, "{verified}");
}

#[tokio::test]
async fn a_queue_that_throws_loses_its_messages_or_is_not_there_keeps_no_job_from_running() {
    for kind in [QueueKind::Throws, QueueKind::Loses, QueueKind::Absent] {
        let (stack, sandbox) = stack(1, kind).await;
        let root = stack.client();
        let mut jobs = Vec::new();
        for name in ["a", "b", "c"] {
            jobs.push(gated(&root, &sandbox, name).await);
        }
        begun(&stack, &sandbox, &["a"]).await;
        sandbox.sh("touch go-a go-b go-c").await;
        for id in &jobs {
            assert_eq!(root.ended(id).await["state"], "succeeded", "{kind:?}");
        }
        assert_eq!(lines(&stack, &sandbox, "begun"), ["a", "b", "c"], "{kind:?}");
        let was_asked = stack.worker().log().contains("{\"queued\":");
        assert_eq!(was_asked, kind != QueueKind::Absent, "{kind:?}");
    }
}

#[tokio::test]
async fn a_job_that_cannot_be_read_ends_as_a_dead_letter_while_the_others_outlive_a_kill() {
    let (stack, sandbox) = stack(2, QueueKind::Real).await;
    let root = stack.client();
    let mut jobs = Vec::new();
    for name in ["a", "ran", "poison", "c", "d"] {
        jobs.push(gated(&root, &sandbox, name).await);
        if jobs.len() <= 2 {
            begun(&stack, &sandbox, &["a", "ran"][..jobs.len()]).await;
        }
    }
    // The list knows that they run: what it does not know has begun is told as failed.
    let run = || async {
        let list = root.call("listJobs", &json!({ "state": "running" })).await.ok();
        (list["jobs"].as_array().unwrap().len() == 2).then_some(())
    };
    eventually("the list has two jobs that run", PATIENCE, run).await;
    {
        let mut worker = stack.worker();
        worker.kill();
        damage_job(worker.storage(), &jobs[1]);
        damage_job(worker.storage(), &jobs[2]);
        worker.restart();
    }
    let root = stack.client();
    // Of one that ran nobody knows what it did; one that did not begin is failed. Both leave their places to the others.
    let ran = root.ended(&jobs[1]).await;
    assert_eq!((&ran["state"], &ran["error"]["code"]), (&json!("interrupted"), &json!("outcome_unknown")), "{ran}");
    let poison = root.ended(&jobs[2]).await;
    assert_eq!((&poison["state"], &poison["attempts"]), (&json!("failed"), &json!(0)), "{poison}");
    assert_eq!(
        (&poison["error"]["code"], &poison["error"]["details"]["reason"]),
        (&json!("internal"), &json!("given_up"))
    );
    let list = root.call("listJobs", &json!({ "state": "failed" })).await.ok();
    assert_eq!(list["jobs"][0]["jobId"], jobs[2], "{list}");
    let is_logged = || async { stack.worker().log().contains("a job was given up").then_some(()) };
    eventually("it is in the log", PATIENCE, is_logged).await;
    begun(&stack, &sandbox, &["a", "ran", "c"]).await;
    // It is destroyed when this is dropped.
    let adopted = stack.adopt(&sandbox.id);
    adopted.sh("touch go-a go-ran go-c go-d").await;
    for id in [0, 3, 4] {
        let job = root.ended(&jobs[id]).await;
        assert_eq!((&job["state"], &job["attempts"]), (&json!("succeeded"), &json!(1)), "{job}");
    }
    assert_eq!(lines(&stack, &sandbox, "begun"), ["a", "ran", "c", "d"], "nothing began twice");
    let verified = root.call("verifyAuditLog", &json!({})).await.ok();
    assert_eq!(verified["valid"], true, "{verified}");
}
