//! One order of refusals for every tool, on every route.

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Map, Value, json};
use test_support::{Answer, Client, Sandbox, Stack};

/// Arguments that the tool takes, from its schema alone. What is named has the form of its kind, and the sandbox is there.
fn arguments(tool: &Value, sandbox: &Sandbox) -> Value {
    let schema = &tool["inputSchema"];
    let required = schema["required"].as_array().into_iter().flatten();
    let arguments: Map<String, Value> = required
        .map(|name| {
            let name = name.as_str().unwrap();
            let value = match name {
                "sandboxId" => json!(sandbox.id),
                "processId" => json!("00000000000000000000000000000000.00000000-0000-0000-0000-000000000000"),
                "steps" => json!([{ "name": "a", "tool": "listSandboxes" }]),
                "tool" => json!("listSandboxes"),
                "gitUrl" => json!("https://localhost/app"),
                _ => value(name, &schema["properties"][name]),
            };
            (name.to_owned(), value)
        })
        .collect();
    Value::Object(arguments)
}

/// The answer to a call that is right: what a tool misses beside what its schema requires is added as it asks for it.
async fn right(client: &Client, tool: &Value, sandbox: &Sandbox) -> Answer {
    let name = tool["name"].as_str().unwrap();
    let mut arguments = arguments(tool, sandbox);
    loop {
        let answer = client.call(name, &arguments).await;
        let missing =
            if answer.status == 400 { answer.json()["details"]["violations"][0].clone() } else { Value::Null };
        let field = missing["pointer"].as_str().and_then(|pointer| pointer.strip_prefix('/')).map(str::to_owned);
        match field {
            Some(field) if !field.is_empty() && arguments.get(&field).is_none() => {
                arguments[&field] = match field.as_str() {
                    "cron" => json!("0 0 1 1 *"),
                    _ => value(&field, &tool["inputSchema"]["properties"][&field]),
                };
            }
            _ => return answer,
        }
    }
}

fn value(name: &str, schema: &Value) -> Value {
    if let Some(first) = schema["enum"].get(0).or_else(|| schema["oneOf"][0]["enum"].get(0)) {
        return first.clone();
    }
    match schema["type"].as_str() {
        Some("string") => {
            // Four letters are also base64.
            let most = schema["maxLength"].as_u64().unwrap_or(4).min(4);
            let length = schema["minLength"].as_u64().unwrap_or(1).max(most);
            json!(name[..1].repeat(length.try_into().unwrap()))
        }
        Some("integer" | "number") => json!(schema["minimum"].as_u64().unwrap_or(1)),
        Some("boolean") => json!(true),
        Some("array") => json!([]),
        _ => {
            let required = schema["required"].as_array().into_iter().flatten().map(|name| name.as_str().unwrap());
            required.map(|name| (name.to_owned(), value(name, &schema["properties"][name]))).collect()
        }
    }
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
    let listed = root.get("/v1/tools").await.ok();
    let tools = listed["tools"].as_array().unwrap();
    assert!(tools.len() > 30, "{}", tools.len());
    let names: Vec<&Value> = tools.iter().map(|tool| &tool["name"]).collect();
    let approval = json!({ "tools": names, "expiresAfter": 1 });
    let (_, waiting) = make(json!({
        "permissions": { "role": "admin", "approval": approval },
        "limits": { "callsPerMinute": 1_000_000, "openJobs": 1_000 },
    }))
    .await;
    let sandbox = stack.sandbox().await;
    let (revoked_id, revoked) = make(json!({ "permissions": admin })).await;
    root.call("revokeKey", &json!({ "keyId": revoked_id })).await.ok();
    let key = admin_key.key().unwrap();
    let forged_id = root.with_key(Some(&key.replacen("default_", "default_0", 1)));
    let wrong_secret = root.with_key(Some(&format!("{}{}", &key[..key.len() - 64], "0".repeat(64))));
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
        // What is wrong is told before it waits; what is right waits, and its bytes cannot.
        let bad = json!({ "noSuchField": true });
        waiting.call(name, &bad).await.problem(400, "invalid_arguments");
        let waits = right(&waiting, tool, &sandbox).await;
        if tool["execution"] == "immediate" {
            // What it is given is not stored, and so it cannot wait either.
            assert_eq!(waits.problem(403, "forbidden").details["reason"], "needs_approval", "{name}");
        } else {
            assert_eq!(waits.status, 202, "{name} needs approval: {}", waits.text());
            assert_eq!((&waits.json()["state"], &waits.json()["tool"]), (&json!("awaiting_approval"), &tool["name"]));
        }
        for route in tool["rawRoutes"].as_array().unwrap() {
            let method: Method = route["method"].as_str().unwrap().parse().unwrap();
            let path = route["path"].as_str().unwrap().replace("{sandboxId}", &sandbox.id).replace("{*path}", "a");
            let is_head = method == Method::HEAD;
            let answer = waiting.send(waiting.request(method, &path).body("x")).await;
            assert_eq!(answer.status, 403, "{} {path} needs approval: {}", route["method"], answer.text());
            if !is_head {
                assert_eq!(answer.problem(403, "forbidden").details["reason"], "needs_approval");
            }
        }
    }
}
