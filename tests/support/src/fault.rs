//! What can go wrong between the Worker and a sandbox, and for which requests.

use std::time::Duration;

/// A fault at the seam.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The request is taken and never answered; it does not reach the host.
    NeverAnswers,
    /// The connection is closed without an answer; the request does not reach the host.
    ClosesAtOnce,
    /// The host carries the request out, and the connection is closed in place of its answer.
    LosesAnswer,
    /// The connection breaks after the first `stdout` event of the answer.
    ClosesAfterFirstOutput,
    /// The answer ends cleanly where its `exit` event should stand.
    OmitsExit,
    /// The answer stops after its first `stdout` event, and the connection stays open in silence.
    FallsSilent,
    /// The answer comes byte by byte, so that every character and every line is split.
    SplitsBytes,
    /// The answer comes from another boot of the sandbox than the one that was meant.
    StaleGeneration,
    /// The host is not asked; this status and JSON body are the answer.
    Answers(u16, serde_json::Value),
    /// The request waits before it goes on to the host, where it arrives though its sender be gone.
    Delays(Duration),
}

/// Which requests of the Worker a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// `PUT` of a sandbox.
    Start,
    /// `GET` of a sandbox.
    Status,
    /// `DELETE` of a sandbox.
    Destroy,
    /// The first request of an exec, `POST /v1/execs`.
    ExecStart,
    /// Every request about execs, re-attachment and lease among them.
    Exec,
    /// Raw files.
    Files,
    /// The first request of a background process, `POST /v1/processes`.
    ProcessStart,
    /// Every request about background processes.
    Processes,
    /// Everything about the sandbox.
    Any,
}

impl Operation {
    pub(crate) fn strikes(self, method: &str, rest: &str) -> bool {
        let exec = rest.starts_with("/control/v1/execs");
        match self {
            Self::Start => method == "PUT" && rest.is_empty(),
            Self::Status => method == "GET" && rest.is_empty(),
            Self::Destroy => method == "DELETE" && rest.is_empty(),
            Self::ExecStart => method == "POST" && rest == "/control/v1/execs",
            Self::Exec => exec,
            Self::Files => rest.starts_with("/control/v1/files"),
            Self::ProcessStart => method == "POST" && rest == "/control/v1/processes",
            Self::Processes => rest.starts_with("/control/v1/processes"),
            Self::Any => true,
        }
    }
}

/// One fault waiting for its requests.
pub(crate) struct Rule {
    pub(crate) sandbox: String,
    pub(crate) operation: Operation,
    pub(crate) fault: Fault,
    /// Requests left to strike; `None` strikes for ever.
    pub(crate) left: Option<u32>,
}

/// The sandbox's name and what follows it in a path of the host's API.
pub(crate) fn split_path(path: &str) -> Option<(&str, &str)> {
    let rest = path.strip_prefix("/v1/sandboxes/")?;
    Some(rest.split_at(rest.find('/').unwrap_or(rest.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_split_at_the_name() {
        assert_eq!(split_path("/v1/sandboxes/default.a"), Some(("default.a", "")));
        assert_eq!(split_path("/v1/sandboxes/a/control/v1/execs"), Some(("a", "/control/v1/execs")));
        assert_eq!(split_path("/v1/health"), None);
    }

    #[test]
    fn an_operation_strikes_its_own_requests_only() {
        assert!(Operation::Start.strikes("PUT", ""));
        assert!(!Operation::Start.strikes("PUT", "/control/v1/files/x"));
        assert!(Operation::ExecStart.strikes("POST", "/control/v1/execs"));
        assert!(!Operation::ExecStart.strikes("POST", "/control/v1/execs/x/lease"));
        assert!(Operation::Exec.strikes("GET", "/control/v1/execs/x"));
    }
}
