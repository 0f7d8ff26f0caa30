//! Callers that leave: what they started ends, and the Worker stays well.

use serde_json::json;
use test_support::{PATIENCE, Stack, eventually, find_by_argument, random_name};

#[tokio::test]
async fn fifty_callers_that_leave_a_chatty_stream_leave_nothing_behind() {
    let sandbox = Stack::shared().sandbox().await;
    let marker = random_name("chatty");
    for _ in 0..5 {
        let calls = (0..10).map(|_| async {
            let command = format!("while :; do echo {marker}; sleep 0.01; done");
            let mut stream = sandbox.open_stream(json!({"command": command, "timeout": 300})).await;
            for _ in 0..3 {
                assert_eq!(stream.next().await.unwrap().name, "stdout");
            }
        });
        futures_util::future::join_all(calls).await;
    }
    let gone = || async { find_by_argument(&marker).is_empty().then_some(()) };
    eventually("every command has ended", PATIENCE, gone).await;
    assert_eq!(sandbox.sh("echo well").await, "well\n");
    let transcript = sandbox.exec_streamed(json!({"command": "echo well"})).await;
    assert_eq!(transcript.stdout, b"well\n");
}

#[tokio::test]
async fn a_caller_that_leaves_a_silent_stream_is_noticed() {
    let sandbox = Stack::shared().sandbox().await;
    let marker = random_name("silent");
    let mut stream =
        sandbox.open_stream(json!({"command": format!("echo; sleep 300; : {marker}"), "timeout": 600})).await;
    stream.next().await.unwrap();
    assert!(!find_by_argument(&marker).is_empty());
    drop(stream);
    let gone = || async { find_by_argument(&marker).is_empty().then_some(()) };
    eventually("the command has ended", PATIENCE, gone).await;
}

#[tokio::test]
async fn a_buffered_call_whose_caller_left_is_bounded_by_its_timeout() {
    let sandbox = Stack::shared().sandbox().await;
    let marker = random_name("left");
    let arguments = json!({"sandboxId": sandbox.id, "command": format!("sleep 300; : {marker}"), "timeout": 30});
    let request = sandbox.client.request(reqwest::Method::POST, "/v1/tools/exec").json(&arguments);
    let call = tokio::spawn(request.send());
    let runs = || async { (!find_by_argument(&marker).is_empty()).then_some(()) };
    eventually("the command runs", PATIENCE, runs).await;
    call.abort();
    let gone = || async { find_by_argument(&marker).is_empty().then_some(()) };
    eventually("the command has ended", PATIENCE, gone).await;
}

#[tokio::test]
async fn one_callers_leaving_does_not_touch_anothers_command() {
    let sandbox = Stack::shared().sandbox().await;
    let marker = random_name("other");
    let leaving =
        sandbox.open_stream(json!({"command": format!("while :; do echo {marker}; sleep 0.01; done"), "timeout": 300}));
    let mut leaving = leaving.await;
    let staying = sandbox.open_stream(json!({"command": "echo begin; sleep 8; echo end", "timeout": 300})).await;
    sandbox.sh("(exec -a server sleep 300) >&- 2>&- & echo").await;
    leaving.next().await.unwrap();
    drop(leaving);
    assert_eq!(staying.transcript().await.stdout, b"begin\nend\n");
    let gone = || async { find_by_argument(&marker).is_empty().then_some(()) };
    eventually("the left command has ended", PATIENCE, gone).await;
    assert_eq!(sandbox.sh("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -o 'server' | head -1").await, "server\n");
}
