//! The audit in R2: what was exported, where it lies, and how it is read and held against the books.
//!
//! An export holds records of the books that follow each other, as lines of JSON:
//!
//! ```text
//! {tenant}/audit/{first}-{last}-{digest}.jsonl      first and last place, twelve digits each; digest of the last record
//!
//! {"tenant":"default","from":{"seq":0,"digest":"000…"},"to":{"seq":2,"digest":"…"}}
//! {"seq":1,"at":…,"callId":"…","kind":"intent","record":"…","digest":"…"}
//! {"seq":2,…}
//! ```
//!
//! The name alone tells where the books stood, so that a look at the list of names shows whether the books are still those that were
//! exported (`verification.rs`). Names are in the order of the books. The same export written twice is the same object.

use std::collections::HashMap;

use futures_util::future::LocalBoxFuture;
use serde::{Deserialize, Serialize};

use super::audit::{Head, Record};
use super::inquiry::{AuditRequest, Entries, Entry};
use crate::error::{Error, ErrorCode, Result};
use crate::job::record::Approval;
use crate::services::Books;

/// Most records of one export.
pub const MOST_RECORDS: i64 = 20_000;

/// Bytes of records after which an export ends.
pub const MOST_BYTES: usize = 8 * 1024 * 1024;

/// Bytes of arguments after which a page ends early.
pub const MOST_PAGE_BYTES: usize = 2 * 1024 * 1024;

/// Exports that one answer about calls is read from, at most.
pub const MOST_READ: usize = 3;

/// One export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Export {
    /// Place of its first record.
    pub first: i64,
    /// Place of its last record.
    pub last: i64,
    /// Digest of its last record.
    pub digest: String,
}

/// The first line of an export.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Title {
    tenant: String,
    from: Head,
    to: Head,
}

/// Where a tenant's objects lie in the bucket, whatever they are.
pub fn tenant_prefix(tenant: &str) -> String {
    format!("{tenant}/")
}

/// Where its exports lie.
pub fn prefix(tenant: &str) -> String {
    format!("{tenant}/audit/")
}

/// What stands in the order of names before every export that begins after `seq`.
pub fn place(tenant: &str, seq: i64) -> String {
    format!("{}{:012}~", prefix(tenant), seq.max(0))
}

impl Export {
    pub fn key(&self, tenant: &str) -> String {
        let Self { first, last, digest } = self;
        format!("{}{first:012}-{last:012}-{digest}.jsonl", prefix(tenant))
    }

    pub fn parse(tenant: &str, key: &str) -> Option<Self> {
        let name = key.strip_prefix(&prefix(tenant))?.strip_suffix(".jsonl")?;
        let mut parts = name.splitn(3, '-');
        let export = Self {
            first: parts.next()?.parse().ok()?,
            last: parts.next()?.parse().ok()?,
            digest: parts.next()?.to_owned(),
        };
        (export.key(tenant) == key).then_some(export)
    }

    pub(super) fn head(&self) -> Head {
        Head { seq: self.last, digest: self.digest.clone() }
    }
}

/// The beginning of an export's text.
pub fn title(tenant: &str, from: &Head, to: &Head) -> Result<String> {
    line(&Title { tenant: tenant.to_owned(), from: from.clone(), to: to.clone() })
}

/// One line of an export's text.
pub fn line<T: Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value).map(|text| text + "\n").map_err(Error::internal)
}

/// What stands before an export's first record, and its records; nothing where the text is none of ours.
pub(super) fn contents(text: &str) -> Option<(Head, Vec<Record>)> {
    let mut lines = text.lines();
    let title: Title = serde_json::from_str(lines.next()?).ok()?;
    let records = lines.map(serde_json::from_str).collect::<std::result::Result<_, _>>().ok()?;
    Some((title.from, records))
}

/// The bucket, as far as the books of one tenant need it.
pub trait Archive {
    /// Exports that begin after a place, in order, at least as far as the first that begins after another place; and whether there
    /// are more.
    fn list(&self, after: i64, to: i64) -> LocalBoxFuture<'_, Result<(Vec<Export>, bool)>>;

    /// The text of one; nothing where it is not there.
    fn read<'a>(&'a self, export: &'a Export) -> LocalBoxFuture<'a, Result<Option<String>>>;
}

/// Exports from which an answer about calls goes on, where the tenant's object has no more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Archived {
    /// The newest first.
    pub exports: Vec<Export>,
    /// Records of calls in these exports that came after the end of the export: how they ended, and who decided.
    pub late: Vec<LateRecord>,
    /// Only records before this place are looked at.
    pub before: i64,
    pub more: bool,
}

/// A record of a call that is not in the export of its intent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LateRecord {
    pub call_id: String,
    pub kind: String,
    pub record: String,
}

/// Calls of the books, and where they go on.
#[derive(Debug, Default)]
pub struct Page {
    pub entries: Vec<Entry>,
    pub next: Option<i64>,
}

/// Calls of the books: what the tenant's object has of them, then what the archive has.
pub async fn page(books: &dyn Books, archive: Option<&dyn Archive>, request: AuditRequest) -> Result<Page> {
    let wanted = usize::try_from(request.limit).unwrap_or(usize::MAX);
    let mut bytes = 0;
    let Entries { mut entries, more, archived } = books.audit(request.clone()).await?;
    let last = entries.last().map(|entry| entry.seq);
    let (Some(archived), Some(archive), false) = (archived, archive, more) else {
        return Ok(Page { entries, next: last.filter(|_| more) });
    };
    if entries.len() == wanted && !archived.exports.is_empty() {
        return Ok(Page { entries, next: last });
    }
    let mut others = Others::default();
    for late in &archived.late {
        others.insert((late.call_id.clone(), late.kind.clone()), late.record.clone());
    }
    for export in &archived.exports {
        let records = records(archive, export).await?;
        for record in records.iter().filter(|record| record.kind != INTENT) {
            others.insert((record.call_id.clone(), record.kind.clone()), record.record.clone());
        }
        for record in records.iter().rev().filter(|record| record.kind == INTENT && record.seq < archived.before) {
            let entry = entry(record, &others)?;
            if request.takes(&entry) {
                entries.push(entry);
                bytes += record.record.len();
            }
            if entries.len() == wanted || bytes > MOST_PAGE_BYTES {
                return Ok(Page { entries, next: Some(record.seq) });
            }
        }
    }
    let next = archived.exports.last().map(|export| export.first).filter(|_| archived.more);
    Ok(Page { entries, next })
}

async fn records(archive: &dyn Archive, export: &Export) -> Result<Vec<Record>> {
    let text = archive.read(export).await?.ok_or_else(|| {
        let message = format!("the export of the records {} to {} is no longer in R2", export.first, export.last);
        Error::new(ErrorCode::NotFound, message).detail("firstSeq", export.first).detail("lastSeq", export.last)
    })?;
    contents(&text).map(|(_, records)| records).ok_or_else(|| Error::internal("an export of the audit cannot be read"))
}

/// Records of calls that are not their intents, by call and kind.
type Others = HashMap<(String, String), String>;

const INTENT: &str = "intent";

/// The call of an intent.
fn entry(intent: &Record, others: &Others) -> Result<Entry> {
    fn parsed<T: serde::de::DeserializeOwned>(text: &str) -> Result<T> {
        serde_json::from_str(text).map_err(Error::internal)
    }
    let other = |kind: &str| others.get(&(intent.call_id.clone(), kind.to_owned())).map(String::as_str);
    let waiting: Option<Approval> = other("waiting").map(parsed).transpose()?;
    let decision = other("decision").map(parsed).transpose()?;
    Ok(Entry {
        seq: intent.seq,
        at: intent.at,
        intent: parsed(&intent.record)?,
        settlement: other("outcome").map(parsed).transpose()?,
        approval: waiting.map(|waiting| Approval { decision, ..waiting }),
    })
}

#[cfg(test)]
mod tests;
