//! The books in the tenant's storage: appended to, read, verified, and forgotten from their beginning.

use serde::{Deserialize, Serialize};
use worker::SqlCursor;

use super::actor::{Inner, TextRow, read, values, whole};
use super::audit::{Head, Record};
use super::inquiry::{AuditRequest, Entries, Entry, MOST_VERIFIED, Verified, VerifyRequest};
use crate::error::{Error, Result};
use crate::job::record::Approval;

/// Days that the audit is kept here.
const AUDIT_DAYS: i64 = 30;
pub(super) const DAY_MILLIS: i64 = 24 * 60 * 60 * 1000;

/// Most calls in one part of the books.
const MOST_LISTED: u32 = 500;

/// Bytes of arguments after which a part of the books ends early.
const MOST_BYTES: usize = 2 * 1024 * 1024;

/// Where the books begin: what stands before the first record that is kept.
const ANCHOR_FACT: &str = "auditAnchor";

#[derive(Deserialize)]
pub(super) struct AuditRow {
    seq: f64,
    at: f64,
    call_id: String,
    kind: String,
    record: String,
    digest: String,
}

#[derive(Deserialize)]
struct EntryRow {
    seq: f64,
    at: f64,
    intent: String,
    settlement: Option<String>,
    waiting: Option<String>,
    decision: Option<String>,
}

impl EntryRow {
    fn entry(self) -> Result<Entry> {
        let settlement = self.settlement.as_deref().map(read).transpose()?;
        let waiting = self.waiting.as_deref().map(read::<Approval>).transpose()?;
        let decision = self.decision.as_deref().map(read).transpose()?;
        let approval = waiting.map(|waiting| Approval { decision, ..waiting });
        Ok(Entry { seq: whole(self.seq), at: whole(self.at), intent: read(&self.intent)?, settlement, approval })
    }
}

impl From<AuditRow> for Record {
    fn from(row: AuditRow) -> Self {
        let AuditRow { seq, at, call_id, kind, record, digest } = row;
        Self { seq: whole(seq), at: whole(at), call_id, kind, record, digest }
    }
}

impl Inner {
    /// Where the books stand.
    pub(super) fn head(&self) -> Result<Head> {
        if let Some(head) = self.head.borrow().clone() {
            return Ok(head);
        }
        let statement = "SELECT seq, at, call_id, kind, record, digest FROM audit ORDER BY seq DESC LIMIT 1";
        let last: Vec<AuditRow> = self.rows(statement, Vec::new())?;
        let last = last.into_iter().next().map(Record::from).filter(|record| !record.digest.is_empty());
        match last {
            Some(Record { seq, digest, .. }) => Ok(Head { seq, digest }),
            None => self.anchor(),
        }
    }

    /// What stands before the first record that is kept.
    pub(super) fn anchor(&self) -> Result<Head> {
        self.fact(ANCHOR_FACT)
    }

    fn set_anchor(&self, anchor: &Head) -> Result<()> {
        self.set_fact(ANCHOR_FACT, anchor)
    }

    pub(super) fn append<T: Serialize>(&self, at: i64, call_id: &str, kind: &str, record: &T) -> Result<()> {
        let text = serde_json::to_string(record).map_err(Error::internal)?;
        let record = self.head()?.next(at, call_id, kind, text);
        let head = Head { seq: record.seq, digest: record.digest.clone() };
        let values =
            vec![record.seq.into(), at.into(), call_id.into(), kind.into(), record.record.into(), record.digest.into()];
        self.write("INSERT INTO audit (seq, at, call_id, kind, record, digest) VALUES (?, ?, ?, ?, ?, ?)", values)?;
        *self.head.borrow_mut() = Some(head);
        Ok(())
    }

    /// Calls of the books. Rows are read one by one: together they may be more than this object's memory.
    pub(super) fn entries(&self, request: &AuditRequest) -> Result<Entries> {
        let limit = request.limit.clamp(1, MOST_LISTED);
        let (statement, parameters) = request.statement(limit + 1);
        let wanted = usize::try_from(limit).map_err(Error::internal)?;
        let cursor = self.sql().exec(&statement, values(parameters)).map_err(Error::internal)?;
        let mut found = Entries::default();
        let mut bytes = 0;
        for row in cursor.next::<EntryRow>() {
            let row = row.map_err(Error::internal)?;
            bytes += row.intent.len();
            if found.entries.len() == wanted || (bytes > MOST_BYTES && !found.entries.is_empty()) {
                found.more = true;
                break;
            }
            found.entries.push(row.entry()?);
        }
        if !found.more && self.has_bucket() {
            found.archived = self.archived(request)?;
        }
        Ok(found)
    }

    /// Records after a place, in order.
    pub(super) fn records_after(&self, seq: i64) -> Result<SqlCursor> {
        let statement = "SELECT seq, at, call_id, kind, record, digest FROM audit WHERE seq > ? ORDER BY seq";
        self.sql().exec(statement, vec![seq.into()]).map_err(Error::internal)
    }

    /// Where the books stand at these places, as far as there are records.
    pub(super) fn heads(&self, places: &[i64]) -> Result<Vec<Head>> {
        let places = serde_json::to_string(places).map_err(Error::internal)?;
        let statement = "SELECT json_object('seq', seq, 'digest', digest) AS text FROM audit \
            WHERE seq IN (SELECT value FROM json_each(?)) ORDER BY seq";
        let rows: Vec<TextRow> = self.rows(statement, vec![places.into()])?;
        rows.iter().map(|row| read(&row.text)).collect()
    }

    /// Whether the records from a place on are what was written.
    pub(super) fn verify(&self, request: &VerifyRequest) -> Result<Verified> {
        let from = match request.after {
            Some(seq) => {
                let before =
                    self.records_after(seq - 1)?.next::<AuditRow>().next().transpose().map_err(Error::internal)?;
                let before = before.map(Record::from).filter(|record| record.seq == seq);
                let before = before.ok_or_else(|| Error::invalid("/cursor", "there is no record at this place"))?;
                Head { seq, digest: before.digest }
            }
            None => self.anchor()?,
        };
        let mut verified =
            Verified { to: from.clone(), from, records: 0, fault: None, more: false, exported: Vec::new() };
        for row in self.records_after(verified.to.seq)?.next::<AuditRow>() {
            if verified.records == MOST_VERIFIED {
                verified.more = true;
                break;
            }
            if let Err(fault) = verified.to.follow(&row.map_err(Error::internal)?.into()) {
                verified.fault = Some(fault);
                break;
            }
            verified.records += 1;
        }
        verified.exported = self.exports_between(verified.from.seq, verified.to.seq)?;
        Ok(verified)
    }

    /// Forgets records that are older than the audit is kept, and remembers where they ended. Where there is a bucket, those go that
    /// an export holds, the records of an export together.
    pub(super) fn forget_records(&self, now: i64) -> Result<()> {
        let old = now - AUDIT_DAYS * DAY_MILLIS;
        if self.has_bucket() {
            return self.forget_exported(old);
        }
        let statement =
            "SELECT seq, at, call_id, kind, record, digest FROM audit WHERE at < ? ORDER BY seq DESC LIMIT 1";
        let last: Vec<AuditRow> = self.rows(statement, vec![old.into()])?;
        let Some(last) = last.into_iter().next().map(Record::from) else {
            return Ok(());
        };
        self.forget_to(&Head { seq: last.seq, digest: last.digest })
    }

    pub(super) fn forget_to(&self, last: &Head) -> Result<()> {
        self.set_anchor(last)?;
        self.write("DELETE FROM audit WHERE seq <= ?", vec![last.seq.into()])
    }

    /// Tables of before the books were chained get what they lack; the chain begins after their last record.
    pub(super) fn chain_books(&self) -> Result<()> {
        let columns: Vec<TextRow> = self.rows("SELECT name AS text FROM pragma_table_info('audit')", Vec::new())?;
        if columns.iter().any(|column| column.text == "digest") {
            return Ok(());
        }
        self.write("ALTER TABLE audit ADD COLUMN digest TEXT NOT NULL DEFAULT ''", Vec::new())?;
        let last = "SELECT seq, at, call_id, kind, record, digest FROM audit ORDER BY seq DESC LIMIT 1";
        let last: Vec<AuditRow> = self.rows(last, Vec::new())?;
        match last.into_iter().next().map(Record::from) {
            Some(record) => self.set_anchor(&Head { seq: record.seq, ..Head::default() }),
            None => Ok(()),
        }
    }
}
