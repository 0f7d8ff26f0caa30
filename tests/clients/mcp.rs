//! The SDKs of the Model Context Protocol, of both eras, against the real Worker.

use std::{path::Path, process::Command, time::Duration};

use test_support::{Stack, random_name, scratch_folder};

use crate::{environment::Environment, tools::run};

const LIMIT: Duration = Duration::from_secs(300);

/// What both say.
const SAID: &str = "lists exec: True\nexit code: 3 error: False\nprogress: True\nlarge: 0 1048576 True\ntext has the output: True\n\
    missing: True not_found\ndry run: False True\n";

/// The same of resources, in between.
const READ: &str = "templates: ['job://{jobId}/logs', 'sandbox://{sandboxId}/{path}']\nlists the workspace: True\n\
    reads: read me text/markdown\n";

async fn said(environment: Environment, script: &str) -> String {
    let stack = Stack::shared();
    let sandbox = random_name("mcp");
    let client = stack.client();
    client.call("createSandbox", &serde_json::json!({ "id": sandbox })).await.ok();
    // A key whose commands wait.
    let rules = serde_json::json!({ "role": "operator", "approval": { "tools": ["exec"] } });
    let bound = client.call("createKey", &serde_json::json!({ "name": sandbox, "permissions": rules })).await.ok();
    let folder = scratch_folder("mcp-client");
    let mut command = Command::new(environment.python());
    command.arg(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/python")).join(script));
    command.env("TEST_URL", client.base()).env("TEST_KEY", &stack.key).env("TEST_SANDBOX", &sandbox);
    command.env("TEST_BOUND_KEY", bound["key"].as_str().unwrap());
    let said = run(&mut command, LIMIT, &folder.join("call.log"));
    // The connection of before may have been closed meanwhile.
    stack.client().call("destroySandbox", &serde_json::json!({ "sandboxId": sandbox })).await.ok();
    said
}

#[tokio::test]
async fn the_sdk_of_the_stateless_revision_lists_calls_cancels_and_reads() {
    let said = said(Environment::McpModern, "mcp_modern.py").await;
    let rest = "not there: -32602\nasked: 1 answered: approved\n";
    assert_eq!(said, format!("speaks 2026-07-28\n{SAID}after cancel: gone\n{READ}{rest}"));
}

#[tokio::test]
async fn the_sdk_of_the_earlier_revisions_lists_calls_cancels_and_reads() {
    let said = said(Environment::McpLegacy, "mcp_legacy.py").await;
    let cancelled = "after cancel: gone answered: False\n";
    assert_eq!(said, format!("speaks 2025-11-25\n{SAID}{cancelled}{READ}not there: -32002\n"));
}
