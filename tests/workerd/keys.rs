//! Keys and tokens: made, used, narrowed, replaced, ended.

use reqwest::Method;
use serde_json::{Value, json};
use test_support::{Client, PATIENCE, Stack, StackOptions, eventually, random_name};

/// A key of these permissions, and a client that uses it.
async fn made(client: &Client, permissions: Value) -> (String, Client) {
    made_with(client, json!({ "permissions": permissions })).await
}

async fn made_with(client: &Client, mut arguments: Value) -> (String, Client) {
    arguments["name"] = json!("a test");
    let made = client.call("createKey", &arguments).await.ok();
    let key = made["key"].as_str().unwrap_or_else(|| panic!("no key: {made}"));
    (made["keyId"].as_str().unwrap().to_owned(), client.with_key(Some(key)))
}

fn names(listed: &Value) -> Vec<String> {
    listed["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_key_is_told_once_and_does_what_its_role_may() {
    let stack = Stack::shared();
    let root = stack.client();
    let (key_id, viewer) = made(&root, json!({ "role": "viewer" })).await;
    let page = root.get("/v1/admin/keys?limit=500").await.ok();
    assert!(page["keys"].as_array().unwrap().iter().any(|key| key["keyId"] == key_id.as_str()), "{page}");
    assert!(!page.to_string().contains(viewer.key().unwrap()), "the list tells no secret");

    let sandbox = stack.sandbox().await;
    viewer.call("getSandbox", &json!({ "sandboxId": sandbox.id })).await.ok();
    let exec = json!({ "sandboxId": sandbox.id, "command": "true" });
    let problem = viewer.call("exec", &exec).await.problem(403, "forbidden");
    assert!(problem.detail.contains("role operator"), "{}", problem.detail);
    let seen = names(&viewer.get("/v1/tools").await.ok());
    assert!(seen.contains(&"getSandbox".to_owned()) && !seen.contains(&"exec".to_owned()), "{seen:?}");

    let (_, narrow) = made(&root, json!({ "role": "operator", "tools": ["exec", "getSandbox"] })).await;
    narrow.call("exec", &exec).await.ok();
    narrow.call("listSandboxes", &json!({})).await.problem(403, "forbidden");
    assert_eq!(names(&narrow.get("/v1/tools").await.ok()), ["getSandbox", "exec"]);
    let (_, scoped) = made(&root, json!({ "role": "admin", "scopes": ["sandbox:read"] })).await;
    let problem = scoped.call("exec", &exec).await.problem(403, "forbidden");
    assert!(problem.detail.contains("sandbox:exec"), "{}", problem.detail);
}

#[tokio::test]
async fn a_key_ends_when_it_is_revoked_and_its_secret_when_it_is_replaced() {
    let root = Stack::shared().client();
    let (key_id, client) = made(&root, json!({ "role": "viewer" })).await;
    let rotate = json!({ "keyId": key_id, "graceSeconds": 3600 });
    let rotated = root.call("rotateKey", &rotate).await.ok();
    let newer = client.with_key(rotated["key"].as_str());
    for both in [&client, &newer] {
        both.get("/v1/tools").await.ok();
    }
    let at_once = root.call("rotateKey", &json!({ "keyId": key_id, "graceSeconds": 0 })).await.ok();
    let newest = client.with_key(at_once["key"].as_str());
    newest.get("/v1/tools").await.ok();
    for old in [&client, &newer] {
        old.get("/v1/tools").await.problem(401, "unauthenticated");
        old.call("listSandboxes", &json!({})).await.problem(401, "unauthenticated");
    }
    root.call("revokeKey", &json!({ "keyId": key_id })).await.ok();
    let problem = newest.call("listSandboxes", &json!({})).await.problem(401, "unauthenticated");
    assert!(problem.detail.contains("revoked"), "its owner is told: {}", problem.detail);
    root.call("revokeKey", &json!({ "keyId": key_id })).await.ok();
    root.call("rotateKey", &json!({ "keyId": key_id })).await.problem(409, "conflict");
    root.call("revokeKey", &json!({ "keyId": "0".repeat(32) })).await.problem(404, "not_found");
    root.call("revokeKey", &json!({ "keyId": "root" })).await.problem(403, "forbidden");
}

#[tokio::test]
async fn a_key_expires() {
    let root = Stack::shared().client();
    let permissions = json!({ "role": "viewer" });
    let (_, client) = made_with(&root, json!({ "permissions": permissions, "expiresAfter": 30 })).await;
    client.get("/v1/tools").await.ok();
    let is_over = || async { (client.get("/v1/tools").await.status == 401).then_some(()) };
    eventually("the key has expired", PATIENCE, is_over).await;
    let problem = client.call("listSandboxes", &json!({})).await.problem(401, "unauthenticated");
    assert!(problem.detail.contains("expired"), "{}", problem.detail);
}

#[tokio::test]
async fn what_was_not_made_here_reaches_no_object() {
    let stack = Stack::shared();
    let root = stack.client();
    let (key_id, client) = made(&root, json!({ "role": "viewer" })).await;
    let key = client.key().unwrap();
    let forged = [
        key.replace(&key_id, &"0".repeat(32)),
        key.replace("cfo_default_", "cfo_other_"),
        format!("{key}0"),
        key.to_uppercase(),
        format!("cfo_{}_{}", "x".repeat(1000), "y".repeat(1000)),
    ];
    for forged in forged {
        root.with_key(Some(&forged)).get("/v1/tools").await.problem(401, "unauthenticated");
    }
    let wrong_secret = format!("{}{}", &key[..key.len() - 64], "0".repeat(64));
    root.with_key(Some(&wrong_secret)).call("listSandboxes", &json!({})).await.problem(401, "unauthenticated");
}

#[tokio::test]
async fn nobody_gives_away_more_than_they_have() {
    let root = Stack::shared().client();
    let admin = json!({ "role": "admin", "sandboxLabels": { "team": random_name("t") } });
    let (_, narrow) = made(&root, admin.clone()).await;
    let wide = json!({ "name": "wide", "permissions": { "role": "admin" } });
    let problem = narrow.call("createKey", &wide).await.problem(403, "forbidden");
    assert_eq!(problem.details["field"], "permissions.sandboxLabels");
    made(&narrow, admin).await;
    // What is set for the tenant is about sandboxes that it does not see.
    let settings = [
        ("setAlerts", json!({ "webhookUrl": "https://hooks.example.com/" })),
        ("setBudget", json!({ "monthlyUsd": 1 })),
        ("setJobRetention", json!({ "expiresAfter": 3600 })),
    ];
    for (tool, arguments) in settings {
        narrow.call(tool, &arguments).await.problem(403, "forbidden");
    }
    let (wide_id, wide) = made(&root, json!({ "role": "admin" })).await;
    for tool in ["rotateKey", "revokeKey"] {
        narrow.call(tool, &json!({ "keyId": wide_id })).await.problem(403, "forbidden");
    }
    let limits = json!({ "keyId": wide_id, "limits": { "callsPerMinute": 1 } });
    narrow.call("setLimits", &limits).await.problem(403, "forbidden");
    let (_, operator) = made(&root, json!({ "role": "operator" })).await;
    operator
        .call("createKey", &json!({ "name": "x", "permissions": { "role": "viewer" } }))
        .await
        .problem(403, "forbidden");
    let limited =
        json!({ "permissions": { "role": "admin" }, "limits": { "callsPerMinute": 50 }, "expiresAfter": 600 });
    let (limited_id, limited) = made_with(&root, limited).await;
    let asked = |limits: Value, expires_after: Option<u32>| {
        let mut asked = json!({ "name": "x", "permissions": { "role": "viewer" }, "limits": limits });
        if let Some(seconds) = expires_after {
            asked["expiresAfter"] = json!(seconds);
        }
        asked
    };
    let as_much = json!({ "callsPerMinute": 50 });
    let made_by_it = limited.call("createKey", &asked(as_much.clone(), Some(60))).await.ok();
    for beyond in [asked(json!({}), Some(60)), asked(as_much.clone(), Some(6000)), asked(as_much, None)] {
        limited.call("createKey", &beyond).await.problem(403, "forbidden");
    }
    let fewer = json!({ "keyId": made_by_it["keyId"], "limits": { "liveSandboxes": 2 } });
    limited.call("setLimits", &fewer).await.ok();
    let own = json!({ "keyId": limited_id, "limits": { "callsPerMinute": 40 } });
    limited.call("setLimits", &own).await.problem(403, "forbidden");
    // What a token makes would outlive it.
    let token = wide.call("createToken", &json!({ "permissions": { "role": "admin" } })).await.ok();
    let by_token = wide.with_key(token["token"].as_str());
    by_token
        .call("createKey", &json!({ "name": "x", "permissions": { "role": "viewer" } }))
        .await
        .problem(403, "forbidden");
    by_token.call("createToken", &json!({ "permissions": { "role": "viewer" } })).await.problem(403, "forbidden");
}

#[tokio::test]
async fn a_key_sees_the_sandboxes_of_its_labels_only() {
    let stack = Stack::shared();
    let root = stack.client();
    let team = random_name("team");
    let permissions = json!({ "role": "operator", "sandboxLabels": { "team": team } });
    let (_, client) = made(&root, permissions).await;
    let (theirs, ours) = (stack.sandbox().await, stack.unmade_sandbox());
    client.call("createSandbox", &json!({ "id": ours.id, "labels": { "a": "b" } })).await.ok();
    let seen = client.call("getSandbox", &json!({ "sandboxId": ours.id })).await.ok();
    assert_eq!(seen["labels"], json!({ "a": "b", "team": team }));
    client.call("exec", &json!({ "sandboxId": ours.id, "command": "true" })).await.ok();
    let listed = client.call("listSandboxes", &json!({})).await.ok();
    assert_eq!(listed["sandboxes"].as_array().unwrap().len(), 1, "{listed}");
    let listed = client.call("listSandboxes", &json!({ "labels": { "team": "another" } })).await.ok();
    assert_eq!(listed["sandboxes"], json!([]));

    let problem = client.call("getSandbox", &json!({ "sandboxId": theirs.id })).await.problem(404, "not_found");
    assert_eq!(problem.details["availableSandboxes"], json!([ours.id]));
    for tool in ["exec", "destroySandbox", "stopSandbox", "wakeSandbox", "updateSandbox"] {
        let mut arguments = json!({ "sandboxId": theirs.id });
        if tool == "exec" {
            arguments["command"] = json!("true");
        }
        client.call(tool, &arguments).await.problem(404, "not_found");
    }
    let path = format!("/v1/sandboxes/{}/files/a", theirs.id);
    client.send(client.request(Method::PUT, &path).body("x")).await.problem(404, "not_found");
    client.call("createSandbox", &json!({ "id": theirs.id })).await.problem(409, "conflict");
    let other = stack.unmade_sandbox();
    let wrong = json!({ "id": other.id, "labels": { "team": "another" } });
    client.call("createSandbox", &wrong).await.problem(403, "forbidden");
    let moved = json!({ "sandboxId": ours.id, "labels": { "team": "another" } });
    client.call("updateSandbox", &moved).await.problem(403, "forbidden");
    let kept = client.call("updateSandbox", &json!({ "sandboxId": ours.id, "labels": {} })).await.ok();
    assert_eq!(kept["labels"], json!({ "team": team }));
}

#[tokio::test]
async fn tenants_have_nothing_in_common() {
    let stack = Stack::shared();
    let root = stack.client();
    let tenant = random_name("t");
    let as_root = |tool: &'static str, arguments: Value| {
        let request = root.request(Method::POST, &format!("/v1/tools/{tool}")).header("x-tenant", &tenant);
        root.send(request.json(&arguments))
    };
    let made = as_root("createKey", json!({ "name": "k", "permissions": { "role": "admin" } })).await.ok();
    let client = root.with_key(made["key"].as_str());
    let (sandbox, name) = (stack.sandbox().await, random_name("s"));
    assert_eq!(client.call("listSandboxes", &json!({})).await.ok()["sandboxes"], json!([]));
    client.call("getSandbox", &json!({ "sandboxId": sandbox.id })).await.problem(404, "not_found");
    // The same name is another sandbox in another tenant.
    sandbox.sh("echo theirs > /workspace/whose").await;
    client.call("createSandbox", &json!({ "id": sandbox.id })).await.ok();
    let exec = json!({ "sandboxId": sandbox.id, "command": "cat whose || echo nobody" });
    assert_eq!(client.call("exec", &exec).await.ok()["stdout"], "nobody\n");
    client.call("destroySandbox", &json!({ "sandboxId": sandbox.id })).await.ok();
    assert_eq!(sandbox.sh("cat /workspace/whose").await, "theirs\n");

    let (_, ours) = self::made(&root, json!({ "role": "admin" })).await;
    let crossing = ours.request(Method::GET, "/v1/sandboxes").header("x-tenant", &tenant);
    ours.send(crossing).await.problem(403, "forbidden");
    let hostile = root.request(Method::GET, "/v1/sandboxes").header("x-tenant", "../default");
    root.send(hostile).await.problem(400, "invalid_arguments");
    let logs = client.call("getAuditLog", &json!({ "limit": 500 })).await.ok();
    assert!(!logs.to_string().contains(&name) && logs["calls"].as_array().unwrap().len() > 3);
    ours.call("revokeKey", &json!({ "keyId": made["keyId"] })).await.problem(404, "not_found");
}

#[tokio::test]
async fn a_token_does_some_of_what_its_key_does_and_ends_with_it() {
    let stack = Stack::shared();
    let root = stack.client();
    let (key_id, client) = made(&root, json!({ "role": "operator" })).await;
    let ask = json!({ "permissions": { "role": "admin", "tools": ["listSandboxes", "exec"] }, "expiresAfter": 600 });
    let answer = client.call("createToken", &ask).await.ok();
    assert_eq!(answer["permissions"]["role"], "operator", "no more than its key");
    let bearer = client.with_key(answer["token"].as_str());
    bearer.call("listSandboxes", &json!({})).await.ok();
    bearer.call("getSandbox", &json!({})).await.problem(403, "forbidden");
    let logs = json!({ "tool": "listSandboxes", "keyId": key_id });
    let logs = root.call("getAuditLog", &logs).await.ok();
    assert_eq!(logs["calls"][0]["tokenId"], answer["tokenId"], "{logs}");
    let token = answer["token"].as_str().unwrap();
    let (signed, _) = token.rsplit_once('.').unwrap();
    for forged in [format!("{signed}."), signed.to_owned(), format!("{token}A"), token.replacen("eyJ", "eyK", 1)] {
        client.with_key(Some(&forged)).get("/v1/tools").await.problem(401, "unauthenticated");
    }
    root.call("revokeKey", &json!({ "keyId": key_id })).await.ok();
    bearer.call("listSandboxes", &json!({})).await.problem(401, "unauthenticated");
}

#[tokio::test]
async fn a_token_stays_within_the_labels_of_its_key_and_has_answers_of_its_own() {
    let stack = Stack::shared();
    let root = stack.client();
    let (ours, theirs) = (random_name("team"), random_name("team"));
    let of = |team: &str| json!({ "role": "operator", "sandboxLabels": { "team": team } });
    let (_, client) = made(&root, of(&ours)).await;
    client.call("createToken", &json!({ "permissions": of(&theirs) })).await.problem(403, "forbidden");
    client.call("getAuditLog", &json!({})).await.problem(403, "forbidden");
    let users = ["1", "2"]
        .map(|user| json!({ "permissions": { "role": "operator", "sandboxLabels": { "team": ours, "user": user } } }));
    let mut answers = Vec::new();
    for user in &users {
        let token = client.call("createToken", user).await.ok();
        let bearer = client.with_key(token["token"].as_str());
        let request = bearer.request(Method::POST, "/v1/tools/createSandbox").header("idempotency-key", "same");
        answers.push(bearer.send(request.json(&json!({}))).await.ok()["sandboxId"].as_str().unwrap().to_owned());
    }
    let _sandboxes = [stack.adopt(&answers[0]), stack.adopt(&answers[1])];
    assert_ne!(answers[0], answers[1], "each token has its own answer");
}

#[tokio::test]
async fn without_a_signing_secret_there_is_the_root_key_alone() {
    let stack = Stack::start(StackOptions { signing: false, ..StackOptions::default() });
    let client = stack.client();
    for (tool, arguments) in [
        ("createKey", json!({ "name": "x", "permissions": { "role": "viewer" } })),
        ("createToken", json!({ "permissions": { "role": "viewer" } })),
    ] {
        let problem = client.call(tool, &arguments).await.problem(503, "not_configured");
        assert!(problem.detail.contains("SIGNING_SECRET"), "{}", problem.detail);
    }
    client.call("listSandboxes", &json!({})).await.ok();
}

/// A name that is misspelt would allow less, or more, than was meant.
#[tokio::test]
async fn permissions_that_name_what_there_is_not_are_refused_by_field() {
    let root = Stack::shared().client();
    let many: Vec<String> = (0..101).map(|number| format!("{number:032x}")).collect();
    for (field, value) in [
        ("tools", json!(["exec", "exce"])),
        ("tools", json!(["sandboxes.list"])),
        ("tools", json!([""])),
        ("scopes", json!(["sandbox:read", "sandbox:admin"])),
        ("zones", json!(["../../user/tokens"])),
        ("zones", json!(["0123456789ABCDEF0123456789ABCDEF"])),
        ("accounts", json!(["0123456789abcdef0123456789abcdef0"])),
        ("accounts", json!(many)),
        ("sandboxLabels", json!({ "": "x" })),
        ("role", json!("root")),
    ] {
        let mut permissions = json!({ "role": "operator" });
        permissions[field] = value;
        for arguments in [json!({ "name": "x", "permissions": permissions }), json!({ "permissions": permissions })] {
            let tool = if arguments["name"].is_null() { "createToken" } else { "createKey" };
            let problem = root.call(tool, &arguments).await.problem(400, "invalid_arguments");
            let pointer = problem.details["violations"][0]["pointer"].as_str().unwrap().to_owned();
            assert!(pointer.starts_with(&format!("/permissions/{field}")), "{tool} {permissions}: {pointer}");
        }
    }
    let fits = json!({ "role": "viewer", "tools": ["getSandbox"], "scopes": [], "zones": [&many[0]], "accounts": [] });
    made(&root, fits).await;
}
