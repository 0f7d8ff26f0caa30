//! Waiting for a condition instead of for a time.

use std::{
    future::Future,
    time::{Duration, Instant},
};

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
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(start.elapsed() < limit, "not within {limit:?}: {what}");
        tokio::time::sleep(Duration::from_millis(25)).await;
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
