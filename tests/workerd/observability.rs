//! What the service says of itself: one line a call, traces across every hop, metrics, and calls that nobody settled.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use test_support::{Answer, Client, PATIENCE, Sandbox, Stack, StackOptions, eventually, random_name};

/// Lines of JSON in the Worker's log that say `requestId`. Two that were written at once may stand on one line.
fn lines_of(stack: &Stack, request_id: &str) -> Vec<Value> {
    let log = stack.worker().log();
    let lines = log.lines().filter(|line| line.contains(request_id)).filter_map(|line| line.get(line.find('{')?..));
    lines
        .flat_map(|text| serde_json::Deserializer::from_str(text).into_iter::<Value>().map_while(Result::ok))
        .filter(|line| line.to_string().contains(request_id))
        .collect()
}

/// The one line of a request, once it is written.
async fn line_of(stack: &Stack, answer: &Answer) -> Value {
    let id = answer.header("x-request-id").expect("every answer has an id").to_owned();
    let is_line = |line: &Value| line["requestId"] == id.as_str();
    let written = || async { lines_of(stack, &id).into_iter().any(|line| is_line(&line)).then_some(()) };
    eventually("the call is logged", PATIENCE, written).await;
    let mut lines: Vec<Value> = lines_of(stack, &id).into_iter().filter(is_line).collect();
    assert_eq!(lines.len(), 1, "one line a call: {lines:?}");
    lines.remove(0)
}

async fn exec(sandbox: &Sandbox, command: &str) -> Answer {
    sandbox.call("exec", json!({ "command": command, "env": { "CANARY": "c4nary-in-env" } })).await
}

#[tokio::test]
async fn a_call_is_one_line_that_says_who_what_and_how_it_ended() {
    let stack = Stack::shared();
    let sandbox = stack.sandbox().await;
    let answer = exec(&sandbox, "echo c4nary-in-output; exit 3 # c4nary-in-command").await;
    let line = line_of(stack, &answer).await;
    for (field, expected) in [
        ("level", json!("info")),
        ("message", json!("call")),
        ("door", json!("rest")),
        ("tenant", json!("default")),
        ("keyId", json!("root")),
        ("tool", json!("exec")),
        ("sandboxId", json!(sandbox.id)),
        ("generation", json!(1)),
        ("outcome", json!("succeeded")),
        ("exitCode", json!(3)),
        ("bytesOut", json!(answer.body.len())),
    ] {
        assert_eq!(line[field], expected, "{field}: {line}");
    }
    let part = |field: &str| line[field].as_i64().unwrap_or_else(|| panic!("{field}: {line}"));
    assert_eq!(part("admissionMs") + part("actMs"), part("durationMs"), "{line}");
    assert!(line.get("startMs").is_none(), "it ran already: {line}");
    let file = sandbox.client.get(&sandbox.file_path("c4nary-file?")).await;
    assert_eq!(line_of(stack, &file).await["outcome"], "not_found");
    let log = stack.worker().log() + &stack.host().log();
    for canary in ["c4nary-in-output", "c4nary-in-command", "c4nary-in-env", stack.key.as_str(), "c4nary-file"] {
        assert!(!log.contains(canary), "{canary} is in a log");
    }
}

#[tokio::test]
async fn a_call_that_waits_for_a_start_says_how_long_it_took() {
    let stack = Stack::shared();
    let sandbox = stack.unmade_sandbox();
    let created = sandbox.client.call("createSandbox", &json!({ "id": sandbox.id })).await;
    let line = line_of(stack, &created).await;
    let (start, act) = (line["startMs"].as_i64(), line["actMs"].as_i64());
    assert!(start.is_some_and(|start| start > 0) && start <= act, "{line}");
    assert_eq!(line["generation"], 1, "{line}");
}

#[tokio::test]
async fn what_is_refused_is_logged_and_repeats_nothing_of_a_stranger() {
    let stack = Stack::shared();
    let stranger = stack.client().with_key(Some("c4nary-of-a-stranger"));
    let long = "c4nary-in-path".repeat(300);
    let answers = [
        (stranger.call("exec", &json!({ "command": "c4nary-in-body" })).await, "unauthenticated"),
        (stranger.get(&format!("/{long}")).await, "not_found"),
        (stranger.get("/v1/sandboxes/x/files/c4nary-in-file?c4nary-in-query").await, "unauthenticated"),
        (stack.client().call(&random_name("c4narytool"), &json!({})).await, "unknown_tool"),
        (stack.client().post("/mcp", "c4nary-in-body").await, "malformed_request"),
        (
            stack.client().post("/mcp", r#"{"jsonrpc":"2.0","id":1,"method":"c4nary-in-body"}"#).await,
            "malformed_request",
        ),
    ];
    for (answer, outcome) in &answers {
        let line = line_of(stack, answer).await;
        assert_eq!((&line["outcome"], &line["level"]), (&json!(outcome), &json!("info")), "{line}");
        assert!(line.to_string().len() < 600, "{line}");
    }
    let log = stack.worker().log();
    for canary in ["c4nary-of", "c4nary-in-path", "c4nary-in-body", "c4nary-in-file", "c4nary-in-query"] {
        assert!(!log.contains(canary), "{canary} is in the log");
    }
}

#[tokio::test]
async fn every_answer_has_an_id_and_a_trace() {
    let stack = Stack::shared();
    let client = stack.client();
    let stranger = client.with_key(None);
    let sandbox = stack.sandbox().await;
    let preflight = stranger.send(stranger.request(Method::OPTIONS, "/v1/tools/exec")).await;
    let allowed = preflight.header("access-control-allow-headers").unwrap_or_default().to_owned();
    assert!(allowed.contains("traceparent") && allowed.contains("tracestate"), "{allowed}");
    let mut ids = vec![preflight.header("x-request-id").expect("a preflight has an id").to_owned()];
    for answer in [
        client.get("/health").await,
        client.get("/v1/tools").await,
        client.get("/nothing").await,
        client.send(client.request(Method::DELETE, "/health")).await,
        stranger.get("/v1/tools").await,
        client.post("/v1/tools/exec", "not JSON").await,
        sandbox.call("getSandbox", json!({})).await,
        sandbox.client.get(&sandbox.file_path("missing")).await,
    ] {
        let id = answer.header("x-request-id").unwrap_or_else(|| panic!("{}", answer.text())).to_owned();
        assert!(answer.header("traceparent").is_some_and(|trace| trace.len() == 55), "{}", answer.text());
        if answer.status >= 400 {
            assert_eq!(answer.json()["requestId"], id.as_str());
        }
        ids.push(id);
    }
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count, "each is another");
}

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e";

async fn traced(client: &Client, path: &str, body: &Value, traceparent: &str) -> Answer {
    let request = client.request(Method::POST, path).header("traceparent", traceparent).header("tracestate", "a=b");
    client.send(request.json(body)).await
}

#[tokio::test]
async fn a_trace_goes_through_every_hop_to_the_sandbox() {
    let stack = Stack::shared();
    let sandbox = stack.unmade_sandbox();
    // The id is this test's own, so that its lines are found.
    let own = random_name("");
    let trace_id = format!("{TRACE}{}", &own[own.len() - 4..]);
    let parent = "00f067aa0ba902b7";
    let traceparent = format!("00-{trace_id}-{parent}-01");
    let created = traced(&sandbox.client, "/v1/tools/createSandbox", &json!({ "id": sandbox.id }), &traceparent).await;
    created.ok();
    let body = json!({ "sandboxId": sandbox.id, "command": "true" });
    let answer = traced(&sandbox.client, "/v1/tools/exec", &body, &traceparent).await;
    let line = line_of(stack, &answer).await;
    assert_eq!((&line["traceId"], &line["parentSpanId"]), (&json!(trace_id), &json!(parent)), "{line}");
    let own_span = line["spanId"].as_str().unwrap().to_owned();
    assert_eq!(answer.header("traceparent").unwrap(), format!("00-{trace_id}-{own_span}-01"));
    let log = stack.host().log();
    let hops: Vec<&str> = log.lines().filter(|line| line.contains(&trace_id)).collect();
    let of = |what: &str| hops.iter().any(|hop| hop.contains(what) && hop.contains(&sandbox.id));
    assert!(of("PUT"), "the start: {hops:?}");
    assert!(of("POST") && of("/control/"), "the command: {hops:?}");
    for hop in &hops {
        assert!(!hop.contains(parent) && !hop.contains(&own_span), "each hop has a span of its own: {hop}");
    }
    let malformed = traced(&sandbox.client, "/v1/tools/exec", &body, &traceparent.to_uppercase()).await;
    let fresh = malformed.header("traceparent").unwrap().to_owned();
    assert!(fresh.len() == 55 && !fresh.contains(&trace_id), "{fresh}");
}

#[tokio::test]
async fn a_call_is_a_data_point_of_the_analytics_engine() {
    let stack = Stack::shared();
    let sandbox = stack.sandbox().await;
    let answer = exec(&sandbox, "exit 4").await;
    let line = line_of(stack, &answer).await;
    let id = line["requestId"].as_str().unwrap();
    // It is written after the line.
    let written = || async {
        let lines = lines_of(stack, id).into_iter();
        let points: Vec<Value> = lines.filter(|line| line["dataPoint"].is_object()).collect();
        (!points.is_empty()).then_some(points)
    };
    let points = eventually("the data point is written", PATIENCE, written).await;
    let [point] = points.as_slice() else { panic!("one data point a call: {points:?}") };
    let point = &point["dataPoint"];
    assert_eq!(point["indexes"], json!(["default"]));
    assert_eq!(point["blobs"][1], "exec");
    assert_eq!(point["blobs"][2], "succeeded");
    assert_eq!(point["blobs"][5], sandbox.id.as_str());
    assert_eq!(point["doubles"][0], line["durationMs"]);
    assert_eq!(point["doubles"][5], 4);
    assert_eq!(point["doubles"][3], -1, "no start was waited for");
}

/// How many calls of that tool ended like that.
fn count(metrics: &Value, list: &str, name: &str, outcome: &str) -> u64 {
    let series = metrics["periods"][0][list].as_array().cloned().unwrap_or_default();
    let found = series.iter().find(|one| one["name"] == name && one["outcome"] == outcome);
    found.map_or(0, |one| one["count"].as_u64().unwrap())
}

#[tokio::test]
async fn metrics_count_calls_and_starts_and_calls_that_nobody_settled() {
    let stack = Stack::start(StackOptions::default());
    let client = stack.client();
    let sandbox = stack.sandbox().await;
    sandbox.sh("true").await;
    sandbox.sh("true").await;
    client.call("exec", &json!({ "command": 5 })).await.problem(400, "invalid_arguments");
    for name in ["made", "up"] {
        client.call(name, &json!({})).await.problem(404, "unknown_tool");
    }
    client.with_key(None).call("exec", &json!({})).await.problem(401, "unauthenticated");
    let metrics = client.get("/v1/metrics").await.ok();
    // Calls are counted right after their answer.
    let counted = || async {
        let metrics = client.call("getMetrics", &json!({ "interval": "whole" })).await.ok();
        (count(&metrics, "calls", "exec", "succeeded") == 2).then_some(metrics)
    };
    let metrics_after = eventually("both commands are counted", PATIENCE, counted).await;
    assert_eq!(metrics["boundsMs"], metrics_after["boundsMs"]);
    let period = &metrics_after["periods"][0];
    assert_eq!((&period["created"], &metrics_after["sandboxes"]), (&json!(1), &json!(1)), "{period}");
    assert_eq!(count(&metrics_after, "calls", "exec", "invalid_arguments"), 1, "{period}");
    assert_eq!(count(&metrics_after, "calls", "unknown", "unknown_tool"), 2, "made-up names are one: {period}");
    assert_eq!(count(&metrics_after, "starts", "created", "succeeded"), 1, "{period}");
    assert!(!period.to_string().contains("unauthenticated"), "a stranger changes nothing stored: {period}");
    let exec = period["calls"].as_array().unwrap().iter().find(|one| one["name"] == "exec").unwrap();
    let buckets = exec["buckets"].as_array().unwrap();
    assert_eq!(buckets.len(), metrics_after["boundsMs"].as_array().unwrap().len() + 1);
    let by_hour = client.get("/v1/metrics?interval=hour").await.ok();
    let periods = by_hour["periods"].as_array().unwrap();
    assert!((1..=2).contains(&periods.len()), "{by_hour}");

    // The Worker dies in the middle of a command: nobody settles that call.
    let stream = sandbox.open_stream(json!({ "command": "echo; sleep 60", "timeout": 20 }));
    let mut stream = stream.await;
    stream.next().await;
    stack.worker().restart();
    // Connections of the one before are gone.
    let client = stack.client();
    let swept = || async {
        let metrics = client.call("getMetrics", &json!({})).await.ok();
        (count(&metrics, "calls", "exec", "outcome_unknown") == 1).then_some(metrics)
    };
    let metrics = eventually("the sweep closes the call", Duration::from_secs(240), swept).await;
    assert_eq!(count(&metrics, "calls", "exec", "succeeded"), 2, "metrics outlive the Worker: {metrics}");
    assert_eq!(metrics["callsUnderWay"], 1, "the question itself: {metrics}");
    let errors = metrics["periods"][0]["errors"].as_array().unwrap();
    assert!(errors.contains(&json!({ "code": "outcome_unknown", "count": 1 })), "{errors:?}");
}

#[tokio::test]
async fn a_raw_route_names_the_parameter_that_it_does_not_take() {
    let sandbox = Stack::shared().sandbox().await;
    let path = sandbox.file_path("a");
    let put = sandbox.client.request(Method::PUT, &format!("{path}?mode=644")).body("x");
    let problem = sandbox.client.send(put).await.problem(400, "invalid_arguments");
    assert!(problem.detail.starts_with("mode:"), "{}", problem.detail);
    let archive = format!("/v1/sandboxes/{}/archive?fromat=tar", sandbox.id);
    let problem = sandbox.client.get(&archive).await.problem(400, "invalid_arguments");
    assert!(problem.detail.starts_with("fromat:"), "{}", problem.detail);
    sandbox.client.get(&path).await.problem(404, "not_found");
}
