//! Limits of a key: exact under parallel calls, told in headers, given back.

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use serde_json::{Value, json};
use test_support::{Answer, Client, PATIENCE, Stack, eventually, random_name};

async fn limited(limits: Value) -> (String, Client) {
    let root = Stack::shared().client();
    let ask = json!({ "name": "limited", "permissions": { "role": "operator" }, "limits": limits });
    let made = root.call("createKey", &ask).await.ok();
    (made["keyId"].as_str().unwrap().to_owned(), root.with_key(made["key"].as_str()))
}

fn count(answers: &[Answer], status: u16) -> usize {
    answers.iter().filter(|answer| answer.status == status).count()
}

#[tokio::test]
async fn calls_are_counted_exactly_in_parallel() {
    let (_, client) = limited(json!({ "callsPerMinute": 120, "concurrentCalls": 500 })).await;
    let arguments = json!({ "limit": 1 });
    let answers = join_all((0..200).map(|_| client.call("listSandboxes", &arguments))).await;
    assert_eq!((count(&answers, 200), count(&answers, 429)), (120, 80));
    let mut remaining: Vec<u32> = answers
        .iter()
        .filter(|answer| answer.status == 200)
        .map(|answer| {
            assert_eq!(answer.header("x-ratelimit-limit"), Some("120"));
            answer.header("x-ratelimit-remaining").unwrap().parse().unwrap()
        })
        .collect();
    remaining.sort_unstable();
    assert_eq!(remaining, (0..120).collect::<Vec<u32>>(), "no call is counted twice or not at all");
    for refused in answers.iter().filter(|answer| answer.status == 429) {
        let problem = refused.problem(429, "rate_limited");
        let seconds: u64 = problem.headers["retry-after"].to_str().unwrap().parse().unwrap();
        assert!(problem.retryable && (1..=60).contains(&seconds), "{seconds}");
        assert_eq!(refused.header("x-ratelimit-remaining"), Some("0"));
    }
}

#[tokio::test]
async fn sandboxes_are_counted_exactly_in_parallel_and_their_places_given_back() {
    let (_, client) = limited(json!({ "liveSandboxes": 3 })).await;
    let stack = Stack::shared();
    let places: Vec<_> = (0..8).map(|_| stack.unmade_sandbox()).collect();
    let made = places.iter().map(|place| {
        let arguments = json!({ "id": place.id });
        let client = &client;
        async move { client.call("createSandbox", &arguments).await }
    });
    let answers = join_all(made).await;
    assert_eq!((count(&answers, 200), count(&answers, 429)), (3, 5), "{answers:?}");
    let refused = answers.iter().find(|answer| answer.status == 429).unwrap().problem(429, "quota_exceeded");
    assert_eq!((&refused.details["limit"], &refused.details["limitName"]), (&json!(3), &json!("liveSandboxes")));
    let first = places.iter().zip(&answers).find(|(_, answer)| answer.status == 200).unwrap().0;
    client.call("destroySandbox", &json!({ "sandboxId": first.id })).await.ok();
    let last = stack.unmade_sandbox();
    client.call("createSandbox", &json!({ "id": last.id })).await.ok();
}

#[tokio::test]
async fn operations_that_were_not_carried_out_are_given_back() {
    let (_, client) = limited(json!({ "sandboxOperationsPerHour": 2 })).await;
    let sandbox = Stack::shared().sandbox().await;
    let run = json!({ "sandboxId": sandbox.id, "command": "true" });
    client.call("exec", &run).await.ok();
    for _ in 0..3 {
        client
            .call("exec", &json!({ "sandboxId": random_name("none"), "command": "true" }))
            .await
            .problem(404, "not_found");
        client.call("exec", &json!({ "sandboxId": sandbox.id })).await.problem(400, "invalid_arguments");
    }
    client.call("exec", &run).await.ok();
    let problem = client.call("exec", &run).await.problem(429, "rate_limited");
    assert_eq!(problem.details["limitName"], "sandbox operations an hour");
    // What is not needed can always go.
    client.call("stopSandbox", &json!({ "sandboxId": sandbox.id })).await.ok();
}

#[tokio::test]
async fn processes_of_a_sandbox_are_counted() {
    let (_, client) = limited(json!({ "processesPerSandbox": 2 })).await;
    let sandbox = Stack::shared().sandbox().await;
    let server = json!({ "sandboxId": sandbox.id, "command": "sleep 300", "name": "server" });
    for _ in 0..2 {
        client.call("startBackgroundProcess", &server).await.ok();
    }
    client.call("startBackgroundProcess", &server).await.problem(429, "quota_exceeded");
}

#[tokio::test]
async fn open_calls_are_counted() {
    let (_, client) = limited(json!({ "concurrentCalls": 2 })).await;
    let sandbox = Stack::shared().sandbox().await;
    let slow = json!({ "sandboxId": sandbox.id, "command": "until [ -e go ]; do sleep 0.1; done", "timeout": 85 });
    let mut calls: FuturesUnordered<_> = (0..6).map(|_| client.call("exec", &slow)).collect();
    let mut answers = Vec::new();
    while let Some(answer) = calls.next().await {
        answers.push(answer);
        if answers.len() == 4 {
            sandbox.sh("touch go").await;
        }
    }
    assert_eq!((count(&answers, 200), count(&answers, 429)), (2, 4));
}

#[tokio::test]
async fn a_caller_that_asks_for_one_after_the_other_has_one_call_at_once() {
    let (_, client) = limited(json!({ "concurrentCalls": 1, "callsPerMinute": 1000 })).await;
    let sandbox = Stack::shared().sandbox().await;
    for round in 0..30 {
        let answer = client.call("exec", &json!({ "sandboxId": sandbox.id, "command": format!("echo {round}") })).await;
        assert_eq!(answer.ok()["stdout"], format!("{round}\n"));
    }
    // Two that are short wait for each other.
    let list = || client.call("listSandboxes", &json!({}));
    let both = || async {
        let (one, other) = tokio::join!(list(), list());
        ((one.status, other.status) == (200, 200)).then_some(())
    };
    eventually("both are answered", PATIENCE, both).await;
}

#[tokio::test]
async fn limits_are_changed_for_the_next_call() {
    let (key_id, client) = limited(json!({ "callsPerMinute": 1 })).await;
    let root = Stack::shared().client();
    client.call("listSandboxes", &json!({})).await.ok();
    client.call("listSandboxes", &json!({})).await.problem(429, "rate_limited");
    let changed = root.call("setLimits", &json!({ "keyId": key_id, "limits": { "callsPerMinute": 3 } })).await.ok();
    assert_eq!((&changed["limits"]["callsPerMinute"], &changed["limits"]["liveSandboxes"]), (&json!(3), &json!(10)));
    client.call("listSandboxes", &json!({})).await.ok();
    // The root key has none.
    assert_eq!(root.call("listSandboxes", &json!({})).await.header("x-ratelimit-limit"), None);
}

#[tokio::test]
async fn asking_for_the_tools_is_counted_like_a_call() {
    let (_, client) = limited(json!({ "callsPerMinute": 2 })).await;
    let first = client.get("/v1/tools").await;
    first.ok();
    let standing = (first.header("x-ratelimit-limit"), first.header("x-ratelimit-remaining"));
    assert_eq!(standing, (Some("2"), Some("1")));
    client.call("listSandboxes", &json!({})).await.ok();
    let refused = client.get("/v1/tools").await;
    refused.problem(429, "rate_limited");
    assert!(refused.header("retry-after").is_some() && refused.header("x-ratelimit-remaining") == Some("0"));
    Stack::shared().client().get("/v1/tools").await.ok();
}

/// The seconds are those of the key that made the sandbox, and only what has it run the longer asks for them.
#[tokio::test]
async fn seconds_of_sandboxes_are_the_makers() {
    let stack = Stack::shared();
    let (_, client) = limited(json!({ "sandboxSecondsPerDay": 2 })).await;
    let sandbox = stack.unmade_sandbox();
    client.call("createSandbox", &json!({ "id": sandbox.id })).await.ok();
    let root = stack.client();
    let about = |more: Value| {
        let mut arguments = more;
        arguments["sandboxId"] = json!(sandbox.id);
        arguments
    };
    let run = about(json!({ "command": "true" }));
    let used_up = || async { (root.call("exec", &run).await.status == 429).then_some(()) };
    eventually("its seconds are used up", PATIENCE, used_up).await;
    for caller in [&client, &root] {
        let problem = caller.call("exec", &run).await.problem(429, "quota_exceeded");
        assert_eq!(problem.details["limitName"], "sandboxSecondsPerDay");
        caller.call("listProcesses", &about(json!({}))).await.problem(429, "quota_exceeded");
        caller.call("updateSandbox", &about(json!({ "keepAlive": true }))).await.problem(429, "quota_exceeded");
        caller.call("updateSandbox", &about(json!({ "labels": { "a": "b" } }))).await.ok();
        caller.call("getSandbox", &about(json!({}))).await.ok();
    }
    client.call("createSandbox", &json!({ "id": random_name("s") })).await.problem(429, "quota_exceeded");
    client.call("stopSandbox", &about(json!({}))).await.ok();
    for caller in [&client, &root] {
        caller.call("wakeSandbox", &about(json!({}))).await.problem(429, "quota_exceeded");
        assert_eq!(caller.call("listProcesses", &about(json!({}))).await.ok()["processes"], json!([]));
    }
    // A sandbox of another key costs its maker.
    let other = stack.sandbox().await;
    client.call("exec", &json!({ "sandboxId": other.id, "command": "true" })).await.ok();
    client.call("destroySandbox", &about(json!({}))).await.ok();
}
