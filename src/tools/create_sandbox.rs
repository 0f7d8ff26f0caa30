//! createSandbox: makes a sandbox and starts it.

use std::collections::BTreeMap;
use std::rc::Rc;

use sandbox_api::WORKSPACE;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::cloning;
use super::using_secrets;
use crate::error::{Error, ErrorCode, Result};
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::identifier::SandboxId;
use crate::plan::Ending;
use crate::platform::{parse_rfc3339, rfc3339};
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::sandbox::git;
use crate::sandbox::record::GitSource;
use crate::sandbox::settings::{Expiry, Settings, Update};
use crate::sandbox::state::{State, Status};
use crate::tenant::admission::{Origin, SandboxClaim};
use crate::tenant::secret_name::SecretName;

const MOST_LABELS: usize = 32;
const LONGEST_LABEL: usize = 256;
pub const MOST_VARIABLES: usize = 128;
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
    /// Environment of every command in it. Values are kept with the sandbox, never answered and never audited. Those of variables whose
    /// name ends in SECRET, TOKEN, PASSWORD, CREDENTIALS or API_KEY, and those that SANDBOX_SECRETS names (separated by commas), are
    /// masked in what commands write.
    #[serde(default)]
    #[schema(required = false)]
    pub env: BTreeMap<String, String>,
    /// Variables that get the values of named secrets, each with the name of its secret: `{"NPM_TOKEN": "npm-token"}`. They are kept with
    /// the sandbox by name alone: the values are those of each start, and of a change by updateSandbox. They are masked in what commands write.
    /// Needs the scope secrets:use.
    #[serde(default)]
    #[schema(required = false)]
    pub secrets: BTreeMap<String, SecretName>,
    /// Seconds without use after which it sleeps; default 600. A command or stream under way is use, a background process and
    /// questions about the sandbox are not. Its next use wakes it.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 86400, default = 600)]
    pub sleep_after: Option<u32>,
    /// Whether it stays awake although nobody uses it; default false.
    #[serde(default)]
    pub keep_alive: Option<bool>,
    /// Seconds from now after which it is destroyed, used or not. Not together with `expiresAt`.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 31536000)]
    pub expires_after: Option<u32>,
    /// When it is destroyed, used or not: RFC 3339.
    #[serde(default)]
    #[schema(format = DateTime)]
    pub expires_at: Option<String>,
    /// Whether commands reach the internet; default true. What the machine cannot give, with or without, is refused.
    #[serde(default)]
    pub internet: Option<bool>,
    /// Repository to clone into /workspace, in a directory of its name: `https://` or `http://`. Credentials in it are used for the
    /// clone and kept nowhere.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 2048)]
    pub git_url: Option<String>,
    /// Branch or tag to check out; default the repository's own. Needs `gitUrl`.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 250)]
    pub git_branch: Option<String>,
    /// Commits of history to fetch; default all. Needs `gitUrl`.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 1000000)]
    pub git_depth: Option<u32>,
    /// Seconds that the clone may take; default 60. Needs `gitUrl`.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 3600)]
    pub git_timeout: Option<u32>,
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
    /// When it will be destroyed: RFC 3339, UTC. Absent when it will not be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// Seconds without use after which it sleeps, unless it is kept alive.
    pub sleep_after: u32,
    /// Whether it stays awake although nobody uses it.
    pub keep_alive: bool,
    /// Whether commands reach the internet.
    pub internet: bool,
    /// Directory of the clone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub git_directory: Option<String>,
    /// Commit that was checked out; absent for a repository without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub git_commit: Option<String>,
}

/// What creation may take where nothing is cloned, the start of the sandbox not counted.
const WITHOUT_CLONE_SECONDS: f64 = 30.0;

pub struct CreateSandbox;

impl Tool for CreateSandbox {
    const NAME: &'static str = "createSandbox";
    const DESCRIPTION: &'static str = "Creates an isolated Linux sandbox and starts it. Answers once commands can run in it. \
        Repeating the call with the same id and settings answers the same sandbox; other settings are a conflict. \
        With gitUrl a repository is cloned into it; when that fails the sandbox is removed again.";
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
        maximum_timeout: 3600,
        output_cap_bytes: 256 * 1024,
        rate_class: RateClass::SandboxOperation,
        unrecorded_arguments: &["/env"],
        told_once: &[],
    };
    const EXECUTION: Execution = Execution::Deferrable;

    type Input = Input;
    type Output = Output;

    fn claim(input: &Input, facts: &CallFacts<'_>) -> Result<SandboxClaim> {
        check_labels(&input.labels, "/labels")?;
        check_environment(&input.env)?;
        using_secrets::check(&input.secrets, &input.env)?;
        expiry(input.expires_after, input.expires_at.as_deref(), facts.platform.now_millis())?;
        clone_of(input)?;
        let sandbox_id = input.id.clone().unwrap_or_else(|| SandboxId::from_random(facts.platform.random()));
        Ok(SandboxClaim::Create { sandbox_id, labels: input.labels.clone(), origin: Origin::CreateSandbox })
    }

    fn timeout_seconds(input: &Input) -> f64 {
        match input.git_url {
            Some(_) => f64::from(input.git_timeout.unwrap_or(Self::GUARDRAILS.default_timeout)),
            None => WITHOUT_CLONE_SECONDS,
        }
    }

    /// It made nothing where its sandbox was there before. One that does not start is made all the same.
    fn may_have_acted(ending: &Ending) -> bool {
        let says = |name| ending.says(name).and_then(Value::as_bool);
        match (says("created"), says("sandboxKept")) {
            (Some(created), _) => created,
            (None, Some(is_kept)) => is_kept,
            (None, None) => {
                let error = ending.error.as_ref();
                let did_not_start = error.is_some_and(|error| error.code == ErrorCode::SandboxUnavailable);
                !ending.found_sandbox && (did_not_start || ending.may_have_acted())
            }
        }
    }

    async fn call(context: Context, input: Input, events: Rc<dyn EventSink>) -> Result<Output> {
        let was_there = context.listed.is_some();
        let made = make(context, input, events).await;
        made.map_err(|error| if was_there { error.detail("created", false) } else { error })
    }
}

async fn make(context: Context, input: Input, events: Rc<dyn EventSink>) -> Result<Output> {
    // 1. What is to be created.
    let clone = clone_of(&input)?;
    let timeout_ms = u64::from(input.git_timeout.unwrap_or(CreateSandbox::GUARDRAILS.default_timeout)) * 1000;
    let source =
        clone.as_ref().map(|clone| GitSource { url: clone.url.clone(), branch: clone.branch.clone(), cloned: false });
    let expiry = expiry(input.expires_after, input.expires_at.as_deref(), context.admitted_at)?;
    let stated = Update {
        labels: Some(input.labels),
        env: input.env,
        secrets: input.secrets,
        sleep_after: input.sleep_after,
        keep_alive: input.keep_alive,
        expiry,
        internet: input.internet,
        ..Update::default()
    };
    let settings = stated.applied_to(&Settings::default(), context.admitted_at)?;
    // 2. The sandbox.
    let record = context.create_sandbox(settings, source).await?;
    // 3. The repository, unless an earlier call brought it.
    let git_directory = clone.as_ref().map(|clone| format!("{WORKSPACE}/{}", clone.directory));
    let git_commit = match &clone {
        Some(clone) if record.git.as_ref().is_some_and(|git| !git.cloned) => {
            cloning::run(&context, &record, clone, timeout_ms, events).await?
        }
        _ => None,
    };
    Ok(Output {
        sandbox_id: record.sandbox_id.into(),
        status: record.state.status(),
        state: record.state,
        created_at: rfc3339(record.created_at),
        created: context.listed.is_none(),
        generation: record.generation,
        expires_at: record.settings.expires_at.map(rfc3339),
        sleep_after: record.settings.sleep_after(),
        keep_alive: record.settings.keep_alive,
        internet: record.settings.internet,
        labels: record.settings.labels,
        git_directory,
        git_commit,
    })
}

/// The repository to clone, checked.
fn clone_of(input: &Input) -> Result<Option<git::Clone>> {
    let needless = [
        ("/gitBranch", input.git_branch.is_some()),
        ("/gitDepth", input.git_depth.is_some()),
        ("/gitTimeout", input.git_timeout.is_some()),
    ];
    match &input.git_url {
        Some(url) => git::Clone::parse(url, input.git_branch.as_deref(), input.git_depth).map(Some),
        None => match needless.into_iter().find(|(_, given)| *given) {
            Some((pointer, _)) => Err(Error::invalid(pointer, "needs gitUrl")),
            None => Ok(None),
        },
    }
}

/// When a sandbox is to be destroyed.
pub fn expiry(after: Option<u32>, at: Option<&str>, now: i64) -> Result<Option<Expiry>> {
    match (after, at) {
        (Some(_), Some(_)) => Err(Error::invalid("/expiresAt", "goes without expiresAfter")),
        (Some(seconds), None) => Ok(Some(Expiry::After(seconds))),
        (None, Some(text)) => match parse_rfc3339(text) {
            Some(at) if at > now => Ok(Some(Expiry::At(at))),
            Some(_) => Err(Error::invalid("/expiresAt", "is not in the future")),
            None => Err(Error::invalid("/expiresAt", "is not an RFC 3339 time such as 2026-01-31T12:00:00Z")),
        },
        (None, None) => Ok(None),
    }
}

/// Refuses labels that are too many or too long; `parent` is where they stand in the arguments.
pub fn check_labels(labels: &BTreeMap<String, String>, parent: &str) -> Result<()> {
    if labels.len() > MOST_LABELS {
        return Err(Error::invalid(parent, format!("has more than {MOST_LABELS} entries")));
    }
    match labels
        .iter()
        .find(|(name, value)| name.is_empty() || name.len() > LONGEST_LABEL || value.len() > LONGEST_LABEL)
    {
        Some((name, _)) => {
            Err(Error::invalid(&pointer(parent, name), format!("name and value have 1 and 0 to {LONGEST_LABEL} bytes")))
        }
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
        assert!(check_labels(&labels, "/labels").unwrap_err().message.starts_with("labels.a:"));
    }
}
