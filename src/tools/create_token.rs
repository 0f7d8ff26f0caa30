//! createToken: a short-lived token with some of the rights of the calling key.

use std::rc::Rc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::key_info::{check_permissions, no_token};
use crate::error::Result;
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::platform::rfc3339;
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::tenant::admission::SandboxClaim;
use crate::tenant::permissions::Permissions;
use crate::tenant::token;

const DEFAULT_LIFE_SECONDS: u32 = 900;

/// What the token is to be.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// What it may do; what the calling key may not do, it may not either.
    pub permissions: Permissions,
    /// Seconds for which it is valid; default 900.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 3600, default = 900)]
    pub expires_after: Option<u32>,
}

/// The token.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    /// The token itself, for the header `Authorization: Bearer`.
    pub token: String,
    /// Its id in the audit.
    pub token_id: String,
    /// When it ends: RFC 3339, UTC.
    pub expires_at: String,
    /// What it may do.
    pub permissions: Permissions,
}

pub struct CreateToken;

impl Tool for CreateToken {
    const NAME: &'static str = "createToken";
    const DESCRIPTION: &'static str = "Makes a token (JWT, HS256) with some of the rights of the calling key, for browsers, sockets and agents. It is used like a key, counts against the limits of its key and ends with it. Needs the secret SIGNING_SECRET.";
    const ROUTES: &'static [Route] = &[Route { method: Method::Post, path: "/v1/admin/tokens" }];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Create a token",
        read_only_hint: false,
        destructive_hint: false,
        idempotent_hint: false,
        open_world_hint: false,
    };
    const GUARDRAILS: Guardrails = Guardrails {
        role: Role::Operator,
        scopes: &[Scope::TokensCreate],
        approval: Approval::NotNeeded,
        default_timeout: 15,
        maximum_timeout: 15,
        output_cap_bytes: 4 * 1024 * 1024,
        rate_class: RateClass::Read,
        unrecorded_arguments: &[],
        told_once: &["/token"],
    };
    const EXECUTION: Execution = Execution::Inline;

    type Input = Input;
    type Output = Output;

    fn claim(input: &Input, facts: &CallFacts<'_>) -> Result<SandboxClaim> {
        check_permissions(&input.permissions, facts.registry)?;
        Ok(SandboxClaim::None)
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<Output> {
        no_token(&context)?;
        let Context { principal, services, .. } = &context;
        // Labels that contradict the caller's own are refused; anything else is narrowed to what the caller may.
        context.permissions.labelled(input.permissions.sandbox_labels.clone())?;
        let permissions = context.permissions.narrowed(&input.permissions);
        let token_id = hex::encode(services.platform.random());
        let life = input.expires_after.unwrap_or(DEFAULT_LIFE_SECONDS);
        let now = context.admitted_at;
        let made = token::make(
            &services.signer,
            &principal.tenant,
            &principal.key_id,
            token_id.clone(),
            permissions.clone(),
            now,
            life,
        )?;
        let expires_at = rfc3339((now.div_euclid(1000) + i64::from(life)) * 1000);
        Ok(Output { token: made, token_id, expires_at, permissions })
    }
}
