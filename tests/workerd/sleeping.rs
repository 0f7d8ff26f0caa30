//! Idle sleep, stopping, waking and changing a sandbox, with real alarms.

use std::time::Duration;

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use test_support::{PATIENCE, Sandbox, Stack, StackOptions, eventually, find_by_argument, random_name, within};

async fn told(sandbox: &Sandbox) -> Value {
    sandbox.call("getSandbox", json!({})).await.ok()
}

async fn sleeps(sandbox: &Sandbox) {
    let asleep = || async { (told(sandbox).await["state"] == "sleeping").then_some(()) };
    eventually("it sleeps", PATIENCE, asleep).await;
}

#[tokio::test]
async fn an_unused_sandbox_sleeps_though_it_is_asked_about_and_its_next_use_wakes_it() {
    let stack = Stack::shared();
    let sandbox = stack.sandbox_with(json!({"sleepAfter": 15, "env": {"A": "1"}})).await;
    let marker = random_name("server");
    sandbox.sh(&format!("echo kept > file; (exec -a {marker} sleep 300) >&- 2>&- & echo")).await;
    let first = told(&sandbox).await;
    assert_eq!(
        (&first["sleepAfter"], &first["keepAlive"], &first["startReason"]),
        (&json!(15), &json!(false), &json!("created"))
    );
    sleeps(&sandbox).await;
    assert!(find_by_argument(&marker).is_empty(), "a background process that nobody calls keeps nothing awake");
    let asleep = told(&sandbox).await;
    assert_eq!((&asleep["status"], &asleep["uptime"]), (&json!("stopped"), &json!(0.0)));
    // The list is told a moment after it is so.
    let listed = || async {
        let listed = stack.client().call("listSandboxes", &json!({"status": "stopped", "limit": 500})).await.ok();
        listed["sandboxes"].as_array().unwrap().iter().find(|one| one["sandboxId"] == sandbox.id).cloned()
    };
    let listed = eventually("the list has it as stopped", PATIENCE, listed).await;
    assert_eq!(listed["state"], "sleeping");
    assert!(listed["lastUsedAt"].as_str().unwrap().ends_with('Z'), "{listed}");
    assert_eq!(sandbox.sh("cat file; echo $A").await, "kept\n1\n");
    let woken = told(&sandbox).await;
    assert_eq!((&woken["startReason"], &woken["state"]), (&json!("woken"), &json!("running")));
    assert_eq!(woken["generation"].as_u64(), first["generation"].as_u64().map(|generation| generation + 1));
}

#[tokio::test]
async fn a_sandbox_that_sleeps_is_left_alone() {
    let sandbox = Stack::shared().sandbox_with(json!({"sleepAfter": 1})).await;
    sleeps(&sandbox).await;
    let asked = Stack::shared().proxy.seen(&sandbox.id).len();
    // Longer than several idle times: an alarm that was not cleared would ask the host again.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(Stack::shared().proxy.seen(&sandbox.id).len(), asked);
    assert_eq!(sandbox.starts(), 1);
}

#[tokio::test]
async fn a_destroyed_sandbox_is_left_alone_and_nothing_that_is_asked_of_it_starts_it() {
    let stack = Stack::shared();
    let sandbox = stack.sandbox_with(json!({"sleepAfter": 1})).await;
    sandbox.call("destroySandbox", json!({})).await.ok();
    let asked = stack.proxy.seen(&sandbox.id).len();
    for (tool, arguments) in [
        ("getSandbox", json!({})),
        ("exec", json!({"command": "true"})),
        ("readFile", json!({"path": "a"})),
        ("listFiles", json!({})),
        ("listProcesses", json!({})),
        ("wakeSandbox", json!({})),
        ("stopSandbox", json!({})),
    ] {
        sandbox.call(tool, arguments).await.problem(404, "not_found");
    }
    sandbox.client.get(&sandbox.file_path("a")).await.problem(404, "not_found");
    // Longer than several idle times: a timer that was not cleared would ask the host.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(stack.proxy.seen(&sandbox.id).len(), asked, "its machine is asked for nothing");
}

#[tokio::test]
async fn a_running_command_keeps_it_awake_buffered_and_streamed() {
    let sandbox = Stack::shared().sandbox_with(json!({"sleepAfter": 1})).await;
    let buffered = sandbox.exec(json!({"command": "sleep 4; echo $SANDBOX_ID", "timeout": 30})).await;
    assert_eq!(buffered["stdout"], format!("{}\n", sandbox.id));
    let streamed = sandbox.exec_streamed(json!({"command": "sleep 4; echo over", "timeout": 30})).await;
    assert_eq!(streamed.stdout, b"over\n");
    assert_eq!(streamed.result()["exitCode"], 0);
    sleeps(&sandbox).await;
}

#[tokio::test]
async fn a_sandbox_that_is_kept_alive_stays_so_when_its_object_is_torn_down_and_sleeps_when_it_no_longer_is() {
    let stack = Stack::start(StackOptions::default());
    let mut sandbox = stack.sandbox_with(json!({"sleepAfter": 1, "keepAlive": true})).await;
    sandbox.sh("true").await;
    stack.worker().restart();
    sandbox.client = stack.client();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let kept = told(&sandbox).await;
    assert_eq!((&kept["state"], &kept["keepAlive"]), (&json!("running"), &json!(true)));
    assert_eq!(sandbox.sh("echo $SANDBOX_TIMEOUT").await, "0\n");
    let changed = sandbox.call("updateSandbox", json!({"keepAlive": false})).await.ok();
    assert_eq!((&changed["keepAlive"], &changed["sleepAfter"]), (&json!(false), &json!(1)));
    sleeps(&sandbox).await;
}

#[tokio::test]
async fn an_object_that_lost_its_memory_lets_a_command_run_and_puts_an_idle_sandbox_to_sleep() {
    let stack = Stack::start(StackOptions::default());
    let mut sandbox = stack.sandbox_with(json!({"sleepAfter": 2})).await;
    sandbox.sh("echo kept > file").await;
    stack.worker().restart();
    sandbox.client = stack.client();
    sleeps(&sandbox).await;
    assert_eq!(sandbox.sh("cat file").await, "kept\n");
}

#[tokio::test]
async fn a_command_right_after_a_stop_runs_in_a_new_generation() {
    let sandbox = Stack::shared().sandbox().await;
    for round in 1..=5 {
        let stopped = sandbox.call("stopSandbox", json!({})).await.ok();
        assert_eq!((&stopped["state"], &stopped["status"]), (&json!("sleeping"), &json!("stopped")));
        assert_eq!(stopped["filesKept"], true);
        assert!(stopped["processesEnded"].as_u64().is_some_and(|count| count >= 1), "{stopped}");
        assert_eq!(sandbox.sh("echo x >> rounds; wc -l < rounds").await.trim(), round.to_string());
    }
    let (stopped, ran) = tokio::join!(
        sandbox.call("stopSandbox", json!({})),
        sandbox.call("exec", json!({"command": "echo ok", "timeout": 20}))
    );
    stopped.ok();
    if ran.status == 200 {
        assert_eq!(ran.ok()["stdout"], "ok\n");
    } else {
        let code = ran.any_problem().code;
        assert!(["interrupted", "outcome_unknown"].contains(&code.as_str()), "{code}");
    }
    assert_eq!(sandbox.sh("echo well").await, "well\n");
}

#[tokio::test]
async fn a_stop_interrupts_what_runs_and_starts_nothing() {
    let sandbox = Stack::shared().sandbox().await;
    let mut stream = sandbox.open_stream(json!({"command": "echo begun; sleep 300", "timeout": 600})).await;
    assert_eq!(within("the first output", PATIENCE, stream.next()).await.unwrap().name, "stdout");
    sandbox.call("stopSandbox", json!({})).await.ok();
    let end = within("the end of the stream", PATIENCE, stream.transcript()).await;
    assert_eq!(
        (&end.error()["code"], &end.error()["retryable"]),
        (&json!("interrupted"), &json!(false)),
        "{}",
        end.error()
    );
    assert_eq!(told(&sandbox).await["state"], "sleeping", "what was interrupted does not wake it");
    assert_eq!(sandbox.starts(), 1);
    let again = sandbox.call("stopSandbox", json!({})).await.ok();
    assert_eq!((&again["processesEnded"], &again["state"]), (&json!(0), &json!("sleeping")));
}

#[tokio::test]
async fn stops_and_wakes_and_commands_at_once_end_in_a_sandbox_that_works() {
    let sandbox = Stack::shared().sandbox().await;
    let calls = (0..24).map(|number| {
        let sandbox = &sandbox;
        async move {
            match number % 3 {
                0 => sandbox.call("stopSandbox", json!({})).await,
                1 => sandbox.call("wakeSandbox", json!({})).await,
                _ => sandbox.call("exec", json!({"command": "echo ok", "timeout": 20})).await,
            }
        }
    });
    for answer in within("all answers", Duration::from_secs(120), join_all(calls)).await {
        if answer.status != 200 {
            let code = answer.any_problem().code;
            assert!(
                ["interrupted", "outcome_unknown", "sandbox_unavailable"].contains(&code.as_str()),
                "{}",
                answer.text()
            );
        }
    }
    assert_eq!(sandbox.sh("echo well").await, "well\n");
}

#[tokio::test]
async fn waking_says_whether_it_had_to_start_by_tool_and_by_route() {
    let sandbox = Stack::shared().sandbox().await;
    assert_eq!(sandbox.call("wakeSandbox", json!({})).await.ok()["woken"], false);
    for path in [format!("/sandbox/{}", sandbox.id), format!("/v1/sandboxes/{}", sandbox.id)] {
        let stopped = sandbox.client.post(&format!("{path}/stop"), "").await.ok();
        assert_eq!(stopped["state"], "sleeping");
        let woken = sandbox.client.post(&format!("{path}/wake"), "").await.ok();
        assert_eq!(
            (&woken["woken"], &woken["state"], &woken["startReason"]),
            (&json!(true), &json!("running"), &json!("woken"))
        );
    }
    let unknown = Stack::shared().unmade_sandbox();
    for tool in ["wakeSandbox", "stopSandbox", "updateSandbox"] {
        unknown.call(tool, json!({})).await.problem(404, "not_found");
    }
    assert_eq!(unknown.starts(), 0);
}

#[tokio::test]
async fn a_new_environment_holds_for_what_is_run_next() {
    let sandbox = Stack::shared().sandbox_with(json!({"env": {"OLD": "1", "BOTH": "old"}})).await;
    let secret = random_name("s3cr3t");
    let print = "echo ${OLD-none} ${BOTH-none} ${NEW-none} $SANDBOX_TIMEOUT";
    assert_eq!(sandbox.sh(print).await, "1 old none 600\n");
    let changed = sandbox
        .call("updateSandbox", json!({"env": {"BOTH": "new", "NEW": secret}, "unsetEnv": ["OLD"], "sleepAfter": 900}))
        .await;
    assert_eq!(changed.ok()["variables"], json!(["BOTH", "NEW"]));
    assert!(!changed.text().contains(&secret));
    assert_eq!(sandbox.sh(print).await, format!("none new {secret} 900\n"));
    assert_eq!(sandbox.starts(), 1, "for that nothing is started anew");
    let call = sandbox.exec(json!({"command": "echo $BOTH", "env": {"BOTH": "call"}})).await;
    assert_eq!(call["stdout"], "call\n");
    sandbox.call("stopSandbox", json!({})).await.ok();
    sandbox.call("updateSandbox", json!({"unsetEnv": ["NEW"]})).await.ok();
    assert_eq!(sandbox.sh(print).await, "none new none 900\n");
}

#[tokio::test]
async fn labels_change_and_the_list_is_filtered_by_them() {
    let stack = Stack::shared();
    let (team, client) = (random_name("team"), stack.client());
    let one = stack.sandbox_with(json!({"labels": {"team": team, "n": "1"}})).await;
    let two = stack.sandbox_with(json!({"labels": {"team": team, "n": "2"}})).await;
    let ids = |answer: Value| -> Vec<String> {
        answer["sandboxes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["sandboxId"].as_str().unwrap().to_owned())
            .collect()
    };
    let with = |labels: Value| {
        let client = &client;
        async move {
            let listed = ids(client.call("listSandboxes", &json!({"labels": labels})).await.ok());
            let got = ids(client.call("getSandbox", &json!({"filters": {"labels": labels}})).await.ok());
            assert_eq!(listed, got);
            listed
        }
    };
    let mut both = vec![one.id.clone(), two.id.clone()];
    both.sort();
    assert_eq!(with(json!({"team": team})).await, both);
    assert_eq!(with(json!({"team": team, "n": "2"})).await, std::slice::from_ref(&two.id));
    assert!(with(json!({"team": "' OR 1=1 --"})).await.is_empty());
    let path = format!("/v1/sandboxes/{}", two.id);
    let request = client.request(Method::PATCH, &path).header("content-type", "application/json");
    let changed = client.send(request.body(json!({"labels": {"other": team}}).to_string())).await.ok();
    assert_eq!(changed["labels"], json!({"other": team}));
    assert_eq!(with(json!({"team": team})).await, std::slice::from_ref(&one.id));
    assert_eq!(with(json!({"other": team})).await, std::slice::from_ref(&two.id));
    let mine = ids(client.get("/v1/sandboxes?owner=root&limit=500").await.ok());
    assert!(mine.contains(&one.id));
    assert!(ids(client.get("/v1/sandboxes?owner=nobody").await.ok()).is_empty());
    assert!(ids(client.get("/v1/sandboxes?createdAfter=2999-01-01T00:00:00Z").await.ok()).is_empty());
    client.get("/v1/sandboxes?createdAfter=yesterday").await.problem(400, "invalid_arguments");
    client.get("/v1/sandboxes?status=asleep").await.problem(400, "invalid_arguments");
}

#[tokio::test]
async fn impossible_settings_are_refused_by_name() {
    let sandbox = Stack::shared().sandbox().await;
    for (arguments, field) in [
        (json!({"sleepAfter": 0}), "sleepAfter"),
        (json!({"sleepAfter": 86_401}), "sleepAfter"),
        (json!({"sleepAfter": "10m"}), "sleepAfter"),
        (json!({"keepAlive": null}), "keepAlive"),
        (json!({"expiresAt": "2001-01-01T00:00:00Z"}), "expiresAt"),
        (json!({"expiresAt": "2999-01-01T00:00:00Z", "expiresAfter": 5}), "expiresAt"),
        (json!({"expiresAfter": -1}), "expiresAfter"),
        (json!({"env": {"A=B": "x"}}), "env"),
        (json!({"unsetEnv": ["A"], "env": {"A": "1"}}), "unsetEnv"),
        (json!({"nothing": 1}), "nothing"),
    ] {
        let problem = sandbox.call("updateSandbox", arguments.clone()).await.problem(400, "invalid_arguments");
        assert!(problem.detail.contains(field), "{arguments}: {}", problem.detail);
    }
    assert_eq!(told(&sandbox).await["sleepAfter"], 600);
}
