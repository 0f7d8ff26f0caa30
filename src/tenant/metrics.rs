//! What a tenant's calls and starts add up to, hour by hour: how often, how they ended, how long they took.
//!
//! A row is one hour of one metric, label and outcome, with a count, a sum and a histogram of fixed bounds, so that rows can be added
//! up. Labels come from closed lists (tools, reasons of a start), never from a caller, which bounds the rows of an hour. This file is
//! pure; the tenant's object runs its statements. Leaves out what is not a count or a duration: use of machines is told by
//! `getSandbox`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::error::ErrorCode;
use crate::platform::rfc3339;

/// Upper bounds of the buckets in milliseconds; a last bucket takes what is longer.
pub const BOUNDS_MS: [i64; 13] = [5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000];

const BUCKETS: usize = BOUNDS_MS.len() + 1;

/// Days that metrics are kept.
pub const DAYS: i64 = 31;

pub const HOUR_MILLIS: i64 = 60 * 60 * 1000;
const DAY_HOURS: i64 = 24;

/// Stands for the name of a tool that there is not.
const UNKNOWN_TOOL: &str = "unknown";

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Metric {
    /// A call, by tool and outcome.
    Call,
    /// A start of a sandbox, by its reason and outcome.
    Start,
    /// A sandbox was listed, by the tool that made it.
    Created,
    /// A sandbox left the list.
    Destroyed,
}

impl Metric {
    fn as_str(self) -> &'static str {
        match self {
            Self::Call => "call",
            Self::Start => "start",
            Self::Created => "created",
            Self::Destroyed => "destroyed",
        }
    }
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    pub metric: Metric,
    pub label: String,
    /// `succeeded` or the code of an error.
    pub outcome: String,
    /// Of what has one.
    pub duration_ms: Option<i64>,
    pub at: i64,
}

impl Sample {
    /// A call that ended. What there is no tool for is counted under one name.
    pub fn call(tool: &str, error: Option<ErrorCode>, duration_ms: i64, at: i64) -> Self {
        let is_unknown = error == Some(ErrorCode::UnknownTool) || tool.is_empty();
        let label = if is_unknown { UNKNOWN_TOOL } else { tool };
        Self::new(Metric::Call, label, error, Some(duration_ms), at)
    }

    pub fn new(metric: Metric, label: &str, error: Option<ErrorCode>, duration_ms: Option<i64>, at: i64) -> Self {
        let outcome = error.map_or_else(|| "succeeded".to_owned(), ErrorCode::as_str);
        Self { metric, label: label.to_owned(), outcome, duration_ms, at }
    }

    /// Hour of the sample, counted from 1970.
    pub fn hour(&self) -> i64 {
        self.at.div_euclid(HOUR_MILLIS)
    }

    pub fn metric(&self) -> &'static str {
        self.metric.as_str()
    }

    /// Adds the sample to its row: hour, metric, label, outcome, milliseconds.
    pub fn statement(&self) -> String {
        let columns = "INSERT INTO metrics (hour, metric, label, outcome, total_ms, count";
        let on_conflict = "ON CONFLICT (hour, metric, label, outcome) DO UPDATE SET count = count + 1, \
            total_ms = total_ms + excluded.total_ms";
        match self.duration_ms.map(bucket) {
            Some(bucket) => {
                format!("{columns}, b{bucket}) VALUES (?, ?, ?, ?, ?, 1, 1) {on_conflict}, b{bucket} = b{bucket} + 1")
            }
            None => format!("{columns}) VALUES (?, ?, ?, ?, ?, 1) {on_conflict}"),
        }
    }
}

fn bucket(duration_ms: i64) -> usize {
    BOUNDS_MS.iter().position(|bound| duration_ms <= *bound).unwrap_or(BOUNDS_MS.len())
}

fn bucket_columns(wrap: impl Fn(usize) -> String) -> String {
    (0..BUCKETS).map(wrap).collect::<Vec<_>>().join(", ")
}

/// The table.
pub fn schema() -> String {
    let buckets = bucket_columns(|index| format!("b{index} INTEGER NOT NULL DEFAULT 0"));
    format!(
        "CREATE TABLE IF NOT EXISTS metrics (hour INTEGER NOT NULL, metric TEXT NOT NULL, label TEXT NOT NULL, outcome TEXT NOT NULL, \
         count INTEGER NOT NULL, total_ms INTEGER NOT NULL, {buckets}, PRIMARY KEY (hour, metric, label, outcome)) WITHOUT ROWID"
    )
}

/// Over what rows are added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum Interval {
    Hour,
    Day,
    /// The whole time asked for.
    #[default]
    Whole,
}

/// Which hours are asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MetricsRequest {
    /// The first hour, counted from 1970.
    pub since_hour: i64,
    /// The hour after the last.
    pub until_hour: i64,
    pub interval: Interval,
}

impl MetricsRequest {
    /// The statement whose rows are [`Row`]s. Its parameters are the two hours.
    pub fn statement(&self) -> String {
        let period = match self.interval {
            Interval::Hour => "hour".to_owned(),
            Interval::Day => format!("(hour / {DAY_HOURS}) * {DAY_HOURS}"),
            Interval::Whole => self.since_hour.to_string(),
        };
        let buckets = bucket_columns(|index| format!("SUM(b{index})"));
        format!(
            "SELECT {period} AS period, metric, label, outcome, SUM(count) AS count, SUM(total_ms) AS total_ms, \
             json_array({buckets}) AS buckets FROM metrics WHERE hour >= ? AND hour < ? GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4"
        )
    }
}

/// One row of the statement. The storage has no whole numbers of its own.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Row {
    pub period: f64,
    pub metric: Metric,
    pub label: String,
    pub outcome: String,
    pub count: f64,
    pub total_ms: f64,
    /// JSON of the counts by bucket.
    pub buckets: String,
}

/// What was asked for, in periods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Upper bounds of the buckets in milliseconds; a last bucket holds what took longer.
    pub bounds_ms: Vec<i64>,
    /// In the order of time; periods in which nothing happened are left out.
    pub periods: Vec<Period>,
    /// Sandboxes listed now.
    pub sandboxes: u64,
    /// Calls admitted and not settled yet, this one among them.
    pub calls_under_way: u64,
}

/// One hour, one day, or the whole time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Period {
    /// Its beginning.
    pub at: String,
    /// Sandboxes created.
    pub created: u64,
    /// Sandboxes destroyed.
    pub destroyed: u64,
    /// Starts of sandboxes, by reason (created, woken, restarted) and outcome.
    pub starts: Vec<Series>,
    /// Calls, by tool and outcome; those that were refused are among them.
    pub calls: Vec<Series>,
    /// Calls that did not succeed, by the code of their error.
    pub errors: Vec<ErrorCount>,
}

/// How often something ended one way, and how long it took.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Series {
    /// Name of the tool, or reason of the start.
    pub name: String,
    /// succeeded, or the code of the error.
    pub outcome: String,
    pub count: u64,
    pub mean_ms: f64,
    /// Half took at most this, as the bound of a bucket says; absent above the last bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p50_ms: Option<i64>,
    /// The same of 95 in a hundred.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p95_ms: Option<i64>,
    /// The same of 99 in a hundred.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_ms: Option<i64>,
    /// Counts by bucket: one for each of boundsMs, and one for what took longer.
    pub buckets: Vec<u64>,
}

/// How often an error was answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ErrorCount {
    /// Code of the error.
    pub code: String,
    pub count: u64,
}

impl Report {
    pub fn new(rows: Vec<Row>, sandboxes: u64, calls_under_way: u64) -> Self {
        let mut periods: Vec<Period> = Vec::new();
        for row in rows {
            // Whole numbers far below 2^53.
            #[allow(clippy::cast_possible_truncation)]
            let at = rfc3339((row.period as i64).saturating_mul(HOUR_MILLIS));
            if periods.last().is_none_or(|period| period.at != at) {
                periods.push(Period { at, ..Period::default() });
            }
            if let Some(period) = periods.last_mut() {
                period.add(&row);
            }
        }
        Self { bounds_ms: BOUNDS_MS.to_vec(), periods, sandboxes, calls_under_way }
    }
}

impl Period {
    fn add(&mut self, row: &Row) {
        let count = whole(row.count);
        match row.metric {
            Metric::Created => self.created += count,
            Metric::Destroyed => self.destroyed += count,
            Metric::Start => self.starts.push(Series::of(row)),
            Metric::Call => {
                self.calls.push(Series::of(row));
                if row.outcome == "succeeded" {
                    return;
                }
                match self.errors.iter_mut().find(|error| error.code == row.outcome) {
                    Some(error) => error.count += count,
                    None => self.errors.push(ErrorCount { code: row.outcome.clone(), count }),
                }
            }
        }
    }
}

impl Series {
    fn of(row: &Row) -> Self {
        let buckets: Vec<u64> = serde_json::from_str(&row.buckets).unwrap_or_default();
        Self {
            name: row.label.clone(),
            outcome: row.outcome.clone(),
            count: whole(row.count),
            mean_ms: if row.count > 0.0 { row.total_ms / row.count } else { 0.0 },
            p50_ms: quantile(&buckets, 50),
            p95_ms: quantile(&buckets, 95),
            p99_ms: quantile(&buckets, 99),
            buckets,
        }
    }
}

/// The bound below which `percent` of a hundred lie.
fn quantile(buckets: &[u64], percent: u64) -> Option<i64> {
    let all: u64 = buckets.iter().sum();
    let wanted = (all * percent).div_ceil(100);
    let mut seen = 0;
    buckets.iter().zip(BOUNDS_MS).find_map(|(count, bound)| {
        seen += count;
        (seen >= wanted && seen > 0).then_some(bound)
    })
}

fn whole(number: f64) -> u64 {
    // Counts are whole, not negative, and far below 2^53.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let whole = number.max(0.0) as u64;
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(period: f64, metric: Metric, label: &str, outcome: &str, buckets: [u64; BUCKETS]) -> Row {
        #[allow(clippy::cast_precision_loss)]
        let count = buckets.iter().sum::<u64>().max(1) as f64;
        let buckets = serde_json::to_string(&buckets).unwrap();
        Row { period, metric, label: label.into(), outcome: outcome.into(), count, total_ms: count * 30.0, buckets }
    }

    #[test]
    fn a_duration_falls_into_the_first_bucket_that_holds_it() {
        assert_eq!([-1, 0, 5, 6, 60_000, 60_001].map(bucket), [0, 0, 0, 1, 12, 13]);
        let sample = Sample::call("exec", None, 6, 3 * HOUR_MILLIS + 1);
        assert_eq!((sample.hour(), sample.outcome.as_str()), (3, "succeeded"));
        assert!(sample.statement().contains("b1 = b1 + 1"), "{}", sample.statement());
        assert!(schema().contains("b13 INTEGER") && !schema().contains("b14"));
    }

    #[test]
    fn names_that_a_caller_makes_up_are_one_label() {
        for name in ["a", "b", "exec2"] {
            assert_eq!(Sample::call(name, Some(ErrorCode::UnknownTool), 0, 0).label, "unknown");
        }
        assert_eq!(Sample::call("exec", Some(ErrorCode::Timeout), 0, 0).label, "exec");
    }

    #[test]
    fn quantiles_are_bounds_of_buckets() {
        let mut buckets = [0; BUCKETS];
        assert_eq!(quantile(&buckets, 50), None, "nothing happened");
        buckets[2] = 98;
        buckets[5] = 1;
        buckets[13] = 1;
        assert_eq!([50, 98, 99, 100].map(|percent| quantile(&buckets, percent)), [Some(25), Some(25), Some(250), None]);
    }

    #[test]
    fn rows_become_periods() {
        let mut buckets = [0; BUCKETS];
        buckets[3] = 4;
        let none = [0; BUCKETS];
        let report = Report::new(
            vec![
                row(24.0, Metric::Call, "exec", "succeeded", buckets),
                row(24.0, Metric::Call, "exec", "timeout", buckets),
                row(24.0, Metric::Call, "readFile", "timeout", buckets),
                row(24.0, Metric::Created, "exec", "succeeded", none),
                row(48.0, Metric::Start, "woken", "succeeded", buckets),
            ],
            2,
            1,
        );
        let [first, second] = report.periods.as_slice() else { panic!("{report:?}") };
        assert_eq!((first.at.as_str(), first.created, first.calls.len()), ("1970-01-02T00:00:00.000Z", 1, 3));
        assert_eq!(first.errors, [ErrorCount { code: "timeout".into(), count: 8 }]);
        assert_eq!((second.starts[0].name.as_str(), second.starts[0].p95_ms), ("woken", Some(50)));
        assert!((second.starts[0].mean_ms - 30.0).abs() < f64::EPSILON);
    }

    #[test]
    fn periods_are_hours_days_or_everything() {
        let statement = |interval| MetricsRequest { since_hour: 7, until_hour: 9, interval }.statement();
        assert!(statement(Interval::Hour).starts_with("SELECT hour AS period"));
        assert!(statement(Interval::Day).starts_with("SELECT (hour / 24) * 24 AS period"));
        assert!(statement(Interval::Whole).starts_with("SELECT 7 AS period"));
    }
}
