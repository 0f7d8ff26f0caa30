//! Making, finding, listing and destroying sandboxes, by tool and by resource route.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use test_support::{
    Fault, Internet, Operation, PATIENCE, Stack, StackOptions, eventually, find_by_argument, random_name,
};

#[tokio::test]
async fn a_sandbox_is_made_once_and_found_again() {
    let sandbox = Stack::shared().unmade_sandbox();
    let create = || sandbox.client.call("createSandbox", &json!({"id": sandbox.id, "labels": {"team": "a"}}));
    let first = create().await.ok();
    assert_eq!((&first["sandboxId"], &first["created"]), (&json!(sandbox.id), &json!(true)));
    assert_eq!(first["status"], "running");
    assert!(first["createdAt"].as_str().unwrap().ends_with('Z') && first["generation"].is_u64(), "{first}");
    let again = create().await.ok();
    assert_eq!(again["created"], false);
    assert_eq!((&again["createdAt"], &again["generation"]), (&first["createdAt"], &first["generation"]));
    for other in
        [json!({"labels": {"team": "b"}}), json!({"env": {"A": "1"}}), json!({"labels": {"team": "a", "x": "y"}})]
    {
        let mut arguments = other;
        arguments["id"] = json!(sandbox.id);
        sandbox.client.call("createSandbox", &arguments).await.problem(409, "conflict");
    }
}

/// Says whether a connection to a server out there, and one inside the sandbox, comes about.
fn reach(internet: &Internet, port: u16) -> Value {
    let command = format!(
        "import socket\nfor address in [('{}', {port}), socket.create_server(('127.0.0.1', 0))]:\n    \
         try: socket.create_connection(getattr(address, 'getsockname', lambda: address)(), 20); print('reached')\n    \
         except OSError: print('refused')",
        internet.address
    );
    json!({"command": command, "language": "python", "timeout": 90})
}

#[tokio::test]
async fn internet_holds_from_the_start_of_a_sandbox_to_its_next_one() {
    let internet = Internet::connect();
    let server = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    let ask = reach(&internet, server.local_addr().unwrap().port());
    let sandbox = Stack::shared().sandbox_with(json!({"internet": false})).await;
    assert_eq!(sandbox.exec(ask.clone()).await["stdout"], "refused\nreached\n");
    let changed = sandbox.call("updateSandbox", json!({"internet": true})).await.ok();
    assert_eq!((&changed["internet"], &changed["internetPending"]), (&json!(true), &json!(true)));
    assert_eq!(sandbox.exec(ask.clone()).await["stdout"], "refused\nreached\n");
    sandbox.call("stopSandbox", json!({})).await.ok();
    assert_eq!(sandbox.exec(ask.clone()).await["stdout"], "reached\nreached\n");
    let told = sandbox.call("getSandbox", json!({})).await.ok();
    assert_eq!((&told["internet"], &told["internetPending"]), (&json!(true), &Value::Null));
    let changed = sandbox.call("updateSandbox", json!({"internet": false})).await.ok();
    assert_eq!((&changed["internet"], &changed["internetPending"]), (&json!(false), &json!(true)));
    sandbox.call("stopSandbox", json!({})).await.ok();
    assert_eq!(sandbox.exec(ask).await["stdout"], "refused\nreached\n");
}

#[tokio::test]
async fn a_command_reaches_neither_the_worker_nor_the_host() {
    let stack = Stack::shared();
    let port = |url: &str| url.rsplit(':').next().and_then(|it| it.trim_end_matches('/').parse::<u16>().ok()).unwrap();
    let ports = [port(stack.worker().url()), stack.host().port()];
    let command = format!(
        "import socket\nfor address in ['127.0.0.1', '10.0.2.2']:\n  for port in {ports:?}:\n    \
         try: socket.create_connection((address, port), 5); print('reached', address, port)\n    \
         except OSError: print('refused')"
    );
    let sandbox = stack.sandbox().await;
    let output = sandbox.exec(json!({"command": command, "language": "python", "timeout": 90})).await;
    assert_eq!(output["stdout"], "refused\n".repeat(4), "{output}");
    for port in ports {
        std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    }
}

#[tokio::test]
async fn a_sandbox_tells_of_itself() {
    let sandbox = Stack::shared().sandbox().await;
    sandbox.sh("true").await;
    let told = sandbox.call("getSandbox", json!({})).await.ok();
    assert_eq!((&told["sandboxId"], &told["status"]), (&json!(sandbox.id), &json!("running")));
    assert!(told["uptime"].as_f64().is_some_and(|seconds| (0.0..600.0).contains(&seconds)), "{told}");
    let resources = &told["resources"];
    assert!(
        resources["cpu"].is_number() && resources["memory"].as_f64().is_some_and(|megabytes| megabytes > 0.0),
        "{told}"
    );
    assert!(told["environment"]["hasAnthropicCredentials"].is_boolean() && told["keepAlive"].is_boolean(), "{told}");
    assert!(told["state"].is_string() && told["generation"].is_u64(), "{told}");
}

#[tokio::test]
async fn credentials_are_told_of_and_not_told() {
    let key = random_name("sk-ant");
    let sandbox = Stack::shared().sandbox_with(json!({"env": {"ANTHROPIC_API_KEY": key}})).await;
    let answer = sandbox.call("getSandbox", json!({})).await;
    assert_eq!(answer.ok()["environment"]["hasAnthropicCredentials"], true);
    assert!(!answer.text().contains(&key));
    let sandbox = Stack::shared().sandbox().await;
    assert_eq!(sandbox.call("getSandbox", json!({})).await.ok()["environment"]["hasAnthropicCredentials"], false);
}

#[tokio::test]
async fn every_resource_route_does_what_its_tool_does() {
    let stack = Stack::shared();
    for (create, one) in [("/sandbox", "/sandbox"), ("/v1/sandboxes", "/v1/sandboxes")] {
        let sandbox = stack.unmade_sandbox();
        let body = json!({"id": sandbox.id, "labels": {"a": "b"}}).to_string();
        let made = sandbox.client.post(create, body).await;
        assert!([200, 201].contains(&made.status), "{}", made.text());
        assert_eq!((&made.json()["sandboxId"], &made.json()["created"]), (&json!(sandbox.id), &json!(true)));
        let path = format!("{one}/{}", sandbox.id);
        let told = sandbox.client.get(&path).await.ok();
        assert_eq!(told["sandboxId"], json!(sandbox.id));
        let gone = sandbox.client.send(sandbox.client.request(Method::DELETE, &path)).await;
        assert_eq!(gone.ok()["status"], "destroyed");
        sandbox.client.get(&path).await.problem(404, "not_found");
    }
    let listed = stack.client().get("/v1/sandboxes?limit=1").await.ok();
    assert!(listed["sandboxes"].as_array().unwrap().len() <= 1);
    stack.client().get("/v1/sandboxes?limit=x").await.problem(400, "invalid_arguments");
    stack.client().get("/v1/sandboxes?nothing=1").await.problem(400, "invalid_arguments");
}

#[tokio::test]
async fn the_list_is_whole_and_comes_in_pages() {
    let stack = Stack::start(StackOptions::default());
    let mut made: Vec<String> = Vec::new();
    let mut sandboxes = Vec::new();
    for _ in 0..7 {
        let sandbox = stack.sandbox().await;
        made.push(sandbox.id.clone());
        sandboxes.push(sandbox);
    }
    made.sort();
    let client = stack.client();
    let ids = |page: &Value| -> Vec<String> {
        page["sandboxes"].as_array().unwrap().iter().map(|one| one["sandboxId"].as_str().unwrap().to_owned()).collect()
    };
    let (mut listed, mut cursor, mut pages) = (Vec::new(), None::<String>, 0);
    loop {
        let mut arguments = json!({"limit": 3});
        if let Some(cursor) = &cursor {
            arguments["cursor"] = json!(cursor);
        }
        let page = client.call("listSandboxes", &arguments).await.ok();
        assert!(ids(&page).len() <= 3);
        listed.extend(ids(&page));
        pages += 1;
        assert!(pages < 10, "the pages end");
        match page.get("nextCursor").and_then(Value::as_str) {
            Some(next) => cursor = Some(next.to_owned()),
            None => break,
        }
    }
    listed.sort();
    assert_eq!(listed, made);
    let all = client.call("getSandbox", &json!({})).await.ok();
    assert_eq!(ids(&all).len(), 7);
    client.call("destroySandbox", &json!({"sandboxId": made[0]})).await.ok();
    let left = client.call("listSandboxes", &json!({})).await.ok();
    assert!(!ids(&left).contains(&made[0]) && ids(&left).len() == 6);
    let running = client.call("getSandbox", &json!({"filters": {"status": "running"}})).await.ok();
    assert_eq!(ids(&running).len(), 6);
    let later = client.call("getSandbox", &json!({"filters": {"createdAfter": "2999-01-01T00:00:00Z"}})).await.ok();
    assert_eq!(ids(&later).len(), 0);
    let problem = client.call("listSandboxes", &json!({"cursor": "garbage"})).await;
    assert!([200, 400].contains(&problem.status), "{}", problem.text());
}

#[tokio::test]
async fn destroying_ends_the_processes_and_removes_the_files() {
    let sandbox = Stack::shared().sandbox().await;
    let marker = random_name("left");
    sandbox.sh(&format!("head -c 5000000 /dev/zero > big; (exec -a {marker} sleep 300) >&- 2>&- & echo")).await;
    let runs = || async { (!find_by_argument(&marker).is_empty()).then_some(()) };
    eventually("it runs", PATIENCE, runs).await;
    let gone = sandbox.call("destroySandbox", json!({"force": true})).await.ok();
    assert_eq!((&gone["sandboxId"], &gone["status"]), (&json!(sandbox.id), &json!("destroyed")));
    assert!(find_by_argument(&marker).is_empty(), "told only once it is so");
    assert!(gone["resourcesReleased"]["processes"].as_u64().unwrap() >= 1, "{gone}");
    assert!(gone["resourcesReleased"]["diskBytes"].as_u64().unwrap() >= 5_000_000, "{gone}");
    assert!(gone["destroyedAt"].as_str().unwrap().ends_with('Z'), "{gone}");
    sandbox.call("exec", json!({"command": "true"})).await.problem(404, "not_found");
    // The same name again is another sandbox.
    let made =
        sandbox.client.call("createSandbox", &json!({"id": sandbox.id, "labels": {"second": "life"}})).await.ok();
    assert_eq!(made["created"], true);
    assert_eq!(sandbox.sh("ls -A").await, "");
}

#[tokio::test]
async fn destroying_is_idempotent_and_knows_no_stranger() {
    let stack = Stack::shared();
    let sandbox = stack.sandbox().await;
    let calls = (0..5).map(|_| sandbox.call("destroySandbox", json!({})));
    for answer in futures_util::future::join_all(calls).await {
        assert_eq!(answer.ok()["status"], "destroyed");
    }
    assert_eq!(sandbox.call("destroySandbox", json!({})).await.ok()["status"], "destroyed");
    let unknown = stack.unmade_sandbox();
    assert_eq!(unknown.call("destroySandbox", json!({})).await.ok()["status"], "destroyed");
    let path = format!("/sandbox/{}", unknown.id);
    assert_eq!(unknown.client.send(unknown.client.request(Method::DELETE, &path)).await.ok()["status"], "destroyed");
}

#[tokio::test]
async fn destroying_during_a_start_leaves_nothing_running() {
    let stack = Stack::shared();
    let sandbox = stack.unmade_sandbox();
    stack.proxy.inject_times(&sandbox.id, Operation::Start, Fault::Delays(Duration::from_secs(1)), 1);
    let arguments = json!({"id": sandbox.id});
    let create = sandbox.client.call("createSandbox", &arguments);
    let destroy = async {
        let begun = || async {
            (sandbox.client.get(&format!("/v1/sandboxes/{}", sandbox.id)).await.status == 200).then_some(())
        };
        eventually("the start has begun", PATIENCE, begun).await;
        sandbox.call("destroySandbox", json!({})).await
    };
    let (created, destroyed) = tokio::join!(create, destroy);
    assert_eq!(destroyed.ok()["status"], "destroyed");
    assert!(created.status < 500 || created.status == 503, "{}", created.text());
    if created.status != 200 {
        created.any_problem();
    }
    sandbox.call("getSandbox", json!({})).await.problem(404, "not_found");
    let gone = || async { find_by_argument(&sandbox.id).is_empty().then_some(()) };
    eventually("no process of it is left", PATIENCE, gone).await;
}
