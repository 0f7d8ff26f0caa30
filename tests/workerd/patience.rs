//! Callers that wait for a while: what lasts longer goes on as a job, and what does not is answered as ever.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::json;
use test_support::{PATIENCE, Sandbox, Stack, eventually};

async fn runs(sandbox: &Sandbox) -> String {
    sandbox.sh("cat runs").await
}

#[tokio::test]
async fn a_long_timeout_does_not_change_the_answer_of_what_ends_in_time() {
    let (root, sandbox) = (Stack::shared().client(), Stack::shared().sandbox().await);
    let command = "echo x >> runs; echo out; echo err >&2; exit 3";
    let answer = root.call("exec", &json!({ "sandboxId": sandbox.id, "command": command, "timeout": 600 })).await;
    let output = answer.ok();
    assert_eq!(
        (&output["exitCode"], &output["stdout"], &output["stderr"]),
        (&json!(3), &json!("out\n"), &json!("err\n"))
    );
    assert!(answer.header("preference-applied").is_none() && answer.header("location").is_none());
    // It was a job all the while, of the same id.
    let job = root.ended(answer.header("x-request-id").unwrap()).await;
    assert_eq!((&job["state"], &job["exitCode"]), (&json!("succeeded"), &json!(3)));
    assert_eq!(runs(&sandbox).await, "x\n");
}

#[tokio::test]
async fn what_outlasts_its_caller_is_answered_with_its_job_and_runs_once() {
    let (root, sandbox) = (Stack::shared().client(), Stack::shared().sandbox().await);
    let command = "echo x >> runs; read x < gate; echo done";
    let arguments = json!({ "sandboxId": sandbox.id, "command": command, "timeout": 300 });
    let ask = |wait: u32, accept: &'static str| {
        let request = root.request(Method::POST, "/v1/tools/exec").header("accept", accept);
        let request = if wait > 0 { request.header("prefer", format!("respond-async, wait={wait}")) } else { request };
        root.send(request.header("idempotency-key", format!("key-{}", sandbox.id)).json(&arguments))
    };
    sandbox.sh("mkfifo gate").await;
    let asked_at = Instant::now();
    let answer = ask(1, "application/json").await;
    assert!(asked_at.elapsed() >= Duration::from_secs(1));
    assert_eq!(answer.header("preference-applied"), Some("respond-async"));
    let job = answer.job_id();
    // Whoever asks again is told of the same job; a reader of events, who waits for ever, at once.
    assert_eq!(ask(1, "application/json").await.job_id(), job);
    assert_eq!(ask(0, "text/event-stream").await.job_id(), job);
    // Or waits for its end. Who lets it go does not wait for its beginning.
    let began = || async { (sandbox.sh("cat runs 2>/dev/null || true").await == "x\n").then_some(()) };
    eventually("it runs", PATIENCE, began).await;
    let (answer, _) = tokio::join!(ask(60, "application/json"), sandbox.sh("echo > gate"));
    let output = answer.ok();
    assert_eq!(output["stdout"], "done\n", "{output}");
    assert_eq!(ask(1, "application/json").await.ok(), output);
    let ended = root.ended(&job).await;
    assert_eq!((&ended["state"], &ended["output"]), (&json!("succeeded"), &output));
    assert_eq!(runs(&sandbox).await, "x\n");
}

#[tokio::test]
async fn a_failure_in_time_is_the_problem_that_it_would_have_been() {
    let (root, sandbox) = (Stack::shared().client(), Stack::shared().sandbox().await);
    let lasting = json!({ "sandboxId": sandbox.id, "command": "echo x > marker; sleep 300", "timeout": 300 });
    let waiting = root.call("exec", &lasting);
    let stopping = async {
        let runs = || async { sandbox.sh("cat marker 2>/dev/null || true").await.contains('x').then_some(()) };
        eventually("it runs", PATIENCE, runs).await;
        root.call("stopSandbox", &json!({ "sandboxId": sandbox.id })).await.ok();
    };
    let (answer, ()) = tokio::join!(waiting, stopping);
    answer.problem(409, "interrupted");
}

#[tokio::test]
async fn a_long_answer_of_a_job_is_told_whole() {
    let (root, sandbox) = (Stack::shared().client(), Stack::shared().sandbox().await);
    // A megabyte on each channel, which JSON writes with six characters a byte.
    let command = "head -c 1048576 /dev/zero | tr '\\0' '\\1' | tee /dev/stderr";
    let arguments = json!({ "sandboxId": sandbox.id, "command": command, "timeout": 600 });
    let answer = root.call("exec", &arguments).await;
    let output = answer.ok();
    assert!(answer.body.len() > 12 << 20 && output["truncated"] == false, "{} bytes", answer.body.len());
    let job = root.ended(answer.header("x-request-id").unwrap()).await;
    assert!(job["output"] == output, "the job tells the same");
}
