//! The way of the audit to R2, and what the tenant keeps there.
//!
//! Which records an export holds is stored before it is written, and that it is there after: an export that was lost in between is
//! written again under the same name with the same text. Records leave this object only once an export holds them.

use std::cell::Cell;
use std::time::Duration;

use serde::Deserialize;

use super::actor::{Inner, TextRow, now, read, whole};
use super::archive::{Archived, Export, MOST_BYTES, MOST_READ, MOST_RECORDS, line, tenant_prefix, title};
use super::audit::{Head, Record};
use super::books::AuditRow;
use super::inquiry::AuditRequest;
use super::storage::Storage;
use crate::error::{Error, Result};
use crate::workers::backend::configured;
use crate::workers::bucket::Bucket;

/// Between two exports, at whole multiples of it.
const EXPORT_INTERVAL: Duration = Duration::from_secs(60 * 60);

/// Until R2 is tried again.
const EXPORT_PAUSE: Duration = Duration::from_secs(60);

/// Exports that one alarm writes, and parts of the list of objects that it reads.
const MOST_AT_ONCE: u32 = 3;

/// Intervals between two counts of what is stored.
const COUNT_ROUND: i64 = 6;

const STORAGE_FACT: &str = "storage";

#[derive(Deserialize)]
struct ExportRow {
    first_seq: f64,
    last_seq: f64,
    digest: String,
    is_done: f64,
}

impl From<ExportRow> for Export {
    fn from(row: ExportRow) -> Self {
        Self { first: whole(row.first_seq), last: whole(row.last_seq), digest: row.digest }
    }
}

/// When the next export is due, as far as it is known.
#[derive(Default)]
pub(super) struct ExportClock {
    due_at: Cell<Option<i64>>,
    /// After a failure.
    not_before: Cell<i64>,
}

const COLUMNS: &str = "SELECT first_seq, last_seq, digest, is_done FROM exports";

impl Inner {
    pub(super) fn make_export_tables(&self) -> Result<()> {
        let table = "CREATE TABLE IF NOT EXISTS exports (first_seq INTEGER PRIMARY KEY, last_seq INTEGER NOT NULL, digest TEXT NOT NULL, \
            first_at INTEGER NOT NULL, last_at INTEGER NOT NULL, is_done INTEGER NOT NULL)";
        self.write(table, Vec::new())?;
        let table = "CREATE TABLE IF NOT EXISTS late_records (call_id TEXT NOT NULL, kind TEXT NOT NULL, intent_seq INTEGER NOT NULL, \
            record TEXT NOT NULL, PRIMARY KEY (intent_seq, kind)) WITHOUT ROWID";
        self.write(table, Vec::new())
    }

    /// Between two exports. `EXPORT_SECONDS` shortens it, for tests.
    fn export_interval(&self) -> i64 {
        let seconds = configured(&self.env, "EXPORT_SECONDS").and_then(|text| text.parse().ok());
        let interval = seconds.map_or(EXPORT_INTERVAL, |seconds: u64| Duration::from_secs(seconds.max(1)));
        millis(interval.min(EXPORT_INTERVAL))
    }

    fn last_export(&self) -> Result<Option<ExportRow>> {
        let rows: Vec<ExportRow> = self.rows(&format!("{COLUMNS} ORDER BY first_seq DESC LIMIT 1"), Vec::new())?;
        Ok(rows.into_iter().next())
    }

    /// Place of the last record that an export holds, or is to hold. What was forgotten before there was a bucket is in none.
    fn exported_to(&self) -> Result<Head> {
        let anchor = self.anchor()?;
        let last = self.last_export()?.map(|row| Head { seq: whole(row.last_seq), digest: row.digest });
        Ok(last.filter(|last| last.seq >= anchor.seq).unwrap_or(anchor))
    }

    /// Gives up exports that were begun, and whose records were forgotten while there was no bucket.
    fn drop_lost_exports(&self) -> Result<()> {
        let statement = "DELETE FROM exports WHERE is_done = 0 AND first_seq <= ?";
        self.write(statement, vec![self.anchor()?.seq.into()])
    }

    /// When there is something to export or to count.
    pub(super) fn next_export(&self, now: i64) -> Result<Option<i64>> {
        if let Some(due) = self.export_clock.due_at.get().filter(|due| *due > now) {
            return Ok(Some(due));
        }
        let due = match Bucket::of(&self.env) {
            // Books from before the name was kept wait for the next call.
            Some(_) if self.name()?.is_some() => {
                [self.export_due(now)?, self.storage()?.due(COUNT_ROUND * self.export_interval())]
            }
            _ => [None, None],
        };
        let due = due.into_iter().flatten().min().map(|due| due.max(self.export_clock.not_before.get()).max(now));
        self.export_clock.due_at.set(due);
        Ok(due)
    }

    fn export_due(&self, now: i64) -> Result<Option<i64>> {
        let last = self.last_export()?;
        if last.as_ref().is_some_and(|row| row.is_done == 0.0) {
            return Ok(Some(now));
        }
        let (to, stands) = (self.exported_to()?, self.head()?);
        if stands.seq - to.seq >= MOST_RECORDS {
            return Ok(Some(now));
        }
        let oldest = self.records_after(to.seq)?.next::<AuditRow>().next().transpose().map_err(Error::internal)?;
        let interval = self.export_interval();
        Ok(oldest.map(|row| (Record::from(row).at.div_euclid(interval) + 1) * interval))
    }

    /// Exports what is due, and counts what is stored where that is due.
    pub(super) async fn export(&self) {
        let Some(bucket) = Bucket::of(&self.env) else { return };
        self.export_clock.due_at.set(None);
        let done = async {
            self.export_due_records(&bucket).await?;
            self.count_stored(&bucket).await
        };
        if let Err(error) = done.await {
            worker::console_error!("the audit was not exported: {:?}", error.cause.unwrap_or(error.message));
            self.export_clock.not_before.set(now() + millis(EXPORT_PAUSE).min(self.export_interval()));
            self.export_clock.due_at.set(None);
        }
    }

    async fn export_due_records(&self, bucket: &Bucket) -> Result<()> {
        let Some(tenant) = self.name()? else { return Ok(()) };
        self.drop_lost_exports()?;
        for _ in 0..MOST_AT_ONCE {
            if self.export_due(now())?.is_none_or(|due| due > now()) {
                break;
            }
            let (export, text, was_begun) =
                self.prepare_export(&tenant)?.ok_or_else(|| Error::internal("an export that is due has no records"))?;
            let key = export.key(&tenant);
            // What was written before may be locked by now, and cannot be written again.
            let is_there = was_begun && bucket.get(&key).await?.as_ref() == Some(&text);
            if !is_there {
                bucket.put(&key, &text).await?;
            }
            self.write("UPDATE exports SET is_done = 1 WHERE first_seq = ?", vec![export.first.into()])?;
            let bytes = i64::try_from(text.len()).unwrap_or(i64::MAX);
            self.store_storage(&self.storage()?.with("audit", bytes))?;
        }
        Ok(())
    }

    /// The export that was begun before, or the next one, with its text; and whether it was begun before.
    fn prepare_export(&self, tenant: &str) -> Result<Option<(Export, String, bool)>> {
        let begun = self.last_export()?.filter(|row| row.is_done == 0.0).map(Export::from);
        let from = match &begun {
            Some(export) => self.head_before(export.first)?,
            None => self.exported_to()?,
        };
        let most = begun.as_ref().map_or(from.seq + MOST_RECORDS, |export| export.last);
        let (mut lines, mut first, mut last) = (String::new(), None, None);
        for row in self.records_after(from.seq)?.next::<AuditRow>() {
            let record = Record::from(row.map_err(Error::internal)?);
            if record.seq > most || (begun.is_none() && lines.len() > MOST_BYTES) {
                break;
            }
            lines.push_str(&line(&record)?);
            first.get_or_insert((record.seq, record.at));
            last = Some((record.seq, record.at, record.digest));
        }
        let (Some((first, first_at)), Some((seq, last_at, digest))) = (first, last) else { return Ok(None) };
        let to = Head { seq, digest };
        let export = Export { first, last: to.seq, digest: to.digest.clone() };
        if begun.is_none() {
            let statement = "INSERT INTO exports (first_seq, last_seq, digest, first_at, last_at, is_done) VALUES (?, ?, ?, ?, ?, 0)";
            let values = vec![first.into(), seq.into(), to.digest.as_str().into(), first_at.into(), last_at.into()];
            self.write(statement, values)?;
        }
        Ok(Some((export, title(tenant, &from, &to)? + &lines, begun.is_some())))
    }

    /// Where the books stood before a record.
    fn head_before(&self, seq: i64) -> Result<Head> {
        let before = self.records_after(seq - 2)?.next::<AuditRow>().next().transpose().map_err(Error::internal)?;
        let before = before.map(Record::from).filter(|record| record.seq == seq - 1);
        before.map_or_else(|| self.anchor(), |record| Ok(Head { seq: record.seq, digest: record.digest }))
    }

    /// Forgets the records of exports that are older than `old`, one export after the other. What came later of their calls is kept
    /// here, to be told with them.
    pub(super) fn forget_exported(&self, old: i64) -> Result<()> {
        let statement =
            format!("{COLUMNS} WHERE is_done = 1 AND last_at < ? AND last_seq > ? ORDER BY first_seq LIMIT ?");
        let values = vec![old.into(), self.anchor()?.seq.into(), i64::from(MOST_AT_ONCE).into()];
        let rows: Vec<ExportRow> = self.rows(&statement, values)?;
        for export in rows.into_iter().map(Export::from) {
            let statement = "INSERT OR IGNORE INTO late_records (call_id, kind, intent_seq, record) \
                SELECT later.call_id, later.kind, asked.seq, later.record FROM audit AS asked \
                JOIN audit AS later ON later.call_id = asked.call_id AND later.seq > ?1 AND later.kind <> 'intent' \
                WHERE asked.seq <= ?1 AND asked.kind = 'intent'";
            self.write(statement, vec![export.last.into()])?;
            self.forget_to(&Head { seq: export.last, digest: export.digest })?;
        }
        Ok(())
    }

    pub(super) fn has_bucket(&self) -> bool {
        Bucket::of(&self.env).is_some()
    }

    /// Exports with calls that this object no longer has, as far as one answer reads them.
    pub(super) fn archived(&self, request: &AuditRequest) -> Result<Option<Archived>> {
        let anchor = self.anchor()?.seq;
        let before = request.before_seq.unwrap_or(i64::MAX).min(anchor + 1);
        let statement = format!(
            "{COLUMNS} WHERE is_done = 1 AND last_seq <= ? AND first_seq < ? AND last_at >= ? AND first_at < ? ORDER BY first_seq DESC LIMIT ?"
        );
        let most = i64::try_from(MOST_READ).unwrap_or(1) + 1;
        // The largest number of JavaScript that is exact.
        let (since, until) = (request.since.unwrap_or(0), request.until.unwrap_or((1 << 53) - 1));
        let values = vec![anchor.into(), before.into(), since.into(), until.into(), most.into()];
        let rows: Vec<ExportRow> = self.rows(&statement, values)?;
        let mut exports: Vec<Export> = rows.into_iter().map(Export::from).collect();
        let more = exports.len() > MOST_READ;
        exports.truncate(MOST_READ);
        let (Some(newest), Some(oldest)) = (exports.first(), exports.last()) else { return Ok(None) };
        let statement = "SELECT json_object('callId', call_id, 'kind', kind, 'record', record) AS text FROM late_records \
            WHERE intent_seq >= ? AND intent_seq <= ?";
        let late: Vec<TextRow> = self.rows(statement, vec![oldest.first.into(), newest.last.into()])?;
        let late = late.iter().map(|row| read(&row.text)).collect::<Result<_>>()?;
        Ok(Some(Archived { exports, late, before, more }))
    }

    /// The first export that was ever made.
    pub(super) fn first_export(&self) -> Result<Option<Export>> {
        let statement = format!("{COLUMNS} WHERE is_done = 1 ORDER BY first_seq LIMIT 1");
        let rows: Vec<ExportRow> = self.rows(&statement, Vec::new())?;
        Ok(rows.into_iter().next().map(Export::from))
    }

    /// Exports that end in a part of the books.
    pub(super) fn exports_between(&self, from: i64, to: i64) -> Result<Vec<Export>> {
        let statement =
            format!("{COLUMNS} WHERE is_done = 1 AND last_seq >= ? AND last_seq <= ? ORDER BY first_seq LIMIT 1000");
        let rows: Vec<ExportRow> = self.rows(&statement, vec![from.into(), to.into()])?;
        Ok(rows.into_iter().map(Export::from).collect())
    }

    /// What the tenant keeps in R2.
    pub(super) fn storage(&self) -> Result<Storage> {
        self.fact(STORAGE_FACT)
    }

    fn store_storage(&self, storage: &Storage) -> Result<()> {
        self.used_since_look.set(true);
        self.set_fact(STORAGE_FACT, storage)
    }

    /// Counts what is really there, a part at a time.
    async fn count_stored(&self, bucket: &Bucket) -> Result<()> {
        let Some(tenant) = self.name()? else { return Ok(()) };
        let prefix = tenant_prefix(&tenant);
        for _ in 0..MOST_AT_ONCE {
            let storage = self.storage()?;
            if storage.due(COUNT_ROUND * self.export_interval()).is_none_or(|due| due > now()) {
                break;
            }
            let part = bucket.list(&prefix, None, storage.cursor()).await?;
            let objects = part.objects.iter().filter_map(|(key, bytes)| Some((key.strip_prefix(&prefix)?, *bytes)));
            // What was written while the list was read is not lost: it is read again here.
            self.store_storage(&self.storage()?.counted(objects, part.cursor, now()))?;
        }
        Ok(())
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
