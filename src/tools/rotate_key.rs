//! rotateKey: another secret for a key.

use std::rc::Rc;

use serde::Deserialize;
use utoipa::ToSchema;

use super::deciding::comes_of;
use super::key_info::{KeyInfo, change, changeable, check_id};
use crate::error::{Error, ErrorCode, Result};
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::tenant::admission::SandboxClaim;
use crate::tenant::key;
use crate::tenant::keys::KeyChange;

/// For how long the secret before stays valid when the call does not say.
const DEFAULT_GRACE_SECONDS: u32 = 3600;

/// Which key.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Id of the key, as listKeys tells it.
    #[schema(min_length = 1, max_length = 64)]
    pub key_id: String,
    /// Seconds for which the secret before stays valid; default 3600, 0 ends it at once.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 604800, default = 3600)]
    pub grace_seconds: Option<u32>,
}

pub struct RotateKey;

impl Tool for RotateKey {
    const NAME: &'static str = "rotateKey";
    const DESCRIPTION: &'static str = "Gives a key another secret and tells it, this once. The secret before stays valid for a grace time, so that its users can change over.";
    const ROUTES: &'static [Route] = &[Route { method: Method::Post, path: "/v1/admin/keys/{keyId}/rotate" }];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Rotate a key",
        read_only_hint: false,
        destructive_hint: true,
        idempotent_hint: false,
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
        told_once: &["/key"],
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
        may_have(&context, &input.key_id).await?;
        let grace = input.grace_seconds.unwrap_or(DEFAULT_GRACE_SECONDS);
        let first = format!("Key {} ({}) gets another secret.", key.key_id, key.name);
        Ok(vec![first, format!("The secret that it has now is valid for {grace} seconds more.")])
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<KeyInfo> {
        may_have(&context, &input.key_id).await?;
        let Context { principal, services, .. } = &context;
        let made = key::with_secret(&principal.tenant, input.key_id.clone(), || services.platform.random());
        let grace_millis = i64::from(input.grace_seconds.unwrap_or(DEFAULT_GRACE_SECONDS)) * 1000;
        let rotation = KeyChange::Rotate { secret: made.digest, grace_millis };
        let info = change(&context, &input.key_id, rotation).await?;
        Ok(KeyInfo { key: Some(made.text), ..info })
    }
}

/// 403 for who would be told the secret of a key that could approve its calls.
async fn may_have(context: &Context, key_id: &str) -> Result<()> {
    let approval = &context.permissions.approval;
    if approval.is_empty() || approval.approves_own || comes_of(context, key_id, &context.principal.key_id).await? {
        return Ok(());
    }
    let message =
        "keyId: calls of this key wait for an approval, so that it rotates only itself and keys that come of it";
    Err(Error::new(ErrorCode::Forbidden, message).detail("field", "keyId"))
}
