//! getSandbox: one sandbox as it is now, or, without an id, all of them.

use std::collections::BTreeMap;
use std::rc::Rc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::create_sandbox::check_labels;
use super::moment::moment;
use super::sandbox_info::{
    EnvironmentInfo, Resources, SandboxSummary, environment, internet_pending, resources, uptime,
};
use crate::error::{Error, Result};
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::identifier::SandboxId;
use crate::platform::rfc3339;
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::sandbox::record::StartReason;
use crate::sandbox::state::{State, Status};
use crate::tenant::admission::{ListRequest, SandboxClaim};
use crate::tenant::listing;

/// Most sandboxes that one answer lists; listSandboxes has pages.
const MOST_LISTED: usize = 1_000;

/// Sandboxes read from the list at a time.
const PAGE: u32 = 500;

/// Which sandbox, or which of them.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Name of the sandbox; without it, all that match `filters` are listed.
    #[serde(default)]
    pub sandbox_id: Option<SandboxId>,
    /// Which sandboxes to list; not together with `sandboxId`.
    #[serde(default)]
    pub filters: Option<Filters>,
}

/// All given filters must match.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Filters {
    /// running, stopped or error.
    #[serde(default)]
    pub status: Option<Status>,
    /// Created after this time: RFC 3339.
    #[serde(default)]
    #[schema(format = DateTime)]
    pub created_after: Option<String>,
    /// Key that created it.
    #[serde(default)]
    pub owner: Option<String>,
    /// Labels that it must have, all of them.
    #[serde(default)]
    #[schema(required = false)]
    pub labels: BTreeMap<String, String>,
}

impl Filters {
    /// The filters as the tenant's list takes them; `pointer` is where they stand in the arguments.
    pub fn checked(&self, pointer: &str) -> Result<listing::Filters> {
        let created_after = moment(self.created_after.as_deref(), &format!("{pointer}/createdAfter"))?;
        check_labels(&self.labels, &format!("{pointer}/labels"))?;
        Ok(listing::Filters {
            status: self.status,
            created_after,
            owner: self.owner.clone(),
            labels: self.labels.clone(),
        })
    }
}

/// One sandbox, or `sandboxes`.
#[derive(Debug, Default, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    /// Its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<String>,
    /// running, stopped or error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
    /// The exact state behind `status`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
    /// When it was created: RFC 3339, UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_at: Option<String>,
    /// Seconds since its last start; zero while it does not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uptime: Option<f64>,
    /// Use of the machine: zero while it does not run, absent when it runs and does not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// What its environment holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub environment: Option<EnvironmentInfo>,
    /// Whether it stays awake although nobody uses it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_alive: Option<bool>,
    /// Seconds without use after which it sleeps, unless it is kept alive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sleep_after: Option<u32>,
    /// When it was last used: RFC 3339, UTC. Asking is no use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_used_at: Option<String>,
    /// When it will be destroyed: RFC 3339, UTC. Absent when it will not be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// Whether commands reach the internet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub internet: Option<bool>,
    /// Present and true when `internet` was changed and holds from the next start on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub internet_pending: Option<bool>,
    /// Why it last started: created, woken after it slept, or restarted after it was lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_reason: Option<StartReason>,
    /// Number of starts. What ran in one generation is gone in the next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<u32>,
    /// Free words to find it by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    /// The sandboxes that match, when no id was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandboxes: Option<Vec<SandboxSummary>>,
    /// Present and true when there are more than the 1,000 listed; listSandboxes has pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncated: Option<bool>,
}

pub struct GetSandbox;

impl Tool for GetSandbox {
    const NAME: &'static str = "getSandbox";
    const DESCRIPTION: &'static str = "Tells of one sandbox: status, uptime, use of processor and memory, environment. Without \
        an id it lists the sandboxes that match the filters. Starts nothing and does not count as use.";
    const ROUTES: &'static [Route] = &[
        Route { method: Method::Get, path: "/v1/sandboxes/{sandboxId}" },
        Route { method: Method::Get, path: "/sandbox/{sandboxId}" },
    ];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Get a sandbox",
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
        output_cap_bytes: 4 * 1024 * 1024,
        rate_class: RateClass::Read,
        unrecorded_arguments: &[],
        told_once: &[],
    };
    const EXECUTION: Execution = Execution::Inline;

    type Input = Input;
    type Output = Output;

    fn claim(input: &Input, _facts: &CallFacts<'_>) -> Result<SandboxClaim> {
        if let Some(filters) = &input.filters {
            filters.checked("/filters")?;
        }
        match (&input.sandbox_id, &input.filters) {
            (Some(_), Some(_)) => Err(Error::invalid("/filters", "goes without sandboxId")),
            (Some(sandbox_id), None) => Ok(SandboxClaim::Untouched { sandbox_id: sandbox_id.clone() }),
            (None, _) => Ok(SandboxClaim::None),
        }
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<Output> {
        match input.sandbox_id {
            Some(sandbox_id) => one(&context, &sandbox_id).await,
            None => all(&context, &input.filters.unwrap_or_default()).await,
        }
    }
}

async fn one(context: &Context, sandbox_id: &SandboxId) -> Result<Output> {
    let described = context.services.sandboxes.describe(sandbox_id).await?;
    let resources = resources(&described);
    let record = described.record;
    Ok(Output {
        sandbox_id: Some(record.sandbox_id.to_string()),
        status: Some(record.state.status()),
        state: Some(record.state),
        created_at: Some(rfc3339(record.created_at)),
        uptime: Some(uptime(&record, context.services.platform.now_millis())),
        resources,
        environment: Some(environment(&record)),
        keep_alive: Some(record.settings.keep_alive),
        sleep_after: Some(record.settings.sleep_after()),
        last_used_at: record.started_at.map(|_| rfc3339(record.last_use())),
        expires_at: record.expires_at().map(rfc3339),
        start_reason: record.start_reason,
        internet: Some(record.settings.internet),
        internet_pending: internet_pending(&record),
        generation: Some(record.generation),
        labels: Some(record.settings.labels),
        ..Output::default()
    })
}

async fn all(context: &Context, filters: &Filters) -> Result<Output> {
    let filters = filters.checked("/filters")?;
    let mut sandboxes: Vec<SandboxSummary> = Vec::new();
    let mut after = None;
    loop {
        let listing = context
            .services
            .tenant
            .list_sandboxes(ListRequest { limit: PAGE, after, filters: filters.clone() })
            .await?;
        after = listing.sandboxes.last().map(|listed| listed.sandbox_id.to_string());
        sandboxes.extend(listing.sandboxes.into_iter().map(SandboxSummary::from));
        if !listing.more || after.is_none() || sandboxes.len() > MOST_LISTED {
            break;
        }
    }
    let truncated = (sandboxes.len() > MOST_LISTED).then_some(true);
    sandboxes.truncate(MOST_LISTED);
    Ok(Output { sandboxes: Some(sandboxes), truncated, ..Output::default() })
}
