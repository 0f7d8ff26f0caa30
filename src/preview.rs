//! `dryRun`: what a destructive call would do, told without doing it.
//!
//! Every tool whose annotations say that it is destructive takes it, by this one rule. Such a call is checked like any other, needs the
//! same rights, but no approval, makes no sandbox and starts none.

use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::error::Result;
use crate::registry::Context;
use crate::sandbox::state::Status;
use crate::tenant::admission::SandboxClaim;

const ARGUMENT: &str = "dryRun";

/// What the call would do. Nothing was changed.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DryRun {
    /// Always true.
    pub dry_run: bool,
    /// The tool that would do it.
    pub tool: String,
    /// Sandbox that the call names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<String>,
    /// How that sandbox stands: running, stopped or error; absent where there is none of that name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox_status: Option<Status>,
    /// What would happen, one sentence each.
    pub effects: Vec<String>,
}

impl DryRun {
    pub fn new(tool: &str, context: &Context, effects: Vec<String>) -> Self {
        Self {
            dry_run: true,
            tool: tool.to_owned(),
            sandbox_id: context.claim.sandbox_id().map(ToString::to_string),
            sandbox_status: context.listed.as_ref().map(|listed| listed.state.status()),
            effects,
        }
    }
}

/// Adds the argument to the schema of a tool.
pub fn add_to(schema: &mut Value) {
    let description = "Whether the call only tells what it would do and changes nothing; default false.";
    let field = json!({ "type": "boolean", "description": description });
    if let Some(Value::Object(fields)) = schema.get_mut("properties") {
        fields.insert(ARGUMENT.to_owned(), field);
    }
}

/// Takes the argument out of arguments that were validated.
pub fn take(arguments: &mut Value) -> bool {
    let taken = arguments.as_object_mut().and_then(|fields| fields.remove(ARGUMENT));
    taken.is_some_and(|value| value == true)
}

/// What a call that makes nothing wants of the tenant's list.
pub fn claim(claim: SandboxClaim) -> SandboxClaim {
    match claim {
        SandboxClaim::Create { .. } => SandboxClaim::None,
        // Looking into a sandbox that runs keeps it running; one that does not is not started.
        SandboxClaim::Existing { sandbox_id } => SandboxClaim::Running { sandbox_id },
        other => other,
    }
}

/// Whether the sandbox of the call runs, so that it can be looked into without starting it.
pub fn runs(context: &Context) -> bool {
    context.listed.as_ref().is_some_and(|listed| listed.state.status() == Status::Running)
}

/// Begins with what happens to the sandbox of the call before it acts there.
pub fn in_sandbox(context: &Context, effect: impl Into<String>) -> Result<Vec<String>> {
    let start = match (&context.listed, context.claim.sandbox_id()) {
        (Some(listed), _) if !runs(context) => Some(format!("Sandbox {} is started.", listed.sandbox_id)),
        (None, None) => Some("A sandbox is made for this call.".to_owned()),
        _ => None,
    };
    Ok(start.into_iter().chain([effect.into()]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_argument_is_taken_out() {
        let mut arguments = json!({ "a": 1, "dryRun": true });
        assert!(take(&mut arguments) && arguments == json!({ "a": 1 }));
        assert!(!take(&mut arguments));
        let mut arguments = json!({ "dryRun": false });
        assert!(!take(&mut arguments) && arguments == json!({}));
    }
}
