//! Calls whose callers do not wait: `Prefer: respond-async`, and what becomes of the job.

use base64::{Engine, engine::general_purpose::STANDARD};
use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use test_support::{Answer, Client, PATIENCE, Sandbox, Stack, eventually, random_name};

fn run(sandbox: &Sandbox, command: &str) -> Value {
    json!({ "sandboxId": sandbox.id, "command": command })
}

async fn runs(sandbox: &Sandbox) -> String {
    sandbox.sh("cat runs 2>/dev/null | wc -l").await
}

/// A command with a child that writes for as long as it lives.
pub(crate) const FAMILY: &str = ": > alive; (while true; do echo >> alive; sleep 0.1; done) & sleep 1000";

/// Waits until the child of [`FAMILY`] writes.
pub(crate) async fn family_lives(sandbox: &Sandbox) {
    let lives = || async { (!sandbox.sh("cat alive 2>/dev/null || true").await.is_empty()).then_some(()) };
    eventually("the child of the command writes", PATIENCE, lives).await;
}

/// The child of [`FAMILY`] has written, and does not any more.
pub(crate) async fn family_is_gone(sandbox: &Sandbox) {
    let seen = sandbox.sh("wc -l < alive; sleep 1; wc -l < alive").await;
    let (before, after) = seen.trim().split_once('\n').unwrap();
    assert_ne!(before, "0", "it lived");
    assert_eq!(before, after, "nothing of it lives");
}

#[tokio::test]
async fn a_call_whose_caller_does_not_wait_becomes_a_job() {
    let (root, sandbox) = (Stack::shared().client(), Stack::shared().sandbox().await);
    let slow = run(&sandbox, "sleep 2; echo out; echo err >&2; echo x >> runs; exit 3");
    let asked = root.deferred("exec", &slow).await;
    let (id, told) = (asked.job_id(), asked.json());
    assert_eq!((&told["state"], &told["sandboxId"]), (&json!("queued"), &json!(sandbox.id)));
    assert!(told.get("approval").is_none());
    let done = root.ended(&id).await;
    assert_eq!((&done["state"], &done["exitCode"], &done["attempts"]), (&json!("succeeded"), &json!(3), &json!(1)));
    assert_eq!((&done["output"]["stdout"], &done["output"]["stderr"]), (&json!("out\n"), &json!("err\n")));
    assert_eq!(runs(&sandbox).await, "1\n");
    // One call in the books, whatever it was carried out by.
    let is_recorded = || async {
        let books = root.call("getAuditLog", &json!({ "requestId": id })).await.ok();
        (books["calls"][0]["result"] == "succeeded").then_some(books)
    };
    let books = eventually("the outcome is in the books", PATIENCE, is_recorded).await;
    assert_eq!(books["calls"].as_array().unwrap().len(), 1);
    // Without a sandbox one is made; what fails says why.
    let made = root.ended(&root.deferred("exec", &json!({ "command": "echo hi" })).await.job_id()).await;
    assert_eq!(made["output"]["stdout"], "hi\n", "{made}");
    let late = json!({ "sandboxId": sandbox.id, "command": "echo so far; sleep 100", "timeout": 15 });
    let failed = root.ended(&root.deferred("exec", &late).await.job_id()).await;
    assert_eq!((&failed["state"], &failed["error"]["code"]), (&json!("failed"), &json!("timeout")), "{failed}");
    assert_eq!(failed["error"]["details"]["stdout"], "so far\n");
    // A tool that reads, as a resource too.
    let found = root.deferred("searchFiles", &json!({ "sandboxId": sandbox.id, "content": "x", "path": "runs" })).await;
    assert_eq!(root.ended(&found.job_id()).await["state"], "succeeded");
}

#[tokio::test]
async fn what_is_wrong_or_cannot_be_a_job_is_answered_at_once() {
    let (root, sandbox) = (Stack::shared().client(), Stack::shared().sandbox().await);
    root.deferred("exec", &json!({ "sandboxId": sandbox.id })).await.problem(400, "invalid_arguments");
    root.deferred("exec", &json!({ "sandboxId": random_name("none"), "command": "true" }))
        .await
        .problem(404, "not_found");
    // A preference is no demand.
    let read = root.deferred("getSandbox", &json!({ "sandboxId": sandbox.id })).await;
    assert_eq!((read.status, read.header("preference-applied")), (200, None));
    let mut dry = run(&sandbox, "true");
    dry["dryRun"] = json!(true);
    assert_eq!(root.deferred("exec", &dry).await.ok()["dryRun"], true);
    // Jobs of a key are counted.
    let limits = json!({ "openJobs": 1 });
    let key = json!({ "name": "a test", "permissions": { "role": "operator" }, "limits": limits });
    let key = root.call("createKey", &key).await.ok();
    let operator = root.with_key(key["key"].as_str());
    let mut waits = run(&sandbox, "until [ -e go ]; do sleep 0.1; done");
    waits["timeout"] = json!(300);
    let answers = join_all((0..4).map(|_| operator.deferred("exec", &waits))).await;
    sandbox.sh("touch go").await;
    let jobs: Vec<&Answer> = answers.iter().filter(|answer| answer.status == 202).collect();
    assert_eq!(jobs.len(), 1);
    let refused = answers.iter().find(|answer| answer.status == 429).unwrap().problem(429, "quota_exceeded");
    assert_eq!(refused.details["limitName"], "openJobs");
    // A key that asks every moment would run out of its calls.
    assert_eq!(root.ended(&jobs[0].job_id()).await["state"], "succeeded");
}

#[tokio::test]
async fn an_idempotency_key_gives_the_same_job_and_then_its_answer() {
    let (root, sandbox) = (Stack::shared().client(), Stack::shared().sandbox().await);
    let key = random_name("key");
    // It is not over before all have asked.
    let mut arguments = run(&sandbox, "echo x >> runs; until [ -e go ]; do sleep 0.1; done; wc -l < runs");
    arguments["timeout"] = json!(300);
    let once = || {
        let request = root.request(Method::POST, "/v1/tools/exec").header("idempotency-key", &key);
        root.send(request.header("prefer", "respond-async").json(&arguments))
    };
    let answers = join_all((0..5).map(|_| once())).await;
    let id = answers[0].job_id();
    assert!(answers.iter().all(|answer| answer.job_id() == id));
    sandbox.sh("touch go").await;
    root.ended(&id).await;
    let answered = || async {
        let answer = once().await;
        (answer.status == 200).then_some(answer)
    };
    let answer = eventually("the answer is kept", PATIENCE, answered).await;
    assert_eq!(answer.header("idempotency-replayed"), Some("true"));
    assert_eq!((answer.ok()["stdout"].as_str(), runs(&sandbox).await.as_str()), (Some("1\n"), "1\n"));
}

async fn cancel(client: &Client, job: &str) -> Answer {
    client.send(client.request(Method::POST, &format!("/v1/jobs/{job}/cancel")).json(&json!({}))).await
}

#[tokio::test]
async fn a_cancelled_command_is_gone_with_all_its_children() {
    let (root, sandbox) = (Stack::shared().client(), Stack::shared().sandbox().await);
    let mut arguments = run(&sandbox, FAMILY);
    arguments["timeout"] = json!(300);
    let id = root.deferred("exec", &arguments).await.job_id();
    family_lives(&sandbox).await;
    let dry = root.call("cancelJob", &json!({ "jobId": id, "dryRun": true })).await.ok();
    assert!(dry["effects"].to_string().contains("killed with all its children"), "{dry}");
    // The answer waits for its end for a few seconds only.
    let told = cancel(&root, &id).await.ok();
    assert!(["running", "cancelled"].contains(&told["state"].as_str().unwrap()), "{told}");
    let told = root.ended(&id).await;
    assert_eq!((&told["state"], &told["cancelledBy"]), (&json!("cancelled"), &json!("root")), "{told}");
    assert_eq!(told["error"]["code"], "interrupted");
    family_is_gone(&sandbox).await;
    // The same again changes nothing.
    assert_eq!(cancel(&root, &id).await.ok()["state"], "cancelled");
    let is_recorded = || async {
        let books = root.call("getAuditLog", &json!({ "requestId": id })).await.ok();
        (books["calls"][0]["result"] == "failed").then_some(())
    };
    eventually("the outcome is in the books", PATIENCE, is_recorded).await;
}

#[tokio::test]
async fn in_each_state_a_cancel_is_answered_with_what_is_true() {
    let (root, sandbox) = (Stack::shared().client(), Stack::shared().sandbox().await);
    let permissions = json!({ "role": "operator", "approval": { "tools": ["exec"] } });
    let key = root.call("createKey", &json!({ "name": "a test", "permissions": permissions })).await.ok();
    let agent = root.with_key(key["key"].as_str());
    let waiting = agent.deferred("exec", &run(&sandbox, "echo x >> runs")).await.job_id();
    assert_eq!(cancel(&agent, &waiting).await.ok()["state"], "cancelled");
    root.call("approveJob", &json!({ "jobId": waiting })).await.problem(409, "conflict");
    assert_eq!(runs(&sandbox).await, "0\n");
    // What is over stays as it is.
    let id = root.deferred("exec", &run(&sandbox, "true")).await.job_id();
    assert_eq!(root.ended(&id).await["state"], "succeeded");
    let problem = cancel(&root, &id).await.problem(409, "conflict");
    assert_eq!(problem.details["state"], "succeeded");
    cancel(&root, &random_name("none")).await.problem(404, "not_found");
    // Who could not ask for it cannot end it.
    let files = json!({ "role": "operator", "tools": ["cancelJob", "getJob"] });
    let key = root.call("createKey", &json!({ "name": "a test", "permissions": files })).await.ok();
    cancel(&root.with_key(key["key"].as_str()), &id).await.problem(403, "forbidden");
}

/// What a chunk holds; several writes may share one, and then it is text only if all of them are.
fn bytes(chunk: &Value) -> Vec<u8> {
    let data = chunk["data"].as_str().unwrap();
    match chunk["encoding"].as_str() {
        Some("base64") => STANDARD.decode(data).unwrap(),
        _ => data.as_bytes().to_vec(),
    }
}

#[tokio::test]
async fn what_a_command_writes_is_read_by_offset_while_it_runs_and_followed_to_its_end() {
    let (root, sandbox) = (Stack::shared().client(), Stack::shared().sandbox().await);
    let mut arguments = run(&sandbox, "echo one; echo $MY_TOKEN >&2; read x < gate; echo two; printf '\\377\\376'");
    arguments["env"] = json!({ "MY_TOKEN": "s3cr3t-of-a-job" });
    arguments["timeout"] = json!(300);
    sandbox.sh("mkfifo gate").await;
    let id = root.deferred("exec", &arguments).await.job_id();
    let read = |offset: u64, limit: u64| {
        let path = format!("/v1/jobs/{id}/logs?offset={offset}&limit={limit}");
        let root = root.clone();
        async move { root.get(&path).await.ok() }
    };
    let both = || async {
        let log = read(0, 1000).await;
        let text = log.to_string();
        (text.contains("one") && text.contains("[redacted]\\n")).then_some(log)
    };
    let log = eventually("both lines are told while it runs", PATIENCE, both).await;
    assert_eq!(log["ended"], false);
    assert!(log.to_string().contains("[redacted]") && !log.to_string().contains("s3cr3t"), "{log}");
    let follow = json!({ "jobId": id, "offset": log["nextOffset"], "follow": true, "timeout": 300 });
    let mut followed = root.stream("getJobLogs", &follow).await;
    sandbox.sh("echo go > gate").await;
    let (mut told, mut written) = (Vec::new(), Vec::new());
    while let Some(event) = followed.next().await {
        if event.name == "stdout" {
            written.extend(bytes(&serde_json::from_str(&event.data).unwrap()));
        }
        told.push((event.name, event.data));
    }
    assert_eq!(written, b"two\n\xff\xfe", "{told:?}");
    let (name, result) = told.last().unwrap();
    let result: Value = serde_json::from_str(result).unwrap();
    assert_eq!((name.as_str(), &result["ended"]), ("result", &json!(true)), "{told:?}");
    // Byte by byte it is the same, whatever is asked for at once.
    let end = result["nextOffset"].as_u64().unwrap();
    let mut at = 0;
    while at < end {
        let part = read(at, 7).await;
        let next = part["nextOffset"].as_u64().unwrap();
        assert!(next > at && next <= at + 7 && part["chunks"][0]["offset"] == at, "{part}");
        at = next;
    }
    let rest = read(end, 7).await;
    assert_eq!((&rest["chunks"], &rest["ended"]), (&json!([]), &json!(true)));
    // They are for who may call the tool.
    let key = root.call("createKey", &json!({ "name": "a test", "permissions": { "role": "viewer" } })).await.ok();
    let viewer = root.with_key(key["key"].as_str());
    viewer.get(&format!("/v1/jobs/{id}/logs")).await.problem(403, "forbidden");
    assert_eq!(root.ended(&id).await["state"], "succeeded");
}

#[tokio::test]
async fn a_job_that_did_not_succeed_is_begun_again_on_request_and_no_other() {
    let (root, sandbox) = (Stack::shared().client(), Stack::shared().sandbox().await);
    let retry = |id: String| {
        let root = root.clone();
        async move { root.send(root.request(Method::POST, &format!("/v1/jobs/{id}/retry")).json(&json!({}))).await }
    };
    // It fails the first time, by its timeout, and not the second.
    let mut arguments = run(&sandbox, "echo x >> runs; [ $(wc -l < runs) = 2 ] || sleep 100; echo done");
    arguments["timeout"] = json!(20);
    let id = root.deferred("exec", &arguments).await.job_id();
    assert_eq!(root.ended(&id).await["state"], "failed");
    let told = retry(id.clone()).await.ok();
    assert!(["queued", "running"].contains(&told["state"].as_str().unwrap()), "{told}");
    assert!(told.get("error").is_none() && told.get("endedAt").is_none(), "{told}");
    let told = root.ended(&id).await;
    assert_eq!((&told["state"], &told["output"]["stdout"]), (&json!("succeeded"), &json!("done\n")), "{told}");
    assert_eq!((&told["attempts"], runs(&sandbox).await.as_str()), (&json!(2), "2\n"));
    // The books have either attempt once.
    for (request, result) in [(id.clone(), "failed"), (format!("{id}-2"), "succeeded")] {
        let is_recorded = || async {
            let books = root.call("getAuditLog", &json!({ "requestId": request })).await.ok();
            let calls = books["calls"].as_array().unwrap().clone();
            (calls.len() == 1 && calls[0]["result"] == result).then_some(())
        };
        eventually("the attempt is in the books", PATIENCE, is_recorded).await;
    }
    assert_eq!(retry(id).await.problem(409, "conflict").details["state"], "succeeded");
    // An approval is for one attempt.
    let permissions = json!({ "role": "operator", "approval": { "tools": ["exec"] } });
    let key = root.call("createKey", &json!({ "name": "a test", "permissions": permissions })).await.ok();
    let waiting = root.with_key(key["key"].as_str()).deferred("exec", &run(&sandbox, "echo x >> runs")).await.job_id();
    cancel(&root, &waiting).await.ok();
    retry(waiting).await.problem(409, "conflict");
    assert_eq!(runs(&sandbox).await, "2\n");
    let verified = root.call("verifyAuditLog", &json!({})).await.ok();
    assert_eq!(verified["valid"], true, "{verified}");
}
