//! One table of hostile strings through every place of every tool that takes a string, as the tools themselves describe those
//! places: a new tool is held to this without a line here.

mod table;
mod traces;

use std::time::{Duration, Instant};

use futures_util::future::LocalBoxFuture;
use futures_util::{FutureExt, StreamExt};
use reqwest::Method;
use reqwest::header::HeaderValue;
use serde_json::{Value, json};
use test_support::{
    Answer, Client, Known, PATIENCE, Parser, Sandbox, Stack, StackOptions, Step, arguments, places, random_name,
    required,
};

use self::table::{SURROGATE, table};

/// What a request may take; the waits that are asked for are a second at most, and those for commands [`COMMAND_SECONDS`].
const LIMIT: Duration = PATIENCE;

/// A command that is short may get no processor for a while, and a timeout would be taken for a fault.
const COMMAND_SECONDS: u32 = 30;

const AT_ONCE: usize = 10;

/// Some of the table do where a value is one of few, and is refused at once, and where each would make a sandbox: other tools take the
/// same labels and variables.
const EVERY_OTHER: usize = 6;

/// Where a string stands that is a command, which is run.
fn is_command(place: &[Step]) -> bool {
    *place == [Step::Field("command".to_owned())]
}

/// A tool, and what calls of it may name and spoil.
struct Tool {
    name: String,
    schema: Value,
    known: Known,
    routes: Vec<(Method, String)>,
    raw_routes: Vec<(Method, String)>,
    /// Where commands of the table are run: traces of them are no fault there.
    elsewhere: Option<Known>,
    makes_sandboxes: bool,
}

/// A sandbox with links that lead out, a file, and a process.
async fn furnished(stack: &Stack, sandboxes: &mut Vec<Sandbox>) -> Known {
    let sandbox = stack.sandbox().await;
    sandbox.sh("ln -s /etc out; ln -s ../.. up; echo hello > file.txt; mkdir directory").await;
    let process = json!({ "command": "exec sleep 1000", "name": "p", "keepStdin": true });
    let started = sandbox.call("startBackgroundProcess", process).await.ok();
    let known = [("sandboxId", json!(sandbox.id)), ("processId", started["processId"].clone())];
    sandboxes.push(sandbox);
    known.map(|(name, value)| (name.to_owned(), value)).into()
}

impl Tool {
    async fn new(stack: &Stack, tool: &Value, sandboxes: &mut Vec<Sandbox>, running: &mut Vec<Sandbox>) -> Self {
        let mut schema = tool["inputSchema"].clone();
        // Two blocks of zeros: an archive of nothing, in base64, and text besides.
        let fixed = [("content", json!("A".repeat(1368))), ("path", json!("file.txt")), ("command", json!("true"))];
        let more = [("from", json!("file.txt")), ("to", json!("moved.txt")), ("oldText", json!("hello"))];
        let more = more.into_iter().chain([("value", json!("a value that is long enough"))]);
        let mut known: Known = fixed.into_iter().chain(more).map(|(name, value)| (name.to_owned(), value)).collect();
        let takes = |name: &str| tool["inputSchema"]["properties"][name].is_object();
        let mut elsewhere = None;
        if takes("sandboxId") {
            known.extend(furnished(stack, sandboxes).await);
            // Where none is named, one would be made for each call.
            if tool["annotations"]["readOnlyHint"] == false {
                schema["required"].as_array_mut().unwrap().push(json!("sandboxId"));
            }
        }
        if takes("command") {
            known.insert("timeout".to_owned(), json!(COMMAND_SECONDS));
            elsewhere = Some(known.clone().into_iter().chain(furnished(stack, running).await).collect());
        }
        if takes("keyId") {
            let asked = json!({ "name": "hostile", "permissions": { "role": "viewer" } });
            known.insert("keyId".to_owned(), stack.client().call("createKey", &asked).await.ok()["keyId"].clone());
        }
        let route = |route: &Value| {
            let method = route["method"].as_str().unwrap().parse().unwrap();
            (method, route["path"].as_str().unwrap().to_owned())
        };
        let routes = |kind: &str| tool[kind].as_array().unwrap().iter().map(route).collect();
        Self {
            name: tool["name"].as_str().unwrap().to_owned(),
            makes_sandboxes: !takes("sandboxId"),
            routes: routes("routes"),
            raw_routes: routes("rawRoutes"),
            schema,
            known,
            elsewhere,
        }
    }

    fn body(&self, place: &[Step], text: &str) -> String {
        let known = self.elsewhere.as_ref().filter(|_| is_command(place)).unwrap_or(&self.known);
        arguments(&self.schema, place, text, known).to_string().replace(SURROGATE, "\\ud800")
    }
}

/// What is wrong with an answer, whatever was asked.
fn fault(answer: &Answer, text: &str, took: Duration) -> Option<String> {
    let fault = |what: &str| Some(format!("{what}: {} {:?}", answer.status, answer.text()));
    if took > LIMIT {
        return fault(&format!("took {took:?}"));
    }
    if answer.header("x-injected").is_some() {
        return fault("a header was injected");
    }
    if answer.text().contains("root:x:0:0") {
        return fault("a file from outside of the workspace");
    }
    match answer.status {
        200 | 201 | 206 | 304 => None,
        // It goes on as a job.
        202 if answer.json()["jobId"].is_string() => None,
        400 | 403 | 404 | 405 | 409 | 410 | 411 | 412 | 413 | 416 | 422 | 429 => {
            if answer.body.is_empty() {
                return None;
            }
            answer.any_problem();
            let details = &answer.json()["details"];
            let names_it = details["violations"][0]["pointer"].is_string() || details["header"].is_string();
            if answer.json()["code"] == "invalid_arguments" && !names_it {
                return fault("a refusal that names no field");
            }
            // A refusal repeats a little of what was sent at most.
            (answer.body.len() > 4000 + text.len().min(1000)).then(|| fault("a long refusal")).flatten()
        }
        _ => fault("no such status"),
    }
}

/// The same for the answer of a tool, which is JSON or, where that was asked for, events of JSON.
fn fault_of_a_tool(answer: &Answer, text: &str, took: Duration) -> Option<String> {
    let kind = answer.header("content-type").unwrap_or_default();
    if kind.starts_with("text/event-stream") {
        let events = Parser::default().push(&answer.body);
        let whole = events.iter().all(|event| serde_json::from_str::<Value>(&event.data).is_ok());
        let ends = |name: &str| name == "result" || name == "error";
        let last = events.last().is_some_and(|event| ends(&event.name));
        let once = events.iter().filter(|event| ends(&event.name)).count() == 1;
        let is_internal = answer.text().contains("\"code\":\"internal\"");
        return (!whole || !last || !once || is_internal).then(|| format!("a broken stream: {:?}", answer.text()));
    }
    let is_json = serde_json::from_slice::<Value>(&answer.body).is_ok();
    fault(answer, text, took).or_else(|| (!is_json).then(|| format!("no JSON: {:?}", answer.text())))
}

/// Sends a request, again where the sandbox has no room for it at this moment, or its host no time: nothing was carried out then.
async fn sent(client: &Client, request: reqwest::RequestBuilder) -> (Answer, Duration) {
    let began = Instant::now();
    loop {
        let answer = client.send(request.try_clone().expect("a body in memory")).await;
        let passing = ["at once in this sandbox", "host_unreachable"];
        let is_passing = answer.status == 503 && passing.iter().any(|why| answer.text().contains(why));
        if !is_passing || began.elapsed() > LIMIT {
            return (answer, began.elapsed());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn call(client: &Client, tool: &Tool, place: &[Step], text: &str, streams: bool) -> Option<String> {
    let accept = if streams { "text/event-stream" } else { "application/json" };
    let request = client.request(Method::POST, &format!("/v1/tools/{}", tool.name)).header("accept", accept);
    let (answer, took) = sent(client, request.body(tool.body(place, text))).await;
    if answer.status == 200 && tool.makes_sandboxes {
        // What was made is in the way of what comes after it. The answer is JSON, or ends in it.
        let text = answer.text();
        let last = text.trim().rsplit("data: ").next().unwrap_or_default();
        let made: Value = serde_json::from_str(last).unwrap_or_default();
        if let Some(id) = made["sandboxId"].as_str() {
            client.call("destroySandbox", &json!({ "sandboxId": id })).await.ok();
        }
    }
    fault_of_a_tool(&answer, text, took).map(|fault| format!("{} {place:?} {}: {fault}", tool.name, shown(text)))
}

fn shown(text: &str) -> String {
    format!("{:?}", text.chars().take(60).collect::<String>())
}

/// Every byte of a text as it stands in a URL, where no parser takes it for anything else; as many as clients send in one.
fn encoded(text: &str) -> String {
    text.replace(SURROGATE, "\u{fffd}").bytes().take(21_500).map(|byte| format!("%{byte:02X}")).collect()
}

/// Names of the parameters in the path of a route.
fn in_path(route: &str) -> impl Iterator<Item = &str> {
    route.split(['{', '}']).skip(1).step_by(2).map(|name| name.trim_start_matches('*'))
}

/// A path of a route: known parameters, and the text in place of one of them.
fn path(route: &str, tool: &Tool, parameter: &str, text: &str) -> String {
    let mut path = String::new();
    for (index, part) in route.split(['{', '}']).enumerate() {
        let name = part.trim_start_matches('*');
        let known = || tool.known.get(name).and_then(Value::as_str).unwrap_or("x");
        match index % 2 {
            0 => path.push_str(part),
            _ if name == parameter => path.push_str(&encoded(text)),
            _ => path.push_str(known()),
        }
    }
    path
}

/// One request on a resource route or a raw one, with the text in the path or in the query.
async fn routed(client: &Client, tool: &Tool, route: &(Method, String), parameter: &str, text: &str) -> Option<String> {
    let (method, pattern) = route;
    let is_raw = tool.raw_routes.contains(route);
    let mut target = path(pattern, tool, parameter, text);
    let mut needed = required(&tool.schema, &tool.known);
    in_path(pattern).for_each(|name| drop(needed.remove(name)));
    if *method == Method::GET && !is_raw {
        needed.remove(parameter);
        let query = needed.iter().map(|(name, value)| format!("&{name}={}", value.to_string().trim_matches('"')));
        target.push_str(&format!("?{}", query.collect::<String>().trim_start_matches('&')));
    }
    if in_path(pattern).all(|name| name != parameter) {
        target.push_str(&format!("{}{parameter}={}", if target.contains('?') { "&" } else { "?" }, encoded(text)));
    }
    let mut request = client.request(method.clone(), &target);
    if is_raw && *method == Method::PUT {
        request = request.body(vec![0; 1024]);
    } else if [Method::POST, Method::PATCH].contains(method) {
        request = request.body(Value::Object(needed).to_string());
    }
    let (answer, took) = sent(client, request).await;
    let fault = if is_raw { fault(&answer, text, took) } else { fault_of_a_tool(&answer, text, took) };
    fault.map(|fault| format!("{method} {pattern} {parameter} {}: {fault}", shown(text)))
}

/// Headers that mean something, on a call and on a raw route.
const HEADERS: [&str; 12] = [
    "authorization",
    "idempotency-key",
    "x-tenant",
    "traceparent",
    "tracestate",
    "accept",
    "prefer",
    "content-type",
    "range",
    "if-match",
    "content-range",
    "upload-id",
];

async fn headed(client: &Client, known: &Known, name: &'static str, text: &str) -> Option<String> {
    // What no header can hold is refused by every client.
    let value = HeaderValue::from_bytes(text.as_bytes()).ok()?;
    let client = if name == "authorization" { &client.with_key(None) } else { client };
    let sandbox = known["sandboxId"].as_str().unwrap();
    let file = format!("/v1/sandboxes/{sandbox}/files/file.txt");
    let call = client.request(Method::POST, "/v1/tools/getSandbox").body(json!({ "sandboxId": sandbox }).to_string());
    for request in [call, client.request(Method::GET, &file), client.request(Method::PUT, &file).body("hello")] {
        let (answer, took) = sent(client, request.header(name, value.clone())).await;
        if answer.status != 401 {
            let fault = fault(&answer, text, took);
            if fault.is_some() {
                return fault.map(|fault| format!("{name} {}: {fault}", shown(text)));
            }
        }
    }
    None
}

#[tokio::test]
async fn no_string_does_more_than_a_string() {
    let stack = Stack::start(StackOptions::default());
    let client = &stack.client();
    let mark = random_name("mark");
    let table = &table(&mark);
    let (mut sandboxes, mut running) = (Vec::new(), Vec::new());
    let mut tools = Vec::new();
    for tool in client.get("/v1/tools").await.ok()["tools"].as_array().unwrap() {
        tools.push(Tool::new(&stack, tool, &mut sandboxes, &mut running).await);
    }
    let mut asked: Vec<LocalBoxFuture<'_, Option<String>>> = Vec::new();
    for tool in &tools {
        let unknown = (vec![Step::Unknown], false);
        for (place, takes_any) in places(&tool.schema).into_iter().chain([unknown]) {
            let takes_all = takes_any && !(tool.makes_sandboxes && place.len() > 1);
            for (index, text) in table.iter().enumerate().filter(|(index, _)| takes_all || index % EVERY_OTHER == 0) {
                let place = place.clone();
                asked.push(async move { call(client, tool, &place, text, index % 4 == 1).await }.boxed_local());
            }
        }
        for route in tool.routes.iter().chain(&tool.raw_routes) {
            let fields = tool.schema["properties"].as_object().unwrap();
            let strings = fields.iter().filter(|(_, field)| field["type"] == "string").map(|(name, _)| name.as_str());
            let in_query: Vec<&str> = if route.0 == Method::GET { strings.collect() } else { Vec::new() };
            for parameter in in_path(&route.1).chain(in_query) {
                for text in table.iter().skip(asked.len() % 3).step_by(3) {
                    asked.push(routed(client, tool, route, parameter, text).boxed_local());
                }
            }
        }
    }
    let known = &tools.iter().find(|tool| tool.name == "readFile").unwrap().known;
    for name in HEADERS {
        for text in table {
            asked.push(headed(client, known, name, text).boxed_local());
        }
    }
    let faults: Vec<String> = futures_util::stream::iter(asked)
        .buffer_unordered(AT_ONCE)
        .filter_map(|fault| async move { fault })
        .collect()
        .await;
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    traces::none_left(&stack, &sandboxes, &mark).await;
}
