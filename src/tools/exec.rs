//! exec: runs one command, or a piece of code, and answers what it wrote and how it ended.

use std::collections::BTreeMap;
use std::rc::Rc;

use sandbox_api::{CapturedOutput, EncodedBytes, Encoding, EndedBy, ExecExit, ExecRequest, OnDisconnect};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use super::create_sandbox::check_environment;
use super::using_secrets;
use crate::error::{Error, ErrorCode, Result};
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::identifier::SandboxId;
use crate::job::record::KILLED;
use crate::registry::{CallFacts, Context, Route, Tool};
use crate::sandbox;
use crate::sandbox::settings::Settings;
use crate::tenant::admission::{Origin, SandboxClaim};
use crate::tenant::secret_name::SecretName;

const DEFAULT_TIMEOUT_SECONDS: f64 = 30.0;

/// Bytes kept of each of stdout and stderr.
const OUTPUT_LIMIT_BYTES: u64 = 1024 * 1024;

/// What to run, and where.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Sandbox to run in. Without it one is made for this call; the answer names it, and it is destroyed
    /// once nobody has used it for five minutes.
    #[serde(default)]
    pub sandbox_id: Option<SandboxId>,
    /// A bash command line, or code in `language`. At most 100,000 characters: write longer code to a file and run that.
    #[schema(min_length = 1, max_length = 100_000)]
    pub command: String,
    /// What `command` is written in; default bash.
    #[serde(default)]
    pub language: Option<Language>,
    /// Seconds after which the command and all its children are killed; default 30, at most 3600. Starting the
    /// sandbox does not count.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 3600, default = 30)]
    pub timeout: Option<f64>,
    /// Environment of this command, over that of the sandbox. Values of variables whose name ends in SECRET, TOKEN, PASSWORD,
    /// CREDENTIALS or API_KEY, and of those that SANDBOX_SECRETS names (separated by commas), are masked in what it writes.
    #[serde(default)]
    #[schema(required = false)]
    pub env: BTreeMap<String, String>,
    /// Variables that get the values of named secrets, each with the name of its secret: `{"NPM_TOKEN": "npm-token"}`. The values are those
    /// of the moment in which the command begins, and are masked in what it writes.
    /// Needs the scope secrets:use.
    #[serde(default)]
    #[schema(required = false)]
    pub secrets: BTreeMap<String, SecretName>,
    /// Working directory: absolute, or relative to /workspace, the default.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 4096)]
    pub cwd: Option<String>,
    /// Standard input. Without it the command reads the end of its input at once. At most 1,000,000 characters.
    #[serde(default)]
    #[schema(max_length = 1_000_000)]
    pub stdin: Option<String>,
}

/// What a command is written in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum Language {
    #[default]
    Bash,
    Python,
    #[serde(rename = "javascript")]
    JavaScript,
}

/// How the command ended. A non-zero exit code is a success of this call.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    /// Exit status: 126 not executable, 127 not found, 128 plus the signal when a signal ended it.
    pub exit_code: i32,
    /// Standard output. When `truncated`: its head, a line saying how much is left out, and its tail.
    pub stdout: String,
    /// Standard error, in the same form.
    pub stderr: String,
    /// `base64` when stdout is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdout_encoding: Option<Encoding>,
    /// `base64` when stderr is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stderr_encoding: Option<Encoding>,
    /// Bytes written to stdout in all.
    pub stdout_bytes: u64,
    /// Bytes written to stderr in all.
    pub stderr_bytes: u64,
    /// Whether bytes of stdout or stderr are left out.
    pub truncated: bool,
    /// Name of the signal that ended it, such as SIGKILL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
    /// Present and true when it was killed while the sandbox's memory was used up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub out_of_memory: Option<bool>,
    /// Present and true when it was killed because the sandbox's disk was used up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub out_of_disk: Option<bool>,
    /// Milliseconds from spawn to exit.
    pub execution_time: u64,
    /// Sandbox it ran in.
    pub sandbox_id: String,
}

pub struct Exec;

impl Tool for Exec {
    const NAME: &'static str = "exec";
    const DESCRIPTION: &'static str = "Runs a bash command, or Python or JavaScript code, in a sandbox and answers exit code, \
        stdout and stderr. Without a sandboxId a sandbox is made. Each call is a new process in /workspace; files stay. A command that \
        outlives its timeout is killed with all its children and the call fails with `timeout`.";
    const ROUTES: &'static [Route] = &[];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Run a command",
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
        maximum_timeout: 3600,
        output_cap_bytes: 16 * 1024 * 1024,
        rate_class: RateClass::SandboxOperation,
        unrecorded_arguments: &["/env", "/stdin"],
        told_once: &[],
    };
    const EXECUTION: Execution = Execution::Process;

    type Input = Input;
    type Output = Output;

    fn claim(input: &Input, facts: &CallFacts<'_>) -> Result<SandboxClaim> {
        check_environment(&input.env)?;
        using_secrets::check(&input.secrets, &input.env)?;
        for (pointer, text) in [("/command", Some(&input.command)), ("/cwd", input.cwd.as_ref())] {
            if text.is_some_and(|text| text.contains('\0')) {
                return Err(Error::invalid(pointer, "holds a NUL character"));
            }
        }
        Ok(match &input.sandbox_id {
            Some(sandbox_id) => SandboxClaim::Existing { sandbox_id: sandbox_id.clone() },
            None => SandboxClaim::Create {
                sandbox_id: SandboxId::from_random(facts.platform.random()),
                labels: BTreeMap::new(),
                origin: Origin::Exec,
            },
        })
    }

    fn timeout_seconds(input: &Input) -> f64 {
        input.timeout.unwrap_or(DEFAULT_TIMEOUT_SECONDS)
    }

    async fn call(context: Context, mut input: Input, events: Rc<dyn EventSink>) -> Result<Output> {
        let sandbox_id =
            context.claim.sandbox_id().cloned().ok_or_else(|| Error::internal("no sandbox was claimed"))?;
        // 1. What it gets as environment.
        let env = using_secrets::environment(&context, std::mem::take(&mut input.env), &input.secrets)?;
        let input = Input { env, ..input };
        // 2. A sandbox for this call, when it names none.
        if input.sandbox_id.is_none() && context.resumes.is_none() {
            context.create_sandbox(Settings::default(), None).await?;
        }
        // 3. The command, to its end.
        let streams = events.streams();
        let on_disconnect = if context.is_of_a_job() { OnDisconnect::Detach } else { OnDisconnect::Kill };
        let request = ExecRequest { on_disconnect, ..request(context.call_id.clone(), input, streams) };
        let timeout_ms = request.timeout_ms;
        let exec = sandbox::exec::Exec::new(context.services, sandbox_id.clone(), request, events);
        let exec = match context.resumes {
            Some(resumed) => exec.going_on(resumed),
            None => exec,
        };
        let exit = exec.run().await?;
        // 4. The end, in the caller's words.
        outcome(exit, &sandbox_id, timeout_ms)
    }
}

fn request(id: String, input: Input, stream_output: bool) -> ExecRequest {
    let timeout_ms =
        std::time::Duration::try_from_secs_f64(Exec::timeout_seconds(&input)).unwrap_or_default().as_millis();
    let (command, argv) = match input.language.unwrap_or_default() {
        Language::Bash => (Some(input.command), None),
        Language::Python => (None, Some(vec!["python3".to_owned(), "-c".to_owned(), input.command])),
        Language::JavaScript => (None, Some(vec!["node".to_owned(), "-e".to_owned(), input.command])),
    };
    ExecRequest {
        id,
        command,
        argv,
        cwd: input.cwd,
        env: input.env,
        stdin: input.stdin.map(|data| EncodedBytes { data, encoding: Encoding::Utf8 }),
        timeout_ms: u64::try_from(timeout_ms).unwrap_or(u64::MAX),
        output_limit_bytes: Some(OUTPUT_LIMIT_BYTES),
        stream_output,
        on_disconnect: OnDisconnect::default(),
        disconnect_grace_ms: None,
        lease_ms: None,
    }
}

fn outcome(exit: ExecExit, sandbox_id: &SandboxId, timeout_ms: u64) -> Result<Output> {
    let failed = |code, message: String, exit: &ExecExit| {
        Error::new(code, message)
            .detail("sandboxId", sandbox_id.as_str())
            .detail("execId", exit.id.as_str())
            .detail("stdout", exit.stdout.data.as_str())
            .detail("stderr", exit.stderr.data.as_str())
            .detail("executionTime", exit.duration_ms)
    };
    match (exit.ended_by, exit.exit_code) {
        (EndedBy::Exit | EndedBy::Signal, Some(exit_code)) => {
            let truncated = exit.stdout.truncated || exit.stderr.truncated;
            let encoding = |output: &CapturedOutput| (output.encoding == Encoding::Base64).then_some(Encoding::Base64);
            Ok(Output {
                exit_code,
                stdout_encoding: encoding(&exit.stdout),
                stderr_encoding: encoding(&exit.stderr),
                stdout_bytes: exit.stdout.total_bytes,
                stderr_bytes: exit.stderr.total_bytes,
                stdout: exit.stdout.data,
                stderr: exit.stderr.data,
                truncated,
                signal: exit.signal,
                out_of_memory: exit.out_of_memory.then_some(true),
                out_of_disk: exit.out_of_disk.then_some(true),
                execution_time: exit.duration_ms,
                sandbox_id: sandbox_id.to_string(),
            })
        }
        (EndedBy::Timeout, _) => {
            let message = format!("the command was killed, with all its children, after {timeout_ms} ms");
            Err(failed(ErrorCode::Timeout, message, &exit).detail("timeoutMs", json!(timeout_ms)))
        }
        (EndedBy::Kill, _) => {
            let error = failed(ErrorCode::Interrupted, "the command was killed on request".to_owned(), &exit);
            Err(error.detail("reason", KILLED))
        }
        (EndedBy::Disconnect, _) => {
            let message = "the command was killed because its caller could not be reached for too long";
            Err(failed(ErrorCode::Interrupted, message.to_owned(), &exit))
        }
        (EndedBy::Unknown | EndedBy::Exit | EndedBy::Signal, _) => {
            let message =
                "the command is gone, but how it ended was not seen: something killed the process that watched it";
            Err(failed(ErrorCode::OutcomeUnknown, message.to_owned(), &exit))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(ended_by: EndedBy, exit_code: Option<i32>) -> ExecExit {
        ExecExit {
            id: "c1".into(),
            exit_code,
            signal: None,
            ended_by,
            out_of_memory: false,
            out_of_disk: false,
            stdout: CapturedOutput { data: "so far".into(), ..CapturedOutput::default() },
            stderr: CapturedOutput::default(),
            duration_ms: 7,
        }
    }

    #[test]
    fn only_an_end_of_its_own_is_a_success() {
        let id = SandboxId::parse("box").unwrap();
        let code = |ended_by, exit_code| outcome(exit(ended_by, exit_code), &id, 1000).map_err(|error| error.code);
        assert_eq!(code(EndedBy::Exit, Some(3)).map(|output| output.exit_code), Ok(3));
        assert_eq!(code(EndedBy::Signal, Some(137)).map(|output| output.exit_code), Ok(137));
        assert_eq!(code(EndedBy::Timeout, Some(137)).map(|_| ()), Err(ErrorCode::Timeout));
        assert_eq!(code(EndedBy::Kill, Some(137)).map(|_| ()), Err(ErrorCode::Interrupted));
        assert_eq!(code(EndedBy::Disconnect, Some(137)).map(|_| ()), Err(ErrorCode::Interrupted));
        assert_eq!(code(EndedBy::Unknown, None).map(|_| ()), Err(ErrorCode::OutcomeUnknown));
        assert_eq!(code(EndedBy::Exit, None).map(|_| ()), Err(ErrorCode::OutcomeUnknown), "no exit code is never 0");
    }

    #[test]
    fn a_timeout_keeps_what_was_written() {
        let error = outcome(exit(EndedBy::Timeout, None), &SandboxId::parse("box").unwrap(), 1000).unwrap_err();
        assert_eq!(error.details["stdout"], "so far");
        assert_eq!(error.details["timeoutMs"], 1000);
    }
}
