//! Schedules in the tenant's storage, and the runs that are to become jobs.
//!
//! A due time is taken in one turn: the schedule is due at the next one, and its run is written down. It stays so until it is known to be a job
//! or to be refused for good, so that no kill in between loses it; that it is asked for again does no harm, since its job has one id.

use serde::Deserialize;

use super::actor::{Inner, TextRow, TimeRow, read, values, whole};
use super::limits::quota_exceeded;
use crate::error::{Error, ErrorCode, Result};
use crate::job::record::Job;
use crate::schedule::change::Change;
use crate::schedule::listing::ListRequest;
use crate::schedule::record::{KEPT_MILLIS, MOST_SCHEDULES, Run, Schedule, ScheduleReport, State};
use crate::workers::zones::IntlZones;

/// Most schedules in one part of the list.
const MOST_LISTED: u32 = 500;

/// Ended schedules that are kept at most.
const MOST_ENDED: i64 = 500;

/// Until a schedule that could not be read is looked at again, in milliseconds.
const FAULT_PAUSE: i64 = 60_000;

pub(super) const SCHEMA: &[&str] = &[
    "CREATE TABLE IF NOT EXISTS schedules (schedule_id TEXT PRIMARY KEY, created_at INTEGER NOT NULL, key_id TEXT NOT NULL, \
     state TEXT NOT NULL, next_at INTEGER, waits INTEGER NOT NULL, ended_at INTEGER, schedule TEXT NOT NULL) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS schedules_next_at ON schedules (next_at) WHERE next_at IS NOT NULL",
    "CREATE INDEX IF NOT EXISTS schedules_waits ON schedules (schedule_id) WHERE waits",
    "CREATE INDEX IF NOT EXISTS schedules_created_at ON schedules (created_at, schedule_id)",
    "CREATE TABLE IF NOT EXISTS schedule_runs (job_id TEXT PRIMARY KEY, schedule_id TEXT NOT NULL, try_at INTEGER NOT NULL, \
     run TEXT NOT NULL) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS schedule_runs_try_at ON schedule_runs (try_at)",
    "CREATE INDEX IF NOT EXISTS schedule_runs_schedule ON schedule_runs (schedule_id)",
];

#[derive(Deserialize)]
struct RunRow {
    job_id: String,
    run: String,
}

#[derive(Deserialize)]
struct DueRow {
    schedule_id: String,
}

pub(super) fn no_such_schedule(schedule_id: &str) -> Error {
    let message = format!("there is no schedule {schedule_id:?}; listSchedules lists them");
    Error::new(ErrorCode::NotFound, message).detail("scheduleId", schedule_id)
}

impl Inner {
    pub(super) fn schedule(&self, schedule_id: &str) -> Result<Option<Schedule>> {
        let statement = "SELECT schedule AS text FROM schedules WHERE schedule_id = ?";
        let rows: Vec<TextRow> = self.rows(statement, vec![schedule_id.into()])?;
        rows.first().map(|row| read(&row.text)).transpose()
    }

    /// The schedule of that id, if it is there for who asks.
    pub(super) fn seen_schedule(&self, schedule_id: &str, seen_by: Option<&str>) -> Result<Schedule> {
        let found = self.schedule(schedule_id)?;
        let found = found.filter(|schedule| seen_by.is_none_or(|key_id| schedule.key_id == key_id));
        found.ok_or_else(|| no_such_schedule(schedule_id))
    }

    pub(super) fn store_schedule(&self, schedule: &Schedule) -> Result<()> {
        let text = serde_json::to_string(schedule).map_err(Error::internal)?;
        let time = |at: Option<i64>| at.map_or(worker::SqlStorageValue::Null, Into::into);
        let values = vec![
            schedule.schedule_id.as_str().into(),
            schedule.created_at.into(),
            schedule.key_id.as_str().into(),
            schedule.state.as_str().into(),
            time(schedule.next_at),
            i64::from(schedule.waiting.is_some()).into(),
            time(schedule.ended_at),
            text.into(),
        ];
        let statement = "INSERT OR REPLACE INTO schedules \
            (schedule_id, created_at, key_id, state, next_at, waits, ended_at, schedule) VALUES (?, ?, ?, ?, ?, ?, ?, ?)";
        self.write(statement, values)?;
        self.plan_schedules()
    }

    pub(super) fn store_run(&self, run: &Run) -> Result<()> {
        let text = serde_json::to_string(run).map_err(Error::internal)?;
        let values = vec![run.job_id.as_str().into(), run.schedule_id.as_str().into(), run.try_at.into(), text.into()];
        let statement = "INSERT OR REPLACE INTO schedule_runs (job_id, schedule_id, try_at, run) VALUES (?, ?, ?, ?)";
        self.write(statement, values)?;
        self.plan_schedules()
    }

    pub(super) fn forget_run(&self, job_id: &str) -> Result<()> {
        self.write("DELETE FROM schedule_runs WHERE job_id = ?", vec![job_id.into()])
    }

    /// Whether a run is still wanted that was read a while ago.
    pub(super) fn is_wanted(&self, run: &Run) -> Result<bool> {
        let statement = "SELECT job_id AS text FROM schedule_runs WHERE job_id = ?";
        Ok(!self.rows::<TextRow>(statement, vec![run.job_id.as_str().into()])?.is_empty())
    }

    /// Whether a run of a schedule is not over: it is a job, or is to be one.
    pub(super) fn is_open(&self, schedule_id: &str) -> Result<bool> {
        let statement = "SELECT job_id AS text FROM schedule_runs WHERE schedule_id = ?1 UNION ALL \
            SELECT job_id FROM jobs WHERE json_extract(job, '$.scheduleId') = ?1 AND ended_at IS NULL LIMIT 1";
        Ok(!self.rows::<TextRow>(statement, vec![schedule_id.into()])?.is_empty())
    }

    pub(super) fn add_schedule(&self, schedule: Schedule, now: i64) -> Result<Schedule> {
        if let Some(known) = self.schedule(&schedule.schedule_id)? {
            return Ok(known);
        }
        self.check_room()?;
        let schedule = schedule.begun(&IntlZones, now)?;
        self.store_schedule(&schedule)?;
        Ok(schedule)
    }

    /// 429 when there are as many schedules as there may be.
    fn check_room(&self) -> Result<()> {
        let count = self.number("SELECT count(*) AS number FROM schedules WHERE state != 'ended'", Vec::new())?;
        if count < MOST_SCHEDULES {
            return Ok(());
        }
        let message = format!("this tenant has its {MOST_SCHEDULES} schedules; delete one that is not needed");
        Err(quota_exceeded("schedules", message, MOST_SCHEDULES, 60))
    }

    pub(super) fn list_schedules(&self, request: &ListRequest, seen_by: Option<&str>) -> Result<ScheduleReport> {
        let limit = request.limit.clamp(1, MOST_LISTED);
        let (statement, parameters) = request.statement(seen_by, limit + 1);
        let rows: Vec<TextRow> = self.rows(&statement, values(parameters))?;
        let wanted = usize::try_from(limit).map_err(Error::internal)?;
        let schedules = rows.iter().take(wanted).map(|row| read(&row.text)).collect::<Result<_>>()?;
        Ok(ScheduleReport { schedules, more: rows.len() > wanted })
    }

    pub(super) fn change_schedule(&self, schedule: Schedule, change: Change, now: i64) -> Result<Schedule> {
        let had_ended = schedule.state == State::Ended;
        let schedule = schedule.changed(change, &IntlZones, now)?;
        if had_ended && schedule.state != State::Ended {
            self.check_room()?;
        }
        if schedule.state == State::Paused {
            let statement = "DELETE FROM schedule_runs WHERE schedule_id = ?";
            self.write(statement, vec![schedule.schedule_id.as_str().into()])?;
        }
        self.store_schedule(&schedule)?;
        Ok(schedule)
    }

    /// Takes a schedule away with what was to be run of it. Jobs that there are go on.
    pub(super) fn remove_schedule(&self, schedule_id: &str) -> Result<()> {
        self.write("DELETE FROM schedule_runs WHERE schedule_id = ?", vec![schedule_id.into()])?;
        self.write("DELETE FROM schedules WHERE schedule_id = ?", vec![schedule_id.into()])?;
        self.plan_schedules()
    }

    /// Takes what is due, each schedule in a turn of its own.
    pub(super) fn take_due(&self, now: i64) -> Result<()> {
        let statement = "SELECT schedule_id FROM schedules WHERE next_at <= ?1 UNION \
            SELECT schedule_id FROM schedules WHERE waits";
        let due: Vec<DueRow> = self.rows(statement, vec![now.into()])?;
        for DueRow { schedule_id } in due {
            if let Err(error) = self.take_turn(&schedule_id, now) {
                worker::console_error!("a schedule could not be looked at: {schedule_id} {:?}", error.cause);
                let statement = "UPDATE schedules SET next_at = ?, waits = 0 WHERE schedule_id = ?";
                self.write(statement, vec![(now + FAULT_PAUSE).into(), schedule_id.as_str().into()])?;
            }
        }
        Ok(())
    }

    fn take_turn(&self, schedule_id: &str, now: i64) -> Result<()> {
        let Some(before) = self.schedule(schedule_id)? else { return Ok(()) };
        let mut schedule = before.clone();
        let is_open = self.is_open(schedule_id)?;
        let waited = schedule.waited(is_open, now);
        let due = schedule.due(is_open || waited.is_some(), &IntlZones, now);
        for due_at in waited.into_iter().chain(due) {
            self.store_run(&Run::of(&schedule, due_at, now))?;
        }
        if schedule != before {
            self.store_schedule(&schedule)?;
        }
        Ok(())
    }

    /// Runs that are to be tried now.
    pub(super) fn runs_to_try(&self, now: i64, most: i64) -> Result<Vec<Run>> {
        let statement = "SELECT job_id, run FROM schedule_runs WHERE try_at <= ? ORDER BY try_at LIMIT ?";
        let rows: Vec<RunRow> = self.rows(statement, vec![now.into(), most.into()])?;
        let mut runs = Vec::new();
        for RunRow { job_id, run } in rows {
            match read(&run) {
                Ok(run) => runs.push(run),
                Err(error) => {
                    worker::console_error!("a run of a schedule cannot be read: {job_id} {:?}", error.cause);
                    self.forget_run(&job_id)?;
                }
            }
        }
        Ok(runs)
    }

    /// Puts off a run that could not be looked after.
    pub(super) fn try_later(&self, run: &Run, now: i64) -> Result<()> {
        let statement = "UPDATE schedule_runs SET try_at = ? WHERE job_id = ?";
        self.write(statement, vec![(now + FAULT_PAUSE).into(), run.job_id.as_str().into()])
    }

    /// A job changed, which may be a run: its schedule is told, and what waited for its end is next.
    pub(super) fn tell_schedule(&self, before: &Job, job: &Job, now: i64) -> Result<()> {
        let Some(schedule_id) = &job.schedule_id else { return Ok(()) };
        let Some(mut schedule) = self.schedule(schedule_id)? else { return Ok(()) };
        schedule.told(before, job);
        self.store_schedule(&schedule)?;
        self.take_waiting(&schedule, job, now)
    }

    /// Takes what waited for the end of a run, once that is over.
    pub(super) fn take_waiting(&self, schedule: &Schedule, job: &Job, now: i64) -> Result<()> {
        if schedule.waiting.is_some() && job.state.is_over() {
            return self.take_turn(&schedule.schedule_id, now);
        }
        Ok(())
    }

    /// Forgets schedules that ended a while ago.
    pub(super) fn forget_schedules(&self, now: i64) -> Result<()> {
        self.write("DELETE FROM schedules WHERE ended_at < ?", vec![(now - KEPT_MILLIS).into()])?;
        let statement = "DELETE FROM schedules WHERE schedule_id IN (SELECT schedule_id FROM schedules \
            WHERE ended_at IS NOT NULL ORDER BY ended_at DESC LIMIT -1 OFFSET ?)";
        self.write(statement, vec![MOST_ENDED.into()])
    }

    /// When a schedule, or a run, is due.
    fn due_schedule(&self) -> Result<Option<i64>> {
        let statement = "SELECT MIN(time) AS time FROM (SELECT MIN(next_at) AS time FROM schedules \
            UNION ALL SELECT MIN(try_at) FROM schedule_runs)";
        let rows: Vec<TimeRow> = self.rows(statement, Vec::new())?;
        Ok(rows.first().and_then(|row| row.time).map(whole))
    }

    /// When the alarm has to go off for schedules. One that waits is looked after too, though the end of the run before it is told.
    pub(super) fn next_schedule(&self, now: i64) -> Result<Option<i64>> {
        let waits =
            self.rows::<TextRow>("SELECT schedule_id AS text FROM schedules WHERE waits LIMIT 1", Vec::new())?;
        let look = (!waits.is_empty()).then_some(now + FAULT_PAUSE);
        Ok(self.due_schedule()?.map(|at| at.max(now)).into_iter().chain(look).min())
    }

    /// Notes when something is due next.
    pub(super) fn plan_schedules(&self) -> Result<()> {
        self.schedule_due.set(self.due_schedule()?);
        Ok(())
    }
}
