//! wakeSandbox: starts a sandbox that sleeps, so that its next command need not wait for that.

use std::rc::Rc;

use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::sandbox_info::SandboxNow;
use crate::error::Result;
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::identifier::SandboxId;
use crate::plan::Ending;
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::tenant::admission::SandboxClaim;

/// What to wake.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Name of the sandbox.
    pub sandbox_id: SandboxId,
}

pub struct WakeSandbox;

impl Tool for WakeSandbox {
    const NAME: &'static str = "wakeSandbox";
    const DESCRIPTION: &'static str = "Starts a sandbox that does not run and answers once commands can run in it; a running one \
        is left as it is. Counts as use. Every other call that needs the sandbox wakes it too.";
    const ROUTES: &'static [Route] = &[
        Route { method: Method::Post, path: "/v1/sandboxes/{sandboxId}/wake" },
        Route { method: Method::Post, path: "/sandbox/{sandboxId}/wake" },
    ];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Wake a sandbox",
        read_only_hint: false,
        destructive_hint: false,
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
        rate_class: RateClass::SandboxOperation,
        unrecorded_arguments: &[],
        told_once: &[],
    };
    const EXECUTION: Execution = Execution::Deferrable;

    type Input = Input;
    type Output = SandboxNow;

    fn claim(input: &Input, _facts: &CallFacts<'_>) -> Result<SandboxClaim> {
        Ok(SandboxClaim::Existing { sandbox_id: input.sandbox_id.clone() })
    }

    fn may_have_acted(ending: &Ending) -> bool {
        ending.may_have_acted() && ending.says("woken") != Some(&Value::Bool(false))
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<SandboxNow> {
        let woken = context.services.sandboxes.wake(&input.sandbox_id).await?;
        Ok(SandboxNow { woken: Some(woken.started), ..woken.record.into() })
    }
}
