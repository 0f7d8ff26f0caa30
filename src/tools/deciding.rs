//! Who decides on a job that waits, and which keys come of which.

use super::job_info::listed;
use crate::error::{Error, ErrorCode, Result};
use crate::job::record::{Decision, Job};
use crate::registry::Context;
use crate::tenant::keys::KeyRequest;
use crate::tenant::token::ROOT_KEY_ID;

/// Keys looked at from a key to those that made it.
const MOST_ANCESTORS: usize = 16;

/// What the caller decides.
pub fn decision(context: &Context, approved: bool, comment: Option<String>) -> Decision {
    let (key_id, call_id) = (context.principal.key_id.clone(), context.call_id.clone());
    Decision { approved, key_id, call_id, at: context.admitted_at, comment }
}

/// The job of that id, which the caller sees and may decide on.
pub async fn decidable(context: &Context, job_id: &str) -> Result<Job> {
    let job = listed(context, job_id).await?;
    may_decide(context, &job).await?;
    Ok(job)
}

/// 403 for who asked and for whoever it could have made its hand: two keys decide for each other only where no key of which both come has
/// rules for approval itself.
async fn may_decide(context: &Context, job: &Job) -> Result<()> {
    let own = &context.principal.key_id;
    if *own == job.key_id && context.permissions.approval.approves_own {
        return Ok(());
    }
    let asking = family(context, &job.key_id).await?;
    let deciding = family(context, own).await?;
    let is_of = |family: &[Ancestor], key_id: &str| family.iter().any(|one| one.key_id == key_id);
    let is_shared = |one: &Ancestor| one.has_rules && is_of(&asking, &one.key_id);
    if *own == job.key_id || is_of(&deciding, &job.key_id) || deciding.iter().any(is_shared) {
        let message = "a call is approved or rejected by another key than the one that asked, and by none that comes of a key with rules \
                       of which both come";
        return Err(Error::new(ErrorCode::Forbidden, message).detail("jobId", job.job_id.as_str()));
    }
    Ok(())
}

/// A key, or one that made it, however indirectly.
struct Ancestor {
    key_id: String,
    /// Whether its own calls wait, and for another to approve them.
    has_rules: bool,
}

/// A key and those that made it; the root key has none and is in nobody's.
async fn family(context: &Context, key_id: &str) -> Result<Vec<Ancestor>> {
    let mut family = Vec::new();
    let mut key_id = key_id.to_owned();
    while key_id != ROOT_KEY_ID {
        if family.len() == MOST_ANCESTORS {
            return Err(Error::new(ErrorCode::Forbidden, "a key was made by too many others to approve calls"));
        }
        let key = context.services.tenant.keys(KeyRequest::Get { key_id: key_id.clone() }).await?.one()?;
        let approval = &key.permissions.approval;
        family.push(Ancestor { key_id, has_rules: !approval.is_empty() && !approval.approves_own });
        key_id = key.created_by;
    }
    Ok(family)
}

/// Whether a key comes of another, or is it.
pub async fn comes_of(context: &Context, key_id: &str, ancestor: &str) -> Result<bool> {
    Ok(family(context, key_id).await?.iter().any(|one| one.key_id == ancestor))
}
