//! An answer held against what its step expects of it.

use serde_json::{Map, Value};

use super::EXIT_CODE;
use crate::error::{Error, ErrorCode};

/// Why an answer is not the one that its step asks for. The message is told to all who see the job, so that it names the field alone: what
/// the answer says there is among the details, which are for who may call the tool, and what was expected is in the plan.
pub(super) fn unexpected(exit_code: Option<i32>, output: Option<&Value>, expect: &Map<String, Value>) -> Option<Error> {
    let failed = |message: String| Error::new(ErrorCode::StepFailed, message);
    if let Some(code) = exit_code.filter(|code| *code != 0 && !expect.contains_key(EXIT_CODE)) {
        return Some(failed(format!("the command ended with exit code {code}")));
    }
    for (name, wanted) in expect {
        let told = match (name.as_str(), exit_code, output) {
            (EXIT_CODE, Some(code), _) => Some(Value::from(code)),
            (_, _, Some(output)) => Some(output.get(name).cloned().unwrap_or_default()),
            (_, _, None) => None,
        };
        match told {
            Some(told) if told == *wanted => {}
            Some(told) => {
                let error = failed(format!("{name} is not what the step expects"));
                return Some(error.detail("field", name.as_str()).detail("actual", shown(told)));
            }
            None => {
                let message = format!("the answer was too long to be kept, so that {name} could not be looked at");
                return Some(failed(message).detail("field", name.as_str()));
            }
        }
    }
    None
}

/// Longest value that an error repeats, in bytes of JSON.
const LONGEST_SHOWN: usize = 200;

/// The value, or the beginning of a long one as text.
fn shown(value: Value) -> Value {
    let text = match &value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match text.get(..text.floor_char_boundary(LONGEST_SHOWN)) {
        Some(beginning) if beginning.len() < text.len() => Value::String(format!("{beginning}…")),
        _ => value,
    }
}
