//! One order of refusals for every tool, on every route.

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use test_support::Stack;

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
