//! Calls that wait, and who decides on them.

use serde_json::{Value, json};
use test_support::{PATIENCE, Sandbox, Stack, eventually, random_name};

use super::Home;

/// A home with the root key, and as profile `agent` a key whose commands wait.
pub(super) fn agent() -> Home {
    let (home, stack) = (Home::logged_in(), Stack::shared());
    let rules = ["--permissions.role", "operator", "--permissions.approval.tools", "exec"];
    let key = home.json(&[&["create-key", "--name", "agent"][..], &rules].concat());
    home.log_in("agent", stack.client().base(), key["key"].as_str().unwrap());
    home.run(&["profile", "use", "default"]).ok();
    home
}

/// A call of the agent that waits.
pub(super) fn waiting(home: &Home, sandbox: &Sandbox, mark: &str) -> Value {
    let ran = home.run(&["--json", "--profile", "agent", "exec", "-s", &sandbox.id, &format!("echo {mark} >> runs")]);
    assert_eq!((ran.code(), ran.stderr().as_str()), (76, ""), "it did not run, and did not fail");
    serde_json::from_str(&ran.stdout()).unwrap()
}

#[tokio::test]
async fn a_call_that_waits_is_approved_or_rejected_by_another_key() {
    let (home, sandbox) = (agent(), Stack::shared().sandbox().await);
    let (yes, no) = (random_name("yes"), random_name("no"));
    let (approved, rejected) = (waiting(&home, &sandbox, &yes), waiting(&home, &sandbox, &no));
    let id = |job: &Value| job["jobId"].as_str().unwrap().to_owned();
    assert_eq!(approved["state"], "awaiting_approval");
    assert!(home.json(&["top"])["jobs"].to_string().contains(&id(&approved)));
    home.run(&["approve", &id(&approved)]).failed(2);
    assert!(
        !home.run(&["--profile", "agent", "--help"]).ok().contains("approve"),
        "the agent's key has no such command"
    );
    home.run(&["approve", &id(&approved), "--yes", "--comment", "looked at it"]).ok();
    home.run(&["reject", &id(&rejected), "-y"]).ok();
    let over = || async {
        let job = home.json(&["get-job", "--job-id", &id(&approved)]);
        (job["state"] == "succeeded").then_some(job)
    };
    let job = eventually("the job is over", PATIENCE, over).await;
    assert_eq!((&job["exitCode"], &job["approval"]["comment"]), (&json!(0), &json!("looked at it")));
    assert_eq!(home.json(&["get-job", "--job-id", &id(&rejected)])["state"], "rejected");
    assert_eq!(sandbox.sh("cat runs").await, format!("{yes}\n"));
    home.run(&["approve", "no-such-job", "--yes"]).failed(122);
}

#[tokio::test]
async fn a_dry_run_tells_what_a_command_would_do_and_does_nothing() {
    let (home, sandbox) = (Home::logged_in(), Stack::shared().sandbox().await);
    let told = home.json(&["exec", "-s", &sandbox.id, "--dry-run", "touch made"]);
    assert_eq!((&told["dryRun"], &told["tool"]), (&json!(true), &json!("exec")));
    let told = home.json(&["destroy-sandbox", "-s", &sandbox.id, "--dry-run"]);
    assert_eq!(told["dryRun"], true);
    assert_eq!(sandbox.sh("ls").await, "");
}
