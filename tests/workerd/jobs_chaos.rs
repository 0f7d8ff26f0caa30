//! workerd killed twenty times at random moments while fifty jobs are asked for and run: each of them ends in the truth.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use test_support::{Chance, Client, Sandbox, Stack, StackOptions, eventually, random_name};

use crate::jobs_survive::kill;

const JOBS: usize = 50;
const KILLS: usize = 20;
const SANDBOXES: usize = 4;

/// Until a job is taken by a service that goes away again and again.
const LIMIT: Duration = Duration::from_secs(300);

/// A command that notes that it ran, and writes lines for a while.
struct Work {
    number: usize,
    lines: u64,
    key: String,
}

impl Work {
    fn command(&self) -> String {
        let Self { number, lines, .. } = self;
        format!(
            "echo {number} >> runs; i=0; while [ $i -lt {lines} ]; do echo {number}:$i; sleep 0.5; i=$((i+1)); done; exit {}",
            self.exit_code()
        )
    }

    fn exit_code(&self) -> usize {
        self.number % 3
    }

    fn expected(&self) -> String {
        (0..self.lines).map(|line| format!("{}:{line}\n", self.number)).collect()
    }

    /// Asks for it until it is taken. The same key each time: however often it arrives, it is one job.
    async fn ask(&self, client: &Client, sandbox: &Sandbox) {
        let arguments = json!({ "sandboxId": sandbox.id, "command": self.command(), "timeout": 300 });
        let taken = || async {
            let request = client.request(Method::POST, "/v1/tools/exec").header("idempotency-key", &self.key);
            let answer = client.try_send(request.header("prefer", "respond-async").json(&arguments)).await?;
            let is_over = answer.status == 200 || answer.header("idempotency-replayed") == Some("true");
            (answer.status == 202 || is_over).then_some(())
        };
        eventually("a job is taken", LIMIT, taken).await;
    }
}

/// Every job of the tenant, by the number of its work, and those of which only the list knows: workerd was killed between their admission
/// and the making of their object, which alone has the arguments.
async fn jobs(client: &Client, works: &[Work]) -> (BTreeMap<usize, Vec<Value>>, Vec<Value>) {
    let listed = client.get("/v1/jobs?limit=500").await.ok();
    let (mut found, mut never_made) = (BTreeMap::<usize, Vec<Value>>::new(), Vec::new());
    for job in listed["jobs"].as_array().unwrap() {
        let job = client.ended(job["jobId"].as_str().unwrap()).await;
        if job.get("arguments").is_none() {
            never_made.push(job);
            continue;
        }
        let is_it = |work: &&Work| job["arguments"]["command"] == work.command();
        found.entry(works.iter().find(is_it).unwrap().number).or_default().push(job);
    }
    (found, never_made)
}

/// The whole log of a job that is over, read in small parts: each begins where the one before ended.
async fn log(client: &Client, job: &Value) -> String {
    let id = job["jobId"].as_str().unwrap();
    let mut written = String::new();
    loop {
        let part = client.get(&format!("/v1/jobs/{id}/logs?offset={}&limit=100", written.len())).await.ok();
        assert_eq!(part.get("truncatedBefore"), None, "{part}");
        for chunk in part["chunks"].as_array().unwrap() {
            assert_eq!((&chunk["offset"], &chunk["channel"]), (&json!(written.len()), &json!("stdout")), "{part}");
            written.push_str(chunk["data"].as_str().unwrap());
        }
        assert_eq!(part["nextOffset"], written.len(), "{part}");
        if part["ended"] == true {
            return written;
        }
    }
}

/// Holds what is told of a job against what its command did. Gives one word for the tally.
fn judge(work: &Work, told: &Value, log: &str, runs: usize) -> String {
    assert!(runs <= 1, "its side effect came {runs} times: {told}");
    let expected = work.expected();
    assert!(expected.starts_with(log), "no gap and no repeat: {log} of {told}");
    let state = told["state"].as_str().unwrap();
    match state {
        "succeeded" => {
            assert_eq!((runs, log), (1, expected.as_str()), "{told}");
            let output = &told["output"];
            assert_eq!((&told["exitCode"], &output["stdout"]), (&json!(work.exit_code()), &json!(expected)), "{told}");
        }
        // It says that it may have done all, a part or nothing.
        "interrupted" => assert_eq!(told["error"]["retryable"], false, "{told}"),
        // Its object was never made, as the tenant's sweep or the queue found.
        "failed" => {
            let code = told["error"]["code"].as_str().unwrap();
            assert!(["object_unavailable", "internal"].contains(&code), "{told}");
            assert_eq!(runs, 0, "it says that it did not begin: {told}");
        }
        _ => panic!("{told}"),
    }
    let why = told["error"]["detail"].as_str().unwrap_or_default();
    format!("{state} {why}").trim_end().to_owned()
}

/// How often each command ran, as its file in the sandbox has it.
fn runs(files: &[PathBuf]) -> BTreeMap<usize, usize> {
    let mut runs = BTreeMap::new();
    for file in files {
        for line in std::fs::read_to_string(file).unwrap_or_default().lines() {
            *runs.entry(line.parse().expect("a number")).or_default() += 1;
        }
    }
    runs
}

#[tokio::test]
async fn twenty_kills_at_random_moments_during_fifty_jobs_change_no_outcome_and_repeat_nothing() {
    let mut chance = Chance::new();
    let stack = Stack::start(StackOptions { sweep_seconds: Some(1), ..StackOptions::default() });
    let mut sandboxes = Vec::new();
    for _ in 0..SANDBOXES {
        sandboxes.push(stack.sandbox_with(json!({ "keepAlive": true })).await);
    }
    let file = |sandbox: &Sandbox| stack.host().folder().join(format!("default.{}", sandbox.id)).join("workspace/runs");
    let files: Vec<PathBuf> = sandboxes.iter().map(file).collect();
    let works: Vec<Work> =
        (0..JOBS).map(|number| Work { number, lines: 2 + chance.below(30), key: random_name("key") }).collect();
    let client = stack.client();
    // Half of them at once, the others one after the other while the service goes away.
    let (at_once, later) = works.split_at(JOBS / 2);
    let pauses: Vec<u64> = later.iter().map(|_| chance.below(1200)).collect();
    let asked = async {
        join_all(at_once.iter().map(|work| work.ask(&client, &sandboxes[work.number % SANDBOXES]))).await;
        for (work, pause) in later.iter().zip(pauses) {
            tokio::time::sleep(Duration::from_millis(pause)).await;
            work.ask(&client, &sandboxes[work.number % SANDBOXES]).await;
        }
    };
    let moments: Vec<u64> = (0..KILLS).map(|_| chance.below(2000)).collect();
    let killed = async {
        for moment in moments {
            tokio::time::sleep(Duration::from_millis(moment)).await;
            kill(&stack).await;
        }
    };
    tokio::join!(asked, killed);

    let (told, mut never_made) = jobs(&client, &works).await;
    let runs = runs(&files);
    let mut tally: BTreeMap<String, usize> = BTreeMap::new();
    for work in &works {
        let jobs = told.get(&work.number).map(Vec::as_slice).unwrap_or_default();
        let runs = runs.get(&work.number).copied().unwrap_or(0);
        let word = match jobs {
            [job] => judge(work, job, &log(&client, job).await, runs),
            // Whichever of them it was, all say the same.
            [] => {
                let job = never_made.pop().unwrap_or_else(|| panic!("work {} became no job", work.number));
                assert_eq!(job["state"], "failed", "{job}");
                judge(work, &job, "", runs)
            }
            _ => panic!("work {} became {} jobs: {jobs:?}", work.number, jobs.len()),
        };
        *tally.entry(word).or_default() += 1;
    }
    assert!(never_made.is_empty(), "more jobs than were asked for: {never_made:?}");
    println!("outcomes of {JOBS} jobs and {KILLS} kills: {tally:?}");
    assert!(
        tally.get("succeeded").is_some_and(|count| *count > JOBS / 2),
        "a command does not need the service while it runs: {tally:?}"
    );
    assert_eq!(client.call("verifyAuditLog", &json!({})).await.ok()["valid"], true);
}
