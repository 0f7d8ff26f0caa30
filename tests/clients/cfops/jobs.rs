//! Logs of jobs at the command line.

use super::Home;
use super::line::{Cut, Line};
use serde_json::{Value, json};
use test_support::{Sandbox, Stack};

async fn job(sandbox: &Sandbox, command: &str, timeout: u32) -> String {
    let arguments = json!({ "sandboxId": sandbox.id, "command": command, "timeout": timeout });
    Stack::shared().client().deferred("exec", &arguments).await.job_id()
}

#[tokio::test]
async fn logs_of_a_job_are_followed_to_its_end_over_a_line_that_breaks() {
    let (stack, home) = (Stack::shared(), Home::new());
    let sandbox = stack.sandbox().await;
    let line = Line::to(stack.client().base());
    home.log_in("default", &line.url(), &stack.key);
    // Long lines: there is more of them than what is cut off, also where all of them come at once.
    let command = "pad=$(printf '%0100d' 0); \
        for i in $(seq 1 60); do echo line $i $pad; echo error $i $pad >&2; sleep 0.1; done; printf '\\377\\n'; exit 3";
    let id = job(&sandbox, command, 300).await;
    // The list of tools is there, so that what is cut are the logs.
    home.run(&["tools"]).ok();
    line.cut(&[Cut::Down(1500), Cut::Down(2500), Cut::Down(900)]);
    let ran = home.run(&["jobs", "logs", "-f", &id]);
    let pad = "0".repeat(100);
    let lines = |word: &str| (1..=60).map(|i| format!("{word} {i} {pad}\n")).collect::<String>();
    assert_eq!((ran.code(), line.uncut()), (3, 0), "{ran:?}");
    assert_eq!(ran.stderr(), lines("error"));
    let (text, last) = ran.stdout.split_at(lines("line").len());
    assert_eq!((text, last), (lines("line").as_bytes(), &b"\xff\n"[..]));
    // Afterwards, from an offset, and as JSON.
    let later = home.run(&["jobs", "logs", &id]);
    assert_eq!((later.code(), later.stdout.len()), (0, ran.stdout.len()));
    let all = ran.stdout.len() + ran.stderr().len();
    let rest = home.run(&["jobs", "logs", "--offset", &(all - 2).to_string(), &id]);
    assert_eq!(rest.stdout, b"\xff\n");
    let json = home.run(&["jobs", "logs", "--json", &id]).ok();
    let first: Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
    assert!(first["event"] == "stdout" && first["data"]["offset"] == 0, "{first}");
}

#[tokio::test]
async fn the_steps_of_a_pipeline_are_named_over_what_they_wrote_where_that_is_asked_for() {
    let (root, home) = (Stack::shared().client(), Home::logged_in());
    let sandbox = Stack::shared().sandbox().await;
    let call = |command: &str| json!({ "sandboxId": sandbox.id, "command": command });
    let undo = json!({ "tool": "exec", "arguments": call("echo undone") });
    let steps = json!([
        { "name": "build", "tool": "exec", "arguments": call("echo built; printf 'no end'"), "rollBack": undo },
        { "name": "silent", "tool": "exec", "arguments": call("true") },
        { "name": "test it", "tool": "exec", "arguments": call("echo broken; exit 3") },
    ]);
    let id = root.deferred("runPipeline", &json!({ "steps": steps })).await.job_id();
    let followed = home.run(&["jobs", "logs", "-f", "--steps", &id]);
    assert_eq!(followed.stdout(), "built\nno endbroken\nundone\n", "{followed:?}");
    let told = followed.stderr();
    assert!(told.starts_with("── build\n\n── test it\n── rollBack:build\n"), "{told}");
    // Afterwards as well; and without being asked the channels are the job's alone.
    let later = home.run(&["jobs", "logs", "--steps", &id]);
    let alone = home.run(&["jobs", "logs", &id]);
    assert_eq!((later.stdout(), alone.stdout()), (followed.stdout(), followed.stdout()));
    assert_eq!(later.stderr(), "── build\n\n── test it\n── rollBack:build\n");
    assert_eq!(alone.stderr(), "", "{alone:?}");
}

#[tokio::test]
async fn a_job_that_did_not_end_by_itself_has_the_exit_code_of_its_error() {
    let home = Home::logged_in();
    let sandbox = Stack::shared().sandbox().await;
    let late = home.run(&["jobs", "logs", "-f", &job(&sandbox, "echo begun; sleep 60", 15).await]);
    assert!(late.code() == 124 && late.stdout() == "begun\n", "{late:?}");
    let missing = home.run(&["jobs", "logs", "-f", "none-such"]);
    assert!(missing.code() == 122 && missing.stderr().contains("none-such"), "{missing:?}");
    home.run(&["jobs", "logs"]).failed(2);
}
