//! listWebhookDeliveries: messages to webhooks and what became of them, in pages.

use std::rc::Rc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::error::{Error, Result};
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::identifier::SandboxId;
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::tenant::admission::SandboxClaim;
use crate::tenant::deliveries::{Delivery, DeliveryListRequest, DeliveryListing, DeliveryState};
use crate::whole;

/// Which page; all given filters must match.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Most messages in this page; default 100.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 500, default = 100)]
    pub limit: Option<u32>,
    /// `nextCursor` of the page before.
    #[serde(default)]
    #[schema(max_length = 20)]
    pub cursor: Option<String>,
    /// Only messages in this state.
    #[serde(default)]
    pub state: Option<DeliveryState>,
    /// Only messages about this job.
    #[serde(default)]
    #[schema(max_length = 64)]
    pub job_id: Option<String>,
    /// Only messages about this sandbox.
    #[serde(default)]
    pub sandbox_id: Option<SandboxId>,
}

/// One page.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    /// The last one first; each receiver of an event has one.
    pub deliveries: Vec<Delivery>,
    /// For the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

pub struct ListWebhookDeliveries;

impl Tool for ListWebhookDeliveries {
    const NAME: &'static str = "listWebhookDeliveries";
    const DESCRIPTION: &'static str = "Lists messages to webhooks, the last first: what each tells, whether it was taken, and why not. They are listed for a week after their end, \
        5,000 at most. Neither URLs nor the secret are told.";
    const ROUTES: &'static [Route] = &[Route { method: Method::Get, path: "/v1/admin/webhooks/deliveries" }];
    const ANNOTATIONS: Annotations = Annotations {
        title: "List webhook deliveries",
        read_only_hint: true,
        destructive_hint: false,
        idempotent_hint: true,
        open_world_hint: false,
    };
    const GUARDRAILS: Guardrails = Guardrails {
        role: Role::Admin,
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

    fn claim(input: &Input, _facts: &CallFacts<'_>) -> Result<SandboxClaim> {
        place(input).map(|_| SandboxClaim::None)
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<Output> {
        let request = DeliveryListRequest {
            limit: input.limit.unwrap_or(100),
            before: place(&input)?,
            state: input.state,
            job_id: input.job_id,
            sandbox_id: input.sandbox_id.map(|id| id.as_str().to_owned()),
        };
        let DeliveryListing { deliveries, more } = context.services.tenant.deliveries(request).await?;
        let next_cursor = deliveries.last().filter(|_| more).map(|last| last.seq.to_string());
        Ok(Output { deliveries: deliveries.into_iter().map(Delivery::from).collect(), next_cursor })
    }
}

fn place(input: &Input) -> Result<Option<i64>> {
    let message = "is none of listWebhookDeliveries";
    let read = |text: &String| whole::place(text).ok_or_else(|| Error::invalid("/cursor", message));
    input.cursor.as_ref().map(read).transpose()
}
