//! What is told, and the exit code.

use std::process::Command;

use serde_json::{Value, json};
use test_support::Stack;

use super::line::{Cut, Line};
use super::{Home, run};

#[tokio::test]
async fn kinds_of_failures_have_exit_codes_of_their_own() {
    let (home, stack) = (Home::logged_in(), Stack::shared());
    home.run(&["no-such-command"]).failed(2);
    home.run(&["create-sandbox", "--no-such-flag"]).failed(2);
    home.run(&["create-sandbox", "--sleep-after", "soon"]).failed(2);
    home.run(&["get-process", "-s", "x"]).failed(2);
    home.run(&["get-sandbox", "-s", "no-such-sandbox"]).failed(122);
    home.run(&["call", "noSuchTool"]).failed(122);
    let elsewhere =
        |url: &str| run(home.command(&["list-sandboxes"]).env("CFOPS_URL", url).env("CFOPS_KEY", "key"), b"");
    elsewhere(stack.client().base()).failed(121);
    elsewhere("http://127.0.0.1:1").failed(123);
    elsewhere("https://no-such-host.invalid").failed(123);
    assert_eq!(home.run(&["--help"]).code(), 0);
}

#[tokio::test]
async fn an_error_is_one_block_with_field_request_and_next_step() {
    let home = Home::logged_in();
    let told = home.run(&["create-sandbox", "--sleep-after", "0", "--id", "UPPER"]).failed(2);
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines[0], "error: Invalid arguments (invalid_arguments, 400)");
    assert!(
        lines.iter().any(|line| line.starts_with("  --id: "))
            && lines.iter().any(|line| line.starts_with("  --sleep-after: "))
    );
    assert!(lines.iter().any(|line| line.starts_with("  request ")) && lines.last().unwrap().starts_with("  next: "));
    let told = home.run(&["get-sandbox", "-s", "no-such-sandbox"]).failed(122);
    assert!(told.contains("there is no sandbox \"no-such-sandbox\""), "{told}");
    let told = home.run(&["--json", "get-sandbox", "-s", "no-such-sandbox"]).failed(122);
    let problem: Value = serde_json::from_str(&told).unwrap();
    assert_eq!((&problem["code"], &problem["status"]), (&json!("not_found"), &json!(404)));
    let problem: Value = serde_json::from_str(&home.run(&["--json", "no-such-command"]).failed(2)).unwrap();
    assert_eq!(problem["code"], "usage");
}

#[test]
fn colours_are_for_terminals_that_want_them() {
    let home = Home::logged_in();
    let words = ["get-sandbox", "-s", "no-such-sandbox"];
    assert!(!home.run(&words).stderr().contains('\u{1b}'), "a pipe is no terminal");
    let forced = run(home.command(&words).env("CLICOLOR_FORCE", "1"), b"").stderr();
    assert!(forced.contains("\u{1b}[31m"), "{forced:?}");
    // `script` would make a terminal; the test of the prompt has one. Here NO_COLOR is held against the force.
    let both = run(home.command(&words).env("NO_COLOR", "1"), b"").stderr();
    assert!(!both.contains('\u{1b}'), "{both:?}");
}

#[tokio::test]
async fn a_stream_that_breaks_off_is_no_success() {
    let (home, stack) = (Home::new(), Stack::shared());
    let sandbox = stack.sandbox().await;
    let line = Line::to(stack.client().base());
    home.log_in("default", &line.url(), &stack.key);
    // More than one event holds, whatever comes at once.
    line.cut(&[Cut::Down(1 << 20)]);
    let ran = home.run(&["exec", "-s", &sandbox.id, "yes some more"]);
    assert_eq!(ran.code(), 120);
    assert!(ran.stdout().starts_with("some more\n") && ran.stderr().contains("Outcome unknown"), "{ran:?}");
    let refused = super::run(
        home.command(&["exec", "-s", &sandbox.id, "true"]).env("CFOPS_URL", "http://127.0.0.1:1").env("CFOPS_KEY", "x"),
        b"",
    );
    refused.failed(123);
}

#[tokio::test]
async fn events_of_a_tool_are_shown_as_they_come() {
    let (home, sandbox) = (Home::logged_in(), Stack::shared().sandbox().await);
    let command = "for i in 1 2; do echo $i; echo e$i >&2; sleep 0.3; done";
    let started = home.json(&["start-background-process", "-s", &sandbox.id, "--name", "p", "--command", command]);
    let process = started["processId"].as_str().unwrap();
    let logs = ["get-process-logs", "-s", &sandbox.id, "--process-id", process, "--follow"];
    let ran = home.run(&logs);
    assert_eq!((ran.ok().as_str(), ran.stderr().as_str()), ("1\n2\n", "e1\ne2\n"));
    let lines = home.run(&[&logs[..], &["--json", "--stream"]].concat()).ok();
    let events: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    // Each channel is in its order; where it is cut, and what comes between two, is nobody's promise.
    let of = |channel: &str| -> String {
        events
            .iter()
            .filter(|event| event["event"] == channel)
            .filter_map(|event| event["data"]["data"].as_str())
            .collect()
    };
    assert_eq!((of("stdout").as_str(), of("stderr").as_str()), ("1\n2\n", "e1\ne2\n"), "{events:?}");
    assert_eq!(
        (&events.last().unwrap()["event"], &events.last().unwrap()["data"]["ended"]),
        (&json!("result"), &json!(true))
    );
}

#[tokio::test]
async fn top_shows_what_is_there() {
    let (home, stack) = (Home::logged_in(), Stack::shared());
    let sandbox = stack.sandbox_with(json!({"labels": {"team": "blue"}})).await;
    let client = stack.client();
    let usage = async || client.get("/v1/admin/usage?groupBy=day&limit=31").await.ok();
    let (used, seen) = loop {
        let (used, seen) = (usage().await, home.json(&["top"]));
        // Unless a day of UTC ended meanwhile.
        if usage().await["until"] == used["until"] {
            break (used, seen);
        }
    };
    let row = seen["sandboxes"].as_array().unwrap().iter().find(|row| row["sandboxId"] == sandbox.id.as_str()).unwrap();
    assert_eq!((&row["state"], &row["labels"]), (&json!("running"), &json!({"team": "blue"})));
    let earlier = used["usage"].as_array().unwrap().iter().filter(|day| day["day"] != used["until"]);
    let earlier: f64 = earlier.map(|day| day["calls"].as_f64().unwrap()).sum();
    let (today, month) = (&seen["usage"][0], &seen["usage"][1]);
    let calls = today["calls"].as_f64().unwrap();
    assert!(
        today["name"] == "today" && calls > 0.0 && month["calls"].as_f64() == Some(earlier + calls),
        "{earlier} before: {seen}"
    );
    let text = home.run(&["top", "--once"]).ok();
    assert!(text.contains(&sandbox.id) && text.contains("team=blue") && text.contains("sandboxSeconds"), "{text}");
}

#[test]
fn completions_have_every_command_and_flag_and_are_sound() {
    let home = Home::logged_in();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = home.run(&["completions", shell]).ok();
        assert!(script.contains("create-sandbox") && script.contains("sandbox-id"), "{shell}");
    }
    let script = home.path("completions.bash");
    std::fs::write(&script, home.run(&["completions", "bash"]).stdout).unwrap();
    let asked = "source completions.bash; COMP_WORDS=(cfops exec --lang); COMP_CWORD=2; _cfops cfops --lang exec; \
                 printf '%s\n' \"${COMPREPLY[@]}\"";
    let mut bash = Command::new("bash");
    let ran = run(bash.args(["-c", asked]).current_dir(home.path(".")), b"");
    assert_eq!(ran.ok(), "--language\n");
}
