//! Marks in the tenant's storage.

use serde::Deserialize;

use super::actor::{Inner, TextRow};
use super::admission::AdmissionRequest;
use super::keyring;
use super::marks::{CancelRequest, Marked, Wanted, WantedRequest};
use super::token::ROOT_KEY_ID;
use crate::error::Result;
use crate::identifier::SandboxId;

pub(super) const SCHEMA: &[&str] = &[
    "CREATE TABLE IF NOT EXISTS marks (call_id TEXT PRIMARY KEY, holder TEXT NOT NULL, digest TEXT NOT NULL, sandbox_id TEXT NOT NULL, \
     is_job INTEGER NOT NULL, until INTEGER NOT NULL, cancelled_at INTEGER) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS marks_digest ON marks (digest, holder)",
];

#[derive(Deserialize)]
struct MarkRow {
    call_id: String,
    /// Empty where the call is about none.
    sandbox_id: String,
    is_job: f64,
}

impl Inner {
    /// Keeps the mark of a call that is open from here on, or of a job for as long as its caller waits.
    pub(super) fn keep_mark(&self, request: &AdmissionRequest, is_job: bool) -> Result<()> {
        let Some(mark) = &request.mark else { return Ok(()) };
        let sandbox_id = request.claim.sandbox_id().map(SandboxId::as_str).unwrap_or_default();
        let values = vec![
            request.call_id.as_str().into(),
            request.principal.holder().into(),
            mark.digest.as_str().into(),
            sandbox_id.into(),
            i64::from(is_job).into(),
            (if is_job { mark.until } else { request.deadline_at }).into(),
        ];
        let statement = "INSERT OR REPLACE INTO marks (call_id, holder, digest, sandbox_id, is_job, until) \
            VALUES (?, ?, ?, ?, ?, ?)";
        self.write(statement, values)
    }

    /// Finds the one open call of a mark, and notes that nobody wants it any more. Counted as a call of the key; a window that is
    /// used up keeps nobody from ending what it began.
    pub(super) fn cancel(&self, request: &CancelRequest) -> Result<Marked> {
        self.counted(&request.principal, request.at)?;
        let statement =
            "SELECT call_id, sandbox_id, is_job FROM marks WHERE digest = ? AND holder = ? AND until >= ? LIMIT 2";
        let values = vec![request.digest.as_str().into(), request.principal.holder().into(), request.at.into()];
        let rows: Vec<MarkRow> = self.rows(statement, values)?;
        let mut rows = rows.into_iter();
        let (Some(row), None) = (rows.next(), rows.next()) else { return Ok(Marked::Nothing) };
        self.write(
            "UPDATE marks SET cancelled_at = ? WHERE call_id = ?",
            vec![request.at.into(), row.call_id.as_str().into()],
        )?;
        if row.is_job != 0.0 {
            return Ok(Marked::Job { job_id: row.call_id });
        }
        Ok(Marked::Call { call_id: row.call_id, sandbox_id: SandboxId::parse(&row.sandbox_id).ok() })
    }

    /// Whether an open call is still wanted, and by a key that is still one.
    pub(super) fn wanted(&self, request: &WantedRequest) -> Result<Wanted> {
        let statement = "SELECT call_id AS text FROM marks WHERE call_id = ? AND cancelled_at IS NOT NULL";
        if !self.rows::<TextRow>(statement, vec![request.call_id.as_str().into()])?.is_empty() {
            return Ok(Wanted::Cancelled);
        }
        if request.key_id == ROOT_KEY_ID {
            return Ok(Wanted::Still);
        }
        let standing = match self.key(&request.key_id)? {
            Some(key) => key.standing(request.at),
            None => Err(keyring::invalid()),
        };
        Ok(standing.map_or_else(Wanted::KeyEnded, |()| Wanted::Still))
    }

    pub(super) fn forget_mark(&self, call_id: &str) -> Result<()> {
        self.write("DELETE FROM marks WHERE call_id = ?", vec![call_id.into()])
    }

    /// Forgets marks of callers that do not wait any more.
    pub(super) fn forget_old_marks(&self, now: i64) -> Result<()> {
        self.write("DELETE FROM marks WHERE until < ?", vec![now.into()])
    }
}
