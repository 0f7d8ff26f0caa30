//! revokeKey: ends a key.

use std::rc::Rc;

use serde::Deserialize;
use utoipa::ToSchema;

use super::key_info::{KeyInfo, change, changeable, check_id};
use crate::error::Result;
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::tenant::admission::SandboxClaim;
use crate::tenant::keys::KeyChange;

/// Which key.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Id of the key, as listKeys tells it.
    #[schema(min_length = 1, max_length = 64)]
    pub key_id: String,
}

pub struct RevokeKey;

impl Tool for RevokeKey {
    const NAME: &'static str = "revokeKey";
    const DESCRIPTION: &'static str =
        "Ends a key, its tokens included, at once and for good. Repeating the call changes nothing.";
    const ROUTES: &'static [Route] = &[Route { method: Method::Delete, path: "/v1/admin/keys/{keyId}" }];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Revoke a key",
        read_only_hint: false,
        destructive_hint: true,
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

    async fn preview(context: Context, input: Input) -> Result<Vec<String>> {
        let key = changeable(&context, &input.key_id).await?;
        Ok(vec![format!("Key {} ({}) and its tokens end at once and for good.", key.key_id, key.name)])
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<KeyInfo> {
        change(&context, &input.key_id, KeyChange::Revoke).await
    }
}
