//! Who may come in, and how.

use std::time::Duration;

use serde_json::{Value, json};
use test_support::{Client, PATIENCE, Socket, Stack, eventually, find_by_argument, random_name};
use tokio_tungstenite::tungstenite::Error;

fn client() -> Client {
    Stack::shared().client()
}

/// What the upgrade was answered with instead.
async fn refused(client: &Client, headers: &[(&'static str, String)]) -> (u16, Value) {
    match client.upgrade(headers).await.map(drop).map_err(|error| *error) {
        Err(Error::Http(response)) => {
            let body = response.body().clone().unwrap_or_default();
            (response.status().as_u16(), serde_json::from_slice(&body).unwrap_or_default())
        }
        other => panic!("{other:?}"),
    }
}

async fn opened(headers: &[(&'static str, String)]) -> Socket {
    client().upgrade(headers).await.unwrap().0
}

#[tokio::test]
async fn a_key_comes_in_the_header_in_the_subprotocol_or_in_the_first_message() {
    let client = client();
    let key = client.key().unwrap().to_owned();
    let (mut socket, answer) = client.upgrade(&[("authorization", format!("Bearer {key}"))]).await.unwrap();
    let ready = socket.next().await;
    assert_eq!(
        (&ready["type"], &ready["keyId"], &ready["tenant"]),
        (&json!("ready"), &json!("root"), &json!("default"))
    );
    assert_eq!(ready["requestId"], answer.headers()["x-request-id"].to_str().unwrap());
    assert!(answer.headers().get("sec-websocket-protocol").is_none());
    let tool = json!({ "limit": 1 });
    assert!(socket.call("1", "listSandboxes", &tool).await.result()["sandboxes"].is_array());

    let protocols = ("sec-websocket-protocol", format!("bearer, {key}"));
    let (mut socket, answer) = client.upgrade(std::slice::from_ref(&protocols)).await.unwrap();
    assert_eq!(answer.headers()["sec-websocket-protocol"], "bearer", "the key is never answered");
    assert_eq!(socket.next().await["type"], "ready");
    assert!(socket.call("1", "listSandboxes", &tool).await.result()["sandboxes"].is_array());
    // Where there are both, the header counts.
    let (status, problem) =
        refused(&client, &[protocols, ("authorization", "Bearer wrong-key-0123456789".into())]).await;
    assert_eq!((status, &problem["code"]), (401, &json!("unauthenticated")));

    let mut socket = opened(&[]).await;
    // What is sent at once waits until it is known who speaks, and is answered in its order.
    socket.send(&json!({ "type": "init", "token": key, "tenant": "other" })).await;
    for id in ["1", "2", "3"] {
        socket.invoke(id, "listSandboxes", &tool).await;
    }
    let ready = socket.next().await;
    assert_eq!((&ready["type"], &ready["tenant"]), (&json!("ready"), &json!("other")));
    for id in ["1", "2", "3"] {
        assert!(socket.end_of(id).await.result()["sandboxes"].is_array());
    }
    socket.send(&json!({ "type": "init", "token": key })).await;
    assert_eq!(socket.next().await["error"]["code"], "conflict");
}

#[tokio::test]
async fn who_presents_no_good_key_is_told_so_and_closed() {
    let client = client();
    for headers in [
        ("authorization", "Bearer wrong-key-0123456789".to_owned()),
        ("authorization", "Basic abc".to_owned()),
        ("sec-websocket-protocol", "bearer, wrong-key-0123456789".to_owned()),
    ] {
        let (status, problem) = refused(&client, &[headers]).await;
        assert_eq!((status, &problem["code"]), (401, &json!("unauthenticated")), "{problem}");
    }
    for first in [
        json!({ "type": "init", "token": "wrong-key-0123456789" }),
        json!({ "type": "invoke", "id": "1", "tool": "listSandboxes" }),
        json!([]),
    ] {
        let mut socket = opened(&[]).await;
        socket.send(&first).await;
        let told = socket.next().await;
        assert_eq!((&told["type"], &told["error"]["code"]), (&json!("error"), &json!("unauthenticated")), "{told}");
        assert_eq!(socket.closed().await.0, 4401, "{first}");
    }
}

#[tokio::test]
async fn an_init_that_is_wrong_is_refused_by_its_field_and_is_not_to_be_tried_again() {
    let key = client().key().unwrap().to_owned();
    for (first, field) in [
        (json!({ "type": "init" }), "token"),
        (json!({ "type": "init", "token": 5 }), "token"),
        (json!({ "type": "init", "token": key, "room": "a" }), "room"),
        (json!({ "type": "init", "token": key, "tenant": "../x" }), "tenant"),
    ] {
        let mut socket = opened(&[]).await;
        socket.send(&first).await;
        let told = socket.next().await;
        let error = &told["error"];
        assert_eq!((&told["type"], &error["code"]), (&json!("error"), &json!("invalid_arguments")), "{told}");
        assert_eq!(error["details"]["violations"][0]["pointer"], format!("/{field}"), "{told}");
        assert!(error["detail"].as_str().unwrap().starts_with(&format!("{field}: ")), "{told}");
        assert_eq!(socket.closed().await.0, 4400, "{first}");
    }
}

#[tokio::test]
async fn who_says_nothing_is_closed_after_ten_seconds() {
    let began = std::time::Instant::now();
    let mut socket = opened(&[]).await;
    assert_eq!(socket.closed().await.0, 4408);
    assert!(began.elapsed() >= Duration::from_secs(9));
}

#[tokio::test]
async fn without_an_upgrade_the_path_says_what_it_speaks() {
    let answer = client().get("/ws").await;
    let problem = answer.problem(426, "upgrade_required");
    assert!(problem.detail.contains("Upgrade: websocket"), "{}", problem.detail);
    client().with_key(Some("wrong-key-0123456789")).get("/ws").await.problem(401, "unauthenticated");
}

#[tokio::test]
async fn a_key_that_is_revoked_makes_no_more_calls_on_an_open_connection() {
    let root = client();
    let made = root.call("createKey", &json!({ "name": "socket", "permissions": { "role": "viewer" } })).await.ok();
    let key = root.with_key(made["key"].as_str());
    let mut socket = key.socket().await;
    socket.call("1", "listSandboxes", &json!({})).await.result();
    socket.call("2", "exec", &json!({ "command": "true" })).await.problem("forbidden");
    root.call("revokeKey", &json!({ "keyId": made["keyId"] })).await.ok();
    socket.call("3", "listSandboxes", &json!({})).await.problem("unauthenticated");
}

#[tokio::test]
async fn what_is_under_way_with_a_key_that_is_revoked_ends_and_tells_nothing_more() {
    let (root, sandbox) = (client(), Stack::shared().sandbox().await);
    let made = root.call("createKey", &json!({ "name": "follows", "permissions": { "role": "operator" } })).await.ok();
    let key = root.with_key(made["key"].as_str());
    let marker = random_name("under-way");
    let chatty = json!({ "sandboxId": sandbox.id, "command": "while :; do echo line; sleep 1; done", "timeout": 300 });
    let job = root.deferred("exec", &chatty).await.job_id();
    let silent =
        json!({ "sandboxId": sandbox.id, "command": format!("echo; exec -a {marker} sleep 300"), "timeout": 300 });
    let mut socket = key.socket().await;
    socket.send(&json!({ "type": "subscribe", "id": "followed", "jobId": job })).await;
    socket.invoke("command", "exec", &silent).await;
    for id in ["followed", "command"] {
        assert_eq!(socket.event_of(id).await["type"], "event");
    }
    let mut stream = key.stream("getJobLogs", &json!({ "jobId": job, "follow": true, "timeout": 300 })).await;
    stream.next().await.unwrap();
    root.call("revokeKey", &json!({ "keyId": made["keyId"] })).await.ok();
    let ends = socket.ends_of(&["followed".to_owned(), "command".to_owned()]).await;
    for told in ends.values() {
        let error = told.problem("unauthenticated");
        assert!(error["detail"].as_str().unwrap().contains("revoked"), "{error}");
        assert_eq!(error["details"], json!({}));
    }
    let last = loop {
        match stream.next().await {
            Some(event) if event.name == "error" => break event,
            Some(event) => assert_ne!(event.name, "result", "{event:?}"),
            None => panic!("the stream ended without its end"),
        }
    };
    assert!(last.data.contains("unauthenticated"), "{last:?}");
    let is_gone = async || find_by_argument(&marker).is_empty().then_some(());
    eventually("the command has ended", PATIENCE, is_gone).await;
    let state = root.get(&format!("/v1/jobs/{job}/status")).await.ok()["state"].clone();
    assert_eq!(state, "running", "a job of another key goes on");
    root.call("cancelJob", &json!({ "jobId": job })).await.ok();
}
