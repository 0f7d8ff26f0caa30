//! The one structured line of a call, and what of it is measured.
//!
//! A line names who called what, how it ended and how long that took. It holds no arguments, no output and no secret; what a stranger
//! sent is echoed as far as the name of a tool, cut. Its fields are documented in `docs/observability.md`, which a test holds against
//! this file. `admissionMs` and `actMs` are parts of `durationMs`, `startMs` is a part of `actMs`.

use serde::Serialize;

use crate::error::{Error, ErrorCode};
use crate::identifier::SandboxId;
use crate::trace::Trace;

/// Longest name of a tool that is repeated when there is no such tool.
pub const LONGEST_TOOL: usize = 64;

/// Longest cause that a line holds, in bytes.
const LONGEST_SOURCE: usize = 2048;

/// How much a line matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Level {
    Info,
    /// The service, not the caller, is in the way, or an outcome is not known.
    Warn,
    /// A fault of this product.
    Error,
}

impl Level {
    pub fn of(error: Option<&Error>) -> Self {
        match error.map(|error| error.code) {
            Some(ErrorCode::Internal) => Self::Error,
            Some(
                ErrorCode::OutcomeUnknown
                | ErrorCode::Interrupted
                | ErrorCode::SandboxUnavailable
                | ErrorCode::ObjectUnavailable
                | ErrorCode::NotConfigured
                | ErrorCode::VersionMismatch
                | ErrorCode::Timeout
                | ErrorCode::NoSpace,
            ) => Self::Warn,
            _ => Self::Info,
        }
    }
}

/// What the way to the sandboxes noticed during a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Generation that answered.
    pub generation: Option<u32>,
    /// How long the start took that the call waited for.
    pub start_ms: Option<i64>,
}

/// One call, or one request that was refused before it became a call.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CallLine {
    pub level: Level,
    /// `call`; `refused` for a request that did not become one.
    pub message: &'static str,
    /// When it was asked, RFC 3339.
    pub at: String,
    pub request_id: String,
    pub trace_id: String,
    pub span_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_span_id: Option<String>,
    pub door: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<SandboxId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<u32>,
    /// `succeeded`, or the code of the error.
    pub outcome: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    pub duration_ms: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admission_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub act_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_ms: Option<i64>,
    /// Bytes of the answer: of the JSON, or as declared of a raw body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_out: Option<u64>,
    /// The cause of an error, which no caller is told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

impl CallLine {
    /// A line that says only which request it is; the rest is added as it becomes known.
    pub fn new(message: &'static str, at: i64, request_id: &str, door: &'static str, trace: &Trace) -> Self {
        Self {
            level: Level::Info,
            message,
            at: crate::platform::rfc3339(at),
            request_id: request_id.to_owned(),
            trace_id: trace.trace_id.clone(),
            span_id: trace.span_id.clone(),
            parent_span_id: trace.parent_span_id.clone(),
            door,
            tenant: None,
            key_id: None,
            tool: None,
            sandbox_id: None,
            generation: None,
            outcome: String::new(),
            exit_code: None,
            duration_ms: 0,
            admission_ms: None,
            act_ms: None,
            start_ms: None,
            bytes_out: None,
            source: None,
        }
    }

    /// Says how it ended.
    pub fn ended(self, error: Option<&Error>, duration_ms: i64) -> Self {
        let outcome = error.map_or_else(|| "succeeded".to_owned(), |error| error.code.as_str());
        let source = error.and_then(|error| error.cause.as_deref()).map(|cause| cut(cause, LONGEST_SOURCE));
        Self { level: Level::of(error), outcome, duration_ms, source, ..self }
    }
}

/// The beginning of a text, cut between two characters.
pub fn cut(text: &str, bytes: usize) -> String {
    text.get(..text.floor_char_boundary(bytes)).unwrap_or_default().to_owned()
}

/// A data point of Workers Analytics Engine.
#[derive(Clone, Debug, PartialEq)]
pub struct DataPoint {
    pub index: String,
    pub blobs: Vec<String>,
    pub doubles: Vec<f64>,
}

/// Names of [`DataPoint::blobs`], in their order.
pub const BLOBS: [&str; 8] = ["message", "tool", "outcome", "door", "keyId", "sandboxId", "requestId", "traceId"];

/// Names of [`DataPoint::doubles`], in their order; what is not known is -1.
pub const DOUBLES: [&str; 7] = ["durationMs", "admissionMs", "actMs", "startMs", "bytesOut", "exitCode", "generation"];

/// Largest index that the Analytics Engine takes, in bytes.
const LONGEST_INDEX: usize = 96;

impl From<&CallLine> for DataPoint {
    fn from(line: &CallLine) -> Self {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        // Whole numbers far below 2^53.
        #[allow(clippy::cast_precision_loss)]
        let number = |number: Option<i64>| number.unwrap_or(-1) as f64;
        Self {
            index: cut(line.tenant.as_deref().unwrap_or_default(), LONGEST_INDEX),
            blobs: vec![
                line.message.to_owned(),
                text(&line.tool),
                line.outcome.clone(),
                line.door.to_owned(),
                text(&line.key_id),
                line.sandbox_id.as_ref().map(ToString::to_string).unwrap_or_default(),
                line.request_id.clone(),
                line.trace_id.clone(),
            ],
            doubles: vec![
                number(Some(line.duration_ms)),
                number(line.admission_ms),
                number(line.act_ms),
                number(line.start_ms),
                number(line.bytes_out.and_then(|bytes| i64::try_from(bytes).ok())),
                number(line.exit_code.map(i64::from)),
                number(line.generation.map(i64::from)),
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole() -> CallLine {
        let trace =
            Trace::of_request(Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"), None, || [1; 16]);
        let line = CallLine::new("call", 0, "r1", "rest", &trace);
        let line = CallLine {
            tenant: Some("default".into()),
            key_id: Some("root".into()),
            tool: Some("exec".into()),
            sandbox_id: SandboxId::parse("box").ok(),
            generation: Some(2),
            exit_code: Some(3),
            admission_ms: Some(4),
            act_ms: Some(5),
            start_ms: Some(6),
            bytes_out: Some(7),
            ..line
        };
        line.ended(Some(&Error::internal("cause")), 9)
    }

    /// Cells of the first column of a table of `docs/observability.md`, without their backticks.
    fn documented(header: &str) -> Vec<String> {
        let document = include_str!("../docs/observability.md");
        let table = document.lines().skip_while(|line| line.trim() != header).skip(2);
        let cells = table.take_while(|line| line.starts_with('|')).filter_map(|line| line.split('`').nth(1));
        cells.map(str::to_owned).collect()
    }

    #[test]
    fn every_field_of_a_line_is_documented() {
        let line = serde_json::to_string(&whole()).unwrap();
        let fields = documented("| Field | What |");
        let mut places = Vec::new();
        for field in &fields {
            places.push(line.find(&format!("\"{field}\":")).unwrap_or_else(|| panic!("{field} is in no line: {line}")));
        }
        assert!(places.is_sorted(), "docs/observability.md has another order than the line: {line}");
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(line.as_object().unwrap().len(), fields.len(), "docs/observability.md lacks a field of {line}");
    }

    #[test]
    fn every_place_of_a_data_point_is_documented_and_filled() {
        let point = DataPoint::from(&whole());
        let line = serde_json::to_value(whole()).unwrap();
        let named = |prefix: &str, names: &[&str]| -> Vec<String> {
            names.iter().enumerate().map(|(index, name)| format!("{prefix}{}: {name}", index + 1)).collect()
        };
        let expected: Vec<String> = std::iter::once("index1: tenant".to_owned())
            .chain(named("blob", &BLOBS))
            .chain(named("double", &DOUBLES))
            .collect();
        assert_eq!(documented("| Place | What |"), expected);
        for (value, name) in point.blobs.iter().zip(BLOBS) {
            assert_eq!(line[name], value.as_str(), "{name}");
        }
        for (value, name) in point.doubles.iter().zip(DOUBLES) {
            assert_eq!(line[name].as_f64(), Some(*value), "{name}");
        }
        assert_eq!((point.blobs.len(), point.doubles.len()), (BLOBS.len(), DOUBLES.len()));
        assert!(BLOBS.len() <= 20 && DOUBLES.len() <= 20, "the Analytics Engine takes 20 of each");
    }

    #[test]
    fn the_level_says_who_has_to_look() {
        let level = |code| Level::of(Some(&Error::new(code, "")));
        assert_eq!(Level::of(None), Level::Info);
        assert_eq!(level(ErrorCode::InvalidArguments), Level::Info, "the caller's own fault");
        assert_eq!(level(ErrorCode::OutcomeUnknown), Level::Warn);
        assert_eq!(level(ErrorCode::Internal), Level::Error);
    }

    #[test]
    fn a_long_cause_is_cut() {
        let trace = Trace::of_request(None, None, || [1; 16]);
        let line = CallLine::new("call", 0, "r", "rest", &trace).ended(Some(&Error::internal("é".repeat(5000))), 0);
        assert_eq!(line.source.unwrap().len(), LONGEST_SOURCE);
    }
}
