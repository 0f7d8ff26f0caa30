//! The tenant's list of jobs: how it is asked.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::listing::Parameter;
use crate::job::record::Job;
use crate::job::state::State;

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
        Some(Self { created_at: created_at.parse().ok()?, job_id: job_id.to_owned() })
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
}

impl JobListRequest {
    /// The statement that answers with `limit` rows, and its parameters.
    pub fn statement(&self, limit: u32) -> (String, Vec<Parameter>) {
        let mut conditions = vec!["1".to_owned()];
        let mut parameters = Vec::new();
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
            schedule_id: hostile(),
            seen_by: Some(SeenBy {
                key_id: "x' OR 1 --".into(),
                token_id: hostile(),
                labels: BTreeMap::from([("x' OR 1 --".into(), "x' OR 1 --".into()), ("b".into(), "c".into())]),
            }),
        };
        let (statement, parameters) = request.statement(6);
        assert_eq!(statement.matches('?').count(), parameters.len());
        assert!(!statement.contains("x'") && !statement.contains("--"), "{statement}");
        assert_eq!(parameters.last(), Some(&Parameter::Integer(6)));
    }

    #[test]
    fn a_place_is_read_as_it_was_written() {
        let place = Place { created_at: 5, job_id: "a.b".into() };
        assert_eq!(Place::parse(&place.text()), Some(place));
        assert!(Place::parse("x").is_none() && Place::parse("x.y").is_none());
    }
}
