//! Calls that are cancelled, and clients that vanish.

use serde_json::json;
use test_support::{PATIENCE, Stack, eventually, find_by_argument, random_name};

async fn gone(marker: &str) {
    eventually("the command has ended", PATIENCE, || async { find_by_argument(marker).is_empty().then_some(()) }).await;
}

#[tokio::test]
async fn cancel_kills_a_silent_command_and_its_end_confirms_it() {
    let sandbox = Stack::shared().sandbox().await;
    let mut socket = sandbox.client.socket().await;
    let marker = random_name("cancelled");
    let params =
        json!({ "sandboxId": sandbox.id, "command": format!("echo begun; sleep 600; : {marker}"), "timeout": 900 });
    socket.invoke("1", "exec", &params).await;
    assert_eq!(socket.event_of("1").await["data"]["data"], "begun\n");
    socket.invoke("other", "exec", &json!({ "sandboxId": sandbox.id, "command": "sleep 2; echo well" })).await;
    socket.send(&json!({ "type": "cancel", "id": "1" })).await;
    let told = socket.end_of("1").await;
    assert_eq!(told.problem("interrupted")["details"]["reason"], "killed", "{}", told.last);
    // When that was told, it was so.
    assert!(find_by_argument(&marker).is_empty());
    let request = json!({ "requestId": told.last["error"]["requestId"] });
    let books = eventually("the call is settled", PATIENCE, || async {
        let books = sandbox.client.call("getAuditLog", &request).await.ok();
        books["calls"][0]["code"].is_string().then_some(books)
    })
    .await;
    assert_eq!(books["calls"][0]["code"], "interrupted", "the books tell the same");
    assert_eq!(socket.end_of("other").await.result()["stdout"], "well\n", "others go on");
}

#[tokio::test]
async fn cancel_right_after_invoke_ends_it_too() {
    let sandbox = Stack::shared().sandbox().await;
    let mut socket = sandbox.client.socket().await;
    let marker = random_name("at-once");
    for _ in 0..10 {
        let params = json!({ "sandboxId": sandbox.id, "command": format!("sleep 600; : {marker}"), "timeout": 900 });
        socket.invoke("1", "exec", &params).await;
        socket.send(&json!({ "type": "cancel", "id": "1" })).await;
        socket.end_of("1").await.problem("interrupted");
        gone(&marker).await;
    }
}

#[tokio::test]
async fn a_client_that_vanishes_takes_its_commands_with_it() {
    let sandbox = Stack::shared().sandbox().await;
    let marker = random_name("vanished");
    for politely in [true, false] {
        let mut socket = sandbox.client.socket().await;
        for id in ["1", "2", "3"] {
            let params =
                json!({ "sandboxId": sandbox.id, "command": format!("echo; sleep 600; : {marker}"), "timeout": 900 });
            socket.invoke(id, "exec", &params).await;
        }
        for id in ["1", "2", "3"] {
            socket.event_of(id).await;
        }
        assert!(!find_by_argument(&marker).is_empty());
        if politely {
            socket.close().await;
        } else {
            drop(socket);
        }
        gone(&marker).await;
    }
}

#[tokio::test]
async fn a_client_that_stopped_to_ping_is_taken_for_gone() {
    let sandbox = Stack::shared().sandbox().await;
    let marker = random_name("silent");
    let mut socket = sandbox.client.socket().await;
    socket.send_text(r#"{"type":"ping"}"#).await;
    assert_eq!(socket.next().await["type"], "pong");
    let params = json!({ "sandboxId": sandbox.id, "command": format!("echo; sleep 600; : {marker}"), "timeout": 900 });
    socket.invoke("1", "exec", &params).await;
    socket.event_of("1").await;
    // The connection stands, and nothing comes through it.
    assert_eq!(socket.closed().await.0, 4410);
    gone(&marker).await;
}
