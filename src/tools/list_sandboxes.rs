//! listSandboxes: every sandbox of the tenant, in pages.

use std::rc::Rc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::sandbox_info::SandboxSummary;
use crate::error::Result;
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::identifier::SandboxId;
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::tenant::admission::{ListRequest, SandboxClaim};

const DEFAULT_LIMIT: u32 = 100;

/// Which page.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Most sandboxes in this page; default 100.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 500, default = 100)]
    pub limit: Option<u32>,
    /// `nextCursor` of the page before.
    #[serde(default)]
    pub cursor: Option<SandboxId>,
}

/// One page.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    /// In the order of their names.
    pub sandboxes: Vec<SandboxSummary>,
    /// Present when there are more: the `cursor` of the next page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

pub struct ListSandboxes;

impl Tool for ListSandboxes {
    const NAME: &'static str = "listSandboxes";
    const DESCRIPTION: &'static str =
        "Lists the sandboxes of the caller's tenant in pages. Starts nothing and does not count as use.";
    const ROUTES: &'static [Route] = &[Route { method: Method::Get, path: "/v1/sandboxes" }];
    const ANNOTATIONS: Annotations = Annotations {
        title: "List sandboxes",
        read_only_hint: true,
        destructive_hint: false,
        idempotent_hint: true,
        open_world_hint: false,
    };
    const GUARDRAILS: Guardrails = Guardrails {
        role: Role::Viewer,
        scopes: &[Scope::SandboxRead],
        approval: Approval::NotNeeded,
        default_timeout: 15,
        maximum_timeout: 15,
        output_cap_bytes: 8 * 1024 * 1024,
        rate_class: RateClass::Read,
        unrecorded_arguments: &[],
    };
    const EXECUTION: Execution = Execution::Inline;

    type Input = Input;
    type Output = Output;

    fn claim(_input: &Input, _facts: &CallFacts<'_>) -> Result<SandboxClaim> {
        Ok(SandboxClaim::None)
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<Output> {
        let request =
            ListRequest { limit: input.limit.unwrap_or(DEFAULT_LIMIT), after: input.cursor.map(String::from) };
        let listing = context.services.tenant.list_sandboxes(request).await?;
        let last = listing.sandboxes.last().map(|listed| listed.sandbox_id.to_string());
        Ok(Output {
            sandboxes: listing.sandboxes.into_iter().map(SandboxSummary::from).collect(),
            next_cursor: last.filter(|_| listing.more),
        })
    }
}
