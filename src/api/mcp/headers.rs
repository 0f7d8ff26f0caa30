//! Which era a request is of, and whether its headers say what its body says.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use super::envelope::{Asked, Fault, HEADER_MISMATCH, INVALID_PARAMS};
use super::{LEGACY, MODERN};

/// Headers that concern the protocol, as sent.
#[derive(Clone, Debug, Default)]
pub struct Sent {
    /// `MCP-Protocol-Version`.
    pub version: Option<String>,
    /// `Mcp-Method`.
    pub method: Option<String>,
    /// `Mcp-Name`.
    pub name: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Era {
    Legacy,
    Modern,
}

/// What headers begin with that are named by a tool's parameters, and how many of them a page may send.
const PARAMETER: &str = "mcp-param-";
const MOST_PARAMETERS: usize = 20;

const VERSION_FIELD: &str = "io.modelcontextprotocol/protocolVersion";
const CAPABILITIES_FIELD: &str = "io.modelcontextprotocol/clientCapabilities";

/// Decides the era and holds a modern request against its headers.
pub fn era(sent: &Sent, asked: &Asked) -> Result<Era, Fault> {
    if asked.method == "initialize" {
        return Ok(Era::Legacy);
    }
    let meta = asked.params.get("_meta").and_then(Value::as_object);
    let told = meta.and_then(|meta| meta.get(VERSION_FIELD));
    let header = sent.version.as_deref();
    if told.is_none() && header != Some(MODERN) && sent.method.is_none() {
        return match header {
            None => Ok(Era::Legacy),
            Some(version) if LEGACY.contains(&version) => Ok(Era::Legacy),
            Some(version) => Err(Fault::unsupported(version, &[&[MODERN], LEGACY.as_slice()].concat())),
        };
    }
    let told = told.and_then(Value::as_str);
    equal("MCP-Protocol-Version", header, &format!("_meta of {VERSION_FIELD}"), told)?;
    if let Some(version) = told.filter(|version| *version != MODERN) {
        return Err(Fault::unsupported(version, &[MODERN]));
    }
    equal("Mcp-Method", sent.method.as_deref(), "method", Some(&asked.method))?;
    let named = match asked.method.as_str() {
        "tools/call" | "prompts/get" => Some("name"),
        "resources/read" => Some("uri"),
        _ => None,
    };
    if let Some(field) = named {
        let name = sent.name.as_deref().map(decoded).transpose()?;
        equal("Mcp-Name", name.as_deref(), &format!("params.{field}"), text(&asked.params, field))?;
    }
    if !meta.is_some_and(|meta| meta.get(CAPABILITIES_FIELD).is_some_and(Value::is_object)) {
        return Err(Fault::new(400, INVALID_PARAMS, format!("_meta lacks {CAPABILITIES_FIELD}, an object")));
    }
    Ok(Era::Modern)
}

/// Of the headers that a page wants to send, those that are named by a tool's parameters.
pub fn parameters(wanted: &str) -> impl Iterator<Item = &str> {
    let is_one = |name: &&str| {
        let start = name.get(..PARAMETER.len()).is_some_and(|start| start.eq_ignore_ascii_case(PARAMETER));
        start && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    };
    wanted.split(',').map(str::trim).filter(is_one).take(MOST_PARAMETERS)
}

fn text<'a>(params: &'a Map<String, Value>, field: &str) -> Option<&'a str> {
    params.get(field).and_then(Value::as_str)
}

fn equal(header: &str, sent: Option<&str>, field: &str, told: Option<&str>) -> Result<(), Fault> {
    let mismatch = |message| Err(Fault::new(400, HEADER_MISMATCH, message));
    match (sent, told) {
        (Some(sent), Some(told)) if sent == told => Ok(()),
        (None, _) => mismatch(format!("the header {header} is missing")),
        (_, None) => mismatch(format!("the header {header} is sent, and the body has no {field}")),
        _ => mismatch(format!("the header {header} is not what the body has as {field}")),
    }
}

/// A value that a header cannot hold arrives as `=?base64?…?=`.
fn decoded(value: &str) -> Result<String, Fault> {
    let inner = value.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?="));
    let Some(inner) = inner else {
        return Ok(value.to_owned());
    };
    let bytes = STANDARD.decode(inner).ok();
    bytes
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .ok_or_else(|| Fault::new(400, HEADER_MISMATCH, "the header Mcp-Name is not base64 of UTF-8"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::envelope::UNSUPPORTED_VERSION;
    use super::*;

    fn asked(method: &str, params: Value) -> Asked {
        let Value::Object(params) = params else { panic!("params are an object") };
        Asked { id: json!(1), method: method.to_owned(), params }
    }

    fn sent(version: &str, method: &str, name: Option<&str>) -> Sent {
        let text = |value: &str| (!value.is_empty()).then(|| value.to_owned());
        Sent { version: text(version), method: text(method), name: name.map(str::to_owned) }
    }

    fn modern(name: &str) -> Asked {
        let meta = json!({ VERSION_FIELD: MODERN, CAPABILITIES_FIELD: {} });
        asked("tools/call", json!({ "name": name, "_meta": meta }))
    }

    #[test]
    fn headers_that_say_what_the_body_says_are_modern() {
        assert_eq!(era(&sent(MODERN, "tools/call", Some("exec")), &modern("exec")), Ok(Era::Modern));
        assert_eq!(era(&sent(MODERN, "tools/call", Some("=?base64?w6Q=?=")), &modern("ä")), Ok(Era::Modern));
    }

    #[test]
    fn a_header_that_is_missing_or_other_than_the_body_is_a_mismatch() {
        for headers in [
            sent("", "tools/call", Some("exec")),
            sent("2025-11-25", "tools/call", Some("exec")),
            sent(MODERN, "", Some("exec")),
            sent(MODERN, "tools/list", Some("exec")),
            sent(MODERN, "tools/call", None),
            sent(MODERN, "tools/call", Some("readFile")),
            sent(MODERN, "tools/call", Some("=?base64?!?=")),
        ] {
            assert_eq!(era(&headers, &modern("exec")).unwrap_err().code, HEADER_MISMATCH, "{headers:?}");
        }
        let bare = asked("tools/list", json!({}));
        assert_eq!(era(&sent(MODERN, "tools/list", None), &bare).unwrap_err().code, HEADER_MISMATCH);
    }

    #[test]
    fn versions_that_neither_era_has_are_refused_and_none_is_the_first_one() {
        let list = asked("tools/list", json!({}));
        for version in ["1900-01-01", "not-a-version", "2025-06-18, 2025-03-26"] {
            let fault = era(&sent(version, "", None), &list).unwrap_err();
            assert_eq!((fault.status, fault.code), (400, UNSUPPORTED_VERSION), "{version}");
            assert!(fault.data.unwrap()["supported"].as_array().unwrap().contains(&json!(MODERN)));
        }
        let empty = Sent { version: Some(String::new()), ..Sent::default() };
        assert_eq!(era(&empty, &list).unwrap_err().code, UNSUPPORTED_VERSION);
        assert_eq!(era(&Sent::default(), &list), Ok(Era::Legacy));
        let meta = json!({ VERSION_FIELD: "2027-01-01", CAPABILITIES_FIELD: {} });
        let later = asked("tools/list", json!({ "_meta": meta }));
        let fault = era(&sent("2027-01-01", "tools/list", None), &later).unwrap_err();
        assert_eq!(fault.code, UNSUPPORTED_VERSION);
        // The earlier revisions are not spoken in this form.
        assert_eq!(fault.data.unwrap()["supported"], json!([MODERN]));
    }

    #[test]
    fn a_page_may_send_headers_that_are_named_by_parameters_and_no_other_by_this_way() {
        let wanted = "authorization, MCP-Param-City,mcp-param-a_b, mcp-parameter, x-mcp-param-c, mcp-param-d\r\nx: y";
        assert_eq!(parameters(wanted).collect::<Vec<_>>(), ["MCP-Param-City", "mcp-param-a_b"]);
        let many = "mcp-param-x,".repeat(100);
        assert_eq!(parameters(&many).count(), MOST_PARAMETERS);
    }

    #[test]
    fn a_modern_client_tells_its_capabilities() {
        let bare = asked("tools/list", json!({ "_meta": { VERSION_FIELD: MODERN } }));
        assert_eq!(era(&sent(MODERN, "tools/list", None), &bare).unwrap_err().code, INVALID_PARAMS);
    }
}
