//! What pure code needs of the platform: time, chance, background work, a log. One implementation runs on Workers, one in
//! native tests.

use std::time::Duration;

use chrono::{DateTime, SecondsFormat};
use futures_util::future::{Either, LocalBoxFuture, select};

use crate::schedule::zone::Zones;

/// Time, chance, background work and the log.
pub trait Platform {
    /// Milliseconds since 1970 in UTC. On Workers the clock stands still between input and output.
    fn now_millis(&self) -> i64;

    /// Unpredictable bytes.
    fn random(&self) -> [u8; 16];

    /// What is known of time zones.
    fn zones(&self) -> &dyn Zones;

    /// Completes after `duration`.
    fn sleep(&self, duration: Duration) -> LocalBoxFuture<'static, ()>;

    /// Runs `work` to its end although the request that began it is answered.
    fn background(&self, work: LocalBoxFuture<'static, ()>);

    /// Writes one structured line.
    fn log(&self, line: &serde_json::Value);
}

/// The wait took longer than its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadlineExceeded;

/// `work`, given up after `deadline`. Every wait of this product goes through here or has its deadline on the other side.
pub async fn within<T>(
    platform: &dyn Platform,
    deadline: Duration,
    work: impl Future<Output = T>,
) -> Result<T, DeadlineExceeded> {
    let work = std::pin::pin!(work);
    match select(work, platform.sleep(deadline)).await {
        Either::Left((value, _)) => Ok(value),
        Either::Right(((), _)) => Err(DeadlineExceeded),
    }
}

/// A time as RFC 3339 in UTC with milliseconds.
pub fn rfc3339(millis: i64) -> String {
    let time = DateTime::from_timestamp_millis(millis).unwrap_or_default();
    time.to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// The milliseconds of an RFC 3339 time; `None` when the text is not one.
pub fn parse_rfc3339(text: &str) -> Option<i64> {
    DateTime::parse_from_rfc3339(text).ok().map(|time| time.timestamp_millis())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rfc_3339() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(951_782_400_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(rfc3339(1_785_585_599_999), "2026-08-01T11:59:59.999Z");
        assert_eq!(parse_rfc3339("2026-08-01T13:59:59.999+02:00"), Some(1_785_585_599_999));
        assert_eq!(parse_rfc3339("yesterday"), None);
    }
}
