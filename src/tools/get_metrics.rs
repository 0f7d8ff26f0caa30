//! getMetrics: how many calls there were, how they ended and how long they took, and the same of starts.

use std::rc::Rc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::error::{Error, Result};
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::platform::{parse_rfc3339, rfc3339};
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::tenant::admission::SandboxClaim;
use crate::tenant::metrics::{DAYS, HOUR_MILLIS, Interval, MetricsRequest, Period, Report};

/// Hours that are told when no time is named.
const DEFAULT_HOURS: i64 = 24;
const MOST_HOURS: i64 = DAYS * 24;
/// Most periods of one answer.
const MOST_PERIODS: i64 = 7 * 24;

/// Which time.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Beginning, RFC 3339; its whole hour counts. Default: 24 hours before `until`.
    #[serde(default)]
    #[schema(format = DateTime)]
    pub since: Option<String>,
    /// End, RFC 3339; its whole hour counts. Default: now.
    #[serde(default)]
    #[schema(format = DateTime)]
    pub until: Option<String>,
    /// Length of the periods that counts are added up over. Default: whole. By hour at most seven days are told.
    #[serde(default)]
    #[schema(inline)]
    pub interval: Option<Interval>,
}

/// The counts.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    /// Beginning of the first hour counted.
    pub since: String,
    /// End of the last hour counted.
    pub until: String,
    /// Upper bounds of the buckets in milliseconds; a last bucket holds what took longer.
    pub bounds_ms: Vec<i64>,
    /// In the order of time; periods in which nothing happened are left out.
    pub periods: Vec<Period>,
    /// Sandboxes listed now.
    pub sandboxes: u64,
    /// Calls admitted and not settled yet, this one among them.
    pub calls_under_way: u64,
}

pub struct GetMetrics;

impl Tool for GetMetrics {
    const NAME: &'static str = "getMetrics";
    const DESCRIPTION: &'static str = "Counts the tenant's calls by tool and outcome, with their durations, the starts of sandboxes with \
        theirs, and sandboxes created and destroyed, by hour, by day or in all. Kept for 31 days.";
    const ROUTES: &'static [Route] = &[Route { method: Method::Get, path: "/v1/metrics" }];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Get metrics",
        read_only_hint: true,
        destructive_hint: false,
        idempotent_hint: true,
        open_world_hint: false,
    };
    const GUARDRAILS: Guardrails = Guardrails {
        role: Role::Viewer,
        scopes: &[Scope::MetricsRead],
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

    fn claim(input: &Input, facts: &CallFacts<'_>) -> Result<SandboxClaim> {
        request(input, facts.platform.now_millis()).map(|_| SandboxClaim::None)
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<Output> {
        let request = request(&input, context.admitted_at)?;
        let (since, until) = (request.since_hour, request.until_hour);
        let Report { bounds_ms, periods, sandboxes, calls_under_way } =
            context.services.tenant.metrics(request).await?;
        let time = |hour: i64| rfc3339(hour.saturating_mul(HOUR_MILLIS));
        Ok(Output { since: time(since), until: time(until), bounds_ms, periods, sandboxes, calls_under_way })
    }
}

fn request(input: &Input, now: i64) -> Result<MetricsRequest> {
    let time = |pointer: &str, text: &Option<String>| match text {
        None => Ok(None),
        Some(text) => parse_rfc3339(text)
            .map(Some)
            .ok_or_else(|| Error::invalid(pointer, "is not a time as 2026-08-01T12:00:00Z")),
    };
    let until = time("/until", &input.until)?.unwrap_or(now);
    // A whole hour ends before the next begins.
    let until_hour = (until - 1).div_euclid(HOUR_MILLIS) + 1;
    let since_hour =
        time("/since", &input.since)?.map_or(until_hour - DEFAULT_HOURS, |since| since.div_euclid(HOUR_MILLIS));
    if since_hour >= until_hour {
        return Err(Error::invalid("/since", "must be before until"));
    }
    if until_hour - since_hour > MOST_HOURS + 1 {
        return Err(Error::invalid("/since", format!("is more than {DAYS} days before until")));
    }
    let interval = input.interval.unwrap_or_default();
    if interval == Interval::Hour && until_hour - since_hour > MOST_PERIODS + 1 {
        return Err(Error::invalid("/interval", "hours are told of seven days at most"));
    }
    Ok(MetricsRequest { since_hour, until_hour, interval })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(since: Option<&str>, until: Option<&str>, interval: Option<Interval>) -> Result<MetricsRequest> {
        let input = Input { since: since.map(str::to_owned), until: until.map(str::to_owned), interval };
        request(&input, 50 * HOUR_MILLIS + 1)
    }

    #[test]
    fn without_a_time_it_is_the_last_day_with_the_hour_under_way() {
        let request = asked(None, None, None).unwrap();
        assert_eq!((request.since_hour, request.until_hour, request.interval), (27, 51, Interval::Whole));
    }

    #[test]
    fn whole_hours_count() {
        let request = asked(Some("1970-01-01T01:59:00Z"), Some("1970-01-01T03:00:00Z"), None).unwrap();
        assert_eq!((request.since_hour, request.until_hour), (1, 3));
    }

    #[test]
    fn times_that_make_no_sense_are_named() {
        let message = |since, until, interval| asked(since, until, interval).unwrap_err().message;
        assert!(message(Some("yesterday"), None, None).starts_with("since:"));
        assert!(message(None, Some("1"), None).starts_with("until:"));
        assert!(message(Some("1970-01-05T00:00:00Z"), None, None).starts_with("since:"));
        assert!(message(Some("1969-11-01T00:00:00Z"), None, None).starts_with("since:"));
        assert!(message(Some("1969-12-20T00:00:00Z"), None, Some(Interval::Hour)).starts_with("interval:"));
    }
}
