//! The audit log: complete, without secrets, and such that tampering shows.

use std::process::Command;

use serde_json::{Value, json};
use test_support::{Client, PATIENCE, Stack, StackOptions, eventually, random_name};

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
    eventually("the call is settled", PATIENCE, settled).await;
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
    let (client, sandbox) = (stack.client(), stack.sandbox().await);
    // Half a megabyte of arguments, which the call takes.
    let names: Vec<String> = (0..128).map(|number| format!("{number}{}", "x".repeat(4000))).collect();
    for _ in 0..12 {
        client.call("updateSandbox", &json!({ "sandboxId": sandbox.id, "unsetEnv": names })).await.ok();
    }
    let made = client.call("createKey", &json!({ "name": "x", "permissions": { "role": "viewer" } })).await.ok();
    let key = made["key"].as_str().unwrap();
    let cut = format!("true #{}{}", "x".repeat(4050), stack.key);
    for command in [format!("curl -H 'Authorization: Bearer {key}'"), cut] {
        let nowhere = json!({ "sandboxId": random_name("none"), "command": command });
        client.call("exec", &nowhere).await.problem(404, "not_found");
    }
    let read = client.call("getAuditLog", &json!({ "limit": 500 })).await;
    read.ok();
    // Others of this tenant call meanwhile.
    let large = calls(&client, json!({ "sandboxId": sandbox.id, "tool": "updateSandbox" })).await;
    assert!(large.len() == 12 && large.iter().all(|call| call["arguments"]["notRecorded"].is_string()), "{large:?}");
    assert!(!read.text().contains(key) && !read.text().contains(&stack.key[..12]), "a key is in the books");
}

/// Changes the tenant's database as who has its disk could.
pub(crate) fn tamper(stack: &Stack, statement: &str) {
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
        // Every record has it: what a call did may be settled after the next one was asked for.
        ("UPDATE audit SET record = replace(record, 'callId', 'CallId') WHERE seq = 3", "changed"),
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
        let settled = || async {
            let verified = client.get("/v1/admin/logs/verification").await.ok();
            assert_eq!(verified["valid"], true, "{verified}");
            (verified["records"].as_u64() >= Some(12)).then_some(())
        };
        eventually("the calls are in the books", PATIENCE, settled).await;
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
