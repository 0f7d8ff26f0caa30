//! What is told of a pipeline that did not succeed.

use serde_json::Value;

use super::{EXIT_CODE, Progress, Step, StepState};
use crate::error::{Error, ErrorCode};

/// Why a pipeline failed whose step of that place did.
pub fn failure(steps: &[Step], progress: &[Progress], index: usize) -> Error {
    let call = progress.get(index).map(|progress| progress.call.clone()).unwrap_or_default();
    let why = match (&call.error, call.state) {
        (_, StepState::Cancelled) => "it was cancelled",
        (Some(error), _) => error.message.as_str(),
        (None, _) => "it did not tell why",
    };
    // What the step's answer said where it said something else than was expected.
    let details = call.error.as_ref().map(|error| Value::Object(error.details.clone()));
    let error = of_step(ErrorCode::StepFailed, steps, progress, index, "failed", why).with_details(details);
    match call.exit_code {
        Some(code) => error.detail(EXIT_CODE, code),
        None => error,
    }
}

/// Why nobody knows how a pipeline ended.
pub fn loss(steps: &[Step], progress: &[Progress], index: usize) -> Error {
    of_step(
        ErrorCode::OutcomeUnknown,
        steps,
        progress,
        index,
        "was interrupted",
        "how it ended was not seen; it may have acted",
    )
}

/// What is told of a pipeline that was cancelled.
pub fn cancellation(steps: &[Step], progress: &[Progress]) -> Error {
    let error = Error::new(ErrorCode::Interrupted, "the pipeline was cancelled").detail("reason", "cancelled");
    not_undone(error, steps, progress)
}

fn of_step(code: ErrorCode, steps: &[Step], progress: &[Progress], index: usize, what: &str, why: &str) -> Error {
    let name = steps.get(index).map(|step| step.name.as_str()).unwrap_or_default();
    not_undone(Error::new(code, format!("the step {name:?} {what}: {why}")).detail("step", name), steps, progress)
}

/// Names the steps whose roll-back did not succeed.
fn not_undone(error: Error, steps: &[Step], progress: &[Progress]) -> Error {
    let is_left =
        |progress: &Progress| progress.roll_back.as_ref().is_some_and(|call| call.state != StepState::Succeeded);
    let left = steps.iter().zip(progress).filter(|(_, progress)| is_left(progress));
    let left: Vec<String> = left.map(|(step, _)| step.name.clone()).collect();
    if left.is_empty() { error } else { error.detail("notRolledBack", left) }
}
