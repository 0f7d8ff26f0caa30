//! stopSandbox: puts a sandbox to sleep at once.

use std::rc::Rc;

use serde::Deserialize;
use utoipa::ToSchema;

use super::sandbox_info::SandboxNow;
use crate::error::Result;
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::identifier::SandboxId;
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::tenant::admission::SandboxClaim;

/// What to stop.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Name of the sandbox.
    pub sandbox_id: SandboxId,
}

pub struct StopSandbox;

impl Tool for StopSandbox {
    const NAME: &'static str = "stopSandbox";
    const DESCRIPTION: &'static str = "Puts a sandbox to sleep: every process in it ends, and commands under way fail with \
        `interrupted`. Its next use starts it again as a new generation. Whether its files are kept is answered as `filesKept`; \
        /tmp never is. A sandbox that does not run is left as it is.";
    const ROUTES: &'static [Route] = &[
        Route { method: Method::Post, path: "/v1/sandboxes/{sandboxId}/stop" },
        Route { method: Method::Post, path: "/sandbox/{sandboxId}/stop" },
    ];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Stop a sandbox",
        read_only_hint: false,
        destructive_hint: true,
        idempotent_hint: true,
        open_world_hint: false,
    };
    const GUARDRAILS: Guardrails = Guardrails {
        role: Role::Operator,
        scopes: &[Scope::SandboxWrite],
        approval: Approval::NotNeeded,
        default_timeout: 60,
        maximum_timeout: 60,
        output_cap_bytes: 256 * 1024,
        rate_class: RateClass::Read,
        unrecorded_arguments: &[],
        told_once: &[],
    };
    const EXECUTION: Execution = Execution::Deferrable;

    type Input = Input;
    type Output = SandboxNow;

    fn claim(input: &Input, _facts: &CallFacts<'_>) -> Result<SandboxClaim> {
        Ok(SandboxClaim::Untouched { sandbox_id: input.sandbox_id.clone() })
    }

    async fn preview(context: Context, input: Input) -> Result<Vec<String>> {
        let processes = match context.services.sandboxes.describe(&input.sandbox_id).await?.metrics {
            Some(metrics) => metrics.processes.saturating_sub(1),
            None => return Ok(vec![format!("Nothing: sandbox {} does not run.", input.sandbox_id)]),
        };
        Ok(vec![
            format!("Sandbox {} stops; its next use starts it.", input.sandbox_id),
            format!("Its processes, {processes} now, are ended. On a container its files are gone as well."),
        ])
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<SandboxNow> {
        let stopped = context.services.sandboxes.stop(&input.sandbox_id).await?;
        Ok(SandboxNow {
            processes_ended: Some(stopped.processes),
            files_kept: Some(stopped.files_kept),
            ..stopped.record.into()
        })
    }
}
