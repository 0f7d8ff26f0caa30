//! The tool that was asked for.

use serde_json::Value;

use crate::guardrails::{Execution, RateClass, Role};
use crate::log_line::LONGEST_TOOL;
use crate::registry::{Entry, Registry};
use crate::tenant::permissions::Requirement;

/// What is known of the tool that was asked for, though there be none of that name.
pub(super) struct Asked {
    pub(super) requirement: Requirement,
    pub(super) rate_class: RateClass,
    pub(super) output_cap_bytes: Option<u64>,
    pub(super) told_once: &'static [&'static str],
    /// Whether the signature of its arguments is told: where they are a secret, guesses of it could be tried.
    pub(super) is_signed: bool,
    /// Bytes that the call brought.
    pub(super) bytes_in: u64,
}

impl Asked {
    /// The same for a call with these arguments.
    pub(super) fn naming(self, entry: Option<&&Entry>, arguments: Option<&Value>, registry: &Registry) -> Self {
        match (entry, arguments) {
            (Some(entry), Some(arguments)) => Self { requirement: entry.requirement(arguments, registry), ..self },
            _ => self,
        }
    }

    pub(super) fn new(entry: Option<&&Entry>, name: &str) -> Self {
        match entry.map(|entry| entry.description()) {
            Some(description) => Self {
                requirement: description.requirement(),
                rate_class: description.guardrails.rate_class,
                output_cap_bytes: Some(description.guardrails.output_cap_bytes),
                told_once: description.guardrails.told_once,
                is_signed: description.execution != Execution::Immediate,
                bytes_in: 0,
            },
            None => {
                let tool: String = name.chars().take(LONGEST_TOOL).collect();
                let requirement = Requirement::of(&tool, Role::Viewer);
                Self {
                    requirement,
                    rate_class: RateClass::Read,
                    output_cap_bytes: None,
                    told_once: &[],
                    is_signed: true,
                    bytes_in: 0,
                }
            }
        }
    }
}
