//! Sleep and wake: the container ends and starts, and what it held is gone, which is said.

use std::time::Duration;

use serde_json::json;
use test_support::{ContainerOptions, ContainerStack, PATIENCE, eventually, random_name, sandbox_daemon_of};

use crate::first_sh;

/// Alarms are set and taken away a little before or after what they are for is told.
async fn alarms(stack: &ContainerStack, what: &str, count: usize) {
    eventually(what, PATIENCE, || async { (stack.worker().sandbox_alarms() == count).then_some(()) }).await;
}

#[tokio::test]
async fn a_stopped_sandbox_has_no_container_and_wakes_in_a_new_one() {
    let stack = ContainerStack::start(ContainerOptions::default());
    let sandbox = stack.sandbox_with(json!({"env": {"GIVEN": "yes"}})).await;
    sandbox.sh("echo gone > file").await;
    let marker = random_name("ended");
    sandbox.sh(&format!("(exec -a {marker} sleep 300) >&- 2>&- & echo")).await;
    let stopped = sandbox.call("stopSandbox", json!({})).await.ok();
    assert_eq!((&stopped["status"], &stopped["filesKept"]), (&json!("stopped"), &json!(false)), "{stopped}");
    assert!(stack.running().is_empty(), "told only once it is so");
    assert!(sandbox_daemon_of(&marker).is_none());
    let told = sandbox.call("getSandbox", json!({})).await.ok();
    assert_eq!((&told["state"], &told["generation"]), (&json!("sleeping"), &json!(1)), "asking starts nothing: {told}");
    assert!(stack.running().is_empty());
    let woken = sandbox.client.started("wakeSandbox", &json!({"sandboxId": sandbox.id})).await;
    assert_eq!(woken["generation"], 2, "{woken}");
    assert_eq!(sandbox.sh("echo $GIVEN; ls -A").await, "yes\n");
}

#[tokio::test]
async fn an_idle_sandbox_goes_to_sleep_and_its_next_use_wakes_it() {
    let stack = ContainerStack::start(ContainerOptions::default());
    let sandbox = stack.sandbox_with(json!({"sleepAfter": 10})).await;
    let asleep = || async { stack.running().is_empty().then_some(()) };
    eventually("it sleeps", Duration::from_secs(90), asleep).await;
    let mut sandbox = sandbox;
    sandbox.client = stack.client();
    assert_eq!(first_sh(&sandbox, "echo back").await, "back\n");
    assert_eq!(sandbox.call("getSandbox", json!({})).await.ok()["generation"], 2);
}

#[tokio::test]
async fn a_command_right_after_a_stop_runs_in_a_new_container() {
    let sandbox = ContainerStack::shared().sandbox().await;
    for round in 1..=3 {
        let stopped = sandbox.call("stopSandbox", json!({})).await.ok();
        assert_eq!(stopped["state"], "sleeping", "{stopped}");
        assert_eq!(first_sh(&sandbox, "ls -A; echo ok").await, "ok\n");
        assert_eq!(sandbox.call("getSandbox", json!({})).await.ok()["generation"], round + 1);
    }
    let (stopped, ran) = tokio::join!(
        sandbox.call("stopSandbox", json!({})),
        sandbox.call("exec", json!({"command": "echo ok", "timeout": 60}))
    );
    stopped.ok();
    if ran.status == 200 {
        assert_eq!(ran.ok()["stdout"], "ok\n");
    } else {
        let code = ran.any_problem().code;
        assert!(["interrupted", "outcome_unknown"].contains(&code.as_str()), "{code}");
    }
    assert_eq!(first_sh(&sandbox, "echo well").await, "well\n");
}

#[tokio::test]
async fn kept_alive_it_stays_also_without_its_object_and_sleeps_once_it_no_longer_is() {
    let stack = ContainerStack::start(ContainerOptions::default());
    let mut sandbox = stack.sandbox_with(json!({"sleepAfter": 3, "keepAlive": true})).await;
    let container = stack.container_of(&sandbox);
    // Longer than its own idle time and than the one after which an object loses its memory.
    tokio::time::sleep(Duration::from_secs(16)).await;
    sandbox.client = stack.client();
    assert_eq!(stack.container_of(&sandbox), container);
    let told = sandbox.call("updateSandbox", json!({"keepAlive": false})).await.ok();
    assert_eq!(told["generation"], 1, "{told}");
    let asleep = || async { stack.running().is_empty().then_some(()) };
    eventually("it sleeps", PATIENCE, asleep).await;
    let stopped = || async { (sandbox.call("getSandbox", json!({})).await.ok()["state"] == "sleeping").then_some(()) };
    eventually("it is told so", PATIENCE, stopped).await;
    alarms(&stack, "what sleeps has no alarm", 0).await;
    // It must not sleep again before it is looked at.
    sandbox.call("updateSandbox", json!({"sleepAfter": 900})).await.ok();
    assert_eq!(first_sh(&sandbox, "echo back").await, "back\n");
    alarms(&stack, "what runs has one", 1).await;
    sandbox.call("destroySandbox", json!({})).await.ok();
    alarms(&stack, "what is gone has none", 0).await;
}

#[tokio::test]
async fn whether_it_may_reach_the_internet_is_handed_to_the_platform() {
    let stack = ContainerStack::start(ContainerOptions::default());
    // The stand-in for the sidecar takes the way out away when it is told so.
    let ways_out = "awk '$2 == \"00000000\"' /proc/net/route | wc -l";
    let open = stack.sandbox().await;
    assert_eq!(open.sh(ways_out).await, "1\n");
    let closed = stack.sandbox_with(json!({"internet": false})).await;
    assert_eq!(closed.sh(ways_out).await, "0\n");
}
