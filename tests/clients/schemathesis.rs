//! schemathesis: whatever it makes of the description, the Worker answers as the description says, and never with a 5xx.

use std::{process::Command, time::Duration};

use test_support::{Stack, StackOptions, scratch_folder};

use crate::{
    environment::Environment,
    tools::{description, run},
};

/// Its own bound on time is shorter; this one is for a schemathesis that hangs.
const LIMIT: Duration = Duration::from_secs(280);

#[test]
fn schemathesis_finds_no_server_error_and_no_violation() {
    let stack = Stack::start(StackOptions::default());
    let folder = scratch_folder("schemathesis");
    let mut command = Command::new(Environment::Clients.python());
    command
        .args(["-m", "schemathesis.cli", "--config-file"])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/python/schemathesis.toml"))
        .arg("run")
        .arg(description())
        .args(["--url", stack.client().base()])
        .args(["--phases", "examples,coverage,fuzzing", "--max-examples", "25", "--max-time", "90"])
        // One worker: CPython 3.11 loses count of its recursion when two threads parse at once, and reports that as a failure.
        // A schema cannot say all that makes an argument sensible, such as base64 that decodes.
        .args(["--exclude-checks", "positive_data_acceptance"])
        .args(["--seed", "1", "--workers", "1", "--request-timeout", "100", "--no-color"])
        .current_dir(&folder)
        .env("TEST_KEY", &stack.key)
        .env("PYTHONUTF8", "1");
    let output = run(&mut command, LIMIT, &folder.join("schemathesis.log"));
    println!("{output}");
}
