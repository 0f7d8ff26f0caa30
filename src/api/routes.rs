//! The route table: which path and method is which door's. Built from the registry, and the source of OpenAPI's paths.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Number, Value};

use super::pages::{self, Page};
use crate::error::{Error, ErrorCode, Result};
use crate::registry::{Entry, Method, Registry, Route};

/// What a path and a method lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// `GET /`: what this is.
    Index,
    /// `GET /health`.
    Health,
    /// A file that is served as it is.
    Page(&'static Page),
    /// `GET /v1/tools`.
    ListTools,
    /// `POST /mcp`.
    Mcp,
    /// `GET /ws`.
    WebSocket,
    /// `POST /v1/tools/{tool}`.
    CallTool,
    /// A resource route of the tool of that name.
    Resource(&'static str),
    /// A raw route of the tool of that name.
    Raw(&'static str),
}

const FIXED: &[(Method, &str, Target)] = &[
    (Method::Get, "/", Target::Index),
    (Method::Get, "/health", Target::Health),
    (Method::Get, "/v1/tools", Target::ListTools),
    (Method::Post, "/mcp", Target::Mcp),
    (Method::Get, "/ws", Target::WebSocket),
    (Method::Post, "/v1/tools/{tool}", Target::CallTool),
];

/// Paths with the methods they take.
pub struct Routes {
    paths: matchit::Router<Vec<(Method, Target)>>,
}

/// What a request is about.
#[derive(Debug, PartialEq, Eq)]
pub struct Matched {
    pub target: Target,
    /// Parameters of the path, percent-encoded as they stand in the URL.
    pub parameters: BTreeMap<String, String>,
}

impl Routes {
    pub fn new(registry: &Registry) -> Result<Self> {
        let mut by_path: BTreeMap<&str, Vec<(Method, Target)>> = BTreeMap::new();
        for (method, path, target) in FIXED {
            by_path.entry(path).or_default().push((*method, *target));
        }
        for page in pages::ALL {
            by_path.entry(page.path).or_default().push((Method::Get, Target::Page(page)));
        }
        for tool in registry.list().map(Entry::description) {
            let mut add = |route: &Route, target| by_path.entry(route.path).or_default().push((route.method, target));
            tool.routes.iter().for_each(|route| add(route, Target::Resource(tool.name)));
            tool.raw_routes.iter().for_each(|route| add(route, Target::Raw(tool.name)));
        }
        let mut paths = matchit::Router::new();
        for (path, methods) in by_path {
            paths.insert(path, methods).map_err(Error::internal)?;
        }
        Ok(Self { paths })
    }

    /// Finds what `path` with `method` leads to. `HEAD` is answered wherever `GET` is.
    pub fn find(&self, method: &str, path: &str) -> Result<Matched> {
        let found = self
            .paths
            .at(path)
            .map_err(|_| Error::new(ErrorCode::NotFound, format!("there is no route {}", shortened(path))))?;
        let of_method = |wanted: &str| found.value.iter().find(|(method, _)| method.as_str() == wanted);
        let target = of_method(method).or_else(|| (method == "HEAD").then(|| of_method("GET")).flatten());
        let Some((_, target)) = target else {
            let mut allowed: Vec<&str> = found.value.iter().map(|(method, _)| method.as_str()).collect();
            if allowed.contains(&"GET") && !allowed.contains(&"HEAD") {
                allowed.push("HEAD");
            }
            allowed.push("OPTIONS");
            let allowed = allowed.join(", ");
            return Err(Error::new(ErrorCode::MethodNotAllowed, format!("{} takes {allowed}", shortened(path)))
                .detail("allow", allowed));
        };
        let parameters = found.params.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Ok(Matched { target: *target, parameters })
    }
}

fn shortened(path: &str) -> String {
    path.chars().take(120).collect()
}

/// Arguments of a resource route: the body, then the query, then the path, which wins. A value of the query or the path is
/// text; where the schema says number, integer or boolean it is read as that, and left to the validator when it is not one.
pub fn arguments(
    schema: &Value,
    body: Option<Value>,
    query: impl Iterator<Item = (String, String)>,
    path: &BTreeMap<String, String>,
) -> Result<Value> {
    let mut arguments = match body {
        None => Map::new(),
        Some(Value::Object(fields)) => fields,
        Some(_) => return Err(Error::invalid("", "must be a JSON object")),
    };
    for (name, text) in query {
        let value = typed(schema, &name, text);
        if arguments.insert(name.clone(), value).is_some() {
            return Err(Error::invalid(&format!("/{name}"), "is given twice"));
        }
    }
    for (name, encoded) in path {
        let text = percent_decode(encoded)
            .ok_or_else(|| Error::invalid(&format!("/{name}"), "is not percent-encoded UTF-8"))?;
        if arguments.insert(name.clone(), Value::String(text)).is_some() {
            return Err(Error::invalid(&format!("/{name}"), "is given by the path and may not be given again"));
        }
    }
    Ok(Value::Object(arguments))
}

/// Whether a header `Accept` asks for event streams; a weight of zero means that they are not wanted.
pub fn accepts_events(accept: &str) -> bool {
    accept.split(',').any(|kind| {
        let mut parts = kind.split(';').map(str::trim);
        let named = parts.next().is_some_and(|kind| kind.eq_ignore_ascii_case("text/event-stream"));
        let weight = parts.find_map(|part| part.strip_prefix("q=")?.trim().parse::<f64>().ok());
        named && weight.is_none_or(|weight| weight > 0.0)
    })
}

/// How long a header `Prefer` lets the caller wait, where it takes an answer before the work is done: `respond-async` not at
/// all, and `respond-async, wait=10` for 10 seconds.
pub fn patience(prefer: &str) -> Option<Duration> {
    let mut is_async = false;
    let mut wait = Duration::ZERO;
    for preference in prefer.split(',') {
        let mut parts = preference.split(';').next().unwrap_or_default().splitn(2, '=').map(str::trim);
        let name = parts.next().unwrap_or_default();
        is_async |= name.eq_ignore_ascii_case("respond-async");
        if let (true, Some(seconds)) = (name.eq_ignore_ascii_case("wait"), parts.next()) {
            wait = seconds.trim_matches('"').parse().map(Duration::from_secs).unwrap_or_default();
        }
    }
    is_async.then_some(wait)
}

fn typed(schema: &Value, name: &str, text: String) -> Value {
    let kind = schema.pointer("/properties").and_then(|fields| fields.get(name)).and_then(|field| field.get("type"));
    let read = match kind.and_then(Value::as_str) {
        Some("integer" | "number") => text.parse::<Number>().ok().map(Value::Number),
        Some("boolean") => text.parse::<bool>().ok().map(Value::Bool),
        _ => None,
    };
    read.unwrap_or(Value::String(text))
}

/// The text behind percent-encoding; `None` when that is no UTF-8.
pub fn percent_decode(encoded: &str) -> Option<String> {
    percent_encoding::percent_decode_str(encoded).decode_utf8().ok().map(std::borrow::Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn routes() -> Routes {
        Routes::new(&crate::tools::registry()).unwrap()
    }

    #[test]
    fn paths_lead_to_their_tools() {
        let found = routes().find("GET", "/v1/sandboxes/my-box/files//etc/passwd").unwrap();
        assert_eq!(found.target, Target::Raw("readFile"));
        assert_eq!(found.parameters["path"], "/etc/passwd");
        assert_eq!(routes().find("POST", "/sandbox").unwrap().target, Target::Resource("createSandbox"));
        assert_eq!(routes().find("HEAD", "/health").unwrap().target, Target::Health);
    }

    #[test]
    fn a_wrong_method_is_told_the_right_ones() {
        let error = routes().find("PUT", "/v1/sandboxes/a").unwrap_err();
        assert_eq!(error.code, ErrorCode::MethodNotAllowed);
        let allow = error.details["allow"].as_str().unwrap();
        assert!(allow.contains("GET") && allow.contains("DELETE") && allow.contains("HEAD"), "{allow}");
        assert_eq!(routes().find("GET", "/nothing").unwrap_err().code, ErrorCode::NotFound);
    }

    #[test]
    fn event_streams_are_sent_only_where_they_are_wanted() {
        for wanted in ["text/event-stream", "application/json, Text/Event-Stream", "text/event-stream;q=0.5"] {
            assert!(accepts_events(wanted), "{wanted}");
        }
        for other in
            ["", "*/*", "application/json", "application/json, text/event-stream;q=0", "text/event-stream ; q=0.0"]
        {
            assert!(!accepts_events(other), "{other}");
        }
    }

    #[test]
    fn a_preference_is_read_whatever_stands_beside_it() {
        let asked = ["respond-async", "Respond-Async", "return=minimal, respond-async; x=10", "respond-async=1"];
        for asked in asked {
            assert_eq!(patience(asked), Some(Duration::ZERO), "{asked}");
        }
        for other in ["", "return=respond-async", "respond-asynchronously", "wait=10"] {
            assert_eq!(patience(other), None, "{other}");
        }
        for asked in ["respond-async, wait=10", "wait=10,respond-async", "WAIT = \"10\", respond-async"] {
            assert_eq!(patience(asked), Some(Duration::from_secs(10)), "{asked}");
        }
        assert_eq!(patience("respond-async, wait=soon"), Some(Duration::ZERO));
    }

    #[test]
    fn arguments_come_from_body_query_and_path() {
        let schema = json!({ "properties": { "limit": { "type": "integer" }, "force": { "type": "boolean" } } });
        let query = [("limit".to_owned(), "5".to_owned()), ("force".to_owned(), "maybe".to_owned())];
        let path = BTreeMap::from([("sandboxId".to_owned(), "a%2Fb".to_owned())]);
        let all = arguments(&schema, Some(json!({ "a": 1 })), query.into_iter(), &path).unwrap();
        assert_eq!(all, json!({ "a": 1, "limit": 5, "force": "maybe", "sandboxId": "a/b" }));
        let twice = arguments(&schema, Some(json!({ "sandboxId": "x" })), std::iter::empty(), &path).unwrap_err();
        assert!(twice.message.starts_with("sandboxId:"));
        let bad = BTreeMap::from([("sandboxId".to_owned(), "%ff".to_owned())]);
        assert!(arguments(&schema, None, std::iter::empty(), &bad).is_err());
    }
}
