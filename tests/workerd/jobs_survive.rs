//! Jobs whose Worker is killed while their command runs: the process is found again by its id, and none is begun twice.

use std::path::PathBuf;
use std::time::Duration;

use reqwest::Method;
use serde_json::json;
use test_support::{Fault, Operation, PATIENCE, Sandbox, Stack, StackOptions, eventually, kill_process};

use crate::jobs::{FAMILY, family_is_gone, family_lives};

/// Kills the Worker and waits until another is there.
pub async fn kill(stack: &Stack) {
    let killed = stack.worker().workerd_pid();
    kill_process(killed);
    eventually("workerd is back", PATIENCE, || async { stack.worker().is_back(killed).then_some(()) }).await;
    let answers = || async {
        let client = stack.client();
        client.try_send(client.request(Method::GET, "/health")).await.map(drop)
    };
    eventually("it answers", PATIENCE, answers).await;
}

/// A file that commands append a line to, as the host sees it.
fn counter(stack: &Stack, sandbox: &Sandbox) -> PathBuf {
    stack.host().folder().join(format!("default.{}", sandbox.id)).join("workspace/runs")
}

fn runs(file: &PathBuf) -> usize {
    std::fs::read_to_string(file).map_or(0, |text| text.lines().count())
}

async fn begun(file: &PathBuf) {
    eventually("the command began", PATIENCE, || async { (runs(file) > 0).then_some(()) }).await;
}

async fn stack_with_sandbox() -> (Stack, Sandbox) {
    let stack = Stack::start(StackOptions::default());
    let sandbox = stack.sandbox_with(json!({ "keepAlive": true })).await;
    (stack, sandbox)
}

#[tokio::test]
async fn a_command_goes_on_through_kills_of_the_worker_and_runs_once() {
    let (stack, sandbox) = stack_with_sandbox().await;
    let command = "echo x >> runs; for i in $(seq 1 80); do echo $i; sleep 0.5; done; exit 7";
    let id = stack
        .client()
        .deferred("exec", &json!({ "sandboxId": sandbox.id, "command": command, "timeout": 300 }))
        .await
        .job_id();
    let file = counter(&stack, &sandbox);
    begun(&file).await;
    for _ in 0..3 {
        kill(&stack).await;
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
    let told = stack.client().ended(&id).await;
    assert_eq!((&told["state"], &told["exitCode"], &told["attempts"]), (&json!("succeeded"), &json!(7), &json!(1)));
    let expected: String = (1..=80).map(|number| format!("{number}\n")).collect();
    assert_eq!((told["output"]["stdout"].as_str(), runs(&file)), (Some(expected.as_str()), 1), "{told}");
    // Its logs have no gap and no repeat either.
    let log = stack.client().get(&format!("/v1/jobs/{id}/logs")).await.ok();
    let mut written = String::new();
    for chunk in log["chunks"].as_array().unwrap() {
        assert_eq!(chunk["offset"], written.len(), "{log}");
        written.push_str(chunk["data"].as_str().unwrap());
    }
    assert_eq!((written.as_str(), &log["ended"]), (expected.as_str(), &json!(true)));
}

#[tokio::test]
async fn a_command_that_ended_while_the_worker_was_away_tells_how() {
    let (stack, sandbox) = stack_with_sandbox().await;
    let command = "echo x >> runs; sleep 1; echo done";
    let id = stack.client().deferred("exec", &json!({ "sandboxId": sandbox.id, "command": command })).await.job_id();
    let file = counter(&stack, &sandbox);
    begun(&file).await;
    kill(&stack).await;
    let told = stack.client().ended(&id).await;
    assert_eq!((&told["state"], &told["output"]["stdout"]), (&json!("succeeded"), &json!("done\n")), "{told}");
    assert_eq!(runs(&file), 1);
}

#[tokio::test]
async fn a_sandbox_that_was_replaced_meanwhile_makes_the_job_interrupted() {
    let (stack, sandbox) = stack_with_sandbox().await;
    let command = "echo x >> runs; sleep 200";
    let id = stack
        .client()
        .deferred("exec", &json!({ "sandboxId": sandbox.id, "command": command, "timeout": 300 }))
        .await
        .job_id();
    let file = counter(&stack, &sandbox);
    begun(&file).await;
    kill(&stack).await;
    let root = stack.client();
    root.call("stopSandbox", &json!({ "sandboxId": sandbox.id })).await.ok();
    root.call("wakeSandbox", &json!({ "sandboxId": sandbox.id })).await.ok();
    let told = stack.client().ended(&id).await;
    assert_eq!(told["state"], "interrupted", "{told}");
    assert_eq!(runs(&file), 1, "it is not begun again");
    // Unless somebody asks for it who knows.
    root.call("retryJob", &json!({ "jobId": id })).await.problem(409, "conflict");
    root.call("retryJob", &json!({ "jobId": id, "althoughItMayHaveActed": true })).await.ok();
    let again = || async { (runs(&file) == 2).then_some(()) };
    eventually("the command began again", PATIENCE, again).await;
    root.call("cancelJob", &json!({ "jobId": id })).await.ok();
    assert_eq!(stack.client().ended(&id).await["state"], "cancelled");
}

/// Whose command is on its way to the sandbox, and arrives long after the Worker that sent it is gone. So do all that are sent
/// until the proxy is healed: one that is not answered within seconds is sent again.
async fn late_command(stack: &Stack, sandbox: &Sandbox) -> String {
    // Until another Worker is there and has looked for it.
    stack.proxy.inject(&sandbox.id, Operation::ExecStart, Fault::Delays(Duration::from_secs(60)));
    let arguments = json!({ "sandboxId": sandbox.id, "command": "echo x >> runs" });
    let id = stack.client().deferred("exec", &arguments).await.job_id();
    let is_sent = || async {
        let told = stack.client().get(&format!("/v1/jobs/{id}/status")).await.ok();
        let is_on_its_way = stack.proxy.delays(&sandbox.id) > 0;
        (is_on_its_way && told["state"] == "running").then_some(())
    };
    eventually("the attempt has begun, and its command is on its way", PATIENCE, is_sent).await;
    kill(stack).await;
    id
}

#[tokio::test]
async fn a_command_that_never_reached_its_sandbox_begins_once_however_late_the_first_request_arrives() {
    let (stack, sandbox) = stack_with_sandbox().await;
    let id = late_command(&stack, &sandbox).await;
    stack.proxy.heal(&sandbox.id);
    let told = stack.client().ended(&id).await;
    assert_eq!((&told["state"], &told["attempts"]), (&json!("succeeded"), &json!(1)), "{told}");
    let arrived = || async { (stack.proxy.delays(&sandbox.id) == 0).then_some(()) };
    eventually("the first request has arrived too", PATIENCE, arrived).await;
    assert!(sandbox.requests(Operation::ExecStart) >= 2, "it was sent again");
    assert_eq!(sandbox.sh("cat runs").await, "x\n");
}

#[tokio::test]
async fn a_command_that_never_reached_its_sandbox_and_that_nobody_wants_is_cancelled() {
    let (stack, sandbox) = stack_with_sandbox().await;
    let id = late_command(&stack, &sandbox).await;
    stack.client().call("cancelJob", &json!({ "jobId": id })).await.ok();
    let told = stack.client().ended(&id).await;
    assert_eq!(
        (&told["state"], &told["error"]["details"]["reason"]),
        (&json!("cancelled"), &json!("cancelled")),
        "{told}"
    );
    stack.proxy.heal(&sandbox.id);
    let arrived = || async { (stack.proxy.delays(&sandbox.id) == 0).then_some(()) };
    eventually("the request has arrived all the same", PATIENCE, arrived).await;
    assert_eq!(sandbox.sh("ls").await, "");
}

#[tokio::test]
async fn a_sandbox_that_says_nothing_for_a_while_takes_no_command_with_it() {
    let (stack, sandbox) = stack_with_sandbox().await;
    let file = counter(&stack, &sandbox);
    // The first answer stops in the middle, and those after it do not come: for longer than one attempt asks.
    stack.proxy.inject_times(&sandbox.id, Operation::ExecStart, Fault::ClosesAfterFirstOutput, 1);
    stack.proxy.inject_times(&sandbox.id, Operation::Exec, Fault::NeverAnswers, 4);
    let command = "echo x >> runs; echo one; sleep 25; echo two; exit 3";
    let arguments = json!({ "sandboxId": sandbox.id, "command": command, "timeout": 300 });
    let told = stack.client().ended(&stack.client().deferred("exec", &arguments).await.job_id()).await;
    assert_eq!((&told["state"], &told["exitCode"], &told["attempts"]), (&json!("succeeded"), &json!(3), &json!(1)));
    assert_eq!((&told["output"]["stdout"], runs(&file)), (&json!("one\ntwo\n"), 1), "{told}");
}

#[tokio::test]
async fn a_job_is_cancelled_although_the_worker_that_began_it_is_gone() {
    let (stack, sandbox) = stack_with_sandbox().await;
    let id = stack
        .client()
        .deferred("exec", &json!({ "sandboxId": sandbox.id, "command": FAMILY, "timeout": 300 }))
        .await
        .job_id();
    family_lives(&sandbox).await;
    kill(&stack).await;
    let root = stack.client();
    root.call("cancelJob", &json!({ "jobId": id })).await.ok();
    let told = stack.client().ended(&id).await;
    assert_eq!(told["state"], "cancelled", "{told}");
    family_is_gone(&stack.adopt(&sandbox.id)).await;
}

#[tokio::test]
async fn a_command_that_outlasts_its_alarm_is_handed_to_the_next_with_its_whole_log_and_one_end() {
    const LINES: usize = 250;
    let stack = Stack::start(StackOptions { job_alarm_seconds: Some(7), ..StackOptions::default() });
    let sandbox = stack.sandbox_with(json!({ "keepAlive": true })).await;
    let root = stack.client();
    let command =
        format!("echo x >> runs; for i in $(seq 1 {LINES}); do echo out $i; echo err $i >&2; sleep 0.2; done; exit 7");
    let id =
        root.deferred("exec", &json!({ "sandboxId": sandbox.id, "command": command, "timeout": 300 })).await.job_id();
    let follow = json!({ "jobId": id, "follow": true, "timeout": 300 });
    let mut followed = root.stream("getJobLogs", &follow).await;
    let mut heard = [String::new(), String::new()];
    while let Some(event) = followed.next().await {
        if ["stdout", "stderr"].contains(&event.name.as_str()) {
            let chunk: serde_json::Value = serde_json::from_str(&event.data).unwrap();
            heard[usize::from(event.name == "stderr")].push_str(chunk["data"].as_str().unwrap());
        }
    }
    let told = root.ended(&id).await;
    assert_eq!((&told["state"], &told["exitCode"], &told["attempts"]), (&json!("succeeded"), &json!(7), &json!(1)));
    assert_eq!(runs(&counter(&stack, &sandbox)), 1);
    // It was begun once, and its process was asked for by each alarm after the first.
    let seen = stack.proxy.seen(&sandbox.id);
    let path = format!("/control/v1/execs/{id}");
    let resumed = seen.iter().filter(|seen| seen.method == "GET" && seen.rest == path).count();
    assert!(resumed >= 3, "{resumed}: {seen:?}");
    assert_eq!(sandbox.requests(Operation::ExecStart), 1);
    // Both channels whole and in order, however they are read.
    let expected = |word: &str| (1..=LINES).map(|number| format!("{word} {number}\n")).collect::<String>();
    assert_eq!(heard, [expected("out"), expected("err")]);
    assert_eq!(
        (&told["output"]["stdout"], &told["output"]["stderr"]),
        (&json!(expected("out")), &json!(expected("err")))
    );
    let log = root.get(&format!("/v1/jobs/{id}/logs")).await.ok();
    let (mut at, mut written) = (0, [String::new(), String::new()]);
    for chunk in log["chunks"].as_array().unwrap() {
        let data = chunk["data"].as_str().unwrap();
        assert_eq!(chunk["offset"], at, "{log}");
        at += data.len();
        written[usize::from(chunk["channel"] == "stderr")].push_str(data);
    }
    assert_eq!((written, &log["ended"]), ([expected("out"), expected("err")], &json!(true)));
    // One end: in the books, and for whoever is told of it.
    let is_recorded = || async {
        let calls = root.call("getAuditLog", &json!({ "requestId": id })).await.ok()["calls"].clone();
        (calls[0]["result"] == "succeeded").then_some(calls)
    };
    let calls = eventually("the outcome is in the books", PATIENCE, is_recorded).await;
    assert_eq!((calls.as_array().unwrap().len(), &calls[0]["exitCode"]), (1, &json!(7)), "{calls}");
}

#[tokio::test]
async fn a_pipeline_and_a_cancelled_command_outlast_their_alarms_too() {
    let stack = Stack::start(StackOptions { job_alarm_seconds: Some(5), ..StackOptions::default() });
    let sandbox = stack.sandbox_with(json!({ "keepAlive": true })).await;
    let root = stack.client();
    let step = |name: &str, command: &str| {
        let arguments = json!({ "sandboxId": sandbox.id, "command": command, "timeout": 300 });
        json!({ "name": name, "tool": "exec", "arguments": arguments })
    };
    let long = "echo x >> runs; for i in $(seq 1 60); do echo $i; sleep 0.2; done";
    let steps = json!([step("long", long), step("short", "echo x >> runs; echo short")]);
    let id = root.deferred("runPipeline", &json!({ "steps": steps })).await.job_id();
    let told = root.ended(&id).await;
    assert_eq!((&told["state"], &told["attempts"]), (&json!("succeeded"), &json!(1)), "{told}");
    assert_eq!(runs(&counter(&stack, &sandbox)), 2);
    let log = root.get(&format!("/v1/jobs/{id}/logs")).await.ok();
    let of = |step: &str| {
        let chunks = log["chunks"].as_array().unwrap().iter().filter(|chunk| chunk["step"] == step);
        chunks.map(|chunk| chunk["data"].as_str().unwrap()).collect::<String>()
    };
    assert_eq!(of("long"), (1..=60).map(|number| format!("{number}\n")).collect::<String>());
    assert_eq!(of("short"), "short\n");
    // What a later alarm follows is cancelled as well.
    let arguments = json!({ "sandboxId": sandbox.id, "command": FAMILY, "timeout": 300 });
    let id = root.deferred("exec", &arguments).await.job_id();
    let path = format!("/control/v1/execs/{id}");
    let is_handed_over = || async {
        let seen = stack.proxy.seen(&sandbox.id);
        seen.iter().any(|seen| seen.method == "GET" && seen.rest == path).then_some(())
    };
    eventually("another alarm follows it", PATIENCE, is_handed_over).await;
    family_lives(&sandbox).await;
    root.call("cancelJob", &json!({ "jobId": id })).await.ok();
    assert_eq!(root.ended(&id).await["state"], "cancelled");
    family_is_gone(&sandbox).await;
}

#[tokio::test]
async fn the_sandbox_of_a_command_that_nobody_follows_stays_awake_until_it_ends() {
    let stack = Stack::start(StackOptions::default());
    let sandbox = stack.sandbox_with(json!({ "sleepAfter": 1 })).await;
    // Longer than nobody follows it: what ended is told while the sandbox is awake only.
    let command = "echo x >> runs; sleep 80; echo done";
    let arguments = json!({ "sandboxId": sandbox.id, "command": command, "timeout": 300 });
    let id = stack.client().deferred("exec", &arguments).await.job_id();
    let file = counter(&stack, &sandbox);
    begun(&file).await;
    kill(&stack).await;
    let told = stack.client().ended(&id).await;
    assert_eq!((&told["state"], &told["output"]["stdout"]), (&json!("succeeded"), &json!("done\n")), "{told}");
    assert_eq!(runs(&file), 1);
    let sleeps = || async {
        let told = stack.client().get(&format!("/v1/sandboxes/{}", sandbox.id)).await.ok();
        (told["state"] == "sleeping").then_some(())
    };
    eventually("then it sleeps", PATIENCE, sleeps).await;
}
