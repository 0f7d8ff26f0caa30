//! Usage: counted exactly, by day, key and tool, and estimated in dollars.

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use test_support::{Client, PATIENCE, Stack, eventually, random_name};

async fn key(client: &Client, role: &str) -> (String, Client) {
    let ask = json!({ "name": "usage", "permissions": { "role": role }, "limits": { "callsPerMinute": 1000, "concurrentCalls": 500 } });
    let made = client.call("createKey", &ask).await.ok();
    (made["keyId"].as_str().unwrap().to_owned(), client.with_key(made["key"].as_str()))
}

async fn usage(client: &Client, filter: Value) -> Value {
    client.call("getUsage", &filter).await.ok()
}

/// Usage of one key by tool, once all of its calls are settled.
async fn settled(root: &Client, key_id: &str, calls: i64) -> Value {
    let filter = json!({ "keyId": key_id, "groupBy": "tool" });
    let all = || async {
        let found = usage(root, filter.clone()).await;
        (found["total"]["calls"] == calls).then_some(found)
    };
    eventually("all calls are settled", PATIENCE, all).await
}

fn row<'a>(found: &'a Value, tool: &str) -> &'a Value {
    let rows = found["usage"].as_array().unwrap();
    rows.iter().find(|row| row["tool"] == tool).unwrap_or_else(|| panic!("no row of {tool}: {found}"))
}

fn number(row: &Value, field: &str) -> f64 {
    row[field].as_f64().unwrap_or_else(|| panic!("no {field}: {row}"))
}

#[tokio::test]
async fn what_a_key_used_is_told_by_tool_and_costs_what_the_prices_say() {
    let stack = Stack::shared();
    let root = stack.client();
    let (key_id, client) = key(&root, "operator").await;
    let sandbox = stack.unmade_sandbox();
    let made_at = Instant::now();
    client.call("createSandbox", &json!({ "id": sandbox.id })).await.ok();
    let slow = json!({ "sandboxId": sandbox.id, "command": "sleep 1; head -c 2000 /dev/zero | tr '\\0' x" });
    let began = Instant::now();
    client.call("exec", &slow).await.ok();
    client.stream("exec", &slow).await.transcript().await;
    let killed = json!({ "sandboxId": sandbox.id, "command": "sleep 9", "timeout": 1 });
    client.call("exec", &killed).await.problem(504, "timeout");
    let elapsed = began.elapsed().as_secs_f64();
    client
        .call("exec", &json!({ "sandboxId": random_name("none"), "command": "true" }))
        .await
        .problem(404, "not_found");
    client
        .call("createKey", &json!({ "name": "x", "permissions": { "role": "viewer" } }))
        .await
        .problem(403, "forbidden");
    client.call(&random_name("no"), &json!({})).await.problem(404, "unknown_tool");
    let upload = client.request(Method::PUT, &sandbox.file_path("a")).body("x".repeat(50_000));
    client.send(upload).await;
    client.get(&sandbox.file_path("a")).await;

    let found = settled(&root, &key_id, 9).await;
    let exec = row(&found, "exec");
    assert_eq!((&exec["calls"], &exec["failures"]), (&json!(4), &json!(2)), "{exec}");
    assert!((3.0..elapsed).contains(&number(exec, "execSeconds")), "{elapsed} s: {exec}");
    // Output of the buffered call; of the streamed one twice, in its pieces and in its result.
    assert!((6_000.0..9_000.0).contains(&number(exec, "bytesOut")), "{exec}");
    assert_eq!(row(&found, "createKey")["failures"], 1);
    assert_eq!((&row(&found, "unknown")["calls"], &row(&found, "unknown")["failures"]), (&json!(1), &json!(1)));
    assert_eq!(row(&found, "writeFile")["bytesIn"], 50_000);
    assert_eq!(row(&found, "readFile")["bytesOut"], 50_000);

    let ran = number(row(&found, "createSandbox"), "sandboxSeconds");
    // A begun second counts as one.
    let most = || made_at.elapsed().as_secs_f64() + 1.0;
    assert!((3.0..most()).contains(&ran), "{found}");
    client.call("destroySandbox", &json!({ "sandboxId": sandbox.id })).await.ok();
    let after = settled(&root, &key_id, 10).await;
    let whole = number(row(&after, "createSandbox"), "sandboxSeconds");
    assert!((ran..most()).contains(&whole), "{whole}, and {ran} before its end");
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let later = settled(&root, &key_id, 10).await;
    assert_eq!(number(row(&later, "createSandbox"), "sandboxSeconds"), whole, "what is gone costs nothing");

    let (total, prices) = (&later["total"], &later["prices"]);
    let expected = number(total, "calls") * number(prices, "perCall")
        + number(total, "execSeconds") * number(prices, "perExecSecond")
        + number(total, "sandboxSeconds") * number(prices, "perSandboxSecond")
        + number(total, "bytesOut") / 1e9 * number(prices, "perGigabyteOut");
    assert!(expected > 0.0 && (number(total, "cost") - expected).abs() < 1e-8, "{expected}: {later}");
    assert!(
        prices["source"].as_str().unwrap().starts_with("https://developers.cloudflare.com/")
            && prices["asOf"].is_string()
    );
}

#[tokio::test]
async fn parallel_calls_are_counted_exactly_and_pages_hold_them_all() {
    let stack = Stack::shared();
    let root = stack.client();
    let nothing = json!({ "limit": 1 });
    let day = || crate::schedules::now() / 86_400_000;
    // All in one day.
    let (key_id, client, found) = loop {
        let today = day();
        let (key_id, client) = key(&root, "viewer").await;
        let tool = |number: i32| if number % 2 == 0 { "listSandboxes" } else { "listKeys" };
        join_all((0..100).map(|number| client.call(tool(number), &nothing))).await;
        let found = settled(&root, &key_id, 100).await;
        if day() == today {
            break (key_id, client, found);
        }
    };
    for tool in ["listSandboxes", "listKeys"] {
        assert_eq!((&row(&found, tool)["calls"], &row(&found, tool)["failures"]), (&json!(50), &json!(0)));
    }
    for group in ["each", "day", "key", "tool"] {
        let (mut cursor, mut calls, mut pages) = (String::new(), 0, 0);
        loop {
            let path = format!("/v1/admin/usage?keyId={key_id}&groupBy={group}&limit=1{cursor}");
            let page = root.get(&path).await.ok();
            calls += page["usage"].as_array().unwrap().iter().map(|row| row["calls"].as_i64().unwrap()).sum::<i64>();
            assert_eq!(page["total"]["calls"], 100);
            pages += 1;
            match page["nextCursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        assert_eq!((calls, pages), (100, if ["each", "tool"].contains(&group) { 2 } else { 1 }), "{group}");
    }
    // Who reads may read it, and only of the own tenant.
    assert_eq!(usage(&client, json!({ "keyId": key_id })).await["total"]["failures"], 0);
    let elsewhere = root.request(Method::GET, "/v1/admin/usage").header("x-tenant", random_name("t").replace('_', "-"));
    assert_eq!(root.send(elsewhere).await.ok()["total"]["calls"], 0);
    root.get("/v1/admin/usage?since=2026-13-01").await.problem(400, "invalid_arguments");
    root.get("/v1/admin/usage?groupBy=week").await.problem(400, "invalid_arguments");
    client.with_key(Some(&random_name("stranger"))).call("listKeys", &nothing).await.problem(401, "unauthenticated");
    assert_eq!(settled(&root, &key_id, 101).await["total"]["failures"], 0);
}
