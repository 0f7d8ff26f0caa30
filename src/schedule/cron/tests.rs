//! When expressions come, whatever clocks do.

use std::cell::Cell;

use proptest::prelude::*;

use super::*;
use crate::doubles::Database;
use crate::platform::{parse_rfc3339, rfc3339};
use crate::schedule::change::first;
use crate::schedule::record::When;
use crate::schedule::zone::{UTC, Zones};

const MINUTE: i64 = 60_000;

fn millis(text: &str) -> i64 {
    parse_rfc3339(text).unwrap()
}

/// The next times of an expression, in UTC, without seconds.
fn times(expression: &str, zone: &str, from: &str, count: usize) -> Vec<String> {
    let cron = parse(expression).unwrap();
    let mut at = millis(from);
    let next = || {
        at = super::next(&cron, &Database, zone, at).unwrap();
        rfc3339(at).replace(":00.000Z", "")
    };
    std::iter::repeat_with(next).take(count).collect()
}

#[test]
fn an_expression_comes_when_clocks_of_its_zone_show_it() {
    let friday = "2026-11-27T10:00:30Z";
    let table = [
        ("*/20 * * * *", UTC, vec!["2026-11-27T10:20", "2026-11-27T10:40", "2026-11-27T11:00"]),
        ("0 6 * * MON-FRI", UTC, vec!["2026-11-30T06:00", "2026-12-01T06:00"]),
        ("0 6 * * *", "Europe/Berlin", vec!["2026-11-28T05:00"]),
        ("30 5 * * *", "Asia/Kolkata", vec!["2026-11-28T00:00"]),
        ("0 0 29 2 *", UTC, vec!["2028-02-29T00:00", "2032-02-29T00:00"]),
        ("0 12 L * *", UTC, vec!["2026-11-30T12:00", "2026-12-31T12:00"]),
        // Either of the two days, as in every cron.
        ("0 0 1 * SUN", UTC, vec!["2026-11-29T00:00", "2026-12-01T00:00"]),
    ];
    for (expression, zone, expected) in table {
        assert_eq!(times(expression, zone, friday, expected.len()), expected, "{expression} {zone}");
    }
    // A time that is due is not due again.
    assert_eq!(times("0 10 * * *", UTC, "2026-11-27T10:00:00Z", 1), ["2026-11-28T10:00"]);
}

#[test]
fn where_clocks_change_each_time_comes_once_and_steps_go_on() {
    // 02:00 is 03:00 in the night of the 29th of March 2026, and 03:00 is 02:00 in that of the 25th of October.
    let berlin = "Europe/Berlin";
    let spring = times("30 2 * * *", berlin, "2026-03-27T12:00:00Z", 3);
    assert_eq!(
        spring,
        ["2026-03-28T01:30", "2026-03-29T01:00", "2026-03-30T00:30"],
        "left out, so the first moment after"
    );
    let autumn = times("30 2 * * *", berlin, "2026-10-24T12:00:00Z", 2);
    assert_eq!(autumn, ["2026-10-25T00:30", "2026-10-26T01:30"], "twice, so the first of them");
    let steps = times("*/30 * * * *", berlin, "2026-10-24T23:45:00Z", 6);
    let expected = [
        "2026-10-25T00:00",
        "2026-10-25T00:30",
        "2026-10-25T01:00",
        "2026-10-25T01:30",
        "2026-10-25T02:00",
        "2026-10-25T02:30",
    ];
    assert_eq!(steps, expected);
    let steps = times("*/30 * * * *", berlin, "2026-03-29T00:15:00Z", 3);
    assert_eq!(steps, ["2026-03-29T00:30", "2026-03-29T01:00", "2026-03-29T01:30"]);
    // Half an hour, and a zone south of the equator.
    let howe = times("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00:00Z", 2);
    assert_eq!(howe, ["2026-10-03T15:30", "2026-10-04T15:15"]);
}

#[test]
fn what_is_no_expression_is_refused_and_so_is_one_that_never_comes() {
    for (bad, text) in [
        ("", "has 0 fields"),
        ("* * * *", "has 4 fields"),
        ("* * * * * *", "has 6 fields"),
        ("@hourly", "has 1 fields"),
        ("60 * * * *", "is no cron expression"),
        ("* * * * MON-", "is no cron expression"),
        ("é * * * *", "has 5 fields"),
        (&"*".repeat(101), "has more than 100 bytes"),
    ] {
        assert!(parse(bad).unwrap_err().starts_with(text), "{bad:?}: {:?}", parse(bad));
    }
    let never = When::Cron { expression: "0 0 30 2 *".into(), time_zone: UTC.into() };
    assert_eq!(first(&never, None, &Database, 0).unwrap_err().message, "cron: does not come within 50 years");
}

/// Counts what is asked of it.
struct Counting(Cell<u32>);

impl Zones for Counting {
    fn offset_seconds(&self, zone: &str, at: i64) -> Option<i32> {
        self.0.set(self.0.get() + 1);
        Database.offset_seconds(zone, at)
    }
}

#[test]
fn what_never_comes_is_known_soon_and_what_comes_rarely_is_found() {
    let now = millis("2072-03-01T00:00:00Z");
    for expression in ["0 0 30 2 *", "* * 31 4,6,9,11 *", "0 0 31 2 +MON"] {
        let zones = Counting(Cell::new(0));
        assert_eq!(super::next(&parse(expression).unwrap(), &zones, "Europe/Berlin", now), None, "{expression}");
        assert!(zones.0.get() < 20_000, "{expression}: {}", zones.0.get());
    }
    // The year 2100 has no such day.
    assert_eq!(times("0 0 29 2 +MON", UTC, "2072-03-01T00:00:00Z", 1), ["2112-02-29T00:00"]);
}

proptest! {
    /// A panic would end the Worker.
    #[test]
    fn no_text_is_too_much_for_the_parser(
        text in "[0-9*/,L#W?@A-Z -]{0,40}", noise in ".{0,60}", now in 0_i64..4_000_000_000_000,
        zone in prop::sample::select(vec!["UTC", "Europe/Berlin", "America/St_Johns", "Pacific/Apia"]),
    ) {
        for text in [&text, &noise] {
            let _ = parse(text);
        }
        let fields: Vec<&str> = text.split_whitespace().chain(["*"; 5]).take(5).collect();
        if let Ok(cron) = parse(&fields.join(" ")) {
            let next = super::next(&cron, &Database, zone, now);
            prop_assert!(next.is_none_or(|next| next > now && next % 1000 == 0));
        }
    }

    /// Two runs are a minute apart at least, whatever clocks do.
    #[test]
    fn two_times_are_a_minute_apart(hour in 0..24_u32, step in 1..30_u32, zone in prop::sample::select(vec!["Europe/London", "America/New_York"])) {
        for expression in [format!("*/{step} * * * *"), format!("{step} {hour} * * *"), format!("0,{step} */{} * * *", hour.max(1))] {
            let cron = parse(&expression).unwrap();
            let mut at = millis("2026-03-28T12:00:00Z");
            for _ in 0..100 {
                let next = super::next(&cron, &Database, zone, at).unwrap();
                prop_assert!(next - at >= MINUTE || at == millis("2026-03-28T12:00:00Z"), "{}: {} {}", expression, at, next);
                at = next;
            }
        }
    }
}
