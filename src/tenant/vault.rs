//! Named secrets in the tenant's storage, sealed.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::actor::{Inner, TextRow, whole};
use super::admission::AdmissionRequest;
use super::sealing::Sealed;
use super::secrets::{
    MOST_SECRETS, SealedSecrets, SecretRecord, SecretRequest, Secrets, UseRequest, check_known, no_such_secret, used,
};
use crate::error::{Error, ErrorCode, Result};

/// Most secrets in one part of the list.
const MOST_LISTED: u32 = 500;

pub(super) const SCHEMA: &[&str] = &["CREATE TABLE IF NOT EXISTS secrets (name TEXT PRIMARY KEY, description TEXT, \
    created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL, last_used_at INTEGER, sealed_by TEXT NOT NULL, \
    sealed TEXT NOT NULL) WITHOUT ROWID"];

const COLUMNS: &str = "name, description, created_at, updated_at, last_used_at, sealed_by";

#[derive(Deserialize)]
struct RecordRow {
    name: String,
    description: Option<String>,
    created_at: f64,
    updated_at: f64,
    last_used_at: Option<f64>,
    sealed_by: String,
}

#[derive(Deserialize)]
struct SealedRow {
    sealed_by: String,
    sealed: String,
}

impl From<RecordRow> for SecretRecord {
    fn from(row: RecordRow) -> Self {
        Self {
            name: row.name,
            description: row.description,
            created_at: whole(row.created_at),
            updated_at: whole(row.updated_at),
            last_used_at: row.last_used_at.map(whole),
            sealed_by: row.sealed_by,
        }
    }
}

impl Inner {
    fn secret(&self, name: &str) -> Result<Option<SecretRecord>> {
        let statement = format!("SELECT {COLUMNS} FROM secrets WHERE name = ?");
        let rows: Vec<RecordRow> = self.rows(&statement, vec![name.into()])?;
        Ok(rows.into_iter().next().map(SecretRecord::from))
    }

    pub(super) fn secrets(&self, request: SecretRequest) -> Result<Secrets> {
        let one = |secret: SecretRecord| Secrets { secrets: vec![secret], more: false };
        match request {
            SecretRequest::Set { name, description, sealed, at } => {
                let known = self.secret(&name)?;
                if known.is_none() && self.number("SELECT count(*) AS number FROM secrets", Vec::new())? >= MOST_SECRETS
                {
                    let message = format!("the tenant has {MOST_SECRETS} secrets, and no more can be made");
                    return Err(Error { retryable: false, ..Error::new(ErrorCode::QuotaExceeded, message) });
                }
                let statement = "INSERT INTO secrets (name, description, created_at, updated_at, sealed_by, sealed) \
                    VALUES (?1, ?2, ?3, ?3, ?4, ?5) ON CONFLICT (name) DO UPDATE SET \
                    description = coalesce(?2, description), updated_at = ?3, sealed_by = ?4, sealed = ?5";
                let description = description.map_or(worker::SqlStorageValue::Null, Into::into);
                let values = vec![name.as_str().into(), description, at.into(), sealed.by.into(), sealed.data.into()];
                self.write(statement, values)?;
                self.secret(&name)?.map(one).ok_or_else(|| Error::internal("a secret was not stored"))
            }
            SecretRequest::Get { name } => self.secret(&name)?.map(one).ok_or_else(|| no_such_secret(&name)),
            SecretRequest::List { after, limit, only } => self.listed_secrets(after, limit, only),
            SecretRequest::Delete { name } => {
                let secret = self.secret(&name)?.ok_or_else(|| no_such_secret(&name))?;
                self.write("DELETE FROM secrets WHERE name = ?", vec![name.into()])?;
                Ok(one(secret))
            }
            SecretRequest::Reseal { name, from, to } => {
                let statement = "UPDATE secrets SET sealed_by = ?, sealed = ? WHERE name = ? AND sealed = ?";
                let values = vec![to.by.into(), to.data.into(), name.into(), from.data.into()];
                self.write(statement, values)?;
                Ok(Secrets::default())
            }
        }
    }

    fn listed_secrets(&self, after: Option<String>, limit: u32, only: Option<BTreeSet<String>>) -> Result<Secrets> {
        let limit = limit.clamp(1, MOST_LISTED);
        let of_these = if only.is_some() { "AND name IN (SELECT value FROM json_each(?3))" } else { "" };
        let statement = format!("SELECT {COLUMNS} FROM secrets WHERE name > ?1 {of_these} ORDER BY name LIMIT ?2");
        let mut values = vec![after.unwrap_or_default().into(), i64::from(limit + 1).into()];
        if let Some(only) = only {
            values.push(serde_json::to_string(&only).map_err(Error::internal)?.into());
        }
        let rows: Vec<RecordRow> = self.rows(&statement, values)?;
        let wanted = usize::try_from(limit).map_err(Error::internal)?;
        let more = rows.len() > wanted;
        Ok(Secrets { secrets: rows.into_iter().take(wanted).map(SecretRecord::from).collect(), more })
    }

    /// What is wrong with a call that uses a secret which is not there. What runs already has what it needs.
    pub(super) fn check_secrets(&self, request: &AdmissionRequest) -> Result<()> {
        let used = used(&request.requirement);
        if used.is_empty() || request.is_resumed {
            return Ok(());
        }
        let names: BTreeSet<&String> = used.iter().map(|(_, name)| name).collect();
        let names = serde_json::to_string(&names).map_err(Error::internal)?;
        let statement = "SELECT name AS text FROM secrets WHERE name IN (SELECT value FROM json_each(?))";
        let known: Vec<TextRow> = self.rows(statement, vec![names.into()])?;
        check_known(&used, &known.into_iter().map(|row| row.text).collect())
    }

    /// The sealed values that a call which may act uses itself.
    pub(super) fn secrets_for(&self, request: &AdmissionRequest) -> Result<SealedSecrets> {
        if request.is_resumed || request.is_preview() {
            return Ok(SealedSecrets::new());
        }
        let names = request.requirement.uses.values().cloned().collect();
        self.use_secrets(&UseRequest { names, at: request.at })
    }

    pub(super) fn use_secrets(&self, request: &UseRequest) -> Result<SealedSecrets> {
        let mut found = SealedSecrets::new();
        for name in &request.names {
            let statement = "SELECT sealed_by, sealed FROM secrets WHERE name = ?";
            let rows: Vec<SealedRow> = self.rows(statement, vec![name.as_str().into()])?;
            let Some(SealedRow { sealed_by, sealed }) = rows.into_iter().next() else { continue };
            found.insert(name.clone(), Sealed { by: sealed_by, data: sealed });
            let statement = "UPDATE secrets SET last_used_at = ? WHERE name = ?";
            self.write(statement, vec![request.at.into(), name.as_str().into()])?;
        }
        Ok(found)
    }
}
