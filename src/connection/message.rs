//! What is said on a WebSocket: one JSON object a frame, told apart by `type`.

use std::cell::OnceCell;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::error::{Error, ErrorCode, Problem, Result, field_name};
use crate::events::Data;
use crate::registry;
use crate::schema;
use crate::whole;

/// Longest message that is read, in bytes.
pub const LONGEST_MESSAGE: usize = 1024 * 1024;

/// The ping that is answered without waking the object: this text, byte by byte.
pub const PING: &str = r#"{"type":"ping"}"#;

/// What it is answered with.
pub const PONG: &str = r#"{"type":"pong"}"#;

/// The first message of who presented no key in the headers.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Init {
    /// A key or a token, as after `Bearer` at REST.
    #[schema(min_length = 1, max_length = 4096)]
    pub token: String,
    /// Tenant that the root key acts for, as in the header `X-Tenant`.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 64)]
    pub tenant: Option<String>,
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Invoke {
    /// What the answers are told by; made by the client, free again after the last of them.
    #[schema(min_length = 1, max_length = 128)]
    pub id: String,
    /// Name of the tool.
    #[schema(min_length = 1, max_length = 64)]
    pub tool: String,
    /// Its arguments; default none.
    #[serde(default)]
    #[schema(value_type = Option<std::collections::BTreeMap<String, Value>>)]
    pub params: Option<Map<String, Value>>,
    /// Whether it becomes a job at once where it can be one; default false.
    #[serde(default)]
    pub r#async: Option<bool>,
    /// As the header `Idempotency-Key` at REST.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 255)]
    pub idempotency_key: Option<String>,
    /// As the header `Webhook-Url` at REST.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 2048)]
    pub webhook_url: Option<String>,
}

/// The end of a call or of a subscription that is open.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Cancel {
    /// The `id` of its `invoke` or `subscribe`.
    #[schema(min_length = 1, max_length = 128)]
    pub id: String,
}

/// What a job writes, from any point on, and how it ends.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Subscribe {
    /// What the answers are told by; default the id of the job.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 128)]
    pub id: Option<String>,
    /// The job.
    #[schema(min_length = 1, max_length = 64)]
    pub job_id: String,
    /// `seq` of the last event that was seen, to go on behind it; default 0, everything that is kept.
    #[serde(default)]
    pub from_seq: Option<u64>,
}

/// A message that was understood.
#[derive(Clone, Debug, PartialEq)]
pub enum Asked {
    Init(Init),
    Invoke(Invoke),
    Cancel(Cancel),
    Subscribe(Subscribe),
    Ping,
}

/// A message that was not.
#[derive(Clone, Debug, PartialEq)]
pub struct Unread {
    /// Of the call that it was to begin, where that much can be told.
    pub id: Option<String>,
    /// Whether it was to present a key.
    pub is_init: bool,
    pub error: Error,
}

/// The key is good: calls may be made.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Ready {
    /// Id of the request that opened the connection, in the log.
    pub request_id: String,
    /// Key that was presented.
    pub key_id: String,
    /// Its tenant.
    pub tenant: String,
    /// Longest message that is read, in bytes.
    pub maximum_message_bytes: u32,
    /// Most calls and subscriptions at once.
    pub maximum_open: u32,
}

/// Something that happened during a call.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Told {
    /// Of the call.
    pub id: String,
    /// Of a call it counts its events from 1. Of a subscription it is how far the job's log is told, in bytes.
    pub seq: u64,
    /// stdout, stderr, ready, change, state or heartbeat.
    pub event: &'static str,
    /// Of stdout and stderr `{data, encoding, offset}`, of a change the entry, of state `{state}`, of the others nothing.
    #[schema(value_type = std::collections::BTreeMap<String, Value>)]
    pub data: Data,
}

/// A call succeeded. There is no other message of it behind this one.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// Of the call.
    pub id: String,
    /// What the tool answered; with `deferred` the job; of a subscription `{job, seq, truncatedBefore?}`.
    #[schema(value_type = std::collections::BTreeMap<String, Value>)]
    pub result: Value,
    /// Present and true where the call became a job, which goes on.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub deferred: bool,
    /// Present and true where this is the answer of an earlier call with the same idempotency key.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub replayed: bool,
    /// Id of the call in the log and in the audit; of a subscription that of its beginning.
    pub request_id: String,
}

/// A call failed, and there is no other message of it behind this one; without an `id`, a message was not taken.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// Of the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// What went wrong.
    pub error: Problem,
}

/// What the service says.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum Answer {
    Ready(Ready),
    #[serde(rename = "event")]
    Told(Told),
    #[serde(rename = "result")]
    Outcome(Outcome),
    #[serde(rename = "error")]
    Failure(Failure),
    Pong,
}

impl Answer {
    pub fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// A kind of message: its `type`, the name of its schema, and the schema.
struct Kind {
    name: &'static str,
    component: &'static str,
    schema: fn() -> Value,
}

/// What a client says.
const OF_CLIENT: [Kind; 5] = [
    Kind { name: "init", component: "WebSocketInit", schema: schema::self_contained::<Init> },
    Kind { name: "invoke", component: "WebSocketInvoke", schema: schema::self_contained::<Invoke> },
    Kind { name: "cancel", component: "WebSocketCancel", schema: schema::self_contained::<Cancel> },
    Kind { name: "subscribe", component: "WebSocketSubscribe", schema: schema::self_contained::<Subscribe> },
    Kind { name: "ping", component: "WebSocketPing", schema: nothing },
];

/// What the service says.
const OF_SERVICE: [Kind; 5] = [
    Kind { name: "ready", component: "WebSocketReady", schema: schema::self_contained::<Ready> },
    Kind { name: "event", component: "WebSocketEvent", schema: schema::self_contained::<Told> },
    Kind { name: "result", component: "WebSocketResult", schema: schema::self_contained::<Outcome> },
    Kind { name: "error", component: "WebSocketError", schema: schema::self_contained::<Failure> },
    Kind { name: "pong", component: "WebSocketPong", schema: nothing },
];

fn nothing() -> Value {
    json!({ "type": "object", "properties": {} })
}

impl Kind {
    /// The schema of a message of this kind; of what clients say it has every field.
    fn whole(&self, is_closed: bool) -> Value {
        let mut schema = (self.schema)();
        if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
            properties.insert("type".to_owned(), json!({ "type": "string", "enum": [self.name] }));
        }
        if let Some(fields) = schema.as_object_mut() {
            let required = fields.entry("required").or_insert_with(|| json!([]));
            if let Some(names) = required.as_array_mut() {
                names.insert(0, json!("type"));
            }
            if is_closed {
                fields.insert("additionalProperties".to_owned(), json!(false));
            }
        }
        if is_closed {
            whole::bound(&mut schema);
        }
        schema
    }
}

/// Every kind of message with the name of its schema.
pub fn components() -> Vec<(&'static str, Value)> {
    let of_client = OF_CLIENT.iter().map(|kind| (kind.component, kind.whole(true)));
    let of_service = OF_SERVICE.iter().map(|kind| (kind.component, kind.whole(false)));
    of_client.chain(of_service).collect()
}

thread_local! {
    static VALIDATORS: [OnceCell<Result<jsonschema::Validator>>; OF_CLIENT.len()] = const { [const { OnceCell::new() }; OF_CLIENT.len()] };
}

/// Reads what a client said.
pub fn read(text: &str) -> std::result::Result<Asked, Unread> {
    let nameless = |error| Unread { id: None, is_init: false, error };
    if text.len() > LONGEST_MESSAGE {
        let message = format!("the message has {} bytes; {LONGEST_MESSAGE} are read", text.len());
        let error = Error::new(ErrorCode::PayloadTooLarge, message).detail("limitBytes", LONGEST_MESSAGE);
        return Err(nameless(error));
    }
    let message: Value = serde_json::from_str(text).map_err(|error| {
        let message = format!("the message is not JSON: line {}, column {}", error.line(), error.column());
        nameless(Error::new(ErrorCode::MalformedRequest, message))
    })?;
    let name = message.get("type").and_then(Value::as_str).unwrap_or_default();
    let Some(index) = OF_CLIENT.iter().position(|kind| kind.name == name) else {
        let known: Vec<&str> = OF_CLIENT.iter().map(|kind| kind.name).collect();
        return Err(nameless(Error::invalid("/type", format!("must be one of {}", known.join(", ")))));
    };
    let id = message.get("id").and_then(Value::as_str).filter(|id| (1..=128).contains(&id.len())).map(str::to_owned);
    let id = id.filter(|_| ["invoke", "subscribe"].contains(&name));
    let is_init = name == "init";
    understood(index, message).map_err(|error| Unread { id, is_init, error })
}

fn understood(index: usize, message: Value) -> Result<Asked> {
    VALIDATORS.with(|validators| {
        let (Some(kind), Some(validator)) = (OF_CLIENT.get(index), validators.get(index)) else {
            return Err(Error::internal("a kind of message without a validator"));
        };
        let compiled = validator.get_or_init(|| jsonschema::validator_for(&kind.whole(true)).map_err(Error::internal));
        registry::validate(compiled.as_ref().map_err(Clone::clone)?, &message)
    })?;
    // Arguments stay as they were sent: whole numbers are the tool's affair.
    let name = message.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
    match name.as_str() {
        "init" => typed(message).map(Asked::Init),
        "invoke" => typed(message).map(Asked::Invoke),
        "cancel" => typed(message).map(Asked::Cancel),
        "subscribe" => typed(registry::whole_numbers(message)).map(Asked::Subscribe),
        _ => Ok(Asked::Ping),
    }
}

/// What a message has instead of a header of REST: the header as errors call it, and its field.
const FIELDS_FOR_HEADERS: [(&str, &str); 3] =
    [("Webhook-Url", "/webhookUrl"), ("Idempotency-Key", "/idempotencyKey"), ("X-Tenant", "/tenant")];

/// The same error for who sent a message: one that names a header of REST names the field that stands for it.
pub fn by_field(error: Error) -> Error {
    let named = error.details.get("header").and_then(Value::as_str).unwrap_or_default();
    let Some((header, pointer)) = FIELDS_FOR_HEADERS.iter().find(|(header, _)| header.eq_ignore_ascii_case(named))
    else {
        return error;
    };
    let why = error.message.strip_prefix(&format!("the header {header} ")).unwrap_or(&error.message).to_owned();
    match error.code {
        ErrorCode::InvalidArguments => Error::invalid(pointer, why),
        _ => {
            let mut error = Error { message: format!("{}: {why}", field_name(pointer)), ..error };
            error.details.remove("header");
            error.detail("field", field_name(pointer))
        }
    }
}

fn typed<T: DeserializeOwned>(message: Value) -> Result<T> {
    serde_json::from_value(message).map_err(|error| Error::invalid("", error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tenant::credential::{self, Configured, Presented};
    use crate::tenant::idempotency;
    use crate::tenant::signing::Signer;
    use crate::webhook::address::{self, Reach};

    #[test]
    fn messages_are_read() {
        let invoke = read(r#"{"type":"invoke","id":"1","tool":"exec","params":{"command":"true"},"async":true}"#);
        let Ok(Asked::Invoke(Invoke { id, tool, params, r#async, idempotency_key, webhook_url: None })) = invoke else {
            panic!("{invoke:?}")
        };
        assert_eq!((id.as_str(), tool.as_str(), r#async, idempotency_key), ("1", "exec", Some(true), None));
        assert_eq!(params.unwrap()["command"], "true");
        assert_eq!(read(PING), Ok(Asked::Ping));
        assert_eq!(Answer::Pong.text(), PONG);
        let subscribe = Subscribe { id: None, job_id: "j".to_owned(), from_seq: Some(3) };
        assert_eq!(read(r#"{"type":"subscribe","jobId":"j","fromSeq":3.0}"#), Ok(Asked::Subscribe(subscribe)));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let cases = [
            ("[1", ErrorCode::MalformedRequest, "column"),
            ("[]", ErrorCode::InvalidArguments, "type: must be one of init, invoke"),
            (r#"{"type":"call"}"#, ErrorCode::InvalidArguments, "type: must be one of"),
            (r#"{"type":"invoke","id":"1"}"#, ErrorCode::InvalidArguments, "tool: is required"),
            (r#"{"type":"invoke","id":1,"tool":"exec"}"#, ErrorCode::InvalidArguments, "id: "),
            (r#"{"type":"invoke","id":"1","tool":"exec","params":[]}"#, ErrorCode::InvalidArguments, "params: "),
            (
                r#"{"type":"invoke","id":"1","tool":"exec","param":{}}"#,
                ErrorCode::InvalidArguments,
                "param: there is no",
            ),
            (r#"{"type":"subscribe","jobId":"j","fromSeq":-1}"#, ErrorCode::InvalidArguments, "fromSeq: "),
            (
                r#"{"type":"subscribe","jobId":"j","fromSeq":9007199254740992}"#,
                ErrorCode::InvalidArguments,
                "fromSeq: ",
            ),
            (
                r#"{"type":"subscribe","jobId":"j","fromSeq":18446744073709551616}"#,
                ErrorCode::InvalidArguments,
                "fromSeq: ",
            ),
            (r#"{"type":"init","token":5}"#, ErrorCode::InvalidArguments, "token: "),
            (r#"{"type":"init","token":"t","key":1}"#, ErrorCode::InvalidArguments, "key: there is no"),
            (r#"{"type":"init"}"#, ErrorCode::InvalidArguments, "token: is required"),
            (r#"{"type":"cancel"}"#, ErrorCode::InvalidArguments, "id: is required"),
        ];
        for (text, code, part) in cases {
            let unread = read(text).unwrap_err();
            assert_eq!(unread.error.code, code, "{text}: {unread:?}");
            assert!(unread.error.message.contains(part), "{text}: {unread:?}");
            assert_eq!(unread.is_init, text.contains("init"), "{text}");
        }
    }

    #[test]
    fn what_is_a_header_at_rest_is_named_as_the_field_that_stands_for_it() {
        let of_webhook = address::check_header("ftp://x", Reach::Public).unwrap_err();
        let of_key = idempotency::check("").unwrap_err();
        let presented =
            Presented { authorization: Some("Bearer root-root-root-root".to_owned()), tenant: Some("../x".to_owned()) };
        let signer = Signer::new(None);
        let configured = Configured { root_key: Some("root-root-root-root"), signer: &signer };
        let of_tenant = credential::authenticate(&configured, &presented, 0).unwrap_err();
        for (error, field) in [(of_webhook, "webhookUrl"), (of_key, "idempotencyKey"), (of_tenant, "tenant")] {
            let told = by_field(error);
            assert!(told.message.starts_with(&format!("{field}: ")) && !told.message.contains("header"), "{told:?}");
            let pointer = &told.details["violations"][0]["pointer"];
            assert_eq!((told.code, pointer), (ErrorCode::InvalidArguments, &json!(format!("/{field}"))));
            assert_eq!(told.details.get("header"), None);
        }
        let another =
            Error::new(ErrorCode::Forbidden, "the header X-Tenant names another tenant").detail("header", "x-tenant");
        let told = by_field(another);
        assert_eq!((told.code, told.message.as_str()), (ErrorCode::Forbidden, "tenant: names another tenant"));
        let other = Error::invalid("/command", "is wrong");
        assert_eq!(by_field(other.clone()), other);
    }

    #[test]
    fn an_error_belongs_to_the_call_that_was_to_begin() {
        let id = |text| read(text).unwrap_err().id;
        assert_eq!(id(r#"{"type":"invoke","id":"a"}"#), Some("a".to_owned()));
        assert_eq!(id(r#"{"type":"cancel","id":"a","x":1}"#), None, "the call goes on");
        assert_eq!(id(&format!(r#"{{"type":"invoke","id":"{}"}}"#, "a".repeat(129))), None);
        let long = format!(r#"{{"type":"invoke","id":"a","tool":"{}"}}"#, "x".repeat(LONGEST_MESSAGE));
        assert_eq!(read(&long).unwrap_err().error.code, ErrorCode::PayloadTooLarge);
    }

    #[test]
    fn schemas_are_of_the_subset_that_every_client_takes() {
        for (name, schema) in components() {
            assert_eq!(schema::faults(&schema), Vec::<String>::new(), "{name}: {schema:#}");
        }
    }
}
