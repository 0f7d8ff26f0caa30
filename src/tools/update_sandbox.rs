//! updateSandbox: changes how long a sandbox is wanted, how it is found, and what its commands get as environment.

use std::collections::BTreeMap;
use std::rc::Rc;

use serde::Deserialize;
use utoipa::ToSchema;

use super::create_sandbox::{check_environment, check_labels, expiry};
use super::sandbox_info::SandboxNow;
use super::using_secrets;
use crate::error::{Error, Result};
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::identifier::SandboxId;
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::sandbox::settings::{Expiry, Update};
use crate::tenant::admission::SandboxClaim;
use crate::tenant::secret_name::SecretName;

/// What to change; what is absent stays as it is.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Name of the sandbox.
    pub sandbox_id: SandboxId,
    /// All its labels from now on; an empty object removes them.
    #[serde(default)]
    #[schema(required = false)]
    pub labels: Option<BTreeMap<String, String>>,
    /// Variables to set; others stay. What is run next has them, what runs already does not.
    #[serde(default)]
    #[schema(required = false)]
    pub env: BTreeMap<String, String>,
    /// Variables to give the values of named secrets, each with the name of its secret: `{"NPM_TOKEN": "npm-token"}`; others stay. The
    /// values are those of now, and then of each start. Needs the scope secrets:use.
    #[serde(default)]
    #[schema(required = false)]
    pub secrets: BTreeMap<String, SecretName>,
    /// Names of variables to remove, whether they have a value or a secret's.
    #[serde(default)]
    #[schema(required = false, max_items = 128)]
    pub unset_env: Vec<String>,
    /// Seconds without use after which it sleeps.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 86400)]
    pub sleep_after: Option<u32>,
    /// Whether it stays awake although nobody uses it.
    #[serde(default)]
    pub keep_alive: Option<bool>,
    /// Whether commands reach the internet, from the next start on. A start that the machine cannot make so is refused.
    #[serde(default)]
    pub internet: Option<bool>,
    /// Seconds from now after which it is destroyed, used or not; 0 means never. Not together with `expiresAt`.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 31536000)]
    pub expires_after: Option<u32>,
    /// When it is destroyed, used or not: RFC 3339.
    #[serde(default)]
    #[schema(format = DateTime)]
    pub expires_at: Option<String>,
}

pub struct UpdateSandbox;

impl Tool for UpdateSandbox {
    const NAME: &'static str = "updateSandbox";
    const DESCRIPTION: &'static str = "Changes labels, environment, idle time, keep-alive or expiry of a sandbox, running or not; \
        starts nothing and does not count as use. A new environment holds for what is run next. A sandbox that exec made by itself is kept \
        like any other once sleepAfter or keepAlive is set.";
    const ROUTES: &'static [Route] = &[Route { method: Method::Patch, path: "/v1/sandboxes/{sandboxId}" }];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Update a sandbox",
        read_only_hint: false,
        destructive_hint: false,
        idempotent_hint: true,
        open_world_hint: false,
    };
    const GUARDRAILS: Guardrails = Guardrails {
        role: Role::Operator,
        scopes: &[Scope::SandboxWrite],
        approval: Approval::NotNeeded,
        default_timeout: 15,
        maximum_timeout: 15,
        output_cap_bytes: 256 * 1024,
        rate_class: RateClass::SandboxOperation,
        unrecorded_arguments: &["/env"],
        told_once: &[],
    };
    const EXECUTION: Execution = Execution::Inline;

    type Input = Input;
    type Output = SandboxNow;

    fn claim(input: &Input, facts: &CallFacts<'_>) -> Result<SandboxClaim> {
        update(input, facts.platform.now_millis())?;
        let sandbox_id = input.sandbox_id.clone();
        let keeps_it_running = input.keep_alive == Some(true) || input.sleep_after.is_some();
        Ok(if keeps_it_running { SandboxClaim::Running { sandbox_id } } else { SandboxClaim::Untouched { sandbox_id } })
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<SandboxNow> {
        let mut update = update(&input, context.admitted_at)?;
        update.labels = update.labels.map(|labels| context.permissions.labelled(labels)).transpose()?;
        context.services.sandboxes.update(&input.sandbox_id, &update).await.map(SandboxNow::from)
    }
}

fn update(input: &Input, now: i64) -> Result<Update> {
    input.labels.as_ref().map_or(Ok(()), |labels| check_labels(labels, "/labels"))?;
    check_environment(&input.env)?;
    using_secrets::check(&input.secrets, &input.env)?;
    for (field, is_set) in [
        ("env", input.unset_env.iter().find(|name| input.env.contains_key(*name))),
        ("secrets", input.unset_env.iter().find(|name| input.secrets.contains_key(*name))),
    ] {
        if let Some(name) = is_set {
            return Err(Error::invalid("/unsetEnv", format!("names {name:?}, which `{field}` sets")));
        }
    }
    let expiry = match (input.expires_after, &input.expires_at) {
        (Some(0), None) => Some(Expiry::Never),
        (seconds, at) => expiry(seconds, at.as_deref(), now)?,
    };
    Ok(Update {
        labels: input.labels.clone(),
        env: input.env.clone(),
        secrets: input.secrets.clone(),
        unset_env: input.unset_env.clone(),
        sleep_after: input.sleep_after,
        keep_alive: input.keep_alive,
        expiry,
        internet: input.internet,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parsed(fields: serde_json::Value) -> Result<Update> {
        let mut fields = fields;
        fields["sandboxId"] = json!("a");
        update(&serde_json::from_value(fields).unwrap(), 1_000)
    }

    #[test]
    fn an_expiry_is_named_in_one_way() {
        assert_eq!(parsed(json!({})).unwrap().expiry, None);
        assert_eq!(parsed(json!({"expiresAfter": 0})).unwrap().expiry, Some(Expiry::Never));
        assert_eq!(parsed(json!({"expiresAfter": 5})).unwrap().expiry, Some(Expiry::After(5)));
        assert_eq!(parsed(json!({"expiresAt": "1970-01-01T00:00:02Z"})).unwrap().expiry, Some(Expiry::At(2_000)));
        for bad in [
            json!({"expiresAt": "1970-01-01T00:00:01Z"}),
            json!({"expiresAt": "soon"}),
            json!({"expiresAt": "2999-01-01T00:00:00Z", "expiresAfter": 1}),
            json!({"expiresAt": "2999-01-01T00:00:00Z", "expiresAfter": 0}),
            json!({"env": {"A": "1"}, "unsetEnv": ["A"]}),
            json!({"env": {"A=B": "1"}}),
        ] {
            assert!(parsed(bad.clone()).is_err(), "{bad}");
        }
    }
}
