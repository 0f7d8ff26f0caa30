//! Containers killed at random moments during many calls. Every command tells a witness outside of its container that it ran, so
//! that what its caller is told can be held against what happened.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;
use test_support::{
    Chance, ContainerOptions, ContainerStack, PATIENCE, Sandbox, eventually, kill_process, random_name, try_docker,
    within,
};

use crate::witness::Witness;

const SANDBOXES: usize = 4;
const CALLS: usize = 50;

/// Of one call: a start, the command's own time, and a start again of what was killed while it started.
const DEADLINE: Duration = Duration::from_secs(180);

/// Kills one container after the other until it is told to stop. Half of them are killed through Docker, half by the end of their
/// process alone.
async fn kill_at_random(stack: &ContainerStack, done: &AtomicBool) -> usize {
    let mut chance = Chance::new();
    let mut killed = 0;
    while !done.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(300 + chance.below(2000))).await;
        let running = stack.running();
        if running.is_empty() {
            continue;
        }
        let victim = &running[chance.below(running.len() as u64) as usize];
        // It may have ended by itself, in a start that failed.
        if chance.below(2) == 0 {
            killed += usize::from(try_docker(&["kill", victim]).is_some());
        } else if let Some(pid) = try_docker(&["inspect", "--format", "{{.State.Pid}}", victim]) {
            let pid: i32 = pid.parse().unwrap();
            if pid > 0 {
                kill_process(pid);
                killed += 1;
            }
        }
    }
    killed
}

/// One call after the other; returns how many ended in which way.
async fn calls(sandbox: &Sandbox, command: &str, witness: &Witness) -> HashMap<String, usize> {
    let mut outcomes = HashMap::new();
    for _ in 0..CALLS {
        let name = random_name("call");
        let arguments = json!({"command": command, "env": {"NAME": name}, "timeout": 60});
        let answer = within("an answer", DEADLINE, sandbox.call("exec", arguments)).await;
        let ran = witness.count(&name);
        let outcome = if answer.status == 200 {
            let told = answer.ok();
            assert_eq!((&told["exitCode"], &told["stdout"]), (&json!(0), &json!("seen\n")), "{told}");
            assert_eq!(ran, 1, "what is told to have run ran once: {told}");
            "ran".to_owned()
        } else {
            let problem = answer.any_problem();
            match problem.code.as_str() {
                "sandbox_unavailable" => {
                    assert!(problem.retryable, "{}", answer.text());
                    assert_eq!(ran, 0, "what may be tried again did not run: {}", answer.text());
                }
                "interrupted" | "outcome_unknown" => {
                    assert!(!problem.retryable, "{}", answer.text());
                    assert!(ran <= 1, "it ran {ran} times: {}", answer.text());
                }
                _ => panic!("no outcome of a killed container: {}", answer.text()),
            }
            problem.code
        };
        *outcomes.entry(outcome).or_default() += 1;
    }
    outcomes
}

#[tokio::test]
async fn containers_killed_during_two_hundred_calls_give_two_hundred_true_outcomes() {
    let stack = ContainerStack::start(ContainerOptions::default());
    let sandboxes = join_all((0..SANDBOXES).map(|_| stack.sandbox())).await;
    let witness = Witness::default();
    let command = format!("{}; sleep 0.2; echo $line", witness.listen(&sandboxes[0]).await);
    let done = AtomicBool::new(false);
    let all = async {
        let outcomes = join_all(sandboxes.iter().map(|sandbox| calls(sandbox, &command, &witness))).await;
        done.store(true, Ordering::Relaxed);
        outcomes
    };
    let (outcomes, killed) = tokio::join!(all, kill_at_random(&stack, &done));
    println!("{killed} kills; {outcomes:?}");
    assert!(killed >= 5, "{killed} containers were killed");
    assert_eq!(outcomes.iter().flat_map(HashMap::values).sum::<usize>(), SANDBOXES * CALLS);
    for sandbox in &sandboxes {
        // The last kill may be news to the one call that finds it.
        let well = || async {
            let answer = sandbox.call("exec", json!({"command": "echo well"})).await;
            (answer.status == 200).then(|| answer.ok()["stdout"].clone())
        };
        assert_eq!(eventually("it works again", PATIENCE, well).await, "well\n");
        sandbox.call("destroySandbox", json!({})).await.ok();
    }
    assert_eq!(stack.containers(), Vec::<String>::new(), "none is orphaned");
}
