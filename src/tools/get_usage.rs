//! getUsage: what keys have used, and what that is estimated to cost.

use std::rc::Rc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::error::{Error, Result};
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::tenant::admission::SandboxClaim;
use crate::tenant::alerts::Standing;
use crate::tenant::prices::Prices;
use crate::tenant::storage::StorageTold;
use crate::tenant::usage::{
    Cursor, DAYS, GroupBy, UsageReport, UsageRequest, UsageRow, day_of, day_text, first_day, month_of, parse_day,
};

const DEFAULT_ROWS: u32 = 100;

/// Which usage; all given filters must match.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// First day, in UTC, such as 2026-11-01. Default: the first of the month of `until`.
    #[serde(default)]
    #[schema(format = Date)]
    pub since: Option<String>,
    /// Last day, in UTC. Default: today.
    #[serde(default)]
    #[schema(format = Date)]
    pub until: Option<String>,
    /// Only this key; `root` is the root key.
    #[serde(default)]
    #[schema(max_length = 64)]
    pub key_id: Option<String>,
    /// Only this tool; `unknown` is what there is no tool for.
    #[serde(default)]
    #[schema(max_length = 64)]
    pub tool: Option<String>,
    /// What rows are added up over: each (a row for every day, key and tool), day, key or tool. Default: each.
    #[serde(default)]
    #[schema(inline)]
    pub group_by: Option<GroupBy>,
    /// Most rows in this page; default 100.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 1000, default = 100)]
    pub limit: Option<u32>,
    /// `nextCursor` of the page before.
    #[serde(default)]
    #[schema(max_length = 160)]
    pub cursor: Option<String>,
}

/// The usage.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    /// First day told of.
    pub since: String,
    /// Last day told of.
    pub until: String,
    /// In the order of day, key and tool; where nothing was used there is no row.
    pub usage: Vec<UsageRow>,
    /// The sum of all that was asked for, whatever the page.
    pub total: UsageRow,
    /// The prices, in US dollars, that costs are estimated with.
    pub prices: Prices,
    /// Budgets as they stand; of the day's seconds of sandboxes those of keys whose sandboxes ran today.
    pub budgets: Vec<Standing>,
    /// What the tenant keeps in R2, whatever days are asked for; absent where there is no bucket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<StorageTold>,
    /// For the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

pub struct GetUsage;

impl Tool for GetUsage {
    const NAME: &'static str = "getUsage";
    const DESCRIPTION: &'static str = "Tells what was used, by day, key and tool: calls, failures, seconds of commands and of sandboxes, bytes, and an estimate of \
        what that costs with the prices it names. Kept for 400 days.";
    const ROUTES: &'static [Route] = &[Route { method: Method::Get, path: "/v1/admin/usage" }];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Get usage",
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

    fn claim(input: &Input, facts: &CallFacts<'_>) -> Result<SandboxClaim> {
        request(input, facts.platform.now_millis()).map(|_| SandboxClaim::None)
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<Output> {
        let request = request(&input, context.admitted_at)?;
        let (since, until) = (day_text(request.since_day), day_text(request.until_day));
        let report = context.services.tenant.usage(request).await?;
        let UsageReport { rows, total, next, prices, budgets, storage } = report;
        Ok(Output { since, until, usage: rows, total, prices, budgets, storage, next_cursor: next })
    }
}

fn request(input: &Input, now: i64) -> Result<UsageRequest> {
    let day = |pointer: &str, text: &Option<String>| match text {
        None => Ok(None),
        Some(text) => {
            parse_day(text).map(Some).ok_or_else(|| Error::invalid(pointer, "is not a day such as 2026-11-28"))
        }
    };
    let until_day = day("/until", &input.until)?.unwrap_or(day_of(now));
    let month = |day: i64| first_day(month_of(day.saturating_mul(24 * 60 * 60 * 1000)));
    let since_day = day("/since", &input.since)?.unwrap_or_else(|| month(until_day));
    if since_day > until_day {
        return Err(Error::invalid("/since", "must not be after until"));
    }
    if until_day - since_day > DAYS {
        return Err(Error::invalid("/since", format!("is more than {DAYS} days before until")));
    }
    let group_by = input.group_by.unwrap_or_default();
    let after = match &input.cursor {
        None => None,
        Some(text) => Some(
            Cursor::parse(text, group_by)
                .ok_or_else(|| Error::invalid("/cursor", "is no nextCursor of a page with this groupBy"))?,
        ),
    };
    Ok(UsageRequest {
        since_day,
        until_day,
        group_by,
        key_id: input.key_id.clone(),
        tool: input.tool.clone(),
        limit: input.limit.unwrap_or(DEFAULT_ROWS),
        after,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// 2026-11-28T12:00:00Z.
    const NOW: i64 = 1_795_867_200_000;

    fn asked(input: Value) -> Result<UsageRequest> {
        request(&serde_json::from_value(input).unwrap(), NOW)
    }

    #[test]
    fn without_a_time_it_is_the_month_so_far() {
        let request = asked(json!({})).unwrap();
        let days = [request.since_day, request.until_day].map(day_text);
        assert_eq!(days, ["2026-11-01", "2026-11-28"]);
        assert_eq!((request.group_by, request.limit), (GroupBy::Each, 100));
        let request = asked(json!({ "until": "2026-02-10" })).unwrap();
        assert_eq!(day_text(request.since_day), "2026-02-01");
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let message = |input| asked(input).unwrap_err().message;
        assert!(message(json!({ "since": "yesterday" })).starts_with("since:"));
        assert!(message(json!({ "until": "2026-11-31" })).starts_with("until:"));
        assert!(message(json!({ "since": "2026-12-01" })).starts_with("since:"));
        assert!(message(json!({ "since": "2025-01-01" })).starts_with("since:"));
        assert!(message(json!({ "cursor": "exec" })).starts_with("cursor:"));
    }
}
