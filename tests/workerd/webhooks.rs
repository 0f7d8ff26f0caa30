//! Webhooks: what happens to jobs and sandboxes is told in order, signed, at least once, and holds up nothing.

use std::collections::BTreeSet;

use reqwest::Method;
use serde_json::{Value, json};
use test_support::{
    Answer, Client, HANGS, PATIENCE, Received, Receiver, Sandbox, Stack, StackOptions, daemon_around, eventually,
    find_by_argument, kill_process, random_name,
};

const JOB_EVENTS: [&str; 9] = [
    "job.created",
    "job.awaiting_approval",
    "job.queued",
    "job.running",
    "job.succeeded",
    "job.failed",
    "job.interrupted",
    "job.cancelled",
    "job.rejected",
];

const SANDBOX_EVENTS: [&str; 7] = [
    "sandbox.created",
    "sandbox.started",
    "sandbox.sleeping",
    "sandbox.woken",
    "sandbox.restarted",
    "sandbox.failed",
    "sandbox.destroyed",
];

fn stack() -> Stack {
    Stack::start(StackOptions { private_webhooks: true, ..StackOptions::default() })
}

/// Sets the tenant's webhook; the secret that its messages are signed with.
async fn set(root: &Client, receiver: &Receiver, events: &[&str]) -> String {
    let set = root.call("setAlerts", &json!({ "webhookUrl": receiver.url, "webhookEvents": events })).await.ok();
    set["webhookSecret"].as_str().unwrap().to_owned()
}

fn run(sandbox: &Sandbox, command: &str) -> Value {
    json!({ "sandboxId": sandbox.id, "command": command })
}

/// What a receiver was told of one job.
fn of_job(all: &[Received], job: &str) -> Vec<Received> {
    all.iter().filter(|one| one.json()["data"]["jobId"] == job).cloned().collect()
}

fn kinds(all: &[Received]) -> Vec<String> {
    all.iter().map(Received::kind).collect()
}

/// How many messages these are, however often each was sent.
fn different(all: &[Received]) -> usize {
    all.iter().map(Received::id).collect::<BTreeSet<_>>().len()
}

/// Everything that was told of a job, once there is as much as `kinds`.
async fn told(receiver: &Receiver, job: &str, wanted: &[&str]) -> Vec<Received> {
    let what = format!("the receiver is told {wanted:?}");
    // What was not taken twice is sent again after a minute.
    let all = receiver.once(&what, 2 * PATIENCE, |all| of_job(all, job).len() >= wanted.len()).await;
    let all = of_job(&all, job);
    assert_eq!(kinds(&all), wanted);
    all
}

async fn deliveries(root: &Client, query: &str) -> Vec<Value> {
    root.get(&format!("/v1/admin/webhooks/deliveries?{query}")).await.ok()["deliveries"].as_array().unwrap().clone()
}

#[tokio::test]
async fn a_jobs_whole_life_is_told_in_order_and_signed() {
    let stack = stack();
    let (root, sandbox) = (stack.client(), stack.sandbox().await);
    let receiver = Receiver::start(&["200 OK"]).await;
    let secret = set(&root, &receiver, &JOB_EVENTS).await;
    let job = root.deferred("exec", &run(&sandbox, "echo s3cr3t-output; exit 3")).await.job_id();
    let all = told(&receiver, &job, &["job.created", "job.running", "job.succeeded"]).await;
    for one in &all {
        assert!(one.is_signed_with(&secret) && !one.is_signed_with("whsec_c29tZWJvZHkgZWxzZSdzIHNlY3JldA=="));
        let data = &one.json()["data"];
        assert_eq!((&data["sandboxId"], &data["tool"]), (&json!(sandbox.id), &json!("exec")), "{data}");
        assert!(!one.body.contains("s3cr3t-output") && !one.body.contains("exit 3"), "{}", one.body);
    }
    let mut ids: Vec<&str> = all.iter().map(Received::id).collect();
    ids.dedup();
    assert!(ids.len() == 3 && ids.iter().all(|id| id.starts_with("evt_")), "{ids:?}");
    let (running, done) = (all[1].json(), all[2].json());
    assert_eq!(
        (&running["data"]["state"], running["data"].get("exitCode")),
        (&json!("running"), None),
        "as it was then"
    );
    assert_eq!((&done["data"]["state"], &done["data"]["exitCode"]), (&json!("succeeded"), &json!(3)));
    assert!(running["timestamp"].as_str() <= done["timestamp"].as_str());
    let delivered = || async {
        let told = deliveries(&root, &format!("jobId={job}")).await;
        told.iter().all(|one| one["state"] == "delivered").then_some(told)
    };
    let listed = eventually("they are listed as delivered", PATIENCE, delivered).await;
    let listed: Vec<_> = listed.iter().rev().map(|one| one["messageId"].as_str().unwrap()).collect();
    assert_eq!(listed, all.iter().map(Received::id).collect::<Vec<_>>());
    // One that fails, and is retried.
    let mut arguments = run(&sandbox, "[ -e again ] || sleep 60");
    arguments["timeout"] = json!(10);
    let job = root.deferred("exec", &arguments).await.job_id();
    let all = told(&receiver, &job, &["job.created", "job.running", "job.failed"]).await;
    assert_eq!(all[2].json()["data"]["errorCode"], "timeout");
    sandbox.sh("touch again").await;
    root.send(root.request(Method::POST, &format!("/v1/jobs/{job}/retry")).json(&json!({}))).await.ok();
    let all = ["job.created", "job.running", "job.failed", "job.queued", "job.running", "job.succeeded"];
    assert_eq!(told(&receiver, &job, &all).await[4].json()["data"]["attempts"], 2);
}

#[tokio::test]
async fn what_is_decided_of_a_job_is_told_and_only_chosen_events_are() {
    let stack = stack();
    let (root, sandbox) = (stack.client(), stack.sandbox().await);
    let receiver = Receiver::start(&["200 OK"]).await;
    set(&root, &receiver, &JOB_EVENTS).await;
    let permissions = json!({ "role": "operator", "approval": { "tools": ["exec"] } });
    let key = root.call("createKey", &json!({ "name": "a test", "permissions": permissions })).await.ok();
    let agent = root.with_key(key["key"].as_str());
    let ask = || async { agent.deferred("exec", &run(&sandbox, "true")).await.job_id() };
    let (approved, rejected, cancelled) = (ask().await, ask().await, ask().await);
    root.call("approveJob", &json!({ "jobId": approved })).await.ok();
    root.call("rejectJob", &json!({ "jobId": rejected, "comment": "not today" })).await.ok();
    root.call("cancelJob", &json!({ "jobId": cancelled })).await.ok();
    let waits = ["job.created", "job.awaiting_approval"];
    let all = [&waits[..], &["job.queued", "job.running", "job.succeeded"]].concat();
    assert_eq!(told(&receiver, &approved, &all).await[1].json()["data"]["keyId"], key["keyId"]);
    let all = told(&receiver, &rejected, &[&waits[..], &["job.rejected"]].concat()).await;
    assert_eq!(all[2].json()["data"]["errorCode"], "approval_rejected");
    told(&receiver, &cancelled, &[&waits[..], &["job.cancelled"]].concat()).await;
    set(&root, &receiver, &["job.cancelled"]).await;
    let (first, second) = (ask().await, ask().await);
    for job in [&first, &second] {
        root.call("cancelJob", &json!({ "jobId": job })).await.ok();
        told(&receiver, job, &["job.cancelled"]).await;
    }
    assert_eq!(deliveries(&root, &format!("jobId={first}")).await.len(), 1);
}

#[tokio::test]
async fn a_receiver_that_fails_gets_the_same_message_again_and_the_next_ones_after_it() {
    let stack = stack();
    let (root, sandbox) = (stack.client(), stack.sandbox().await);
    let receiver = Receiver::start(&["500 Oops", "200 OK"]).await;
    let secret = set(&root, &receiver, &JOB_EVENTS).await;
    let job = root.deferred("exec", &run(&sandbox, "true")).await.job_id();
    let all = told(&receiver, &job, &["job.created", "job.created", "job.running", "job.succeeded"]).await;
    assert_eq!((all[0].id(), &all[0].body), (all[1].id(), &all[1].body));
    assert!(all[1].is_signed_with(&secret));
    // Until it is taken, the failure is listed.
    let deaf = Receiver::start(&["500 Oops"]).await;
    set(&root, &deaf, &JOB_EVENTS).await;
    let job = root.deferred("exec", &run(&sandbox, "true")).await.job_id();
    let failed = || async {
        let pending = deliveries(&root, "state=pending").await;
        pending.into_iter().find(|one| one["attempts"].as_u64() >= Some(1))
    };
    let failed = eventually("the failure is listed", PATIENCE, failed).await;
    assert_eq!((&failed["failure"], &failed["jobId"]), (&json!("answered 500"), &json!(job)), "{failed}");
    assert!(failed["nextAttemptAt"].is_string() && failed["receiver"] == "tenant", "{failed}");
}

#[tokio::test]
async fn a_kill_between_a_change_and_its_delivery_loses_nothing() {
    let stack = stack();
    let (root, sandbox) = (stack.client(), stack.sandbox().await);
    let receiver = Receiver::start(&[HANGS, "200 OK"]).await;
    set(&root, &receiver, &JOB_EVENTS).await;
    let job = root.deferred("exec", &run(&sandbox, "touch begun; sleep 3")).await.job_id();
    let first = receiver.after(1, PATIENCE).await;
    let begun = || async { (sandbox.sh("ls").await.contains("begun")).then_some(()) };
    eventually("the command runs", PATIENCE, begun).await;
    stack.worker().restart();
    let is_over = |all: &[Received]| of_job(all, &job).iter().any(|one| one.kind() == "job.succeeded");
    let all = receiver.once("the receiver is told of the end", PATIENCE, is_over).await;
    let mut all = of_job(&all, &job);
    assert_eq!((all[1].id(), &all[1].body), (first[0].id(), &first[0].body));
    // What was taken right before the kill may be sent again.
    all.dedup_by(|one, before| one.id() == before.id());
    assert_eq!(kinds(&all), ["job.created", "job.running", "job.succeeded"]);
}

#[tokio::test]
async fn a_webhook_that_is_taken_away_is_told_nothing_more_and_one_that_is_replaced_gets_what_waits() {
    let stack = stack();
    let (root, sandbox) = (stack.client(), stack.sandbox().await);
    let (deaf, receiver) = (Receiver::start(&["503 Later"]).await, Receiver::start(&["200 OK"]).await);
    set(&root, &deaf, &JOB_EVENTS).await;
    let job = root.deferred("exec", &run(&sandbox, "true")).await.job_id();
    root.ended(&job).await;
    deaf.after(1, PATIENCE).await;
    set(&root, &receiver, &JOB_EVENTS).await;
    told(&receiver, &job, &["job.created", "job.running", "job.succeeded"]).await;
    set(&root, &deaf, &JOB_EVENTS).await;
    let job = root.deferred("exec", &run(&sandbox, "true")).await.job_id();
    root.ended(&job).await;
    // Who is asked for a job knows of its end before those do who tell of it.
    let told_of = || async { (deliveries(&root, &format!("jobId={job}")).await.len() == 3).then_some(()) };
    eventually("all three are to be sent", PATIENCE, told_of).await;
    root.call("setAlerts", &json!({})).await.ok();
    let given_up = || async {
        let all = deliveries(&root, &format!("jobId={job}&state=failed")).await;
        (all.len() == 3).then_some(all)
    };
    let all = eventually("what waited is given up", PATIENCE, given_up).await;
    assert!(all.iter().all(|one| one["failure"] == "the webhook was taken away"), "{all:?}");
    let whole = root.call("listWebhookDeliveries", &json!({ "limit": 4 })).await.ok();
    assert!(!whole.to_string().contains("token=abc") && !whole.to_string().contains("whsec"), "{whole}");
    let next = json!({ "limit": 4, "cursor": whole["nextCursor"] });
    let next = root.call("listWebhookDeliveries", &next).await.ok();
    assert_eq!((next["deliveries"].as_array().unwrap().len(), next.get("nextCursor")), (2, None), "{next}");
}

/// A call whose caller does not wait, with a webhook of its own.
async fn deferred_to(root: &Client, arguments: &Value, url: &str) -> Answer {
    let request = root.request(Method::POST, "/v1/tools/exec").header("prefer", "respond-async");
    root.send(request.header("webhook-url", url).json(arguments)).await
}

#[tokio::test]
async fn a_job_is_told_to_the_webhook_that_its_call_named() {
    let stack = stack();
    let (root, sandbox) = (stack.client(), stack.sandbox().await);
    let receiver = Receiver::start(&["200 OK"]).await;
    let secret = root.call("setAlerts", &json!({})).await.ok()["webhookSecret"].as_str().unwrap().to_owned();
    let life = ["job.created", "job.running", "job.succeeded"];
    let job = deferred_to(&root, &run(&sandbox, "true"), &receiver.url).await.job_id();
    let all = told(&receiver, &job, &life).await;
    assert!(all.iter().all(|one| one.is_signed_with(&secret)));
    // The tenant's webhook is told what it chose, under the same ids; where both are one, it is told once.
    let of_tenant = Receiver::start(&["200 OK"]).await;
    set(&root, &of_tenant, &["job.succeeded"]).await;
    let job = deferred_to(&root, &run(&sandbox, "true"), &receiver.url).await.job_id();
    let all = told(&receiver, &job, &life).await;
    assert_eq!(told(&of_tenant, &job, &["job.succeeded"]).await[0].id(), all[2].id());
    let job = deferred_to(&root, &run(&sandbox, "true"), &of_tenant.url).await.job_id();
    told(&of_tenant, &job, &life).await;
    let receivers = || async {
        let all = deliveries(&root, &format!("jobId={job}&state=delivered")).await;
        (all.len() == 3).then(|| all.iter().map(|one| one["receiver"].as_str().unwrap().to_owned()).collect::<Vec<_>>())
    };
    let receivers = eventually("each is delivered once", PATIENCE, receivers).await;
    assert_eq!(receivers, ["tenant", "job", "job"]);
    let told = root.call("getJob", &json!({ "jobId": job })).await.ok();
    assert!(!told.to_string().contains("token=abc"), "the URL may hold a secret");
}

#[tokio::test]
async fn receivers_that_hang_delay_nobody_else() {
    let stack = stack();
    let (root, sandbox) = (stack.client(), stack.sandbox().await);
    let (deaf, receiver) = (Receiver::start(&[HANGS]).await, Receiver::start(&["200 OK"]).await);
    set(&root, &deaf, &JOB_EVENTS).await;
    let life = ["job.created", "job.running", "job.succeeded"];
    let job = deferred_to(&root, &run(&sandbox, "true"), &receiver.url).await.job_id();
    told(&receiver, &job, &life).await;
    deaf.after(1, PATIENCE).await;
    assert_eq!(different(&deaf.all()), 1, "it hangs with the first message, and was told in vain of no other");
    // And the other way round, with more of them than are sent to at once.
    set(&root, &receiver, &JOB_EVENTS).await;
    told(&receiver, &job, &[&life[..], &life[..]].concat()).await;
    for _ in 0..6 {
        let silent = Receiver::start(&[HANGS]).await;
        let job = deferred_to(&root, &run(&sandbox, "true"), &silent.url).await.job_id();
        told(&receiver, &job, &life).await;
        assert!(
            different(&silent.all()) <= 1,
            "its first message is still under way, or waits for those of the ones before"
        );
    }
}

#[tokio::test]
async fn a_sandboxs_life_is_told() {
    let stack = stack();
    let root = stack.client();
    let receiver = Receiver::start(&["200 OK"]).await;
    let secret = set(&root, &receiver, &SANDBOX_EVENTS).await;
    let sandbox = stack.sandbox_with(json!({ "env": { "MY_TOKEN": "s3cr3t-of-a-sandbox" } })).await;
    sandbox.call("stopSandbox", json!({})).await.ok();
    sandbox.call("wakeSandbox", json!({})).await.ok();
    let marker = random_name("webhooks");
    sandbox.sh(&format!("(exec -a {marker} sleep 300) >&- 2>&- & echo")).await;
    kill_process(daemon_around(&marker).await);
    let gone = || async { find_by_argument(&marker).is_empty().then_some(()) };
    eventually("the sandbox is dead", PATIENCE, gone).await;
    sandbox.sh("true").await;
    sandbox.call("destroySandbox", json!({})).await.ok();
    let wanted = [
        ("sandbox.created", "created", 0),
        ("sandbox.started", "running", 1),
        ("sandbox.sleeping", "sleeping", 1),
        ("sandbox.woken", "running", 2),
        ("sandbox.failed", "error", 2),
        ("sandbox.restarted", "running", 3),
        ("sandbox.destroyed", "destroyed", 3),
    ];
    let all = receiver.after(wanted.len(), PATIENCE).await;
    let told: Vec<Value> = all.iter().map(Received::json).collect();
    let told: Vec<_> = told
        .iter()
        .map(|one| {
            let data = &one["data"];
            assert_eq!((&data["sandboxId"], &data["keyId"]), (&json!(sandbox.id), &json!("root")), "{one}");
            (one["type"].as_str().unwrap(), data["state"].as_str().unwrap(), data["generation"].as_u64().unwrap())
        })
        .collect();
    assert_eq!(told, wanted);
    assert!(all.iter().all(|one| one.is_signed_with(&secret) && !one.body.contains("s3cr3t")));
    assert_eq!(deliveries(&root, &format!("sandboxId={}", sandbox.id)).await.len(), wanted.len());
}

#[tokio::test]
async fn what_is_no_webhook_is_refused_by_its_field_and_deliveries_are_for_administrators() {
    let root = Stack::shared().client();
    let cases = [
        (json!({ "webhookEvents": ["job.created"] }), "webhookEvents"),
        (json!({ "webhookUrl": "https://hooks.example.com/", "webhookEvents": ["job.dreamt"] }), "webhookEvents"),
        (json!({ "webhookUrl": "https://127.0.0.1/x", "webhookEvents": ["job.created"] }), "webhookUrl"),
        (json!({ "webhookUrl": "http://hooks.example.com/", "webhookEvents": ["job.created"] }), "webhookUrl"),
    ];
    for (arguments, field) in cases {
        let problem = root.call("setAlerts", &arguments).await.problem(400, "invalid_arguments");
        assert!(problem.detail.contains(field), "{arguments}: {}", problem.detail);
    }
    for url in ["https://127.0.0.1/x", "http://hooks.example.com/", "https://localhost/", "nonsense"] {
        let problem = deferred_to(&root, &json!({ "command": "true" }), url).await.problem(400, "invalid_arguments");
        assert_eq!(
            (problem.details["header"].as_str(), problem.detail.contains("Webhook-Url")),
            (Some("webhook-url"), true)
        );
    }
    root.call("listWebhookDeliveries", &json!({ "cursor": "x" })).await.problem(400, "invalid_arguments");
    root.call("listWebhookDeliveries", &json!({ "state": "lost" })).await.problem(400, "invalid_arguments");
    let permissions = [json!({ "role": "operator" }), json!({ "role": "admin", "sandboxLabels": { "team": "a" } })];
    for permissions in permissions {
        let key = root.call("createKey", &json!({ "name": "a test", "permissions": permissions })).await.ok();
        let client = root.with_key(key["key"].as_str());
        client.call("listWebhookDeliveries", &json!({})).await.problem(403, "forbidden");
    }
}
