//! Calls that wait until another key approves them: carried out once, with the rights of then, or never.

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use test_support::{Answer, Client, PATIENCE, Sandbox, Stack, StackOptions, eventually, random_name};

async fn made(client: &Client, mut arguments: Value) -> (String, Client) {
    arguments["name"] = json!("a test");
    let made = client.call("createKey", &arguments).await.ok();
    (made["keyId"].as_str().unwrap().to_owned(), client.with_key(made["key"].as_str()))
}

/// An operator whose commands wait.
async fn agent(client: &Client) -> (String, Client) {
    made(client, json!({ "permissions": { "role": "operator", "approval": { "tools": ["exec"] } } })).await
}

fn run(sandbox: &Sandbox) -> Value {
    json!({ "sandboxId": sandbox.id, "command": "echo x >> runs; wc -l < runs" })
}

async fn runs(sandbox: &Sandbox) -> String {
    sandbox.sh("cat runs 2>/dev/null | wc -l").await
}

#[tokio::test]
async fn an_approved_call_is_carried_out_once() {
    let (root, sandbox) = (Stack::shared().client(), Stack::shared().sandbox().await);
    let (key_id, agent) = agent(&root).await;
    let asked = agent.call("exec", &run(&sandbox)).await;
    let waiting = asked.json();
    let id = asked.job_id();
    assert_eq!((&waiting["state"], &waiting["keyId"]), (&json!("awaiting_approval"), &json!(key_id)));
    assert_eq!(waiting["approval"]["reason"]["rule"], "tool");
    assert_eq!(asked.header("x-request-id"), Some(id.as_str()));
    assert_eq!(runs(&sandbox).await, "0\n");
    let page = root.get(&format!("/v1/jobs?state=awaiting_approval&keyId={key_id}")).await.ok();
    assert_eq!(page["jobs"][0]["jobId"], id.as_str());
    let told = root.get(&format!("/v1/jobs/{id}")).await.ok();
    assert_eq!(told["arguments"]["command"], run(&sandbox)["command"]);

    let signature = json!({ "jobId": id, "argumentsSignature": "0".repeat(64) });
    root.call("approveJob", &signature).await.problem(409, "conflict");
    let approve = json!({ "argumentsSignature": told["argumentsSignature"], "comment": "looks right" });
    let path = format!("/v1/jobs/{id}/approve");
    let approved = root.send(root.request(Method::POST, &path).json(&approve)).await.ok();
    assert_eq!(approved["approval"]["decidedBy"], "root");
    let done = agent.ended(&id).await;
    assert_eq!((&done["state"], &done["output"]["stdout"]), (&json!("succeeded"), &json!("1\n")), "{done}");
    assert_eq!((&done["exitCode"], &done["attempts"]), (&json!(0), &json!(1)));
    // The same decision again changes nothing, another comes too late.
    root.call("approveJob", &json!({ "jobId": id })).await.ok();
    root.call("rejectJob", &json!({ "jobId": id })).await.problem(409, "conflict");
    assert_eq!(runs(&sandbox).await, "1\n");
    // Who may not call the tool is not told what it answered.
    let (_, viewer) = made(&root, json!({ "permissions": { "role": "viewer" } })).await;
    let seen = viewer.get(&format!("/v1/jobs/{id}/status")).await.ok();
    assert!(seen.get("output").is_none() && seen["state"] == "succeeded", "{seen}");
    let is_recorded = || async {
        let books = root.call("getAuditLog", &json!({ "requestId": id })).await.ok();
        (books["calls"][0]["result"] == "succeeded").then_some(books)
    };
    let books = eventually("the outcome is in the books", PATIENCE, is_recorded).await;
    let approval = &books["calls"][0]["approval"];
    assert_eq!((&approval["approved"], &approval["decidedBy"]), (&json!(true), &json!("root")), "{books}");
    assert_eq!(books["calls"].as_array().unwrap().len(), 1);
    let verified = root.call("verifyAuditLog", &json!({})).await.ok();
    assert_eq!(verified["valid"], true, "{verified}");
}

#[tokio::test]
async fn nobody_approves_for_themselves() {
    let (root, sandbox) = (Stack::shared().client(), Stack::shared().sandbox().await);
    let approval = json!({ "destructive": true });
    let (_, admin) = made(&root, json!({ "permissions": { "role": "admin", "approval": approval } })).await;
    let id = admin.call("exec", &run(&sandbox)).await.job_id();
    // It can make a key only that has its rules, and that one is no other.
    let wide = json!({ "name": "wide", "permissions": { "role": "admin" } });
    let problem = admin.call("createKey", &wide).await.problem(403, "forbidden");
    assert_eq!(problem.details["field"], "permissions.approval");
    let own = json!({ "destructive": true, "approvesOwn": true });
    let problem = admin
        .call("createKey", &json!({ "name": "own", "permissions": { "role": "admin", "approval": own } }))
        .await
        .problem(403, "forbidden");
    assert_eq!(problem.details["field"], "permissions.approval");
    let permissions = json!({ "role": "admin", "approval": approval });
    let (_, child) = made(&admin, json!({ "permissions": permissions })).await;
    let token = admin.call("createToken", &json!({ "permissions": permissions })).await.ok();
    let token = admin.with_key(token["token"].as_str());
    for own in [&admin, &child, &token] {
        for tool in ["approveJob", "rejectJob"] {
            // Both are destructive, so that they wait themselves; a dry run is held against the same rule at once.
            let dry = own.call(tool, &json!({ "jobId": id, "dryRun": true })).await;
            dry.problem(403, "forbidden");
        }
    }
    let (_, operator) = made(&root, json!({ "permissions": { "role": "operator" } })).await;
    operator.call("approveJob", &json!({ "jobId": id })).await.problem(403, "forbidden");
    let (_, scoped) = made(&root, json!({ "permissions": { "role": "admin", "scopes": ["jobs:read"] } })).await;
    let problem = scoped.call("approveJob", &json!({ "jobId": id })).await.problem(403, "forbidden");
    assert!(problem.detail.contains("jobs:approve"), "{}", problem.detail);
    assert_eq!(runs(&sandbox).await, "0\n");
    let scopes = json!(["jobs:read", "jobs:approve"]);
    let (approver_id, approver) = made(&root, json!({ "permissions": { "role": "admin", "scopes": scopes } })).await;
    approver.call("approveJob", &json!({ "jobId": id })).await.ok();
    let done = root.ended(&id).await;
    assert_eq!((&done["state"], &done["approval"]["decidedBy"]), (&json!("succeeded"), &json!(approver_id)));
    // A key whose rules say so approves its own calls.
    let own = json!({ "tools": ["exec"], "approvesOwn": true });
    let (_, own) = made(&root, json!({ "permissions": { "role": "admin", "approval": own } })).await;
    let id = own.call("exec", &run(&sandbox)).await.job_id();
    own.call("approveJob", &json!({ "jobId": id })).await.ok();
    assert_eq!(own.ended(&id).await["state"], "succeeded");
}

#[tokio::test]
async fn nobody_approves_by_another_key_that_could_be_its_own() {
    let (root, sandbox) = (Stack::shared().client(), Stack::shared().sandbox().await);
    let rules = json!({ "tools": ["exec"] });
    let with_rules = json!({ "permissions": { "role": "admin", "approval": rules } });
    let ((_, alice), (bob_id, bob)) = (made(&root, with_rules.clone()).await, made(&root, with_rules.clone()).await);
    let ((child_id, child), (_, sibling)) =
        (made(&alice, with_rules.clone()).await, made(&alice, with_rules.clone()).await);
    // Whoever has rules holds, or may hold, the secrets of the keys that it made.
    let asked_by_child = child.call("exec", &run(&sandbox)).await.job_id();
    for hand in [&alice, &sibling, &child] {
        hand.call("approveJob", &json!({ "jobId": asked_by_child })).await.problem(403, "forbidden");
    }
    // It is not told the secret of a key that may approve for it.
    let problem = alice.call("rotateKey", &json!({ "keyId": bob_id })).await.problem(403, "forbidden");
    assert_eq!(problem.details["field"], "keyId");
    alice.call("rotateKey", &json!({ "keyId": child_id })).await.ok();
    assert_eq!(runs(&sandbox).await, "0\n");
    bob.call("approveJob", &json!({ "jobId": asked_by_child })).await.ok();
    assert_eq!(root.ended(&asked_by_child).await["state"], "succeeded");
    // Who made both and has no rules is above both.
    let (_, chief) = made(&root, json!({ "permissions": { "role": "admin" } })).await;
    let ((_, one), (_, two)) = (made(&chief, with_rules.clone()).await, made(&chief, with_rules).await);
    for decides in [&two, &chief] {
        let id = one.call("exec", &run(&sandbox)).await.job_id();
        decides.call("approveJob", &json!({ "jobId": id })).await.ok();
        assert_eq!(root.ended(&id).await["state"], "succeeded");
    }
}

#[tokio::test]
async fn an_approval_is_of_the_sandbox_that_was_there() {
    let stack = Stack::shared();
    let (root, sandbox) = (stack.client(), stack.sandbox().await);
    let (_, agent) = agent(&root).await;
    let id = agent.call("exec", &run(&sandbox)).await.job_id();
    root.call("destroySandbox", &json!({ "sandboxId": sandbox.id })).await.ok();
    root.call("createSandbox", &json!({ "id": sandbox.id })).await.ok();
    root.call("approveJob", &json!({ "jobId": id })).await.ok();
    let told = root.ended(&id).await;
    assert_eq!((&told["state"], &told["error"]["code"]), (&json!("failed"), &json!("stale_generation")), "{told}");
    assert_eq!(runs(&sandbox).await, "0\n");
}

#[tokio::test]
async fn what_a_command_wrote_before_it_failed_is_for_who_may_run_commands() {
    let (root, sandbox) = (Stack::shared().client(), Stack::shared().sandbox().await);
    let (_, agent) = agent(&root).await;
    let slow = json!({ "sandboxId": sandbox.id, "command": "echo private; sleep 100", "timeout": 15 });
    let id = agent.call("exec", &slow).await.job_id();
    root.call("approveJob", &json!({ "jobId": id })).await.ok();
    let told = agent.ended(&id).await;
    assert_eq!((&told["state"], &told["error"]["code"]), (&json!("failed"), &json!("timeout")), "{told}");
    assert_eq!(told["error"]["details"]["stdout"], "private\n", "{told}");
    let (_, viewer) = made(&root, json!({ "permissions": { "role": "viewer" } })).await;
    let seen = viewer.call("getJob", &json!({ "jobId": id })).await.ok();
    let listed = viewer.get("/v1/jobs?state=failed").await.ok();
    for told in [seen, listed] {
        assert!(told.to_string().contains(&id) && !told.to_string().contains("private\\n"), "{told}");
    }
}

#[tokio::test]
async fn a_rejected_or_forgotten_call_is_never_carried_out() {
    let (root, sandbox) = (Stack::shared().client(), Stack::shared().sandbox().await);
    let (_, agent) = agent(&root).await;
    let id = agent.call("exec", &run(&sandbox)).await.job_id();
    root.call("rejectJob", &json!({ "jobId": id, "comment": "not today" })).await.ok();
    let told = agent.call("getJob", &json!({ "jobId": id })).await.ok();
    assert_eq!((&told["state"], &told["error"]["code"]), (&json!("rejected"), &json!("approval_rejected")));
    assert_eq!(told["error"]["details"]["comment"], "not today");
    root.call("approveJob", &json!({ "jobId": id })).await.problem(409, "conflict");
    let rules = json!({ "tools": ["exec"], "expiresAfter": 1 });
    let (_, hasty) = made(&root, json!({ "permissions": { "role": "operator", "approval": rules } })).await;
    let id = hasty.call("exec", &run(&sandbox)).await.job_id();
    let told = hasty.ended(&id).await;
    assert_eq!((&told["state"], &told["error"]["details"]["reason"]), (&json!("rejected"), &json!("expired")));
    root.call("approveJob", &json!({ "jobId": id })).await.problem(409, "conflict");
    assert_eq!(runs(&sandbox).await, "0\n");
    let none = root.call("getJob", &json!({ "jobId": "none" })).await;
    none.problem(404, "not_found");
}

#[tokio::test]
async fn the_key_must_still_be_valid_when_its_call_is_carried_out() {
    let (root, sandbox) = (Stack::shared().client(), Stack::shared().sandbox().await);
    let (key_id, agent) = agent(&root).await;
    let id = agent.call("exec", &run(&sandbox)).await.job_id();
    root.call("revokeKey", &json!({ "keyId": key_id })).await.ok();
    root.call("approveJob", &json!({ "jobId": id })).await.ok();
    let told = root.ended(&id).await;
    assert_eq!((&told["state"], &told["error"]["code"]), (&json!("failed"), &json!("unauthenticated")));
    assert_eq!((&told["attempts"], runs(&sandbox).await.as_str()), (&json!(0), "0\n"));
}

#[tokio::test]
async fn an_idempotency_key_gives_the_same_job_and_then_its_answer() {
    let (root, sandbox) = (Stack::shared().client(), Stack::shared().sandbox().await);
    let (_, agent) = agent(&root).await;
    let key = random_name("key");
    let ask = |arguments: Value| {
        let request = agent.request(Method::POST, "/v1/tools/exec").header("idempotency-key", &key);
        let agent = agent.clone();
        async move { agent.send(request.json(&arguments)).await }
    };
    // A call that is wrong becomes no job, and uses the key not up.
    ask(json!({ "sandboxId": sandbox.id })).await.problem(400, "invalid_arguments");
    ask(json!({ "sandboxId": random_name("none"), "command": "true" })).await.problem(404, "not_found");
    let answers = join_all((0..5).map(|_| ask(run(&sandbox)))).await;
    let id = answers[0].job_id();
    assert!(answers.iter().all(|answer| answer.job_id() == id));
    ask(json!({ "sandboxId": sandbox.id, "command": "false" })).await.problem(409, "idempotency_mismatch");
    root.call("approveJob", &json!({ "jobId": id })).await.ok();
    agent.ended(&id).await;
    let answered = || async {
        let answer = ask(run(&sandbox)).await;
        (answer.status == 200).then_some(answer)
    };
    let answer = eventually("the answer is kept", PATIENCE, answered).await;
    assert_eq!(answer.header("idempotency-replayed"), Some("true"));
    assert_eq!(answer.ok()["stdout"], "1\n");
    assert_eq!(runs(&sandbox).await, "1\n");
}

#[tokio::test]
async fn a_pattern_on_arguments_makes_a_call_wait() {
    let (root, sandbox) = (Stack::shared().client(), Stack::shared().sandbox().await);
    let rule = json!({ "tool": "exec", "pointer": "/command", "pattern": "*deploy*" });
    let approval = json!({ "arguments": [rule] });
    let permissions = json!({ "role": "operator", "approval": approval });
    let (_, agent) = made(&root, json!({ "permissions": permissions, "limits": { "concurrentCalls": 1 } })).await;
    let exec = |command: String| {
        let (agent, id) = (agent.clone(), sandbox.id.clone());
        async move { agent.call("exec", &json!({ "sandboxId": id, "command": command })).await }
    };
    assert_eq!(exec("echo x".into()).await.ok()["stdout"], "x\n");
    // What is looked at is the whole argument, however long.
    for command in ["make deploy".to_owned(), format!("{}make deploy", "#\n".repeat(10_000))] {
        let answer = exec(command).await;
        assert_eq!(answer.json()["approval"]["reason"]["argument"]["pattern"], "*deploy*");
        answer.job_id();
    }
    // Those that wait are not open: there is room for one more call at once.
    assert_eq!(exec("echo y".into()).await.ok()["stdout"], "y\n");
    // What is carried out is looked at, however it is written, and a call that is looked at is one call.
    let rules = json!([
        { "pointer": "/timeout", "pattern": "7" }, { "tool": "readFile", "pointer": "/path", "pattern": "secrets/*" }
    ]);
    let permissions = json!({ "role": "operator", "approval": { "arguments": rules } });
    let (_, exact) = made(&root, json!({ "permissions": permissions, "limits": { "callsPerMinute": 3 } })).await;
    let timed = format!("{{\"sandboxId\":{:?},\"command\":\"true\",\"timeout\":0.7e1}}", sandbox.id);
    let request = exact.request(Method::POST, "/v1/tools/exec").header("content-type", "application/json");
    exact.send(request.body(timed)).await.job_id();
    let encoded = json!({ "sandboxId": sandbox.id, "path": "s%65crets/a", "pathEncoding": "percent" });
    exact.call("readFile", &encoded).await.job_id();
    assert_eq!(
        exact.call("exec", &json!({ "sandboxId": sandbox.id, "command": "echo z" })).await.ok()["stdout"],
        "z\n"
    );
    exact.call("exec", &json!({ "sandboxId": sandbox.id, "command": "true" })).await.problem(429, "rate_limited");
    // What nobody could read is not put before anybody.
    let long: serde_json::Map<String, Value> =
        (0..3).map(|n| (format!("A{n}{}", "x".repeat(30_000)), json!("x"))).collect();
    let unreadable = json!({ "sandboxId": sandbox.id, "command": "make deploy", "env": long });
    let refused = agent.call("exec", &unreadable).await;
    assert!([400, 413].contains(&refused.status), "{}", refused.text());
    // Bytes cannot wait.
    let rule = json!({ "pointer": "/path", "pattern": "secrets/*" });
    let permissions = json!({ "role": "operator", "approval": { "arguments": [rule] } });
    let (_, writer) = made(&root, json!({ "permissions": permissions })).await;
    let put = |path: &str| writer.send(writer.request(Method::PUT, &sandbox.file_path(path)).body("x"));
    assert_eq!(put("free/a").await.status, 201);
    let problem = put("secrets%2Fa").await.problem(403, "forbidden");
    assert_eq!(problem.details["reason"], "needs_approval");
    let write = json!({ "sandboxId": sandbox.id, "path": "secrets/a", "content": "x" });
    let id = writer.call("writeFile", &write).await.job_id();
    root.call("approveJob", &json!({ "jobId": id })).await.ok();
    assert_eq!(writer.ended(&id).await["state"], "succeeded");
    assert_eq!(sandbox.sh("cat secrets/a").await, "x");
    let bad = json!({ "name": "x", "permissions": { "role": "viewer", "approval": { "arguments": [{ "pointer": "zone", "pattern": "a" }] } } });
    root.call("createKey", &bad).await.problem(400, "invalid_arguments");
}

#[tokio::test]
async fn a_key_of_labels_sees_the_jobs_of_its_sandboxes_and_its_own() {
    let stack = Stack::shared();
    let root = stack.client();
    let (team, other) = (random_name("t"), random_name("t"));
    let mine = stack.sandbox_with(json!({ "labels": { "team": team } })).await;
    let theirs = stack.sandbox_with(json!({ "labels": { "team": other } })).await;
    let (_, agent) = agent(&root).await;
    let (about_mine, about_theirs) =
        (agent.call("exec", &run(&mine)).await.job_id(), agent.call("exec", &run(&theirs)).await.job_id());
    let permissions = json!({ "role": "viewer", "sandboxLabels": { "team": team } });
    let (_, seer) = made(&root, json!({ "permissions": permissions })).await;
    let listed = seer.get("/v1/jobs").await.ok();
    let ids: Vec<&str> = listed["jobs"].as_array().unwrap().iter().map(|job| job["jobId"].as_str().unwrap()).collect();
    assert_eq!(ids, [about_mine.as_str()]);
    seer.call("getJob", &json!({ "jobId": about_theirs })).await.problem(404, "not_found");
    // Pages.
    let first = agent.get("/v1/jobs?limit=1").await.ok();
    let cursor = first["nextCursor"].as_str().unwrap();
    let second = agent.get(&format!("/v1/jobs?limit=1&cursor={cursor}")).await.ok();
    assert_ne!(first["jobs"][0]["jobId"], second["jobs"][0]["jobId"]);
    agent.get("/v1/jobs?cursor=x").await.problem(400, "invalid_arguments");
}

#[tokio::test]
async fn waiting_jobs_are_counted() {
    let (root, sandbox) = (Stack::shared().client(), Stack::shared().sandbox().await);
    let permissions = json!({ "role": "operator", "approval": { "tools": ["exec"] } });
    let (_, agent) = made(&root, json!({ "permissions": permissions, "limits": { "openJobs": 2 } })).await;
    let answers = join_all((0..5).map(|_| agent.call("exec", &run(&sandbox)))).await;
    let waiting: Vec<&Answer> = answers.iter().filter(|answer| answer.status == 202).collect();
    assert_eq!(waiting.len(), 2);
    let refused = answers.iter().find(|answer| answer.status == 429).unwrap().problem(429, "quota_exceeded");
    assert_eq!(refused.details["limitName"], "openJobs");
    root.call("rejectJob", &json!({ "jobId": waiting[0].job_id() })).await.ok();
    agent.call("exec", &run(&sandbox)).await.job_id();
}

#[tokio::test]
async fn a_dry_run_tells_and_changes_nothing() {
    let (root, sandbox) = (Stack::shared().client(), Stack::shared().sandbox().await);
    let permissions = json!({ "role": "admin", "approval": { "destructive": true } });
    let (_, agent) = made(&root, json!({ "permissions": permissions })).await;
    sandbox.sh("echo hello > a; mkdir b").await;
    let rules = json!({ "role": "viewer", "approval": { "destructive": true } });
    // A key whose calls wait rotates only keys that come of it.
    let (key_id, victim) = made(&agent, json!({ "permissions": rules })).await;
    let started = json!({ "sandboxId": sandbox.id, "command": "sleep 1000", "name": "server" });
    let process = root.call("startBackgroundProcess", &started).await.ok()["processId"].clone();
    let id = json!(sandbox.id);
    let calls = [
        ("exec", json!({ "sandboxId": id, "command": "rm a" }), "Run a command"),
        ("deleteFile", json!({ "sandboxId": id, "path": "a" }), "a file of 6 bytes"),
        ("deleteFile", json!({ "sandboxId": id, "path": "c" }), "there is nothing"),
        ("moveFile", json!({ "sandboxId": id, "from": "a", "to": "b/a" }), "is moved to b/a"),
        ("writeFile", json!({ "sandboxId": id, "path": "a", "content": "x" }), "is written whole"),
        ("editFile", json!({ "sandboxId": id, "path": "a", "oldText": "h", "newText": "j" }), "the one occurrence"),
        ("killProcess", json!({ "sandboxId": id, "processId": process }), "(server)"),
        ("stopSandbox", json!({ "sandboxId": id }), "its next use starts it"),
        ("destroySandbox", json!({ "sandboxId": id }), "removed for good"),
        ("revokeKey", json!({ "keyId": key_id }), "(a test)"),
        ("rotateKey", json!({ "keyId": key_id }), "another secret"),
    ];
    for (tool, mut arguments, text) in calls {
        arguments["dryRun"] = json!(true);
        let told = agent.call(tool, &arguments).await.ok();
        assert_eq!((&told["dryRun"], &told["tool"]), (&json!(true), &json!(tool)));
        assert!(told["effects"].to_string().contains(text), "{tool}: {told}");
    }
    assert_eq!(sandbox.sh("cat a; ls b").await, "hello\n");
    victim.get("/v1/tools").await.ok();
    let process = root.call("getProcess", &json!({ "sandboxId": id, "processId": process })).await.ok();
    assert_eq!(process["status"], "running");
    // As a resource, of what is not there, and of what sleeps, which goes on sleeping.
    let told = root.send(root.request(Method::DELETE, &format!("/v1/sandboxes/{}?dryRun=true", sandbox.id))).await.ok();
    assert_eq!(told["sandboxStatus"], "running");
    // A body counts with every method: one that is passed over would destroy.
    let delete = || root.request(Method::DELETE, &format!("/v1/sandboxes/{}", sandbox.id));
    assert_eq!(root.send(delete().json(&json!({ "dryRun": true }))).await.ok()["dryRun"], true);
    root.send(delete().body("dryRun=true")).await.problem(400, "malformed_request");
    let none = json!({ "sandboxId": random_name("none"), "dryRun": true });
    assert!(root.call("destroySandbox", &none).await.ok()["effects"].to_string().contains("Nothing"));
    root.call("deleteFile", &json!({ "sandboxId": none["sandboxId"], "path": "a", "dryRun": true }))
        .await
        .problem(404, "not_found");
    root.call("stopSandbox", &json!({ "sandboxId": id })).await.ok();
    let told = root.call("deleteFile", &json!({ "sandboxId": id, "path": "a", "dryRun": true })).await.ok();
    assert!(told["effects"].to_string().contains("is started"), "{told}");
    assert_eq!(root.call("getSandbox", &json!({ "sandboxId": id })).await.ok()["status"], "stopped");
    // Who may not call the tool may not ask what it would do either.
    victim.call("destroySandbox", &json!({ "sandboxId": id, "dryRun": true })).await.problem(403, "forbidden");
    root.call("getSandbox", &json!({ "sandboxId": id, "dryRun": true })).await.problem(400, "invalid_arguments");
}

#[tokio::test]
async fn jobs_outlive_the_worker_and_begin_once() {
    let stack = Stack::start(StackOptions::default());
    let (root, sandbox) = (stack.client(), stack.sandbox().await);
    let (_, agent) = agent(&root).await;
    let slow = json!({ "sandboxId": sandbox.id, "command": "echo x >> runs; sleep 5" });
    let id = agent.call("exec", &slow).await.job_id();
    let waiting = agent.call("exec", &run(&sandbox)).await.job_id();
    stack.worker().restart();
    // Connections to the one that was killed are of no use.
    let (root, sandbox) = (stack.client(), stack.adopt(&sandbox.id));
    root.call("approveJob", &json!({ "jobId": id })).await.ok();
    let has_begun = || async { (runs(&sandbox).await == "1\n").then_some(()) };
    eventually("the command began", PATIENCE, has_begun).await;
    stack.worker().restart();
    let (root, sandbox) = (stack.client(), stack.adopt(&sandbox.id));
    // It is found again by its id, and not begun again.
    let told = root.ended(&id).await;
    assert_eq!((&told["state"], &told["attempts"]), (&json!("succeeded"), &json!(1)), "{told}");
    assert_eq!(runs(&sandbox).await, "1\n");
    root.call("approveJob", &json!({ "jobId": waiting })).await.ok();
    let told = root.ended(&waiting).await;
    assert_eq!((&told["state"], &told["output"]["stdout"]), (&json!("succeeded"), &json!("2\n")));
}
