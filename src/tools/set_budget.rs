//! setBudget: what may be spent in a month before there is an alert.

use std::rc::Rc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::key_info::check_id;
use crate::error::{Error, Result};
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::tenant::admission::SandboxClaim;
use crate::tenant::alerts::{AlertRequest, BudgetKind, Standing};

/// Most dollars of a budget.
const MOST_USD: f64 = 1e9;

/// Whose budget, and how much.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Key whose budget it is, `root` for the root key; without it the whole tenant's.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 64)]
    pub key_id: Option<String>,
    /// Estimated US dollars in a month, in UTC; without it there is no budget any more.
    #[serde(default)]
    #[schema(exclusive_minimum = 0, maximum = 1_000_000_000)]
    pub monthly_usd: Option<f64>,
}

/// The budget now.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    /// How it stands; absent where there is none any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<Standing>,
}

pub struct SetBudget;

impl Tool for SetBudget {
    const NAME: &'static str = "setBudget";
    const DESCRIPTION: &'static str = "Sets what a key, or the whole tenant, may be estimated to cost in a month, or takes that away. At 80 and at 100 percent there is \
        an alert, see setAlerts. Nothing is refused for it: setLimits does that.";
    const ROUTES: &'static [Route] = &[Route { method: Method::Put, path: "/v1/admin/budget" }];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Set a budget",
        read_only_hint: false,
        destructive_hint: false,
        idempotent_hint: true,
        open_world_hint: false,
    };
    const GUARDRAILS: Guardrails = Guardrails {
        role: Role::Admin,
        scopes: &[Scope::UsageAdmin],
        approval: Approval::NotNeeded,
        default_timeout: 15,
        maximum_timeout: 15,
        output_cap_bytes: 1024 * 1024,
        rate_class: RateClass::Read,
        unrecorded_arguments: &[],
        told_once: &[],
    };
    const EXECUTION: Execution = Execution::Inline;

    type Input = Input;
    type Output = Output;

    fn claim(input: &Input, _facts: &CallFacts<'_>) -> Result<SandboxClaim> {
        if let Some(key_id) = &input.key_id {
            check_id(key_id)?;
        }
        // A schema takes numbers that are no dollars.
        if input.monthly_usd.is_some_and(|dollars| !(dollars > 0.0 && dollars <= MOST_USD)) {
            return Err(Error::invalid("/monthlyUsd", "must be more than 0 and at most 1,000,000,000"));
        }
        Ok(SandboxClaim::None)
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<Output> {
        let Input { key_id, monthly_usd } = input;
        let request = AlertRequest::SetBudget { key_id: key_id.clone(), monthly_usd };
        let report = context.services.tenant.alerts(request).await?;
        let is_it = |standing: &Standing| standing.budget == BudgetKind::MonthlyUsd && standing.key_id == key_id;
        Ok(Output { budget: report.budgets.into_iter().find(is_it) })
    }
}
