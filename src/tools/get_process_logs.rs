//! getProcessLogs: what a background process wrote, by offset, or followed as it comes.

use std::rc::Rc;
use std::time::Duration;

use sandbox_api::LogChunk;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::process_info::ProcessSummary;
use crate::error::{Error, Result};
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::identifier::SandboxId;
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::sandbox::processes::{Handle, Processes};
use crate::tenant::admission::SandboxClaim;

/// Bytes of one answer when the caller does not say.
const DEFAULT_LIMIT: u32 = 65_536;
/// Seconds that logs are followed for when the caller does not say.
const DEFAULT_FOLLOW_SECONDS: f64 = 300.0;

/// Which process, and which part of its logs.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Sandbox that has the process.
    pub sandbox_id: SandboxId,
    /// Process, as startBackgroundProcess answered it.
    #[schema(min_length = 1, max_length = 140)]
    pub process_id: String,
    /// First byte to read: `nextOffset` of the answer before; default 0.
    #[serde(default)]
    pub offset: Option<u64>,
    /// Most bytes of an answer that is not followed; default 65536.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 1_048_576, default = 65_536)]
    pub limit: Option<u32>,
    /// Whether a streamed answer goes on with what comes; default false.
    #[serde(default)]
    pub follow: Option<bool>,
    /// Seconds that logs are followed for; default 300.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 3600, default = 300)]
    pub timeout: Option<f64>,
}

/// A part of the logs. When they were followed, the events had it and `chunks` is empty.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    /// The process as it is now.
    pub process: ProcessSummary,
    /// In the order in which they were written.
    pub chunks: Vec<LogChunk>,
    /// Offset to go on from.
    pub next_offset: u64,
    /// Present when output from the asked offset up to this one is no longer kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncated_before: Option<u64>,
    /// Whether this was the end: nothing more will be written.
    pub ended: bool,
}

pub struct GetProcessLogs;

impl Tool for GetProcessLogs {
    const NAME: &'static str = "getProcessLogs";
    const DESCRIPTION: &'static str = "Reads what a background process wrote to stdout and stderr, from an offset that counts the bytes of both. \
        The newest 1 MiB is kept. With `follow`, and where the answer is streamed, output comes as events until the \
        process has ended or the timeout is over; otherwise the answer holds what there is.";
    const ROUTES: &'static [Route] =
        &[Route { method: Method::Get, path: "/v1/sandboxes/{sandboxId}/processes/{processId}/logs" }];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Read a process's logs",
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
        output_cap_bytes: 16 * 1024 * 1024,
        rate_class: RateClass::Read,
        unrecorded_arguments: &[],
        told_once: &[],
    };
    const EXECUTION: Execution = Execution::Inline;

    type Input = Input;
    type Output = Output;

    fn claim(input: &Input, _facts: &CallFacts<'_>) -> Result<SandboxClaim> {
        Handle::parse(&input.process_id)?;
        Ok(SandboxClaim::Running { sandbox_id: input.sandbox_id.clone() })
    }

    fn timeout_seconds(input: &Input) -> f64 {
        match input.follow {
            Some(true) => input.timeout.unwrap_or(DEFAULT_FOLLOW_SECONDS),
            _ => f64::from(Self::GUARDRAILS.default_timeout),
        }
    }

    async fn call(context: Context, input: Input, events: Rc<dyn EventSink>) -> Result<Output> {
        let handle = Handle::parse(&input.process_id)?;
        let processes = Processes::new(context.services, input.sandbox_id.clone());
        let offset = input.offset.unwrap_or(0);
        if events.streams() && input.follow == Some(true) {
            let time = Duration::try_from_secs_f64(input.timeout.unwrap_or(DEFAULT_FOLLOW_SECONDS));
            let followed = processes.follow(&handle, offset, time.map_err(Error::internal)?, &events).await?;
            let ended = followed.ended.is_some();
            let process = match followed.ended {
                Some(process) => process,
                None => processes.get(&handle).await?,
            };
            let process = ProcessSummary::new(&input.sandbox_id, process);
            let next_offset = followed.next_offset;
            return Ok(Output { process, chunks: Vec::new(), next_offset, truncated_before: None, ended });
        }
        let logs = processes.logs(&handle, offset, u64::from(input.limit.unwrap_or(DEFAULT_LIMIT))).await?;
        let process = processes.get(&handle).await?;
        Ok(Output {
            process: ProcessSummary::new(&input.sandbox_id, process),
            chunks: logs.chunks,
            next_offset: logs.next_offset,
            truncated_before: logs.truncated_before,
            ended: logs.ended,
        })
    }
}
