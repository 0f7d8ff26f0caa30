//! Expiry, sandboxes that a command made, and starts that keep failing.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use test_support::{
    Fault, Operation, PATIENCE, Sandbox, Stack, StackOptions, eventually, find_by_argument, random_name,
};

async fn is_listed(sandbox: &Sandbox) -> bool {
    let listed = sandbox.client.call("listSandboxes", &json!({"limit": 500})).await.ok();
    listed["sandboxes"].as_array().unwrap().iter().any(|one| one["sandboxId"] == sandbox.id)
}

async fn goes(sandbox: &Sandbox) {
    eventually("it is gone", PATIENCE, || async { (!is_listed(sandbox).await).then_some(()) }).await;
}

fn milliseconds(time: &Value) -> i64 {
    cloudflare_ops::platform::parse_rfc3339(time.as_str().unwrap()).unwrap()
}

/// Waits until that moment, in milliseconds since 1970, is over.
async fn pass(moment: i64) {
    let now = i64::try_from(std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis()).unwrap();
    tokio::time::sleep(Duration::from_millis(u64::try_from(moment - now).unwrap_or(0))).await;
}

#[tokio::test]
async fn a_sandbox_goes_when_its_time_is_over_though_it_is_used() {
    let stack = Stack::shared();
    let sandbox = stack.sandbox_with(json!({"expiresAfter": 45, "keepAlive": true})).await;
    let marker = random_name("expires");
    sandbox.sh(&format!("(exec -a {marker} sleep 300) >&- 2>&- & echo")).await;
    goes(&sandbox).await;
    assert!(find_by_argument(&marker).is_empty());
    let starts = sandbox.starts();
    for (tool, arguments) in
        [("exec", json!({"command": "true"})), ("wakeSandbox", json!({})), ("getSandbox", json!({}))]
    {
        sandbox.call(tool, arguments).await.problem(404, "not_found");
    }
    assert_eq!(sandbox.starts(), starts, "nothing brings it back");
    let made = sandbox.client.call("createSandbox", &json!({"id": sandbox.id})).await.ok();
    assert_eq!((&made["created"], made.get("expiresAt")), (&json!(true), None));
    assert_eq!(sandbox.sh("ls -A").await, "");
}

#[tokio::test]
async fn an_expiry_moves_by_an_update_and_by_nothing_else() {
    let stack = Stack::shared();
    // Seven calls come before it is over.
    let sandbox = stack.sandbox_with(json!({"expiresAfter": 60})).await;
    let at = |answer: &Value| milliseconds(&answer["expiresAt"]);
    let first = sandbox.call("getSandbox", json!({})).await.ok();
    sandbox.sh("true").await;
    sandbox.call("wakeSandbox", json!({})).await.ok();
    sandbox.client.call("listSandboxes", &json!({})).await.ok();
    let again = sandbox.client.call("createSandbox", &json!({"id": sandbox.id, "expiresAfter": 60})).await.ok();
    assert_eq!(
        (again["created"].as_bool(), at(&again)),
        (Some(false), at(&first)),
        "a repeated creation does not renew it"
    );
    assert_eq!(at(&sandbox.call("getSandbox", json!({})).await.ok()), at(&first));
    let later = sandbox.call("updateSandbox", json!({"expiresAfter": 500})).await.ok();
    assert!(at(&later) > at(&first) + 300_000, "{later}");
    let never = sandbox.call("updateSandbox", json!({"expiresAfter": 0})).await.ok();
    assert_eq!(never.get("expiresAt"), None);
    pass(at(&first) + 1000).await;
    assert!(is_listed(&sandbox).await, "its first time is over and no longer holds");
    sandbox.call("updateSandbox", json!({"expiresAfter": 1})).await.ok();
    goes(&sandbox).await;
}

#[tokio::test]
async fn renewals_at_the_moment_of_expiry_are_true_whichever_comes_first() {
    let stack = Stack::shared();
    let sandboxes = join_all((0..8).map(|_| stack.sandbox_with(json!({"expiresAfter": 60})))).await;
    let expires = join_all(sandboxes.iter().map(|one| one.call("getSandbox", json!({})))).await;
    let renewals = sandboxes.iter().zip(&expires).enumerate().map(|(number, (sandbox, told))| async move {
        let due = milliseconds(&told.ok()["expiresAt"]);
        pass(due - 40 + 10 * i64::try_from(number).unwrap()).await;
        sandbox.call("updateSandbox", json!({"expiresAfter": 600})).await
    });
    for (sandbox, renewal) in sandboxes.iter().zip(join_all(renewals).await) {
        if renewal.status == 200 {
            assert_eq!(sandbox.sh("echo alive").await, "alive\n");
            assert!(is_listed(sandbox).await);
        } else {
            renewal.problem(404, "not_found");
            goes(sandbox).await;
        }
    }
}

#[tokio::test]
async fn a_sandbox_whose_time_was_over_while_the_worker_was_down_goes_without_being_asked_for() {
    let stack = Stack::start(StackOptions::default());
    let mut sandbox = stack.sandbox_with(json!({"expiresAfter": 45})).await;
    let marker = random_name("down");
    sandbox.sh(&format!("(exec -a {marker} sleep 300) >&- 2>&- & echo")).await;
    let due = milliseconds(&sandbox.call("getSandbox", json!({})).await.ok()["expiresAt"]);
    stack.worker().kill();
    pass(due + 1000).await;
    stack.worker().restart();
    sandbox.client = stack.client();
    eventually("its processes end", PATIENCE, || async { find_by_argument(&marker).is_empty().then_some(()) }).await;
    goes(&sandbox).await;
}

#[tokio::test]
async fn what_exec_made_expires_unless_it_is_adopted() {
    let stack = Stack::shared();
    let made = stack.client().call("exec", &json!({"command": "true"})).await.ok();
    let sandbox = stack.adopt(made["sandboxId"].as_str().unwrap());
    let told = sandbox.call("getSandbox", json!({})).await.ok();
    let idle = milliseconds(&told["expiresAt"]) - milliseconds(&told["lastUsedAt"]);
    assert_eq!(idle, 300_000, "{told}");
    let kept = sandbox.call("updateSandbox", json!({"sleepAfter": 1})).await.ok();
    assert_eq!(kept.get("expiresAt"), None, "{kept}");
    let asleep = || async { (sandbox.call("getSandbox", json!({})).await.ok()["state"] == "sleeping").then_some(()) };
    eventually("it sleeps like any other", PATIENCE, asleep).await;
}

#[tokio::test]
async fn starts_that_keep_failing_say_what_to_do_and_the_next_good_one_is_a_start() {
    let stack = Stack::shared();
    let sandbox = stack.sandbox().await;
    sandbox.call("stopSandbox", json!({})).await.ok();
    let refusal = json!({"code": "unavailable", "message": "this machine is broken"});
    stack.proxy.inject(&sandbox.id, Operation::Start, Fault::Answers(503, refusal));
    let mut details = Vec::new();
    for _ in 0..3 {
        let problem = sandbox.call("wakeSandbox", json!({})).await.problem(503, "sandbox_unavailable");
        details.push(problem.detail);
    }
    assert!(!details[0].contains("another id"), "{details:?}");
    assert!(details[2].contains("3 times in a row") && details[2].contains("another id"), "{details:?}");
    let told = sandbox.call("getSandbox", json!({})).await.ok();
    assert_eq!((&told["status"], &told["state"]), (&json!("error"), &json!("error")));
    stack.proxy.heal(&sandbox.id);
    let woken = sandbox.call("wakeSandbox", json!({})).await.ok();
    assert_eq!((&woken["state"], &woken["startReason"]), (&json!("running"), &json!("restarted")));
}

#[tokio::test]
async fn a_host_that_does_not_answer_keeps_an_expired_sandbox_listed_until_it_does() {
    let stack = Stack::shared();
    let sandbox = stack.unmade_sandbox();
    stack.proxy.inject_times(&sandbox.id, Operation::Destroy, Fault::ClosesAtOnce, 1);
    sandbox.client.call("createSandbox", &json!({"id": sandbox.id, "expiresAfter": 40})).await.ok();
    goes(&sandbox).await;
    assert!(sandbox.requests(Operation::Destroy) >= 2, "it was tried again");
}
