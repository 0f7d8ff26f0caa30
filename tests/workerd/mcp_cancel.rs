//! `notifications/cancelled` of the earlier revisions of MCP: a message of its own ends the one open call that it means.

use reqwest::{Method, Response};
use serde_json::{Value, json};
use test_support::{Answer, Client, PATIENCE, Sandbox, Stack, eventually, find_by_argument, random_name, within};

use crate::mcp::sent;

const VERSION: (&str, &str) = ("mcp-protocol-version", "2025-06-18");

fn call(id: &Value, tool: &str, arguments: &Value, progress: bool) -> Value {
    let mut params = json!({ "name": tool, "arguments": arguments });
    if progress {
        params["_meta"] = json!({ "progressToken": "t" });
    }
    json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params })
}

/// A command that runs until it is killed, and what finds it once it has written.
struct Running {
    marker: String,
    arguments: Value,
}

impl Running {
    fn new(sandbox: &Sandbox, timeout: u32) -> Self {
        let marker = random_name("mark");
        // In the arguments of the shell the marker is no word yet.
        let (begin, end) = marker.split_at(4);
        let command = format!("echo begun; exec -a {begin}''{end} sleep 300");
        let arguments = json!({ "sandboxId": sandbox.id, "command": command, "timeout": timeout });
        Self { marker, arguments }
    }

    fn runs(&self) -> bool {
        !find_by_argument(&self.marker).is_empty()
    }

    async fn begun(&self) {
        eventually("the command runs", PATIENCE, async || self.runs().then_some(())).await;
    }

    async fn gone(&self) {
        eventually("the command is gone", PATIENCE, async || (!self.runs()).then_some(())).await;
    }
}

async fn open(client: &Client, headers: &[(&str, &str)], body: Value) -> Response {
    let mut request = client.request(Method::POST, "/mcp").header("accept", "application/json, text/event-stream");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.json(&body).send().await.expect("the call is answered")
}

/// What a stream tells until it has told `text`.
async fn until_told(response: &mut Response, text: &str) -> String {
    let mut told = String::new();
    while !told.contains(text) {
        let piece = within("the stream tells it", PATIENCE, response.chunk()).await.unwrap();
        told.push_str(&String::from_utf8_lossy(&piece.expect("the stream goes on")));
    }
    told
}

/// Waits until the call was asked twice more whether it is wanted, which it is before it tells that it still runs.
async fn goes_on(response: &mut Response) {
    let mut told = String::new();
    while told.matches("still running").count() < 3 {
        let piece = within("the call tells that it still runs", PATIENCE, response.chunk()).await.unwrap();
        told.push_str(&String::from_utf8_lossy(&piece.expect("the stream goes on")));
    }
}

/// Makes a call whose answer comes whole, beside what follows.
fn asked(client: &Client, id: &Value, arguments: &Value) -> tokio::task::JoinHandle<Answer> {
    let (client, body) = (client.clone(), call(id, "exec", arguments, false));
    tokio::spawn(async move { sent(&client, &[VERSION], body).await })
}

/// The rest of a stream, once it has ended.
async fn rest(response: Response) -> String {
    within("the stream ends", PATIENCE, response.text()).await.expect("the stream ends by itself")
}

async fn cancel(client: &Client, headers: &[(&str, &str)], id: &Value) -> Answer {
    let params = json!({ "requestId": id, "reason": "no patience" });
    sent(client, headers, json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params })).await
}

async fn outcome(client: &Client, call_id: &str) -> Value {
    let look = async || {
        let found = client.call("getAuditLog", &json!({ "requestId": call_id })).await.ok();
        let call = found["calls"][0].clone();
        (call["result"] != "open").then_some(call)
    };
    eventually("the books have the outcome", PATIENCE, look).await
}

#[tokio::test]
async fn a_cancelled_stream_ends_without_an_answer_and_its_command_is_killed() {
    let stack = Stack::shared();
    let (client, sandbox) = (stack.client(), stack.sandbox().await);
    let running = Running::new(&sandbox, 300);
    let id = json!(random_name("id"));
    let mut response = open(&client, &[VERSION], call(&id, "exec", &running.arguments, true)).await;
    let call_id = response.headers()["x-request-id"].to_str().unwrap().to_owned();
    // The command has written a while before that is told.
    let begun = until_told(&mut response, "begun").await;
    running.begun().await;
    let answer = cancel(&client, &[VERSION], &id).await;
    assert_eq!((answer.status, answer.body.len()), (202, 0));
    let told = begun + &rest(response).await;
    assert!(told.contains("begun") && !told.contains("\"result\"") && !told.contains("\"error\""), "{told}");
    running.gone().await;
    let books = outcome(&client, &call_id).await;
    assert_eq!((&books["result"], &books["code"]), (&json!("failed"), &json!("interrupted")), "{books}");
    // The id names nothing any more, and may be used again.
    assert_eq!(cancel(&client, &[VERSION], &id).await.status, 202);
    let again = json!({ "sandboxId": sandbox.id, "command": "echo again" });
    let answer = sent(&client, &[VERSION], call(&id, "exec", &again, false)).await.ok();
    assert_eq!(answer["result"]["structuredContent"]["stdout"], "again\n", "{answer}");
}

#[tokio::test]
async fn a_cancelled_call_that_is_answered_whole_says_that_it_was_cancelled() {
    let stack = Stack::shared();
    let (client, sandbox) = (stack.client(), stack.sandbox().await);
    let running = Running::new(&sandbox, 45);
    let id = json!(random_name("id"));
    let waiting = asked(&client, &id, &running.arguments);
    running.begun().await;
    assert_eq!(cancel(&client, &[VERSION], &id).await.status, 202);
    let result = within("the call is answered", PATIENCE, waiting).await.unwrap().ok()["result"].clone();
    let problem = &result["_meta"]["cloudflare-ops/problem"];
    assert_eq!((&result["isError"], &problem["code"]), (&json!(true), &json!("interrupted")), "{result}");
    assert_eq!(
        (&problem["details"]["reason"], &problem["details"]["stdout"]),
        (&json!("cancelled"), &json!("begun\n"))
    );
    running.gone().await;
}

#[tokio::test]
async fn a_call_that_is_a_job_while_its_caller_waits_is_cancelled_with_it() {
    let stack = Stack::shared();
    let (client, sandbox) = (stack.client(), stack.sandbox().await);
    let running = Running::new(&sandbox, 600);
    let id = json!(random_name("id"));
    let waiting = asked(&client, &id, &running.arguments);
    running.begun().await;
    assert_eq!(cancel(&client, &[VERSION], &id).await.status, 202);
    let result = within("the call is answered", PATIENCE, waiting).await.unwrap().ok()["result"].clone();
    assert_eq!(result["isError"], true, "{result}");
    running.gone().await;
    // The list is told a moment after the caller.
    let listed = async || {
        let jobs = client.call("listJobs", &json!({ "sandboxId": sandbox.id })).await.ok();
        (jobs["jobs"][0]["state"] == "cancelled").then_some(())
    };
    eventually("the list has it as cancelled", PATIENCE, listed).await;
}

#[tokio::test]
async fn a_wait_that_is_no_command_ends_too_and_what_it_waited_for_goes_on() {
    let stack = Stack::shared();
    let (client, sandbox) = (stack.client(), stack.sandbox().await);
    let marker = random_name("server");
    let server = json!({ "name": "server", "command": format!("sleep 300; : {marker}") });
    let server = sandbox.call("startBackgroundProcess", server).await.ok();
    let arguments = json!({ "sandboxId": sandbox.id, "processId": server["processId"], "timeout": 300 });
    let id = json!(random_name("id"));
    let response = open(&client, &[VERSION], call(&id, "waitForProcess", &arguments, true)).await;
    assert_eq!(cancel(&client, &[VERSION], &id).await.status, 202);
    let told = rest(response).await;
    assert!(!told.contains("\"result\"") && !told.contains("\"error\""), "{told}");
    assert!(!find_by_argument(&marker).is_empty(), "the process is as it was");
}

#[tokio::test]
async fn only_the_same_key_cancels_and_an_unknown_id_is_taken_and_ignored() {
    let stack = Stack::shared();
    let (client, sandbox) = (stack.client(), stack.sandbox().await);
    let other = json!({ "name": random_name("other"), "permissions": { "role": "admin" } });
    let other = client.call("createKey", &other).await.ok();
    let other = client.with_key(other["key"].as_str());
    let running = Running::new(&sandbox, 300);
    let id = json!(41);
    let session = random_name("session");
    let headers = [VERSION, ("mcp-session-id", session.as_str())];
    let mut response = open(&client, &headers, call(&id, "exec", &running.arguments, true)).await;
    running.begun().await;
    for answer in [
        cancel(&other, &headers, &id).await,
        cancel(&client, &headers, &json!("41")).await,
        cancel(&client, &headers, &json!(42)).await,
        cancel(&client, &[VERSION], &id).await,
        cancel(&client, &[("mcp-protocol-version", "2026-07-28"), headers[1]], &id).await,
    ] {
        assert_eq!((answer.status, answer.body.len()), (202, 0));
    }
    for key in [None, Some("cfo_default_wrong")] {
        cancel(&client.with_key(key), &headers, &id).await.problem(401, "unauthenticated");
    }
    // What a notification did is stored before it is answered, and seen by the next looks of the call.
    goes_on(&mut response).await;
    // The connection of before may have been closed meanwhile.
    let client = stack.client();
    assert!(running.runs(), "none of these was the caller");
    cancel(&client, &headers, &id).await;
    rest(response).await;
    running.gone().await;
}

#[tokio::test]
async fn an_id_that_two_open_calls_have_ends_neither_unless_their_clients_are_told_apart() {
    let stack = Stack::shared();
    let (client, sandbox) = (stack.client(), stack.sandbox().await);
    let id = json!(random_name("id"));
    let (one, two) = (Running::new(&sandbox, 300), Running::new(&sandbox, 300));
    let mut first = open(&client, &[VERSION], call(&id, "exec", &one.arguments, true)).await;
    let mut second = open(&client, &[VERSION], call(&id, "exec", &two.arguments, true)).await;
    one.begun().await;
    two.begun().await;
    assert_eq!(cancel(&client, &[VERSION], &id).await.status, 202);
    tokio::join!(goes_on(&mut first), goes_on(&mut second));
    let client = stack.client();
    assert!(one.runs() && two.runs(), "it is not known which of them was meant");
    drop((first, second));
    // With the ids that initialize gave them they are.
    let params =
        json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } });
    let initialize = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params });
    let mut clients = Vec::new();
    for _ in 0..2 {
        let begun = sent(&client, &[], initialize.clone()).await;
        begun.ok();
        clients.push(begun.header("mcp-session-id").expect("an id is given out").to_owned());
    }
    assert_ne!(clients[0], clients[1]);
    let (one, two) = (Running::new(&sandbox, 300), Running::new(&sandbox, 300));
    let named = |n: usize| [VERSION, ("mcp-session-id", clients[n].as_str())];
    let first = open(&client, &named(0), call(&id, "exec", &one.arguments, true)).await;
    let second = open(&client, &named(1), call(&id, "exec", &two.arguments, true)).await;
    one.begun().await;
    two.begun().await;
    cancel(&client, &named(1), &id).await;
    rest(second).await;
    two.gone().await;
    assert!(one.runs(), "the other client's call goes on");
    cancel(&client, &named(0), &id).await;
    rest(first).await;
    one.gone().await;
}
