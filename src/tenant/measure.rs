//! The metrics in the tenant's storage: one statement adds a sample, in the turn of what it counts.
//!
//! A sample that cannot be stored is logged and fails nothing.

use serde::Deserialize;

use super::actor::{Inner, now};
use super::metrics::{DAYS, MetricsRequest, Report, Row, Sample};
use crate::error::Result;

#[derive(Deserialize)]
struct CountRow {
    count: f64,
}

/// Adds one sample.
pub(super) fn add(tenant: &Inner, sample: &Sample) {
    let values = vec![
        sample.hour().into(),
        sample.metric().into(),
        sample.label.as_str().into(),
        sample.outcome.as_str().into(),
        sample.duration_ms.unwrap_or(0).into(),
    ];
    if let Err(error) = tenant.write(&sample.statement(), values) {
        worker::console_error!("a sample was not counted: {:?}", error.cause);
    }
}

/// What was counted.
pub(super) fn report(tenant: &Inner, request: &MetricsRequest) -> Result<Report> {
    let rows: Vec<Row> =
        tenant.rows(&request.statement(), vec![request.since_hour.into(), request.until_hour.into()])?;
    Ok(Report::new(rows, size(tenant, "sandboxes")?, size(tenant, "open_calls")?))
}

/// How many rows a table has now.
fn size(tenant: &Inner, table: &str) -> Result<u64> {
    let rows: Vec<CountRow> = tenant.rows(&format!("SELECT count(*) AS count FROM {table}"), Vec::new())?;
    // A count far below 2^53.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let count = rows.first().map_or(0, |row| row.count as u64);
    Ok(count)
}

/// Forgets what is older than it is kept.
pub(super) fn forget(tenant: &Inner) -> Result<()> {
    let first = now().div_euclid(super::metrics::HOUR_MILLIS) - DAYS * 24;
    tenant.write("DELETE FROM metrics WHERE hour < ?", vec![first.into()])
}
