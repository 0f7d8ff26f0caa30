//! The tenant's list of sandboxes: what it knows of each, how it is asked, and what it is told.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::admission::{Origin, SandboxClaim};
use crate::error::ErrorCode;
use crate::identifier::SandboxId;
use crate::sandbox::change::Change;
use crate::sandbox::record::{Record, StartReason};
use crate::sandbox::state::{State, Status};

/// One sandbox in the tenant's list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Listed {
    pub sandbox_id: SandboxId,
    pub state: State,
    pub generation: u32,
    pub created_at: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<i64>,
    pub labels: BTreeMap<String, String>,
    pub origin: Origin,
    /// Key that made it.
    pub owner: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_used_at: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<i64>,
    /// Seconds; absent while the sandbox's object has not told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sleep_after: Option<u32>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep_alive: bool,
    /// Until when the time that it ran was added to its owner's usage, if that was before its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted_until: Option<i64>,
    /// Number of the last change of its state that was told further.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub changes_told: u32,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Listed {
    /// The sandbox that a claim creates; nothing when it creates none.
    pub fn new(claim: &SandboxClaim, at: i64, owner: &str) -> Option<Self> {
        let SandboxClaim::Create { sandbox_id, labels, origin } = claim else {
            return None;
        };
        Some(Self {
            sandbox_id: sandbox_id.clone(),
            state: State::Created,
            generation: 0,
            created_at: at,
            started_at: None,
            labels: labels.clone(),
            origin: *origin,
            owner: owner.to_owned(),
            last_used_at: None,
            expires_at: None,
            sleep_after: None,
            keep_alive: false,
            counted_until: None,
            changes_told: 0,
        })
    }

    /// Since when it runs without having been counted; nothing while it does not run.
    pub fn uncounted_since(&self) -> Option<i64> {
        let started_at = self.started_at.filter(|_| self.state == State::Running)?;
        Some(self.counted_until.map_or(started_at, |counted| counted.max(started_at)))
    }

    /// The same after a report.
    pub fn told(self, report: StateReport) -> Self {
        let StateReport { state, generation, started_at, facts, changes, .. } = report;
        let changes_told = changes.last().map_or(0, |change| change.number).max(self.changes_told);
        let listed = Self { state, generation, started_at, changes_told, ..self };
        match facts {
            Some(ListedFacts { labels, last_used_at, expires_at, sleep_after, keep_alive }) => {
                Self { labels, last_used_at, expires_at, sleep_after: Some(sleep_after), keep_alive, ..listed }
            }
            None => listed,
        }
    }
}

/// What a sandbox's object tells beside its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListedFacts {
    pub labels: BTreeMap<String, String>,
    pub last_used_at: Option<i64>,
    pub expires_at: Option<i64>,
    pub sleep_after: u32,
    pub keep_alive: bool,
}

impl ListedFacts {
    pub fn of(record: &Record) -> Self {
        Self {
            labels: record.settings.labels.clone(),
            last_used_at: Some(record.last_use()),
            expires_at: record.expires_at(),
            sleep_after: record.settings.sleep_after(),
            keep_alive: record.settings.keep_alive,
        }
    }
}

/// A change, said by the sandbox's object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StateReport {
    pub sandbox_id: SandboxId,
    pub state: State,
    pub generation: u32,
    pub started_at: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub facts: Option<ListedFacts>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<StartTold>,
    /// Every change of its state that the list has not taken, the first one first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<Change>,
}

/// A start that ended, for the tenant's metrics.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StartTold {
    pub reason: StartReason,
    pub duration_ms: i64,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorCode>,
}

/// All given filters must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Filters {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_after: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// Which part of the list is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListRequest {
    pub limit: u32,
    /// Id after which the part begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    #[serde(default)]
    pub filters: Filters,
}

/// A part of the list, in the order of the ids.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Listing {
    pub sandboxes: Vec<Listed>,
    pub more: bool,
}

/// A value of a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parameter {
    Text(String),
    Integer(i64),
}

impl ListRequest {
    /// The statement that answers with `limit` rows, and its parameters. The columns that are filtered by are expressions with an
    /// index each; labels are looked at row by row.
    pub fn statement(&self, limit: u32) -> (String, Vec<Parameter>) {
        let mut conditions = vec!["sandbox_id > ?".to_owned()];
        let mut parameters = vec![Parameter::Text(self.after.clone().unwrap_or_default())];
        if let Some(status) = self.filters.status {
            let states = State::ALL.into_iter().filter(|state| state.status() == status);
            let names: Vec<Parameter> = states.map(|state| Parameter::Text(state.as_str().to_owned())).collect();
            conditions.push(format!("json_extract(listed, '$.state') IN ({})", vec!["?"; names.len()].join(", ")));
            parameters.extend(names);
        }
        if let Some(created_after) = self.filters.created_after {
            conditions.push("json_extract(listed, '$.createdAt') > ?".to_owned());
            parameters.push(Parameter::Integer(created_after));
        }
        if let Some(owner) = &self.filters.owner {
            conditions.push("json_extract(listed, '$.owner') = ?".to_owned());
            parameters.push(Parameter::Text(owner.clone()));
        }
        for (name, value) in &self.filters.labels {
            let label =
                "EXISTS (SELECT 1 FROM json_each(listed, '$.labels') AS label WHERE label.key = ? AND label.value = ?)";
            conditions.push(label.to_owned());
            parameters.extend([Parameter::Text(name.clone()), Parameter::Text(value.clone())]);
        }
        parameters.push(Parameter::Integer(limit.into()));
        let conditions = conditions.join(" AND ");
        (format!("SELECT listed AS text FROM sandboxes WHERE {conditions} ORDER BY sandbox_id LIMIT ?"), parameters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_of_an_earlier_release_loads() {
        let row = r#"{"sandboxId":"a","state":"running","generation":2,"createdAt":5,"labels":{},"origin":"exec","owner":"root"}"#;
        let listed: Listed = serde_json::from_str(row).unwrap();
        assert_eq!((listed.generation, listed.sleep_after, listed.keep_alive), (2, None, false));
        assert_eq!(serde_json::to_string(&listed).unwrap(), row);
        let report: StateReport =
            serde_json::from_str(r#"{"sandboxId":"a","state":"error","generation":3,"startedAt":9}"#).unwrap();
        let told = listed.told(report);
        assert_eq!((told.state, told.generation, told.started_at), (State::Error, 3, Some(9)));
    }

    #[test]
    fn values_are_parameters_and_never_text_of_the_statement() {
        let request = ListRequest {
            limit: 5,
            after: Some("x' OR 1".into()),
            filters: Filters {
                status: Some(Status::Stopped),
                created_after: Some(7),
                owner: Some("o' --".into()),
                labels: BTreeMap::from([("k'".into(), "v'".into())]),
            },
        };
        let (statement, parameters) = request.statement(6);
        assert_eq!(statement.matches('?').count(), parameters.len());
        for hostile in ["OR 1", "--", "k'", "v'"] {
            assert!(!statement.contains(hostile), "{statement}");
        }
        let stopped = ["created", "sleeping", "destroyed"];
        assert!(stopped.iter().all(|state| parameters.contains(&Parameter::Text((*state).to_owned()))));
        assert_eq!(parameters.last(), Some(&Parameter::Integer(6)));
    }
}
