//! What is asked of the books: which calls, and whether they are what was written.

use serde::{Deserialize, Serialize};

use super::admission::{Intent, Outcome, Settlement};
use super::archive::{Archived, Export};
use super::audit::{Fault, Head};
use super::listing::Parameter;
use crate::error::ErrorCode;
use crate::job::record::Approval;

/// Outcomes that are no code.
const RESULTS: [&str; 2] = ["succeeded", "replayed"];

/// Records that one verification looks at.
pub const MOST_VERIFIED: u32 = 10_000;

/// Which calls; all given filters must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AuditRequest {
    pub limit: u32,
    /// Only calls before this place in the books.
    pub before_seq: Option<i64>,
    pub since: Option<i64>,
    pub until: Option<i64>,
    pub call_id: Option<String>,
    pub key_id: Option<String>,
    pub tool: Option<String>,
    pub sandbox_id: Option<String>,
    /// `succeeded`, `replayed`, or the code of an error.
    pub outcome: Option<String>,
}

/// One call of the books.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// Place of its first record.
    pub seq: i64,
    pub at: i64,
    pub intent: Intent,
    /// Nothing while the call is open.
    pub settlement: Option<Settlement>,
    /// Of a call that had to be approved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<Approval>,
}

/// Calls, the last first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entries {
    pub entries: Vec<Entry>,
    pub more: bool,
    /// Where the archive goes on, once there is no more here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archived: Option<Archived>,
}

/// Where a verification begins: after the record at this place, or with the first that is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VerifyRequest {
    pub after: Option<i64>,
}

/// What a verification found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Verified {
    /// What stood before the first record that was looked at.
    pub from: Head,
    /// The last record that follows from it.
    pub to: Head,
    /// Records that were found to be as written.
    pub records: u32,
    pub fault: Option<Fault>,
    /// Whether there are records after `to` that were not looked at.
    pub more: bool,
    /// Exports that end among these records, as the object knows of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exported: Vec<Export>,
}

impl AuditRequest {
    /// Whether a call is one of those that are asked for, whatever the page.
    pub fn takes(&self, entry: &Entry) -> bool {
        let Entry { at, intent, settlement, .. } = entry;
        let is = |wanted: &Option<String>, found: Option<&str>| wanted.is_none() || wanted.as_deref() == found;
        let outcome = settlement.as_ref().map(|settlement| match settlement.outcome {
            Outcome::Succeeded => "succeeded".to_owned(),
            Outcome::Replayed => "replayed".to_owned(),
            Outcome::Failed(code) | Outcome::Refused(code) => code.as_str(),
        });
        self.since.is_none_or(|since| *at >= since)
            && self.until.is_none_or(|until| *at < until)
            && is(&self.call_id, Some(&intent.call_id))
            && is(&self.key_id, Some(&intent.key_id))
            && is(&self.tool, Some(&intent.tool))
            && is(&self.sandbox_id, intent.sandbox_id.as_ref().map(|id| id.as_str()))
            && is(&self.outcome, outcome.as_deref())
    }

    /// The statement that answers with `limit` rows, and its parameters.
    pub fn statement(&self, limit: u32) -> (String, Vec<Parameter>) {
        let mut conditions = vec!["asked.kind = 'intent'".to_owned()];
        let mut parameters = Vec::new();
        let numbers = [("asked.seq < ?", self.before_seq), ("asked.at >= ?", self.since), ("asked.at < ?", self.until)];
        for (condition, number) in numbers {
            if let Some(number) = number {
                conditions.push(condition.to_owned());
                parameters.push(Parameter::Integer(number));
            }
        }
        let texts = [
            ("asked.call_id = ?", &self.call_id),
            ("json_extract(asked.record, '$.keyId') = ?", &self.key_id),
            ("json_extract(asked.record, '$.tool') = ?", &self.tool),
            ("json_extract(asked.record, '$.sandboxId') = ?", &self.sandbox_id),
        ];
        for (condition, text) in texts {
            if let Some(text) = text {
                conditions.push(condition.to_owned());
                parameters.push(Parameter::Text(text.clone()));
            }
        }
        if let Some(outcome) = self.outcome.as_deref() {
            let field = if RESULTS.contains(&outcome) { "result" } else { "code" };
            conditions.push(format!("json_extract(ended.record, '$.outcome.{field}') = ?"));
            parameters.push(Parameter::Text(outcome.to_owned()));
        }
        parameters.push(Parameter::Integer(limit.into()));
        let conditions = conditions.join(" AND ");
        let statement = format!(
            "SELECT asked.seq AS seq, asked.at AS at, asked.record AS intent, ended.record AS settlement, \
             waits.record AS waiting, decided.record AS decision FROM audit AS asked \
             LEFT JOIN audit AS ended ON ended.call_id = asked.call_id AND ended.kind = 'outcome' \
             LEFT JOIN audit AS waits ON waits.call_id = asked.call_id AND waits.kind = 'waiting' \
             LEFT JOIN audit AS decided ON decided.call_id = asked.call_id AND decided.kind = 'decision' \
             WHERE {conditions} ORDER BY asked.seq DESC LIMIT ?"
        );
        (statement, parameters)
    }
}

/// Whether `text` can be an outcome to filter by.
pub fn is_outcome(text: &str) -> bool {
    RESULTS.contains(&text) || ErrorCode::ALL.iter().any(|code| code.as_str() == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_parameters_and_never_text_of_the_statement() {
        let hostile = || Some("x' OR 1 --".to_owned());
        let request = AuditRequest {
            limit: 5,
            before_seq: Some(9),
            since: Some(1),
            until: Some(2),
            call_id: hostile(),
            key_id: hostile(),
            tool: hostile(),
            sandbox_id: hostile(),
            outcome: hostile(),
        };
        let (statement, parameters) = request.statement(6);
        assert_eq!(statement.matches('?').count(), parameters.len());
        assert!(!statement.contains("OR 1") && !statement.contains("--"), "{statement}");
        assert_eq!(parameters.last(), Some(&Parameter::Integer(6)));
    }

    #[test]
    fn outcomes_are_success_or_a_code() {
        assert!(
            is_outcome("succeeded") && is_outcome("replayed") && is_outcome("rate_limited") && !is_outcome("failed")
        );
    }
}
