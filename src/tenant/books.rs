//! Admission, settlement and the books in the tenant's storage.

use serde::{Deserialize, Serialize};

use super::actor::{TenantActor, TextRow, read, values};
use super::admission::{
    Admission, AdmissionRequest, Admitted, DecisionKind, Intent, Known, Outcome, Ruling, SandboxClaim, Settlement,
    decide, gives_back,
};
use super::audit::{Head, Record};
use super::credential::{Credential, Principal};
use super::idempotency::Answer;
use super::inquiry::{AuditRequest, Entries, Entry, MOST_VERIFIED, Verified, VerifyRequest};
use super::keyring;
use super::measure;
use super::metrics::{Metric, Sample};
use super::permissions::Permissions;
use super::token::ROOT_KEY_ID;
use crate::error::{Error, ErrorCode, Result};
use crate::guardrails::{RateClass, Role};

/// Days that the audit is kept here.
const AUDIT_DAYS: i64 = 30;
pub(super) const DAY_MILLIS: i64 = 24 * 60 * 60 * 1000;

/// Sandboxes named to a caller that asked for one that is not there.
const MOST_NAMED: usize = 20;

/// Overdue calls that one turn closes.
const MOST_CLOSED: i64 = 500;

/// Most calls in one part of the books.
const MOST_LISTED: u32 = 500;

/// Bytes of arguments after which a part of the books ends early.
const MOST_BYTES: usize = 2 * 1024 * 1024;

/// Where the books begin: what stands before the first record that is kept.
const ANCHOR_FACT: &str = "auditAnchor";

#[derive(Deserialize)]
struct OpenCallRow {
    tool: String,
    key_id: String,
    takes_operation: f64,
    holds_key: f64,
}

#[derive(Deserialize)]
struct OverdueRow {
    call_id: String,
    asked_at: f64,
}

#[derive(Deserialize)]
struct AuditRow {
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
}

impl EntryRow {
    fn entry(self) -> Result<Entry> {
        // Places and times are whole and far below 2^53.
        #[allow(clippy::cast_possible_truncation)]
        let (seq, at) = (self.seq as i64, self.at as i64);
        let settlement = self.settlement.as_deref().map(read).transpose()?;
        Ok(Entry { seq, at, intent: read(&self.intent)?, settlement })
    }
}

impl From<AuditRow> for Record {
    fn from(row: AuditRow) -> Self {
        let AuditRow { seq, at, call_id, kind, record, digest } = row;
        // Places and times are whole and far below 2^53.
        #[allow(clippy::cast_possible_truncation)]
        let (seq, at) = (seq as i64, at as i64);
        Self { seq, at, call_id, kind, record, digest }
    }
}

impl TenantActor {
    /// Decides on a call, and writes what the decision says, in one turn.
    pub(super) fn admit(&self, request: &AdmissionRequest) -> Result<Admission> {
        // 1. What is known.
        let key_id = request.principal.key_id.as_str();
        let is_limited = key_id != ROOT_KEY_ID;
        let key = if is_limited { self.key(key_id)? } else { None };
        let counts_sandboxes = request.verdict.is_none() && request.claim.sandbox_id().is_some();
        let mut used = match &key {
            Some(_) => self.used(key_id, counts_sandboxes, request.at)?,
            None => super::admission::Used::default(),
        };
        let wanted = request.idempotency.as_ref();
        let holder = request.principal.holder();
        let first = wanted.map(|wanted| self.first(&holder, &wanted.key)).transpose()?.flatten();
        // A question whose answer was lost comes again: it is decided as it was, and changes nothing any more.
        let is_again = self.is_open(&request.call_id)?;
        if is_again {
            used.take_back(request.rate_class);
        }
        let first = first.filter(|first| first.call_id != request.call_id);
        let listed = request.claim.sandbox_id().map(|id| self.listed(id)).transpose()?.flatten();
        let known = Known { key: key.as_ref(), used, first: first.as_ref(), listed: listed.as_ref() };
        // 2. The decision.
        let decision = decide(request, &known);
        // 3. What it changes.
        if let Some(windows) = decision.windows.as_ref().filter(|_| !is_again) {
            self.store_windows(key_id, windows)?;
        }
        let ruling = match decision.kind {
            DecisionKind::Admit { permissions, limits, .. } if is_again => {
                Ruling::Admitted(Admitted { listed, permissions, limits })
            }
            DecisionKind::Admit { permissions, limits, list } => {
                if let Some(list) = list {
                    let values = vec![request.principal.tenant.as_str().into()];
                    self.write("INSERT OR IGNORE INTO facts (fact, value) VALUES ('name', ?)", values)?;
                    self.store_listed(&list)?;
                    measure::add(
                        self,
                        &Sample::new(Metric::Created, &request.requirement.tool, None, None, request.at),
                    );
                }
                self.append(request.at, &request.call_id, "intent", &Intent::from(request))?;
                self.open(request)?;
                if let Some(wanted) = wanted {
                    self.hold(&holder, wanted, &request.call_id, request.at, request.deadline_at)?;
                }
                Ruling::Admitted(Admitted { listed, permissions, limits })
            }
            DecisionKind::Replay => {
                let call_id = first.map(|first| first.call_id).unwrap_or_default();
                Ruling::Replayed(self.kept(&call_id)?)
            }
            DecisionKind::Refuse { error, recorded } => {
                if recorded {
                    self.append(request.at, &request.call_id, "intent", &Intent::from(request))?;
                    let refused = Settlement {
                        call_id: request.call_id.clone(),
                        outcome: Outcome::Refused(error.code),
                        exit_code: None,
                        duration_ms: 0,
                        at: request.at,
                        answer: None,
                    };
                    self.append(request.at, &request.call_id, "outcome", &refused)?;
                }
                measure::add(self, &Sample::call(&request.requirement.tool, Some(error.code), 0, request.at));
                Ruling::Refused(self.naming_what_is_there(error, request, key.as_ref().map(|key| &key.permissions))?)
            }
        };
        Ok(Admission { standing: decision.standing, ruling })
    }

    /// Adds the sandboxes that are there to the refusal of one that is not.
    fn naming_what_is_there(
        &self,
        error: Error,
        request: &AdmissionRequest,
        permissions: Option<&Permissions>,
    ) -> Result<Error> {
        if error.code != ErrorCode::NotFound || !matches!(request.claim, SandboxClaim::Existing { .. }) {
            return Ok(error);
        }
        let mut list =
            super::listing::ListRequest { limit: u32::try_from(MOST_NAMED).unwrap_or(1), ..Default::default() };
        if let Some(permissions) = permissions {
            list.filters.labels = permissions.sandbox_labels.clone();
        }
        if let Credential::Token { permissions, .. } = &request.principal.credential {
            list.filters.labels.extend(permissions.sandbox_labels.clone());
        }
        let names = self.list(&list)?.sandboxes.into_iter().map(|listed| listed.sandbox_id.as_str().to_owned());
        Ok(error.detail("availableSandboxes", names.collect::<Vec<_>>()))
    }

    fn is_open(&self, call_id: &str) -> Result<bool> {
        let statement = "SELECT call_id AS text FROM open_calls WHERE call_id = ?";
        Ok(!self.rows::<TextRow>(statement, vec![call_id.into()])?.is_empty())
    }

    fn open(&self, request: &AdmissionRequest) -> Result<()> {
        let takes_operation = request.rate_class == RateClass::SandboxOperation;
        let values = vec![
            request.call_id.as_str().into(),
            request.requirement.tool.as_str().into(),
            request.principal.key_id.as_str().into(),
            i64::from(takes_operation).into(),
            i64::from(request.idempotency.is_some()).into(),
            request.at.into(),
            request.deadline_at.into(),
        ];
        let statement = "INSERT OR REPLACE INTO open_calls \
            (call_id, tool, key_id, takes_operation, holds_key, asked_at, deadline_at) VALUES (?, ?, ?, ?, ?, ?, ?)";
        self.write(statement, values)
    }

    /// What a caller may do.
    pub(super) fn identify(&self, principal: &Principal, now: i64) -> Result<Permissions> {
        match &principal.credential {
            Credential::Root => Ok(Permissions::of(Role::Admin)),
            Credential::Token { permissions, .. } if principal.key_id == ROOT_KEY_ID => Ok(permissions.clone()),
            credential => {
                let key = self.key(&principal.key_id)?.ok_or_else(keyring::invalid)?;
                key.verify(credential, now)
            }
        }
    }

    /// Writes down how a call ended; a second time changes nothing.
    pub(super) fn settle(&self, settlement: &Settlement) -> Result<()> {
        let call_id = settlement.call_id.as_str();
        let statement = "SELECT tool, key_id, takes_operation, holds_key FROM open_calls WHERE call_id = ?";
        let open: Vec<OpenCallRow> = self.rows(statement, vec![call_id.into()])?;
        let Some(open) = open.first() else {
            return Ok(());
        };
        let record = Settlement { answer: None, ..settlement.clone() };
        self.append(settlement.at, call_id, "outcome", &record)?;
        let error = match settlement.outcome {
            Outcome::Succeeded => None,
            Outcome::Failed(code) | Outcome::Refused(code) => Some(code),
        };
        measure::add(self, &Sample::call(&open.tool, error, settlement.duration_ms, settlement.at));
        if open.holds_key != 0.0 {
            self.keep(call_id, settlement.answer.as_ref())?;
        }
        if open.takes_operation != 0.0 && gives_back(settlement.outcome) && open.key_id != ROOT_KEY_ID {
            self.give_back_operation(&open.key_id, settlement.at)?;
        }
        self.write("DELETE FROM open_calls WHERE call_id = ?", vec![call_id.into()])
    }

    /// Closes calls that nobody settled by their deadline.
    pub(super) fn close_overdue(&self, now: i64) -> Result<()> {
        let statement = "SELECT call_id, asked_at FROM open_calls WHERE deadline_at < ? LIMIT ?";
        let overdue: Vec<OverdueRow> = self.rows(statement, vec![now.into(), MOST_CLOSED.into()])?;
        for call in overdue {
            // Times are whole milliseconds far below 2^53.
            #[allow(clippy::cast_possible_truncation)]
            let closed = Settlement::never_settled(call.call_id, call.asked_at as i64, now);
            let message = "the call did not tell how it ended by its deadline; it may have acted";
            let answer = Some(Answer::Error(Error::new(ErrorCode::OutcomeUnknown, message)));
            self.settle(&Settlement { answer, ..closed })?;
        }
        Ok(())
    }

    /// Where the books stand.
    fn head(&self) -> Result<Head> {
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
    fn anchor(&self) -> Result<Head> {
        let statement = "SELECT value AS text FROM facts WHERE fact = ?";
        let rows: Vec<TextRow> = self.rows(statement, vec![ANCHOR_FACT.into()])?;
        rows.first().map_or_else(|| Ok(Head::default()), |row| read(&row.text))
    }

    fn set_anchor(&self, anchor: &Head) -> Result<()> {
        let text = serde_json::to_string(anchor).map_err(Error::internal)?;
        let values = vec![ANCHOR_FACT.into(), text.into()];
        self.write("INSERT OR REPLACE INTO facts (fact, value) VALUES (?, ?)", values)
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

    /// Calls of the books.
    pub(super) fn entries(&self, request: &AuditRequest) -> Result<Entries> {
        let limit = request.limit.clamp(1, MOST_LISTED);
        let (statement, parameters) = request.statement(limit + 1);
        let rows: Vec<EntryRow> = self.rows(&statement, values(parameters))?;
        let wanted = usize::try_from(limit).map_err(Error::internal)?;
        let mut more = rows.len() > wanted;
        let mut entries: Vec<Entry> = Vec::new();
        let mut bytes = 0;
        for row in rows.into_iter().take(wanted) {
            bytes += row.intent.len();
            if bytes > MOST_BYTES && !entries.is_empty() {
                more = true;
                break;
            }
            entries.push(row.entry()?);
        }
        Ok(Entries { entries, more })
    }

    /// Whether the records from a place on are what was written.
    pub(super) fn verify(&self, request: &VerifyRequest) -> Result<Verified> {
        let from = match request.after {
            Some(seq) => {
                let before = self.records(seq - 1, 1)?.into_iter().next().filter(|record| record.seq == seq);
                let before = before.ok_or_else(|| Error::invalid("/cursor", "there is no record at this place"))?;
                Head { seq, digest: before.digest }
            }
            None => self.anchor()?,
        };
        let records = self.records(from.seq, MOST_VERIFIED + 1)?;
        let wanted = usize::try_from(MOST_VERIFIED).map_err(Error::internal)?;
        let mut to = from.clone();
        let mut found = 0;
        for record in records.iter().take(wanted) {
            if let Err(fault) = to.follow(record) {
                return Ok(Verified { from, to, records: found, fault: Some(fault), more: false });
            }
            found += 1;
        }
        Ok(Verified { from, to, records: found, fault: None, more: records.len() > wanted })
    }

    /// Records in their order, from the one after `after` on.
    fn records(&self, after: i64, limit: u32) -> Result<Vec<Record>> {
        let statement = "SELECT seq, at, call_id, kind, record, digest FROM audit WHERE seq > ? ORDER BY seq LIMIT ?";
        let rows: Vec<AuditRow> = self.rows(statement, vec![after.into(), i64::from(limit).into()])?;
        Ok(rows.into_iter().map(Record::from).collect())
    }

    /// Forgets records that are older than the audit is kept, and remembers where they ended.
    pub(super) fn forget_records(&self, now: i64) -> Result<()> {
        let old = now - AUDIT_DAYS * DAY_MILLIS;
        let statement =
            "SELECT seq, at, call_id, kind, record, digest FROM audit WHERE at < ? ORDER BY seq DESC LIMIT 1";
        let last: Vec<AuditRow> = self.rows(statement, vec![old.into()])?;
        let Some(last) = last.into_iter().next().map(Record::from) else {
            return Ok(());
        };
        self.set_anchor(&Head { seq: last.seq, digest: last.digest })?;
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
