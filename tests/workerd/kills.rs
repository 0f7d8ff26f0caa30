//! The Worker killed between what a call does and its settlement: nothing is done twice, and no record stays open.

use std::path::Path;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use test_support::{Answer, Client, PATIENCE, Stack, StackOptions, eventually, kill_process, random_name};

const KILLS: usize = 100;

/// Timeout of a command, 35 s for a start, 25 s for telling, 15 s until the books may close it; and a slow machine.
const CLOSED: Duration = Duration::from_secs(20 + 35 + 25 + 15 + 60);

/// How the command goes on once it has acted: it is over at once, soon, or not before the kill.
const AFTERWARDS: [&str; 4] = ["", "; sleep 0.02", "; sleep 0.1", "; sleep 5"];

struct Round {
    key: String,
    arguments: Value,
    file: String,
}

impl Round {
    fn new(sandbox_id: &str, number: usize) -> Self {
        let file = format!("runs{number}");
        let command = format!("echo x >> {file}{}", AFTERWARDS[number % AFTERWARDS.len()]);
        let arguments = json!({ "sandboxId": sandbox_id, "command": command, "timeout": 20 });
        Self { key: random_name("key"), arguments, file }
    }

    async fn ask(&self, client: &Client) -> Option<Answer> {
        let request = client.request(Method::POST, "/v1/tools/exec").header("idempotency-key", &self.key);
        client.try_send(request.json(&self.arguments)).await
    }

    /// How often the command ran.
    fn runs(&self, workspace: &Path) -> usize {
        std::fs::read_to_string(workspace.join(&self.file)).map_or(0, |text| text.lines().count())
    }
}

#[tokio::test]
async fn a_hundred_kills_between_act_and_settle_repeat_nothing_and_leave_no_record_open() {
    let stack = Stack::start(StackOptions { sweep_seconds: Some(1), ..StackOptions::default() });
    let sandbox = stack.sandbox_with(json!({ "keepAlive": true })).await;
    let workspace = stack.host().folder().join(format!("default.{}", sandbox.id)).join("workspace");
    let rounds: Vec<Round> = (0..KILLS).map(|number| Round::new(&sandbox.id, number)).collect();
    for round in &rounds {
        let client = stack.client();
        let killed = stack.worker().workerd_pid();
        let kill = async {
            let acted = || async { (round.runs(&workspace) > 0).then_some(()) };
            eventually("the command acts", PATIENCE, acted).await;
            kill_process(killed);
        };
        tokio::join!(round.ask(&client), kill);
        eventually("workerd is back", PATIENCE, || async { stack.worker().is_back(killed).then_some(()) }).await;
        let answers = || async {
            let answer = round.ask(&stack.client()).await?;
            (answer.status == 200 || ["in_progress", "outcome_unknown"].contains(&answer.any_problem().code.as_str()))
                .then_some(())
        };
        eventually("asking again is answered", PATIENCE, answers).await;
        assert_eq!(round.runs(&workspace), 1, "{}", round.file);
    }
    let root = stack.client();
    let closed = || async { (root.get("/v1/metrics").await.ok()["callsUnderWay"] == 1).then_some(()) };
    eventually("every call is closed", CLOSED, closed).await;
    let calls = root.get("/v1/admin/logs?tool=exec&limit=500").await.ok()["calls"].as_array().unwrap().clone();
    assert!(calls.len() >= KILLS && calls.iter().all(|call| call["result"] != "open"), "{calls:?}");
    assert_eq!(root.get("/v1/admin/logs/verification").await.ok()["valid"], true);
    let mut unknown = 0;
    for round in &rounds {
        let answer = round.ask(&root).await.unwrap();
        assert_eq!(answer.header("idempotency-replayed"), Some("true"), "{}", answer.text());
        if answer.status != 200 {
            answer.problem(502, "outcome_unknown");
            unknown += 1;
        }
        assert_eq!(round.runs(&workspace), 1, "{}", round.file);
    }
    assert!(unknown >= KILLS / 4, "{unknown} of {KILLS} kills came before the settlement");
}
