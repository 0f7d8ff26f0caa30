//! waitForProcess: until a background process ends, listens, or wrote a line.

use std::rc::Rc;
use std::time::Duration;

use sandbox_api::{MatchedLine, WaitOutcome};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::process_info::ProcessSummary;
use crate::error::{Error, Result};
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::identifier::SandboxId;
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::sandbox::processes::{Condition, Handle, Processes};
use crate::tenant::admission::SandboxClaim;

/// Seconds that a wait lasts when the caller does not say.
const DEFAULT_TIMEOUT_SECONDS: f64 = 30.0;
/// Longest wait of an answer that is not streamed: what lies between cuts silent requests soon after.
const LONGEST_BUFFERED_SECONDS: f64 = 90.0;

/// Which process, and what for. Of port, text and pattern at most one is given; without any, the wait is for its end.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Sandbox that has the process.
    pub sandbox_id: SandboxId,
    /// Process, as startBackgroundProcess answered it.
    #[schema(min_length = 1, max_length = 140)]
    pub process_id: String,
    /// Until something listens on this TCP port inside the sandbox.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 65_535)]
    pub port: Option<u16>,
    /// Until a line of its output holds this text.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 512)]
    pub text: Option<String>,
    /// Until a line of its output matches this regular expression (Rust's syntax, without look-around).
    #[serde(default)]
    #[schema(min_length = 1, max_length = 512)]
    pub pattern: Option<String>,
    /// Offset of the first output to look at for a line; default all that is kept.
    #[serde(default)]
    pub from_offset: Option<u64>,
    /// Seconds to wait; default 30. At most 90, or 3600 where the answer is streamed.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 3600, default = 30)]
    pub timeout: Option<f64>,
}

/// How the wait came to its end.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    /// met, timedOut, or ended: the process ended first.
    pub outcome: WaitOutcome,
    /// The process as it is now.
    pub process: ProcessSummary,
    /// The line, when that was waited for and came.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<MatchedLine>,
}

pub struct WaitForProcess;

impl Tool for WaitForProcess {
    const NAME: &'static str = "waitForProcess";
    const DESCRIPTION: &'static str = "Waits for a background process: until it has ended for good, or something listens on a TCP port of the \
        sandbox, or a line of its output holds a text or matches a pattern (output from before the call counts). A \
        timeout that passes and a process that ends first are answers, told by `outcome`.";
    const ROUTES: &'static [Route] =
        &[Route { method: Method::Get, path: "/v1/sandboxes/{sandboxId}/processes/{processId}/wait" }];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Wait for a process",
        read_only_hint: true,
        destructive_hint: false,
        idempotent_hint: true,
        open_world_hint: false,
    };
    const GUARDRAILS: Guardrails = Guardrails {
        role: Role::Viewer,
        scopes: &[Scope::SandboxRead],
        approval: Approval::NotNeeded,
        default_timeout: 30,
        maximum_timeout: 3600,
        output_cap_bytes: 256 * 1024,
        rate_class: RateClass::Read,
        unrecorded_arguments: &[],
        told_once: &[],
    };
    const EXECUTION: Execution = Execution::Inline;

    type Input = Input;
    type Output = Output;

    fn claim(input: &Input, facts: &CallFacts<'_>) -> Result<SandboxClaim> {
        Handle::parse(&input.process_id)?;
        condition(input)?;
        if !facts.streams && Self::timeout_seconds(input) > LONGEST_BUFFERED_SECONDS {
            let message =
                format!("is over {LONGEST_BUFFERED_SECONDS} seconds, which needs `Accept: text/event-stream`");
            return Err(Error::invalid("/timeout", message));
        }
        Ok(SandboxClaim::Running { sandbox_id: input.sandbox_id.clone() })
    }

    fn timeout_seconds(input: &Input) -> f64 {
        input.timeout.unwrap_or(DEFAULT_TIMEOUT_SECONDS)
    }

    async fn call(context: Context, input: Input, events: Rc<dyn EventSink>) -> Result<Output> {
        let handle = Handle::parse(&input.process_id)?;
        let time = Duration::try_from_secs_f64(Self::timeout_seconds(&input)).map_err(Error::internal)?;
        let processes = Processes::new(context.services, input.sandbox_id.clone());
        let waited = processes.wait(&handle, &condition(&input)?, time, &events).await?;
        Ok(Output {
            outcome: waited.outcome,
            process: ProcessSummary::new(&input.sandbox_id, waited.process),
            line: waited.line,
        })
    }
}

fn condition(input: &Input) -> Result<Condition> {
    let from_offset = input.from_offset.unwrap_or(0);
    match (input.port, &input.text, &input.pattern) {
        (None, None, None) => Ok(Condition::Exit),
        (Some(port), None, None) => Ok(Condition::Port(port)),
        (None, Some(text), None) if text.contains('\n') => {
            Err(Error::invalid("/text", "holds a line end, and no line has one"))
        }
        (None, Some(text), None) => Ok(Condition::Text { text: text.clone(), from_offset }),
        (None, None, Some(pattern)) => Ok(Condition::Pattern { pattern: pattern.clone(), from_offset }),
        (Some(_), _, _) => Err(Error::invalid("/port", "cannot be waited for together with a line")),
        (None, Some(_), Some(_)) => Err(Error::invalid("/pattern", "cannot be waited for together with text")),
    }
}
