//! Killing at random moments under load, and fifty sandboxes at once: what is told stays true, and nothing is left over.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use test_support::{
    Chance, Client, PATIENCE, Sandbox, Stack, StackOptions, descendants, eventually, kill_process, resident_bytes,
    sandbox_daemon_of, within,
};

use crate::concurrency::MANY_STARTS;

const CALLS: usize = 200;
const CALLERS: usize = 8;
const SANDBOXES: usize = 4;

/// Timeout of a command in seconds.
const TIMEOUT: u64 = 5;

/// A call's deadline: its timeout, 35 s for a start, 25 s for telling; and what a loaded machine takes to carry that.
const DEADLINE: Duration = Duration::from_secs(TIMEOUT + 35 + 25 + 15);

/// The books close a call that nobody settled 15 s after its deadline, at the next alarm.
const SWEPT: Duration = Duration::from_secs(TIMEOUT + 35 + 25 + 15 + 60);

#[derive(Clone, Copy, Debug)]
enum Victim {
    /// The daemon of a sandbox.
    Daemon,
    Host,
    Workerd,
}

/// What the caller of one command was told.
#[derive(Debug)]
enum Told {
    Output(Value),
    Problem(Value),
    /// The connection broke or was refused: the Worker was not there to tell anything.
    Nothing,
}

/// The last event of a stream, when it is one that ends a stream.
fn terminal(text: &str) -> Option<Told> {
    let last = text.split("\n\n").filter(|event| event.starts_with("event: ")).last()?;
    let (name, data) = last.strip_prefix("event: ")?.split_once("\ndata: ")?;
    let data = serde_json::from_str(data.trim()).ok()?;
    match name {
        "result" => Some(Told::Output(data)),
        "error" => Some(Told::Problem(data)),
        _ => None,
    }
}

/// Runs one command, buffered or as a stream. It notes in the sandbox that it ran.
async fn command(client: &Client, sandbox_id: &str, number: usize, sleep_ms: u64, streamed: bool) -> Told {
    let command = format!("echo {number} >> count; sleep 0.{sleep_ms:03}; echo done-{number}; : marker-{sandbox_id}");
    let body = json!({ "sandboxId": sandbox_id, "command": command, "timeout": TIMEOUT });
    let mut request = client.request(Method::POST, "/v1/tools/exec").json(&body);
    if streamed {
        request = request.header("accept", "text/event-stream");
    }
    let answer = async {
        let response = request.send().await.ok()?;
        let (status, id) = (response.status(), response.headers().contains_key("x-request-id"));
        let is_stream = response
            .headers()
            .get("content-type")
            .is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        let text = response.text().await.ok()?;
        assert!(id, "an answer of the Worker has an id: {status} {text}");
        if is_stream {
            return Some(terminal(&text).unwrap_or_else(|| panic!("a stream that ended whole has no end: {text}")));
        }
        let value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{status}: {text}"));
        Some(if status == 200 { Told::Output(value) } else { Told::Problem(value) })
    };
    within("the outcome of a call, within its deadline", DEADLINE, answer).await.unwrap_or(Told::Nothing)
}

/// Kills one thing and, where nothing else would, starts it again. Once all calls are over there is no command whose daemon
/// could die.
async fn kill(stack: &Arc<Stack>, victim: Victim, sandboxes: &[Sandbox], is_over: impl Fn() -> bool) {
    let restart = |work: fn(&Stack)| {
        let stack = stack.clone();
        tokio::task::spawn_blocking(move || work(&stack))
    };
    match victim {
        Victim::Daemon => {
            let daemons = || sandboxes.iter().find_map(|sandbox| sandbox_daemon_of(&format!("marker-{}", sandbox.id)));
            let daemon = || async {
                let found = daemons();
                (found.is_some() || is_over()).then_some(found)
            };
            if let Some(daemon) = eventually("a command runs in the sandbox", PATIENCE, daemon).await {
                kill_process(daemon);
            }
        }
        Victim::Host => restart(|stack| stack.host().restart()).await.expect("the host starts again"),
        Victim::Workerd => restart(|stack| stack.worker().restart()).await.expect("workerd starts again"),
    }
}

/// Holds what was told of a command against how often it ran. Gives one word for the tally.
fn judge(number: usize, told: &Told, runs: usize) -> String {
    assert!(runs <= 1, "command {number} ran {runs} times: {told:?}");
    match told {
        Told::Output(output) => {
            assert_eq!((runs, &output["exitCode"]), (1, &json!(0)), "command {number}: {output}");
            assert_eq!(output["stdout"], format!("done-{number}\n"), "the output of another command");
            "succeeded".to_owned()
        }
        Told::Problem(problem) => {
            let code = problem["code"].as_str().expect("a problem has a code").to_owned();
            match code.as_str() {
                "sandbox_unavailable" => assert_eq!(runs, 0, "it says that nothing was carried out: {problem}"),
                "interrupted" | "outcome_unknown" | "timeout" => {
                    assert_eq!(problem["retryable"], false, "it may have run: {problem}");
                }
                _ => panic!("command {number} ended in {problem}"),
            }
            code
        }
        Told::Nothing => "connection lost".to_owned(),
    }
}

/// Names of the sandboxes of which the host holds files.
fn held(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("the host's folder is there").flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with("default."))
        .collect()
}

/// Destroys what there is; then neither the tenant nor the host knows of any sandbox, and none of their processes runs.
async fn nothing_is_left(stack: &Stack, sandboxes: &[Sandbox]) {
    let gone = join_all(sandboxes.iter().map(|sandbox| sandbox.call("destroySandbox", json!({})))).await;
    for answer in &gone {
        assert_eq!(answer.ok()["status"], "destroyed");
    }
    let listed = stack.client().call("listSandboxes", &json!({})).await.ok();
    assert_eq!(listed["sandboxes"], json!([]), "the tenant's list");
    let pid = stack.host().pid();
    let folder = stack.host().folder().to_owned();
    assert_eq!(held(&folder), Vec::<String>::new(), "the host's files");
    let quiet = || async { descendants(pid).is_empty().then_some(()) };
    eventually("no process of the host's sandboxes is left", PATIENCE, quiet).await;
}

#[tokio::test]
async fn kills_at_random_moments_change_no_outcome_and_repeat_no_command() {
    let mut chance = Chance::new();
    let stack = Arc::new(Stack::start(StackOptions { sweep_seconds: Some(2), ..StackOptions::default() }));
    let mut sandboxes = Vec::new();
    for _ in 0..SANDBOXES {
        sandboxes.push(stack.sandbox().await);
    }
    // workerd early: the books close what it left open only after that has had its time.
    let mut plan = vec![Victim::Workerd, Victim::Daemon, Victim::Workerd, Victim::Daemon, Victim::Daemon];
    plan.rotate_left(usize::try_from(chance.below(2)).unwrap());
    plan.extend([Victim::Host, Victim::Daemon, Victim::Host, Victim::Daemon]);
    let calls: Vec<(u64, bool)> = (0..CALLS).map(|_| (100 + chance.below(500), chance.below(3) == 0)).collect();
    let (next, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let client = stack.client();

    let callers = (0..CALLERS).map(|_| async {
        let mut told = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some((sleep_ms, streamed)) = calls.get(number) else { return told };
            let sandbox = &sandboxes[number % SANDBOXES];
            let outcome = command(&client, &sandbox.id, number, *sleep_ms, *streamed).await;
            ended.fetch_add(1, Ordering::Relaxed);
            // As a client does that is told to come back later; the calls to come would be told the same at once.
            match outcome {
                Told::Output(_) => {}
                Told::Problem(_) => tokio::time::sleep(Duration::from_secs(1)).await,
                Told::Nothing => {
                    let there = || async { client.request(Method::GET, "/health").send().await.ok().map(drop) };
                    eventually("the Worker is there again", PATIENCE, there).await;
                }
            }
            told.push((number, outcome));
        }
    });
    let killer = async {
        let span = CALLS / (plan.len() + 1);
        for (index, victim) in plan.iter().enumerate() {
            let moment = span * index + usize::try_from(chance.below(u64::try_from(span).unwrap())).unwrap();
            let reached = || async { (ended.load(Ordering::Relaxed) >= moment).then_some(()) };
            eventually("the calls go on", Duration::from_secs(200), reached).await;
            tokio::time::sleep(Duration::from_millis(chance.below(200))).await;
            let first = usize::try_from(chance.below(SANDBOXES as u64)).unwrap();
            println!("after {} calls: SIGKILL to {victim:?}", ended.load(Ordering::Relaxed));
            kill(&stack, *victim, &sandboxes[first..], || ended.load(Ordering::Relaxed) == CALLS).await;
        }
    };
    let (told, ()) = tokio::join!(join_all(callers), killer);

    let mut runs: BTreeMap<usize, usize> = BTreeMap::new();
    for sandbox in &sandboxes {
        for line in sandbox.sh("cat count 2>/dev/null || true").await.lines() {
            *runs.entry(line.parse().expect("a number")).or_default() += 1;
        }
    }
    let mut tally: BTreeMap<String, usize> = BTreeMap::new();
    for (number, told) in told.iter().flatten() {
        *tally.entry(judge(*number, told, runs.get(number).copied().unwrap_or(0))).or_default() += 1;
    }
    println!("outcomes of {CALLS} calls and {} kills: {tally:?}", plan.len());
    assert_eq!(tally.values().sum::<usize>(), CALLS, "every call ended");
    assert!(tally["succeeded"] > CALLS / 4, "most calls have nothing to do with a kill: {tally:?}");

    let closed = || async {
        let metrics = client.call("getMetrics", &json!({})).await.ok();
        // The question itself is under way.
        (metrics["callsUnderWay"] == 1).then_some(())
    };
    eventually("no record of a call stays open", SWEPT, closed).await;
    nothing_is_left(&stack, &sandboxes).await;
}

/// Makes that many sandboxes at once, uses each, and ends them at once.
async fn generation_of(stack: &Stack, count: usize) {
    let _alone = MANY_STARTS.lock().await;
    let sandboxes: Vec<Sandbox> = (0..count).map(|_| stack.unmade_sandbox()).collect();
    let used = sandboxes.iter().map(|sandbox| async {
        sandbox.make(json!({})).await;
        sandbox.sh("echo $SANDBOX_ID | tee id").await
    });
    for (sandbox, output) in sandboxes.iter().zip(join_all(used).await) {
        assert_eq!(output, format!("{}\n", sandbox.id));
    }
    let listed = stack.client().call("listSandboxes", &json!({ "limit": 500 })).await.ok();
    assert_eq!(listed["sandboxes"].as_array().map(Vec::len), Some(count), "none is lost");
    assert!(sandboxes.iter().all(|sandbox| sandbox.starts() == 1), "each was started once");
    nothing_is_left(stack, &sandboxes).await;
}

#[tokio::test]
async fn fifty_sandboxes_at_once_leave_neither_sandboxes_nor_memory() {
    // Resident memory that a process may have more than before, of which an allocator keeps some.
    const HOST_GROWTH: u64 = 16 << 20;
    const WORKERD_GROWTH: u64 = 192 << 20;

    let stack = Stack::start(StackOptions::default());
    // What is allocated once is allocated by then.
    generation_of(&stack, 10).await;
    let host = stack.host().pid();
    let workerd = stack.worker().workerd_pid();
    let resident = || (resident_bytes(host).expect("the host runs"), resident_bytes(workerd).expect("workerd runs"));
    let before = resident();
    generation_of(&stack, 50).await;
    let back = || async {
        let now = resident();
        (now.0 < before.0 + HOST_GROWTH && now.1 < before.1 + WORKERD_GROWTH).then_some(now)
    };
    let after = eventually("memory is back near its start", PATIENCE, back).await;
    println!(
        "resident bytes before and after 50 sandboxes: host {} {}, workerd {} {}",
        before.0, after.0, before.1, after.1
    );
}
