//! Who may call, and which refusal comes first.

use reqwest::{
    Method,
    header::{HeaderName, HeaderValue},
};
use serde_json::{Value, json};
use test_support::{Client, PATIENCE, Stack, StackOptions, random_name, within};

/// Routes that tell nothing about anyone.
const OPEN: [&str; 5] = ["/", "/health", "/openapi.json", "/openapi.yaml", "/docs"];

/// Every route that needs a key: those of the description, and each tool.
async fn guarded_routes(client: &Client) -> Vec<(Method, String)> {
    let description: Value = client.get("/openapi.json").await.ok();
    let mut routes = Vec::new();
    for (path, methods) in description["paths"].as_object().unwrap() {
        let path = path
            .replace("{path}", "a/b")
            .replace("{sandboxId}", "none")
            .replace("{id}", "none")
            .replace("{processId}", "none")
            .replace("{keyId}", "none")
            .replace("{jobId}", "none")
            .replace("{scheduleId}", "none")
            .replace("{name}", "none")
            .replace("{tool}", "exec");
        assert!(!path.contains('{'), "a parameter that this test does not know: {path}");
        for method in methods.as_object().unwrap().keys() {
            let Ok(method) = method.to_uppercase().parse::<Method>() else { continue };
            // An answer to HEAD has no body to judge; it has a test of its own, and so has the WebSocket, whose key may come later.
            let judged =
                !OPEN.contains(&path.as_str()) && path != "/ws" && method != Method::OPTIONS && method != Method::HEAD;
            if judged {
                routes.push((method, path.clone()));
            }
        }
    }
    let fixed = [
        (Method::POST, "/mcp"),
        (Method::GET, "/v1/tools"),
        (Method::POST, "/v1/tools/exec"),
        (Method::POST, "/v1/tools/noSuchTool"),
        (Method::POST, "/sandbox"),
        (Method::GET, "/sandbox/none"),
        (Method::DELETE, "/sandbox/none"),
        (Method::GET, "/v1/sandboxes"),
        (Method::POST, "/v1/sandboxes"),
        (Method::GET, "/v1/sandboxes/none"),
        (Method::DELETE, "/v1/sandboxes/none"),
        (Method::GET, "/v1/sandboxes/none/files/a"),
        (Method::PUT, "/v1/sandboxes/none/files/a"),
    ];
    routes.extend(fixed.map(|(method, path)| (method, path.to_owned())));
    routes
}

#[tokio::test]
async fn no_route_is_open_without_the_right_key() {
    let stack = Stack::shared();
    let stranger = stack.client().with_key(None);
    let routes = guarded_routes(&stranger).await;
    assert!(routes.len() > 15, "{routes:?}");
    let authorizations = [
        None,
        Some("Bearer".to_owned()),
        Some("Bearer ".to_owned()),
        Some(format!("Bearer {}", random_name("wrong"))),
        Some(format!("Bearer {}", stack.key.to_uppercase())),
        Some(format!("Bearer {}x", stack.key)),
        Some(format!("Bearer {}", &stack.key[..stack.key.len() - 1])),
        Some(format!("Basic {}", stack.key)),
        Some(stack.key.clone()),
    ];
    for (method, path) in routes {
        for authorization in &authorizations {
            let mut request = stranger.request(method.clone(), &path).body("{}");
            if let Some(value) = authorization {
                request = request.header("authorization", value);
            }
            let answer = stranger.send(request).await;
            let what = format!("{method} {path} {authorization:?}");
            assert_eq!(answer.status, 401, "{what}: {}", answer.text());
            answer.problem(401, "unauthenticated");
            let challenge = answer.header("www-authenticate").unwrap_or_default().to_owned();
            assert!(challenge.starts_with("Bearer"), "{what}: {challenge}");
        }
    }
}

#[tokio::test]
async fn head_of_a_file_is_guarded_too() {
    let stranger = Stack::shared().client().with_key(None);
    let answer = stranger.send(stranger.request(Method::HEAD, "/v1/sandboxes/none/files/a")).await;
    assert_eq!(answer.status, 401);
    assert!(answer.header("www-authenticate").is_some());
}

#[tokio::test]
async fn the_scheme_is_known_in_any_case_and_the_key_in_one() {
    let stack = Stack::shared();
    let stranger = stack.client().with_key(None);
    for scheme in ["bearer", "BEARER"] {
        // RFC 9110, section 11.1: the scheme is a case-insensitive token.
        let request =
            stranger.request(Method::GET, "/v1/tools").header("authorization", format!("{scheme} {}", stack.key));
        stranger.send(request).await.ok();
    }
}

#[tokio::test]
async fn the_key_does_not_count_elsewhere_than_in_its_header() {
    let stack = Stack::shared();
    let stranger = stack.client().with_key(None);
    for query in ["key", "token", "api_key", "access_token", "authorization"] {
        stranger.get(&format!("/v1/tools?{query}={}", stack.key)).await.problem(401, "unauthenticated");
    }
    let name = HeaderName::from_static("x-api-key");
    let request = stranger.request(Method::GET, "/v1/tools").header(name, HeaderValue::from_str(&stack.key).unwrap());
    stranger.send(request).await.problem(401, "unauthenticated");
}

#[tokio::test]
async fn authentication_is_decided_before_the_request_is_judged() {
    let stranger = Stack::shared().client().with_key(Some("wrong"));
    let large = vec![b' '; 5_000_000];
    let cases: [(&str, Vec<u8>); 7] = [
        ("/v1/tools/noSuchTool", b"{}".to_vec()),
        ("/v1/tools/exec", b"not JSON".to_vec()),
        ("/v1/tools/exec", br#"{"command":5}"#.to_vec()),
        ("/v1/tools/exec", br#"{"command":"true","sandboxId":"no-such-sandbox"}"#.to_vec()),
        ("/v1/tools/exec", br#"{"command":"true","sandboxId":"../x"}"#.to_vec()),
        ("/v1/tools/exec", large),
        ("/sandbox", b"[]".to_vec()),
    ];
    for (path, body) in cases {
        stranger.post(path, body).await.problem(401, "unauthenticated");
    }
}

#[tokio::test]
async fn a_refused_stream_is_a_problem_with_its_status() {
    let stranger = Stack::shared().client().with_key(None);
    let request = stranger.request(Method::POST, "/v1/tools/exec").header("accept", "text/event-stream");
    stranger.send(request.json(&json!({"command": "true"}))).await.problem(401, "unauthenticated");
}

#[tokio::test]
async fn a_stranger_creates_nothing() {
    let stack = Stack::shared();
    let sandbox = stack.unmade_sandbox();
    let stranger = stack.client().with_key(Some("wrong"));
    stranger.call("createSandbox", &json!({"id": sandbox.id})).await.problem(401, "unauthenticated");
    stranger.call("exec", &json!({"sandboxId": sandbox.id, "command": "true"})).await.problem(401, "unauthenticated");
    assert!(stack.proxy.seen(&sandbox.id).is_empty(), "the host was not asked");
    sandbox.call("getSandbox", json!({})).await.problem(404, "not_found");
}

#[tokio::test]
async fn a_worker_without_a_key_is_closed() {
    let stack = Stack::start(StackOptions { key: false, ..StackOptions::default() });
    for key in [None, Some(""), Some("anything"), Some("undefined"), Some("null")] {
        let client = stack.client().with_key(key);
        let problem = client.call("exec", &json!({"command": "true"})).await.problem(503, "not_configured");
        assert!(problem.detail.contains("WORKER_API_KEY_SECRET"), "it says what to set: {}", problem.detail);
        client.get("/v1/tools").await.problem(503, "not_configured");
        client.post("/v1/tools/exec", "not JSON").await.problem(503, "not_configured");
        client.get("/health").await.ok();
    }
}

#[tokio::test]
async fn a_worker_without_a_host_says_so() {
    let stack = Stack::start(StackOptions { host: false, ..StackOptions::default() });
    let client = stack.client();
    client.get("/v1/tools").await.ok();
    let call = client.call("exec", &json!({"command": "true"}));
    let answer = within("a refusal", PATIENCE, call).await;
    let problem = answer.any_problem();
    assert_eq!(answer.status, 503, "{}", answer.text());
    assert!(["not_configured", "sandbox_unavailable"].contains(&problem.code.as_str()), "{}", problem.code);
}
