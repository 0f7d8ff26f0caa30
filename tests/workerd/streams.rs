//! The event stream of a call: live, kept alive, and ended by exactly one terminal event.

use serde_json::{Value, json};
use test_support::{PATIENCE, Stack, within};

#[tokio::test]
async fn output_arrives_while_the_command_runs() {
    let sandbox = Stack::shared().sandbox().await;
    let mut stream =
        sandbox.open_stream(json!({"command": "echo one; read -t 300 _ < <(sleep 300)", "timeout": 600})).await;
    let first = within("the first event", PATIENCE, stream.next()).await.unwrap();
    assert_eq!(first.name, "stdout");
    let data: Value = serde_json::from_str(&first.data).unwrap();
    assert_eq!(data, json!({"data": "one\n", "encoding": "utf-8", "offset": 0}));
}

#[tokio::test]
async fn a_silent_stream_is_kept_alive_and_ends_in_its_result() {
    let sandbox = Stack::shared().sandbox().await;
    let transcript = sandbox.exec_streamed(json!({"command": "sleep 12; echo end"})).await;
    assert_eq!(transcript.result()["stdout"], "end\n");
    assert!(transcript.comments >= 1, "a comment at least every ten seconds");
}

#[tokio::test]
async fn the_stream_has_the_headers_of_one() {
    let sandbox = Stack::shared().sandbox().await;
    let request = sandbox.client.request(reqwest::Method::POST, "/v1/tools/exec").header("accept", "text/event-stream");
    let answer = sandbox.client.send(request.json(&json!({"sandboxId": sandbox.id, "command": "echo x"}))).await;
    assert_eq!(answer.status, 200);
    assert!(answer.header("content-type").unwrap().starts_with("text/event-stream"));
    assert!(answer.header("cache-control").unwrap_or_default().contains("no-"), "no cache may keep or change it");
    assert!(answer.header("x-request-id").is_some() && answer.header("access-control-allow-origin").is_some());
    assert!(answer.text().trim_end().ends_with('}'), "{}", answer.text());
}

#[tokio::test]
async fn any_tool_streams_its_result() {
    let sandbox = Stack::shared().sandbox().await;
    let stream = sandbox.client.stream("getSandbox", &json!({"sandboxId": sandbox.id})).await;
    assert_eq!(stream.transcript().await.result()["sandboxId"], json!(sandbox.id));
}

#[tokio::test]
async fn the_accept_header_is_read_as_it_is_meant() {
    let sandbox = Stack::shared().sandbox().await;
    for accept in ["*/*", "application/json", "application/json, text/event-stream;q=0", ""] {
        let request = sandbox.client.request(reqwest::Method::POST, "/v1/tools/exec").header("accept", accept);
        let answer = sandbox.client.send(request.json(&json!({"sandboxId": sandbox.id, "command": "true"}))).await;
        assert_eq!(answer.ok()["exitCode"], 0, "{accept}");
    }
    for accept in ["text/event-stream", "Text/Event-Stream; charset=utf-8", "text/event-stream, */*;q=0.1"] {
        let request = sandbox.client.request(reqwest::Method::POST, "/v1/tools/exec").header("accept", accept);
        let answer = sandbox.client.send(request.json(&json!({"sandboxId": sandbox.id, "command": "true"}))).await;
        assert!(answer.header("content-type").unwrap().starts_with("text/event-stream"), "{accept}");
    }
}
