//! Questions to the running stack: is the Worker up, and does a command really run.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;
use ureq::Agent;

pub(crate) struct Probe {
    agent: Agent,
    url: String,
    key: String,
}

impl Probe {
    pub(crate) fn new(url: &str, key: &str) -> Self {
        let configuration =
            Agent::config_builder().timeout_global(Some(Duration::from_secs(40))).http_status_as_error(false).build();
        Self { agent: configuration.into(), url: url.to_owned(), key: key.to_owned() }
    }

    pub(crate) fn healthy(&self) -> bool {
        let question = self.agent.get(format!("{}/health", self.url)).config();
        let answer = question.timeout_global(Some(Duration::from_secs(5))).build().call();
        answer.is_ok_and(|answer| answer.status().is_success())
    }

    /// Runs a command in a fresh sandbox and removes the sandbox again.
    pub(crate) fn exec(&self) -> Result<()> {
        let answer = self.tool("exec", &json!({ "command": "echo ready" }))?;
        if answer.get("exitCode") != Some(&json!(0)) || answer.get("stdout") != Some(&json!("ready\n")) {
            bail!("the first command answered {answer}");
        }
        let sandbox = answer.get("sandboxId").context("exec answered without a sandboxId")?;
        self.tool("destroySandbox", &json!({ "sandboxId": sandbox }))?;
        Ok(())
    }

    fn tool(&self, name: &str, arguments: &Value) -> Result<Value> {
        let request = self.agent.post(format!("{}/v1/tools/{name}", self.url));
        let request = request.header("Authorization", format!("Bearer {}", self.key)).content_type("application/json");
        let mut answer = request.send(arguments.to_string()).with_context(|| format!("{name} could not be called"))?;
        let text = answer.body_mut().read_to_string().with_context(|| format!("the answer of {name} broke off"))?;
        if !answer.status().is_success() {
            bail!("{name} answered {}: {text}", answer.status());
        }
        serde_json::from_str(&text).with_context(|| format!("{name} did not answer JSON: {text}"))
    }
}

/// The port to serve on: the wanted one, or a free one where the wanted one is taken.
pub(crate) fn free_port(wanted: u16) -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, wanted))
        .or_else(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))
        .context("no free port on 127.0.0.1")?;
    Ok(listener.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_is_replaced_by_a_free_one() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let wanted = taken.local_addr().unwrap().port();
        let port = free_port(wanted).unwrap();
        assert_ne!(port, wanted);
        assert!(TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok());
    }
}
