//! destroySandbox: ends a sandbox and removes everything in it.

use std::rc::Rc;

use sandbox_api::ResourcesReleased;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::error::Result;
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::identifier::SandboxId;
use crate::platform::rfc3339;
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::tenant::admission::SandboxClaim;

/// What to destroy.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Name of the sandbox.
    pub sandbox_id: SandboxId,
    /// Forget the sandbox even when the machine that runs it does not answer; what it holds there may be left behind.
    /// Default false: then the call fails and the sandbox stays listed.
    #[serde(default)]
    pub force: Option<bool>,
}

/// The word of the published contract.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum DestroyedStatus {
    Destroyed,
}

/// What is gone.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    /// Its name.
    pub sandbox_id: String,
    /// Always `destroyed`.
    pub status: DestroyedStatus,
    /// What was freed; zero when there was nothing left to free.
    pub resources_released: ResourcesReleased,
    /// When it was destroyed: RFC 3339, UTC. For a sandbox that is not there, the time of this call.
    pub destroyed_at: String,
}

pub struct DestroySandbox;

impl Tool for DestroySandbox {
    const NAME: &'static str = "destroySandbox";
    const DESCRIPTION: &'static str = "Ends a sandbox: its processes are killed and its files removed. Repeating the call, or \
        naming a sandbox that is not there, succeeds and frees nothing.";
    const ROUTES: &'static [Route] = &[
        Route { method: Method::Delete, path: "/v1/sandboxes/{sandboxId}" },
        Route { method: Method::Delete, path: "/sandbox/{sandboxId}" },
    ];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Destroy a sandbox",
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
        output_cap_bytes: 64 * 1024,
        rate_class: RateClass::Read,
        unrecorded_arguments: &[],
        told_once: &[],
    };
    const EXECUTION: Execution = Execution::Deferrable;

    type Input = Input;
    type Output = Output;

    fn claim(input: &Input, _facts: &CallFacts<'_>) -> Result<SandboxClaim> {
        Ok(SandboxClaim::MaybeGone { sandbox_id: input.sandbox_id.clone() })
    }

    async fn preview(context: Context, input: Input) -> Result<Vec<String>> {
        let Some(listed) = &context.listed else {
            return Ok(vec![format!("Nothing: there is no sandbox {}.", input.sandbox_id)]);
        };
        let described = context.services.sandboxes.describe(&listed.sandbox_id).await?;
        let processes = described.metrics.map(|metrics| metrics.processes.saturating_sub(1));
        let ended = processes.map(|processes| format!("Its processes, {processes} now, are killed."));
        let removed = "Its files and its settings are removed for good.".to_owned();
        let first = format!("Sandbox {} is ended.", listed.sandbox_id);
        Ok([Some(first), ended, Some(removed)].into_iter().flatten().collect())
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<Output> {
        let (released, destroyed_at) = if context.listed.is_some() {
            let force = input.force.unwrap_or(false);
            let destroyed = context.services.sandboxes.destroy(&input.sandbox_id, force).await?;
            (destroyed.released, destroyed.destroyed_at)
        } else {
            // Nothing of that name is known to the tenant, so no object is made for it.
            (ResourcesReleased::default(), context.services.platform.now_millis())
        };
        Ok(Output {
            sandbox_id: input.sandbox_id.into(),
            status: DestroyedStatus::Destroyed,
            resources_released: released,
            destroyed_at: rfc3339(destroyed_at),
        })
    }
}
