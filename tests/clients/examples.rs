//! The examples, as a reader runs them.

use std::{path::PathBuf, process::Command, time::Duration};

use test_support::{Stack, node, project_root, scratch_folder};

use crate::{environment::Environment, tools::run};

const LIMIT: Duration = Duration::from_secs(300);

fn example(name: &str) -> PathBuf {
    project_root().join("examples").join(name)
}

/// What it prints.
fn said(mut command: Command, log: &str) -> String {
    let stack = Stack::shared();
    command.env("CLOUDFLARE_OPS_URL", stack.client().base()).env("CLOUDFLARE_OPS_KEY", &stack.key);
    run(&mut command, LIMIT, &scratch_folder("examples").join(log))
}

#[test]
fn calls_with_curl() {
    let mut command = Command::new("bash");
    command.arg(example("calls.sh"));
    let said = said(command, "calls.log");
    let expected = [
        "\"exitCode\":3",
        // The next line comes with it where nobody reads in between.
        "event: stdout\ndata: {\"data\":\"1\\n",
        "event: result\n",
        "A file there and back:\nfrom here\n",
        "{\"data\":\"done\\n\"",
        "\"state\":\"succeeded\"",
    ];
    let mut rest = said.as_str();
    for part in expected {
        let at = rest.find(part).unwrap_or_else(|| panic!("{part} comes where it should: {said}"));
        rest = &rest[at + part.len()..];
    }
}

#[test]
fn an_agent_with_the_python_sdk() {
    let mut command = Command::new(Environment::McpModern.python());
    command.arg(example("agent.py"));
    let said = said(command, "agent.log");
    for part in [
        "tools; exec: ",
        "meanwhile: stdout: 42\n",
        "exit code 1 and ['42', 'more']\n",
        "an error is told as one: True - not_found",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn a_stream_with_typescript() {
    let mut command = Command::new(node());
    command.arg(example("stream.mts"));
    assert_eq!(said(command, "stream.log"), "1\n2\n3\nexit code 4\nstopped\n");
}

#[test]
fn many_calls_on_a_websocket_with_typescript() {
    let mut command = Command::new(node());
    command.arg(example("socket.mts"));
    assert_eq!(said(command, "socket.log"), "14\n28\n42\ninterrupted, killed\n");
}
