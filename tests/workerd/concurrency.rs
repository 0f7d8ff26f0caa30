//! Many calls at once: one start a sandbox, no mixing of outputs, and no orphans.

use futures_util::future::join_all;
use serde_json::{Value, json};
use test_support::Stack;
use tokio::sync::Mutex;

/// Held by whoever starts many sandboxes at once: the host gives each start twenty seconds.
pub static MANY_STARTS: Mutex<()> = Mutex::const_new(());

#[tokio::test]
async fn fifty_first_calls_on_one_id_make_one_sandbox() {
    let sandbox = Stack::shared().unmade_sandbox();
    let arguments = json!({"id": sandbox.id});
    // Nobody asks again for its one start.
    let _alone = MANY_STARTS.lock().await;
    let answers = join_all((0..50).map(|_| sandbox.client.call("createSandbox", &arguments))).await;
    let outputs: Vec<Value> = answers.iter().map(|answer| answer.ok()).collect();
    assert_eq!(outputs.iter().filter(|output| output["created"] == true).count(), 1);
    let generations: std::collections::BTreeSet<u64> =
        outputs.iter().map(|output| output["generation"].as_u64().unwrap()).collect();
    assert_eq!(generations.len(), 1, "{generations:?}");
    let answers = join_all((0..50).map(|n| sandbox.exec(json!({"command": format!("echo {n}")})))).await;
    for (n, output) in answers.iter().enumerate() {
        assert_eq!(output["stdout"], format!("{n}\n"));
    }
    assert_eq!(sandbox.starts(), 1);
}

#[tokio::test]
async fn fifty_first_calls_without_an_id_make_fifty_sandboxes() {
    let stack = Stack::shared();
    let client = stack.client();
    let arguments = json!({"command": "echo $SANDBOX_ID", "timeout": 60});
    let _alone = MANY_STARTS.lock().await;
    let outputs = join_all((0..50).map(|_| client.started("exec", &arguments))).await;
    let mut sandboxes = Vec::new();
    for output in &outputs {
        let id = output["sandboxId"].as_str().unwrap();
        assert_eq!(output["stdout"], format!("{id}\n"), "each runs in its own");
        sandboxes.push(stack.adopt(id));
    }
    let ids: std::collections::BTreeSet<&str> = sandboxes.iter().map(|sandbox| sandbox.id.as_str()).collect();
    assert_eq!(ids.len(), 50);
    for sandbox in &sandboxes {
        assert_eq!(sandbox.starts(), 1, "{}", sandbox.id);
    }
    let gone = join_all(sandboxes.iter().map(|sandbox| sandbox.call("destroySandbox", json!({})))).await;
    assert!(gone.iter().all(|answer| answer.ok()["status"] == "destroyed"));
}

#[tokio::test]
async fn fifty_named_sandboxes_start_at_once() {
    let stack = Stack::shared();
    let sandboxes: Vec<_> = (0..50).map(|_| stack.unmade_sandbox()).collect();
    let _alone = MANY_STARTS.lock().await;
    let calls = sandboxes.iter().map(|sandbox| async {
        sandbox.make(json!({})).await;
        sandbox.sh("echo $SANDBOX_ID").await
    });
    for (sandbox, output) in sandboxes.iter().zip(join_all(calls).await) {
        assert_eq!(output, format!("{}\n", sandbox.id));
        assert_eq!(sandbox.starts(), 1);
    }
    let gone = join_all(sandboxes.iter().map(|sandbox| sandbox.call("destroySandbox", json!({})))).await;
    assert!(gone.iter().all(|answer| answer.ok()["status"] == "destroyed"));
}

#[tokio::test]
async fn twenty_commands_at_once_do_not_mix() {
    let sandbox = Stack::shared().sandbox().await;
    let calls = (0..20).map(|n| {
        let arguments =
            json!({"command": "for i in 1 2 3; do echo $ID; sleep .05; done", "env": {"ID": n.to_string()}});
        let sandbox = &sandbox;
        async move {
            if n % 2 == 0 {
                return sandbox.exec(arguments).await["stdout"].as_str().unwrap().to_owned();
            }
            String::from_utf8(sandbox.exec_streamed(arguments).await.stdout).unwrap()
        }
    });
    for (n, output) in join_all(calls).await.into_iter().enumerate() {
        assert_eq!(output, format!("{n}\n{n}\n{n}\n"));
    }
}

#[tokio::test]
async fn more_commands_than_a_sandbox_takes_are_refused_and_the_rest_run() {
    let sandbox = Stack::shared().sandbox().await;
    let calls = (0..100).map(|_| sandbox.call("exec", json!({"command": "sleep 1; echo ok", "timeout": 60})));
    let (mut ran, mut refused) = (0, 0);
    for answer in join_all(calls).await {
        if answer.status == 200 {
            assert_eq!(answer.ok()["stdout"], "ok\n");
            ran += 1;
        } else {
            let problem = answer.any_problem();
            assert!([429, 503].contains(&answer.status), "{}", answer.text());
            assert!(problem.retryable && problem.headers.contains_key("retry-after"), "{problem:?}");
            refused += 1;
        }
    }
    assert!(ran >= 50, "{ran} ran, {refused} were refused");
    assert_eq!(sandbox.sh("echo well").await, "well\n");
}
