//! What is secret in a call, and so masked in everything that is told or recorded of it.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{Backend, CallHead};
use crate::guardrails::Execution;
use crate::registry::Entry;
use crate::tenant::credential;
use redaction::Redactor;

/// Masks what the Worker itself holds, the key that the caller presented, what is secret in an environment that it gives, and what it
/// gives to be stored nowhere else.
pub(super) fn redactor(
    backend: &dyn Backend,
    head: &CallHead,
    entry: Option<&Entry>,
    arguments: Option<&Value>,
) -> Redactor {
    let presented = head.presented.authorization.as_deref().and_then(credential::bearer).map(str::to_owned);
    let variable = |(name, value): (&String, &Value)| Some((name.clone(), value.as_str()?.to_owned()));
    let secrets = |environment: &Map<String, Value>| {
        let environment: BTreeMap<String, String> = environment.iter().filter_map(variable).collect();
        redaction::secrets(&environment).map(str::to_owned).collect::<Vec<_>>()
    };
    let given: Vec<String> = arguments.map(environments).unwrap_or_default().into_iter().flat_map(secrets).collect();
    let kept = entry.zip(arguments).map(|(entry, arguments)| kept(entry, arguments)).unwrap_or_default();
    Redactor::new(backend.secrets().into_iter().chain(presented).chain(given).chain(kept))
}

/// The environments that a call gives: its own, and those that the steps of a pipeline give.
fn environments(arguments: &Value) -> Vec<&Map<String, Value>> {
    let steps = arguments.get("steps").and_then(Value::as_array).into_iter().flatten();
    let of_steps = steps.flat_map(|step| [step.pointer("/arguments/env"), step.pointer("/rollBack/arguments/env")]);
    std::iter::once(arguments.get("env")).chain(of_steps).flatten().filter_map(Value::as_object).collect()
}

/// What a tool that stores nothing elsewhere does not record: the value of a secret.
fn kept(entry: &Entry, arguments: &Value) -> Vec<String> {
    let description = entry.description();
    if description.execution != Execution::Immediate {
        return Vec::new();
    }
    let pointers = description.guardrails.unrecorded_arguments.iter();
    let texts = pointers.filter_map(|pointer| arguments.pointer(pointer).and_then(Value::as_str));
    texts.map(|text| text.trim().to_owned()).collect()
}
