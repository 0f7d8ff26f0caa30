//! The call of a schedule: a tool that can be called so, arguments that it takes, and nothing in them that may be a secret.
//!
//! A schedule is kept for long, so it keeps no secret, sealed or not. What counts as one is what the tools say themselves: every argument that
//! the audit records without its value, and beside it credentials in a URL, keys and tokens, wherever they stand.

use serde_json::{Map, Value};

use super::record::{Call, LARGEST_ARGUMENTS};
use crate::error::{Error, Result};
use crate::guardrails::Execution;
use crate::plan::placed;
use crate::registry::CallFacts;
use crate::tenant::permissions::Requirement;
use redaction::{Redactor, without_credentials, without_userinfo};

/// Tools that a schedule does not call, since schedules could call each other in a circle without end.
const NOT_SCHEDULED: [&str; 3] = ["createSchedule", "updateSchedule", "runSchedule"];

/// The call, if it could be made as it stands.
pub fn call(tool: &str, arguments: &Map<String, Value>, facts: &CallFacts<'_>) -> Result<Call> {
    let Some(entry) = facts.registry.get(tool) else {
        return Err(Error::invalid("/tool", format!("there is no tool {tool:?}; GET /v1/tools lists them")));
    };
    let tool = entry.description().name;
    if entry.description().execution == Execution::Immediate {
        let message = format!("what {tool} is given is not stored, so that no schedule calls it");
        return Err(Error::invalid("/tool", message));
    }
    let given = Value::Object(arguments.clone());
    if given.to_string().len() > LARGEST_ARGUMENTS {
        return Err(Error::invalid("/arguments", format!("have more than {LARGEST_ARGUMENTS} bytes of JSON")));
    }
    let requirement = entry.requirement(&given, facts.registry);
    check_tools(&requirement)?;
    for pointer in entry.unrecorded(&given, facts.registry) {
        check_absent(&pointer, given.pointer(&pointer))?;
    }
    check_strings("/arguments", &given, facts.redactor)?;
    let prepared = entry.prepare(given, facts).map_err(|error| placed(error, "/arguments"))?;
    if prepared.is_preview {
        return Err(Error::invalid("/arguments/dryRun", "a schedule acts; nobody would read what it would do"));
    }
    Ok(Call { tool: tool.to_owned(), arguments: arguments.clone(), requirement, recorded: prepared.recorded })
}

fn check_tools(requirement: &Requirement) -> Result<()> {
    let of_steps = requirement.steps.iter().map(|step| step.requirement.tool.as_str());
    match std::iter::once(requirement.tool.as_str()).chain(of_steps).find(|tool| NOT_SCHEDULED.contains(tool)) {
        None => Ok(()),
        Some(tool) => Err(Error::invalid("/tool", format!("{tool} is not called by a schedule"))),
    }
}

/// Refuses a value of an argument whose values may be secret; the first of several is named.
fn check_absent(pointer: &str, value: Option<&Value>) -> Result<()> {
    let refuse = |pointer: &str| {
        let message = "may hold a secret, and a schedule keeps no values that may; name a secret that the tenant keeps, or leave it out";
        Err(Error::invalid(&format!("/arguments{pointer}"), message))
    };
    match value {
        None | Some(Value::Null) => Ok(()),
        Some(Value::Object(fields)) => match fields.keys().next() {
            Some(name) => refuse(&format!("{pointer}/{}", escaped(name))),
            None => Ok(()),
        },
        Some(_) => refuse(pointer),
    }
}

/// Refuses what would be masked wherever it were told.
fn check_strings(pointer: &str, value: &Value, redactor: &Redactor) -> Result<()> {
    match value {
        Value::String(text) if without_credentials(&without_userinfo(&redactor.text(text))) != *text => {
            let message = "holds a key, a token or the credentials of a URL, and a schedule keeps none";
            Err(Error::invalid(pointer, message))
        }
        Value::Array(items) => {
            let mut items = items.iter().enumerate();
            items.try_for_each(|(index, item)| check_strings(&format!("{pointer}/{index}"), item, redactor))
        }
        Value::Object(fields) => {
            let mut fields = fields.iter();
            fields.try_for_each(|(name, field)| check_strings(&format!("{pointer}/{}", escaped(name)), field, redactor))
        }
        _ => Ok(()),
    }
}

fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
mod tests;
