//! Background processes in a container: killed with all their children, told as they went, and left alone by whatever ends beside them.

use serde_json::{Value, json};
use test_support::{ContainerStack, PATIENCE, Sandbox, eventually, find_by_argument, random_name, within};

async fn of(sandbox: &Sandbox, tool: &str, id: &Value, mut arguments: Value) -> Value {
    arguments["processId"] = id.clone();
    sandbox.call(tool, arguments).await.ok()
}

fn text(logs: &Value) -> String {
    logs["chunks"].as_array().unwrap().iter().filter_map(|chunk| chunk["data"].as_str()).collect()
}

#[tokio::test]
async fn killing_leaves_nothing_of_the_tree_and_starts_are_told_as_they_went() {
    let sandbox = ContainerStack::shared().sandbox().await;
    let marker = random_name("tree");
    let command =
        format!("(exec -a {marker} sleep 999) & (setsid bash -c 'exec -a {marker} sleep 998' &) ; echo up; wait");
    let tree = sandbox.call("startBackgroundProcess", json!({"name": "tree", "command": command})).await.ok();
    let both = || async { (find_by_argument(&marker).len() >= 2).then_some(()) };
    eventually("both run", PATIENCE, both).await;
    assert_eq!(of(&sandbox, "killProcess", &tree["processId"], json!({})).await["status"], "killed");
    assert!(find_by_argument(&marker).is_empty(), "nothing is left once that is answered");
    for round in 0..20 {
        let fast = sandbox.call("startBackgroundProcess", json!({"name": "fast", "command": "echo hi"})).await.ok();
        assert!(fast["pid"].as_i64().is_some_and(|pid| pid > 1), "{round}: {fast}");
        let waited = of(&sandbox, "waitForProcess", &fast["processId"], json!({})).await;
        assert_eq!((&waited["process"]["status"], &waited["process"]["exitCode"]), (&json!("exited"), &json!(0)));
        assert_eq!(text(&of(&sandbox, "getProcessLogs", &fast["processId"], json!({})).await), "hi\n", "{round}");
    }
    let missing = json!({"name": "missing", "command": "exec /nonexistent"});
    let missing = sandbox.call("startBackgroundProcess", missing).await.ok();
    let waited = of(&sandbox, "waitForProcess", &missing["processId"], json!({})).await;
    assert_eq!(waited["process"]["exitCode"], 127, "{waited}");
    let listed = sandbox.call("listProcesses", json!({})).await.ok();
    let phantoms = listed["processes"].as_array().unwrap().iter().filter(|one| one["status"] == "running");
    assert_eq!(phantoms.count(), 0, "{listed}");
}

#[tokio::test]
async fn a_process_outlives_what_ends_around_it_and_has_its_sandboxs_variables() {
    let stack = ContainerStack::shared();
    let sandbox = stack.sandbox_with(json!({"env": {"A": "a b'c\"$HOME\né", "B": "1"}})).await;
    let process = json!({
        "name": "x",
        "command": "printf '%s|%s\\n' \"$A\" \"$B\"; read x; echo $x",
        "env": {"B": "2"},
        "keepStdin": true
    });
    let process = sandbox.call("startBackgroundProcess", process).await.ok();
    let id = &process["processId"];
    let mut left = sandbox.open_stream(json!({"command": "echo; sleep 300", "timeout": 600})).await;
    within("output", PATIENCE, left.next()).await;
    drop(left);
    let follow = json!({"sandboxId": sandbox.id, "processId": id, "follow": true, "timeout": 60});
    let mut follower = sandbox.client.stream("getProcessLogs", &follow).await;
    within("output", PATIENCE, follower.next()).await;
    drop(follower);
    sandbox.call("exec", json!({"command": "sleep 300", "timeout": 1})).await.problem(504, "timeout");
    // The command of the reader that left is ended; what stands beside it is not.
    let ended = || async { (sandbox.sh("pgrep -xc sleep || true").await == "0\n").then_some(()) };
    eventually("the commands around it have ended", PATIENCE, ended).await;
    let after = of(&sandbox, "getProcess", id, json!({})).await;
    assert_eq!((&after["pid"], &after["status"]), (&process["pid"], &json!("running")), "{after}");
    of(&sandbox, "writeProcessInput", id, json!({"data": "after\n"})).await;
    of(&sandbox, "waitForProcess", id, json!({})).await;
    assert_eq!(text(&of(&sandbox, "getProcessLogs", id, json!({})).await), "a b'c\"$HOME\né|2\nafter\n");
}

/// What a container is started with reaches everything that is run in it, also once it was changed and in the next container.
#[tokio::test]
async fn the_environment_reaches_everything_in_every_start() {
    let stack = ContainerStack::shared();
    let sandbox = stack.sandbox_with(json!({"env": {"A": "first"}})).await;
    let seen = async || {
        let shell = sandbox.sh("printf %s $A").await;
        let python = json!({"command": "import os; print(os.environ['A'], end='')", "language": "python"});
        let python = sandbox.exec(python).await["stdout"].as_str().unwrap().to_owned();
        let process = json!({"name": "x", "command": "printf %s $A"});
        let process = sandbox.call("startBackgroundProcess", process).await.ok();
        of(&sandbox, "waitForProcess", &process["processId"], json!({})).await;
        [shell, python, text(&of(&sandbox, "getProcessLogs", &process["processId"], json!({})).await)]
    };
    assert_eq!(seen().await, ["first"; 3]);
    sandbox.call("updateSandbox", json!({"env": {"A": "second"}})).await.ok();
    assert_eq!(seen().await, ["second"; 3]);
    sandbox.call("stopSandbox", json!({})).await.ok();
    assert_eq!(seen().await, ["second"; 3], "in the next container");
}
