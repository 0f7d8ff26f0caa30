//! The one error: what a caller is told, and the one table that turns it into each carrier's form.
//!
//! An [`Error`] has an external side (`code`, `message`, `details`, `retryable`) and an internal one (`source`), which
//! goes to the log only. Callers and code branch on [`ErrorCode`], never on a message. A command that ran and exited
//! non-zero is no error, and truncated output is a flag, not an error.

use sandbox_api::{ControlError, ControlErrorCode};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

/// Machine-readable cause, the same through every door.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    MalformedRequest,
    UnknownTool,
    InvalidArguments,
    Unauthenticated,
    Forbidden,
    ApprovalRejected,
    NotFound,
    MethodNotAllowed,
    Conflict,
    InProgress,
    IdempotencyMismatch,
    StaleGeneration,
    Interrupted,
    LengthRequired,
    UpgradeRequired,
    PreconditionFailed,
    PayloadTooLarge,
    RangeNotSatisfiable,
    RateLimited,
    QuotaExceeded,
    SandboxUnavailable,
    ObjectUnavailable,
    NotConfigured,
    VersionMismatch,
    Timeout,
    OutcomeUnknown,
    NoSpace,
    StepFailed,
    Internal,
}

/// One row of the table: HTTP status, title, and whether trying again unchanged can help.
struct Row {
    status: u16,
    title: &'static str,
    retryable: bool,
}

impl ErrorCode {
    /// Every code, in the order of the documentation.
    pub const ALL: [Self; 29] = [
        Self::MalformedRequest,
        Self::UnknownTool,
        Self::InvalidArguments,
        Self::Unauthenticated,
        Self::Forbidden,
        Self::ApprovalRejected,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::Conflict,
        Self::InProgress,
        Self::IdempotencyMismatch,
        Self::StaleGeneration,
        Self::Interrupted,
        Self::LengthRequired,
        Self::UpgradeRequired,
        Self::PreconditionFailed,
        Self::PayloadTooLarge,
        Self::RangeNotSatisfiable,
        Self::RateLimited,
        Self::QuotaExceeded,
        Self::SandboxUnavailable,
        Self::ObjectUnavailable,
        Self::NotConfigured,
        Self::VersionMismatch,
        Self::Timeout,
        Self::OutcomeUnknown,
        Self::NoSpace,
        Self::StepFailed,
        Self::Internal,
    ];

    fn row(self) -> Row {
        let (status, title, retryable) = match self {
            Self::MalformedRequest => (400, "Malformed request", false),
            Self::UnknownTool => (404, "Unknown tool", false),
            Self::InvalidArguments => (400, "Invalid arguments", false),
            Self::Unauthenticated => (401, "Not authenticated", false),
            Self::Forbidden => (403, "Forbidden", false),
            Self::ApprovalRejected => (403, "Approval rejected", false),
            Self::NotFound => (404, "Not found", false),
            Self::MethodNotAllowed => (405, "Method not allowed", false),
            Self::Conflict => (409, "Conflict", false),
            Self::InProgress => (409, "In progress", true),
            Self::IdempotencyMismatch => (409, "Idempotency key used for another call", false),
            Self::StaleGeneration => (410, "The sandbox was replaced", false),
            Self::Interrupted => (409, "Interrupted", false),
            Self::LengthRequired => (411, "Length required", false),
            Self::UpgradeRequired => (426, "Upgrade required", false),
            Self::PreconditionFailed => (412, "Precondition failed", false),
            Self::PayloadTooLarge => (413, "Payload too large", false),
            Self::RangeNotSatisfiable => (416, "Range not satisfiable", false),
            Self::RateLimited => (429, "Rate limited", true),
            Self::QuotaExceeded => (429, "Quota exceeded", true),
            Self::SandboxUnavailable => (503, "Sandbox unavailable", true),
            Self::ObjectUnavailable => (503, "Object unavailable", false),
            Self::NotConfigured => (503, "Not configured", false),
            Self::VersionMismatch => (503, "Version mismatch", false),
            Self::Timeout => (504, "Timed out", false),
            Self::OutcomeUnknown => (502, "Outcome unknown", false),
            Self::NoSpace => (507, "No space left", false),
            Self::StepFailed => (422, "A step failed", false),
            Self::Internal => (500, "Internal error", false),
        };
        Row { status, title, retryable }
    }

    /// HTTP status of this code.
    pub fn status(self) -> u16 {
        self.row().status
    }

    /// Short text of this code, the same for every occurrence.
    pub fn title(self) -> &'static str {
        self.row().title
    }

    /// The code as it stands in JSON.
    pub fn as_str(self) -> String {
        match serde_json::to_value(self) {
            Ok(Value::String(text)) => text,
            _ => String::from("internal"),
        }
    }
}

/// What went wrong. See the module's documentation.
#[derive(Clone, Debug, PartialEq, thiserror::Error, Serialize, Deserialize)]
#[error("{message}")]
#[serde(rename_all = "camelCase")]
pub struct Error {
    pub code: ErrorCode,
    pub message: String,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub details: Map<String, Value>,
    pub retryable: bool,
    /// Seconds to wait before trying again, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<u32>,
    /// The cause, for the log only. It never leaves the Worker.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "source")]
    pub cause: Option<String>,
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        let retryable = code.row().retryable;
        let retry_after = retryable.then_some(1);
        Self { code, message: message.into(), details: Map::new(), retryable, retry_after, cause: None }
    }

    /// 400: an argument is not what the tool takes; `pointer` is its JSON pointer.
    pub fn invalid(pointer: &str, message: impl Into<String>) -> Self {
        Self::violations(&[(pointer.to_owned(), message.into())])
    }

    /// 400: several are not; the first is named in the text. Pointers are repeated as far as they help: a caller may have made up
    /// names of any length.
    pub fn violations(violations: &[(String, String)]) -> Self {
        let shown = violations.iter().map(|(pointer, message)| (shortened(pointer, LONGEST_POINTER), message));
        let text = shown.clone().next().map(|(pointer, message)| format!("{}: {message}", field_name(&pointer)));
        let listed: Vec<Value> =
            shown.map(|(pointer, message)| json!({ "pointer": pointer, "message": message })).collect();
        Self::new(ErrorCode::InvalidArguments, text.unwrap_or_default()).detail("violations", listed)
    }

    /// 404: there is no sandbox of that id for this caller.
    pub fn no_such_sandbox(sandbox_id: &str) -> Self {
        Self::new(ErrorCode::NotFound, format!("there is no sandbox {sandbox_id:?}")).detail("sandboxId", sandbox_id)
    }

    /// 500 with constant text; the cause goes to the log.
    pub fn internal(cause: impl std::fmt::Display) -> Self {
        Self::new(ErrorCode::Internal, "an internal error occurred; the log names it under this requestId")
            .because(cause)
    }

    /// Adds one field to `details`.
    pub fn detail(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.details.insert(name.to_owned(), value.into());
        self
    }

    /// Adds the fields of `details`, where it has any.
    pub fn with_details(mut self, details: Option<Value>) -> Self {
        if let Some(Value::Object(fields)) = details {
            self.details.extend(fields);
        }
        self
    }

    /// Records the cause for the log.
    pub fn because(mut self, cause: impl std::fmt::Display) -> Self {
        self.cause = Some(cause.to_string());
        self
    }

    /// The problem object (RFC 9457 with `code`, `requestId`, `retryable`, `details`) that every carrier holds.
    pub fn problem(&self, request_id: &str) -> Problem {
        Problem {
            r#type: format!("urn:cloudflare-ops:error:{}", self.code.as_str()),
            title: self.code.title().to_owned(),
            status: self.code.status(),
            detail: shortened(&self.message, LONGEST_MESSAGE),
            code: self.code,
            request_id: request_id.to_owned(),
            retryable: self.retryable,
            retry_after: self.retry_after,
            details: self.details.clone(),
        }
    }
}

/// Longest pointer that a refusal repeats, in bytes.
const LONGEST_POINTER: usize = 256;

/// Longest message that a caller is told, in bytes.
const LONGEST_MESSAGE: usize = 2048;

/// The beginning of a text, which says so when there was more.
fn shortened(text: &str, bytes: usize) -> String {
    match text.get(..text.floor_char_boundary(bytes)) {
        Some(beginning) if beginning.len() < text.len() => format!("{beginning}…"),
        _ => text.to_owned(),
    }
}

/// Name of a field for a message, from its JSON pointer: `/env/A` is `env.A`, the root is `arguments`.
pub fn field_name(pointer: &str) -> String {
    let name = pointer.trim_start_matches('/').replace('/', ".").replace("~1", "/").replace("~0", "~");
    if name.is_empty() { String::from("arguments") } else { name }
}

/// RFC 9457 problem details, as every door answers them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    /// URN of the code.
    pub r#type: String,
    /// Short text, the same for every occurrence of the code.
    pub title: String,
    /// HTTP status.
    pub status: u16,
    /// What went wrong this time; names the field where one is at fault.
    pub detail: String,
    /// Machine-readable cause.
    pub code: ErrorCode,
    /// Id of this call in the log and in the audit.
    pub request_id: String,
    /// Whether the same call can succeed later without being changed.
    pub retryable: bool,
    /// Seconds to wait before that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<u32>,
    /// More fields, by code.
    #[schema(value_type = std::collections::BTreeMap<String, Value>)]
    pub details: Map<String, Value>,
}

/// What the control API of a sandbox says, in the caller's terms.
impl From<ControlError> for Error {
    fn from(control: ControlError) -> Self {
        let code = match control.code {
            ControlErrorCode::InvalidArguments | ControlErrorCode::UploadAborted => ErrorCode::InvalidArguments,
            ControlErrorCode::PathEscapes | ControlErrorCode::PermissionDenied => ErrorCode::Forbidden,
            ControlErrorCode::NotFound => ErrorCode::NotFound,
            ControlErrorCode::WrongFileType | ControlErrorCode::AlreadyExists | ControlErrorCode::UploadConflict => {
                ErrorCode::Conflict
            }
            ControlErrorCode::PreconditionFailed => ErrorCode::PreconditionFailed,
            ControlErrorCode::StaleGeneration => ErrorCode::StaleGeneration,
            ControlErrorCode::LengthRequired => ErrorCode::LengthRequired,
            ControlErrorCode::PayloadTooLarge => ErrorCode::PayloadTooLarge,
            ControlErrorCode::RangeNotSatisfiable => ErrorCode::RangeNotSatisfiable,
            ControlErrorCode::ProcessEnded => ErrorCode::Conflict,
            ControlErrorCode::TooManyExecs | ControlErrorCode::TooManyProcesses => ErrorCode::QuotaExceeded,
            ControlErrorCode::NotRunning | ControlErrorCode::Unavailable => ErrorCode::SandboxUnavailable,
            ControlErrorCode::NoSpace => ErrorCode::NoSpace,
            ControlErrorCode::NoAnswer | ControlErrorCode::Unknown => {
                let message =
                    "the sandbox gave no answer that tells what became of the request; it may have been carried out";
                return Self::new(ErrorCode::OutcomeUnknown, message).because(control.message);
            }
            ControlErrorCode::Unauthenticated | ControlErrorCode::Internal => {
                return Self::internal(format!("the control API answered {:?}: {}", control.code, control.message));
            }
        };
        let reason = serde_json::to_value(control.code).unwrap_or(Value::Null);
        match violation(&control) {
            Some((pointer, message)) => Self::invalid(&pointer, message),
            None => Self::new(code, control.message),
        }
        .detail("reason", reason)
    }
}

/// The field at fault and what is wrong with it: the message about an argument begins with the name of its field.
fn violation(control: &ControlError) -> Option<(String, String)> {
    if control.code != ControlErrorCode::InvalidArguments {
        return None;
    }
    let (field, message) = control.message.split_once(": ")?;
    let is_name = field.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'));
    (is_name && !field.is_empty()).then(|| (format!("/{}", field.replace('.', "/")), message.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_of_a_sandbox_points_at_the_field() {
        let refused = |code, message: &str| Error::from(ControlError { code, message: message.into() });
        let error = refused(ControlErrorCode::InvalidArguments, "stdin.data: it is not base64");
        assert_eq!(error.message, "stdin.data: it is not base64");
        let expected = json!([{ "pointer": "/stdin/data", "message": "it is not base64" }]);
        assert_eq!((&error.details["violations"], &error.details["reason"]), (&expected, &json!("invalid_arguments")));
        for message in ["no field", "no field: at all", ": x"] {
            assert!(
                !refused(ControlErrorCode::InvalidArguments, message).details.contains_key("violations"),
                "{message}"
            );
        }
        assert!(!refused(ControlErrorCode::NotFound, "path: is not there").details.contains_key("violations"));
    }

    #[test]
    fn what_a_caller_made_up_is_repeated_in_part_at_most() {
        let long = "é".repeat(100_000);
        let problem = Error::invalid(&format!("/{long}"), "there is no such field").problem("r1");
        assert!(serde_json::to_string(&problem).unwrap().len() < 1500);
        assert!(problem.detail.ends_with("…: there is no such field"), "{}", problem.detail);
        let problem = Error::new(ErrorCode::NotFound, long).problem("r1");
        assert!(problem.detail.len() < 2100 && problem.detail.ends_with('…'));
    }

    #[test]
    fn every_code_has_a_status_and_a_name_of_its_own() {
        let names: std::collections::BTreeSet<_> = ErrorCode::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(names.len(), ErrorCode::ALL.len());
        assert!(ErrorCode::ALL.iter().all(|code| (400..600).contains(&code.status())));
    }

    #[test]
    fn a_problem_never_holds_the_cause() {
        let error = Error::internal("token abc at /secret");
        let text = serde_json::to_string(&error.problem("r1")).unwrap();
        assert!(!text.contains("secret"), "{text}");
        assert!(text.contains("\"code\":\"internal\""));
    }

    #[test]
    fn an_invalid_argument_names_its_field() {
        let error = Error::invalid("/env/A~1B", "must be a string");
        assert_eq!(error.message, "env.A/B: must be a string");
        assert_eq!(error.details["violations"][0]["pointer"], "/env/A~1B");
    }
}
