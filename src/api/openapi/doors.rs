//! The doors that speak a protocol of their own: the WebSocket and MCP.

use serde_json::{Map, Value, json};

use super::{add, problems};
use crate::connection::message;
use crate::error::ErrorCode;
use crate::registry::Method;

/// Their paths.
pub(super) fn paths(paths: &mut Map<String, Value>) {
    add(paths, "/ws", Method::Get, websocket());
    add(paths, "/mcp", Method::Post, mcp());
}

/// The messages of the WebSocket: those of clients have every field that there is.
pub(super) fn schemas(schemas: &mut Map<String, Value>) {
    for (name, schema) in message::components() {
        schemas.insert(name.to_owned(), schema);
    }
}

fn websocket() -> Value {
    let mut responses = Map::new();
    responses.insert("101".to_owned(), json!({ "description": "The connection is open" }));
    problems(
        &mut responses,
        &[
            ErrorCode::Unauthenticated,
            ErrorCode::Forbidden,
            ErrorCode::UpgradeRequired,
            ErrorCode::RateLimited,
            ErrorCode::Internal,
            ErrorCode::NotConfigured,
        ],
    );
    json!({
        "operationId": "webSocket",
        "summary": "Many calls on one connection",
        "description": "A WebSocket. The key comes in Authorization, in `Sec-WebSocket-Protocol: bearer, <key>`, or in a first message \
            WebSocketInit within 10 seconds. A client says WebSocketInvoke, WebSocketCancel, WebSocketSubscribe and WebSocketPing; the \
            service WebSocketReady, WebSocketEvent, WebSocketResult, WebSocketError and WebSocketPong: one JSON object in each text frame, \
            told apart by `type`.",
        "tags": ["service"],
        "security": [{ "bearer": [] }, {}],
        "parameters": [{
            "name": "Sec-WebSocket-Protocol",
            "in": "header",
            "required": false,
            "description": "`bearer, <key>`, where no other header can be set.",
            "schema": { "type": "string" },
        }],
        "responses": responses,
    })
}

fn mcp() -> Value {
    let message = json!({
        "type": "object",
        "properties": {
            "jsonrpc": { "type": "string", "enum": ["2.0"] },
            "method": { "type": "string" },
            "params": { "type": "object", "properties": {}, "additionalProperties": true },
        },
        "required": ["jsonrpc", "method"],
        "additionalProperties": true,
    });
    let answer = json!({ "type": "object", "properties": {}, "additionalProperties": true });
    let content = json!({
        "application/json": { "schema": answer },
        "text/event-stream": { "schema": { "type": "string", "description": "Notifications, then the answer." } },
    });
    let refused = json!({ "description": "A JSON-RPC error", "content": { "application/json": { "schema": answer } } });
    let mut responses = Map::new();
    problems(
        &mut responses,
        &[
            ErrorCode::Unauthenticated,
            ErrorCode::Forbidden,
            ErrorCode::RateLimited,
            ErrorCode::Internal,
            ErrorCode::NotConfigured,
        ],
    );
    responses.insert("200".to_owned(), json!({ "description": "The answer to a request", "content": content }));
    responses.insert("202".to_owned(), json!({ "description": "A notification was taken" }));
    for status in ["400", "404", "413"] {
        responses.insert(status.to_owned(), refused.clone());
    }
    json!({
        "operationId": "mcp",
        "summary": "One message of the Model Context Protocol",
        "description": "JSON-RPC as the Model Context Protocol has it: the revision 2026-07-28, which is stateless, and the earlier ones. \
            MCP clients speak it; docs/mcp.md has what they need.",
        "tags": ["service"],
        "requestBody": { "required": true, "content": { "application/json": { "schema": message } } },
        "responses": responses,
    })
}
