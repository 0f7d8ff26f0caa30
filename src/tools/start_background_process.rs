//! startBackgroundProcess: a command that runs on when the call is over.

use std::collections::BTreeMap;
use std::rc::Rc;

use sandbox_api::{ProcessRequest, RestartPolicy};
use serde::Deserialize;
use utoipa::ToSchema;

use super::create_sandbox::check_environment;
use super::process_info::ProcessSummary;
use super::using_secrets;
use crate::error::{Error, Result};
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::identifier::SandboxId;
use crate::plan::Ending;
use crate::registry::{CallFacts, Context, Method, Route, Tool};
use crate::sandbox::processes::Processes;
use crate::tenant::admission::SandboxClaim;
use crate::tenant::secret_name::SecretName;

/// Milliseconds that the answer waits for a command that ends at once.
const SETTLE_MS: u64 = 150;

/// What to start, and how.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Sandbox to run in; it is started where it does not run.
    pub sandbox_id: SandboxId,
    /// A bash command line that stays in the foreground: what it leaves behind counts as ended.
    #[schema(min_length = 1, max_length = 100_000)]
    pub command: String,
    /// A name for people; need not be unique.
    #[schema(min_length = 1, max_length = 128)]
    pub name: String,
    /// What happens when the command ends by itself: always and on-failure start it again after a pause that doubles from
    /// 0.25 up to 30 seconds and begins anew after a run of 10 seconds. Default never.
    #[serde(default)]
    pub restart_policy: Option<RestartPolicy>,
    /// Environment of this process, over that of the sandbox. Values of variables whose name ends in SECRET, TOKEN, PASSWORD,
    /// CREDENTIALS or API_KEY, and of those that SANDBOX_SECRETS names (separated by commas), are masked in what it writes.
    #[serde(default)]
    #[schema(required = false)]
    pub env: BTreeMap<String, String>,
    /// Variables that get the values of named secrets, each with the name of its secret: `{"NPM_TOKEN": "npm-token"}`. The values are those
    /// of the moment in which the process is started, and are masked in what it writes.
    /// Needs the scope secrets:use.
    #[serde(default)]
    #[schema(required = false)]
    pub secrets: BTreeMap<String, SecretName>,
    /// Working directory: absolute, or relative to /workspace, the default.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 4096)]
    pub cwd: Option<String>,
    /// Whether standard input stays open for writeProcessInput. Default false: it is at its end from the start.
    #[serde(default)]
    pub keep_stdin: Option<bool>,
}

pub struct StartBackgroundProcess;

impl Tool for StartBackgroundProcess {
    const NAME: &'static str = "startBackgroundProcess";
    const DESCRIPTION: &'static str = "Starts a command in a sandbox that runs on when the call, the stream or the Worker is gone: a server, a \
        watcher, a long build. Answers its processId for the other process tools, and how it ended where it \
        ended at once. At most 10 run at a time in a sandbox. A sandbox that nobody calls goes to sleep in spite \
        of its processes, which ends them: keepAlive prevents that.";
    const ROUTES: &'static [Route] = &[Route { method: Method::Post, path: "/v1/sandboxes/{sandboxId}/processes" }];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Start a background process",
        read_only_hint: false,
        destructive_hint: true,
        idempotent_hint: false,
        open_world_hint: true,
    };
    const GUARDRAILS: Guardrails = Guardrails {
        role: Role::Operator,
        scopes: &[Scope::SandboxExec],
        approval: Approval::NotNeeded,
        default_timeout: 30,
        maximum_timeout: 30,
        output_cap_bytes: 64 * 1024,
        rate_class: RateClass::SandboxOperation,
        unrecorded_arguments: &["/env"],
        told_once: &[],
    };
    const EXECUTION: Execution = Execution::Inline;

    type Input = Input;
    type Output = ProcessSummary;

    fn claim(input: &Input, _facts: &CallFacts<'_>) -> Result<SandboxClaim> {
        check_environment(&input.env)?;
        using_secrets::check(&input.secrets, &input.env)?;
        for (pointer, text) in [("/command", Some(&input.command)), ("/cwd", input.cwd.as_ref())] {
            if text.is_some_and(|text| text.contains('\0')) {
                return Err(Error::invalid(pointer, "holds a NUL character"));
            }
        }
        if input.name.chars().any(char::is_control) {
            return Err(Error::invalid("/name", "holds a control character"));
        }
        Ok(SandboxClaim::Existing { sandbox_id: input.sandbox_id.clone() })
    }

    /// An answer that broke off may be one of a process that was begun.
    fn may_have_acted(ending: &Ending) -> bool {
        ending.may_have_acted() || ending.says("reason").is_some_and(|reason| reason == "sandbox_unresponsive")
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<ProcessSummary> {
        let env = using_secrets::environment(&context, input.env, &input.secrets)?;
        let request = ProcessRequest {
            // The call's own id: should the answer be lost, the same request finds the process.
            id: Some(context.call_id),
            name: input.name,
            command: Some(input.command),
            argv: None,
            cwd: input.cwd,
            env,
            keep_stdin: input.keep_stdin.unwrap_or(false),
            restart_policy: input.restart_policy.unwrap_or_default(),
            settle_ms: Some(SETTLE_MS),
            most_running: context.limits.and_then(|limits| usize::try_from(limits.processes_per_sandbox()).ok()),
        };
        let started = Processes::new(context.services, input.sandbox_id.clone()).start(&request).await;
        let process = started.map_err(|error| error.detail("sandboxId", input.sandbox_id.as_str()))?;
        Ok(ProcessSummary::new(&input.sandbox_id, process))
    }
}
