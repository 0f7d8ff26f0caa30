//! The tenant's list of jobs: how it is asked, and how long it tells of a job that is over.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::listing::Parameter;
use crate::job::record::{EXPIRES_AFTER, Job};
use crate::job::state::State;
use crate::whole;

/// When a row is forgotten; it has the same value as `Job::expires_at`.
const EXPIRES_AT: &str = "ended_at + 1000 * coalesce(json_extract(job, '$.expiresAfter'), 604800)";

/// Fewest and most seconds that jobs may be kept for after their end: an hour and a year.
pub const SHORTEST_EXPIRY: u32 = 60 * 60;
pub const LONGEST_EXPIRY: u32 = 365 * 24 * 60 * 60;

/// What a tenant has set for its jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobSettings {
    /// Seconds after their end at which jobs are forgotten.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_after: Option<u32>,
}

impl JobSettings {
    /// Seconds after its end at which a job is forgotten that is asked for now.
    pub fn expires_after(&self) -> u32 {
        self.expires_after.unwrap_or(EXPIRES_AFTER)
    }

    /// What a new job stores of it. A step of a pipeline is there for a week at least: a pipeline that was away finds by it that the step
    /// was carried out.
    pub fn of_new_job(&self, is_step: bool) -> Option<u32> {
        self.expires_after.map(|seconds| if is_step { seconds.max(EXPIRES_AFTER) } else { seconds })
    }
}

/// The index of when jobs are forgotten.
pub fn expiry_index() -> String {
    format!("CREATE INDEX IF NOT EXISTS jobs_expire_at ON jobs ({EXPIRES_AT}) WHERE ended_at IS NOT NULL")
}

/// Condition of those that are to be forgotten at a time, which is its parameter.
pub fn expired() -> String {
    format!("ended_at IS NOT NULL AND {EXPIRES_AT} <= ?")
}

/// The statement for the time at which the next job is forgotten.
pub fn next_expiry() -> String {
    format!("SELECT MIN({EXPIRES_AT}) AS time FROM jobs WHERE ended_at IS NOT NULL")
}

/// Which jobs; all that is given must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JobListRequest {
    pub limit: u32,
    /// The last job of the part before.
    pub after: Option<Place>,
    pub job_id: Option<String>,
    pub state: Option<State>,
    pub tool: Option<String>,
    pub key_id: Option<String>,
    pub sandbox_id: Option<String>,
    /// Bounds of when it was asked for and of when it was over, which are not among what they bound.
    pub created_after: Option<i64>,
    pub created_before: Option<i64>,
    pub ended_after: Option<i64>,
    pub ended_before: Option<i64>,
    pub schedule_id: Option<String>,
    /// Only what this caller sees.
    pub seen_by: Option<SeenBy>,
}

/// A place in the list: the last job comes first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Place {
    pub created_at: i64,
    pub job_id: String,
}

impl Place {
    /// As a cursor.
    pub fn text(&self) -> String {
        format!("{}.{}", self.created_at, self.job_id)
    }

    pub fn parse(text: &str) -> Option<Self> {
        let (created_at, job_id) = text.split_once('.')?;
        Some(Self { created_at: whole::place(created_at)?, job_id: job_id.to_owned() })
    }
}

/// A caller that sees the sandboxes of certain labels only: of jobs it sees those about them, and its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SeenBy {
    pub key_id: String,
    /// Of a token, which has only what it asked for itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_id: Option<String>,
    pub labels: BTreeMap<String, String>,
}

/// A part of the list.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobListing {
    pub jobs: Vec<Job>,
    pub more: bool,
    /// Seconds after their end at which jobs are forgotten that are asked for now.
    pub expires_after: u32,
}

impl JobListRequest {
    /// The statement that answers with `limit` rows, and its parameters. What is to be forgotten by `now` is not told any more.
    pub fn statement(&self, limit: u32, now: i64) -> (String, Vec<Parameter>) {
        let mut conditions = vec![format!("(ended_at IS NULL OR {EXPIRES_AT} > ?)")];
        let mut parameters = vec![Parameter::Integer(now)];
        let mut add = |condition: &str, text: &str| {
            conditions.push(condition.to_owned());
            parameters.push(Parameter::Text(text.to_owned()));
        };
        let texts = [
            ("job_id = ?", self.job_id.as_deref()),
            ("state = ?", self.state.map(State::as_str)),
            ("key_id = ?", self.key_id.as_deref()),
            ("json_extract(job, '$.tool') = ?", self.tool.as_deref()),
            ("json_extract(job, '$.sandboxId') = ?", self.sandbox_id.as_deref()),
            ("json_extract(job, '$.scheduleId') = ?", self.schedule_id.as_deref()),
        ];
        for (condition, text) in texts {
            if let Some(text) = text {
                add(condition, text);
            }
        }
        let times = [
            ("created_at > ?", self.created_after),
            ("created_at < ?", self.created_before),
            ("ended_at > ?", self.ended_after),
            ("ended_at < ?", self.ended_before),
        ];
        for (condition, time) in times.into_iter().filter_map(|(condition, time)| Some((condition, time?))) {
            conditions.push(condition.to_owned());
            parameters.push(Parameter::Integer(time));
        }
        if let Some(Place { created_at, job_id }) = &self.after {
            conditions.push("(created_at, job_id) < (?, ?)".to_owned());
            parameters.extend([Parameter::Integer(*created_at), Parameter::Text(job_id.clone())]);
        }
        if let Some(SeenBy { key_id, token_id, labels }) = &self.seen_by {
            let label =
                "EXISTS (SELECT 1 FROM json_each(job, '$.labels') AS label WHERE label.key = ? AND label.value = ?)";
            let all = vec![label; labels.len()].join(" AND ");
            let own = match token_id {
                Some(_) => "(key_id = ? AND json_extract(job, '$.tokenId') = ?)",
                None => "key_id = ?",
            };
            conditions.push(if labels.is_empty() { "1".to_owned() } else { format!("({own} OR ({all}))") });
            if !labels.is_empty() {
                parameters.push(Parameter::Text(key_id.clone()));
                parameters.extend(token_id.clone().map(Parameter::Text));
            }
            for (name, value) in labels {
                parameters.extend([Parameter::Text(name.clone()), Parameter::Text(value.clone())]);
            }
        }
        parameters.push(Parameter::Integer(limit.into()));
        let conditions = conditions.join(" AND ");
        let order = "ORDER BY created_at DESC, job_id DESC LIMIT ?";
        (format!("SELECT job AS text FROM jobs WHERE {conditions} {order}"), parameters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_parameters_and_never_text_of_the_statement() {
        let hostile = || Some("x' OR 1 --".to_owned());
        let request = JobListRequest {
            limit: 5,
            after: Some(Place { created_at: 5, job_id: "x' OR 1 --".into() }),
            job_id: hostile(),
            state: Some(State::Queued),
            tool: hostile(),
            key_id: hostile(),
            sandbox_id: hostile(),
            created_after: Some(1),
            created_before: Some(2),
            ended_after: Some(3),
            ended_before: Some(4),
            schedule_id: hostile(),
            seen_by: Some(SeenBy {
                key_id: "x' OR 1 --".into(),
                token_id: hostile(),
                labels: BTreeMap::from([("x' OR 1 --".into(), "x' OR 1 --".into()), ("b".into(), "c".into())]),
            }),
        };
        let (statement, parameters) = request.statement(6, 7);
        assert_eq!(statement.matches('?').count(), parameters.len());
        assert!(!statement.contains("x'") && !statement.contains("--"), "{statement}");
        assert_eq!(parameters.last(), Some(&Parameter::Integer(6)));
    }

    #[test]
    fn each_bound_of_time_has_its_own_column_and_direction() {
        let with = |change: fn(&mut JobListRequest)| {
            let mut request = JobListRequest::default();
            change(&mut request);
            let (statement, parameters) = request.statement(1, 9);
            let place = statement.split('?').count();
            assert_eq!((place, &parameters[1]), (4, &Parameter::Integer(5)), "{statement}");
            statement
        };
        assert!(with(|request| request.created_after = Some(5)).contains("AND created_at > ? ORDER"));
        assert!(with(|request| request.created_before = Some(5)).contains("AND created_at < ? ORDER"));
        assert!(with(|request| request.ended_after = Some(5)).contains("AND ended_at > ? ORDER"));
        assert!(with(|request| request.ended_before = Some(5)).contains("AND ended_at < ? ORDER"));
    }

    #[test]
    fn the_list_forgets_a_job_when_its_object_does() {
        assert!(EXPIRES_AT.contains(&format!("'$.expiresAfter'), {EXPIRES_AFTER})")), "{EXPIRES_AT}");
        for statement in [expiry_index(), expired(), next_expiry()] {
            assert!(statement.contains(EXPIRES_AT) && statement.contains("ended_at IS NOT NULL"), "{statement}");
        }
    }

    #[test]
    fn a_step_of_a_pipeline_is_kept_for_a_week_at_least() {
        let settings = |expires_after| JobSettings { expires_after };
        assert_eq!((settings(None).expires_after(), settings(None).of_new_job(true)), (EXPIRES_AFTER, None));
        let short = settings(Some(SHORTEST_EXPIRY));
        assert_eq!((short.of_new_job(false), short.of_new_job(true)), (Some(SHORTEST_EXPIRY), Some(EXPIRES_AFTER)));
        assert_eq!(settings(Some(LONGEST_EXPIRY)).of_new_job(true), Some(LONGEST_EXPIRY));
    }

    #[test]
    fn a_place_is_read_as_it_was_written() {
        let place = Place { created_at: 5, job_id: "a.b".into() };
        assert_eq!(Place::parse(&place.text()), Some(place));
        assert!(Place::parse("x").is_none() && Place::parse("x.y").is_none());
    }
}
