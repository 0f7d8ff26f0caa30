//! listAlerts: what budgets there are, and the alerts of the last days with their way to the webhook.

use std::rc::Rc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::error::Result;
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::tenant::admission::SandboxClaim;
use crate::tenant::alerts::{Alert, AlertReport, AlertRequest, Standing};

const DEFAULT_ALERTS: u32 = 50;

/// How many.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Most alerts; default 50.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 500, default = 50)]
    pub limit: Option<u32>,
}

/// Budgets and alerts.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    /// The last alerts, the newest first; they are kept for 100 days.
    pub alerts: Vec<Alert>,
    /// Budgets as they stand; of the day's seconds those of keys whose sandboxes ran today.
    pub budgets: Vec<Standing>,
    /// Whether alerts are posted to a webhook.
    pub has_webhook: bool,
    /// Bytes in R2 at which there is an alert.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_warning_bytes: Option<i64>,
}

pub struct ListAlerts;

impl Tool for ListAlerts {
    const NAME: &'static str = "listAlerts";
    const DESCRIPTION: &'static str =
        "Lists budgets as they stand, and the last alerts with what became of their delivery to the webhook.";
    const ROUTES: &'static [Route] = &[Route { method: Method::Get, path: "/v1/admin/alerts" }];
    const ANNOTATIONS: Annotations = Annotations {
        title: "List alerts",
        read_only_hint: true,
        destructive_hint: false,
        idempotent_hint: true,
        open_world_hint: false,
    };
    const GUARDRAILS: Guardrails = Guardrails {
        role: Role::Viewer,
        scopes: &[Scope::UsageRead],
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
        let request = AlertRequest::List { limit: input.limit.unwrap_or(DEFAULT_ALERTS) };
        let AlertReport { settings, budgets, alerts } = context.services.tenant.alerts(request).await?;
        let (has_webhook, storage_warning_bytes) = (settings.webhook_url.is_some(), settings.storage_warning_bytes);
        Ok(Output { alerts, budgets, has_webhook, storage_warning_bytes })
    }
}
