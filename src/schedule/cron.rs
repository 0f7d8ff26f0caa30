//! Cron expressions of five fields: minute, hour, day of the month, month, day of the week. What they mean is `croner`'s to say.
//!
//! Where clocks go forward, a fixed time (one minute and one hour) that is left out comes with the first moment after; one that comes twice
//! is taken once. Lists, ranges and steps go on through either by real time.

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};

use super::zone::{Local, Zones};

/// Longest expression.
pub const LONGEST: usize = 100;

const FIELDS: usize = 5;

/// Reads an expression; what is wrong with it where it is none.
pub fn parse(expression: &str) -> Result<Cron, String> {
    if expression.len() > LONGEST {
        return Err(format!("has more than {LONGEST} bytes"));
    }
    let fields = expression.split_whitespace().count();
    if fields != FIELDS || !expression.is_ascii() {
        return Err(format!(
            "has {fields} fields: it has {FIELDS}, for minute, hour, day of the month, month and day of the week, such as `0 6 * * MON-FRI`"
        ));
    }
    let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build();
    parser.parse(expression).map_err(|error| format!("is no cron expression: {error}"))
}

/// The first time of an expression after `now`, both in milliseconds since 1970; nothing where it does not come within 50 years.
pub fn next(cron: &Cron, zones: &dyn Zones, zone: &str, now: i64) -> Option<i64> {
    let start = Local::new(zones, zone, now.div_euclid(1000));
    cron.find_next_occurrence(&start, false).ok().map(|found| found.at * 1000).filter(|at| *at > now)
}

#[cfg(test)]
mod tests;
