//! Calls: many at once, each with its events and its one end.

use serde_json::{Value, json};
use test_support::{PATIENCE, Stack, eventually};

#[tokio::test]
async fn many_calls_at_once_are_told_apart_and_their_events_counted() {
    let sandbox = Stack::shared().sandbox().await;
    let mut socket = sandbox.client.socket().await;
    let ids: Vec<String> = (0..20).map(|number| format!("call-{number}")).collect();
    for (number, id) in ids.iter().enumerate() {
        let command =
            format!("for i in 1 2 3; do echo {number}-$i; echo e{number}-$i >&2; sleep 0.05; done; exit {number}");
        socket.invoke(id, "exec", &json!({ "sandboxId": sandbox.id, "command": command, "timeout": 300 })).await;
    }
    for (number, id) in ids.iter().enumerate() {
        let told = socket.end_of(id).await;
        let lines = |mark: &str| (1..=3).map(|i| format!("{mark}{number}-{i}\n")).collect::<String>();
        assert_eq!((told.output("stdout"), told.output("stderr")), (lines(""), lines("e")), "{id}");
        let numbers: Vec<u64> = told.events.iter().map(|event| event["seq"].as_u64().unwrap()).collect();
        assert_eq!(numbers, (1..=u64::try_from(numbers.len()).unwrap()).collect::<Vec<_>>(), "{id}");
        let result = told.result();
        assert_eq!((&result["exitCode"], &result["stdout"]), (&json!(number), &json!(lines(""))));
        assert!(told.last["requestId"].is_string() && told.last.get("deferred").is_none());
    }
}

#[tokio::test]
async fn what_fails_is_the_problem_that_rest_answers() {
    let sandbox = Stack::shared().sandbox().await;
    let mut socket = sandbox.client.socket().await;
    let cases = [
        ("exec", json!({ "sandboxId": sandbox.id, "command": "sleep 60", "timeout": 1 })),
        ("exec", json!({ "sandboxId": sandbox.id, "command": 7 })),
        ("exec", json!({ "sandboxId": "no-such", "command": "true" })),
        ("noSuchTool", json!({})),
        ("readFile", json!({ "sandboxId": sandbox.id, "path": "/etc/../../x" })),
        ("getJob", json!({ "jobId": "none" })),
    ];
    for (tool, params) in cases {
        let rest = sandbox.client.call(tool, &params).await.json();
        let told = socket.call("1", tool, &params).await;
        let same = |problem: &Value| {
            let mut problem = problem.clone();
            // Sandboxes of other tests come and go.
            for field in ["requestId", "execId", "executionTime", "availableSandboxes"] {
                problem.as_object_mut().unwrap().remove(field);
                problem["details"].as_object_mut().unwrap().remove(field);
            }
            problem
        };
        assert_eq!(told.last["type"], "error", "{tool}: {}", told.last);
        assert_eq!(same(&told.last["error"]), same(&rest), "{tool}");
    }
}

#[tokio::test]
async fn a_call_is_found_in_the_books_under_its_door() {
    let sandbox = Stack::shared().sandbox().await;
    let mut socket = sandbox.client.socket().await;
    let told = socket.call("1", "exec", &json!({ "sandboxId": sandbox.id, "command": "exit 4" })).await;
    // A call is settled a moment after its answer.
    let request = json!({ "requestId": told.last["requestId"] });
    let settled = || async {
        let books = sandbox.client.call("getAuditLog", &request).await.ok();
        (books["calls"][0]["result"] != "open").then_some(books)
    };
    let books = eventually("the call is settled", PATIENCE, settled).await;
    let call = &books["calls"][0];
    assert_eq!(
        (&call["door"], &call["tool"], &call["exitCode"]),
        (&json!("websocket"), &json!("exec"), &json!(4)),
        "{books}"
    );
}

#[tokio::test]
async fn an_async_call_is_answered_with_its_job_which_outlives_the_connection() {
    let sandbox = Stack::shared().sandbox().await;
    let mut socket = sandbox.client.socket().await;
    let params = json!({ "sandboxId": sandbox.id, "command": "sleep 1; echo done" });
    socket.send(&json!({ "type": "invoke", "id": "1", "tool": "exec", "params": params, "async": true })).await;
    let told = socket.end_of("1").await;
    assert_eq!(told.last["deferred"], true, "{}", told.last);
    let job_id = told.result()["jobId"].as_str().unwrap().to_owned();
    assert_eq!(told.last["requestId"], job_id.as_str());
    drop(socket);
    let job = sandbox.client.ended(&job_id).await;
    assert_eq!((&job["state"], &job["output"]["stdout"]), (&json!("succeeded"), &json!("done\n")));
}

#[tokio::test]
async fn a_call_with_a_key_for_repeats_is_carried_out_once() {
    let sandbox = Stack::shared().sandbox().await;
    let mut socket = sandbox.client.socket().await;
    let params = json!({ "sandboxId": sandbox.id, "command": "echo x >> runs; cat runs" });
    let key = format!("once-{}", sandbox.id);
    let mut ends = Vec::new();
    for id in ["1", "2"] {
        let invoke = json!({ "type": "invoke", "id": id, "tool": "exec", "params": params, "idempotencyKey": key });
        socket.send(&invoke).await;
        ends.push(socket.end_of(id).await);
    }
    assert_eq!(ends[0].result(), ends[1].result());
    assert_eq!((ends[0].last.get("replayed"), ends[1].last.get("replayed")), (None, Some(&json!(true))));
    assert_eq!(sandbox.sh("cat runs").await, "x\n");
}

#[tokio::test]
async fn messages_that_cannot_be_taken_are_answered_with_the_reason_and_disturb_nothing() {
    let sandbox = Stack::shared().sandbox().await;
    let mut socket = sandbox.client.socket().await;
    sandbox.sh("mkfifo gate").await;
    let arguments = json!({ "sandboxId": sandbox.id, "command": "read x < gate; echo $x", "timeout": 300 });
    socket.invoke("open", "exec", &arguments).await;
    let long =
        format!(r#"{{"type":"invoke","id":"long","tool":"exec","params":{{"command":"{}"}}}}"#, "x".repeat(2_000_000));
    let cases = [
        ("{", "malformed_request", None),
        ("null", "invalid_arguments", None),
        (r#"{"type":"shout"}"#, "invalid_arguments", None),
        (r#"{"type":"invoke","id":"bad","tool":"exec","param":{}}"#, "invalid_arguments", Some("bad")),
        // An error under the id of what is open would be taken for its end.
        (r#"{"type":"invoke","id":"open"}"#, "invalid_arguments", None),
        (r#"{"type":"invoke","id":"open","tool":"listKeys"}"#, "conflict", None),
        (r#"{"type":"cancel","id":"nothing"}"#, "not_found", None),
        (long.as_str(), "payload_too_large", None),
        (r#"{"type":"subscribe","id":"far","jobId":"j","fromSeq":9007199254740992}"#, "invalid_arguments", Some("far")),
    ];
    for (text, code, id) in cases {
        socket.send_text(text).await;
        let told = socket.next().await;
        assert_eq!((&told["type"], &told["error"]["code"]), (&json!("error"), &json!(code)), "{told}");
        assert_eq!(told.get("id").and_then(Value::as_str), id, "{told}");
    }
    // This ping is answered by the runtime, and the other one by the object.
    for ping in [r#"{"type":"ping"}"#, r#"{ "type": "ping" }"#] {
        socket.send_text(ping).await;
        assert_eq!(socket.next().await, json!({ "type": "pong" }));
    }
    sandbox.sh("echo well > gate").await;
    assert_eq!(socket.end_of("open").await.result()["stdout"], "well\n");
    socket.send_bytes(b"{}").await;
    assert_eq!(socket.closed().await.0, 1003);
}

#[tokio::test]
async fn what_rest_has_as_a_header_is_refused_as_the_field_of_the_message() {
    let mut socket = Stack::shared().client().socket().await;
    for (field, value) in [("webhookUrl", "ftp://example.com"), ("idempotencyKey", "a b")] {
        socket.send(&json!({ "type": "invoke", "id": "1", "tool": "listSandboxes", field: value })).await;
        let told = socket.end_of("1").await;
        let error = told.problem("invalid_arguments");
        assert_eq!(error["details"]["violations"][0]["pointer"], format!("/{field}"), "{error}");
        assert!(error["detail"].as_str().unwrap().starts_with(&format!("{field}: ")), "{error}");
    }
}

#[tokio::test]
async fn a_connection_has_a_hundred_calls_open_at_most() {
    let sandbox = Stack::shared().sandbox().await;
    let mut socket = sandbox.client.socket().await;
    sandbox.sh("mkfifo gate").await;
    // A sandbox has room for fewer; the log of one job that waits is followed by any number.
    let waits = json!({ "sandboxId": sandbox.id, "command": "cat gate", "timeout": 300 });
    let job = sandbox.client.deferred("exec", &waits).await.job_id();
    let follow = |number: usize| {
        json!({ "type": "invoke", "id": format!("{number}"), "tool": "getJobLogs",
            "params": { "jobId": job, "follow": true, "timeout": 300 } })
    };
    let ids: Vec<String> = (0..100).map(|number| number.to_string()).collect();
    for number in 0..101 {
        socket.send(&follow(number)).await;
    }
    let refused = socket.end_of("100").await;
    assert_eq!(refused.problem("quota_exceeded")["details"]["limit"], 100);
    for id in &ids {
        socket.send(&json!({ "type": "cancel", "id": id })).await;
    }
    for (id, told) in socket.ends_of(&ids).await {
        assert!(told.last["type"] == "error", "{id}: {}", told.last);
    }
    // There is room again.
    assert_eq!(
        socket.call("100", "exec", &json!({ "sandboxId": sandbox.id, "command": "true" })).await.result()["exitCode"],
        0
    );
}
