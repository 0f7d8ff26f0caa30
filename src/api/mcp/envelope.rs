//! The JSON-RPC envelope: what a body says, and what it is answered with.

use serde_json::{Map, Value, json};

/// A message that is answered with a result or an error.
#[derive(Debug, PartialEq)]
pub struct Asked {
    /// A string or an integer, told again as it came.
    pub id: Value,
    pub method: String,
    pub params: Map<String, Value>,
}

/// A message of a client.
#[derive(Debug, PartialEq)]
pub enum Message {
    Request(Asked),
    /// The client wants the call of this id to end: 202, and no body.
    Cancelled(Value),
    /// Another notification, or an answer to what this server never asks: the same.
    Told,
}

/// An error of the protocol, with the status of HTTP that it has.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    pub status: u16,
    pub code: i64,
    pub message: String,
    pub data: Option<Value>,
}

pub const PARSE_ERROR: i64 = -32700;
pub const INVALID_REQUEST: i64 = -32600;
pub const METHOD_NOT_FOUND: i64 = -32601;
pub const INVALID_PARAMS: i64 = -32602;
pub const INTERNAL_ERROR: i64 = -32603;
/// A header of the modern era is not what the body says.
pub const HEADER_MISMATCH: i64 = -32020;
pub const UNSUPPORTED_VERSION: i64 = -32022;

impl Fault {
    pub fn new(status: u16, code: i64, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), data: None }
    }

    /// 400: there is no such revision; these there are for a request of its form.
    pub fn unsupported(requested: &str, supported: &[&str]) -> Self {
        let shown: String = requested.chars().take(64).collect();
        Self {
            data: Some(json!({ "supported": supported, "requested": shown })),
            ..Self::new(400, UNSUPPORTED_VERSION, format!("there is no protocol version {shown:?} here"))
        }
    }

    /// The answer to the request of this id; null where it could not be read.
    pub fn answer(&self, id: &Value) -> Value {
        let mut error = json!({ "code": self.code, "message": self.message });
        if let (Some(data), Some(fields)) = (&self.data, error.as_object_mut()) {
            fields.insert("data".to_owned(), data.clone());
        }
        json!({ "jsonrpc": "2.0", "id": id, "error": error })
    }
}

/// The answer to the request of this id.
pub fn success(id: &Value, result: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "result": result })
}

/// Reads a body.
pub fn read(body: Value) -> Result<Message, Fault> {
    let bad = |message: &str| Fault::new(400, INVALID_REQUEST, message);
    let mut fields = match body {
        Value::Object(fields) => fields,
        Value::Array(_) => return Err(bad("batches are not taken: send one message a request")),
        _ => return Err(bad("a message is a JSON object")),
    };
    if fields.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
        return Err(bad("jsonrpc must be \"2.0\""));
    }
    let id = fields.remove("id");
    let is_answer = fields.contains_key("result") || fields.contains_key("error");
    let method = match (fields.remove("method"), is_answer) {
        (Some(Value::String(method)), _) => method,
        (None, true) => return Ok(Message::Told),
        _ => return Err(bad("method must be a string")),
    };
    let id = match id {
        None => return Ok(notified(&method, fields.get("params"))),
        Some(id) if is_id(&id) => id,
        Some(_) => return Err(bad("id must be a string or an integer")),
    };
    match fields.remove("params") {
        None => Ok(Message::Request(Asked { id, method, params: Map::new() })),
        Some(Value::Object(params)) => Ok(Message::Request(Asked { id, method, params })),
        Some(_) => Err(bad("params must be an object")),
    }
}

fn is_id(value: &Value) -> bool {
    value.is_string() || value.is_i64() || value.is_u64()
}

fn notified(method: &str, params: Option<&Value>) -> Message {
    let id = params.and_then(|params| params.get("requestId")).filter(|id| is_id(id));
    match id {
        Some(id) if method == "notifications/cancelled" => Message::Cancelled(id.clone()),
        _ => Message::Told,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_without_id_is_only_told_whatever_its_method_is() {
        for body in [
            json!({ "jsonrpc": "2.0", "method": "x/y" }),
            json!({ "jsonrpc": "2.0", "method": "notifications/initialized", "params": {} }),
            json!({ "jsonrpc": "2.0", "id": 1, "result": {} }),
            json!({ "jsonrpc": "2.0", "method": "notifications/cancelled" }),
            json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": null } }),
        ] {
            assert_eq!(read(body.clone()), Ok(Message::Told), "{body}");
        }
        for id in [json!(0), json!("0")] {
            let params = json!({ "requestId": id, "reason": "no patience" });
            let body = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params });
            assert_eq!(read(body), Ok(Message::Cancelled(id)));
        }
    }

    #[test]
    fn ids_are_strings_or_integers_and_told_again_exactly() {
        for id in [json!("1"), json!(0), json!(-5), json!(9_007_199_254_740_993_u64)] {
            let Ok(Message::Request(asked)) = read(json!({ "jsonrpc": "2.0", "id": id, "method": "ping" })) else {
                panic!("{id}");
            };
            assert_eq!(success(&asked.id, json!({}))["id"], id);
        }
        for id in [json!(null), json!(1.5), json!({}), json!([]), json!(true)] {
            let fault = read(json!({ "jsonrpc": "2.0", "id": id, "method": "ping" })).unwrap_err();
            assert_eq!((fault.status, fault.code), (400, INVALID_REQUEST), "{id}");
        }
    }

    #[test]
    fn other_envelopes_are_refused() {
        for body in [
            json!([{ "jsonrpc": "2.0", "id": 1, "method": "ping" }]),
            json!([]),
            json!("ping"),
            json!({ "id": 1, "method": "ping" }),
            json!({ "jsonrpc": "1.0", "id": 1, "method": "ping" }),
            json!({ "jsonrpc": "2.0", "id": 1 }),
            json!({ "jsonrpc": "2.0", "id": 1, "method": 5 }),
            json!({ "jsonrpc": "2.0", "id": 1, "method": "ping", "params": [] }),
        ] {
            assert_eq!(read(body.clone()).unwrap_err().code, INVALID_REQUEST, "{body}");
        }
    }
}
