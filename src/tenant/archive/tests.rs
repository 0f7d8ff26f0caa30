use std::cell::RefCell;
use std::collections::BTreeMap;

use futures_util::FutureExt;
use futures_util::future::ready;
use serde_json::json;

use super::*;
use crate::tenant::admission::Outcome;
use crate::tenant::audit::FaultKind;
use crate::tenant::inquiry::{Verified, VerifyRequest};
use crate::tenant::verification::{Verification, count, verify, verify_archive};

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
        let gone = self.exports.iter().rev().filter(|export| export.last <= self.anchor.seq && export.first < before);
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
        let exported =
            self.exports.iter().filter(|export| export.last >= from.seq && export.last <= to.seq).cloned().collect();
        ready(Ok(Verified { records: count(after.count()), from, to, fault, more: false, exported })).boxed_local()
    }

    fn first_export(&self) -> LocalBoxFuture<'_, Result<Option<Export>>> {
        ready(Ok(self.exports.first().cloned())).boxed_local()
    }

    fn audit_heads(&self, places: Vec<i64>) -> LocalBoxFuture<'_, Result<Vec<Head>>> {
        let there = self.records.iter().filter(|record| places.contains(&record.seq));
        ready(Ok(there.map(|record| Head { seq: record.seq, digest: record.digest.clone() }).collect())).boxed_local()
    }
}

impl Archive for Double {
    fn list(&self, after: i64, _: i64) -> LocalBoxFuture<'_, Result<(Vec<Export>, bool)>> {
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
    for wrong in ["team-a/audit/5-12-ab12.jsonl", "team-a/audit/x", "team-a/audit/000000000005-000000000012-ab12.json"]
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
        let text = if record.seq == 6 { record.record.replace("exec", "getSandbox") } else { record.record.clone() };
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
    // Also one whose records stand nowhere else any more.
    let books = Double::new().forget(3);
    books.bucket.borrow_mut().remove(&books.exports[0].key(TENANT));
    assert_eq!(fault(&books.verify_archive(None)), Some((1, FaultKind::ExportMissing)));
    books.bucket.borrow_mut().clear();
    assert_eq!(fault(&books.verify_archive(None)), Some((1, FaultKind::ExportMissing)));
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
