//! Keys, windows and kept answers in the tenant's storage.

use serde::Deserialize;

use super::actor::{Inner, TextRow, read, whole};
use super::admission::{Budget, Used, Windows};
use super::idempotency::{Answer, First, KEPT_MILLIS, Wanted};
use super::keyring::KeyRecord;
use super::keys::{KeyRequest, Keys, MOST_KEYS, no_such_key};
use super::limits::{day_of, millis_today};
use super::listing::Listed;
use super::token::ROOT_KEY_ID;
use crate::error::{Error, ErrorCode, Result};

/// Bytes of an answer in one row; a row holds at most two million.
const PIECE_BYTES: usize = 1024 * 1024;

/// Most keys in one part of the list.
const MOST_LISTED: u32 = 500;

pub(super) const SCHEMA: &[&str] = &[
    "CREATE TABLE IF NOT EXISTS keys (key_id TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS windows (key_id TEXT PRIMARY KEY, windows TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS idempotency (key_id TEXT NOT NULL, key TEXT NOT NULL, call_id TEXT NOT NULL, \
     fingerprint TEXT NOT NULL, asked_at INTEGER NOT NULL, deadline_at INTEGER NOT NULL, is_answered INTEGER NOT NULL, \
     PRIMARY KEY (key_id, key)) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS idempotency_call ON idempotency (call_id)",
    "CREATE INDEX IF NOT EXISTS idempotency_asked_at ON idempotency (asked_at)",
    "CREATE TABLE IF NOT EXISTS answers (call_id TEXT NOT NULL, piece INTEGER NOT NULL, text TEXT NOT NULL, \
     PRIMARY KEY (call_id, piece)) WITHOUT ROWID",
];

#[derive(Deserialize)]
struct NumberRow {
    number: Option<f64>,
}

#[derive(Deserialize)]
struct FirstRow {
    call_id: String,
    fingerprint: String,
    asked_at: f64,
    deadline_at: f64,
    is_answered: f64,
    is_job: f64,
}

impl Inner {
    pub(super) fn number(&self, statement: &str, values: Vec<worker::SqlStorageValue>) -> Result<u32> {
        let rows: Vec<NumberRow> = self.rows(statement, values)?;
        let number = rows.first().and_then(|row| row.number).map_or(0, whole);
        // What is larger than the largest limit is over every limit.
        Ok(u32::try_from(number.max(0)).unwrap_or(u32::MAX))
    }

    pub(super) fn key(&self, key_id: &str) -> Result<Option<KeyRecord>> {
        let statement = "SELECT record AS text FROM keys WHERE key_id = ?";
        let rows: Vec<TextRow> = self.rows(statement, vec![key_id.into()])?;
        rows.first().map(|row| read(&row.text)).transpose()
    }

    fn store_key(&self, key: &KeyRecord) -> Result<()> {
        let text = serde_json::to_string(key).map_err(Error::internal)?;
        let values = vec![key.key_id.as_str().into(), text.into()];
        self.write("INSERT OR REPLACE INTO keys (key_id, record) VALUES (?, ?)", values)
    }

    pub(super) fn keys(&self, request: KeyRequest) -> Result<Keys> {
        let one = |key: KeyRecord| Keys { keys: vec![key], more: false };
        match request {
            KeyRequest::Add(key) => {
                if self.number("SELECT count(*) AS number FROM keys", Vec::new())? >= MOST_KEYS {
                    let message = format!("the tenant has {MOST_KEYS} keys, and no more can be made");
                    return Err(Error { retryable: false, ..Error::new(ErrorCode::QuotaExceeded, message) });
                }
                self.store_key(&key)?;
                Ok(one(*key))
            }
            KeyRequest::Get { key_id } => self.key(&key_id)?.map(one).ok_or_else(|| no_such_key(&key_id)),
            KeyRequest::List { after, limit } => {
                let limit = limit.clamp(1, MOST_LISTED);
                let statement = "SELECT record AS text FROM keys WHERE key_id > ? ORDER BY key_id LIMIT ?";
                let values = vec![after.unwrap_or_default().into(), i64::from(limit + 1).into()];
                let rows: Vec<TextRow> = self.rows(statement, values)?;
                let wanted = usize::try_from(limit).map_err(Error::internal)?;
                let keys = rows.iter().take(wanted).map(|row| read(&row.text)).collect::<Result<Vec<KeyRecord>>>()?;
                Ok(Keys { keys, more: rows.len() > wanted })
            }
            KeyRequest::Change { key_id, at, change } => {
                let key = self.key(&key_id)?.ok_or_else(|| no_such_key(&key_id))?;
                let key = change.apply(key, at)?;
                self.store_key(&key)?;
                Ok(one(key))
            }
        }
    }

    /// Calls of a key that are not settled.
    pub(super) fn open_calls(&self, key_id: &str) -> Result<u32> {
        self.number("SELECT count(*) AS number FROM open_calls WHERE key_id = ?", vec![key_id.into()])
    }

    /// What a key has used; its sandboxes only where `counts_sandboxes`.
    pub(super) fn used(&self, key_id: &str, counts_sandboxes: bool) -> Result<Used> {
        let windows = self.windows(key_id)?;
        let open_calls = self.open_calls(key_id)?;
        let statement = "SELECT count(*) AS number FROM sandboxes WHERE json_extract(listed, '$.owner') = ?";
        let live_sandboxes = if counts_sandboxes { self.number(statement, vec![key_id.into()])? } else { 0 };
        let statement = "SELECT count(*) AS number FROM jobs WHERE key_id = ? AND ended_at IS NULL \
            AND json_extract(job, '$.stepOf') IS NULL";
        let open_jobs = self.number(statement, vec![key_id.into()])?;
        Ok(Used { windows, open_calls, open_jobs, live_sandboxes })
    }

    /// The seconds of sandboxes that a key has for today; the root key has no limit.
    pub(super) fn budget(&self, key_id: &str, now: i64) -> Result<Option<Budget>> {
        let key = if key_id == ROOT_KEY_ID { None } else { self.key(key_id)? };
        let Some(key) = key else { return Ok(None) };
        let statement = "SELECT listed AS text FROM sandboxes WHERE json_extract(listed, '$.owner') = ?";
        let rows: Vec<TextRow> = self.rows(statement, vec![key_id.into()])?;
        let owned = rows.iter().map(|row| read(&row.text)).collect::<Result<Vec<Listed>>>()?;
        let running = owned.iter().filter_map(Listed::uncounted_since).map(|since| millis_today(since, now));
        let running = u32::try_from(running.sum::<i64>() / 1000).unwrap_or(u32::MAX);
        let statement = "SELECT SUM(sandbox_ms) / 1000 AS number FROM usage WHERE day = ? AND key_id = ?";
        let used = self.number(statement, vec![day_of(now).into(), key_id.into()])?.saturating_add(running);
        Ok(Some(Budget { limit: key.limits.sandbox_seconds_per_day(), used }))
    }

    pub(super) fn windows(&self, key_id: &str) -> Result<Windows> {
        let statement = "SELECT windows AS text FROM windows WHERE key_id = ?";
        let rows: Vec<TextRow> = self.rows(statement, vec![key_id.into()])?;
        rows.first().map_or_else(|| Ok(Windows::default()), |row| read(&row.text))
    }

    pub(super) fn store_windows(&self, key_id: &str, windows: &Windows) -> Result<()> {
        let text = serde_json::to_string(windows).map_err(Error::internal)?;
        self.write("INSERT OR REPLACE INTO windows (key_id, windows) VALUES (?, ?)", vec![key_id.into(), text.into()])
    }

    /// Gives an operation of the running window back.
    pub(super) fn give_back_operation(&self, key_id: &str) -> Result<()> {
        let mut windows = self.windows(key_id)?;
        windows.operations = windows.operations.give_back();
        self.store_windows(key_id, &windows)
    }

    /// The call that holds an idempotency key.
    pub(super) fn first(&self, key_id: &str, key: &str) -> Result<Option<First>> {
        let statement = "SELECT call_id, fingerprint, asked_at, deadline_at, is_answered, \
            EXISTS (SELECT 1 FROM jobs WHERE job_id = call_id) AS is_job FROM idempotency WHERE key_id = ? AND key = ?";
        let rows: Vec<FirstRow> = self.rows(statement, vec![key_id.into(), key.into()])?;
        let first = |row: FirstRow| First {
            call_id: row.call_id,
            fingerprint: row.fingerprint,
            asked_at: whole(row.asked_at),
            deadline_at: whole(row.deadline_at),
            is_answered: row.is_answered != 0.0,
            is_job: row.is_job != 0.0,
        };
        Ok(rows.into_iter().next().map(first))
    }

    /// Makes a call the one that holds its key.
    pub(super) fn hold(&self, key_id: &str, wanted: &Wanted, call_id: &str, at: i64, deadline_at: i64) -> Result<()> {
        if let Some(first) = self.first(key_id, &wanted.key)? {
            self.write("DELETE FROM answers WHERE call_id = ?", vec![first.call_id.into()])?;
        }
        let fingerprint = wanted.fingerprints.first().cloned().unwrap_or_default();
        let texts = [key_id, &wanted.key, call_id, &fingerprint].map(|text| text.into());
        let values = texts.into_iter().chain([at.into(), deadline_at.into()]).collect();
        let statement = "INSERT OR REPLACE INTO idempotency \
            (key_id, key, call_id, fingerprint, asked_at, deadline_at, is_answered) VALUES (?, ?, ?, ?, ?, ?, 0)";
        self.write(statement, values)
    }

    /// Keeps the answer of a call that holds a key; without one the key is unused again.
    pub(super) fn keep(&self, call_id: &str, answer: Option<&Answer>, at: i64) -> Result<()> {
        let Some(answer) = answer else {
            return self.write("DELETE FROM idempotency WHERE call_id = ?", vec![call_id.into()]);
        };
        let text = serde_json::to_string(answer).map_err(Error::internal)?;
        let mut rest = text.as_str();
        let mut piece = 0_i64;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.floor_char_boundary(PIECE_BYTES));
            let values = vec![call_id.into(), piece.into(), now.into()];
            self.write("INSERT OR REPLACE INTO answers (call_id, piece, text) VALUES (?, ?, ?)", values)?;
            (rest, piece) = (later, piece + 1);
        }
        // The answer of a job may come days after it was asked for, and is kept from then on.
        let statement = "UPDATE idempotency SET is_answered = 1, asked_at = max(asked_at, ?) WHERE call_id = ?";
        self.write(statement, vec![at.into(), call_id.into()])
    }

    /// The answer that was kept of a call.
    pub(super) fn kept(&self, call_id: &str) -> Result<Answer> {
        let statement = "SELECT text FROM answers WHERE call_id = ? ORDER BY piece";
        let pieces: Vec<TextRow> = self.rows(statement, vec![call_id.into()])?;
        read(&pieces.into_iter().map(|piece| piece.text).collect::<String>())
    }

    /// Forgets answers that are no longer replayed.
    pub(super) fn forget_answers(&self, now: i64) -> Result<()> {
        let old = now - KEPT_MILLIS;
        let which = "SELECT call_id FROM idempotency WHERE is_answered = 1 AND asked_at < ?";
        self.write(&format!("DELETE FROM answers WHERE call_id IN ({which})"), vec![old.into()])?;
        self.write("DELETE FROM idempotency WHERE is_answered = 1 AND asked_at < ?", vec![old.into()])
    }
}
