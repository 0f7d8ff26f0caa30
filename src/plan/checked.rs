//! What a pipeline asks for before anything of it runs: the tools of its steps, the rights for them, and arguments that they take.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{MOST_STEPS, RollBack, Step};
use crate::error::{Error, ErrorCode, Result, field_name};
use crate::guardrails::Execution;
use crate::registry::{CallFacts, Entry, Registry};
use crate::tenant::permissions::StepRequirement;

/// A call that a pipeline may make.
struct Planned<'a> {
    /// JSON pointer of what holds its tool and its arguments.
    pointer: String,
    tool: &'a str,
    arguments: &'a Map<String, Value>,
}

/// The calls of all steps and of their roll-backs.
fn calls(steps: &[Step]) -> impl Iterator<Item = Planned<'_>> {
    steps.iter().enumerate().flat_map(|(index, step)| {
        let pointer = format!("/steps/{index}");
        let undo = step.roll_back.as_ref().map(|RollBack { tool, arguments }| Planned {
            pointer: format!("{pointer}/rollBack"),
            tool,
            arguments,
        });
        std::iter::once(Planned { pointer, tool: &step.tool, arguments: &step.arguments }).chain(undo)
    })
}

/// What the calls of the steps ask of who asks for the pipeline.
pub fn requirements(steps: &[Step], registry: &Registry) -> Vec<StepRequirement> {
    let requirement = |Planned { pointer, tool, arguments }: Planned<'_>| {
        let requirement = registry.get(tool)?.requirement(&Value::Object(arguments.clone()), registry);
        Some(StepRequirement { pointer: format!("{pointer}/tool"), requirement })
    };
    calls(steps).filter_map(requirement).collect()
}

/// JSON pointers of the arguments that the audit records as present, without their values: those that each of the tools names.
pub fn unrecorded(steps: &[Step], registry: &Registry) -> Vec<String> {
    let pointers = |Planned { pointer, tool, .. }: Planned<'_>| {
        let named = registry.get(tool).map_or(&[][..], |entry| entry.description().guardrails.unrecorded_arguments);
        named.iter().map(move |name| format!("{pointer}/arguments{name}")).collect::<Vec<_>>()
    };
    calls(steps).flat_map(pointers).collect()
}

/// Refuses a pipeline that could not be carried out as it stands; the first fault is told, with the step that it is of.
pub fn check(steps: &[Step], facts: &CallFacts<'_>) -> Result<()> {
    if steps.is_empty() || steps.len() > MOST_STEPS {
        return Err(Error::invalid("/steps", format!("has 1 to {MOST_STEPS} entries")));
    }
    let mut names = BTreeSet::new();
    if let Some(index) = steps.iter().position(|step| !names.insert(step.name.as_str())) {
        return Err(Error::invalid(&format!("/steps/{index}/name"), "is the name of another step"));
    }
    for Planned { pointer, tool, arguments } in calls(steps) {
        let entry = entry(&pointer, tool, facts.registry)?;
        let prepared = entry.prepare(Value::Object(arguments.clone()), facts);
        let prepared = prepared.map_err(|error| placed(error, &format!("{pointer}/arguments")))?;
        if prepared.is_preview {
            let message = "a step acts; the pipeline itself takes dryRun";
            return Err(Error::invalid(&format!("{pointer}/arguments/dryRun"), message));
        }
    }
    steps.iter().enumerate().try_for_each(|(index, step)| expected(index, step, facts.registry))
}

fn entry<'a>(pointer: &str, tool: &str, registry: &'a Registry) -> Result<&'a Entry> {
    let pointer = format!("{pointer}/tool");
    let Some(entry) = registry.get(tool) else {
        return Err(Error::invalid(&pointer, format!("there is no tool {tool:?}; GET /v1/tools lists them")));
    };
    if entry.description().execution == Execution::Job {
        return Err(Error::invalid(&pointer, format!("{tool} is a pipeline, and a pipeline is no step")));
    }
    if entry.description().execution == Execution::Immediate {
        let message = format!("what {tool} is given is not stored, so that it is no step");
        return Err(Error::invalid(&pointer, message));
    }
    Ok(entry)
}

/// Only a field that the tool answers can be expected of it.
fn expected(index: usize, step: &Step, registry: &Registry) -> Result<()> {
    let Some(entry) = registry.get(&step.tool) else { return Ok(()) };
    let fields = entry.description().output_schema.get("properties").and_then(Value::as_object);
    match step.expect.keys().find(|name| fields.is_none_or(|fields| !fields.contains_key(*name))) {
        None => Ok(()),
        Some(name) => {
            let name = name.replace('~', "~0").replace('/', "~1");
            let message = format!("is no field of what {} answers", step.tool);
            Err(Error::invalid(&format!("/steps/{index}/expect/{name}"), message))
        }
    }
}

/// A fault of the arguments of a step, as a fault of those of the pipeline: `parent` is where the arguments stand.
pub fn placed(error: Error, parent: &str) -> Error {
    let violations = error.details.get("violations").and_then(Value::as_array);
    let text =
        |violation: &Value, name: &str| violation.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let violations: Vec<(String, String)> = violations
        .into_iter()
        .flatten()
        .map(|violation| (format!("{parent}{}", text(violation, "pointer")), text(violation, "message")))
        .collect();
    if error.code == ErrorCode::InvalidArguments && !violations.is_empty() {
        return Error::violations(&violations);
    }
    Error { message: format!("{}: {}", field_name(parent), error.message), ..error }
}

#[cfg(test)]
mod tests;
