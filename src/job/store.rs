//! What a job's object stores: one row of the job, and its arguments and its answer in pieces.

use serde_json::Value;

use super::actor::Inner;
use super::record::Seed;
use super::stored::Stored;
use crate::error::{Error, ErrorCode, Result};

/// Bytes of a text in one row; a row holds at most two million.
const PIECE_BYTES: usize = 1024 * 1024;

/// Most bytes of an answer that are kept: as many as a tool may answer.
const LARGEST_OUTPUT: usize = 16 * 1024 * 1024;

const ARGUMENTS: &str = "arguments";
const OUTPUT: &str = "output";
const DETAILS: &str = "details";

#[derive(serde::Deserialize)]
struct Row {
    text: String,
}

impl Inner {
    fn rows(&self, statement: &str, values: Vec<worker::SqlStorageValue>) -> Result<Vec<Row>> {
        let cursor = self.state.storage().sql().exec(statement, values);
        cursor.and_then(|cursor| cursor.to_array()).map_err(Error::internal)
    }

    pub(super) fn write(&self, statement: &str, values: Vec<worker::SqlStorageValue>) -> Result<()> {
        self.state.storage().sql().exec(statement, values).map(drop).map_err(Error::internal)
    }

    pub(super) fn load(&self) -> Result<Option<Stored>> {
        // Who asks about a job that is not there leaves nothing behind.
        if self.rows("SELECT name AS text FROM sqlite_master WHERE name = 'job'", Vec::new())?.is_empty() {
            return Ok(None);
        }
        let rows = self.rows("SELECT stored AS text FROM job WHERE id = 1", Vec::new())?;
        rows.first().map(|row| serde_json::from_str(&row.text).map_err(Error::internal)).transpose()
    }

    /// The stored job; not found when there is none.
    pub(super) fn existing(&self) -> Result<Stored> {
        self.load()?.ok_or_else(|| Error::new(ErrorCode::NotFound, "there is no such job"))
    }

    pub(super) fn save(&self, stored: &Stored) -> Result<()> {
        let text = serde_json::to_string(stored).map_err(Error::internal)?;
        self.write("INSERT OR REPLACE INTO job (id, stored) VALUES (1, ?)", vec![text.into()])
    }

    /// Stores a new job, in one turn.
    pub(super) fn begin_with(&self, seed: &Seed) -> Result<Stored> {
        let stored = Stored::new(seed);
        self.write(
            "CREATE TABLE IF NOT EXISTS job (id INTEGER PRIMARY KEY CHECK (id = 1), stored TEXT NOT NULL)",
            Vec::new(),
        )?;
        self.write(
            "CREATE TABLE IF NOT EXISTS pieces (kind TEXT NOT NULL, piece INTEGER NOT NULL, text TEXT NOT NULL, \
             PRIMARY KEY (kind, piece)) WITHOUT ROWID",
            Vec::new(),
        )?;
        self.write(
            "CREATE TABLE IF NOT EXISTS log (start INTEGER PRIMARY KEY, bytes INTEGER NOT NULL, channel TEXT NOT NULL, \
             data TEXT NOT NULL, encoding TEXT NOT NULL)",
            Vec::new(),
        )?;
        self.write(
            "CREATE TABLE IF NOT EXISTS log_ends (channel TEXT PRIMARY KEY, end INTEGER NOT NULL) WITHOUT ROWID",
            Vec::new(),
        )?;
        self.make_step_tables(seed)?;
        self.keep(ARGUMENTS, &seed.arguments)?;
        self.save(&stored)?;
        Ok(stored)
    }

    fn keep(&self, kind: &str, text: &str) -> Result<()> {
        self.write("DELETE FROM pieces WHERE kind = ?", vec![kind.into()])?;
        let mut rest = text;
        let mut piece = 0_i64;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.floor_char_boundary(PIECE_BYTES));
            let values = vec![kind.into(), piece.into(), now.into()];
            self.write("INSERT INTO pieces (kind, piece, text) VALUES (?, ?, ?)", values)?;
            (rest, piece) = (later, piece + 1);
        }
        Ok(())
    }

    fn kept(&self, kind: &str) -> Result<Option<Value>> {
        let pieces = self.rows("SELECT text FROM pieces WHERE kind = ? ORDER BY piece", vec![kind.into()])?;
        if pieces.is_empty() {
            return Ok(None);
        }
        let text: String = pieces.into_iter().map(|piece| piece.text).collect();
        serde_json::from_str(&text).map(Some).map_err(Error::internal)
    }

    pub(super) fn arguments(&self) -> Result<Value> {
        Ok(self.kept(ARGUMENTS)?.unwrap_or_default())
    }

    /// What the tool answered; nothing when it was too long to be kept.
    pub(super) fn output(&self) -> Result<Option<Value>> {
        self.kept(OUTPUT)
    }

    /// What an error told beside its text: output of a command may be among it, which is for who may call the tool.
    pub(super) fn details(&self) -> Result<Option<Value>> {
        self.kept(DETAILS)
    }

    pub(super) fn keep_details(&self, details: &Value) -> Result<()> {
        let text = details.to_string();
        if text.len() > LARGEST_OUTPUT { Ok(()) } else { self.keep(DETAILS, &text) }
    }

    /// Another attempt answers for itself.
    pub(super) fn forget_answer(&self) -> Result<()> {
        [OUTPUT, DETAILS].into_iter().try_for_each(|kind| self.keep(kind, ""))
    }

    pub(super) fn keep_output(&self, output: &Value) -> Result<()> {
        let text = output.to_string();
        if text.len() > LARGEST_OUTPUT { Ok(()) } else { self.keep(OUTPUT, &text) }
    }
}
