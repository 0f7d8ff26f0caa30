//! setAlerts: the tenant's webhook, what it is told, and when storage is much.

use std::collections::BTreeSet;
use std::rc::Rc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::error::{Error, Result};
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::tenant::admission::SandboxClaim;
use crate::tenant::alerts::{AlertRequest, AlertSettings};
use crate::webhook::address::{self, Reach};
use crate::webhook::event::EventType;
use crate::webhook::signature::Keys;

/// Most bytes that can be watched for: a petabyte.
const MOST_BYTES: i64 = 1_000_000_000_000_000;

/// The settings, whole: what is left out is not set any more.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// URL that each alert is posted to: https, and never a private address.
    #[serde(default)]
    #[schema(max_length = 2048)]
    pub webhook_url: Option<String>,
    /// What is posted there beside alerts; default nothing.
    #[serde(default)]
    #[schema(required = false)]
    pub webhook_events: BTreeSet<EventType>,
    /// Bytes in R2 at which there is an alert; the first one is at 80 percent of them.
    #[serde(default)]
    #[schema(minimum = 1)]
    pub storage_warning_bytes: Option<i64>,
}

/// The settings now.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook_url: Option<String>,
    /// What the tenant's webhooks are signed with, those of single jobs (`Webhook-Url`) too, as receivers by Standard Webhooks take it;
    /// absent where SIGNING_SECRET is not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook_secret: Option<String>,
    /// What is posted beside alerts.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    #[schema(required = false)]
    pub webhook_events: BTreeSet<EventType>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_warning_bytes: Option<i64>,
}

pub struct SetAlerts;

impl Tool for SetAlerts {
    const NAME: &'static str = "setAlerts";
    const DESCRIPTION: &'static str = "Sets the webhook that alerts and chosen events of jobs and sandboxes are posted to, and the size of storage at which there is an alert; \
        what is left out is taken away. Alerts are of budgets (setBudget), of the day's seconds of sandboxes (setLimits) and of storage, at 80 and at 100 percent. \
        They are in the log too, and listAlerts lists them; listWebhookDeliveries tells what became of messages. Answers the secret that messages are signed \
        with, by Standard Webhooks.";
    const ROUTES: &'static [Route] = &[Route { method: Method::Put, path: "/v1/admin/alerts" }];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Set alerts",
        read_only_hint: false,
        destructive_hint: false,
        idempotent_hint: true,
        open_world_hint: true,
    };
    const GUARDRAILS: Guardrails = Guardrails {
        role: Role::Admin,
        scopes: &[Scope::UsageAdmin],
        approval: Approval::NotNeeded,
        default_timeout: 15,
        maximum_timeout: 15,
        output_cap_bytes: 64 * 1024,
        rate_class: RateClass::Read,
        unrecorded_arguments: &["/webhookUrl"],
        told_once: &["/webhookSecret"],
    };
    const EXECUTION: Execution = Execution::Inline;

    type Input = Input;
    type Output = Output;

    fn claim(input: &Input, _facts: &CallFacts<'_>) -> Result<SandboxClaim> {
        // Whether private addresses are open is the tenant's object to know.
        input.webhook_url.as_deref().map_or(Ok(()), |url| address::check(url, Reach::Anywhere, "/webhookUrl"))?;
        if input.webhook_url.is_none() && !input.webhook_events.is_empty() {
            return Err(Error::invalid("/webhookEvents", "need a webhookUrl to be posted to"));
        }
        if input.storage_warning_bytes.is_some_and(|bytes| bytes > MOST_BYTES) {
            return Err(Error::invalid("/storageWarningBytes", "must be at most 1,000,000,000,000,000"));
        }
        Ok(SandboxClaim::None)
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<Output> {
        let Input { webhook_url, webhook_events, storage_warning_bytes } = input;
        // Without a key to sign with there is no webhook.
        let keys = match Keys::of(&context.services.signer, &context.principal.tenant) {
            Err(error) if webhook_url.is_some() => return Err(error),
            keys => keys.ok(),
        };
        let settings = AlertSettings { webhook_url, webhook_events, storage_warning_bytes };
        let report = context.services.tenant.alerts(AlertRequest::SetSettings(settings)).await?;
        let AlertSettings { webhook_url, webhook_events, storage_warning_bytes } = report.settings;
        Ok(Output { webhook_url, webhook_secret: keys.map(|keys| keys.text()), webhook_events, storage_warning_bytes })
    }
}
