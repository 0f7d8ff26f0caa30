//! Waiting for a condition instead of for a time.

use std::{
    future::Future,
    ops::Range,
    time::{Duration, Instant},
};

/// For what comes soon, or a little later on a machine that has other work. It ends a test that would wait for ever; how fast
/// things are is measured elsewhere.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// Pauses between questions: they grow, so that many who wait do not slow down what they wait for.
const PAUSES: Range<Duration> = Duration::from_millis(20)..Duration::from_millis(250);

/// Asks again until `condition` gives a value; fails with `what` when `limit` has passed.
///
/// # Panics
/// When the condition does not come true in time.
pub async fn eventually<T, F, Fut>(what: &str, limit: Duration, mut condition: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Option<T>>,
{
    let start = Instant::now();
    let mut pause = PAUSES.start;
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(start.elapsed() < limit, "not within {limit:?}: {what}");
        tokio::time::sleep(pause).await;
        pause = (pause * 5 / 4).min(PAUSES.end);
    }
}

/// The value of `future`, which must come within `limit`.
///
/// # Panics
/// When it does not.
pub async fn within<T>(what: &str, limit: Duration, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(limit, future).await {
        Ok(value) => value,
        Err(_) => panic!("not within {limit:?}: {what}"),
    }
}
