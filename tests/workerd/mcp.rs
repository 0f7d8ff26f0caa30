//! MCP in both of its eras, over plain HTTP: what the protocol fixes to the letter.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use test_support::{Answer, Client, PATIENCE, Stack, eventually, random_name, within};

const MODERN: &str = "2026-07-28";

fn message(method: &str, params: &Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params })
}

/// A message of the earlier revisions.
pub(crate) async fn legacy(client: &Client, method: &str, params: Value) -> Answer {
    sent(client, &[("mcp-protocol-version", "2025-06-18")], message(method, &params)).await
}

/// A message of the stateless revision, its headers as they should be.
pub(crate) async fn modern(client: &Client, method: &str, params: Value) -> Answer {
    modern_with(client, json!({}), method, params).await
}

/// The same from a client that can do this.
pub(crate) async fn modern_with(client: &Client, capabilities: Value, method: &str, mut params: Value) -> Answer {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": capabilities,
        "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
    });
    let name = params["name"].as_str().or(params["uri"].as_str()).unwrap_or_default().to_owned();
    let mut headers = vec![("mcp-protocol-version", MODERN), ("mcp-method", method)];
    if !name.is_empty() {
        headers.push(("mcp-name", &name));
    }
    sent(client, &headers, message(method, &params)).await
}

pub(crate) async fn sent(client: &Client, headers: &[(&str, &str)], body: Value) -> Answer {
    let mut request = client.request(Method::POST, "/mcp").header("content-type", "application/json");
    if !headers.iter().any(|(name, _)| *name == "accept") {
        request = request.header("accept", "application/json, text/event-stream");
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    client.send(request.body(body.to_string())).await
}

fn stack() -> (&'static Stack, Client) {
    (Stack::shared(), Stack::shared().client())
}

#[tokio::test]
async fn a_legacy_client_initializes_lists_and_calls_without_a_session() {
    let (_, client) = stack();
    let params =
        json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } });
    let answer = sent(&client, &[], message("initialize", &params)).await.ok();
    assert_eq!((&answer["id"], &answer["result"]["protocolVersion"]), (&json!(7), &json!("2025-06-18")));
    assert!(answer["result"]["capabilities"]["tools"].is_object(), "{answer}");
    let notification = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
    let answer = sent(&client, &[("mcp-session-id", "long-gone")], notification).await;
    assert_eq!((answer.status, answer.body.len()), (202, 0));
    assert_eq!(legacy(&client, "ping", json!({})).await.ok()["result"], json!({}));
    let stale = sent(&client, &[("mcp-session-id", "long-gone")], message("tools/list", &json!({}))).await.ok();
    let tools = stale["result"]["tools"].as_array().unwrap().clone();
    let described = client.get("/v1/tools").await.ok();
    let names = |tools: &Value| tools.as_array().unwrap().iter().map(|tool| tool["name"].clone()).collect::<Vec<_>>();
    assert_eq!(names(&json!(tools)), names(&described["tools"]), "the same tools in the same order as at REST");
    for (tool, described) in tools.iter().zip(described["tools"].as_array().unwrap()) {
        assert_eq!(tool["inputSchema"], described["inputSchema"], "{}", tool["name"]);
    }
}

#[tokio::test]
async fn a_call_that_outlasts_a_silent_client_is_answered_with_its_job() {
    let (stack, client) = stack();
    let sandbox = stack.sandbox().await;
    let command = "echo x >> runs; read x < gate; echo done";
    let arguments = json!({ "sandboxId": sandbox.id, "command": command, "timeout": 600 });
    sandbox.sh("mkfifo gate").await;
    let asked_at = std::time::Instant::now();
    let answer = legacy(&client, "tools/call", json!({ "name": "exec", "arguments": arguments })).await.ok();
    assert!(asked_at.elapsed() > Duration::from_secs(45), "{:?}", asked_at.elapsed());
    let job_id = answer["result"]["structuredContent"]["job"]["jobId"].as_str().unwrap_or_else(|| panic!("{answer}"));
    assert!(answer["result"]["content"][0]["text"].as_str().unwrap().contains(job_id), "{answer}");
    sandbox.sh("echo > gate").await;
    let job = client.ended(job_id).await;
    assert_eq!(job["output"]["stdout"], "done\n");
    // What ends in time is answered as ever, however long it might have lasted.
    let arguments = json!({ "sandboxId": sandbox.id, "command": "cat runs", "timeout": 90 });
    let answer = modern(&client, "tools/call", json!({ "name": "exec", "arguments": arguments })).await.ok();
    assert_eq!(answer["result"]["structuredContent"]["stdout"], "x\n", "{answer}");
}

#[tokio::test]
async fn a_call_answers_text_and_structure_and_a_failing_command_is_no_error() {
    let (stack, client) = stack();
    let sandbox = stack.sandbox().await;
    let arguments = json!({ "sandboxId": sandbox.id, "command": "echo out; echo err >&2; exit 3" });
    for era in ["legacy", "modern"] {
        let params = json!({ "name": "exec", "arguments": arguments });
        let answer = match era {
            "legacy" => legacy(&client, "tools/call", params).await,
            _ => modern(&client, "tools/call", params).await,
        };
        let result = answer.ok()["result"].clone();
        assert_eq!(result["isError"], false, "{result}");
        assert_eq!(result["structuredContent"]["exitCode"], 3, "{result}");
        let text: Value = serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
        assert_eq!((&text["stdout"], &text["stderr"]), (&json!("out\n"), &json!("err\n")));
        assert_eq!(result.get("resultType").is_some(), era == "modern");
    }
}

#[tokio::test]
async fn errors_of_tools_are_results_and_errors_of_the_protocol_are_not() {
    let (_, client) = stack();
    let call = |name: &str, arguments: Value| json!({ "name": name, "arguments": arguments });
    let missing =
        legacy(&client, "tools/call", call("getSandbox", json!({ "sandboxId": random_name("none") }))).await.ok();
    let result = &missing["result"];
    assert_eq!(
        (&result["isError"], &result["_meta"]["cloudflare-ops/code"]),
        (&json!(true), &json!(-32001)),
        "{missing}"
    );
    assert!(result.get("structuredContent").is_none());
    assert_eq!(result["_meta"]["cloudflare-ops/problem"]["code"], "not_found");
    let invalid = legacy(&client, "tools/call", call("exec", json!({ "comand": "true" }))).await.ok();
    assert_eq!(invalid["result"]["_meta"]["cloudflare-ops/code"], -32004, "{invalid}");
    assert!(invalid["result"]["content"][0]["text"].as_str().unwrap().contains("comand"), "{invalid}");
    let unknown = legacy(&client, "tools/call", call("noSuchTool", json!({}))).await.ok();
    assert_eq!(unknown["error"]["code"], -32602, "{unknown}");
    let unnamed = legacy(&client, "tools/call", json!({})).await.ok();
    assert_eq!(unnamed["error"]["code"], -32602, "{unnamed}");
    let method = legacy(&client, "no/such", json!({})).await.ok();
    assert_eq!(method["error"]["code"], -32601);
    let method = modern(&client, "no/such", json!({})).await;
    assert_eq!((method.status, &method.json()["error"]["code"]), (404, &json!(-32601)));
}

#[tokio::test]
async fn bodies_that_are_no_message_are_refused_by_their_codes() {
    let (_, client) = stack();
    let answer = client.post("/mcp", "{not json").await;
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (400, &json!(-32700)));
    assert_eq!(answer.json()["id"], Value::Null);
    for body in [
        json!([message("ping", &json!({}))]),
        json!({ "jsonrpc": "2.0", "id": null, "method": "ping" }),
        json!({ "jsonrpc": "2.0", "id": 1.5, "method": "ping" }),
        json!({ "id": 1, "method": "ping" }),
    ] {
        let answer = sent(&client, &[], body.clone()).await;
        assert_eq!((answer.status, &answer.json()["error"]["code"]), (400, &json!(-32600)), "{body}");
    }
    let text = json!({ "jsonrpc": "2.0", "id": "7", "method": "ping" });
    assert_eq!(sent(&client, &[], text).await.ok()["id"], "7");
}

#[tokio::test]
async fn the_modern_era_discovers_lists_and_holds_headers_against_the_body() {
    let (_, client) = stack();
    let discovered = modern(&client, "server/discover", json!({})).await.ok()["result"].clone();
    assert_eq!(discovered["resultType"], "complete");
    assert_eq!(discovered["supportedVersions"], json!([MODERN]));
    let listed = modern(&client, "tools/list", json!({})).await.ok()["result"].clone();
    assert!(listed["ttlMs"].is_u64() && listed["cacheScope"] == "private" && listed["resultType"] == "complete");
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let call = message("tools/call", &json!({ "name": "listSandboxes", "arguments": {}, "_meta": meta }));
    let version = ("mcp-protocol-version", MODERN);
    for headers in [
        vec![version, ("mcp-name", "listSandboxes")],
        vec![version, ("mcp-method", "tools/list"), ("mcp-name", "listSandboxes")],
        vec![version, ("mcp-method", "tools/call"), ("mcp-name", "exec")],
        vec![version, ("mcp-method", "tools/call")],
        vec![("mcp-method", "tools/call"), ("mcp-name", "listSandboxes")],
    ] {
        let answer = sent(&client, &headers, call.clone()).await;
        assert_eq!((answer.status, &answer.json()["error"]["code"]), (400, &json!(-32020)), "{headers:?}");
    }
    let encoded = [version, ("mcp-method", "tools/call"), ("mcp-name", "=?base64?bGlzdFNhbmRib3hlcw==?=")];
    assert_eq!(sent(&client, &encoded, call).await.ok()["result"]["isError"], false);
}

#[tokio::test]
async fn versions_that_nobody_speaks_are_refused_with_those_that_are_spoken() {
    let (_, client) = stack();
    for version in ["1900-01-01", "not-a-version"] {
        let answer = sent(&client, &[("mcp-protocol-version", version)], message("tools/list", &json!({}))).await;
        let error = answer.json()["error"].clone();
        assert_eq!(
            (answer.status, &error["code"], &error["data"]["requested"]),
            (400, &json!(-32022), &json!(version))
        );
        assert!(error["data"]["supported"].as_array().unwrap().contains(&json!(MODERN)));
    }
    let twice = client.request(Method::POST, "/mcp").header("mcp-protocol-version", "2025-06-18");
    let twice = twice.header("mcp-protocol-version", "2025-03-26").body(message("ping", &json!({})).to_string());
    assert_eq!(client.send(twice).await.status, 400);
    sent(&client, &[], message("tools/list", &json!({}))).await.ok();
}

#[tokio::test]
async fn a_stranger_is_answered_before_the_protocol_and_a_foreign_page_not_at_all() {
    let (_, client) = stack();
    for key in [None, Some("cfo_default_wrong")] {
        let answer = client.with_key(key).post("/mcp", message("initialize", &json!({})).to_string()).await;
        answer.problem(401, "unauthenticated");
        assert!(answer.header("www-authenticate").is_some_and(|value| value.starts_with("Bearer")));
    }
    let foreign = sent(&client, &[("origin", "https://evil.example")], message("ping", &json!({}))).await;
    foreign.problem(403, "forbidden");
    assert_eq!(foreign.header("access-control-allow-origin"), Some("*"), "the page can read why");
    for origin in [client.base(), "http://localhost:6274"] {
        sent(&client, &[("origin", origin)], message("ping", &json!({}))).await.ok();
    }
    for method in [Method::GET, Method::DELETE] {
        client.send(client.request(method, "/mcp")).await.problem(405, "method_not_allowed");
    }
    let asked =
        "authorization,content-type,mcp-protocol-version,mcp-method,mcp-name,mcp-session-id,last-event-id,mcp-param-x";
    let preflight =
        client.with_key(None).request(Method::OPTIONS, "/mcp").header("access-control-request-headers", asked);
    let preflight = client.send(preflight).await;
    assert_eq!(preflight.status, 204);
    let allowed = preflight.header("access-control-allow-headers").unwrap();
    for name in asked.split(',') {
        assert!(allowed.contains(name), "{name}: {allowed}");
    }
}

#[tokio::test]
async fn answers_come_in_the_form_that_is_asked_for() {
    let (_, client) = stack();
    for accept in ["*/*", "application/json", "application/json, text/event-stream;q=0.5", ""] {
        let answer = sent(&client, &[("accept", accept)], message("tools/list", &json!({}))).await;
        assert!(answer.header("content-type").unwrap().starts_with("application/json"), "{accept:?}");
    }
    let events = sent(&client, &[("accept", "text/event-stream")], message("ping", &json!({}))).await;
    assert!(events.header("content-type").unwrap().starts_with("text/event-stream"));
    assert!(events.text().starts_with("event: message\ndata: {"), "{}", events.text());
}

#[tokio::test]
async fn progress_is_told_where_a_token_was_given_and_the_result_comes_last() {
    let (stack, client) = stack();
    let sandbox = stack.sandbox().await;
    sandbox.sh("mkfifo gate").await;
    // Opened once: a pipe opened anew for each line may still have the writer of the line before, and end with it.
    let command = "exec 3<>gate; for i in 1 2 3; do echo step$i; read x <&3; done";
    let arguments = json!({ "sandboxId": sandbox.id, "command": command, "timeout": 300 });
    let params = json!({ "name": "exec", "arguments": arguments, "_meta": { "progressToken": "t1" } });
    let request = client.request(Method::POST, "/mcp").header("accept", "application/json, text/event-stream");
    let request = request.header("mcp-protocol-version", "2025-06-18").json(&message("tools/call", &params));
    let mut response = request.send().await.unwrap();
    assert!(response.headers()["content-type"].to_str().unwrap().starts_with("text/event-stream"));
    let mut text = String::new();
    for step in ["step1", "step2", "step3"] {
        while !text.contains(step) {
            let piece = within("each step is told", PATIENCE, response.chunk()).await.unwrap();
            text.push_str(&String::from_utf8_lossy(&piece.expect("the stream goes on")));
        }
        sandbox.sh("echo on > gate").await;
    }
    text.push_str(&within("the result", PATIENCE, response.text()).await.unwrap());
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let messages: Vec<Value> = data.map(|data| serde_json::from_str(data).unwrap()).collect();
    let (last, told) = messages.split_last().unwrap();
    assert_eq!(
        (&last["id"], &last["result"]["structuredContent"]["stdout"]),
        (&json!(7), &json!("step1\nstep2\nstep3\n"))
    );
    let numbers: Vec<u64> = told.iter().map(|each| each["params"]["progress"].as_u64().unwrap()).collect();
    assert!(numbers.len() >= 3 && numbers.is_sorted(), "{text}");
    assert!(
        told.iter().all(|each| each["method"] == "notifications/progress" && each["params"]["progressToken"] == "t1")
    );
    assert!(told.iter().any(|each| each["params"]["message"].as_str().unwrap().contains("step1")), "{text}");
}

#[tokio::test]
async fn the_last_event_is_never_longer_than_clients_read() {
    let (stack, client) = stack();
    let sandbox = stack.sandbox().await;
    // A page of each kind: plain, lines, and bytes that JSON writes with six characters.
    for (command, written) in [
        ("head -c 1048576 /dev/zero | tr '\\0' x", 1_048_576_u64),
        ("yes '' | head -c 1048576", 1_048_576),
        ("head -c 1048576 /dev/zero; head -c 1048576 /dev/zero >&2", 1_048_576),
    ] {
        let arguments = json!({ "sandboxId": sandbox.id, "command": command });
        let params = json!({ "name": "exec", "arguments": arguments, "_meta": { "progressToken": "t1" } });
        let answer = legacy(&client, "tools/call", params).await.text();
        let events: Vec<&str> = answer.split_inclusive("\n\n").collect();
        assert!(events.iter().all(|event| event.len() <= 1_048_576), "{command}");
        let last = events.last().unwrap().strip_prefix("event: message\ndata: ").unwrap();
        let last: Value = serde_json::from_str(last).unwrap();
        let structured = &last["result"]["structuredContent"];
        assert_eq!((&structured["exitCode"], &last["result"]["isError"]), (&json!(0), &json!(false)), "{command}");
        assert_eq!(structured["stdoutBytes"], written, "{command}");
        let stdout = structured["stdout"].as_str().unwrap();
        let is_whole = stdout.len() as u64 == written;
        assert_eq!(structured["truncated"], !is_whole, "{command}");
        assert!(is_whole || stdout.contains("bytes left out]"), "{command}");
        assert!(last["result"]["content"][0]["text"].as_str().unwrap().contains("\"exitCode\":0"), "{command}");
        // Without a token there is no such limit.
        let whole = legacy(&client, "tools/call", json!({ "name": "exec", "arguments": arguments })).await.ok();
        assert_eq!(whole["result"]["structuredContent"]["stdout"].as_str().unwrap().len() as u64, written, "{command}");
    }
}

#[tokio::test]
async fn closing_the_stream_of_a_call_ends_its_command() {
    let (stack, client) = stack();
    let sandbox = stack.sandbox().await;
    let marker = random_name("mark");
    let command = format!("echo begun; exec -a {marker} sleep 300");
    let arguments = json!({ "sandboxId": sandbox.id, "command": command, "timeout": 300 });
    let params = json!({ "name": "exec", "arguments": arguments, "_meta": { "progressToken": 1 } });
    let request = client.request(Method::POST, "/mcp").header("accept", "application/json, text/event-stream");
    let mut response = request.json(&message("tools/call", &params)).send().await.unwrap();
    let mut seen = String::new();
    while !seen.contains("begun") {
        seen.push_str(&String::from_utf8_lossy(&response.chunk().await.unwrap().expect("the stream goes on")));
    }
    drop(response);
    let is_gone = async || {
        let listing =
            json!({ "sandboxId": sandbox.id, "command": format!("pgrep -f [{}]{}", &marker[..1], &marker[1..]) });
        (client.call("exec", &listing).await.ok()["exitCode"] == 1).then_some(())
    };
    eventually("the command is gone", PATIENCE, is_gone).await;
}

#[tokio::test]
async fn a_list_is_what_the_key_may_call_and_a_call_that_must_wait_tells_its_job() {
    let (stack, client) = stack();
    let sandbox = stack.sandbox().await;
    let viewer = json!({ "name": random_name("viewer"), "permissions": { "role": "viewer" } });
    let viewer = client.call("createKey", &viewer).await.ok();
    let viewer = client.with_key(viewer["key"].as_str());
    let listed = legacy(&viewer, "tools/list", json!({})).await.ok();
    let tools = listed["result"]["tools"].as_array().unwrap().clone();
    assert!(!tools.is_empty() && tools.iter().all(|tool| tool["name"] != "exec"), "{listed}");
    let refused =
        legacy(&viewer, "tools/call", json!({ "name": "exec", "arguments": { "command": "true" } })).await.ok();
    assert_eq!(refused["result"]["_meta"]["cloudflare-ops/problem"]["code"], "forbidden", "{refused}");
    let rules = json!({ "role": "operator", "approval": { "tools": ["exec"] } });
    let bound = client.call("createKey", &json!({ "name": random_name("bound"), "permissions": rules })).await.ok();
    let bound = client.with_key(bound["key"].as_str());
    let arguments = json!({ "sandboxId": sandbox.id, "command": "true" });
    for answer in [
        legacy(&bound, "tools/call", json!({ "name": "exec", "arguments": arguments })).await,
        modern(&bound, "tools/call", json!({ "name": "exec", "arguments": arguments })).await,
    ] {
        let result = answer.ok()["result"].clone();
        assert_eq!(result["structuredContent"]["job"]["state"], "awaiting_approval", "{result}");
        let id = result["structuredContent"]["job"]["jobId"].as_str().unwrap();
        assert!(result["content"][0]["text"].as_str().unwrap().contains(id), "{result}");
    }
}
