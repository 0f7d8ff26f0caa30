//! Fifty sandboxes that run at once: none lost, none orphaned, and their memory comes back.

use std::time::Duration;

use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use serde_json::json;
use test_support::{ContainerOptions, ContainerStack, resident_bytes, within};

const MANY: usize = 50;

/// Starts that are asked for at once. Each is two containers, and one Docker Engine on two cores makes about two of them a second:
/// fifty starts at once would pass the deadline of a start.
const STARTS: usize = 4;

/// What workerd may keep for good of fifty sandboxes that came and went after the first few.
const ALLOWANCE: u64 = 96 << 20;

const LIMIT: Duration = Duration::from_secs(420);

/// Makes so many, uses all of them at once, and destroys them.
async fn round(stack: &ContainerStack, many: usize) {
    let mut sandboxes: Vec<_> = (0..many).map(|_| stack.unmade_sandbox()).collect();
    let starts = stream::iter(&sandboxes).for_each_concurrent(STARTS, |sandbox| sandbox.make(json!({})));
    within("all of them start", LIMIT, starts).await;
    assert_eq!(stack.running().len(), many, "all of them run, each in a container of its own");
    // An idle connection may be closed at the moment it is used.
    sandboxes.iter_mut().for_each(|sandbox| sandbox.client = stack.client());
    let uses = sandboxes.iter().map(|sandbox| async {
        let said = sandbox.sh("echo $SANDBOX_ID; echo \"$SANDBOX_ID\" > own; cat own").await;
        assert_eq!(said, format!("{0}\n{0}\n", sandbox.id));
        assert_eq!(sandbox.call("getSandbox", json!({})).await.ok()["generation"], 1);
    });
    within("all of them are used", LIMIT, join_all(uses)).await;
    let listed = stack.client().call("listSandboxes", &json!({"limit": 500})).await.ok();
    assert_eq!(listed["sandboxes"].as_array().unwrap().len(), many, "none is lost");
    sandboxes.iter_mut().for_each(|sandbox| sandbox.client = stack.client());
    let ends = stream::iter(&sandboxes).for_each_concurrent(STARTS, |sandbox| async {
        let answer = sandbox.call("destroySandbox", json!({})).await;
        assert_eq!(answer.ok()["status"], "destroyed");
    });
    within("all of them end", LIMIT, ends).await;
    assert_eq!(stack.containers(), Vec::<String>::new(), "none is orphaned");
    let listed = stack.client().call("listSandboxes", &json!({})).await.ok();
    assert_eq!(listed["sandboxes"], json!([]));
}

#[tokio::test]
async fn fifty_sandboxes_run_at_once_and_leave_nothing() {
    let stack = ContainerStack::start(ContainerOptions::default());
    // A few first, so that what workerd keeps for good is not counted as growth.
    round(&stack, 4).await;
    let workerd = stack.worker().workerd_pid();
    let before = resident_bytes(workerd).unwrap();
    round(&stack, MANY).await;
    let after = resident_bytes(workerd).unwrap();
    println!("resident memory of workerd: {before} bytes before, {after} after");
    assert!(after < before + ALLOWANCE, "workerd grew from {before} to {after} bytes");
}
