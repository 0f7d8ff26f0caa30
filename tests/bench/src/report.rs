//! Numbers to a table for people and JSON for programs.

use std::fmt::Write;
use std::time::Duration;

use serde_json::{Value, json};

use crate::machine::Machine;

/// Measurements of one thing, in milliseconds.
#[derive(Clone, Default)]
pub(crate) struct Samples(Vec<f64>);

impl Samples {
    pub(crate) fn push(&mut self, duration: Duration) {
        self.0.push(duration.as_secs_f64() * 1000.0);
    }

    /// What `combine` makes of the measurements of each round.
    pub(crate) fn against(&self, other: &Self, combine: fn(f64, f64) -> f64) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(mine, theirs)| combine(*mine, *theirs)).collect())
    }

    fn quartiles(&self) -> [f64; 3] {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().saturating_sub(1);
        [1, 2, 3].map(|quarter| sorted.get((last * quarter + 2) / 4).copied().unwrap_or(f64::NAN))
    }
}

/// The most that a measurement should come to, in its own unit.
pub(crate) type Target = Option<f64>;

struct Row {
    what: String,
    /// Lower quartile, median, upper quartile; one number for what is measured once.
    values: [f64; 3],
    unit: &'static str,
    target: Target,
}

impl Row {
    fn median(&self) -> f64 {
        self.values[1]
    }

    fn met(&self) -> Option<bool> {
        self.target.map(|target| self.median() <= target)
    }
}

/// All that was measured, in order.
#[derive(Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
}

impl Report {
    /// A time in milliseconds.
    pub(crate) fn time(&mut self, what: &str, samples: &Samples, target: Target) {
        self.spread(what, samples, "ms", target);
    }

    /// Anything that was measured many times.
    pub(crate) fn spread(&mut self, what: &str, samples: &Samples, unit: &'static str, target: Target) {
        self.add(Row { what: what.to_owned(), values: samples.quartiles(), unit, target });
    }

    /// Anything that was measured once.
    pub(crate) fn value(&mut self, what: &str, value: f64, unit: &'static str, target: Target) {
        self.add(Row { what: what.to_owned(), values: [value; 3], unit, target });
    }

    fn add(&mut self, row: Row) {
        eprintln!("{}: {:.2} {}", row.what, row.median(), row.unit);
        self.rows.push(row);
    }

    /// What is above its target.
    pub(crate) fn missed(&self) -> Vec<&str> {
        self.rows.iter().filter(|row| row.met() == Some(false)).map(|row| row.what.as_str()).collect()
    }

    pub(crate) fn table(&self, machine: &Machine) -> String {
        let mut text = format!("\n{machine}\n\n| What | Median | Quartiles | At most | Met |\n|---|---|---|---|---|\n");
        for row in &self.rows {
            let [low, median, high] = row.values;
            let spread = if low == high { String::new() } else { format!("{low:.2} to {high:.2}") };
            let target = row.target.map(|target| format!("{target} {}", row.unit)).unwrap_or_default();
            let met = row.met().map_or("", |met| if met { "yes" } else { "no" });
            let _ = writeln!(text, "| {} | {median:.2} {} | {spread} | {target} | {met} |", row.what, row.unit);
        }
        text
    }

    pub(crate) fn json(&self, machine: &Machine, smoke: bool) -> String {
        let rows: Vec<Value> = self.rows.iter().map(row_json).collect();
        format!("{:#}\n", json!({ "smoke": smoke, "machine": machine.json(), "rows": rows }))
    }
}

fn row_json(row: &Row) -> Value {
    let [lower, median, upper] = row.values;
    json!({
        "what": row.what, "unit": row.unit,
        "lowerQuartile": lower, "median": median, "upperQuartile": upper,
        "target": row.target, "met": row.met(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_stand_a_quarter_from_each_end() {
        let samples = Samples((1..=101).rev().map(f64::from).collect());
        assert_eq!(samples.quartiles(), [26.0, 51.0, 76.0]);
        assert_eq!(Samples(vec![4.0]).quartiles(), [4.0; 3]);
    }

    #[test]
    fn compared_things_are_compared_round_by_round() {
        let (mine, theirs) = (Samples(vec![2.0, 30.0]), Samples(vec![1.0, 10.0]));
        assert_eq!(mine.against(&theirs, |mine, theirs| mine / theirs).0, [2.0, 3.0]);
    }

    #[test]
    fn a_target_that_is_missed_is_named() {
        let mut report = Report::default();
        report.value("small", 1.0, "ms", Some(1.0));
        report.value("large", 2.0, "ms", Some(1.0));
        report.value("unbounded", 9.0, "ms", None);
        assert_eq!(report.missed(), ["large"]);
    }
}
