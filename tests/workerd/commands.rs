//! Running commands: shells, languages, standard input, exit status; the same buffered and streamed.

use serde_json::{Value, json};
use test_support::{PATIENCE, Sandbox, Stack, eventually, find_by_argument, random_name, within};

/// Runs the same command buffered and streamed, which must tell the same, and gives what both told.
async fn both_ways(sandbox: &Sandbox, arguments: Value) -> Value {
    let buffered = sandbox.exec(arguments.clone()).await;
    let transcript = sandbox.exec_streamed(arguments).await;
    let streamed = transcript.result();
    for field in ["exitCode", "stdout", "stderr", "sandboxId", "truncated", "stdoutBytes", "stderrBytes", "signal"] {
        assert_eq!(buffered[field], streamed[field], "{field}: {buffered} {streamed}");
    }
    assert_eq!(Some(String::from_utf8_lossy(&transcript.stdout).as_ref()), streamed["stdout"].as_str());
    assert_eq!(Some(String::from_utf8_lossy(&transcript.stderr).as_ref()), streamed["stderr"].as_str());
    buffered
}

#[tokio::test]
async fn a_heredoc_ends_and_the_next_command_runs() {
    let sandbox = Stack::shared().sandbox().await;
    let heredoc = json!({"command": "cat > a.txt <<'EOF'\n  x\ny\nEOF\nwc -l a.txt"});
    let output = within("a heredoc", PATIENCE, both_ways(&sandbox, heredoc)).await;
    assert_eq!(output["stdout"], "2 a.txt\n");
    let next = within("the next command", PATIENCE, both_ways(&sandbox, json!({"command": "echo ok"})));
    assert_eq!(next.await["stdout"], "ok\n");
}

#[tokio::test]
async fn standard_input_is_at_its_end_when_none_is_given() {
    let sandbox = Stack::shared().sandbox().await;
    let cases = [("cat", 0, ""), ("read x; echo $?", 0, "1\n"), ("python3 -c 'input()'", 1, ""), ("bash", 0, "")];
    for (command, status, stdout) in cases {
        let run = both_ways(&sandbox, json!({"command": command, "timeout": 20}));
        let output = within(command, PATIENCE, run).await;
        assert_eq!((&output["exitCode"], &output["stdout"]), (&json!(status), &json!(stdout)), "{command}: {output}");
    }
}

#[tokio::test]
async fn standard_input_is_given_whole_and_then_closed() {
    let sandbox = Stack::shared().sandbox().await;
    let text = "a line\nnot ended: é\u{1f600}";
    let output = both_ways(&sandbox, json!({"command": "cat; echo; wc -c", "stdin": text})).await;
    assert_eq!(output["stdout"], format!("{text}\n0\n"));
    // A command that does not read is not held up by what it was given.
    let output = both_ways(&sandbox, json!({"command": "true", "stdin": "x".repeat(1_000_000)})).await;
    assert_eq!(output["exitCode"], 0);
}

#[tokio::test]
async fn a_failing_command_is_a_successful_call() {
    let sandbox = Stack::shared().sandbox().await;
    for status in [1, 42, 255] {
        let output = both_ways(&sandbox, json!({"command": format!("echo out; echo err >&2; exit {status}")})).await;
        assert_eq!(output["exitCode"], status);
        assert_eq!((&output["stdout"], &output["stderr"]), (&json!("out\n"), &json!("err\n")));
        assert!(output.get("signal").is_none(), "{output}");
    }
}

#[tokio::test]
async fn what_cannot_run_says_so_as_a_shell_does() {
    let sandbox = Stack::shared().sandbox().await;
    let output = both_ways(&sandbox, json!({"command": "no-such-command-here"})).await;
    assert_eq!(output["exitCode"], 127);
    assert!(output["stderr"].as_str().unwrap().contains("no-such-command-here"), "{output}");
    let output = both_ways(&sandbox, json!({"command": "/tmp"})).await;
    assert_eq!(output["exitCode"], 126);
    assert_ne!(output["stderr"], "");
    let output = both_ways(&sandbox, json!({"command": "echo 'x' > plain; ./plain"})).await;
    assert_eq!(output["exitCode"], 126);
}

#[tokio::test]
async fn a_signal_is_told_apart_from_an_exit_and_from_a_timeout() {
    let sandbox = Stack::shared().sandbox().await;
    let output = sandbox.exec(json!({"command": "kill -KILL $$"})).await;
    assert_eq!((&output["exitCode"], &output["signal"]), (&json!(137), &json!("SIGKILL")));
    let output = sandbox.exec(json!({"command": "exit 137"})).await;
    assert_eq!(output["exitCode"], 137);
    assert!(output.get("signal").is_none(), "{output}");
    let hungry = "ulimit -v 400000; python3 -c 'x=[bytearray(10**7) for _ in range(10**4)]'";
    let output = sandbox.exec(json!({"command": hungry})).await;
    assert_ne!(output["exitCode"], 0);
    assert!(output["stderr"].as_str().unwrap().contains("MemoryError"), "{output}");
    assert_eq!(sandbox.sh("echo alive").await, "alive\n");
}

#[tokio::test]
async fn the_two_output_channels_stay_apart() {
    let sandbox = Stack::shared().sandbox().await;
    let output = both_ways(&sandbox, json!({"command": "sh -c 'echo o; echo e >&2'"})).await;
    assert_eq!((&output["stdout"], &output["stderr"]), (&json!("o\n"), &json!("e\n")));
}

#[tokio::test]
async fn a_background_child_does_not_hold_the_answer() {
    let sandbox = Stack::shared().sandbox().await;
    let marker = random_name("child");
    let command = format!("bash -c 'sleep 300; : {marker}' & echo started");
    let output = sandbox.exec(json!({"command": command})).await;
    assert_eq!(output["stdout"], "started\n");
    let output = sandbox.exec_streamed(json!({"command": command})).await;
    assert_eq!(output.result()["stdout"], "started\n");
    // A fork has the arguments of its parent until it runs its own program.
    let both = || async { (find_by_argument(&marker).len() == 2).then_some(()) };
    eventually("both children still run, and nothing else", PATIENCE, both).await;
}

#[tokio::test]
async fn each_language_runs_its_own_code() {
    let sandbox = Stack::shared().sandbox().await;
    let python = "import sys\nprint(6 * 7)\nprint('e', file=sys.stderr)\nsys.exit(3)";
    let output = both_ways(&sandbox, json!({"command": python, "language": "python"})).await;
    assert_eq!((&output["stdout"], &output["stderr"], &output["exitCode"]), (&json!("42\n"), &json!("e\n"), &json!(3)));
    let bash = "a=(1 2 3); echo ${#a[@]}";
    assert_eq!(both_ways(&sandbox, json!({"command": bash, "language": "bash"})).await["stdout"], "3\n");
    assert_eq!(both_ways(&sandbox, json!({"command": bash})).await["stdout"], "3\n", "bash is the default");
    let javascript = "console.log([6, 7].map(n => n * 7).join(), `it's \"quoted\" $HOME`); process.exitCode = 4";
    let output = sandbox.exec(json!({"command": javascript, "language": "javascript"})).await;
    if output["exitCode"] == 127 {
        // A machine without node in its system folders has none in a sandbox either; then it is said as for any program.
        assert!(output["stderr"].as_str().unwrap().contains("node"), "{output}");
    } else {
        assert_eq!(output["stdout"], "42,49 it's \"quoted\" $HOME\n");
        assert_eq!(output["exitCode"], 4);
    }
}

#[tokio::test]
async fn code_may_hold_every_quote_and_a_dash_at_its_start() {
    let sandbox = Stack::shared().sandbox().await;
    let python = "-1\nprint('''it's \"x\" `id` $(id) \\\\ $HOME''')";
    let output = both_ways(&sandbox, json!({"command": python, "language": "python"})).await;
    assert_eq!(output["stdout"], "it's \"x\" `id` $(id) \\ $HOME\n");
    let output = both_ways(&sandbox, json!({"command": "-x"})).await;
    assert_eq!(output["exitCode"], 127, "a command that begins with a dash is no option of the shell: {output}");
}

#[tokio::test]
async fn commands_share_files_and_no_shell_state() {
    let sandbox = Stack::shared().sandbox().await;
    assert_eq!(sandbox.sh("pwd").await, "/workspace\n");
    sandbox.sh("cd /tmp; export LEFT=over; echo here > /workspace/file").await;
    assert_eq!(sandbox.sh("pwd; echo \"$LEFT\"; cat file").await, "/workspace\n\nhere\n");
    sandbox.sh("mkdir -p deep/er").await;
    let output = sandbox.exec(json!({"command": "pwd", "cwd": "deep/er"})).await;
    assert_eq!(output["stdout"], "/workspace/deep/er\n");
    let output = sandbox.exec(json!({"command": "pwd", "cwd": "/tmp"})).await;
    assert_eq!(output["stdout"], "/tmp\n");
}

#[tokio::test]
async fn an_exit_does_not_end_the_sandbox() {
    let sandbox = Stack::shared().sandbox().await;
    assert_eq!(sandbox.exec(json!({"command": "exit 42"})).await["exitCode"], 42);
    assert_eq!(sandbox.sh("echo still").await, "still\n");
    let output = sandbox.exec(json!({"command": "kill -TERM 1; kill -KILL 1; echo tried"})).await;
    assert_eq!(output["stdout"], "tried\n", "a command cannot end the daemon: {output}");
    assert_eq!(sandbox.sh("echo still").await, "still\n");
}

#[tokio::test]
async fn a_sandbox_sees_its_own_processes_and_files_only() {
    let stack = Stack::shared();
    let (one, other) = (stack.sandbox().await, stack.sandbox().await);
    let marker = random_name("marker");
    one.sh(&format!("echo secret > {marker}; echo secret > /tmp/{marker}; (exec -a {marker} sleep 300) >&- 2>&- &"))
        .await;
    assert!(!find_by_argument(&marker).is_empty(), "it runs on this machine");
    let seen = other.sh("cat /proc/[0-9]*/cmdline | tr '\\0' ' '; ls / /tmp /workspace /home /root 2>&1; id -u").await;
    assert!(!seen.contains(&marker), "{seen}");
    assert!(!seen.contains("host-token") && !seen.contains("test-key"), "{seen}");
    let seen =
        other.sh("cat /proc/*/environ /proc/1/mem 2>/dev/null | tr '\\0' '\\n'; ls -la /proc/1/fd 2>&1; true").await;
    assert!(!seen.contains("TOKEN") && !seen.contains(&stack.key), "{seen}");
}
