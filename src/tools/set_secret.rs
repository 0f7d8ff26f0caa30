//! setSecret: keeps a value under a name, for commands to use and for nobody to read.

use std::rc::Rc;

use serde::Deserialize;
use utoipa::ToSchema;

use super::secret_info::{SecretInfo, key_names};
use crate::error::{Error, ErrorCode, Result};
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::tenant::admission::SandboxClaim;
use crate::tenant::sealing;
use crate::tenant::secret_name::SecretName;
use crate::tenant::secrets::SecretRequest;
use redaction::SHORTEST_SECRET;

const LONGEST_VALUE: usize = 32 * 1024;

/// What to keep, and under which name.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Its name. One that is there already gets the new value.
    pub name: SecretName,
    /// The value: text of 8 bytes to 32 KiB. It is answered by nothing and recorded nowhere; a shorter one could not be masked.
    #[schema(min_length = 8, max_length = 32768)]
    pub value: String,
    /// What it is for, told by listSecrets. Without it the one it has stays.
    #[serde(default)]
    #[schema(max_length = 500)]
    pub description: Option<String>,
}

pub struct SetSecret;

impl Tool for SetSecret {
    const NAME: &'static str = "setSecret";
    const DESCRIPTION: &'static str = "Keeps a value under a name, encrypted; under a name that is there already it takes the place of the value there. exec, startBackgroundProcess, \
        createSandbox and updateSandbox give it to commands by its name (`secrets`). Nothing answers it again. Such a call is never stored: it is no step of a pipeline and cannot wait for an approval.";
    const ROUTES: &'static [Route] = &[Route { method: Method::Put, path: "/v1/secrets/{name}" }];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Set a secret",
        read_only_hint: false,
        destructive_hint: true,
        idempotent_hint: true,
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
        unrecorded_arguments: &["/value"],
        told_once: &[],
    };
    const EXECUTION: Execution = Execution::Immediate;

    type Input = Input;
    type Output = SecretInfo;

    fn claim(input: &Input, _facts: &CallFacts<'_>) -> Result<SandboxClaim> {
        if input.value.len() > LONGEST_VALUE {
            return Err(Error::invalid("/value", "is longer than 32 KiB"));
        }
        if input.value.contains('\0') {
            return Err(Error::invalid("/value", "holds a NUL character, which no variable can have"));
        }
        if input.value.trim().len() < SHORTEST_SECRET {
            let message =
                format!("has fewer than {SHORTEST_SECRET} bytes, and could not be masked in what commands write");
            return Err(Error::invalid("/value", message));
        }
        if input.description.as_ref().is_some_and(|text| text.chars().any(char::is_control)) {
            return Err(Error::invalid("/description", "holds a control character"));
        }
        Ok(SandboxClaim::None)
    }

    async fn preview(context: Context, input: Input) -> Result<Vec<String>> {
        key_names(&context)?;
        let name = input.name;
        let known = context.services.tenant.secrets(SecretRequest::Get { name: name.to_string() }).await;
        Ok(vec![match known {
            Ok(_) => format!("Secret {name} gets another value; the one it has is gone for good."),
            Err(error) if error.code == ErrorCode::NotFound => format!("Secret {name} is made."),
            Err(error) => return Err(error),
        }])
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<SecretInfo> {
        let Input { name, value, description } = input;
        let services = &context.services;
        let random = [services.platform.random(), services.platform.random()];
        let sealed = sealing::seal(&services.signer, &context.principal.tenant, name.as_str(), &value, random)?;
        let request = SecretRequest::Set { name: name.into(), description, sealed, at: context.admitted_at };
        let secret = services.tenant.secrets(request).await?.one()?;
        Ok(SecretInfo::of(secret, &key_names(&context)?))
    }
}
