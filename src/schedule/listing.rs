//! The tenant's list of schedules: how it is asked.

use serde::{Deserialize, Serialize};

use super::record::State;
use crate::tenant::jobs::Place;
use crate::tenant::listing::Parameter;

/// Which schedules; all that is given must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ListRequest {
    pub limit: u32,
    /// The last schedule of the part before; its `jobId` is that of the schedule.
    pub after: Option<Place>,
    pub state: Option<State>,
    pub tool: Option<String>,
    pub key_id: Option<String>,
}

impl ListRequest {
    /// The statement that answers with `limit` rows, and its parameters. Only schedules of `seen_by` are told of, where there is one.
    pub fn statement(&self, seen_by: Option<&str>, limit: u32) -> (String, Vec<Parameter>) {
        let texts = [
            ("state = ?", self.state.map(State::as_str)),
            ("key_id = ?", self.key_id.as_deref()),
            ("key_id = ?", seen_by),
            ("json_extract(schedule, '$.call.tool') = ?", self.tool.as_deref()),
        ];
        let given: Vec<_> = texts.into_iter().filter_map(|(condition, text)| Some((condition, text?))).collect();
        let mut conditions: Vec<&str> = given.iter().map(|(condition, _)| *condition).collect();
        let mut parameters: Vec<Parameter> =
            given.into_iter().map(|(_, text)| Parameter::Text(text.to_owned())).collect();
        if let Some(Place { created_at, job_id }) = &self.after {
            conditions.push("(created_at, schedule_id) < (?, ?)");
            parameters.extend([Parameter::Integer(*created_at), Parameter::Text(job_id.clone())]);
        }
        conditions.push("1");
        parameters.push(Parameter::Integer(limit.into()));
        let conditions = conditions.join(" AND ");
        let order = "ORDER BY created_at DESC, schedule_id DESC LIMIT ?";
        // Arguments are not told in lists, and those of hundreds would be more than an object holds.
        let text = "json_set(schedule, '$.call.arguments', json('{}'), '$.call.recorded', json('null'))";
        (format!("SELECT {text} AS text FROM schedules WHERE {conditions} {order}"), parameters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_parameters_and_never_text_of_the_statement() {
        let hostile = || Some("x' OR 1 --".to_owned());
        let request = ListRequest {
            limit: 5,
            after: Some(Place { created_at: 5, job_id: "x' OR 1 --".into() }),
            state: Some(State::Active),
            tool: hostile(),
            key_id: hostile(),
        };
        let (statement, parameters) = request.statement(Some("x' OR 1 --"), 6);
        assert_eq!(statement.matches('?').count(), parameters.len());
        assert!(!statement.contains("x'") && !statement.contains("--"), "{statement}");
        assert_eq!(parameters.last(), Some(&Parameter::Integer(6)));
        let (statement, parameters) = ListRequest::default().statement(None, 3);
        assert_eq!((statement.matches('?').count(), parameters.len()), (1, 1));
    }
}
