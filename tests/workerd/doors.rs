//! What the REST door says to everyone: health, the tool list, the API description, CORS, unknown routes and methods.

use reqwest::Method;
use serde_json::{Value, json};
use test_support::{Client, Stack, project_root};

use crate::concurrency::MANY_STARTS;

const TOOLS: [&str; 7] =
    ["createSandbox", "getSandbox", "listSandboxes", "destroySandbox", "exec", "readFile", "writeFile"];

fn stranger() -> Client {
    Stack::shared().client().with_key(None)
}

#[tokio::test]
async fn health_needs_no_key() {
    let health = stranger().get("/health").await.ok();
    assert_eq!(health["ok"], true);
    assert_eq!(health["status"], "ok");
    let time = health["timestamp"].as_str().unwrap();
    assert!(time.len() >= 20 && time.ends_with('Z') && time.contains('T'), "RFC 3339 in UTC: {time}");
}

#[tokio::test]
async fn the_first_page_needs_no_key_and_says_where_to_go() {
    let index = stranger().get("/").await.ok();
    assert_eq!(index["name"], "cloudflare-ops");
    for page in ["health", "openapi"] {
        let path = index[page].as_str().unwrap().strip_prefix(stranger().base()).unwrap().to_owned();
        stranger().get(&path).await.ok();
    }
}

#[tokio::test]
async fn the_tool_list_describes_every_tool() {
    let list = Stack::shared().client().get("/v1/tools").await.ok();
    let tools = list["tools"].as_array().unwrap();
    let names: Vec<&str> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    for name in TOOLS {
        assert!(names.contains(&name), "{name} is not in {names:?}");
    }
    for tool in tools {
        let name = tool["name"].as_str().unwrap();
        assert!(tool["description"].as_str().is_some_and(|text| text.len() > 20), "{name} is described");
        assert!(tool["annotations"].is_object() && tool["guardrails"].is_object(), "{name}: {tool}");
        for schema in ["inputSchema", "outputSchema"] {
            assert_eq!(tool[schema]["type"], "object", "{name} {schema}");
            assert!(tool[schema]["properties"].is_object(), "{name} {schema}");
        }
        assert_eq!(tool["inputSchema"]["additionalProperties"], false, "{name} rejects unknown fields");
    }
}

#[tokio::test]
async fn the_api_description_is_served_as_it_is_committed() {
    let committed = std::fs::read(project_root().join("openapi/openapi.json")).unwrap();
    let committed: Value = serde_json::from_slice(&committed).unwrap();
    let served = stranger().get("/openapi.json").await.ok();
    assert_eq!(served, committed);
    assert!(served["openapi"].as_str().unwrap().starts_with("3.1"));
    let yaml = stranger().get("/openapi.yaml").await;
    assert_eq!(yaml.status, 200);
    let yaml: Value = serde_yaml::from_slice(&yaml.body).unwrap();
    assert_eq!(yaml, served, "both forms say the same");
}

#[tokio::test]
async fn the_documentation_page_is_whole_and_loads_nothing_from_elsewhere() {
    let page = stranger().get("/docs").await;
    assert_eq!(page.status, 200);
    assert!(page.header("content-type").is_some_and(|kind| kind.starts_with("text/html")));
    let policy = page.header("content-security-policy").unwrap();
    for word in ["default-src 'none'", "script-src 'self';", "connect-src 'self'", "frame-ancestors 'none'"] {
        assert!(policy.contains(word), "{policy}");
    }
    let text = page.text();
    let links = text.split(['"', '\'']).filter(|link| link.starts_with('/') && link.len() > 1);
    let mut scripts = 0;
    for link in links.filter(|link| !link.starts_with("//")) {
        let answer = stranger().get(link).await;
        assert_eq!(answer.status, 200, "{link}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{link}");
        scripts += usize::from(answer.header("content-type").is_some_and(|kind| kind.starts_with("text/javascript")));
    }
    assert_eq!(scripts, 2, "the viewer and what starts it");
    assert!(!text.contains("http"), "{text}");
}

#[tokio::test]
async fn other_files_beside_the_description_are_not_served() {
    for path in ["/sandboxd.yaml", "/openapi/openapi.json", "/docs/", "/docs/index.html", "/docs/../sandboxd.yaml"] {
        stranger().get(path).await.problem(404, "not_found");
    }
}

#[tokio::test]
async fn every_tool_has_a_route_and_a_unique_operation_in_the_description() {
    let description = stranger().get("/openapi.json").await.ok();
    for name in TOOLS {
        assert!(description["paths"][format!("/v1/tools/{name}")]["post"].is_object(), "{name} has no route");
    }
    let mut operations: Vec<&str> = Vec::new();
    for methods in description["paths"].as_object().unwrap().values() {
        operations.extend(methods.as_object().unwrap().values().filter_map(|method| method["operationId"].as_str()));
    }
    let count = operations.len();
    operations.sort_unstable();
    operations.dedup();
    assert_eq!(operations.len(), count, "operation ids are unique");
}

#[tokio::test]
async fn a_preflight_is_answered_before_authentication_on_any_route() {
    let asked = "authorization,content-type,x-request-id,idempotency-key,last-event-id";
    for path in ["/", "/v1/tools/exec", "/v1/sandboxes/a/files/b/c", "/sandbox", "/no/such/route"] {
        let request = stranger()
            .request(Method::OPTIONS, path)
            .header("origin", "https://example.com")
            .header("access-control-request-method", "POST")
            .header("access-control-request-headers", asked);
        let answer = stranger().send(request).await;
        assert_eq!(answer.status, 204, "{path}: {}", answer.text());
        assert!(answer.header("access-control-allow-origin").is_some(), "{path}");
        let methods = answer.header("access-control-allow-methods").unwrap_or_default().to_owned();
        for method in ["GET", "POST", "PUT", "DELETE"] {
            assert!(methods.contains(method), "{path} allows {methods}");
        }
        let headers = answer.header("access-control-allow-headers").unwrap_or_default().to_ascii_lowercase();
        for header in ["authorization", "content-type"] {
            assert!(headers == "*" || headers.contains(header), "{path} allows {headers}");
        }
    }
}

#[tokio::test]
async fn a_browser_may_read_the_request_id() {
    let answer = stranger().get("/health").await;
    let exposed = answer.header("access-control-expose-headers").unwrap_or_default().to_ascii_lowercase();
    assert!(exposed.contains("x-request-id"), "{exposed}");
}

#[tokio::test]
async fn an_unknown_route_is_a_problem() {
    let client = Stack::shared().client();
    for path in ["/nothing", "/v1", "/v1/tools/exec/more", "/v1/sandboxes/a/nothing"] {
        client.get(path).await.problem(404, "not_found");
    }
}

#[tokio::test]
async fn a_wrong_method_names_the_right_ones() {
    let client = Stack::shared().client();
    for (method, path, allowed) in [
        (Method::GET, "/v1/tools/exec", "POST"),
        (Method::DELETE, "/v1/tools", "GET"),
        (Method::POST, "/health", "GET"),
        (Method::PATCH, "/v1/sandboxes", "GET"),
    ] {
        let answer = client.send(client.request(method, path)).await;
        let problem = answer.any_problem();
        assert_eq!(answer.status, 405, "{path}: {}", answer.text());
        let allow = problem.headers.get("allow").expect("405 has Allow").to_str().unwrap();
        assert!(allow.contains(allowed), "{path} allows {allow}");
    }
}

#[tokio::test]
async fn a_method_that_no_route_has_is_not_taken_for_another() {
    let client = Stack::shared().client();
    for method in ["QUERY", "PROPFIND", "get", "TRACES"] {
        let head = format!(
            "{method} /v1/tools HTTP/1.1\nHost: x\nAuthorization: Bearer {{key}}\nConnection: close\nContent-Length: 0\n\n"
        );
        let answer = client.raw(&head).await;
        let status = answer.split(' ').nth(1).unwrap_or_default().to_owned();
        assert!(["400", "405", "501"].contains(&status.as_str()), "{method}: {answer}");
    }
}

#[tokio::test]
async fn the_first_call_of_the_readme_works_thirty_times_in_a_row() {
    let stack = Stack::shared();
    let client = stack.client();
    // Each of them is a start that nobody asks for again.
    let _alone = MANY_STARTS.lock().await;
    for _ in 0..30 {
        // `curl -d` sends this content type.
        let body = r#"{"command":"python3 -c \"print(6*7)\"; uname -a"}"#;
        let request = client
            .request(Method::POST, "/v1/tools/exec")
            .header("content-type", "application/x-www-form-urlencoded")
            .body(body);
        let output = client.send(request).await.ok();
        let _sandbox = stack.adopt(output["sandboxId"].as_str().unwrap());
        assert_eq!(output["exitCode"], 0, "{output}");
        let stdout = output["stdout"].as_str().unwrap();
        assert!(stdout.starts_with("42\nLinux "), "{stdout}");
        assert_eq!(output["stderr"], "");
        assert!(output["executionTime"].is_u64(), "whole milliseconds: {output}");
        assert_eq!(output["truncated"], false);
        assert_eq!(output["stdoutBytes"], json!(stdout.len()));
    }
}
