//! Why a command did not do what it was asked for: what is told, and the exit code.
//!
//! ```text
//! error: Invalid arguments (invalid_arguments, 400)
//!   --timeout: 99999 is greater than the maximum of 3600
//!   request 410462ec-…
//!   next: Mend the fields above; `--help` has them all.
//! ```

use crate::advice;
use crate::terminal::printable;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::Path;

/// Exit codes, beside 0 and what a command in a sandbox ended with.
pub(crate) mod exit_code {
    /// The command line, or arguments that the service does not take.
    pub(crate) const USAGE: u8 = 2;
    /// The same call may succeed later.
    pub(crate) const TRY_LATER: u8 = 75;
    /// Nothing is done yet: the call became a job.
    pub(crate) const BECAME_A_JOB: u8 = 76;
    /// The call may have acted, and how it ended was not seen.
    pub(crate) const OUTCOME_UNKNOWN: u8 = 120;
    /// No key, or one that may not.
    pub(crate) const REFUSED: u8 = 121;
    /// There is no such thing.
    pub(crate) const NOT_FOUND: u8 = 122;
    /// Nothing answered, or something else than the service.
    pub(crate) const UNREACHABLE: u8 = 123;
    /// It took longer than it may.
    pub(crate) const TIMED_OUT: u8 = 124;
    /// Anything else.
    pub(crate) const FAILED: u8 = 125;
    /// Who read the output has left; what a shell tells of SIGPIPE.
    pub(crate) const READER_GONE: u8 = 141;
}

/// Why a command failed.
pub(crate) enum Failure {
    /// What clap says of the command line, its help and version included.
    CommandLine(clap::Error),
    /// Another fault of the command line.
    Usage(String),
    /// Something on this machine.
    Here { what: String, next: String },
    /// There is no key to call with.
    NotLoggedIn { profile: String },
    /// Nothing was asked: there was no connection, or not to this service.
    Unreachable { what: String, next: String },
    /// Something was asked, and the answer was lost.
    OutcomeUnknown(String),
    /// What the service answered.
    Problem(Problem),
    /// Nobody reads the output any more.
    ReaderGone,
}

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// An RFC 9457 problem as the service sent it; a newer one may have codes that are not known here.
pub(crate) struct Problem(pub(crate) Value);

impl Problem {
    fn text(&self, field: &str) -> &str {
        self.0[field].as_str().unwrap_or_default()
    }

    pub(crate) fn code(&self) -> &str {
        self.text("code")
    }

    pub(crate) fn status(&self) -> u64 {
        self.0["status"].as_u64().unwrap_or_default()
    }

    fn exit_code(&self) -> u8 {
        match (self.code(), self.status()) {
            ("outcome_unknown", _) => exit_code::OUTCOME_UNKNOWN,
            (_, 401 | 403) => exit_code::REFUSED,
            (_, 404 | 410) => exit_code::NOT_FOUND,
            (_, 400 | 405 | 411 | 413 | 416) => exit_code::USAGE,
            (_, 504) => exit_code::TIMED_OUT,
            _ if self.0["retryable"] == true => exit_code::TRY_LATER,
            _ => exit_code::FAILED,
        }
    }

    fn block(&self) -> Block {
        let title = match self.text("title") {
            "" => "The service refused",
            title => title,
        };
        let details = &self.0["details"];
        let violations = details["violations"].as_array().map(Vec::as_slice).unwrap_or_default();
        let told = |violation: &Value, field: &str| violation[field].as_str().unwrap_or_default().to_owned();
        let violation = |one: &Value| format!("{}: {}", flag_of(&told(one, "pointer")), told(one, "message"));
        let mut lines: Vec<String> = violations.iter().map(violation).collect();
        if lines.is_empty() {
            lines.push(self.text("detail").to_owned());
        }
        if let Some(sandboxes) = details["availableSandboxes"].as_array().filter(|list| !list.is_empty()) {
            let names: Vec<&str> = sandboxes.iter().filter_map(Value::as_str).collect();
            lines.push(format!("sandboxes: {}", names.join(", ")));
        }
        for field in ["reason", "jobId", "execId", "limitName", "limit", "firstRequestId"] {
            match &details[field] {
                Value::Null => {}
                // A call's id is also that of its command and of its job.
                same if *same == self.0["requestId"] => {}
                Value::String(text) => lines.push(format!("{field}: {text}")),
                other => lines.push(format!("{field}: {other}")),
            }
        }
        if let Some(seconds) = self.0["retryAfter"].as_u64() {
            lines.push(format!("retryAfter: {seconds} s"));
        }
        if !self.text("requestId").is_empty() {
            lines.push(format!("request {}", self.text("requestId")));
        }
        let next = advice::next_step(self.code()).map(str::to_owned);
        Block { title: format!("{title} ({}, {})", self.code(), self.status()), lines, next }
    }
}

/// A flag as it stands on the command line, from the JSON pointer of an argument.
fn flag_of(pointer: &str) -> String {
    let names = pointer.split('/').skip(1).map(|name| crate::arguments::kebab(&name.replace("~1", "/")));
    let names: Vec<String> = names.collect();
    if names.is_empty() { "arguments".to_owned() } else { format!("--{}", names.join(".")) }
}

/// What a person is told.
struct Block {
    title: String,
    lines: Vec<String>,
    next: Option<String>,
}

impl Failure {
    /// A file or folder that cannot be used.
    pub(crate) fn file(verb: &str, path: &Path, error: impl std::fmt::Display) -> Self {
        Self::Here {
            what: format!("cannot {verb} {}: {error}", path.display()),
            next: "See whether the path is right, and whether you may.".to_owned(),
        }
    }

    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::CommandLine(error) if !error.use_stderr() => 0,
            Self::CommandLine(_) | Self::Usage(_) => exit_code::USAGE,
            Self::Here { .. } => exit_code::FAILED,
            Self::NotLoggedIn { .. } => exit_code::REFUSED,
            Self::Unreachable { .. } => exit_code::UNREACHABLE,
            Self::OutcomeUnknown(_) => exit_code::OUTCOME_UNKNOWN,
            Self::Problem(problem) => problem.exit_code(),
            Self::ReaderGone => exit_code::READER_GONE,
        }
    }

    /// Says it on standard error: for a person, or as one line of JSON.
    pub(crate) fn tell(&self, as_json: bool) {
        match self {
            Self::CommandLine(error) if !(as_json && error.use_stderr()) => {
                // Help goes to standard output, whose reader may have left.
                let _ = error.print();
            }
            Self::ReaderGone => {}
            _ if as_json => eprintln!("{}", self.json()),
            _ => eprint!("{}", self.block().rendered()),
        }
    }

    fn json(&self) -> Value {
        let local = |code: &str, detail: &str| json!({ "code": code, "detail": detail, "retryable": false });
        match self {
            Self::Problem(problem) => problem.0.clone(),
            Self::Usage(text) => local("usage", text),
            Self::Here { what, .. } => local("local", what),
            Self::NotLoggedIn { .. } => local("not_logged_in", &self.block().lines.join(" ")),
            Self::Unreachable { what, .. } => local("unreachable", what),
            Self::OutcomeUnknown(what) => local("outcome_unknown", what),
            Self::CommandLine(error) => {
                let text = error.render().to_string();
                let text = text.split("\n\n").next().unwrap_or_default();
                local("usage", text.strip_prefix("error: ").unwrap_or(text))
            }
            Self::ReaderGone => Value::Null,
        }
    }

    fn block(&self) -> Block {
        let block = |title: &str, line: &str, next: &str| Block {
            title: title.to_owned(),
            lines: vec![line.to_owned()],
            next: Some(next.to_owned()),
        };
        match self {
            Self::Problem(problem) => problem.block(),
            Self::Usage(text) => block("Usage", text, "`--help` tells what the command takes."),
            Self::Here { what, next } => block("Failed on this machine", what, next),
            Self::NotLoggedIn { profile } => block(
                "Not logged in",
                &format!("there is no key for the profile {profile}"),
                "`cfops login` asks for an address and a key; or set CFOPS_URL and CFOPS_KEY.",
            ),
            Self::Unreachable { what, next } => block("Unreachable", what, next),
            Self::OutcomeUnknown(what) => block(
                "Outcome unknown (outcome_unknown)",
                what,
                advice::next_step("outcome_unknown").unwrap_or_default(),
            ),
            Self::CommandLine(_) | Self::ReaderGone => Block { title: String::new(), lines: Vec::new(), next: None },
        }
    }
}

impl Block {
    fn rendered(&self) -> String {
        let error = console::style("error:").for_stderr().red().bold();
        let mut text = format!("{error} {}\n", console::style(printable(&self.title)).for_stderr().bold());
        for line in self.lines.iter().filter(|line| !line.is_empty()) {
            let _ = writeln!(text, "  {}", printable(line).replace('\n', "\n  "));
        }
        if let Some(next) = self.next.as_ref().filter(|next| !next.is_empty()) {
            let _ = writeln!(text, "  {} {}", console::style("next:").for_stderr().green(), printable(next));
        }
        text
    }
}

impl From<clap::Error> for Failure {
    fn from(error: clap::Error) -> Self {
        Self::CommandLine(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(code: &str, status: u16, retryable: bool) -> Failure {
        Failure::Problem(Problem(json!({ "code": code, "status": status, "retryable": retryable })))
    }

    #[test]
    fn kinds_of_refusals_have_codes_of_their_own() {
        let code = |code, status, retryable| problem(code, status, retryable).exit_code();
        assert_eq!(code("invalid_arguments", 400, false), exit_code::USAGE);
        assert_eq!(code("unauthenticated", 401, false), exit_code::REFUSED);
        assert_eq!(code("forbidden", 403, false), exit_code::REFUSED);
        assert_eq!(code("not_found", 404, false), exit_code::NOT_FOUND);
        assert_eq!(code("rate_limited", 429, true), exit_code::TRY_LATER);
        assert_eq!(code("timeout", 504, false), exit_code::TIMED_OUT);
        assert_eq!(code("outcome_unknown", 502, false), exit_code::OUTCOME_UNKNOWN);
        assert_eq!(code("internal", 500, false), exit_code::FAILED);
        assert_eq!(code("of_a_newer_service", 599, false), exit_code::FAILED);
    }

    #[test]
    fn a_problem_is_one_block_with_its_fields_its_request_and_what_to_do() {
        let problem = json!({
            "title": "Invalid arguments", "status": 400, "code": "invalid_arguments", "requestId": "r-1",
            "detail": "filters.status: is none of these",
            "details": { "violations": [{ "pointer": "/filters/createdAfter", "message": "is no \u{1b}[2Jtime" }] },
        });
        let text = Failure::Problem(Problem(problem)).block().rendered();
        let text = console::strip_ansi_codes(&text);
        assert!(text.starts_with("error: Invalid arguments (invalid_arguments, 400)\n"), "{text}");
        assert!(text.contains("--filters.created-after: is no \u{fffd}[2Jtime\n"), "{text}");
        assert!(text.contains("  request r-1\n") && text.contains("  next: "), "{text}");
    }
}
