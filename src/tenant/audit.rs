//! The books: every record holds the digest of the record before it, so that an edit, a removal or a new order shows.
//!
//! ```text
//! digest(n) = SHA-256(digest(n-1) "\n" seq "\n" at "\n" callId "\n" kind "\n" record)
//! ```
//!
//! Before the first record stands the anchor: 64 zeros, or the digest of the last record that was moved out of the object.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Stands before the first record of all.
pub const FIRST_ANCHOR: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// One record as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Place in the books, from 1, without gaps.
    pub seq: i64,
    /// Milliseconds since 1970.
    pub at: i64,
    pub call_id: String,
    /// `intent` or `outcome`.
    pub kind: String,
    /// JSON text, kept byte for byte.
    pub record: String,
    pub digest: String,
}

/// Digest of a record that follows one of the digest `before`.
pub fn digest(before: &str, seq: i64, at: i64, call_id: &str, kind: &str, record: &str) -> String {
    let text = format!("{before}\n{seq}\n{at}\n{call_id}\n{kind}\n{record}");
    format!("{:x}", Sha256::digest(text.as_bytes()))
}

/// Where the books stand: the place and digest of the last record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Head {
    pub seq: i64,
    pub digest: String,
}

impl Default for Head {
    fn default() -> Self {
        Self { seq: 0, digest: FIRST_ANCHOR.to_owned() }
    }
}

impl Head {
    /// The record that comes next.
    pub fn next(&self, at: i64, call_id: &str, kind: &str, record: String) -> Record {
        let seq = self.seq + 1;
        let digest = digest(&self.digest, seq, at, call_id, kind, &record);
        Record { seq, at, call_id: call_id.to_owned(), kind: kind.to_owned(), record, digest }
    }

    /// Goes on over `record`; says what is wrong with it when it does not follow.
    pub fn follow(&mut self, record: &Record) -> Result<(), Fault> {
        let fault = |what| Err(Fault { seq: record.seq, what });
        if record.seq != self.seq + 1 {
            return fault(FaultKind::Missing);
        }
        let expected = digest(&self.digest, record.seq, record.at, &record.call_id, &record.kind, &record.record);
        if record.digest != expected {
            return fault(FaultKind::Changed);
        }
        *self = Self { seq: record.seq, digest: record.digest.clone() };
        Ok(())
    }
}

/// The first place at which the books are not what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Fault {
    pub seq: i64,
    pub what: FaultKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum FaultKind {
    /// A record before this one is gone, or this one stands in another's place.
    Missing,
    /// The record, or its digest, is not as it was written.
    Changed,
    /// The record is not what was exported to R2, or is gone although it was exported.
    DiffersFromExport,
    /// The export to R2 that begins with this record is gone.
    ExportMissing,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn books() -> Vec<Record> {
        let mut head = Head::default();
        (0..5)
            .map(|number| {
                let record = head.next(number, &format!("c{number}"), "intent", format!("{{\"n\":{number}}}"));
                head.follow(&record).unwrap();
                record
            })
            .collect()
    }

    fn verify(records: &[Record]) -> Result<Head, Fault> {
        let mut head = Head::default();
        records.iter().try_for_each(|record| head.follow(record)).map(|()| head)
    }

    #[test]
    fn what_was_written_verifies_and_every_change_shows() {
        let whole = books();
        assert_eq!(verify(&whole).unwrap().seq, 5);
        let changed = |change: fn(&mut Vec<Record>)| {
            let mut records = books();
            change(&mut records);
            verify(&records).unwrap_err()
        };
        let edited = Fault { seq: 3, what: FaultKind::Changed };
        assert_eq!(changed(|records| records[2].record = "{}".into()), edited);
        assert_eq!(changed(|records| records[2].at += 1), edited);
        assert_eq!(changed(|records| records[2].call_id = "x".into()), edited);
        assert_eq!(changed(|records| records[2].kind = "outcome".into()), edited);
        assert_eq!(changed(|records| records[2].digest = FIRST_ANCHOR.into()), edited);
        assert_eq!(changed(|records| drop(records.remove(2))), Fault { seq: 4, what: FaultKind::Missing });
        assert_eq!(changed(|records| records.swap(1, 2)), Fault { seq: 3, what: FaultKind::Missing });
        // In each other's place, numbers put right.
        let swapped = |records: &mut Vec<Record>| {
            records.swap(1, 2);
            (records[1].seq, records[2].seq) = (2, 3);
        };
        assert_eq!(changed(swapped), Fault { seq: 2, what: FaultKind::Changed });
    }

    #[test]
    fn books_cut_at_their_end_have_another_head() {
        let mut records = books();
        let head = verify(&records).unwrap();
        records.pop();
        assert_ne!(verify(&records).unwrap(), head);
    }
}
