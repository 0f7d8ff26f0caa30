//! Raw bytes beside JSON: the same tools, guardrails and records for bodies that are passed on unread.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use futures_util::FutureExt;
use sandbox_api::UPLOAD_ID_HEADER;
use serde_json::{Value, json};

use crate::error::{Error, ErrorCode, Result};
use crate::events::EventSink;
use crate::registry::{CallFacts, Context, Method, Prepared, Route, Tool, bounded};
use crate::services::Body;
use crate::tenant::admission::SandboxClaim;

/// A transfer takes at most this long.
pub const TRANSFER_DEADLINE: Duration = Duration::from_secs(3600);

/// Headers of a request that a tool sees.
pub const HEADERS: [&str; 5] = ["range", "content-range", "if-match", "if-none-match", UPLOAD_ID_HEADER];

/// Longest value of one of them, in bytes.
pub const LONGEST_HEADER: usize = 8 * 1024;

/// Longest path and query of a request, in bytes as they stand in the URL: the way to the sandbox needs some more of the 64 KiB that a
/// URL may have.
const LONGEST_TARGET: usize = 60_000;

/// Most characters of an unknown parameter that a refusal repeats.
const LONGEST_SHOWN: usize = 64;

/// A request on a raw route.
pub struct RawRequest {
    pub method: Method,
    /// Parameters of the path by name, percent-encoded as they stand in the URL.
    pub parameters: BTreeMap<String, String>,
    /// Headers that say what the request means, by lower-case name: see [`HEADERS`].
    pub headers: Vec<(&'static str, String)>,
    /// The query with its question mark, as it stands in the URL; empty without one.
    pub query: String,
    /// Declared length of the body.
    pub length: Option<u64>,
    pub body: Option<Box<dyn Body>>,
}

impl RawRequest {
    /// Its parameters as the arguments of the tool, for rules on arguments.
    pub fn arguments(&self) -> Value {
        let decoded = |text: &String| percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned();
        let fields = self.parameters.iter().map(|(name, text)| (name.clone(), Value::String(decoded(text))));
        Value::Object(fields.collect())
    }

    /// A parameter of the path; empty when the route has none of that name.
    pub fn parameter(&self, name: &str) -> &str {
        self.parameters.get(name).map(String::as_str).unwrap_or_default()
    }
}

/// The answer on a raw route.
pub struct RawResponse {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Box<dyn Body>,
}

/// What raw routes take and answer.
#[derive(Debug)]
pub struct RawContract {
    pub headers: &'static [RawParameter],
    pub query: &'static [RawParameter],
    pub successes: &'static [RawSuccess],
    /// Codes beside those that every call can have.
    pub codes: &'static [ErrorCode],
}

/// A header or a parameter of the query.
#[derive(Debug)]
pub struct RawParameter {
    pub name: &'static str,
    pub description: &'static str,
    /// Whether it may be given several times.
    pub repeated: bool,
}

/// One kind of success.
#[derive(Debug)]
pub struct RawSuccess {
    pub status: u16,
    pub description: &'static str,
    pub body: RawContent,
}

/// What a success holds.
#[derive(Debug)]
pub enum RawContent {
    /// `application/octet-stream`: generators of clients know no other type for bytes.
    Bytes,
    /// JSON of this schema.
    Json(fn() -> Value),
}

/// A tool that serves raw bytes as well.
pub trait RawTool: Tool {
    const RAW_ROUTES: &'static [Route];
    /// What a client is told of them beside their paths.
    const RAW_CONTRACT: RawContract;

    /// Checks the request, and names the sandbox that it is about.
    fn raw_claim(request: &RawRequest) -> Result<SandboxClaim>;

    fn raw(context: Context, request: RawRequest) -> impl Future<Output = Result<RawResponse>>;
}

/// Makes a request on a raw route ready to be admitted.
pub fn prepare<T: RawTool>(request: RawRequest, _facts: &CallFacts<'_>) -> Result<Prepared<RawResponse>> {
    known_query(&request.query, T::RAW_CONTRACT.query)?;
    if request.parameters.values().map(String::len).sum::<usize>() + request.query.len() > LONGEST_TARGET {
        return Err(Error::invalid("/path", format!("is, with the query, longer than {LONGEST_TARGET} bytes")));
    }
    let claim = T::raw_claim(&request)?;
    Ok(Prepared {
        claim,
        recorded: bounded(record(&request)),
        is_preview: false,
        timeout: TRANSFER_DEADLINE,
        deadline: TRANSFER_DEADLINE,
        act: Box::new(move |context, _events: Rc<dyn EventSink>| {
            async move { T::raw(context, request).await }.boxed_local()
        }),
    })
}

/// Refuses parameters of the query that the route does not take, as tools refuse fields that they do not know.
fn known_query(query: &str, known: &[RawParameter]) -> Result<()> {
    let parts = query.trim_start_matches('?').split('&').filter(|part| !part.is_empty());
    let mut seen: Vec<String> = Vec::new();
    for part in parts {
        let encoded = part.split('=').next().unwrap_or_default().replace('+', " ");
        let name = percent_encoding::percent_decode_str(&encoded).decode_utf8_lossy().into_owned();
        match known.iter().find(|parameter| parameter.name == name) {
            None => {
                let shown: String = name.chars().take(LONGEST_SHOWN).collect();
                return Err(Error::invalid(&format!("/{shown}"), "this route has no such parameter"));
            }
            Some(parameter) if !parameter.repeated && seen.contains(&name) => {
                return Err(Error::invalid(&format!("/{name}"), "is given twice"));
            }
            Some(_) => seen.push(name),
        }
    }
    Ok(())
}

fn record(request: &RawRequest) -> Value {
    json!({
        "method": request.method,
        "path": request.parameters,
        "headers": request.headers.iter().map(|(name, value)| (*name, value.as_str())).collect::<BTreeMap<_, _>>(),
        "query": request.query,
        "length": request.length,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_that_a_route_does_not_take_are_named() {
        let parameter = |name, repeated| RawParameter { name, description: "", repeated };
        let known = [parameter("format", false), parameter("exclude", true)];
        let check = |query: &str| known_query(query, &known).map_err(|error| error.message);
        for good in ["", "?", "?format=tar", "?exclude=a&exclude=b&format=x", "?f%6Frmat=tar", "?&format"] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for (bad, name) in
            [("?fromat=tar", "fromat:"), ("?exclude=a&x", "x:"), ("?a+b=1", "a b:"), ("?format=a&format=b", "format:")]
        {
            assert!(check(bad).unwrap_err().starts_with(name), "{bad}");
        }
        assert!(check(&format!("?{}", "x".repeat(5000))).unwrap_err().len() < 200);
    }
}
