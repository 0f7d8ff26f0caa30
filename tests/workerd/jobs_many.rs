//! Five hundred jobs at once: all are carried out, and the memory of workerd stays bounded.

use std::time::Duration;

use futures_util::{StreamExt, stream};
use serde_json::{Value, json};
use test_support::{Client, Sampler, Sandbox, Stack, StackOptions, eventually};

const JOBS: usize = 500;
const SANDBOXES: usize = 8;

/// Callers at once.
const CALLERS: usize = 50;

/// Most bytes of resident memory that workerd may have more meanwhile.
const GROWTH: u64 = 512 << 20;

const LIMIT: Duration = Duration::from_secs(300);

async fn jobs_in(client: &Client, state: &str) -> Vec<Value> {
    let (mut jobs, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = client.get(&format!("/v1/jobs?state={state}&limit=500{cursor}")).await.ok();
        jobs.extend(page["jobs"].as_array().unwrap().clone());
        match page["nextCursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return jobs,
        }
    }
}

/// Asks for that many jobs at once, and waits until none is open.
async fn round(client: &Client, sandboxes: &[Sandbox], first: usize, count: usize) {
    let ask = |number: usize| async move {
        let sandbox = &sandboxes[number % sandboxes.len()];
        let command = format!("echo {number} >> runs; echo {number}");
        client.deferred("exec", &json!({ "sandboxId": sandbox.id, "command": command })).await.job_id()
    };
    let ids: Vec<String> = stream::iter(first..first + count).map(ask).buffer_unordered(CALLERS).collect().await;
    assert_eq!(ids.len(), count);
    let are_over = || async {
        for state in ["queued", "running"] {
            if !jobs_in(client, state).await.is_empty() {
                tokio::time::sleep(Duration::from_millis(500)).await;
                return None;
            }
        }
        Some(())
    };
    eventually("every job is over", LIMIT, are_over).await;
}

#[tokio::test]
async fn five_hundred_jobs_at_once_all_succeed_and_leave_memory_bounded() {
    let stack = Stack::start(StackOptions { busy_jobs: Some(600), ..StackOptions::default() });
    let mut sandboxes = Vec::new();
    for _ in 0..SANDBOXES {
        sandboxes.push(stack.sandbox_with(json!({ "keepAlive": true })).await);
    }
    let client = stack.client();
    // What is allocated once is allocated by then.
    round(&client, &sandboxes, JOBS, 20).await;
    let memory = Sampler::of(stack.worker().workerd_pid());
    round(&client, &sandboxes, 0, JOBS).await;
    let growth = memory.growth();
    println!("resident bytes of workerd more at most while {JOBS} jobs ran: {growth}");
    assert!(growth < GROWTH, "{growth}");

    for state in ["failed", "interrupted", "cancelled", "awaiting_approval", "rejected"] {
        let others = jobs_in(&client, state).await;
        assert!(others.is_empty(), "{} of them: {}", others.len(), others[0]);
    }
    let succeeded = jobs_in(&client, "succeeded").await;
    assert_eq!(succeeded.len(), JOBS + 20, "none is lost");
    assert!(succeeded.iter().all(|job| job["exitCode"] == 0));
    let mut runs = Vec::new();
    for sandbox in &sandboxes {
        runs.extend(sandbox.sh("cat runs").await.lines().map(|line| line.parse::<usize>().unwrap()));
    }
    runs.sort_unstable();
    assert_eq!(runs, (0..JOBS + 20).collect::<Vec<_>>(), "each ran once");
}
