//! Bad input: each gets its code, names the field, creates nothing, and is never a 500.

use serde_json::{Value, json};
use test_support::Stack;

#[tokio::test]
async fn what_does_not_validate_names_the_field() {
    let sandbox = Stack::shared().sandbox().await;
    let id = &sandbox.id;
    let long = "x".repeat(300);
    let exec = |fields: Value| {
        let mut arguments = json!({"sandboxId": id, "command": "true"});
        arguments.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        ("exec", arguments)
    };
    // The tool and its arguments, the JSON pointer of what is wrong, the name that the message must have.
    let cases: Vec<((&str, Value), &str, &str)> = vec![
        (("exec", json!({})), "", "command"),
        (exec(json!({"command": 5})), "/command", "command"),
        (exec(json!({"command": null})), "/command", "command"),
        (exec(json!({"command": ["ls"]})), "/command", "command"),
        (exec(json!({"comand": "ls"})), "", "comand"),
        (exec(json!({"sandboxId": 7})), "/sandboxId", "sandboxId"),
        (exec(json!({"sandboxId": "../x"})), "/sandboxId", "sandboxId"),
        (exec(json!({"sandboxId": "a/b"})), "/sandboxId", "sandboxId"),
        (exec(json!({"sandboxId": ""})), "/sandboxId", "sandboxId"),
        (exec(json!({"sandboxId": "UPPER"})), "/sandboxId", "sandboxId"),
        (exec(json!({"sandboxId": long})), "/sandboxId", "sandboxId"),
        (exec(json!({"timeout": 0})), "/timeout", "timeout"),
        (exec(json!({"timeout": -1})), "/timeout", "timeout"),
        (exec(json!({"timeout": 0.5})), "/timeout", "timeout"),
        (exec(json!({"timeout": 1e15})), "/timeout", "timeout"),
        (exec(json!({"timeout": "5"})), "/timeout", "timeout"),
        (exec(json!({"timeout": null})), "/timeout", "timeout"),
        (exec(json!({"language": "cobol"})), "/language", "language"),
        (exec(json!({"language": 1})), "/language", "language"),
        (exec(json!({"env": []})), "/env", "env"),
        (exec(json!({"env": {"A": null}})), "/env/A", "A"),
        (exec(json!({"env": {"A": 1}})), "/env/A", "A"),
        (exec(json!({"env": {"A=B": "x"}})), "/env", "A=B"),
        (exec(json!({"env": {"": "x"}})), "/env", "env"),
        (exec(json!({"env": {"A": "nul\u{0}"}})), "/env/A", "A"),
        (exec(json!({"cwd": 1})), "/cwd", "cwd"),
        (exec(json!({"stdin": {}})), "/stdin", "stdin"),
        (("createSandbox", json!({"id": "../x"})), "/id", "id"),
        (("createSandbox", json!({"id": "-a"})), "/id", "id"),
        (("createSandbox", json!({"id": "a".repeat(64)})), "/id", "id"),
        (("createSandbox", json!({"id": "sp ace"})), "/id", "id"),
        (("createSandbox", json!({"id": "é"})), "/id", "id"),
        (("createSandbox", json!({"labels": "a"})), "/labels", "labels"),
        (("createSandbox", json!({"labels": {"a": 1}})), "/labels/a", "a"),
        (("createSandbox", json!({"unknown": 1})), "", "unknown"),
        (("getSandbox", json!({"filters": {"status": "sleepy"}})), "/filters/status", "status"),
        (("getSandbox", json!({"filters": {"nothing": 1}})), "/filters", "nothing"),
        (("listSandboxes", json!({"limit": 0})), "/limit", "limit"),
        (("listSandboxes", json!({"limit": "x"})), "/limit", "limit"),
        (("listSandboxes", json!({"limit": 1_000_000_000})), "/limit", "limit"),
        (("listSandboxes", json!({"cursor": 5})), "/cursor", "cursor"),
        (("getJobLogs", json!({"jobId": "j", "offset": 9_007_199_254_740_992_u64})), "/offset", "offset"),
        (("getJobLogs", json!({"jobId": "j", "offset": 18_446_744_073_709_551_616_f64})), "/offset", "offset"),
        (("getAuditLog", json!({"cursor": 9_223_372_036_854_775_808_u64})), "/cursor", "cursor"),
        (("listWebhookDeliveries", json!({"cursor": "9007199254740992"})), "/cursor", "cursor"),
        (("listJobs", json!({"cursor": "9007199254740992.j"})), "/cursor", "cursor"),
        (("destroySandbox", json!({})), "", "sandboxId"),
        (("destroySandbox", json!({"sandboxId": "..", "force": true})), "/sandboxId", "sandboxId"),
        (("destroySandbox", json!({"sandboxId": "a", "force": "yes"})), "/force", "force"),
        (("readFile", json!({"sandboxId": id})), "", "path"),
        (("readFile", json!({"sandboxId": id, "path": "a", "offset": -1})), "/offset", "offset"),
        (("readFile", json!({"sandboxId": id, "path": "a", "encoding": "latin1"})), "/encoding", "encoding"),
        (("writeFile", json!({"sandboxId": id, "path": "a"})), "", "content"),
        (("writeFile", json!({"sandboxId": id, "path": "a", "content": 1})), "/content", "content"),
    ];
    for ((tool, arguments), pointer, name) in cases {
        let answer = sandbox.client.call(tool, &arguments).await;
        let what = format!("{tool} {arguments}");
        assert_eq!(answer.status, 400, "{what}: {}", answer.text());
        let problem = answer.problem(400, "invalid_arguments");
        assert!(problem.detail.contains(name), "{what}: the message does not name {name}: {}", problem.detail);
        assert!(!problem.retryable, "{what}");
        let violations = problem.details["violations"].as_array().unwrap_or_else(|| panic!("{what}: {problem:?}"));
        let at = |violation: &Value| {
            assert!(violation["message"].is_string(), "{what}: {violation}");
            violation["pointer"].as_str().unwrap().starts_with(pointer)
        };
        assert!(violations.iter().any(at), "{what}: nothing points at {pointer}: {violations:?}");
    }
}

#[tokio::test]
async fn arguments_that_decode_but_make_no_sense_are_refused_by_name() {
    let sandbox = Stack::shared().sandbox().await;
    let cases = [
        ("exec", json!({"command": "true", "cwd": "no/such/folder"}), "cwd"),
        ("exec", json!({"command": "nul\u{0}"}), "command"),
        ("writeFile", json!({"path": "a", "content": "%%%", "encoding": "base64"}), "content"),
        ("writeFile", json!({"path": "", "content": ""}), "path"),
        ("readFile", json!({"path": "nul\u{0}"}), "path"),
    ];
    for (tool, arguments, name) in cases {
        let problem = sandbox.call(tool, arguments.clone()).await.problem(400, "invalid_arguments");
        assert!(problem.detail.contains(name), "{tool} {arguments}: {}", problem.detail);
    }
}

#[tokio::test]
async fn a_body_that_is_not_an_object_of_json_is_malformed_or_invalid() {
    let client = Stack::shared().client();
    let malformed: [&[u8]; 7] = [
        b"not JSON",
        b"{\"command\":",
        b"{\"command\":\"x\"} trailing",
        b"\xff\xfe",
        b"{'command':'x'}",
        b"\"\xc3\"",
        b"NaN",
    ];
    for body in malformed {
        client.post("/v1/tools/exec", body.to_vec()).await.problem(400, "malformed_request");
    }
    for body in ["[]", "\"text\"", "5", "null", "true"] {
        let answer = client.post("/v1/tools/exec", body).await;
        let problem = answer.any_problem();
        assert_eq!(answer.status, 400, "{body}");
        assert!(
            ["malformed_request", "invalid_arguments"].contains(&problem.code.as_str()),
            "{body}: {}",
            problem.code
        );
    }
}

#[tokio::test]
async fn an_empty_body_is_an_empty_object_or_is_refused_clearly() {
    let client = Stack::shared().client();
    let answer = client.post("/v1/tools/exec", "").await;
    assert_eq!(answer.status, 400, "{}", answer.text());
    answer.any_problem();
}

#[tokio::test]
async fn deep_nesting_is_refused_and_the_worker_lives() {
    let client = Stack::shared().client();
    for depth in [200, 100_000] {
        let body = format!("{{\"command\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
        let answer = client.post("/v1/tools/exec", body).await;
        assert_eq!(answer.status, 400, "{}", answer.text());
        answer.any_problem();
    }
    client.get("/v1/tools").await.ok();
}

#[tokio::test]
async fn a_json_body_over_the_limit_is_told_the_limit() {
    let client = Stack::shared().client();
    let command = format!("true #{}", "x".repeat(5_000_000));
    let problem = client.call("exec", &json!({"command": command})).await.problem(413, "payload_too_large");
    assert_eq!(problem.details["limitBytes"], 4 * 1024 * 1024);
    // A length that is only declared is enough, and one that is not declared does not slip through.
    let body = json!({"command": command}).to_string();
    let chunks = futures_util::stream::iter(
        body.into_bytes().chunks(65_536).map(|chunk| Ok::<_, String>(chunk.to_vec())).collect::<Vec<_>>(),
    );
    client.post("/v1/tools/exec", reqwest::Body::wrap_stream(chunks)).await.problem(413, "payload_too_large");
}

#[tokio::test]
async fn an_unknown_tool_is_named() {
    let client = Stack::shared().client();
    for tool in ["noSuchTool", "Exec", "exec%20", "..%2fexec", "constructor", "__proto__", "toString"] {
        let problem = client.call(tool, &json!({})).await.problem(404, "unknown_tool");
        assert!(!problem.retryable);
    }
    let problem = client.call("noSuchTool", &json!({})).await.problem(404, "unknown_tool");
    assert!(problem.detail.contains("noSuchTool"), "{}", problem.detail);
}

#[tokio::test]
async fn an_unknown_sandbox_is_not_found_and_not_made() {
    let stack = Stack::shared();
    let sandbox = stack.unmade_sandbox();
    let calls = [
        ("exec", json!({"command": "true"})),
        ("getSandbox", json!({})),
        ("readFile", json!({"path": "a"})),
        ("writeFile", json!({"path": "a", "content": "x"})),
    ];
    for (tool, arguments) in calls {
        let problem = sandbox.call(tool, arguments).await.problem(404, "not_found");
        assert!(problem.detail.contains(&sandbox.id), "{tool} names the sandbox: {}", problem.detail);
    }
    sandbox.client.get(&format!("/v1/sandboxes/{}", sandbox.id)).await.problem(404, "not_found");
    sandbox.client.get(&sandbox.file_path("a")).await.problem(404, "not_found");
    assert!(stack.proxy.seen(&sandbox.id).is_empty(), "the host was not asked");
}

#[tokio::test]
async fn ids_with_dots_and_slashes_in_a_path_reach_nothing() {
    let client = Stack::shared().client();
    for id in ["..", "%2e%2e", "..%2f..%2fetc", "a%2fb", "a%00b", "%ff", "A", "-a", "a%20b", "a..b"] {
        for tail in ["", "/files/x"] {
            let head = format!(
                "GET /v1/sandboxes/{id}{tail} HTTP/1.1\nHost: x\nAuthorization: Bearer {{key}}\nConnection: close\n\n"
            );
            let answer = client.raw(&head).await;
            let status = answer.split(' ').nth(1).unwrap_or_default().to_owned();
            assert!(["400", "404"].contains(&status.as_str()), "{id}{tail}: {answer}");
        }
    }
}
