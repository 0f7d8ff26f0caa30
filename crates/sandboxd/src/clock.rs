//! The time of day, as the control API tells it.

use std::time::SystemTime;

use chrono::{DateTime, SecondsFormat, Utc};

/// RFC 3339 in UTC, to the millisecond.
pub(crate) fn rfc3339(time: impl Into<DateTime<Utc>>) -> String {
    time.into().to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// The same of a time of the file system.
pub(crate) fn rfc3339_of_file(seconds: i64, nanoseconds: u32) -> String {
    rfc3339(DateTime::from_timestamp(seconds, nanoseconds).unwrap_or_else(|| SystemTime::UNIX_EPOCH.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_dates() {
        for (seconds, nanoseconds, text) in [
            (0, 0, "1970-01-01T00:00:00.000Z"),
            (1, 999_999_999, "1970-01-01T00:00:01.999Z"),
            (1_709_251_199, 0, "2024-02-29T23:59:59.000Z"),
            (-1, 0, "1969-12-31T23:59:59.000Z"),
            (i64::MAX, 0, "1970-01-01T00:00:00.000Z"),
        ] {
            assert_eq!(rfc3339_of_file(seconds, nanoseconds), text);
        }
    }
}
