//! killProcess: ends a background process with everything that it started.

use std::rc::Rc;
use std::time::Duration;

use sandbox_api::ProcessKill;
use serde::Deserialize;
use utoipa::ToSchema;

use super::process_info::ProcessSummary;
use crate::error::{Error, Result};
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::identifier::SandboxId;
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::sandbox::processes::{Handle, Processes};
use crate::tenant::admission::SandboxClaim;

/// Seconds between the first signal and SIGKILL when the caller does not say.
const DEFAULT_GRACE_SECONDS: f64 = 5.0;

/// Which process, and how.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Sandbox that has the process.
    pub sandbox_id: SandboxId,
    /// Process, as startBackgroundProcess answered it.
    #[schema(min_length = 1, max_length = 140)]
    pub process_id: String,
    /// First signal, to the whole tree; default SIGTERM.
    #[serde(default)]
    #[schema(pattern = "^SIG[A-Z0-9]{2,8}$")]
    pub signal: Option<String>,
    /// Seconds until what survives it gets SIGKILL; default 5.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 30, default = 5)]
    pub grace: Option<f64>,
}

pub struct KillProcess;

impl Tool for KillProcess {
    const NAME: &'static str = "killProcess";
    const DESCRIPTION: &'static str = "Ends a background process and everything that it started, for good: a signal first, SIGKILL for what \
        survives the grace. Answers once nothing of it is left. Killing what has ended changes nothing and tells how \
        it ended.";
    const ROUTES: &'static [Route] =
        &[Route { method: Method::Delete, path: "/v1/sandboxes/{sandboxId}/processes/{processId}" }];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Kill a process",
        read_only_hint: false,
        destructive_hint: true,
        idempotent_hint: true,
        open_world_hint: false,
    };
    const GUARDRAILS: Guardrails = Guardrails {
        role: Role::Operator,
        scopes: &[Scope::SandboxExec],
        approval: Approval::NotNeeded,
        default_timeout: 60,
        maximum_timeout: 60,
        output_cap_bytes: 64 * 1024,
        rate_class: RateClass::SandboxOperation,
        unrecorded_arguments: &[],
        told_once: &[],
    };
    const EXECUTION: Execution = Execution::Inline;

    type Input = Input;
    type Output = ProcessSummary;

    fn claim(input: &Input, _facts: &CallFacts<'_>) -> Result<SandboxClaim> {
        Handle::parse(&input.process_id)?;
        Ok(SandboxClaim::Untouched { sandbox_id: input.sandbox_id.clone() })
    }

    async fn preview(context: Context, input: Input) -> Result<Vec<String>> {
        let handle = Handle::parse(&input.process_id)?;
        let process = Processes::new(context.services, input.sandbox_id).get(&handle).await?;
        let signal = input.signal.as_deref().unwrap_or("SIGTERM, and SIGKILL after the grace,");
        Ok(vec![format!("Process {} ({}) and all its children get {signal}.", input.process_id, process.name)])
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<ProcessSummary> {
        let handle = Handle::parse(&input.process_id)?;
        let grace = Duration::try_from_secs_f64(input.grace.unwrap_or(DEFAULT_GRACE_SECONDS));
        let grace = u64::try_from(grace.map_err(Error::internal)?.as_millis()).map_err(Error::internal)?;
        let kill = ProcessKill { signal: input.signal, grace_ms: Some(grace) };
        let process = Processes::new(context.services, input.sandbox_id.clone()).kill(&handle, &kill).await?;
        Ok(ProcessSummary::new(&input.sandbox_id, process))
    }
}
