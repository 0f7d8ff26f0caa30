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
//! exported. Names are in the order of the books. The same export written twice is the same object.

use std::collections::HashMap;

use futures_util::future::LocalBoxFuture;
use serde::{Deserialize, Serialize};

use super::audit::{Fault, FaultKind, Head, Record};
use super::inquiry::{AuditRequest, Entries, Entry, MOST_VERIFIED, Verified, VerifyRequest};
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

    fn head(&self) -> Head {
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
fn contents(text: &str) -> Option<(Head, Vec<Record>)> {
    let mut lines = text.lines();
    let title: Title = serde_json::from_str(lines.next()?).ok()?;
    let records = lines.map(serde_json::from_str).collect::<std::result::Result<_, _>>().ok()?;
    Some((title.from, records))
}

/// The bucket, as far as the books of one tenant need it.
pub trait Archive {
    /// Exports that begin after a place, in order, and whether there are more.
    fn list(&self, after: i64) -> LocalBoxFuture<'_, Result<(Vec<Export>, bool)>>;

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

/// What a verification found, and how many exports it looked at.
#[derive(Debug)]
pub struct Verification {
    pub verified: Verified,
    pub exports: Option<u32>,
}

/// Holds the books of the tenant's object against themselves, and against what was exported of them.
pub async fn verify(books: &dyn Books, archive: Option<&dyn Archive>, after: Option<i64>) -> Result<Verification> {
    let mut verified = books.verify_audit(VerifyRequest { after }).await?;
    let (Some(archive), None) = (archive, verified.fault) else {
        return Ok(Verification { verified, exports: None });
    };
    let (from, to) = (verified.from.seq, verified.to.seq);
    // An export that ends in this part may have begun before it.
    let (listed, more) = archive.list((from - MOST_RECORDS).max(0)).await?;
    let known_to = if more { listed.last().map_or(from, |export| export.first) } else { i64::MAX };
    // What was exported was in the books before: an export beyond their end shows that the end is gone.
    let is_inside = |export: &&Export| export.last >= from && (export.last <= to || !verified.more);
    let inside: Vec<&Export> = listed.iter().filter(is_inside).collect();
    let places = inside.iter().map(|export| export.last).collect();
    let heads = books.audit_heads(places).await?;
    for export in &inside {
        // What stands before the first record was forgotten here; its digest is known.
        let stands = heads.contains(&export.head()) || verified.from == export.head();
        if !stands {
            let seq = first_difference(books, archive, export, from).await?;
            verified.fault = Some(Fault { seq, what: FaultKind::DiffersFromExport });
            return Ok(Verification { verified, exports: Some(count(inside.len())) });
        }
    }
    let gone = verified.exported.iter().find(|export| export.first < known_to && !listed.contains(export));
    if let Some(export) = gone {
        verified.fault = Some(Fault { seq: export.first, what: FaultKind::ExportMissing });
    }
    Ok(Verification { verified, exports: Some(count(inside.len())) })
}

/// The first record of an export, after a place, that the books have otherwise or not at all.
async fn first_difference(books: &dyn Books, archive: &dyn Archive, export: &Export, after: i64) -> Result<i64> {
    let text = archive.read(export).await?;
    let Some((_, mut exported)) = text.as_deref().and_then(contents) else { return Ok(export.first) };
    exported.retain(|record| record.seq > after);
    let heads = books.audit_heads(exported.iter().map(|record| record.seq).collect()).await?;
    let heads: HashMap<i64, String> = heads.into_iter().map(|head| (head.seq, head.digest)).collect();
    let differs = |record: &&Record| heads.get(&record.seq) != Some(&record.digest);
    Ok(exported.iter().find(differs).map_or(export.last, |record| record.seq))
}

/// Recomputes the chain over the archive, from the first export or from the end of one.
pub async fn verify_archive(books: &dyn Books, archive: &dyn Archive, after: Option<i64>) -> Result<Verification> {
    let (listed, more) = archive.list(after.map_or(0, |seq| (seq - MOST_RECORDS).max(0))).await?;
    let before = after.and_then(|seq| listed.iter().find(|export| export.last == seq)).map(Export::head);
    if after.is_some() && before.is_none() {
        return Err(Error::invalid("/cursor", "no export in R2 ends at this place"));
    }
    let ahead: Vec<&Export> = listed.iter().filter(|export| after.is_none_or(|seq| export.first > seq)).collect();
    let mut from = before.clone();
    let mut to = before;
    let (mut records, mut exports, mut fault) = (0, 0, None);
    for export in &ahead {
        if records >= MOST_VERIFIED || exports == MOST_READ {
            break;
        }
        match follow(archive, export, to.as_ref()).await? {
            Ok((begins, followed)) => {
                from.get_or_insert(begins);
                to = Some(export.head());
                records += followed;
                exports += 1;
            }
            Err(found) => {
                fault = Some(found);
                break;
            }
        }
    }
    let to = to.or_else(|| from.clone()).unwrap_or_default();
    // Where the tenant's object still has the place, it must have the same there.
    let heads = if exports > 0 { books.audit_heads(vec![to.seq]).await? } else { Vec::new() };
    if fault.is_none() && heads.iter().any(|head| *head != to) {
        fault = Some(Fault { seq: to.seq, what: FaultKind::DiffersFromExport });
    }
    let more = fault.is_none() && (exports < ahead.len() || more);
    let verified = Verified { from: from.unwrap_or_default(), to, records, fault, more, exported: Vec::new() };
    Ok(Verification { verified, exports: Some(count(exports)) })
}

/// Goes over one export: what stands before it and how many records follow, or the first fault.
async fn follow(
    archive: &dyn Archive,
    export: &Export,
    before: Option<&Head>,
) -> Result<std::result::Result<(Head, u32), Fault>> {
    let fault = |what| Ok(Err(Fault { seq: export.first, what }));
    if before.is_some_and(|before| before.seq + 1 != export.first) {
        return fault(FaultKind::ExportMissing);
    }
    let Some(text) = archive.read(export).await? else { return fault(FaultKind::ExportMissing) };
    let Some((begins, records)) = contents(&text) else { return fault(FaultKind::Changed) };
    if before.is_some_and(|before| *before != begins) {
        return fault(FaultKind::Changed);
    }
    let mut head = begins.clone();
    if let Err(found) = records.iter().try_for_each(|record| head.follow(record)) {
        return Ok(Err(found));
    }
    if head != export.head() {
        return fault(FaultKind::Changed);
    }
    Ok(Ok((begins, count(records.len()))))
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    use futures_util::FutureExt;
    use futures_util::future::ready;
    use serde_json::json;

    use super::*;
    use crate::tenant::admission::Outcome;

    const TENANT: &str = "default";

    /// Books of ten calls, two records each, of which all are exported, four records at a time.
    struct Double {
        /// What was ever written.
        whole: Vec<Record>,
        /// What the object has of it.
        records: Vec<Record>,
        /// What stands before the first record that is still in the object.
        anchor: Head,
        exports: Vec<Export>,
        bucket: RefCell<BTreeMap<String, String>>,
    }

    fn record(head: &mut Head, number: i64, kind: &str) -> Record {
        let call_id = format!("c{number}");
        let text = match kind {
            "intent" => {
                json!({ "callId": call_id, "tool": "exec", "door": "rest", "keyId": format!("k{}", number % 2), "arguments": {} })
            }
            _ => json!({ "callId": call_id, "outcome": { "result": "succeeded" }, "durationMs": 1, "at": number }),
        };
        let record = head.next(number, &call_id, kind, text.to_string());
        head.follow(&record).unwrap();
        record
    }

    impl Double {
        /// Calls overlap: each ends after the next one began.
        fn new() -> Self {
            let mut head = Head::default();
            let mut records = vec![record(&mut head, 0, "intent")];
            for number in 1..10 {
                records.push(record(&mut head, number, "intent"));
                records.push(record(&mut head, number - 1, "outcome"));
            }
            records.push(record(&mut head, 9, "outcome"));
            let whole = records.clone();
            let mut double =
                Self { whole, records, anchor: Head::default(), exports: Vec::new(), bucket: RefCell::default() };
            let mut from = Head::default();
            for part in double.records.clone().chunks(4) {
                let last = part.last().unwrap();
                let to = Head { seq: last.seq, digest: last.digest.clone() };
                let export = Export { first: part[0].seq, last: last.seq, digest: last.digest.clone() };
                let lines: String = part.iter().map(|record| line(record).unwrap()).collect();
                double.bucket.borrow_mut().insert(export.key(TENANT), title(TENANT, &from, &to).unwrap() + &lines);
                double.exports.push(export);
                from = to;
            }
            double
        }

        /// The object forgets the first exports.
        fn forget(mut self, exports: usize) -> Self {
            self.anchor = self.exports[exports - 1].head();
            self.records.retain(|record| record.seq > self.anchor.seq);
            self
        }

        fn change_export(&self, index: usize, change: fn(String) -> String) {
            let key = self.exports[index].key(TENANT);
            let text = self.bucket.borrow_mut().remove(&key).unwrap();
            self.bucket.borrow_mut().insert(key, change(text));
        }

        fn page(&self, request: AuditRequest) -> Page {
            page(self, Some(self), request).now_or_never().unwrap().unwrap()
        }

        fn verify(&self, after: Option<i64>) -> Verification {
            verify(self, Some(self), after).now_or_never().unwrap().unwrap()
        }

        fn verify_archive(&self, after: Option<i64>) -> Verification {
            verify_archive(self, self, after).now_or_never().unwrap().unwrap()
        }
    }

    impl Books for Double {
        fn audit(&self, request: AuditRequest) -> LocalBoxFuture<'_, Result<Entries>> {
            let before = request.before_seq.unwrap_or(i64::MAX);
            let there = |record: &Record| record.seq > self.anchor.seq;
            let others = self.records.iter().filter(|record| record.kind != INTENT && there(record));
            let others = others.map(|record| ((record.call_id.clone(), record.kind.clone()), record.record.clone()));
            let others: Others = others.collect();
            let asked = self.records.iter().rev();
            let asked = asked.filter(|record| record.kind == INTENT && record.seq < before && there(record));
            let entries = asked.map(|record| entry(record, &others).unwrap());
            let mut entries: Vec<Entry> = entries.filter(|entry| request.takes(entry)).collect();
            let more = entries.len() > request.limit as usize;
            entries.truncate(request.limit as usize);
            let before = before.min(self.anchor.seq + 1);
            let gone =
                self.exports.iter().rev().filter(|export| export.last <= self.anchor.seq && export.first < before);
            let mut exports: Vec<Export> = gone.cloned().collect();
            let has_more = exports.len() > MOST_READ;
            exports.truncate(MOST_READ);
            let is_late = |record: &&Record| {
                let asked = self.whole.iter().find(|asked| asked.kind == INTENT && asked.call_id == record.call_id);
                let export = self.exports.iter().find(|export| asked.is_some_and(|asked| asked.seq <= export.last));
                record.kind != INTENT && export.is_some_and(|export| record.seq > export.last)
            };
            let late = self.whole.iter().filter(is_late).map(|record| LateRecord {
                call_id: record.call_id.clone(),
                kind: record.kind.clone(),
                record: record.record.clone(),
            });
            let archived = Archived { late: late.collect(), before, more: has_more, exports };
            let archived = (!more && !archived.exports.is_empty()).then_some(archived);
            ready(Ok(Entries { entries, more, archived })).boxed_local()
        }

        fn verify_audit(&self, request: VerifyRequest) -> LocalBoxFuture<'_, Result<Verified>> {
            let from = match request.after {
                Some(seq) => self
                    .records
                    .iter()
                    .find(|record| record.seq == seq)
                    .map(|record| Head { seq, digest: record.digest.clone() })
                    .unwrap(),
                None => self.anchor.clone(),
            };
            let mut to = from.clone();
            let after = self.records.iter().filter(|record| record.seq > from.seq);
            let fault = after.clone().try_for_each(|record| to.follow(record)).err();
            let exported = self
                .exports
                .iter()
                .filter(|export| export.last >= from.seq && export.last <= to.seq)
                .cloned()
                .collect();
            ready(Ok(Verified { records: count(after.count()), from, to, fault, more: false, exported })).boxed_local()
        }

        fn audit_heads(&self, places: Vec<i64>) -> LocalBoxFuture<'_, Result<Vec<Head>>> {
            let there = self.records.iter().filter(|record| places.contains(&record.seq));
            ready(Ok(there.map(|record| Head { seq: record.seq, digest: record.digest.clone() }).collect()))
                .boxed_local()
        }
    }

    impl Archive for Double {
        fn list(&self, after: i64) -> LocalBoxFuture<'_, Result<(Vec<Export>, bool)>> {
            let after = place(TENANT, after);
            let bucket = self.bucket.borrow();
            let names = bucket.keys().filter(|key| **key > after);
            ready(Ok((names.filter_map(|key| Export::parse(TENANT, key)).collect(), false))).boxed_local()
        }

        fn read<'a>(&'a self, export: &'a Export) -> LocalBoxFuture<'a, Result<Option<String>>> {
            ready(Ok(self.bucket.borrow().get(&export.key(TENANT)).cloned())).boxed_local()
        }
    }

    fn fault(verification: &Verification) -> Option<(i64, FaultKind)> {
        verification.verified.fault.map(|fault| (fault.seq, fault.what))
    }

    #[test]
    fn the_name_of_an_export_says_where_the_books_stood_and_names_are_in_their_order() {
        let export = Export { first: 5, last: 12, digest: "ab12".into() };
        assert_eq!(export.key("team-a"), "team-a/audit/000000000005-000000000012-ab12.jsonl");
        assert_eq!(Export::parse("team-a", &export.key("team-a")), Some(export.clone()));
        assert_eq!(Export::parse("team", &export.key("team-a")), None);
        for wrong in
            ["team-a/audit/5-12-ab12.jsonl", "team-a/audit/x", "team-a/audit/000000000005-000000000012-ab12.json"]
        {
            assert_eq!(Export::parse("team-a", wrong), None, "{wrong}");
        }
        let key = export.key("t");
        assert!(place("t", 4) < key && key < place("t", 5) && place("t", 5) < Export { first: 6, ..export }.key("t"));
    }

    #[test]
    fn calls_are_read_on_from_the_archive_with_their_ends() {
        let books = Double::new().forget(3);
        for limit in [1, 3, 10, 50] {
            let (mut seen, mut cursor) = (Vec::new(), None);
            loop {
                let page = books.page(AuditRequest { limit, before_seq: cursor, ..AuditRequest::default() });
                assert!(
                    page.entries
                        .iter()
                        .all(|entry| matches!(&entry.settlement, Some(ended) if ended.outcome == Outcome::Succeeded))
                );
                seen.extend(page.entries.iter().map(|entry| entry.intent.call_id.clone()));
                match page.next {
                    Some(next) => cursor = Some(next),
                    None => break,
                }
                assert!(seen.len() <= 10, "{seen:?}");
            }
            let wanted: Vec<String> = (0..10).rev().map(|number| format!("c{number}")).collect();
            assert_eq!(seen, wanted, "{limit} at a time");
        }
        let of_a_key = AuditRequest {
            limit: 50,
            key_id: Some("k1".into()),
            since: Some(2),
            until: Some(8),
            ..AuditRequest::default()
        };
        let found: Vec<i64> = books.page(of_a_key).entries.iter().map(|entry| entry.at).collect();
        assert_eq!(found, [7, 5, 3]);
        let without = page(&books, None, AuditRequest { limit: 50, ..AuditRequest::default() });
        assert_eq!(without.now_or_never().unwrap().unwrap().entries.len(), 3, "without a bucket only what is here");
    }

    #[test]
    fn an_export_that_is_gone_is_told_and_not_passed_over() {
        let books = Double::new().forget(3);
        books.bucket.borrow_mut().remove(&books.exports[1].key(TENANT));
        let all = page(&books, Some(&books), AuditRequest { limit: 50, ..AuditRequest::default() });
        let error = all.now_or_never().unwrap().err().unwrap();
        assert_eq!((error.code, &error.details["firstSeq"]), (ErrorCode::NotFound, &json!(5)));
    }

    #[test]
    fn books_that_are_as_exported_verify() {
        let found = Double::new().verify(None);
        assert_eq!((fault(&found), found.exports, found.verified.records), (None, Some(5), 20));
        let found = Double::new().forget(2).verify(None);
        assert_eq!((fault(&found), found.exports, found.verified.records), (None, Some(4), 12));
        let found = Double::new().verify(Some(10));
        assert_eq!((fault(&found), found.exports), (None, Some(3)));
    }

    #[test]
    fn a_chain_that_was_computed_anew_differs_from_the_exports() {
        let mut books = Double::new();
        let mut head = Head::default();
        for record in &mut books.records {
            let text =
                if record.seq == 6 { record.record.replace("exec", "getSandbox") } else { record.record.clone() };
            *record = head.next(record.at, &record.call_id, &record.kind, text);
            head.follow(record).unwrap();
        }
        assert_eq!(fault(&books.verify(None)), Some((6, FaultKind::DiffersFromExport)));
        // So does one whose own list of exports was put right too.
        for export in &mut books.exports {
            export.digest = books.records[export.last as usize - 1].digest.clone();
        }
        assert_eq!(fault(&books.verify(None)), Some((6, FaultKind::DiffersFromExport)));
        // And books that were cut at their end: their last export ends where there is no record.
        let mut cut = Double::new();
        cut.records.truncate(18);
        let found = cut.verify(None);
        assert_eq!(fault(&found), Some((19, FaultKind::DiffersFromExport)));
    }

    #[test]
    fn an_export_that_was_taken_away_is_missed() {
        let books = Double::new();
        books.bucket.borrow_mut().remove(&books.exports[2].key(TENANT));
        assert_eq!(fault(&books.verify(None)), Some((9, FaultKind::ExportMissing)));
        assert_eq!(fault(&books.verify_archive(None)), Some((13, FaultKind::ExportMissing)));
    }

    #[test]
    fn the_archive_verifies_in_itself_from_part_to_part() {
        let books = Double::new().forget(5);
        let (mut cursor, mut records) = (None, 0);
        loop {
            let found = books.verify_archive(cursor);
            assert_eq!(fault(&found), None);
            records += found.verified.records;
            cursor = Some(found.verified.to.seq);
            if !found.verified.more {
                break;
            }
        }
        assert_eq!((records, cursor), (20, Some(20)));
        let wrong = verify_archive(&books, &books, Some(7)).now_or_never().unwrap().err().unwrap();
        assert_eq!(wrong.code, ErrorCode::InvalidArguments);
    }

    #[test]
    fn every_change_of_an_export_shows() {
        let changed = |index: usize, change: fn(String) -> String| {
            let books = Double::new().forget(5);
            books.change_export(index, change);
            let first = books.verify_archive(None);
            fault(&first).or_else(|| fault(&books.verify_archive(Some(first.verified.to.seq))))
        };
        let replaced = |text: String| text.replacen("exec", "read", 1);
        assert_eq!(changed(1, replaced), Some((6, FaultKind::Changed)));
        assert_eq!(
            changed(1, |text| text.lines().take(4).map(|line| format!("{line}\n")).collect()),
            Some((5, FaultKind::Changed))
        );
        assert_eq!(changed(1, |_| "nonsense".into()), Some((5, FaultKind::Changed)));
        assert_eq!(changed(4, |text| text.replacen("\"seq\":16", "\"seq\":15", 1)), Some((17, FaultKind::Changed)));
        // The place where the object still stands beside the archive.
        let mut books = Double::new();
        books.records[11].digest = "0".into();
        assert_eq!(fault(&books.verify_archive(None)), Some((12, FaultKind::DiffersFromExport)));
    }
}
