//! OpenAPI 3.1, generated from the registry and the route table.
//!
//! `cargo xtask openapi` writes [`json`] and [`yaml`] to `openapi/`; a test fails when the committed files are stale. The
//! Worker serves the committed files as they are.

mod doors;

use serde_json::{Map, Value, json};

use crate::error::{ErrorCode, Problem};
use crate::preview::DryRun;
use crate::raw::RawContent;
use crate::registry::{Description, Entry, Method, Registry};
use crate::schema;
use crate::tools;
use crate::tools::job_info::JobInfo;

/// The document as JSON, with a line end.
pub fn json() -> String {
    let text = serde_json::to_string_pretty(&document(&tools::registry())).unwrap_or_default();
    format!("{text}\n")
}

/// The same as YAML.
pub fn yaml() -> String {
    serde_yaml::to_string(&document(&tools::registry())).unwrap_or_default()
}

/// Codes that every authenticated operation can answer.
const COMMON: &[ErrorCode] = &[
    ErrorCode::InvalidArguments,
    ErrorCode::Unauthenticated,
    ErrorCode::Forbidden,
    ErrorCode::NotFound,
    ErrorCode::Conflict,
    ErrorCode::StaleGeneration,
    ErrorCode::PayloadTooLarge,
    ErrorCode::RateLimited,
    ErrorCode::Internal,
    ErrorCode::OutcomeUnknown,
    ErrorCode::SandboxUnavailable,
    ErrorCode::ObjectUnavailable,
    ErrorCode::Timeout,
    ErrorCode::NoSpace,
    ErrorCode::StepFailed,
];

fn document(registry: &Registry) -> Value {
    let mut paths = Map::new();
    let mut schemas = Map::new();
    schemas.insert("Problem".to_owned(), schema::self_contained::<Problem>());
    schemas.insert("Job".to_owned(), schema::self_contained::<JobInfo>());
    schemas.insert("DryRun".to_owned(), schema::self_contained::<DryRun>());
    doors::schemas(&mut schemas);
    open_paths(&mut paths);
    doors::paths(&mut paths);
    for tool in registry.list().map(Entry::description) {
        let type_name = pascal(tool.name);
        schemas.insert(format!("{type_name}Input"), tool.input_schema.clone());
        schemas.insert(format!("{type_name}Output"), tool.output_schema.clone());
        add(&mut paths, &format!("/v1/tools/{}", tool.name), Method::Post, tool_operation(tool));
        for (index, route) in tool.routes.iter().enumerate() {
            add(&mut paths, &openapi_path(route.path), route.method, resource_operation(tool, route, index));
        }
        for (index, route) in tool.raw_routes.iter().enumerate() {
            let same = tool.raw_routes.iter().take(index).filter(|other| other.method == route.method).count();
            add(&mut paths, &openapi_path(route.path), route.method, raw_operation(tool, route, same));
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "cloudflare-ops",
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "MIT", "identifier": "MIT" },
            "description": "A guardrailed control plane for code sandboxes and for a Cloudflare account. Every operation is a \
                tool: POST /v1/tools/{tool} with its arguments as the body. JSON fields are camelCase, times RFC 3339 in UTC, durations \
                seconds unless the name ends in Ms; executionTime is milliseconds. Errors are RFC 9457 problems with a machine-readable code.",
        },
        "servers": [{ "url": "/" }],
        "security": [{ "bearer": [] }],
        "tags": [{ "name": "service" }, { "name": "tools" }, { "name": "resources" }, { "name": "files" }],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": shared_responses(),
            "securitySchemes": { "bearer": { "type": "http", "scheme": "bearer" } },
        },
    })
}

fn add(paths: &mut Map<String, Value>, path: &str, method: Method, operation: Value) {
    let item = paths.entry(path.to_owned()).or_insert_with(|| json!({}));
    if let Value::Object(item) = item {
        item.insert(method.as_str().to_ascii_lowercase(), operation);
    }
}

fn open_paths(paths: &mut Map<String, Value>) {
    let health = json!({
        "type": "object",
        "properties": {
            "ok": { "type": "boolean" },
            "status": { "type": "string" },
            "timestamp": { "type": "string", "format": "date-time" },
        },
        "required": ["ok", "status", "timestamp"],
    });
    let index = json!({
        "type": "object",
        "properties": {
            "ok": { "type": "boolean" },
            "status": { "type": "string" },
            "name": { "type": "string" },
            "version": { "type": "string" },
            "tools": { "type": "string" },
            "openapi": { "type": "string" },
            "docs": { "type": "string" },
            "mcp": { "type": "string" },
            "websocket": { "type": "string" },
            "health": { "type": "string" },
        },
        "required": ["ok", "status", "name", "version", "tools", "openapi", "docs", "mcp", "websocket", "health"],
    });
    let open = |id: &str, summary: &str, media: &str, schema: Value| {
        json!({
            "operationId": id,
            "summary": summary,
            "tags": ["service"],
            "security": [],
            "responses": { "200": { "description": summary, "content": { media: { "schema": schema } } } },
        })
    };
    add(paths, "/", Method::Get, open("index", "What this service is", "application/json", index));
    add(paths, "/health", Method::Get, open("health", "Whether the service answers", "application/json", health));
    let document = json!({ "type": "object", "properties": {}, "additionalProperties": true });
    add(
        paths,
        "/openapi.json",
        Method::Get,
        open("openApiJson", "This document as JSON", "application/json", document),
    );
    // No schema: to a client that reads YAML it is an object, to any other it is text.
    add(
        paths,
        "/openapi.yaml",
        Method::Get,
        open("openApiYaml", "This document as YAML", "application/yaml", json!({})),
    );
    let page = json!({ "type": "string" });
    add(paths, "/docs", Method::Get, open("docs", "This document, to read and try in a browser", "text/html", page));
    let tool = json!({
        "type": "object",
        "properties": {
            "name": { "type": "string" },
            "description": { "type": "string" },
            "inputSchema": { "type": "object", "properties": {}, "additionalProperties": true },
            "outputSchema": { "type": "object", "properties": {}, "additionalProperties": true },
            "annotations": { "type": "object", "properties": {}, "additionalProperties": true },
            "guardrails": { "type": "object", "properties": {}, "additionalProperties": true },
        },
        "required": ["name", "description", "inputSchema", "outputSchema", "annotations", "guardrails"],
    });
    let list = json!({
        "type": "object",
        "properties": { "tools": { "type": "array", "items": tool } },
        "required": ["tools"],
    });
    let success = json!({ "description": "The tools", "content": { "application/json": { "schema": list } } });
    let mut responses = Map::new();
    responses.insert("200".to_owned(), success);
    problems(&mut responses, &[ErrorCode::Unauthenticated, ErrorCode::NotConfigured]);
    let operation = json!({
        "operationId": "listTools",
        "summary": "The tools that this key may call",
        "tags": ["tools"],
        "responses": responses,
    });
    add(paths, "/v1/tools", Method::Get, operation);
}

fn tool_operation(tool: &Description) -> Value {
    let type_name = pascal(tool.name);
    let events = json!({
        "type": "string",
        "description": "Server-sent events: stdout and stderr with {data, encoding, offset}, or ready and change of a watch, or state of a job, \
            then exactly one of result (the output) and error (the problem).",
    });
    let mut success = output(tool, &type_name);
    if let Some(Value::Object(content)) = success.get_mut("content") {
        content.insert("text/event-stream".to_owned(), json!({ "schema": events }));
    }
    let mut operation = json!({
        "operationId": tool.name,
        "summary": tool.annotations.title,
        "description": tool.description,
        "tags": ["tools"],
        "requestBody": body(tool),
        "responses": responses(success, COMMON),
    });
    if let (true, Value::Object(operation)) = (tool.execution.may_be_a_job(), &mut operation) {
        operation.insert("parameters".to_owned(), json!([prefer(), webhook_url()]));
    }
    operation
}

fn prefer() -> Value {
    json!({
        "name": "Prefer",
        "in": "header",
        "required": false,
        "description": "`respond-async`: the call becomes a job, and the answer is 202 with its path in Location; `respond-async, wait=10`: unless it is over within 10 seconds, of 90 at most. Without the header a call waits for 90 seconds.",
        "schema": { "type": "string" },
    })
}

fn webhook_url() -> Value {
    json!({
        "name": "Webhook-Url",
        "in": "header",
        "required": false,
        "description": "If the call becomes a job, every change of its state is posted to this URL, by Standard Webhooks, signed with the tenant's secret, beside what the tenant's own webhook is told: https, and never a private address.",
        "schema": { "type": "string", "format": "uri", "maxLength": 2048 },
    })
}

fn resource_operation(tool: &Description, route: &crate::registry::Route, index: usize) -> Value {
    let type_name = pascal(tool.name);
    let in_path: Vec<&str> = path_parameters(route.path);
    let fields = tool.input_schema.get("properties").and_then(Value::as_object);
    let is_scalar = |field: &Value| field.get("type").and_then(Value::as_str) != Some("object");
    let mut parameters: Vec<Value> = in_path.iter().map(|name| parameter(tool, name, "path")).collect();
    let has_body = matches!(route.method, Method::Post | Method::Put | Method::Patch);
    if !has_body {
        let in_query =
            fields.into_iter().flatten().filter(|(name, field)| !in_path.contains(&name.as_str()) && is_scalar(field));
        parameters.extend(in_query.map(|(name, _)| parameter(tool, name, "query")));
    }
    let mut operation = json!({
        "operationId": format!("{}Route{}", tool.name, index + 1),
        "summary": tool.annotations.title,
        "description": format!("The tool {} as a resource.", tool.name),
        "tags": ["resources"],
        "parameters": parameters,
        "responses": responses(output(tool, &type_name), COMMON),
    });
    if tool.execution.may_be_a_job()
        && let Some(parameters) = operation.get_mut("parameters").and_then(Value::as_array_mut)
    {
        parameters.extend([prefer(), webhook_url()]);
    }
    if let (true, Some(body), Value::Object(operation)) = (has_body, resource_body(tool, &in_path), &mut operation) {
        operation.insert("requestBody".to_owned(), body);
    }
    operation
}

/// The arguments that the path does not have; `None` when it has them all.
fn resource_body(tool: &Description, in_path: &[&str]) -> Option<Value> {
    if in_path.is_empty() {
        return Some(body(tool));
    }
    let mut schema = tool.input_schema.clone();
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut)?;
    properties.retain(|name, _| !in_path.contains(&name.as_str()));
    if properties.is_empty() {
        return None;
    }
    let mut is_required = false;
    if let Some(required) = schema.get_mut("required").and_then(Value::as_array_mut) {
        required.retain(|name| !name.as_str().is_some_and(|name| in_path.contains(&name)));
        is_required = !required.is_empty();
    }
    if let (false, Value::Object(schema)) = (is_required, &mut schema) {
        schema.remove("required");
    }
    Some(json!({ "required": is_required, "content": { "application/json": { "schema": schema } } }))
}

/// Longest path, as the kernel has it.
const LONGEST_PATH: u64 = 4096;

/// `index` counts the routes of the same method.
fn raw_operation(tool: &Description, route: &crate::registry::Route, index: usize) -> Value {
    let mut parameters: Vec<Value> =
        path_parameters(route.path).iter().map(|name| parameter(tool, name, "path")).collect();
    // In a URL a path is decoded: what bounds it are its bytes, and not their percent-encoded form in JSON.
    for bound in parameters.iter_mut().filter_map(|parameter| parameter.pointer_mut("/schema/maxLength")) {
        *bound = json!(bound.as_u64().unwrap_or(LONGEST_PATH).min(LONGEST_PATH));
    }
    let bytes = json!({ "application/octet-stream": { "schema": { "type": "string", "format": "binary" } } });
    let mut all = Map::new();
    let mut codes = COMMON.to_vec();
    let mut operation = Map::new();
    if route.method == Method::Put {
        operation.insert("requestBody".to_owned(), json!({ "required": false, "content": bytes }));
    }
    if let Some(contract) = tool.raw_contract {
        let places = [("header", contract.headers), ("query", contract.query)];
        for (place, given) in places.iter().flat_map(|(place, given)| given.iter().map(move |given| (place, given))) {
            let text = json!({ "type": "string" });
            parameters.push(json!({
                "name": given.name,
                "in": place,
                "required": false,
                "description": given.description,
                "schema": if given.repeated { json!({ "type": "array", "items": text }) } else { text },
            }));
        }
        for success in contract.successes {
            let content = match (&success.body, route.method) {
                (_, Method::Head) => json!({}),
                (RawContent::Bytes, _) => bytes.clone(),
                (RawContent::Json(schema), _) => json!({ "application/json": { "schema": schema() } }),
            };
            let success_body = json!({ "description": success.description, "content": content });
            all.insert(success.status.to_string(), success_body);
        }
        codes.extend(contract.codes);
    }
    problems(&mut all, &codes);
    let number = if index == 0 { String::new() } else { (index + 1).to_string() };
    let method = pascal(&route.method.as_str().to_ascii_lowercase());
    operation.insert("operationId".to_owned(), json!(format!("{}Raw{method}{number}", tool.name)));
    operation.insert("summary".to_owned(), json!(format!("{} as raw bytes", tool.annotations.title)));
    operation.insert("tags".to_owned(), json!(["files"]));
    operation.insert("parameters".to_owned(), Value::Array(parameters));
    operation.insert("responses".to_owned(), Value::Object(all));
    Value::Object(operation)
}

/// An empty body is `{}`, which is enough where no argument is required.
fn body(tool: &Description) -> Value {
    let schema = json!({ "$ref": format!("#/components/schemas/{}Input", pascal(tool.name)) });
    let required = tool.input_schema.get("required").and_then(Value::as_array).is_some_and(|names| !names.is_empty());
    json!({ "required": required, "content": { "application/json": { "schema": schema } } })
}

fn output(tool: &Description, type_name: &str) -> Value {
    let mut schema = json!({ "$ref": format!("#/components/schemas/{type_name}Output") });
    if tool.annotations.destructive_hint {
        schema = json!({ "anyOf": [schema, { "$ref": "#/components/schemas/DryRun" }] });
    }
    json!({ "description": "The tool's output", "content": { "application/json": { "schema": schema } } })
}

fn responses(success: Value, codes: &[ErrorCode]) -> Value {
    let mut all = Map::new();
    all.insert("200".to_owned(), success);
    all.insert("202".to_owned(), json!({ "$ref": "#/components/responses/Job" }));
    problems(&mut all, codes);
    Value::Object(all)
}

/// One response for each status, naming the codes that have it.
fn problems(responses: &mut Map<String, Value>, codes: &[ErrorCode]) {
    for status in codes.iter().map(|code| code.status()) {
        responses.insert(status.to_string(), json!({ "$ref": format!("#/components/responses/Problem{status}") }));
    }
}

/// What many operations answer: a problem for each status, and the job that a call became.
fn shared_responses() -> Map<String, Value> {
    let mut shared = Map::new();
    for status in ErrorCode::ALL.iter().map(|code| code.status()) {
        let names: Vec<String> =
            ErrorCode::ALL.iter().filter(|code| code.status() == status).map(|code| code.as_str()).collect();
        let schema = json!({ "$ref": "#/components/schemas/Problem" });
        let response = json!({
            "description": names.join(", "),
            "content": { "application/problem+json": { "schema": schema } },
        });
        shared.insert(format!("Problem{status}"), response);
    }
    let job = json!({
        "description": "The call became a job",
        "headers": { "Location": { "description": "Path of the job", "schema": { "type": "string" } } },
        "content": { "application/json": { "schema": { "$ref": "#/components/schemas/Job" } } },
    });
    shared.insert("Job".to_owned(), job);
    shared
}

fn parameter(tool: &Description, name: &str, place: &str) -> Value {
    let field = tool.input_schema.get("properties").and_then(|fields| fields.get(name)).cloned().unwrap_or_default();
    let required = tool.input_schema.get("required").and_then(Value::as_array);
    let is_required = required.is_some_and(|names| names.iter().any(|each| each.as_str() == Some(name)));
    let mut schema = field;
    let description = match &mut schema {
        Value::Object(fields) => fields.remove("description").unwrap_or_default(),
        _ => Value::Null,
    };
    json!({
        "name": name,
        "in": place,
        "required": place == "path" || is_required,
        "description": description,
        "schema": schema,
    })
}

fn path_parameters(path: &str) -> Vec<&str> {
    path.split(['{', '}']).skip(1).step_by(2).map(|name| name.trim_start_matches('*')).collect()
}

/// OpenAPI has no word for a parameter that holds slashes; its clients encode them, which this service takes as well.
fn openapi_path(path: &str) -> String {
    path.replace("{*", "{")
}

fn pascal(name: &str) -> String {
    let mut letters = name.chars();
    letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_files_are_current() {
        let stale = "openapi/ is stale: run `cargo xtask openapi` and commit what it writes";
        assert!(include_str!("../../openapi/openapi.json") == json(), "{stale}");
        assert!(include_str!("../../openapi/openapi.yaml") == yaml(), "{stale}");
    }

    #[test]
    fn operation_ids_are_unique_and_tools_are_all_there() {
        let document = document(&tools::registry());
        let mut ids = std::collections::BTreeSet::new();
        for (path, item) in document["paths"].as_object().unwrap() {
            for operation in item.as_object().unwrap().values() {
                assert!(ids.insert(operation["operationId"].as_str().unwrap().to_owned()), "{path}");
            }
        }
        for entry in tools::registry().list() {
            assert!(ids.contains(entry.description().name));
        }
    }
}
