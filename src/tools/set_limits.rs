//! setLimits: what a key may use.

use std::rc::Rc;

use serde::Deserialize;
use utoipa::ToSchema;

use super::key_info::{KeyInfo, change, check_id, within_own_limits};
use crate::error::{Error, ErrorCode, Result};
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::tenant::admission::SandboxClaim;
use crate::tenant::keys::KeyChange;
use crate::tenant::limits::Limits;

/// Which key.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Id of the key, as listKeys tells it.
    #[schema(min_length = 1, max_length = 64)]
    pub key_id: String,
    /// The limits to set.
    pub limits: Limits,
}

pub struct SetLimits;

impl Tool for SetLimits {
    const NAME: &'static str = "setLimits";
    const DESCRIPTION: &'static str =
        "Sets limits of a key; those that are not named stay as they are. They hold from the next call on.";
    const ROUTES: &'static [Route] = &[Route { method: Method::Patch, path: "/v1/admin/keys/{keyId}/limits" }];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Set limits of a key",
        read_only_hint: false,
        destructive_hint: false,
        idempotent_hint: true,
        open_world_hint: false,
    };
    const GUARDRAILS: Guardrails = Guardrails {
        role: Role::Admin,
        scopes: &[Scope::KeysAdmin],
        approval: Approval::NotNeeded,
        default_timeout: 15,
        maximum_timeout: 15,
        output_cap_bytes: 4 * 1024 * 1024,
        rate_class: RateClass::Read,
        unrecorded_arguments: &[],
        told_once: &[],
    };
    const EXECUTION: Execution = Execution::Inline;

    type Input = Input;
    type Output = KeyInfo;

    fn claim(input: &Input, _facts: &CallFacts<'_>) -> Result<SandboxClaim> {
        check_id(&input.key_id)?;
        Ok(SandboxClaim::None)
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<KeyInfo> {
        if input.key_id == context.principal.key_id {
            let message = "keyId: a key does not set its own limits";
            return Err(Error::new(ErrorCode::Forbidden, message).detail("field", "keyId"));
        }
        // What is not named stays as it is, and is not held against the caller.
        within_own_limits(&context, context.limits.unwrap_or_default().with(input.limits))?;
        change(&context, &input.key_id, KeyChange::Limits(input.limits)).await
    }
}
