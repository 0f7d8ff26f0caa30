//! The built Worker in real workerd with sandboxes in real containers, which workerd starts through Docker Engine.
//!
//! Run by `cargo xtask test`, which makes the images; `cargo xtask test --only container` runs this alone. Most tests share one
//! stack and take a sandbox each.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails there"
)]

mod cloning;
mod deaths;
mod expiring;
mod files;
mod hanging;
mod images;
mod isolation;
mod kills;
mod many;
mod processes;
mod same_everywhere;
mod sleeping;
mod starts;
mod transfers;
mod unknown_errors;
mod witness;
mod worker_kills;

use std::future::Future;

use serde_json::json;
use test_support::{Answer, STARTS, Sandbox};

/// What the command writes that starts a sandbox again.
async fn first_sh(sandbox: &Sandbox, command: &str) -> String {
    let output = sandbox.client.started("exec", &json!({ "sandboxId": sandbox.id, "command": command })).await;
    assert_eq!(output["exitCode"], 0, "{command}: {output}");
    output["stdout"].as_str().expect("stdout is text").to_owned()
}

/// The answer of a start that a test makes fail. An engine under load fails by itself now and then: then what the test prepared was
/// never reached.
async fn refused_start<F: Future<Output = Answer>>(start: impl Fn() -> F) -> Answer {
    for _ in 1..STARTS {
        let answer = start().await;
        if answer.json()["details"]["reason"] != "container_start_failed" {
            return answer;
        }
    }
    start().await
}
