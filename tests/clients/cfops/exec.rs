//! `cfops exec` behaves as a command that runs here.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::{Value, json};
use test_support::{PATIENCE, Sandbox, Stack, eventually, find_by_argument, interrupt_process, random_name};

use super::{Home, end, start};

async fn sandbox() -> (Home, Sandbox) {
    (Home::logged_in(), Stack::shared().sandbox().await)
}

#[tokio::test]
async fn the_exit_code_is_that_of_the_command_and_the_channels_are_apart() {
    let (home, sandbox) = sandbox().await;
    let ran = home.run(&["exec", "-s", &sandbox.id, "echo out; echo err >&2; exit 7"]);
    assert_eq!((ran.code(), ran.stdout().as_str(), ran.stderr().as_str()), (7, "out\n", "err\n"));
    let ran = home.run(&["exec", "-s", &sandbox.id, "kill -KILL $$"]);
    assert_eq!((ran.code(), ran.stderr().as_str()), (137, ""), "standard error is the command's alone");
    assert_eq!(home.run(&["exec", "-s", &sandbox.id, "--", "no-such-program"]).code(), 127);
}

#[tokio::test]
async fn both_channels_are_exact_to_the_byte() {
    let (home, sandbox) = sandbox().await;
    let command =
        "head -c 3000000 /dev/urandom | tee o; head -c 2000000 /dev/urandom | tee e >&2; printf '\\xff\\0\\r'";
    let ran = home.run(&["exec", "-s", &sandbox.id, command]);
    assert_eq!((ran.code(), ran.stdout.len(), ran.stderr.len()), (0, 3_000_003, 2_000_000));
    let (out, err) = (home.path("o"), home.path("e"));
    std::fs::write(&out, &ran.stdout[..3_000_000]).unwrap();
    std::fs::write(&err, &ran.stderr).unwrap();
    let sums = sandbox.sh("sha256sum o e").await;
    let sums: Vec<&str> = sums.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(sums, [super::sha256(&out), super::sha256(&err)]);
    assert_eq!(ran.stdout[3_000_000..], *b"\xff\0\r");
}

#[tokio::test]
async fn several_words_are_a_program_and_its_arguments_and_one_is_a_command_line() {
    let (home, sandbox) = sandbox().await;
    let words = ["exec", "-s", &sandbox.id, "printf", "%s|", "a b", "$HOME", "--json", "", "é'\""];
    assert_eq!(home.run(&words).ok(), "a b|$HOME|--json||é'\"|");
    assert_eq!(
        home.run(&["exec", "-s", &sandbox.id, "--cwd", "/tmp", "echo $((6 * 7)) | cat; pwd"]).ok(),
        "42\n/tmp\n"
    );
    assert_eq!(home.run(&["exec", "-s", &sandbox.id, "--language", "python", "print(6 * 7)"]).ok(), "42\n");
    let ran = home.run_with(&["exec", "-s", &sandbox.id, "-i", "cat; echo end"], "in é\n".as_bytes());
    assert_eq!(ran.ok(), "in é\nend\n");
    let refused = home.run_with(&["exec", "-s", &sandbox.id, "-i", "cat"], b"\xff");
    assert!(refused.failed(2).contains("cfops cp -"), "{refused:?}");
}

#[tokio::test]
async fn a_variable_can_come_from_the_environment_of_the_caller() {
    let (home, sandbox) = sandbox().await;
    let words = ["exec", "-s", &sandbox.id, "--env", "TOKEN", "--env", "OTHER=a=b", "echo $TOKEN $OTHER"];
    let ran = super::run(home.command(&words).env("TOKEN", "of here"), b"");
    assert_eq!(ran.ok(), "of here a=b\n");
    assert!(home.run(&words).failed(2).contains("TOKEN is not set here"));
}

#[tokio::test]
async fn output_comes_while_the_command_runs() {
    let (home, sandbox) = sandbox().await;
    let command = "echo first; until [ -e go ]; do sleep 0.1; done";
    let mut child = start(&mut home.command(&["exec", "-s", &sandbox.id, "--timeout", "300", command]));
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "first\n");
    sandbox.sh("touch go").await;
    assert_eq!(end(child).code(), 0);
}

#[tokio::test]
async fn control_c_ends_the_command_in_its_sandbox() {
    let (home, sandbox) = sandbox().await;
    for command in ["echo; sleep 300", "while :; do echo; sleep 0.1; done"] {
        let marker = random_name("interrupted");
        let line = format!("{command}; : {marker}");
        let mut child = start(&mut home.command(&["exec", "-s", &sandbox.id, "--timeout", "600", &line]));
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut String::new()).unwrap();
        interrupt_process(child.id());
        assert_eq!(end(child).code(), 130, "it ends as the signal says, so that a shell's loop ends too");
        let gone = || async { find_by_argument(&marker).is_empty().then_some(()) };
        eventually("the command has ended", PATIENCE, gone).await;
    }
}

#[tokio::test]
async fn a_reader_that_leaves_ends_it() {
    let (home, sandbox) = sandbox().await;
    let marker = random_name("left");
    let line = format!("while :; do echo {marker}; done");
    let mut child = start(home.command(&["exec", "-s", &sandbox.id, &line]).stderr(Stdio::null()));
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut String::new()).unwrap();
    drop(stdout);
    let ran = end(child);
    assert_eq!((ran.code(), ran.stderr().as_str()), (141, ""));
    let gone = || async { find_by_argument(&marker).is_empty().then_some(()) };
    eventually("the command has ended", PATIENCE, gone).await;
}

#[tokio::test]
async fn a_timeout_has_its_own_code_and_what_was_written_came_before() {
    let (home, sandbox) = sandbox().await;
    let ran = home.run(&["exec", "-s", &sandbox.id, "--timeout", "15", "echo before; sleep 60"]);
    assert_eq!((ran.code(), ran.stdout().as_str()), (124, "before\n"));
    assert!(ran.stderr().contains("error: Timed out (timeout, 504)") && ran.stderr().contains("--timeout"), "{ran:?}");
    let ran = home.run(&["exec", "--json", "-s", &sandbox.id, "--timeout", "15", "echo before; sleep 60"]);
    let problem: Value = serde_json::from_str(&ran.failed(124)).unwrap();
    assert_eq!((&problem["code"], &problem["details"]["stdout"]), (&json!("timeout"), &json!("before\n")));
}

#[tokio::test]
async fn the_result_as_json_tells_what_ran_where() {
    let (home, sandbox) = sandbox().await;
    let ran = home.run(&["exec", "--json", "-s", &sandbox.id, "echo out; echo err >&2; exit 3"]);
    assert_eq!((ran.code(), ran.stderr().as_str()), (3, ""));
    let result: Value = serde_json::from_str(&ran.stdout()).unwrap();
    assert_eq!(
        (&result["exitCode"], &result["stdout"], &result["stderr"]),
        (&json!(3), &json!("out\n"), &json!("err\n"))
    );
    assert_eq!(result["sandboxId"], sandbox.id.as_str());
    // Without a sandbox one is made.
    let made = home.json(&["exec", "hostname"]);
    let made = Stack::shared().adopt(made["sandboxId"].as_str().unwrap());
    assert_eq!(home.run(&["exec", "-s", &made.id, "echo again"]).ok(), "again\n");
}

#[tokio::test]
async fn the_same_call_again_is_answered_again_and_not_carried_out() {
    let (home, sandbox) = sandbox().await;
    let key = random_name("key");
    let words = ["exec", "-s", &sandbox.id, "--idempotency-key", &key, "echo x >> runs; cat runs; exit 4"];
    for _ in 0..2 {
        let ran = home.run(&words);
        assert_eq!((ran.code(), ran.stdout().as_str()), (4, "x\n"));
    }
    assert_eq!(sandbox.sh("cat runs").await, "x\n");
}
