//! What a tenant's object is asked about its named secrets. It keeps them sealed and never sees a value.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::permissions::Requirement;
use super::sealing::Sealed;
use crate::error::{Error, ErrorCode, Result};

/// Most secrets of a tenant.
pub const MOST_SECRETS: u32 = 1_000;

/// A question or a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SecretRequest {
    /// Adds or replaces one. Without a description the one it has stays.
    #[serde(rename_all = "camelCase")]
    Set { name: String, description: Option<String>, sealed: Sealed, at: i64 },
    /// The secret of that name.
    #[serde(rename_all = "camelCase")]
    Get { name: String },
    /// Secrets in the order of their names, of these names alone where there is such a list.
    #[serde(rename_all = "camelCase")]
    List { after: Option<String>, limit: u32, only: Option<BTreeSet<String>> },
    #[serde(rename_all = "camelCase")]
    Delete { name: String },
    /// Puts the same value under another seal, unless it was replaced meanwhile.
    #[serde(rename_all = "camelCase")]
    Reseal { name: String, from: Sealed, to: Sealed },
}

/// What is told of a secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SecretRecord {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    pub created_at: i64,
    pub updated_at: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_used_at: Option<i64>,
    /// Name of the value of `SIGNING_SECRET` that it is sealed with.
    pub sealed_by: String,
}

/// The secrets that were asked for, or the changed one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Secrets {
    pub secrets: Vec<SecretRecord>,
    pub more: bool,
}

impl Secrets {
    /// The one secret of an answer.
    pub fn one(self) -> Result<SecretRecord> {
        self.secrets.into_iter().next().ok_or_else(|| Error::internal("an answer about one secret holds none"))
    }
}

/// Secrets that are to be used now, asked by the object of a sandbox that is started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UseRequest {
    pub names: BTreeSet<String>,
    pub at: i64,
}

/// Sealed values by the names of their secrets; one that is not there is absent.
pub type SealedSecrets = BTreeMap<String, Sealed>;

/// 404: there is no secret of that name.
pub fn no_such_secret(name: &str) -> Error {
    Error::new(ErrorCode::NotFound, format!("there is no secret {name:?}; listSecrets lists them"))
        .detail("secretName", name)
}

/// Every secret that a call, or a step of it, uses, with the place of its arguments that names it. What a pipeline names itself is not
/// named again by the steps that it makes of that.
pub fn used(requirement: &Requirement) -> Vec<(String, String)> {
    let own = requirement.uses.iter().map(|(pointer, name)| (pointer.clone(), name.clone()));
    let is_other = |(_, name): &(String, String)| !requirement.uses.values().any(|own| own == name);
    let of_steps = requirement.steps.iter().flat_map(|step| {
        let parent = step.pointer.strip_suffix("/tool").unwrap_or(&step.pointer);
        let placed = |(pointer, name)| (format!("{parent}/arguments{pointer}"), name);
        used(&step.requirement).into_iter().map(placed).collect::<Vec<_>>()
    });
    own.chain(of_steps.filter(is_other)).collect()
}

/// 400 where a call uses what is not there; names every such place.
pub fn check_known(used: &[(String, String)], known: &BTreeSet<String>) -> Result<()> {
    let unknown: Vec<(String, String)> = used
        .iter()
        .filter(|(_, name)| !known.contains(name))
        .map(|(pointer, name)| (pointer.clone(), format!("there is no secret {name:?}; setSecret makes it")))
        .collect();
    if unknown.is_empty() { Ok(()) } else { Err(Error::violations(&unknown)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guardrails::Role;
    use crate::tenant::permissions::StepRequirement;

    fn requirement(uses: &[(&str, &str)]) -> Requirement {
        let uses = uses.iter().map(|(pointer, name)| ((*pointer).to_owned(), (*name).to_owned())).collect();
        Requirement { uses, ..Requirement::of("exec", Role::Operator) }
    }

    #[test]
    fn what_is_not_there_is_named_where_the_call_names_it() {
        let step = |pointer: &str, uses: &[(&str, &str)]| StepRequirement {
            pointer: pointer.into(),
            requirement: requirement(uses),
        };
        let steps = vec![
            step("/steps/0/tool", &[("/secrets/A", "a"), ("/secrets/D", "c")]),
            step("/steps/1/rollBack/tool", &[("/secrets/B", "b")]),
        ];
        let pipeline = Requirement { steps, ..requirement(&[("/secrets/C", "c")]) };
        let used = used(&pipeline);
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        assert_eq!(check_known(&used, &names(&["a", "b", "c"])), Ok(()));
        let error = check_known(&used, &names(&["a"])).unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidArguments);
        let pointers = |at: usize| error.details["violations"][at]["pointer"].clone();
        assert_eq!(error.details["violations"].as_array().map(Vec::len), Some(2));
        assert_eq!([pointers(0), pointers(1)], ["/secrets/C", "/steps/1/rollBack/arguments/secrets/B"]);
        assert_eq!(error.message, "secrets.C: there is no secret \"c\"; setSecret makes it");
    }
}
