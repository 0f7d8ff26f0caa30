//! Local times of a time zone, as cron needs them. What a zone is, the platform knows: the Worker holds no table of its own.

use std::cmp::Ordering;

use chrono::{DateTime, Datelike, NaiveDateTime, Timelike};
use croner::errors::CronError;
use croner::{CivilDateTime, CronDateTime, Resolution, Weekday};

/// The zone that needs no table.
pub const UTC: &str = "UTC";

/// Longest name of a zone.
const LONGEST_NAME: usize = 64;

/// Seconds within which no zone changes its clock twice.
const A_DAY: i64 = 24 * 60 * 60;

/// How far ahead is looked, in seconds: 50 years. The rarest date of a calendar, a 29th of February on one day of the week, comes every 28
/// years, and after 40 where a leap year is left out. Looking further costs a question of the platform for each day.
const FARTHEST: i64 = 50 * 366 * A_DAY;

/// What the platform knows of time zones.
pub trait Zones {
    /// Seconds that local time of `zone`, by its name of the IANA database, is ahead of UTC at a time, which is in seconds since 1970. Nothing
    /// where there is no such zone.
    fn offset_seconds(&self, zone: &str, at: i64) -> Option<i32>;
}

/// Whether `name` can be one of the IANA database. An offset such as `+02:00` is none.
pub fn is_name(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'+' | b'/');
    name.len() <= LONGEST_NAME
        && name.bytes().next().is_some_and(|first| first.is_ascii_alphabetic())
        && name.bytes().all(is_part)
}

/// Seconds ahead of UTC of a text that ends in `GMT`, `GMT+05:30` or `GMT-00:44:30`, as the platform tells them.
pub fn parse_offset(text: &str) -> Option<i32> {
    let (_, offset) = text.rsplit_once("GMT")?;
    if offset.is_empty() {
        return Some(0);
    }
    let (sign, digits) = match offset.split_at_checked(1)? {
        ("+", digits) => (1, digits),
        ("-", digits) => (-1, digits),
        _ => return None,
    };
    let mut seconds = 0;
    let mut unit = 3600;
    for part in digits.split(':') {
        let number: i32 = part.parse().ok().filter(|number| (0..100).contains(number))?;
        seconds += number * unit;
        unit /= 60;
    }
    Some(sign * seconds)
}

/// A moment, and the zone that its local time is of.
#[derive(Clone)]
pub struct Local<'a> {
    zones: &'a dyn Zones,
    zone: &'a str,
    /// Seconds since 1970.
    pub at: i64,
}

impl<'a> Local<'a> {
    pub fn new(zones: &'a dyn Zones, zone: &'a str, at: i64) -> Self {
        Self { zones, zone, at }
    }

    fn offset(&self, at: i64) -> i64 {
        if self.zone == UTC {
            return 0;
        }
        // That there is such a zone was asked when the schedule was made.
        self.zones.offset_seconds(self.zone, at).unwrap_or(0).into()
    }

    fn naive(&self) -> NaiveDateTime {
        DateTime::from_timestamp(self.at + self.offset(self.at), 0).unwrap_or_default().naive_utc()
    }
}

impl CronDateTime for Local<'_> {
    fn to_civil(&self) -> CivilDateTime {
        let naive = self.naive();
        let (date, time) = (naive.date(), naive.time());
        let civil = CivilDateTime::from_ymd_hms_opt(
            date.year(),
            date.month(),
            date.day(),
            time.hour(),
            time.minute(),
            time.second(),
        );
        // Every date of chrono is one of the same calendar.
        civil.unwrap_or(CivilDateTime::new(
            croner::CivilDate::from_parts_unchecked(1970, 1, 1),
            croner::CivilTime::MIDNIGHT,
        ))
    }

    fn civil_weekday(&self) -> Weekday {
        Weekday::from_days_from_sunday(self.naive().weekday().num_days_from_sunday())
    }

    /// Every moment at which clocks of the zone show that time: as far ahead of UTC as a day before or after, if they are so then.
    fn resolve_civil(&self, civil: CivilDateTime) -> Result<Resolution<Self>, CronError> {
        let shown = chrono::NaiveDate::from_ymd_opt(civil.year(), civil.month(), civil.day())
            .and_then(|date| date.and_hms_opt(civil.hour(), civil.minute(), civil.second()))
            .ok_or(CronError::InvalidDate)?
            .and_utc()
            .timestamp();
        if shown > self.at + FARTHEST {
            return Err(CronError::TimeSearchLimitExceeded);
        }
        let offsets = [shown - A_DAY, shown + A_DAY].map(|near| self.offset(near));
        let mut moments: Vec<i64> = offsets
            .into_iter()
            .map(|offset| (shown - offset, offset))
            .filter(|(at, offset)| self.offset(*at) == *offset)
            .map(|(at, _)| at)
            .collect();
        moments.sort_unstable();
        moments.dedup();
        let local = |at: i64| Self { at, ..self.clone() };
        Ok(match *moments.as_slice() {
            [] => Resolution::Gap,
            [only] => Resolution::Single(local(only)),
            [first, .., last] => Resolution::Ambiguous(local(first), local(last)),
        })
    }

    fn checked_add_seconds(&self, seconds: i64) -> Option<Self> {
        let at = self.at.checked_add(seconds)?;
        DateTime::from_timestamp(at, 0)?;
        Some(Self { at, ..self.clone() })
    }

    fn cmp_instant(&self, other: &Self) -> Ordering {
        self.at.cmp(&other.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_read_as_the_platform_tells_them() {
        for (text, seconds) in [
            ("11/29/2026, GMT", Some(0)),
            ("11/29/2026, GMT+01:00", Some(3_600)),
            ("GMT+5:30", Some(19_800)),
            ("GMT-03:30", Some(-12_600)),
            ("GMT-00:44:30", Some(-2_670)),
            ("11/29/2026", None),
            ("GMT+x", None),
            ("GMT1", None),
        ] {
            assert_eq!(parse_offset(text), seconds, "{text}");
        }
    }

    #[test]
    fn names_of_zones_are_those_of_the_database() {
        for name in ["UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires", "Etc/GMT+5"] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", "+02:00", "Europe Berlin", "é", "a\0", &"a".repeat(65)] {
            assert!(!is_name(name), "{name}");
        }
    }
}
