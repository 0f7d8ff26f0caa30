//! What a pipeline's object stores of its steps: a row each, and from which offset of the log on each of them wrote.

use serde::Deserialize;

use super::actor::Inner;
use super::record::{Cancellation, Seed};
use super::state::State;
use super::stored::Stored;
use crate::api::rest;
use crate::error::{Error, Result};
use crate::plan::{self, Progress, Step, StepState, StepTold};

#[derive(Deserialize)]
struct StepRow {
    number: f64,
    progress: String,
}

/// A step that wrote to the log from this offset on.
#[derive(Deserialize)]
pub(super) struct Segment {
    start: f64,
    step: String,
}

impl Inner {
    /// Makes the tables of a pipeline; other jobs have none.
    pub(super) fn make_step_tables(&self, seed: &Seed) -> Result<()> {
        if seed.order.requirement.steps.is_empty() {
            return Ok(());
        }
        self.write(
            "CREATE TABLE IF NOT EXISTS steps (number INTEGER PRIMARY KEY, progress TEXT NOT NULL)",
            Vec::new(),
        )?;
        self.write("CREATE TABLE IF NOT EXISTS log_steps (start INTEGER PRIMARY KEY, step TEXT NOT NULL)", Vec::new())
    }

    /// The steps of a pipeline, as its arguments say.
    pub(super) fn plan(&self, stored: &Stored) -> Result<Vec<Step>> {
        let shared = rest::shared()?;
        let entry = shared.registry.get(&stored.job.tool);
        let entry = entry.ok_or_else(|| Error::internal("the tool of a pipeline is gone"))?;
        entry.plan(&self.arguments()?, stored.planned_by.as_deref().unwrap_or(&stored.job.job_id))
    }

    /// How so many steps stand.
    pub(super) fn progress(&self, count: usize) -> Result<Vec<Progress>> {
        let cursor = self.state.storage().sql().exec("SELECT number, progress FROM steps", None);
        let rows: Vec<StepRow> = cursor.and_then(|cursor| cursor.to_array()).map_err(Error::internal)?;
        let mut progress = vec![Progress::default(); count];
        for StepRow { number, progress: text } in rows {
            let kept = serde_json::from_str(&text).map_err(Error::internal)?;
            if let Some(place) = progress.get_mut(index(number)) {
                *place = kept;
            }
        }
        Ok(progress)
    }

    pub(super) fn keep_progress(&self, index: usize, progress: &Progress) -> Result<()> {
        let text = serde_json::to_string(progress).map_err(Error::internal)?;
        let number = i64::try_from(index).map_err(Error::internal)?;
        self.write("INSERT OR REPLACE INTO steps (number, progress) VALUES (?, ?)", vec![number.into(), text.into()])
    }

    /// Another attempt begins, from its beginning or where the last one failed.
    pub(super) fn begin_steps_again(&self, stored: &Stored, from_failed: bool) -> Result<()> {
        if !stored.is_pipeline() {
            return Ok(());
        }
        let kept = if from_failed {
            let steps = self.plan(stored)?;
            plan::resumed(&steps, &self.progress(steps.len())?)
        } else {
            Vec::new()
        };
        self.write("DELETE FROM steps", Vec::new())?;
        kept.iter().enumerate().try_for_each(|(index, progress)| self.keep_progress(index, progress))
    }

    /// How the steps stand, for who asks.
    pub(super) fn steps_told(&self, stored: &Stored) -> Result<Vec<StepTold>> {
        if !stored.is_pipeline() {
            return Ok(Vec::new());
        }
        let steps = self.plan(stored)?;
        let progress = self.progress(steps.len())?;
        let never_begins = matches!(stored.job.state, State::Cancelled | State::Rejected);
        let told = |(step, mut progress): (Step, Progress)| {
            if never_begins && progress.call.state == StepState::Pending {
                progress.call.state = StepState::Cancelled;
            }
            let roll_back_tool = step.roll_back.map(|undo| undo.tool);
            StepTold { name: step.name, tool: step.tool, progress, roll_back_tool }
        };
        Ok(steps.into_iter().zip(progress).map(told).collect())
    }

    /// What is written from here on is of this step.
    pub(super) fn note_log_step(&self, label: &str) -> Result<()> {
        let start = i64::try_from(self.log_end()?).map_err(Error::internal)?;
        self.write("INSERT OR REPLACE INTO log_steps (start, step) VALUES (?, ?)", vec![start.into(), label.into()])
    }

    /// Which step wrote what, in order; nothing of a job that is no pipeline.
    pub(super) fn log_steps(&self, stored: &Stored) -> Result<Vec<Segment>> {
        if !stored.is_pipeline() {
            return Ok(Vec::new());
        }
        let cursor = self.state.storage().sql().exec("SELECT start, step FROM log_steps ORDER BY start", None);
        cursor.and_then(|cursor| cursor.to_array()).map_err(Error::internal)
    }

    /// Who wanted the end of a pipeline.
    pub(super) fn wish(&self) -> Result<Option<Cancellation>> {
        Ok(self.existing()?.job.cancellation)
    }
}

/// The step that wrote what begins at this offset.
pub(super) fn step_at(segments: &[Segment], start: f64) -> Option<String> {
    segments.iter().rev().find(|segment| segment.start <= start).map(|segment| segment.step.clone())
}

/// A number of SQLite, as JavaScript gives it.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "numbers of steps are whole and small")]
fn index(number: f64) -> usize {
    number as usize
}
