//! createKey: a key of the tenant, whose secret is told once.

use std::rc::Rc;

use serde::Deserialize;
use utoipa::ToSchema;

use super::create_sandbox::expiry;
use super::key_info::{KeyInfo, check_permissions, no_token, within_own, within_own_limits};
use crate::error::{Error, ErrorCode, Result};
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::platform::rfc3339;
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::sandbox::settings::Expiry;
use crate::tenant::admission::SandboxClaim;
use crate::tenant::key;
use crate::tenant::keyring::KeyRecord;
use crate::tenant::keys::KeyRequest;
use crate::tenant::limits::Limits;
use crate::tenant::permissions::Permissions;

/// What the key is to be.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// What its owner calls it: 1 to 100 characters.
    #[schema(min_length = 1, max_length = 100)]
    pub name: String,
    /// What it may do: a role, narrowed by lists.
    pub permissions: Permissions,
    /// What it may use; absent ones are the defaults.
    #[serde(default)]
    #[schema(required = false)]
    pub limits: Limits,
    /// Seconds from now after which it ends by itself. Not together with `expiresAt`.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 315360000)]
    pub expires_after: Option<u32>,
    /// When it ends by itself: RFC 3339.
    #[serde(default)]
    #[schema(format = DateTime)]
    pub expires_at: Option<String>,
}

pub struct CreateKey;

impl Tool for CreateKey {
    const NAME: &'static str = "createKey";
    const DESCRIPTION: &'static str = "Makes a key of this tenant and tells its secret, this once. It may do no more than the key that makes it. Needs the secret SIGNING_SECRET.";
    const ROUTES: &'static [Route] = &[Route { method: Method::Post, path: "/v1/admin/keys" }];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Create a key",
        read_only_hint: false,
        destructive_hint: false,
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

    fn claim(input: &Input, facts: &CallFacts<'_>) -> Result<SandboxClaim> {
        let now = facts.platform.now_millis();
        expiry(input.expires_after, input.expires_at.as_deref(), now)?;
        check_permissions(&input.permissions, facts.registry)?;
        Ok(SandboxClaim::None)
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<KeyInfo> {
        no_token(&context)?;
        within_own(&context, &input.permissions)?;
        let now = context.admitted_at;
        let expires_at = match expiry(input.expires_after, input.expires_at.as_deref(), now)? {
            Some(Expiry::After(seconds)) => Some(now + i64::from(seconds) * 1000),
            Some(Expiry::At(at)) => Some(at),
            Some(Expiry::Never) | None => None,
        };
        within_own_limits(&context, input.limits)?;
        no_longer_than_own(&context, expires_at).await?;
        let Context { principal, services, .. } = &context;
        let made = key::make(&principal.tenant, &services.signer, || services.platform.random())?;
        let record = KeyRecord {
            key_id: made.key_id,
            name: input.name,
            permissions: input.permissions,
            limits: input.limits,
            created_at: now,
            created_by: principal.key_id.clone(),
            expires_at,
            revoked_at: None,
            rotated_at: None,
            secret: made.digest,
            previous: None,
        };
        let stored = services.tenant.keys(KeyRequest::Add(Box::new(record))).await?.one()?;
        Ok(KeyInfo { key: Some(made.text), ..KeyInfo::of(&stored, now) })
    }
}

/// 403 for a key that would outlive the one that makes it.
async fn no_longer_than_own(context: &Context, expires_at: Option<i64>) -> Result<()> {
    if context.limits.is_none() {
        return Ok(());
    }
    let key_id = context.principal.key_id.clone();
    let own = context.services.tenant.keys(KeyRequest::Get { key_id }).await?.one()?;
    match own.expires_at {
        Some(end) if expires_at.is_none_or(|at| at > end) => {
            let message = format!("expiresAt: must be at most {}, when the key that makes it ends", rfc3339(end));
            Err(Error::new(ErrorCode::Forbidden, message).detail("field", "expiresAt"))
        }
        _ => Ok(()),
    }
}
