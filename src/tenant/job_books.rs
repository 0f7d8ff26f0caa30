//! Jobs in the tenant's storage: listed when a call becomes one, told of by their objects, forgotten some time after their end.
//!
//! The books have of a job's call: `intent` when it was asked for, `waiting` and `decision` where it had to be approved, `attempt`
//! whenever it is tried, and `outcome` once it is over.

use std::time::Duration;

use serde::Serialize;

use super::actor::{Inner, TextRow, TimeRow, now, read, values, whole};
use super::admission::{AdmissionRequest, Intent, Listed, Outcome, Settlement};
use super::credential::Credential;
use super::idempotency::Answer;
use super::jobs::{JobListRequest, JobListing, JobSettings, expired, expiry_index, next_expiry};
use super::measure;
use super::metrics::Sample;
use super::usage::{Spent, Use};
use crate::error::{Error, ErrorCode, Result};
use crate::fetch_error::Repeat;
use crate::job::actor::object_name;
use crate::job::record::{Approval, Change, Job, Report};
use crate::job::state::State;
use crate::webhook::event::{Event, EventType};
use crate::workers::fetch::FetchError;
use crate::workers::internal::{JOB_BINDING, Question, namespace};

/// Most jobs in one part of the list.
const MOST_LISTED: u32 = 500;

/// How long a job may be unknown to its object: it may be on its way there. In milliseconds.
const UNKNOWN_FOR: i64 = 60_000;

/// Jobs asked about by one alarm.
const MOST_ASKED: i64 = 5;

/// Until a job's object says whether it knows of it.
const KNOWN_DEADLINE: Duration = Duration::from_secs(5);

/// What the tenant has set for its jobs.
const SETTINGS_FACT: &str = "jobs";

pub(super) const SCHEMA: &[&str] = &[
    "CREATE TABLE IF NOT EXISTS jobs (job_id TEXT PRIMARY KEY, created_at INTEGER NOT NULL, state TEXT NOT NULL, \
     key_id TEXT NOT NULL, ended_at INTEGER, version INTEGER NOT NULL, job TEXT NOT NULL) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS jobs_created_at ON jobs (created_at, job_id)",
    "CREATE INDEX IF NOT EXISTS jobs_state ON jobs (state, created_at)",
    "CREATE INDEX IF NOT EXISTS jobs_open ON jobs (key_id) WHERE ended_at IS NULL",
    "CREATE INDEX IF NOT EXISTS jobs_ended_at ON jobs (ended_at) WHERE ended_at IS NOT NULL",
    "CREATE INDEX IF NOT EXISTS jobs_new ON jobs (created_at) WHERE version = 0",
    "CREATE INDEX IF NOT EXISTS jobs_schedule ON jobs (json_extract(job, '$.scheduleId'), created_at)",
];

impl Inner {
    pub(super) fn job(&self, job_id: &str) -> Result<Option<Job>> {
        let rows: Vec<TextRow> = self.rows("SELECT job AS text FROM jobs WHERE job_id = ?", vec![job_id.into()])?;
        rows.first().map(|row| read(&row.text)).transpose()
    }

    fn store_job(&self, job: &Job) -> Result<()> {
        let text = serde_json::to_string(job).map_err(Error::internal)?;
        let ended_at = job.ended_at.map_or(worker::SqlStorageValue::Null, Into::into);
        let values = vec![
            job.job_id.as_str().into(),
            job.created_at.into(),
            job.state.as_str().into(),
            job.key_id.as_str().into(),
            ended_at,
            i64::from(job.version).into(),
            text.into(),
        ];
        let statement = "INSERT OR REPLACE INTO jobs (job_id, created_at, state, key_id, ended_at, version, job) \
            VALUES (?, ?, ?, ?, ?, ?, ?)";
        self.write(statement, values)
    }

    pub(super) fn jobs(&self, request: &JobListRequest) -> Result<JobListing> {
        let limit = request.limit.clamp(1, MOST_LISTED);
        let (statement, parameters) = request.statement(limit + 1, now());
        let rows: Vec<TextRow> = self.rows(&statement, values(parameters))?;
        let wanted = usize::try_from(limit).map_err(Error::internal)?;
        let jobs = rows.iter().take(wanted).map(|row| read(&row.text)).collect::<Result<Vec<Job>>>()?;
        Ok(JobListing { jobs, more: rows.len() > wanted, expires_after: self.job_settings()?.expires_after() })
    }

    fn job_settings(&self) -> Result<JobSettings> {
        self.fact(SETTINGS_FACT)
    }

    /// What is set holds for jobs that are asked for from then on.
    pub(super) fn set_job_settings(&self, settings: JobSettings) -> Result<JobSettings> {
        self.set_fact(SETTINGS_FACT, &settings)?;
        self.job_settings()
    }

    /// Adds what the table of jobs has had since later releases.
    pub(super) fn complete_job_tables(&self) -> Result<()> {
        self.write(&expiry_index(), Vec::new())
    }

    /// Jobs that are carried out or are next.
    pub(super) fn busy_jobs(&self) -> Result<u32> {
        self.number(
            "SELECT count(*) AS number FROM jobs WHERE state IN ('queued', 'running') \
            AND json_extract(job, '$.stepOf') IS NULL",
            Vec::new(),
        )
    }

    /// Makes a call a job, in the turn that decides on it.
    pub(super) fn defer(
        &self,
        request: &AdmissionRequest,
        approval: Option<Approval>,
        listed: Option<&Listed>,
    ) -> Result<Job> {
        let expires_after = self.job_settings()?.of_new_job(request.step_of.is_some());
        let mut job = Job {
            job_id: request.call_id.clone(),
            tool: request.requirement.tool.clone(),
            state: if approval.is_some() { State::AwaitingApproval } else { State::Queued },
            version: 0,
            key_id: request.principal.key_id.clone(),
            token_id: match &request.principal.credential {
                Credential::Token { token_id, .. } => Some(token_id.clone()),
                Credential::Job { token_id, .. } => token_id.clone(),
                _ => None,
            },
            step_of: request.step_of.clone(),
            schedule_id: request.schedule_id.clone(),
            // What it would make is not there yet, and gets another name.
            sandbox_id: listed.map(|listed| listed.sandbox_id.clone()),
            sandbox_created_at: listed.map(|listed| listed.created_at),
            sandbox_generation: listed.map(|listed| listed.generation),
            labels: listed.map(|listed| listed.labels.clone()).unwrap_or_default(),
            expires_after,
            created_at: request.at,
            updated_at: request.at,
            begun_at: None,
            ended_at: None,
            approval: approval.clone(),
            cancellation: None,
            waits_for_place: false,
            attempts: 0,
            recorded_as: None,
            exit_code: None,
            error: None,
        };
        // One that has to be approved asks for a place once it is; of a pipeline the steps do.
        if job.state == State::Queued && request.requirement.steps.is_empty() {
            job.waits_for_place = self.place_new(&job)?;
        }
        self.append(request.at, &request.call_id, "intent", &Intent::from(request))?;
        if let Some(approval) = &approval {
            self.append(request.at, &request.call_id, "waiting", approval)?;
        }
        if let Some(wanted) = &request.idempotency {
            let deadline_at = approval.map_or(request.deadline_at, |approval| approval.expires_at);
            self.hold(&request.principal.holder(), wanted, &request.call_id, request.at, deadline_at)?;
        }
        self.store_job(&job)?;
        if let Some(url) = &request.webhook_url {
            self.keep_job_webhook(&job.job_id, url)?;
        }
        self.tell_of_new_job(&job, &request.principal.tenant)?;
        Ok(job)
    }

    /// A job begins an attempt.
    pub(super) fn note_attempt(&self, request: &AdmissionRequest) -> Result<()> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Attempt<'a> {
            deadline_at: i64,
            sandbox_id: Option<&'a str>,
        }
        let sandbox_id = request.claim.sandbox_id().map(crate::identifier::SandboxId::as_str);
        let attempt = Attempt { deadline_at: request.deadline_at, sandbox_id };
        self.append(request.at, &request.call_id, "attempt", &attempt)
    }

    /// Somebody asked for another attempt: the books have it as a call of its own, with the arguments of the first.
    fn note_another(&self, job: &Job, recorded_as: &str) -> Result<()> {
        let statement = "SELECT record AS text FROM audit WHERE call_id = ? AND kind = 'intent'";
        let rows: Vec<TextRow> = self.rows(statement, vec![job.job_id.as_str().into()])?;
        let Some(first) = rows.first().map(|row| read::<Intent>(&row.text)).transpose()? else { return Ok(()) };
        let intent = Intent { call_id: recorded_as.to_owned(), ..first };
        self.append(job.updated_at, recorded_as, "intent", &intent)
    }

    /// Takes what a job's object tells. A report that comes twice or late changes nothing.
    pub(super) fn take_report(&self, report: &Report) -> Result<()> {
        let Report { job, changes, answer, takes_place } = report;
        let Some(before) = self.job(&job.job_id)?.filter(|before| before.version < job.version) else {
            return Ok(());
        };
        let news: Vec<_> = changes.iter().filter(|change| change.version > before.version).cloned().collect();
        let taken = self.take_news(&before, job, &news, answer.as_ref());
        // Whatever else could not be written: a place that is not given back holds all other jobs.
        let placed = self.place_told(job, *takes_place);
        taken.and(placed)
    }

    /// Writes down how a job stands now, and tells of what changed.
    pub(super) fn take_news(&self, before: &Job, job: &Job, news: &[Change], answer: Option<&Answer>) -> Result<()> {
        let decision = |job: &Job| job.approval.as_ref().and_then(|approval| approval.decision.clone());
        if let (None, Some(decision)) = (decision(before), decision(job)) {
            self.append(decision.at, &job.job_id, "decision", &decision)?;
        }
        let is_another = before.recorded_as != job.recorded_as;
        let recorded_as = job.recorded_as.as_deref().unwrap_or(&job.job_id);
        if is_another {
            self.note_another(job, recorded_as)?;
        }
        if let (false, Some(ended_at)) = (before.state.is_over() && !is_another, job.ended_at) {
            let outcome = job.error.as_ref().map_or(Outcome::Succeeded, |error| match job.attempts {
                0 => Outcome::Refused(error.code),
                _ => Outcome::Failed(error.code),
            });
            let settlement = Settlement {
                call_id: recorded_as.to_owned(),
                outcome,
                exit_code: job.exit_code,
                duration_ms: job.begun_at.map_or(0, |begun_at| ended_at - begun_at),
                at: ended_at,
                spent: Spent::default(),
                answer: None,
            };
            self.append(ended_at, recorded_as, "outcome", &settlement)?;
            let code = job.error.as_ref().map(|error| error.code);
            measure::add(self, &Sample::call(&job.tool, code, settlement.duration_ms, ended_at));
            // An attempt is counted when it is settled.
            if job.attempts == 0 {
                self.count_use(&Use::call(ended_at, &job.key_id, &job.tool, code, Spent::default()));
            }
            // The first answer stays the answer for its idempotency key.
            if job.recorded_as.is_none() {
                self.keep(&job.job_id, answer, ended_at)?;
            }
        }
        self.store_job(job)?;
        // A schedule that cannot be read costs that schedule only.
        if let Err(error) = self.tell_schedule(before, job, now()) {
            worker::console_error!("a schedule was not told of its run: {} {:?}", job.job_id, error.cause);
        }
        news.iter().try_for_each(|change| {
            let tenant = self.name()?.unwrap_or_default();
            self.tell(&Event::of_change(&tenant, job, change))
        })
    }

    /// Tells of a job that is there now, and once more where it waits for somebody.
    fn tell_of_new_job(&self, job: &Job, tenant: &str) -> Result<()> {
        self.tell(&Event::of_job(tenant, job, EventType::JobCreated))?;
        if job.state == State::AwaitingApproval {
            self.tell(&Event::of_job(tenant, job, EventType::JobAwaitingApproval))?;
        }
        Ok(())
    }

    /// Forgets jobs when their objects forget them.
    pub(super) fn forget_jobs(&self, now: i64) -> Result<()> {
        let expired = expired();
        let statement = format!("DELETE FROM job_webhooks WHERE job_id IN (SELECT job_id FROM jobs WHERE {expired})");
        self.write(&statement, vec![now.into()])?;
        self.write(&format!("DELETE FROM jobs WHERE {expired}"), vec![now.into()])
    }

    /// When the next job is forgotten.
    pub(super) fn next_forgotten_job(&self) -> Result<Option<i64>> {
        let rows: Vec<TimeRow> = self.rows(&next_expiry(), Vec::new())?;
        Ok(rows.first().and_then(|row| row.time).map(whole))
    }

    /// When the next new job is to be asked about.
    pub(super) fn next_unknown_job(&self) -> Result<Option<i64>> {
        let statement = "SELECT job AS text FROM jobs WHERE version = 0 ORDER BY created_at LIMIT 1";
        let rows: Vec<TextRow> = self.rows(statement, Vec::new())?;
        let first = rows.first().map(|row| read::<Job>(&row.text)).transpose()?;
        Ok(first.map(|job| job.created_at + UNKNOWN_FOR))
    }
}

/// Asks about jobs that their objects have not told of: one that was never made is closed. Nothing of it was carried out.
pub(super) async fn ask_about_new(tenant: &Inner) {
    let statement = "SELECT job AS text FROM jobs WHERE version = 0 AND created_at <= ? ORDER BY created_at LIMIT ?";
    let rows = tenant.rows::<TextRow>(statement, vec![(now() - UNKNOWN_FOR).into(), MOST_ASKED.into()]);
    let jobs = rows.and_then(|rows| rows.iter().map(|row| read::<Job>(&row.text)).collect::<Result<Vec<_>>>());
    let jobs = match jobs {
        Ok(jobs) => jobs,
        Err(error) => return worker::console_error!("a tenant's jobs could not be read: {:?}", error.cause),
    };
    for job in jobs {
        if let Err(error) = check(tenant, job).await {
            worker::console_error!("a job could not be held against its object: {:?}", error.cause);
        }
    }
}

/// Whether the object of a job knows of it. It tells at once what the list does not know.
pub(super) async fn is_known(tenant: &Inner, name: &str, job_id: &str) -> Result<bool> {
    let objects = namespace(&tenant.env, JOB_BINDING)?;
    let object = object_name(name, job_id);
    let lost = |error: FetchError| Error::internal(error);
    let question = Question {
        objects: &objects,
        name: &object,
        path: "/known",
        deadline: KNOWN_DEADLINE,
        repeat: Repeat::Never,
        lost,
        trace: Vec::new(),
    };
    question.ask(&(), |_| ()).await
}

async fn check(tenant: &Inner, job: Job) -> Result<()> {
    let Some(name) = tenant.name()? else { return Ok(()) };
    if is_known(tenant, &name, &job.job_id).await? {
        return Ok(());
    }
    let now = now();
    let error = Error::new(ErrorCode::ObjectUnavailable, "the job could not be stored; nothing was carried out");
    let job = Job {
        state: State::Failed,
        version: 1,
        updated_at: now,
        ended_at: Some(now),
        error: Some(Error { retryable: true, ..error }),
        ..job
    };
    tenant.take_report(&Report { changes: vec![Change::of(&job)], job, answer: None, takes_place: false })
}
