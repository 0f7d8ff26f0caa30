//! listProcesses: the background processes of a sandbox.

use std::rc::Rc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::process_info::ProcessSummary;
use crate::error::Result;
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::identifier::SandboxId;
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::sandbox::processes::Processes;
use crate::tenant::admission::SandboxClaim;

/// Which sandbox.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Sandbox to ask.
    pub sandbox_id: SandboxId,
}

/// Its processes.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    /// The sandbox.
    pub sandbox_id: String,
    /// Whether the sandbox runs.
    pub running: bool,
    /// Oldest first.
    pub processes: Vec<ProcessSummary>,
}

pub struct ListProcesses;

impl Tool for ListProcesses {
    const NAME: &'static str = "listProcesses";
    const DESCRIPTION: &'static str = "Lists the background processes of a sandbox: those that run, and those that ended a while ago. Does not \
        start a sandbox that does not run; it has none then.";
    const ROUTES: &'static [Route] = &[Route { method: Method::Get, path: "/v1/sandboxes/{sandboxId}/processes" }];
    const ANNOTATIONS: Annotations = Annotations {
        title: "List processes",
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
        maximum_timeout: 30,
        output_cap_bytes: 8 * 1024 * 1024,
        rate_class: RateClass::Read,
        unrecorded_arguments: &[],
        told_once: &[],
    };
    const EXECUTION: Execution = Execution::Inline;

    type Input = Input;
    type Output = Output;

    fn claim(input: &Input, _facts: &CallFacts<'_>) -> Result<SandboxClaim> {
        Ok(SandboxClaim::Running { sandbox_id: input.sandbox_id.clone() })
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<Output> {
        let listed = Processes::new(context.services, input.sandbox_id.clone()).list().await?;
        let running = listed.is_some();
        let summary = |process| ProcessSummary::new(&input.sandbox_id, process);
        let processes = listed.unwrap_or_default().into_iter().map(summary).collect();
        Ok(Output { sandbox_id: input.sandbox_id.to_string(), running, processes })
    }
}
