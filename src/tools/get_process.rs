//! getProcess: one background process.

use std::rc::Rc;

use serde::Deserialize;
use utoipa::ToSchema;

use super::process_info::ProcessSummary;
use crate::error::Result;
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::identifier::SandboxId;
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::sandbox::processes::{Handle, Processes};
use crate::tenant::admission::SandboxClaim;

/// Which process.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Sandbox that has the process.
    pub sandbox_id: SandboxId,
    /// Process, as startBackgroundProcess answered it.
    #[schema(min_length = 1, max_length = 140)]
    pub process_id: String,
}

pub struct GetProcess;

impl Tool for GetProcess {
    const NAME: &'static str = "getProcess";
    const DESCRIPTION: &'static str = "Tells whether a background process runs, how often it was started again, and how it ended. A process of an \
        earlier start of the sandbox is refused with `stale_generation`.";
    const ROUTES: &'static [Route] =
        &[Route { method: Method::Get, path: "/v1/sandboxes/{sandboxId}/processes/{processId}" }];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Get a process",
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
    type Output = ProcessSummary;

    fn claim(input: &Input, _facts: &CallFacts<'_>) -> Result<SandboxClaim> {
        Handle::parse(&input.process_id)?;
        Ok(SandboxClaim::Running { sandbox_id: input.sandbox_id.clone() })
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<ProcessSummary> {
        let handle = Handle::parse(&input.process_id)?;
        let process = Processes::new(context.services, input.sandbox_id.clone()).get(&handle).await?;
        Ok(ProcessSummary::new(&input.sandbox_id, process))
    }
}
