//! Environment variables: exact, layered, hidden from process lists, and refused when they cannot be.

use serde_json::json;
use test_support::{Stack, find_by_argument, random_name};

const AWKWARD: &str = "a b'c\"$HOME\n\u{e9} `id` \\ %s $(id) \t";

#[tokio::test]
async fn a_value_arrives_exactly() {
    let sandbox = Stack::shared().sandbox().await;
    let output = sandbox.exec(json!({"command": "printf %s \"$FOO\"", "env": {"FOO": AWKWARD}})).await;
    assert_eq!(output["stdout"], AWKWARD);
    let python = "import os; print(os.environ['FOO'], end='')";
    let output = sandbox.exec(json!({"command": python, "language": "python", "env": {"FOO": AWKWARD}})).await;
    assert_eq!(output["stdout"], AWKWARD);
    let transcript = sandbox.exec_streamed(json!({"command": "printf %s \"$FOO\"", "env": {"FOO": AWKWARD}})).await;
    assert_eq!(transcript.stdout, AWKWARD.as_bytes());
    let output = sandbox.exec(json!({"command": "printf %s \"${FOO-unset}\""})).await;
    assert_eq!(output["stdout"], "unset", "one command's variable is not the next one's");
}

#[tokio::test]
async fn the_sandboxs_variables_reach_every_command_and_a_call_overrides_them() {
    let sandbox = Stack::shared().sandbox_with(json!({"env": {"A": "1", "B": AWKWARD}})).await;
    assert_eq!(sandbox.sh("printf '%s|%s' \"$A\" \"$B\"").await, format!("1|{AWKWARD}"));
    let output = sandbox.exec(json!({"command": "echo $A", "env": {"A": "2"}})).await;
    assert_eq!(output["stdout"], "2\n");
    let python = json!({"command": "import os; print(os.environ['A'])", "language": "python"});
    assert_eq!(sandbox.exec_streamed(python).await.stdout, b"1\n");
    assert_eq!(sandbox.sh("echo $A").await, "1\n");
}

#[tokio::test]
async fn a_command_sees_its_sandbox_id_and_nothing_of_the_daemon() {
    let stack = Stack::shared();
    let sandbox = stack.sandbox_with(json!({"env": {"GIVEN": "yes"}})).await;
    let environment = sandbox.sh("env").await;
    assert!(environment.contains(&format!("SANDBOX_ID={}\n", sandbox.id)), "{environment}");
    assert!(environment.contains("GIVEN=yes\n"), "{environment}");
    let known = [
        "PATH",
        "HOME",
        "LANG",
        "TERM",
        "SANDBOX_ID",
        "SANDBOX_TIMEOUT",
        "GIVEN",
        "PWD",
        "SHLVL",
        "_",
        "OLDPWD",
        "USER",
        "LOGNAME",
        "SHELL",
        "TMPDIR",
    ];
    for line in environment.lines() {
        let name = line.split('=').next().unwrap();
        assert!(known.contains(&name), "a variable that nobody gave: {line}");
    }
}

#[tokio::test]
async fn a_value_stands_in_no_process_list() {
    let secret = random_name("s3cr3t");
    let sandbox = Stack::shared().sandbox_with(json!({"env": {"OF_SANDBOX": format!("{secret}-of-sandbox")}})).await;
    let command = "echo \"$VALUE\"; cat /proc/[0-9]*/cmdline | tr '\\0' ' '; read -t 30 _ < <(sleep 30)";
    let mut stream = sandbox.open_stream(json!({"command": command, "env": {"VALUE": secret}})).await;
    let first = stream.next().await.unwrap();
    assert!(first.data.contains(&secret), "the command has it: {first:?}");
    assert!(find_by_argument(&secret).is_empty(), "a process of this machine has it in its arguments");
    let listed = sandbox.sh("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").await;
    assert!(!listed.contains(&secret), "{listed}");
}

#[tokio::test]
async fn an_answer_about_a_sandbox_does_not_tell_its_values() {
    let secret = random_name("s3cr3t");
    let sandbox = Stack::shared().sandbox_with(json!({"env": {"VALUE": secret}})).await;
    for answer in [
        sandbox.call("getSandbox", json!({})).await,
        sandbox.client.call("listSandboxes", &json!({})).await,
        sandbox.client.call("createSandbox", &json!({"id": sandbox.id, "env": {"SECRET": "other"}})).await,
    ] {
        assert!(!answer.text().contains(&secret), "{}", answer.text());
    }
}
