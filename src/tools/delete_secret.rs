//! deleteSecret: forgets a named secret.

use std::rc::Rc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::error::Result;
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::tenant::admission::SandboxClaim;
use crate::tenant::secret_name::SecretName;
use crate::tenant::secrets::SecretRequest;

/// Which secret.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Name of the secret.
    pub name: SecretName,
}

/// The secret is gone.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    /// The name that it had.
    pub name: String,
    /// Always `deleted`.
    pub status: Deleted,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum Deleted {
    Deleted,
}

pub struct DeleteSecret;

impl Tool for DeleteSecret {
    const NAME: &'static str = "deleteSecret";
    const DESCRIPTION: &'static str = "Forgets a named secret for good. Commands that run keep the value they were given; calls that use it are refused from now on, and sandboxes that use it do not start \
        until it is set again or the variable is taken from them.";
    const ROUTES: &'static [Route] = &[Route { method: Method::Delete, path: "/v1/secrets/{name}" }];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Delete a secret",
        read_only_hint: false,
        destructive_hint: true,
        idempotent_hint: false,
        open_world_hint: false,
    };
    const GUARDRAILS: Guardrails = Guardrails {
        role: Role::Admin,
        scopes: &[Scope::SecretsWrite],
        approval: Approval::NotNeeded,
        default_timeout: 15,
        maximum_timeout: 15,
        output_cap_bytes: 64 * 1024,
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

    async fn preview(context: Context, input: Input) -> Result<Vec<String>> {
        let name = input.name.to_string();
        let secret = context.services.tenant.secrets(SecretRequest::Get { name }).await?.one()?;
        Ok(vec![format!("Secret {} is gone for good; calls that use it are refused.", secret.name)])
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<Output> {
        let name = input.name.to_string();
        let secret = context.services.tenant.secrets(SecretRequest::Delete { name }).await?.one()?;
        Ok(Output { name: secret.name, status: Deleted::Deleted })
    }
}
