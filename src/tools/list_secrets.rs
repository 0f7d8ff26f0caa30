//! listSecrets: the named secrets of the tenant, in pages, without their values.

use std::rc::Rc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::secret_info::{SecretInfo, key_names};
use crate::error::Result;
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::tenant::admission::SandboxClaim;
use crate::tenant::secrets::{SecretRequest, Secrets};

/// Which page.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Most secrets in this page; default 100.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 500, default = 100)]
    pub limit: Option<u32>,
    /// `nextCursor` of the page before.
    #[serde(default)]
    #[schema(max_length = 64)]
    pub cursor: Option<String>,
}

/// One page.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    pub secrets: Vec<SecretInfo>,
    /// For the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

pub struct ListSecrets;

impl Tool for ListSecrets {
    const NAME: &'static str = "listSecrets";
    const DESCRIPTION: &'static str = "Lists the named secrets of this tenant in the order of their names, without their values. A key that may use certain secrets only is told of those.";
    const ROUTES: &'static [Route] = &[Route { method: Method::Get, path: "/v1/secrets" }];
    const ANNOTATIONS: Annotations = Annotations {
        title: "List secrets",
        read_only_hint: true,
        destructive_hint: false,
        idempotent_hint: true,
        open_world_hint: false,
    };
    const GUARDRAILS: Guardrails = Guardrails {
        role: Role::Viewer,
        scopes: &[Scope::SecretsRead],
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
    type Output = Output;

    fn claim(_input: &Input, _facts: &CallFacts<'_>) -> Result<SandboxClaim> {
        Ok(SandboxClaim::None)
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<Output> {
        let names = key_names(&context)?;
        let only = context.permissions.secrets;
        let request = SecretRequest::List { after: input.cursor, limit: input.limit.unwrap_or(100), only };
        let Secrets { secrets, more } = context.services.tenant.secrets(request).await?;
        let next_cursor = secrets.last().filter(|_| more).map(|secret| secret.name.clone());
        Ok(Output { secrets: secrets.into_iter().map(|secret| SecretInfo::of(secret, &names)).collect(), next_cursor })
    }
}
