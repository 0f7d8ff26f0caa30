//! The audit log: complete, without secrets, and such that tampering shows.

use std::process::Command;
use std::time::Duration;

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use test_support::{Client, Stack, StackOptions, eventually, random_name};

async fn calls(client: &Client, filter: Value) -> Vec<Value> {
    client.call("getAuditLog", &filter).await.ok()["calls"].as_array().unwrap().clone()
}

#[tokio::test]
async fn every_call_is_there_with_its_outcome_and_without_its_secrets() {
    let stack = Stack::shared();
    let (client, sandbox, canary) = (stack.client(), stack.sandbox().await, random_name("canary"));
    let run = json!({ "sandboxId": sandbox.id, "command": "exit 3", "env": { "TOKEN": canary } });
    let done = client.call("exec", &run).await;
    let refused = client.call("exec", &json!({ "sandboxId": sandbox.id })).await;
    let filter = json!({ "sandboxId": sandbox.id, "tool": "exec" });
    // What a call did is settled behind its answer.
    let settled = || async {
        let found = calls(&client, filter.clone()).await;
        found.iter().any(|call| call["result"] == "succeeded").then_some(())
    };
    eventually("the call is settled", Duration::from_secs(20), settled).await;
    let found = calls(&client, filter).await;
    let [call] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!((&call["requestId"], &call["exitCode"]), (&json!(done.header("x-request-id").unwrap()), &json!(3)));
    assert_eq!((&call["door"], &call["keyId"]), (&json!("rest"), &json!("root")));
    assert!(call["arguments"]["env"]["TOKEN"] == "[not recorded]" && call["argumentsSignature"].is_string(), "{call}");
    let found = calls(&client, json!({ "requestId": refused.header("x-request-id").unwrap() })).await;
    assert_eq!((&found[0]["result"], &found[0]["code"]), (&json!("refused"), &json!("invalid_arguments")));
    let everything = client.call("getAuditLog", &json!({ "limit": 500 })).await;
    assert!(!everything.text().contains(&canary));
    let page = client.get("/v1/admin/logs?limit=1&outcome=succeeded").await.ok();
    let cursor = page["nextCursor"].as_i64().unwrap();
    let next = client.get(&format!("/v1/admin/logs?limit=1&cursor={cursor}")).await.ok();
    assert!(next["calls"][0]["seq"].as_i64().unwrap() < cursor);
    client.get("/v1/admin/logs?outcome=sometimes").await.problem(400, "invalid_arguments");
}

#[tokio::test]
async fn no_call_makes_the_books_unreadable_and_no_key_is_read_in_them() {
    let stack = Stack::shared();
    let client = stack.client();
    let large: serde_json::Map<String, Value> =
        (0..30).map(|number| (format!("k{number}"), json!("://@".repeat(900)))).collect();
    for _ in 0..3 {
        let _ = client.call("listSandboxes", &json!({ "labels": large })).await;
    }
    client
        .call(
            "listSandboxes",
            &json!({ "labels": (0..40).map(|n| (format!("k{n}"), json!("v"))).collect::<serde_json::Map<_, _>>() }),
        )
        .await
        .problem(400, "invalid_arguments");
    let made = client.call("createKey", &json!({ "name": "x", "permissions": { "role": "viewer" } })).await.ok();
    let key = made["key"].as_str().unwrap();
    let cut = format!("true #{}{}", "x".repeat(4050), stack.key);
    for command in [format!("curl -H 'Authorization: Bearer {key}'"), cut] {
        client
            .call("exec", &json!({ "sandboxId": random_name("none"), "command": command }))
            .await
            .problem(404, "not_found");
    }
    let read = client.call("getAuditLog", &json!({ "limit": 500 })).await;
    read.ok();
    assert!(!read.text().contains(key) && !read.text().contains(&stack.key[..12]), "a key is in the books");
}

/// Changes the tenant's database as who has its disk could.
fn tamper(stack: &Stack, statement: &str) {
    let program = "
import glob, sqlite3, sys
changed = 0
for path in glob.glob(sys.argv[1] + '/**/*.sqlite', recursive=True):
    base = sqlite3.connect(path)
    if base.execute(\"SELECT count(*) FROM sqlite_master WHERE name = 'audit'\").fetchone()[0]:
        for one in sys.argv[2].split(';'):
            changed += base.execute(one).rowcount
        base.commit()
    base.close()
sys.exit(0 if changed else 3)
";
    let storage = stack.worker().storage().to_owned();
    let status = Command::new("python3").args(["-c", program]).arg(storage).arg(statement).status().unwrap();
    assert!(status.success(), "{statement}");
}

#[tokio::test]
async fn what_was_changed_removed_or_moved_shows() {
    for (statement, what) in [
        ("UPDATE audit SET record = replace(record, 'listSandboxes', 'getSandbox') WHERE seq = 3", "changed"),
        ("DELETE FROM audit WHERE seq = 4", "missing"),
        (
            "UPDATE audit SET seq = 99 WHERE seq = 3; UPDATE audit SET seq = 3 WHERE seq = 5; UPDATE audit SET seq = 5 WHERE seq = 99",
            "changed",
        ),
    ] {
        let stack = Stack::start(StackOptions::default());
        let client = stack.client();
        for _ in 0..6 {
            client.call("listSandboxes", &json!({})).await.ok();
        }
        let verified = client.get("/v1/admin/logs/verification").await.ok();
        assert!(verified["valid"] == true && verified["records"].as_u64().unwrap() >= 12, "{verified}");
        stack.worker().kill();
        tamper(&stack, statement);
        stack.worker().restart();
        let client = stack.client();
        let found = client.get("/v1/admin/logs/verification").await.ok();
        assert_eq!((&found["valid"], &found["fault"]["what"]), (&json!(false), &json!(what)), "{statement}: {found}");
        let later = client.get("/v1/admin/logs/verification?cursor=6").await.ok();
        assert_eq!(later["valid"], true, "what came after is in order in itself: {later}");
    }
}

#[tokio::test]
async fn the_books_go_on_over_a_restart() {
    let stack = Stack::start(StackOptions::default());
    for _ in 0..3 {
        stack.client().call("listSandboxes", &json!({})).await.ok();
        stack.worker().restart();
    }
    let verified = stack.client().get("/v1/admin/logs/verification").await.ok();
    assert_eq!((&verified["valid"], &verified["anchor"]["seq"]), (&json!(true), &json!(0)), "{verified}");
}

/// Every tool, and every way to be refused before it acts: a new tool is held to this without a line here.
#[tokio::test]
async fn every_tool_refuses_alike() {
    let stack = Stack::shared();
    let root = stack.client();
    let make = |arguments: Value| {
        let root = root.clone();
        async move {
            let mut arguments = arguments;
            arguments["name"] = json!("matrix");
            let made = root.call("createKey", &arguments).await.ok();
            (made["keyId"].as_str().unwrap().to_owned(), root.with_key(made["key"].as_str()))
        }
    };
    let admin = json!({ "role": "admin" });
    let (_, admin_key) = make(json!({ "permissions": admin, "limits": { "callsPerMinute": 1_000_000 } })).await;
    let (_, viewer) =
        make(json!({ "permissions": { "role": "viewer" }, "limits": { "callsPerMinute": 1_000_000 } })).await;
    let (_, nothing) =
        make(json!({ "permissions": { "role": "admin", "tools": [] }, "limits": { "callsPerMinute": 1_000_000 } }))
            .await;
    let (_, limited) = make(json!({ "permissions": admin, "limits": { "callsPerMinute": 0 } })).await;
    let (_, busy) = make(json!({ "permissions": admin, "limits": { "concurrentCalls": 0 } })).await;
    let (revoked_id, revoked) = make(json!({ "permissions": admin })).await;
    root.call("revokeKey", &json!({ "keyId": revoked_id })).await.ok();
    let key = admin_key.key().unwrap();
    let forged_id = root.with_key(Some(&key.replacen("default_", "default_0", 1)));
    let wrong_secret = root.with_key(Some(&format!("{}{}", &key[..key.len() - 64], "0".repeat(64))));
    let listed = root.get("/v1/tools").await.ok();
    let tools = listed["tools"].as_array().unwrap();
    assert!(tools.len() > 30, "{}", tools.len());
    for tool in tools {
        let name = tool["name"].as_str().unwrap();
        let reads = tool["guardrails"]["role"] == "viewer";
        let cases = [
            ("no key", root.with_key(None), 401, "unauthenticated"),
            ("wrong key", root.with_key(Some("wrong")), 401, "unauthenticated"),
            ("forged id", forged_id.clone(), 401, "unauthenticated"),
            ("wrong secret", wrong_secret.clone(), 401, "unauthenticated"),
            ("revoked", revoked.clone(), 401, "unauthenticated"),
            ("no tools", nothing.clone(), 403, "forbidden"),
            ("rate limited", limited.clone(), 429, "rate_limited"),
            ("busy", busy.clone(), 429, "rate_limited"),
            ("bad arguments", admin_key.clone(), 400, "invalid_arguments"),
            if reads {
                ("viewer that may", viewer.clone(), 400, "invalid_arguments")
            } else {
                ("viewer", viewer.clone(), 403, "forbidden")
            },
        ];
        join_all(cases.map(|(case, client, status, code)| async move {
            let bad = json!({ "noSuchField": true });
            let answer = client.call(name, &bad).await;
            assert_eq!(answer.status, status, "{name}, {case}: {}", answer.text());
            answer.problem(status, code);
            // The resource routes of the tool say the same.
            for route in tool["routes"].as_array().unwrap() {
                let method: Method = route["method"].as_str().unwrap().parse().unwrap();
                let mut path = String::new();
                for (index, part) in route["path"].as_str().unwrap().split(['{', '}']).enumerate() {
                    path.push_str(if index % 2 == 0 { part } else { "none" });
                }
                let answer = client.send(client.request(method, &format!("{path}?noSuchField=true"))).await;
                assert_eq!(answer.status, status, "{} {path}, {case}: {}", route["method"], answer.text());
            }
        }))
        .await;
    }
}
