//! What the texts of the platform's container API mean: it has no codes.
//!
//! Texts were read in the platform's source and in reports of its users. They are matched in lower case by a part of them, since
//! the platform puts its own words around. What is not known here is never taken for a refusal.

use crate::error::{Error, ErrorCode};

/// Why a container could not be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Machine-readable, in `details.reason`.
    pub reason: &'static str,
    /// For a person.
    message: &'static str,
    /// Seconds until trying again makes sense.
    retry_after: u32,
    /// Whether it often passes within seconds, while an instance is being allotted.
    pub passing: bool,
}

/// Parts of texts, the more exact ones first.
const SHORTAGES: [(&str, Shortage); 8] = [
    (
        "maximum number of running container instances exceeded",
        Shortage {
            reason: "max_instances_exceeded",
            message: "as many containers run as max_instances allows",
            retry_after: 30,
            passing: false,
        },
    ),
    (
        "no container instance",
        Shortage {
            reason: "no_container_instance",
            message: "the platform has no container to give at the moment",
            retry_after: 5,
            passing: true,
        },
    ),
    (
        "no such image available",
        Shortage {
            reason: "image_unavailable",
            message: "the image of the sandbox is not there",
            retry_after: 60,
            passing: false,
        },
    ),
    ("failed to start container", START_FAILED),
    ("container failed to start", START_FAILED),
    ("create container failed", START_FAILED),
    ("starting container failed", START_FAILED),
    ("networking sidecar", START_FAILED),
];

const START_FAILED: Shortage = Shortage {
    reason: "container_start_failed",
    message: "the platform could not start the container",
    retry_after: 5,
    passing: false,
};

/// Parts of the texts with which the platform tells of an exit that was not one with code 0.
const EXITED: [&str; 2] = ["exited with unexpected exit code", "signalled the container to exit"];

/// Parts of texts that say that a request found nobody to take it, so that nothing of it was carried out.
const NOBODY: [&str; 4] =
    ["not listening", "not running", "no container instance", "container is not running, consider calling start"];

/// The shortage that a text tells of.
pub fn shortage(text: &str) -> Option<Shortage> {
    let text = text.to_ascii_lowercase();
    SHORTAGES.into_iter().find(|(part, _)| text.contains(part)).map(|(_, shortage)| shortage)
}

/// Whether a text says that nothing listens in the container, or that there is none.
pub fn reached_nobody(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    NOBODY.iter().any(|part| text.contains(part))
}

/// Whether the text with which the watch over a container ended says that the container exited. Any other one says that the platform
/// lost sight of it.
pub fn exited(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    EXITED.iter().any(|part| text.contains(part))
}

/// The platform refused to start a container, with this text.
pub fn refused_start(why: &str) -> Error {
    shortage(why).unwrap_or(START_FAILED).error(why)
}

/// The watch over a container ended before the container was ready: with this text, or without any where it exited with code 0.
pub fn ended_early(why: Option<&str>) -> Error {
    let ended = |reason, message: &str, why: &str| {
        Error::new(ErrorCode::SandboxUnavailable, message).detail("reason", reason).because(why)
    };
    let exit = |why| ended("container_exited", "the container ended before it was ready", why);
    match why {
        None => exit("the container exited with code 0"),
        Some(why) if exited(why) => exit(why),
        Some(why) => shortage(why).map_or_else(
            || {
                let message = "the platform lost sight of the container before it was ready, and does not say why";
                ended("container_lost", message, why)
            },
            |shortage| shortage.error(why),
        ),
    }
}

impl Shortage {
    /// In the caller's words; `cause` goes to the log.
    pub fn error(self, cause: impl std::fmt::Display) -> Error {
        let error =
            Error::new(ErrorCode::SandboxUnavailable, self.message).detail("reason", self.reason).because(cause);
        Error { retry_after: Some(self.retry_after), ..error }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_text_is_a_refusal_with_a_reason_and_a_time() {
        let texts = [
            (
                "There is no container instance that can be provided to this Durable Object, try again later",
                "no_container_instance",
            ),
            ("Error: no container instance can be provided", "no_container_instance"),
            ("Maximum number of running container instances exceeded. Try again later.", "max_instances_exceeded"),
            ("Failed to start container: undefined", "container_start_failed"),
            ("Container failed to start", "container_start_failed"),
            ("Create container failed with [500] {\"message\":\"no space left\"}", "container_start_failed"),
            ("No such image available named cloudflare-dev/sandboxactor:1", "image_unavailable"),
        ];
        for (text, reason) in texts {
            let error = shortage(text).map(|shortage| shortage.error(text)).unwrap();
            assert_eq!(error.code, ErrorCode::SandboxUnavailable, "{text}");
            assert_eq!(error.details["reason"], reason, "{text}");
            assert!(error.retryable && error.retry_after.is_some_and(|seconds| seconds >= 5), "{text}");
            assert_eq!(error.cause.as_deref(), Some(text), "the platform's own words go to the log");
        }
    }

    #[test]
    fn what_is_not_known_is_no_refusal() {
        for text in ["Network connection lost.", "internal error; reference = abc", "", "no answer within 5s"] {
            assert_eq!(shortage(text), None, "{text}");
            assert!(!reached_nobody(text), "{text}: it may have been carried out");
        }
    }

    #[test]
    fn only_an_exit_is_told_as_one() {
        for (why, reason) in [
            (None, "container_exited"),
            (Some("Container exited with unexpected exit code: 137"), "container_exited"),
            (Some("runtime signalled the container to exit: 1"), "container_exited"),
            (Some("internal error; reference = abc"), "container_lost"),
            (Some("Network connection lost."), "container_lost"),
            (Some("Monitoring container failed with: 500 no"), "container_lost"),
            (Some("Container failed to start"), "container_start_failed"),
            (Some("Maximum number of running container instances exceeded"), "max_instances_exceeded"),
        ] {
            let error = ended_early(why);
            assert_eq!(
                (error.code, &error.details["reason"]),
                (ErrorCode::SandboxUnavailable, &reason.into()),
                "{why:?}"
            );
            assert!(error.retryable, "{why:?}: nothing was carried out");
            assert!(error.cause.is_some_and(|cause| why.is_none_or(|why| why == cause)), "{why:?} goes to the log");
        }
    }

    #[test]
    fn a_start_that_is_refused_for_an_unknown_reason_is_a_start_that_failed() {
        for (why, reason) in [
            ("internal error; reference = abc", "container_start_failed"),
            ("start() cannot be called on a container that is already running.", "container_start_failed"),
            ("There is no container instance that can be provided to this Durable Object", "no_container_instance"),
        ] {
            let error = refused_start(why);
            assert_eq!(
                (error.code, &error.details["reason"]),
                (ErrorCode::SandboxUnavailable, &reason.into()),
                "{why}"
            );
            assert!(error.retryable && error.retry_after.is_some() && !error.message.contains("abc"), "{why}");
        }
    }

    #[test]
    fn a_request_that_found_nobody_was_not_carried_out() {
        for text in [
            "Container is not listening to port 3000",
            "the container is not listening in the TCP address 10.0.0.1:3000",
            "connect(): Container ingress proxy is not running.",
            "The container is not running, consider calling start()",
        ] {
            assert!(reached_nobody(text), "{text}");
        }
    }
}
