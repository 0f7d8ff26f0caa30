//! createSandbox: makes a sandbox and starts it.

use std::collections::BTreeMap;
use std::rc::Rc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::error::{Error, Result};
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::identifier::SandboxId;
use crate::platform::rfc3339;
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::sandbox::record::Settings;
use crate::sandbox::state::{State, Status};
use crate::tenant::admission::{Origin, SandboxClaim};

const MOST_LABELS: usize = 32;
const LONGEST_LABEL: usize = 256;
const MOST_VARIABLES: usize = 128;
const LONGEST_VARIABLE: usize = 32 * 1024;

/// What to create.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Name of the sandbox; chosen at random when absent. Creating the same name with the same settings again answers the
    /// sandbox that is there.
    #[serde(default)]
    pub id: Option<SandboxId>,
    /// Free words to find it by; at most 32, names and values of at most 256 bytes.
    #[serde(default)]
    #[schema(required = false)]
    pub labels: BTreeMap<String, String>,
    /// Environment of every command in it. Values are kept with the sandbox, never answered and never audited.
    #[serde(default)]
    #[schema(required = false)]
    pub env: BTreeMap<String, String>,
}

/// The sandbox, running.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    /// Its name.
    pub sandbox_id: String,
    /// running, stopped or error.
    pub status: Status,
    /// The exact state behind `status`.
    pub state: State,
    /// When it was created: RFC 3339, UTC.
    pub created_at: String,
    /// Whether this call created it.
    pub created: bool,
    /// Number of starts.
    pub generation: u32,
    /// Free words to find it by.
    pub labels: BTreeMap<String, String>,
}

pub struct CreateSandbox;

impl Tool for CreateSandbox {
    const NAME: &'static str = "createSandbox";
    const DESCRIPTION: &'static str = "Creates an isolated Linux sandbox and starts it. Answers once commands can run in it. \
        Repeating the call with the same id and settings answers the same sandbox; other settings are a conflict.";
    const ROUTES: &'static [Route] =
        &[Route { method: Method::Post, path: "/v1/sandboxes" }, Route { method: Method::Post, path: "/sandbox" }];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Create a sandbox",
        read_only_hint: false,
        destructive_hint: false,
        idempotent_hint: false,
        open_world_hint: false,
    };
    const GUARDRAILS: Guardrails = Guardrails {
        role: Role::Operator,
        scopes: &[Scope::SandboxWrite],
        approval: Approval::NotNeeded,
        default_timeout: 60,
        maximum_timeout: 60,
        output_cap_bytes: 256 * 1024,
        rate_class: RateClass::SandboxOperation,
        unrecorded_arguments: &["/env"],
    };
    const EXECUTION: Execution = Execution::Inline;

    type Input = Input;
    type Output = Output;

    fn claim(input: &Input, facts: &CallFacts<'_>) -> Result<SandboxClaim> {
        check_labels(&input.labels)?;
        check_environment(&input.env)?;
        let sandbox_id = input.id.clone().unwrap_or_else(|| SandboxId::from_random(facts.platform.random()));
        Ok(SandboxClaim::Create { sandbox_id, labels: input.labels.clone(), origin: Origin::CreateSandbox })
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<Output> {
        let record = context.create_sandbox(Settings { labels: input.labels, env: input.env }).await?;
        Ok(Output {
            sandbox_id: record.sandbox_id.into(),
            status: record.state.status(),
            state: record.state,
            created_at: rfc3339(record.created_at),
            created: context.listed.is_none(),
            generation: record.generation,
            labels: record.settings.labels,
        })
    }
}

fn check_labels(labels: &BTreeMap<String, String>) -> Result<()> {
    if labels.len() > MOST_LABELS {
        return Err(Error::invalid("/labels", format!("has more than {MOST_LABELS} entries")));
    }
    match labels
        .iter()
        .find(|(name, value)| name.is_empty() || name.len() > LONGEST_LABEL || value.len() > LONGEST_LABEL)
    {
        Some((name, _)) => Err(Error::invalid(
            &pointer("/labels", name),
            format!("name and value have 1 and 0 to {LONGEST_LABEL} bytes"),
        )),
        None => Ok(()),
    }
}

/// Refuses what no process can be given: a name that is empty or holds `=` or NUL, a value that holds NUL.
pub fn check_environment(env: &BTreeMap<String, String>) -> Result<()> {
    if env.len() > MOST_VARIABLES {
        return Err(Error::invalid("/env", format!("has more than {MOST_VARIABLES} variables")));
    }
    for (name, value) in env {
        let fault = if name.is_empty() {
            "the name of a variable is empty"
        } else if name.contains('=') {
            "the name of a variable holds `=`"
        } else if name.contains('\0') || value.contains('\0') {
            "a variable holds a NUL character"
        } else if name.len() + value.len() > LONGEST_VARIABLE {
            "a variable is longer than 32 KiB"
        } else {
            continue;
        };
        return Err(Error::invalid(&pointer("/env", name), fault));
    }
    Ok(())
}

fn pointer(parent: &str, name: &str) -> String {
    format!("{parent}/{}", name.replace('~', "~0").replace('/', "~1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_variables_are_refused_by_name() {
        for (name, value) in [("", "x"), ("A=B", "x"), ("A\0", "x"), ("A", "x\0")] {
            let env = BTreeMap::from([(name.to_owned(), value.to_owned())]);
            let error = check_environment(&env).unwrap_err();
            assert!(error.details["violations"][0]["pointer"].as_str().unwrap().starts_with("/env/"), "{name:?}");
        }
        let fine = BTreeMap::from([("FOO".to_owned(), "a b'c\"$HOME\né".to_owned())]);
        assert!(check_environment(&fine).is_ok());
    }

    #[test]
    fn long_labels_are_refused() {
        let labels = BTreeMap::from([("a".to_owned(), "b".repeat(257))]);
        assert!(check_labels(&labels).unwrap_err().message.starts_with("labels.a:"));
    }
}
