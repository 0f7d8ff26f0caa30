//! One table of calls through every door: the same code, the same value.

use std::sync::Arc;

use reqwest::Method;
use serde_json::{Value, json};
use test_support::{CASES, Client, ENVIRONMENT, Socket, Stack};

use crate::cfops::Home;

/// What a call gave: its output, or its problem.
type Told = Result<Value, Value>;

/// A way to call.
enum Door {
    Rest,
    /// The events of REST, of which the last is the answer.
    Events,
    WebSocket(Box<Socket>),
    McpLegacy,
    McpModern,
    Cfops(Arc<Home>),
}

impl Door {
    fn name(&self) -> &'static str {
        match self {
            Self::Rest => "rest",
            Self::Events => "events",
            Self::WebSocket(_) => "websocket",
            Self::McpLegacy => "mcp, legacy",
            Self::McpModern => "mcp, modern",
            Self::Cfops(_) => "cfops",
        }
    }

    async fn call(&mut self, client: &Client, tool: &str, arguments: &Value) -> Told {
        match self {
            Self::Rest => {
                let answer = client.call(tool, arguments).await;
                if answer.status == 200 { Ok(answer.json()) } else { Err(answer.json()) }
            }
            Self::Events => events(client, tool, arguments).await,
            Self::WebSocket(socket) => {
                let told = socket.call("call", tool, arguments).await;
                if told.last["type"] == "result" { Ok(told.result().clone()) } else { Err(told.last["error"].clone()) }
            }
            Self::McpLegacy => mcp(client, "2025-06-18", tool, arguments).await,
            Self::McpModern => mcp(client, "2026-07-28", tool, arguments).await,
            Self::Cfops(home) => {
                let (home, tool, input) = (home.clone(), tool.to_owned(), arguments.to_string());
                let call = move || home.run_with(&["--json", "call", &tool, "--input", "-"], input.as_bytes());
                let ran = tokio::task::spawn_blocking(call).await.unwrap();
                match ran.code() {
                    0 => Ok(serde_json::from_slice(&ran.stdout).unwrap()),
                    _ => Err(serde_json::from_slice(&ran.stderr).unwrap_or_else(|error| panic!("{error}: {ran:?}"))),
                }
            }
        }
    }
}

/// As events. What is refused before the stream begins is an ordinary problem.
async fn events(client: &Client, tool: &str, arguments: &Value) -> Told {
    let request = client.request(Method::POST, &format!("/v1/tools/{tool}")).header("accept", "text/event-stream");
    let answer = client.send(request.json(arguments)).await;
    if answer.status != 200 {
        return Err(answer.json());
    }
    let events = test_support::Parser::default().push(&answer.body);
    let last = events.last().unwrap_or_else(|| panic!("{}", answer.text()));
    let data = serde_json::from_str(&last.data).unwrap();
    if last.name == "result" { Ok(data) } else { Err(data) }
}

async fn mcp(client: &Client, revision: &str, tool: &str, arguments: &Value) -> Told {
    let is_modern = revision == "2026-07-28";
    let mut params = json!({ "name": tool, "arguments": arguments });
    let mut request = client
        .request(Method::POST, "/mcp")
        .header("accept", "application/json, text/event-stream")
        .header("mcp-protocol-version", revision);
    if is_modern {
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": revision,
            "io.modelcontextprotocol/clientCapabilities": {},
            "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
        });
        request = request.header("mcp-method", "tools/call").header("mcp-name", tool);
    }
    let message = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
    let result = client.send(request.json(&message)).await.ok()["result"].clone();
    if result["isError"] == false {
        // Models that read text alone are told the same.
        let text: Value = serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
        assert_eq!(text, result["structuredContent"]);
        return Ok(result["structuredContent"].clone());
    }
    let problem = result["_meta"]["cloudflare-ops/problem"].clone();
    assert!(problem.is_object(), "{result}");
    Err(problem)
}

#[tokio::test]
async fn a_call_gives_the_same_through_every_door() {
    let stack = Stack::shared();
    let environment: Value = serde_json::from_str(ENVIRONMENT).unwrap();
    let home = tokio::task::spawn_blocking(Home::logged_in).await.unwrap();
    let doors = [
        Door::Rest,
        Door::Events,
        Door::WebSocket(Box::new(stack.client().socket().await)),
        Door::McpLegacy,
        Door::McpModern,
        Door::Cfops(Arc::new(home)),
    ];
    for mut door in doors {
        let sandbox = stack.sandbox_with(json!({ "env": environment })).await;
        for case in CASES {
            let told = door.call(&sandbox.client, case.tool, &case.arguments(&sandbox.id)).await;
            case.judge(door.name(), &told);
        }
    }
}

#[tokio::test]
async fn schemas_are_the_same_at_every_door() {
    let client = Stack::shared().client();
    let rest = client.get("/v1/tools").await.ok()["tools"].clone();
    let openapi = client.get("/openapi.json").await.json();
    let of_mcp = async |revision: &str| {
        let request = client.request(Method::POST, "/mcp").header("mcp-protocol-version", revision);
        let mut message = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {} });
        let request = if revision == "2026-07-28" {
            message["params"]["_meta"] = json!({
                "io.modelcontextprotocol/protocolVersion": revision,
                "io.modelcontextprotocol/clientCapabilities": {},
                "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
            });
            request.header("mcp-method", "tools/list")
        } else {
            request
        };
        client.send(request.json(&message)).await.ok()["result"]["tools"].as_array().unwrap().clone()
    };
    let (legacy, modern) = (of_mcp("2025-06-18").await, of_mcp("2026-07-28").await);
    let tools = rest.as_array().unwrap();
    assert!(tools.len() > 30 && legacy.len() == tools.len() && modern.len() == tools.len());
    for (index, tool) in tools.iter().enumerate() {
        let name = tool["name"].as_str().unwrap();
        let component = |part: &str| {
            let (first, rest) = name.split_at(1);
            &openapi["components"]["schemas"][format!("{}{rest}{part}", first.to_uppercase())]
        };
        assert_eq!(component("Input"), &tool["inputSchema"], "{name}");
        assert_eq!(component("Output"), &tool["outputSchema"], "{name}");
        for listed in [&legacy[index], &modern[index]] {
            assert_eq!((&listed["name"], &listed["inputSchema"]), (&tool["name"], &tool["inputSchema"]));
        }
    }
}
