//! The proof at the end: a command in a sandbox of the deployed Worker, through its URL.

use super::stop;
use crate::run::{self, Task};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::time::{Duration, Instant};

/// How patient the proof is: a new name at workers.dev and the first image take minutes to be everywhere.
#[derive(Clone, Copy)]
pub(crate) struct Patience {
    pub(crate) health: Duration,
    pub(crate) exec: Duration,
    pub(crate) pause: Duration,
}

impl Patience {
    pub(crate) const USUAL: Self =
        Self { health: Duration::from_secs(120), exec: Duration::from_secs(420), pause: Duration::from_secs(3) };
}

/// Beyond the Worker's own deadline for starting a sandbox.
const REQUEST: Duration = Duration::from_secs(100);

const SCRIPT: &str = include_str!("request.mjs");

struct Probe<'a> {
    url: &'a str,
    key: &'a str,
    path: &'a OsStr,
}

/// Why a question was not answered as it should be.
struct Fault {
    /// Of the problem object, where there was one.
    code: String,
    /// Whether waiting may help.
    may_pass: bool,
    text: String,
}

impl Probe<'_> {
    /// Status and body, or why there is none. The key goes to Node on its standard input.
    fn request(&self, method: &str, path: &str, body: Option<Value>) -> Result<Result<(u64, String), String>> {
        let authorization =
            if body.is_some() { json!({"Authorization": format!("Bearer {}", self.key)}) } else { json!({}) };
        let request = json!({
            "url": format!("{}{path}", self.url), "method": method, "headers": authorization,
            "body": body.map(|body| body.to_string()), "timeoutMs": REQUEST.as_millis() as u64,
        });
        let mut node = run::command("node");
        node.args(["--input-type=module", "--eval", SCRIPT]).env("PATH", self.path).env("NODE_USE_ENV_PROXY", "1");
        let answer = Task::new("a request by node", node, REQUEST + Duration::from_secs(10))
            .capture(request.to_string().as_bytes())?;
        let said: Value = serde_json::from_str(answer.stdout.trim())
            .with_context(|| format!("node did not send the request: {}", run::last_lines(&answer.stderr, 5)))?;
        Ok(match (said.get("status").and_then(Value::as_u64), said.get("body").and_then(Value::as_str)) {
            (Some(status), Some(body)) => Ok((status, body.to_owned())),
            _ => Err(said.get("error").and_then(Value::as_str).unwrap_or("no answer").to_owned()),
        })
    }

    fn tool(&self, name: &str, arguments: Value) -> Result<Result<Value, Fault>> {
        let (status, body) = match self.request("POST", &format!("/v1/tools/{name}"), Some(arguments))? {
            Ok(answer) => answer,
            Err(error) => {
                let text = format!("{name} could not be called: {error}");
                return Ok(Err(Fault { code: String::new(), may_pass: true, text }));
            }
        };
        let value: Value = serde_json::from_str(&body).unwrap_or(Value::Null);
        if status == 200 {
            return Ok(Ok(value));
        }
        let code = value.get("code").and_then(Value::as_str).unwrap_or_default().to_owned();
        let retryable = value.get("retryable") == Some(&Value::Bool(true));
        // While a new name or version spreads, the platform answers in the Worker's place, with no problem of ours.
        let may_pass = retryable || (code.is_empty() && matches!(status, 404 | 500..));
        let short: String = body.replace(self.key, "[masked]").chars().take(600).collect();
        Ok(Err(Fault { code, may_pass, text: format!("{name} answered {status}: {short}") }))
    }

    /// Runs a command in a fresh sandbox and destroys the sandbox.
    fn exec(&self) -> Result<Result<(), Fault>> {
        let answer = match self.tool("exec", json!({"command": "echo ready"}))? {
            Ok(answer) => answer,
            Err(fault) => return Ok(Err(fault)),
        };
        let sandbox = answer.get("sandboxId").cloned().unwrap_or(Value::Null);
        let destroyed = self.tool("destroySandbox", json!({"sandboxId": sandbox}))?;
        if answer.get("exitCode") != Some(&json!(0)) || answer.get("stdout") != Some(&json!("ready\n")) {
            let text = format!("`echo ready` answered {answer}");
            return Ok(Err(Fault { code: String::new(), may_pass: false, text }));
        }
        Ok(destroyed.map(|_| ()))
    }
}

pub(crate) fn check(url: &str, key: &str, path: &OsStr, patience: Patience) -> Result<()> {
    let probe = Probe { url, key, path };
    let look = "look at `node_modules/.bin/wrangler tail` of this environment, and roll back if it served before";
    let deadline = Instant::now() + patience.health;
    loop {
        let answer = probe.request("GET", "/health", None)?;
        if matches!(answer, Ok((200, _))) {
            break;
        }
        if Instant::now() > deadline {
            let said = answer.map_or_else(|error| error, |(status, _)| format!("status {status}"));
            return Err(stop(
                &format!("the Worker is deployed, and {url}/health does not answer with success: {said}"),
                look,
            ));
        }
        run::pause(patience.pause)?;
    }
    let deadline = Instant::now() + patience.exec;
    loop {
        let Err(fault) = probe.exec()? else { return Ok(()) };
        let next = match fault.code.as_str() {
            "unauthenticated" => {
                "the Worker has another key than the one known here: set WORKER_API_KEY_SECRET to it, or replace it by \
                 `node_modules/.bin/wrangler secret put WORKER_API_KEY_SECRET`, and run this again"
            }
            "not_configured" => {
                "the Worker has no machine to run sandboxes on: deploy with the image (without --worker-only), or put \
                 SANDBOX_HOST_URL and SANDBOX_HOST_TOKEN"
            }
            _ if fault.may_pass && Instant::now() < deadline => {
                run::pause(patience.pause)?;
                continue;
            }
            _ => look,
        };
        return Err(stop(&format!("the Worker is deployed, and a command in a sandbox failed: {}", fault.text), next));
    }
}
