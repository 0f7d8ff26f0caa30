//! The books of a tenant held against what was exported of them, and the archive against itself (`archive.rs` says what it holds).

use std::collections::HashMap;

use super::archive::{Archive, Export, MOST_READ, MOST_RECORDS, contents};
use super::audit::{Fault, FaultKind, Head, Record};
use super::inquiry::{MOST_VERIFIED, Verified, VerifyRequest};
use crate::error::{Error, Result};
use crate::services::Books;

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
    let (listed, more) = archive.list((from - MOST_RECORDS).max(0), if verified.more { to } else { i64::MAX }).await?;
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
    let place = after.unwrap_or(0);
    let (listed, more) = archive.list((place - MOST_RECORDS).max(0), place).await?;
    let before = after.and_then(|seq| listed.iter().find(|export| export.last == seq)).map(Export::head);
    if after.is_some() && before.is_none() {
        return Err(Error::invalid("/cursor", "no export in R2 ends at this place"));
    }
    let ahead: Vec<&Export> = listed.iter().filter(|export| after.is_none_or(|seq| export.first > seq)).collect();
    let mut from = before.clone();
    let mut to = before;
    let (mut records, mut exports, mut fault) = (0, 0, None);
    // That exports are gone from the beginning shows in no other.
    let first = if after.is_none() { books.first_export().await? } else { None };
    if let Some(first) = first.filter(|first| listed.first() != Some(first)) {
        fault = Some(Fault { seq: first.first, what: FaultKind::ExportMissing });
    }
    for export in &ahead {
        if fault.is_some() || records >= MOST_VERIFIED || exports == MOST_READ {
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

pub(super) fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
