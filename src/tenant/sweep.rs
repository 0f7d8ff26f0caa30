//! The sweep over the tenant's list: no sandbox stays listed that is not there, stuck in a start, or alive beyond its time.
//!
//! Each alarm asks a few sandboxes' objects whether what is listed is so: first those that look wrong, then those that were not asked
//! for longest. The object mends itself and reports; here only what nobody knows is taken off the list.

use std::time::Duration;

use worker::Env;

use super::actor::{Inner, SWEEP_INTERVAL, TextRow, now, read};
use super::listing::Listed;
use crate::error::{Error, Result};
use crate::fetch_error::Repeat;
use crate::sandbox::actor::{Stated, object_name};
use crate::sandbox::reconcile::Finding;
use crate::workers::backend::configured;
use crate::workers::fetch::FetchError;
use crate::workers::internal::{Question, SANDBOX_BINDING, namespace};

/// Sandboxes asked by one alarm.
const MOST_ASKED: i64 = 5;

/// Until a sandbox's object answers.
const FINDING_DEADLINE: Duration = Duration::from_secs(5);

/// Sweeps between two questions to a sandbox that looks well.
const ROUND: i64 = 10;

/// Sweeps for which a listed sandbox may be unknown to its object: it may be on its way there.
const UNKNOWN_FOR: i64 = 2;

/// Between two sweeps. `SWEEP_SECONDS` shortens it, for tests.
pub(super) fn interval(tenant: &Inner) -> Duration {
    between(&tenant.env)
}

/// The same for others than the tenant's object, in milliseconds.
pub(crate) fn millis_between(env: &Env) -> i64 {
    i64::try_from(between(env).as_millis()).unwrap_or(i64::MAX)
}

fn between(env: &Env) -> Duration {
    let seconds = configured(env, "SWEEP_SECONDS").and_then(|text| text.parse().ok());
    seconds.map_or(SWEEP_INTERVAL, |seconds: u64| Duration::from_secs(seconds.max(1))).min(SWEEP_INTERVAL)
}

/// Asks a few sandboxes. A failure is logged and the sandbox asked again by a later sweep.
pub(super) async fn run(tenant: &Inner) {
    let sweep = i64::try_from(interval(tenant).as_millis()).unwrap_or(i64::MAX);
    let candidates = match candidates(tenant, sweep) {
        Ok(candidates) => candidates,
        Err(error) => return worker::console_error!("a tenant's list could not be read: {:?}", error.cause),
    };
    let asked = candidates.iter().map(|listed| async move {
        if let Err(error) = check(tenant, listed, sweep).await {
            worker::console_error!(
                "a sandbox could not be held against the list: {} {:?}",
                listed.sandbox_id.as_str(),
                error.cause.unwrap_or(error.message)
            );
        }
    });
    futures_util::future::join_all(asked).await;
}

/// Those that look wrong, then those that were not asked for longest.
fn candidates(tenant: &Inner, sweep: i64) -> Result<Vec<Listed>> {
    let now = now();
    let statement = "SELECT listed AS text FROM sandboxes LEFT JOIN sandbox_checks USING (sandbox_id) \
        WHERE json_extract(listed, '$.createdAt') < ?1 AND (coalesce(checked_at, 0) < ?2 OR (coalesce(checked_at, 0) < ?1 \
        AND (json_extract(listed, '$.state') IN ('starting', 'created') OR json_extract(listed, '$.expiresAt') < ?1))) \
        ORDER BY coalesce(checked_at, 0) LIMIT ?3";
    let values = vec![(now - sweep).into(), (now - ROUND * sweep).into(), MOST_ASKED.into()];
    let rows: Vec<TextRow> = tenant.rows(statement, values)?;
    rows.iter().map(|row| read(&row.text)).collect()
}

async fn check(tenant: &Inner, listed: &Listed, sweep: i64) -> Result<()> {
    let id = &listed.sandbox_id;
    let asked = "INSERT OR REPLACE INTO sandbox_checks (sandbox_id, checked_at) VALUES (?, ?)";
    tenant.write(asked, vec![id.as_str().into(), now().into()])?;
    let Some(name) = tenant.name()? else { return Ok(()) };
    let stated = Stated { tenant: name.clone(), sandbox_id: id.clone() };
    let lost = |error: FetchError| Error::internal(error);
    let objects = namespace(&tenant.env, SANDBOX_BINDING)?;
    let object = object_name(&name, id.as_str());
    let question = Question {
        objects: &objects,
        name: &object,
        path: "/reconcile",
        deadline: FINDING_DEADLINE,
        repeat: Repeat::Never,
        lost,
        trace: Vec::new(),
    };
    let finding: Finding = question.ask(&stated, |_| ()).await?;
    let is_old = listed.created_at < now() - UNKNOWN_FOR * sweep;
    // Only what is listed as it was when the question was asked: another of that name may have come since.
    if matches!(finding, Finding::Unknown) && is_old && tenant.listed(id)?.as_ref() == Some(listed) {
        worker::console_log!("a sandbox that nobody knows leaves the list: {}", id.as_str());
        tenant.remove(id)?;
    }
    Ok(())
}
