//! What usage is estimated to cost: quantities times prices.
//!
//! The prices are list prices beyond what the Workers Paid plan includes, so an estimate is an upper bound where little is used.
//! Left out: processor time that background processes use while no command is waited for, logs, and the plan itself.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::usage::Quantities;
use crate::error::{Error, ErrorCode, Result};

/// Variable of the Worker with prices that replace these, as JSON with any of the fields of [`Prices`].
pub const VARIABLE: &str = "PRICES";

const GIGABYTE: f64 = 1e9;

/// Prices in US dollars.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Prices {
    /// Of one call.
    pub per_call: f64,
    /// Of one second in which a command runs.
    pub per_exec_second: f64,
    /// Of one second in which a sandbox runs.
    pub per_sandbox_second: f64,
    /// Of 1,000,000,000 bytes that are answered.
    pub per_gigabyte_out: f64,
    /// Of 1,000,000,000 bytes that are kept in R2 for a month.
    pub per_gigabyte_month_stored: f64,
    /// Where they are from.
    pub source: String,
    /// When they were read there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub as_of: Option<String>,
}

/// Cloudflare's list prices as of 2026-08-03, for the instance type `standard-1` (1/2 vCPU, 4 GiB, 8 GB of disk) that
/// `wrangler.toml` names: <https://developers.cloudflare.com/containers/pricing/>,
/// <https://developers.cloudflare.com/workers/platform/pricing/>, <https://developers.cloudflare.com/durable-objects/platform/pricing/>,
/// <https://developers.cloudflare.com/r2/pricing/>.
impl Default for Prices {
    fn default() -> Self {
        const VCPU_SECOND: f64 = 0.000_020;
        const GIB_SECOND: f64 = 0.000_002_5;
        const DISK_GB_SECOND: f64 = 0.000_000_07;
        const WORKER_REQUEST: f64 = 0.30 / 1e6;
        const OBJECT_REQUEST: f64 = 0.15 / 1e6;
        const OBJECT_GB_SECOND: f64 = 12.50 / 1e6;
        const ROW_WRITTEN: f64 = 1.00 / 1e6;
        Self {
            // A request, three passes into objects, and the rows that admission and settlement write, indexes included.
            per_call: WORKER_REQUEST + 3.0 * OBJECT_REQUEST + 16.0 * ROW_WRITTEN,
            // The processor is billed as it is used: here as if a command used all of it.
            per_exec_second: 0.5 * VCPU_SECOND,
            // Memory, disk, and the object (128 MB) that stays in memory with its container.
            per_sandbox_second: 4.0 * GIB_SECOND + 8.0 * DISK_GB_SECOND + 0.128 * OBJECT_GB_SECOND,
            per_gigabyte_out: 0.025,
            per_gigabyte_month_stored: 0.015,
            source: "https://developers.cloudflare.com/containers/pricing/".to_owned(),
            as_of: Some("2026-08-03".to_owned()),
        }
    }
}

impl Prices {
    /// The prices that hold where `configured` is the value of the variable; 503 when it cannot be read.
    pub fn configured(configured: Option<&str>) -> Result<Self> {
        let Some(text) = configured else { return Ok(Self::default()) };
        let refuse = |why: String| {
            let message = format!("the variable {VARIABLE} {why}");
            Error::new(ErrorCode::NotConfigured, message).detail("variable", VARIABLE)
        };
        let own = Self { source: VARIABLE.to_owned(), as_of: None, ..Self::default() };
        let given: Given = serde_json::from_str(text).map_err(|error| refuse(format!("is not read: {error}")))?;
        let prices = Self {
            per_call: given.per_call.unwrap_or(own.per_call),
            per_exec_second: given.per_exec_second.unwrap_or(own.per_exec_second),
            per_sandbox_second: given.per_sandbox_second.unwrap_or(own.per_sandbox_second),
            per_gigabyte_out: given.per_gigabyte_out.unwrap_or(own.per_gigabyte_out),
            per_gigabyte_month_stored: given.per_gigabyte_month_stored.unwrap_or(own.per_gigabyte_month_stored),
            source: given.source.unwrap_or(own.source),
            as_of: given.as_of,
        };
        if prices.numbers().iter().any(|price| !price.is_finite() || *price < 0.0) {
            return Err(refuse("holds a price that is negative or no number".to_owned()));
        }
        Ok(prices)
    }

    fn numbers(&self) -> [f64; 5] {
        let Self { per_call, per_exec_second, per_sandbox_second, per_gigabyte_out, per_gigabyte_month_stored, .. } =
            self;
        [*per_call, *per_exec_second, *per_sandbox_second, *per_gigabyte_out, *per_gigabyte_month_stored]
    }

    /// Estimated cost in US dollars.
    pub fn cost(&self, used: &Quantities) -> f64 {
        let seconds = |millis: i64| float(millis) / 1000.0;
        float(used.calls) * self.per_call
            + seconds(used.exec_ms) * self.per_exec_second
            + seconds(used.sandbox_ms) * self.per_sandbox_second
            + float(used.bytes_out) / GIGABYTE * self.per_gigabyte_out
    }

    /// Estimated cost of keeping so much for a month.
    pub fn stored_cost(&self, bytes: i64) -> f64 {
        float(bytes) / GIGABYTE * self.per_gigabyte_month_stored
    }
}

/// A cost without the digits that come from adding up.
pub fn rounded(dollars: f64) -> f64 {
    (dollars * 1e9).round() / 1e9
}

/// What the variable may say.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Given {
    per_call: Option<f64>,
    per_exec_second: Option<f64>,
    per_sandbox_second: Option<f64>,
    per_gigabyte_out: Option<f64>,
    per_gigabyte_month_stored: Option<f64>,
    source: Option<String>,
    as_of: Option<String>,
}

/// Quantities are far below 2^53.
#[allow(clippy::cast_precision_loss)]
fn float(number: i64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_of_the_standard_sandbox_costs_what_the_list_says() {
        let hour = Quantities { sandbox_ms: 3_600_000, exec_ms: 3_600_000, ..Quantities::default() };
        // 4 GiB, 8 GB, half a processor and 128 MB of an object, for 3600 s.
        let expected = 3600.0 * (0.000_01 + 0.000_000_56 + 0.000_01 + 0.000_001_6);
        assert!((Prices::default().cost(&hour) - expected).abs() < 1e-9);
        let calls = Quantities { calls: 1_000_000, ..Quantities::default() };
        assert!((Prices::default().cost(&calls) - 16.75).abs() < 1e-6);
        assert!((Prices::default().stored_cost(2_000_000_000) - 0.03).abs() < 1e-12);
    }

    #[test]
    fn configured_prices_replace_single_ones_and_say_where_they_are_from() {
        assert_eq!(Prices::configured(None).unwrap(), Prices::default());
        let own = Prices::configured(Some(r#"{"perCall": 0, "perSandboxSecond": 0.5}"#)).unwrap();
        let used = Quantities { calls: 9, sandbox_ms: 2_000, ..Quantities::default() };
        assert!((own.cost(&used) - 1.0).abs() < 1e-12);
        assert_eq!((own.source.as_str(), own.as_of.as_deref()), ("PRICES", None));
        for wrong in ["", "{", "[]", r#"{"perCall": -1}"#, r#"{"perCall": "1"}"#, r#"{"perDay": 1}"#] {
            let error = Prices::configured(Some(wrong)).unwrap_err();
            assert!(error.code == ErrorCode::NotConfigured && error.message.contains("PRICES"), "{wrong}");
        }
    }

    #[test]
    fn sums_lose_their_noise() {
        assert_eq!(rounded(0.1 + 0.2), 0.3);
    }
}
