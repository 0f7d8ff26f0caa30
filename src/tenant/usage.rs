//! What keys have used, by day, key and tool: calls, failures, seconds of commands and of sandboxes, bytes.
//!
//! A row is one day of one key and one tool. It is added to in the turn that settles the call, so that counts are exact. A sandbox's seconds
//! are those of the key and the tool that made it, whoever uses it. Labels come from closed lists, keys from the tenant's own,
//! which bounds the rows of a day; they are kept for [`DAYS`]. What a key used in a month is kept beside that in one row, which is
//! what budgets ask for. This file is pure; the tenant's object runs its statements.

use chrono::{DateTime, Datelike, Days, NaiveDate};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::alerts::Standing;
use super::listing::Parameter;
use super::prices::{Prices, rounded};
use super::storage::StorageTold;
use crate::error::ErrorCode;
use crate::whole;

/// Days that usage is kept.
pub const DAYS: i64 = 400;

/// Months that sums are kept.
pub const MONTHS: i64 = 14;

const DAY_MILLIS: i64 = 24 * 60 * 60 * 1000;

/// Stands for the name of a tool that there is not.
const UNKNOWN_TOOL: &str = "unknown";

/// What is counted, all of it in whole numbers so that sums are exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Quantities {
    pub calls: i64,
    /// Calls that did not succeed, refused ones among them.
    pub failures: i64,
    /// Milliseconds for which commands ran.
    pub exec_ms: i64,
    /// Milliseconds for which sandboxes ran.
    pub sandbox_ms: i64,
    /// Bytes of arguments and of raw bodies.
    pub bytes_in: i64,
    /// Bytes of answers.
    pub bytes_out: i64,
}

const COLUMNS: [&str; 6] = ["calls", "failures", "exec_ms", "sandbox_ms", "bytes_in", "bytes_out"];

/// What a call used beside its time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spent {
    pub exec_ms: i64,
    pub bytes_in: i64,
    pub bytes_out: i64,
}

impl Spent {
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

impl Quantities {
    /// One call that ended.
    pub fn call(error: Option<ErrorCode>, spent: Spent) -> Self {
        let Spent { exec_ms, bytes_in, bytes_out } = spent;
        Self { calls: 1, failures: i64::from(error.is_some()), exec_ms, bytes_in, bytes_out, sandbox_ms: 0 }
    }

    pub fn sandbox(sandbox_ms: i64) -> Self {
        Self { sandbox_ms, ..Self::default() }
    }

    fn values(self) -> [i64; 6] {
        [self.calls, self.failures, self.exec_ms, self.sandbox_ms, self.bytes_in, self.bytes_out]
    }
}

impl std::ops::Add for Quantities {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            calls: self.calls + other.calls,
            failures: self.failures + other.failures,
            exec_ms: self.exec_ms + other.exec_ms,
            sandbox_ms: self.sandbox_ms + other.sandbox_ms,
            bytes_in: self.bytes_in + other.bytes_in,
            bytes_out: self.bytes_out + other.bytes_out,
        }
    }
}

/// What a key used at one time with one tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Use {
    pub at: i64,
    pub key_id: String,
    pub tool: String,
    pub quantities: Quantities,
}

impl Use {
    /// A call. What there is no tool for is counted under one name.
    pub fn call(at: i64, key_id: &str, tool: &str, error: Option<ErrorCode>, spent: Spent) -> Self {
        let is_unknown = error == Some(ErrorCode::UnknownTool) || tool.is_empty();
        let tool = if is_unknown { UNKNOWN_TOOL } else { tool };
        Self { at, key_id: key_id.to_owned(), tool: tool.to_owned(), quantities: Quantities::call(error, spent) }
    }

    /// The statements that add it to its day and to its month.
    pub fn statements(&self) -> [(String, Vec<Parameter>); 2] {
        let text = |text: &str| Parameter::Text(text.to_owned());
        let day = vec![Parameter::Integer(day_of(self.at)), text(&self.key_id), text(&self.tool)];
        let month = vec![Parameter::Integer(month_of(self.at)), text(&self.key_id)];
        [self.statement("usage", "day, key_id, tool", day), self.statement("usage_months", "month, key_id", month)]
    }

    fn statement(&self, table: &str, key: &str, mut parameters: Vec<Parameter>) -> (String, Vec<Parameter>) {
        let marks = vec!["?"; parameters.len() + COLUMNS.len()].join(", ");
        let sums = columns(|column| format!("{column} = {column} + excluded.{column}"));
        parameters.extend(self.quantities.values().map(Parameter::Integer));
        let columns = COLUMNS.join(", ");
        let statement =
            format!("INSERT INTO {table} ({key}, {columns}) VALUES ({marks}) ON CONFLICT ({key}) DO UPDATE SET {sums}");
        (statement, parameters)
    }
}

fn columns(wrap: impl Fn(&str) -> String) -> String {
    COLUMNS.map(wrap).join(", ")
}

/// The tables.
pub fn schema() -> [String; 2] {
    let counts = columns(|column| format!("{column} INTEGER NOT NULL"));
    [
        format!(
            "CREATE TABLE IF NOT EXISTS usage (day INTEGER NOT NULL, key_id TEXT NOT NULL, tool TEXT NOT NULL, {counts}, \
             PRIMARY KEY (day, key_id, tool)) WITHOUT ROWID"
        ),
        format!(
            "CREATE TABLE IF NOT EXISTS usage_months (month INTEGER NOT NULL, key_id TEXT NOT NULL, {counts}, \
             PRIMARY KEY (month, key_id)) WITHOUT ROWID"
        ),
    ]
}

/// Over what rows are added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum GroupBy {
    /// Nothing: a row for each day, key and tool.
    #[default]
    Each,
    Day,
    Key,
    Tool,
}

impl GroupBy {
    fn columns(self) -> &'static [&'static str] {
        match self {
            Self::Each => &["day", "key_id", "tool"],
            Self::Day => &["day"],
            Self::Key => &["key_id"],
            Self::Tool => &["tool"],
        }
    }
}

/// Which usage is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UsageRequest {
    /// The first day, counted from 1970.
    pub since_day: i64,
    /// The last day.
    pub until_day: i64,
    pub group_by: GroupBy,
    pub key_id: Option<String>,
    pub tool: Option<String>,
    pub limit: u32,
    /// Place after which the page begins.
    pub after: Option<Cursor>,
}

/// A place between two rows: what those before it have in their columns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor(Vec<String>);

impl Cursor {
    /// As it stands in an answer. Neither days nor ids nor names hold a dot.
    pub fn text(&self) -> String {
        self.0.join(".")
    }

    /// `None` when the text is no place among rows that are grouped so.
    pub fn parse(text: &str, group_by: GroupBy) -> Option<Self> {
        let parts: Vec<String> = text.split('.').map(str::to_owned).collect();
        let columns = group_by.columns();
        let fits = parts.len() == columns.len()
            && columns.iter().zip(&parts).all(|(column, part)| *column != "day" || whole::place(part).is_some());
        fits.then_some(Self(parts))
    }
}

impl UsageRequest {
    /// The statement whose rows are [`Group`]s in JSON, `limit` at most, and its parameters.
    pub fn statement(&self, limit: u32) -> (String, Vec<Parameter>) {
        let group = self.group_by.columns().join(", ");
        let (mut conditions, mut parameters) = self.conditions();
        if let Some(Cursor(parts)) = &self.after {
            conditions.push_str(&format!(" AND ({group}) > ({})", vec!["?"; parts.len()].join(", ")));
            parameters.extend(self.group_by.columns().iter().zip(parts).map(|(column, part)| match *column {
                "day" => Parameter::Integer(part.parse().unwrap_or_default()),
                _ => Parameter::Text(part.clone()),
            }));
        }
        parameters.push(Parameter::Integer(limit.into()));
        let parts = self.group_by.columns().iter().map(|column| format!("'{column}', {column}, ")).collect::<String>();
        let statement = format!(
            "SELECT json_object({parts}{SUMS}) AS text FROM usage WHERE {conditions} GROUP BY {group} ORDER BY {group} LIMIT ?"
        );
        (statement, parameters)
    }

    /// The statement whose one row is the sum of all that is asked for, whatever the page.
    pub fn total(&self) -> (String, Vec<Parameter>) {
        let (conditions, parameters) = self.conditions();
        (format!("SELECT json_object({SUMS}) AS text FROM usage WHERE {conditions}"), parameters)
    }

    fn conditions(&self) -> (String, Vec<Parameter>) {
        let mut conditions = "day >= ? AND day <= ?".to_owned();
        let mut parameters = vec![Parameter::Integer(self.since_day), Parameter::Integer(self.until_day)];
        for (condition, value) in [(" AND key_id = ?", &self.key_id), (" AND tool = ?", &self.tool)] {
            if let Some(value) = value {
                conditions.push_str(condition);
                parameters.push(Parameter::Text(value.clone()));
            }
        }
        (conditions, parameters)
    }
}

/// The sums of a group, as a field of a JSON object.
const SUMS: &str = "'quantities', json_object('calls', ifnull(SUM(calls), 0), 'failures', ifnull(SUM(failures), 0), 'execMs', ifnull(SUM(exec_ms), 0), \
    'sandboxMs', ifnull(SUM(sandbox_ms), 0), 'bytesIn', ifnull(SUM(bytes_in), 0), 'bytesOut', ifnull(SUM(bytes_out), 0))";

/// What was used in one group: an answer of a statement.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Group {
    day: Option<i64>,
    key_id: Option<String>,
    tool: Option<String>,
    pub quantities: Quantities,
}

impl Group {
    /// The place after it.
    fn cursor(&self) -> Cursor {
        let day = self.day.map(|day| day.to_string());
        Cursor([day, self.key_id.clone(), self.tool.clone()].into_iter().flatten().collect())
    }
}

/// What was used, as it is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct UsageRow {
    /// On this day, in UTC; absent where days are added up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub day: Option<String>,
    /// With this key; absent where keys are added up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_id: Option<String>,
    /// Through this tool; absent where tools are added up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// Calls, refused ones among them.
    pub calls: i64,
    /// Calls that did not succeed.
    pub failures: i64,
    /// Seconds for which commands of `exec` ran.
    pub exec_seconds: f64,
    /// Seconds for which sandboxes ran that this key made with this tool, up to now.
    pub sandbox_seconds: f64,
    /// Bytes of arguments and of raw bodies.
    pub bytes_in: i64,
    /// Bytes of answers and of streamed output. A download without a declared length, such as an archive, is not counted.
    pub bytes_out: i64,
    /// Estimated cost in US dollars.
    pub cost: f64,
}

impl UsageRow {
    pub fn new(group: Group, prices: &Prices) -> Self {
        let Group { day, key_id, tool, quantities } = group;
        let Quantities { calls, failures, exec_ms, sandbox_ms, bytes_in, bytes_out } = quantities;
        // Far below 2^53.
        #[allow(clippy::cast_precision_loss)]
        let seconds = |millis: i64| millis as f64 / 1000.0;
        Self {
            day: day.map(day_text),
            key_id,
            tool,
            calls,
            failures,
            exec_seconds: seconds(exec_ms),
            sandbox_seconds: seconds(sandbox_ms),
            bytes_in,
            bytes_out,
            cost: rounded(prices.cost(&quantities)),
        }
    }
}

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UsageReport {
    /// In the order of day, key and tool.
    pub rows: Vec<UsageRow>,
    pub total: UsageRow,
    /// Where the next page begins.
    pub next: Option<String>,
    pub prices: Prices,
    /// Every budget as it stands.
    pub budgets: Vec<Standing>,
    /// What is kept in R2.
    pub storage: Option<StorageTold>,
}

impl UsageReport {
    /// `groups` are those of the page and one more where there are more.
    pub fn new(mut groups: Vec<Group>, limit: u32, total: Group, prices: Prices) -> Self {
        let wanted = usize::try_from(limit).unwrap_or(usize::MAX);
        let more = groups.len() > wanted;
        groups.truncate(wanted);
        let next = groups.last().filter(|_| more).map(|group| group.cursor().text());
        let rows = groups.into_iter().map(|group| UsageRow::new(group, &prices)).collect();
        Self { rows, total: UsageRow::new(total, &prices), next, prices, budgets: Vec::new(), storage: None }
    }
}

/// Day of a time, counted from 1970 in UTC.
pub fn day_of(millis: i64) -> i64 {
    super::limits::day_of(millis)
}

/// Month of a time: the year times twelve, and the month from 0.
pub fn month_of(millis: i64) -> i64 {
    let date = DateTime::from_timestamp_millis(millis).unwrap_or_default();
    i64::from(date.year()) * 12 + i64::from(date.month0())
}

/// First day of a month.
pub fn first_day(month: i64) -> i64 {
    let year = i32::try_from(month.div_euclid(12)).unwrap_or_default();
    let number = u32::try_from(month.rem_euclid(12) + 1).unwrap_or(1);
    NaiveDate::from_ymd_opt(year, number, 1).map_or(0, day_number)
}

/// When the month of a time begins, in milliseconds.
pub fn month_start(millis: i64) -> i64 {
    first_day(month_of(millis)).saturating_mul(DAY_MILLIS)
}

/// A month as `2026-11`.
pub fn month_text(month: i64) -> String {
    format!("{:04}-{:02}", month.div_euclid(12), month.rem_euclid(12) + 1)
}

/// A day as `2026-11-28`.
pub fn day_text(day: i64) -> String {
    let date = u64::try_from(day).ok().and_then(|days| NaiveDate::default().checked_add_days(Days::new(days)));
    date.unwrap_or_default().to_string()
}

/// The day of `2026-11-28`; `None` when the text is not one.
pub fn parse_day(text: &str) -> Option<i64> {
    let is_plain = text.len() == 10
        && text
            .bytes()
            .enumerate()
            .all(|(at, byte)| if [4, 7].contains(&at) { byte == b'-' } else { byte.is_ascii_digit() });
    let part = |from, to| text.get(from..to)?.parse::<u32>().ok();
    let year = i32::try_from(part(0, 4)?).ok()?;
    let date = NaiveDate::from_ymd_opt(year, part(5, 7)?, part(8, 10)?).filter(|_| is_plain)?;
    Some(day_number(date)).filter(|day| *day >= 0)
}

fn day_number(date: NaiveDate) -> i64 {
    date.signed_duration_since(NaiveDate::default()).num_days()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(group_by: GroupBy) -> UsageRequest {
        UsageRequest { since_day: 1, until_day: 9, group_by, key_id: None, tool: None, limit: 2, after: None }
    }

    fn group(text: &str) -> Group {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn days_and_months_are_those_of_the_calendar() {
        let noon = 1_795_867_200_000; // 2026-11-28T12:00:00Z
        assert_eq!((day_text(day_of(noon)).as_str(), month_text(month_of(noon)).as_str()), ("2026-11-28", "2026-11"));
        assert_eq!(day_text(first_day(month_of(noon))), "2026-11-01");
        assert_eq!(parse_day("2026-11-28"), Some(day_of(noon)));
        assert_eq!(parse_day("2024-02-29").map(day_text).as_deref(), Some("2024-02-29"));
        for wrong in ["", "2026-02-29", "2026-11-28T00:00:00Z", "28.11.2026", "1969-12-31", "+2026-11-8", "2026-1-1"] {
            assert_eq!(parse_day(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn values_are_parameters_and_never_text_of_a_statement() {
        let hostile = || Some("x' OR 1 --".to_owned());
        for group_by in [GroupBy::Each, GroupBy::Day, GroupBy::Key, GroupBy::Tool] {
            let after = Cursor(
                group_by
                    .columns()
                    .iter()
                    .map(|column| if *column == "day" { "7".into() } else { "x' OR 1".into() })
                    .collect(),
            );
            let request = UsageRequest { key_id: hostile(), tool: hostile(), after: Some(after), ..request(group_by) };
            for (statement, parameters) in [request.statement(3), request.total()] {
                assert_eq!(statement.matches('?').count(), parameters.len(), "{statement}");
                assert!(!statement.contains("OR 1") && !statement.contains("--"), "{statement}");
            }
        }
        let used = Use::call(0, "k' --", "t' --", None, Spent::default());
        for (statement, parameters) in used.statements() {
            assert_eq!(statement.matches('?').count(), parameters.len(), "{statement}");
            assert!(!statement.contains("--"), "{statement}");
        }
    }

    #[test]
    fn names_that_a_caller_makes_up_are_one_row() {
        for name in ["a", "b", ""] {
            assert_eq!(Use::call(0, "k", name, Some(ErrorCode::UnknownTool), Spent::default()).tool, "unknown");
        }
        let failed = Use::call(0, "k", "exec", Some(ErrorCode::Timeout), Spent { exec_ms: 5, ..Spent::default() });
        let quantities = Quantities { calls: 1, failures: 1, exec_ms: 5, ..Quantities::default() };
        assert_eq!((failed.tool.as_str(), failed.quantities), ("exec", quantities));
    }

    #[test]
    fn a_page_ends_where_the_next_begins() {
        let row = |day: i64, key_id: &str| {
            let counts = r#""calls":1,"failures":0,"execMs":0,"sandboxMs":0,"bytesIn":0,"bytesOut":0"#;
            group(&format!(r#"{{"day":{day},"key_id":"{key_id}","tool":"exec","quantities":{{{counts}}}}}"#))
        };
        let page = |limit| {
            let groups = vec![row(5, "a"), row(5, "b"), row(6, "a")];
            UsageReport::new(groups, limit, Group::default(), Prices::default())
        };
        assert_eq!((page(2).rows.len(), page(2).next.as_deref()), (2, Some("5.b.exec")));
        assert_eq!(Cursor::parse("5.b.exec", GroupBy::Each).unwrap().text(), "5.b.exec");
        assert_eq!((page(3).rows.len(), page(3).next), (3, None));
        for wrong in ["", "x.b.exec", "5.b", "5.b.exec.x"] {
            assert_eq!(Cursor::parse(wrong, GroupBy::Each), None, "{wrong}");
        }
        assert!(Cursor::parse("exec", GroupBy::Tool).is_some() && Cursor::parse("exec", GroupBy::Day).is_none());
    }

    #[test]
    fn a_row_is_in_seconds_and_dollars() {
        let group = group(
            r#"{"day":20785,"key_id":"k","tool":"exec","quantities":{"calls":2,"failures":0,"execMs":1500,"sandboxMs":60001,"bytesIn":0,"bytesOut":0}}"#,
        );
        let prices = Prices { per_call: 0.5, per_exec_second: 2.0, per_sandbox_second: 0.0, ..Prices::default() };
        let row = serde_json::to_value(UsageRow::new(group, &prices)).unwrap();
        let wanted = serde_json::json!({
            "day": "2026-11-28", "keyId": "k", "tool": "exec", "calls": 2, "failures": 0, "execSeconds": 1.5,
            "sandboxSeconds": 60.001, "bytesIn": 0, "bytesOut": 0, "cost": 4.0,
        });
        assert_eq!(row, wanted);
    }
}
