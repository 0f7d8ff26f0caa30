//! listSandboxes: every sandbox of the tenant, in pages.

use std::collections::BTreeMap;
use std::rc::Rc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::get_sandbox::Filters;
use super::sandbox_info::SandboxSummary;
use crate::error::Result;
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::identifier::SandboxId;
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::sandbox::state::Status;
use crate::tenant::admission::{ListRequest, SandboxClaim};
use crate::tenant::listing;

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
    /// Only those that are running, stopped or error.
    #[serde(default)]
    pub status: Option<Status>,
    /// Only those created after this time: RFC 3339.
    #[serde(default)]
    #[schema(format = DateTime)]
    pub created_after: Option<String>,
    /// Only those that this key created.
    #[serde(default)]
    pub owner: Option<String>,
    /// Only those that have all of these labels.
    #[serde(default)]
    #[schema(required = false)]
    pub labels: BTreeMap<String, String>,
}

impl Input {
    fn filters(&self) -> Result<listing::Filters> {
        let filters = Filters {
            status: self.status,
            created_after: self.created_after.clone(),
            owner: self.owner.clone(),
            labels: self.labels.clone(),
        };
        filters.checked("")
    }
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
    const DESCRIPTION: &'static str = "Lists the sandboxes of the caller's tenant that match every given filter, in pages. Starts nothing and does not count as use.";
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
        told_once: &[],
    };
    const EXECUTION: Execution = Execution::Inline;

    type Input = Input;
    type Output = Output;

    fn claim(input: &Input, _facts: &CallFacts<'_>) -> Result<SandboxClaim> {
        input.filters()?;
        Ok(SandboxClaim::None)
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<Output> {
        let filters = input.filters()?;
        let limit = input.limit.unwrap_or(DEFAULT_LIMIT);
        let request = ListRequest { limit, after: input.cursor.map(String::from), filters };
        let listing = context.services.tenant.list_sandboxes(request).await?;
        let last = listing.sandboxes.last().map(|listed| listed.sandbox_id.to_string());
        Ok(Output {
            sandboxes: listing.sandboxes.into_iter().map(SandboxSummary::from).collect(),
            next_cursor: last.filter(|_| listing.more),
        })
    }
}
