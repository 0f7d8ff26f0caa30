//! Faults between the Worker and a sandbox. Whatever happens there, the caller gets an answer in time that is true.

use reqwest::Method;
use serde_json::{Value, json};
use test_support::{Answer, Fault, Operation, PATIENCE, Sandbox, Stack, Terminal, random_name, within};

/// Buffered and streamed calls of one command, each as the problem it must end in.
async fn problems(sandbox: &Sandbox, arguments: Value) -> Vec<Value> {
    let buffered = within("a buffered answer", PATIENCE, sandbox.call("exec", arguments.clone())).await;
    buffered.any_problem();
    let streamed = within("the end of a stream", PATIENCE, sandbox.exec_streamed(arguments)).await;
    vec![buffered.json(), streamed.error().clone()]
}

/// Buffered and streamed calls of one command, each as its output or its problem.
async fn outcomes(sandbox: &Sandbox, arguments: Value) -> Vec<Value> {
    let buffered = within("a buffered answer", PATIENCE, sandbox.call("exec", arguments.clone())).await;
    let streamed = within("the end of a stream", PATIENCE, sandbox.exec_streamed(arguments)).await;
    let (Terminal::Result(end) | Terminal::Error(end)) = streamed.terminal;
    vec![buffered.json(), end]
}

/// The command's own end, found again by asking the same sandbox, or the admission that it is not known.
#[track_caller]
fn true_or_unknown(outcome: &Value, exit_code: i32, stdout: &str) {
    if outcome.get("code").is_some() {
        return outcome_is_unknown(outcome);
    }
    assert_eq!((&outcome["exitCode"], &outcome["stdout"]), (&json!(exit_code), &json!(stdout)), "{outcome}");
}

#[track_caller]
fn outcome_is_unknown(problem: &Value) {
    assert_eq!((&problem["code"], &problem["status"]), (&json!("outcome_unknown"), &json!(502)), "{problem}");
    assert_eq!(problem["retryable"], false, "it may have run: {problem}");
}

#[tokio::test]
async fn a_sandbox_that_never_answers_is_given_up_at_the_deadline() {
    let stack = Stack::shared();
    let sandbox = stack.sandbox().await;
    stack.proxy.inject(&sandbox.id, Operation::Exec, Fault::NeverAnswers);
    let arguments = json!({"command": "echo never", "timeout": 1});
    for problem in problems(&sandbox, arguments).await {
        outcome_is_unknown(&problem);
    }
    stack.proxy.heal(&sandbox.id);
    assert_eq!(sandbox.sh("echo healed").await, "healed\n");
}

#[tokio::test]
async fn a_connection_closed_without_an_answer_is_no_success() {
    let stack = Stack::shared();
    let sandbox = stack.sandbox().await;
    stack.proxy.inject(&sandbox.id, Operation::Exec, Fault::ClosesAtOnce);
    for problem in problems(&sandbox, json!({"command": "echo x", "timeout": 1})).await {
        let code = problem["code"].as_str().unwrap();
        assert!(["outcome_unknown", "sandbox_unavailable"].contains(&code), "{problem}");
        if code == "outcome_unknown" {
            outcome_is_unknown(&problem);
        }
    }
    stack.proxy.heal(&sandbox.id);
    assert_eq!(sandbox.sh("echo healed").await, "healed\n");
}

#[tokio::test]
async fn a_command_never_runs_twice_whatever_breaks() {
    let stack = Stack::shared();
    for fault in [Fault::ClosesAtOnce, Fault::ClosesAfterFirstOutput, Fault::OmitsExit] {
        let sandbox = stack.sandbox().await;
        stack.proxy.inject_times(&sandbox.id, Operation::Exec, fault.clone(), 1);
        let answer =
            sandbox.call("exec", json!({"command": "echo ran; echo ran >> count; sleep 0.3", "timeout": 5})).await;
        if answer.status == 200 {
            assert_eq!(answer.ok()["exitCode"], 0, "re-attached: {fault:?}");
        } else {
            answer.any_problem();
        }
        let count = sandbox.sh("sleep 0.5; cat count 2>/dev/null | wc -l").await;
        assert!(["0\n", "1\n"].contains(&count.as_str()), "{fault:?}: it ran {count} times");
    }
}

#[tokio::test]
async fn a_stream_that_breaks_is_no_success() {
    let stack = Stack::shared();
    let sandbox = stack.sandbox().await;
    stack.proxy.inject(&sandbox.id, Operation::Exec, Fault::ClosesAfterFirstOutput);
    let arguments = json!({"command": "echo first; sleep 0.2; echo second; exit 3"});
    for outcome in outcomes(&sandbox, arguments).await {
        true_or_unknown(&outcome, 3, "first\nsecond\n");
    }
}

#[tokio::test]
async fn a_stream_that_breaks_once_is_found_again_or_its_outcome_is_unknown() {
    let stack = Stack::shared();
    let sandbox = stack.sandbox().await;
    stack.proxy.inject_times(&sandbox.id, Operation::ExecStart, Fault::ClosesAfterFirstOutput, 1);
    let transcript =
        within("the end", PATIENCE, sandbox.exec_streamed(json!({"command": "echo first; sleep 0.5; echo second"})))
            .await;
    match &transcript.terminal {
        Terminal::Result(output) => {
            assert_eq!(output["stdout"], "first\nsecond\n");
            assert_eq!(transcript.stdout, b"first\nsecond\n", "no byte twice and none lost");
        }
        Terminal::Error(problem) => outcome_is_unknown(problem),
    }
}

#[tokio::test]
async fn a_stream_that_ends_without_its_exit_is_no_success() {
    let stack = Stack::shared();
    let sandbox = stack.sandbox().await;
    stack.proxy.inject(&sandbox.id, Operation::Exec, Fault::OmitsExit);
    for problem in problems(&sandbox, json!({"command": "echo out; exit 0", "timeout": 2})).await {
        outcome_is_unknown(&problem);
    }
}

#[tokio::test]
async fn a_stream_that_falls_silent_is_given_up() {
    let stack = Stack::shared();
    let sandbox = stack.sandbox().await;
    stack.proxy.inject(&sandbox.id, Operation::Exec, Fault::FallsSilent);
    for outcome in outcomes(&sandbox, json!({"command": "echo out; sleep 0.1; exit 3"})).await {
        true_or_unknown(&outcome, 3, "out\n");
    }
}

#[tokio::test]
async fn another_boot_in_the_middle_of_a_command_interrupts_it() {
    let stack = Stack::shared();
    let sandbox = stack.sandbox().await;
    stack.proxy.inject_times(&sandbox.id, Operation::ExecStart, Fault::ClosesAfterFirstOutput, 1);
    stack.proxy.inject(&sandbox.id, Operation::Exec, Fault::StaleGeneration);
    let arguments = json!({"command": "echo begun; sleep 1; echo ended"});
    let transcript = within("the end of a stream", PATIENCE, sandbox.exec_streamed(arguments)).await;
    let problem = transcript.error();
    let code = problem["code"].as_str().unwrap();
    assert!(["interrupted", "outcome_unknown"].contains(&code), "{problem}");
    assert_eq!(problem["retryable"], false, "{problem}");
    stack.proxy.heal(&sandbox.id);
    assert_eq!(sandbox.sh("echo next").await, "next\n");
}

#[tokio::test]
async fn an_answer_in_json_where_a_stream_was_expected_is_passed_on() {
    let stack = Stack::shared();
    let sandbox = stack.sandbox().await;
    let marker = random_name("reason");
    let body = json!({"code": "unavailable", "message": format!("the machine is full: {marker}")});
    stack.proxy.inject(&sandbox.id, Operation::Exec, Fault::Answers(503, body));
    for problem in problems(&sandbox, json!({"command": "true", "timeout": 2})).await {
        assert_eq!((&problem["code"], &problem["status"]), (&json!("sandbox_unavailable"), &json!(503)), "{problem}");
        assert!(problem.to_string().contains(&marker), "what the sandbox said is kept: {problem}");
    }
    stack.proxy.heal(&sandbox.id);
    let busy = json!({"code": "too_many_execs", "message": "64 execs run"});
    stack.proxy.inject(&sandbox.id, Operation::Exec, Fault::Answers(429, busy));
    for problem in problems(&sandbox, json!({"command": "true", "timeout": 2})).await {
        assert!([429, 503].contains(&problem["status"].as_u64().unwrap()), "{problem}");
        assert_eq!(problem["retryable"], true, "{problem}");
    }
}

#[tokio::test]
async fn answers_that_make_no_sense_are_never_a_success() {
    let stack = Stack::shared();
    let nonsense = [
        (200, json!({})),
        (200, json!({"exitCode": 0})),
        (200, json!([])),
        (500, json!({"code": "internal", "message": "the daemon panicked"})),
        (404, json!({"code": "some_new_code", "message": "x"})),
        (502, json!("<html>")),
        (204, json!(null)),
    ];
    for (status, body) in nonsense {
        let sandbox = stack.sandbox().await;
        stack.proxy.inject(&sandbox.id, Operation::Exec, Fault::Answers(status, body.clone()));
        for problem in problems(&sandbox, json!({"command": "true", "timeout": 1})).await {
            assert!(problem["status"].as_u64().unwrap() >= 500, "{status} {body}: {problem}");
            // Only what a daemon itself calls internal is told as that.
            assert!(problem["code"] != "internal" || status == 500, "{status} {body}: {problem}");
        }
    }
}

#[tokio::test]
async fn a_start_that_fails_says_why_and_can_be_tried_again() {
    let stack = Stack::shared();
    let sandbox = stack.unmade_sandbox();
    let body = json!({"code": "unavailable", "message": "no more sandboxes on this host"});
    stack.proxy.inject(&sandbox.id, Operation::Start, Fault::Answers(503, body));
    let create = || sandbox.client.call("createSandbox", &json!({"id": sandbox.id}));
    let answer = within("a refusal", PATIENCE, create()).await;
    let problem = answer.problem(503, "sandbox_unavailable");
    assert!(problem.retryable && problem.headers.contains_key("retry-after"), "{problem:?}");
    assert!(problem.detail.contains("no more sandboxes"), "{}", problem.detail);
    let gone = within("an answer", PATIENCE, sandbox.call("getSandbox", json!({}))).await;
    gone.problem(404, "not_found");
    stack.proxy.heal(&sandbox.id);
    create().await.ok();
    assert_eq!(sandbox.sh("echo started").await, "started\n");
}

#[tokio::test]
async fn a_start_that_never_answers_is_given_up() {
    let stack = Stack::shared();
    let sandbox = stack.unmade_sandbox();
    stack.proxy.inject(&sandbox.id, Operation::Start, Fault::NeverAnswers);
    let create = || sandbox.client.call("createSandbox", &json!({"id": sandbox.id}));
    let answer = within("a refusal", PATIENCE, create()).await;
    let problem = answer.any_problem();
    assert!([503, 504].contains(&answer.status), "{} {}", answer.status, problem.code);
    stack.proxy.heal(&sandbox.id);
    create().await.ok();
    assert_eq!(sandbox.sh("echo started").await, "started\n");
}

#[tokio::test]
async fn a_host_that_refuses_the_workers_token_is_no_fault_of_the_caller() {
    let stack = Stack::shared();
    let sandbox = stack.sandbox().await;
    let body = json!({"code": "unauthenticated", "message": "another token"});
    stack.proxy.inject(&sandbox.id, Operation::Any, Fault::Answers(401, body));
    let answer = within("a refusal", PATIENCE, sandbox.call("exec", json!({"command": "true", "timeout": 1}))).await;
    let problem = answer.any_problem();
    assert!(answer.status >= 500, "{} {}", answer.status, problem.code);
}

#[tokio::test]
async fn file_routes_meet_the_same_faults() {
    let stack = Stack::shared();
    let sandbox = stack.sandbox().await;
    sandbox.call("writeFile", json!({"path": "f", "content": "x"})).await.ok();
    for fault in
        [Fault::ClosesAtOnce, Fault::NeverAnswers, Fault::Answers(503, json!({"code": "unavailable", "message": "x"}))]
    {
        stack.proxy.inject(&sandbox.id, Operation::Files, fault.clone());
        for call in [
            sandbox.call("readFile", json!({"path": "f"})),
            sandbox.call("writeFile", json!({"path": "f", "content": "y"})),
            sandbox.call("editFile", json!({"path": "f", "oldText": "x", "newText": "y"})),
        ] {
            let answer = within("a refusal", PATIENCE, call).await;
            answer.any_problem();
            assert!(answer.status >= 500, "{fault:?}: {}", answer.text());
        }
        let raw = within("a refusal", PATIENCE, sandbox.client.get(&sandbox.file_path("f"))).await;
        raw.any_problem();
        assert!(raw.status >= 500, "{fault:?}: {}", raw.text());
        stack.proxy.heal(&sandbox.id);
        sandbox.client.get(&sandbox.file_path("f")).await;
    }
}

/// Calls a tool in whose course the platform resets objects: see `tests/support/doubles.mjs`.
async fn while_objects_are_reset(sandbox: &Sandbox, tool: &str, mut arguments: Value, fault: &str) -> Answer {
    arguments["sandboxId"] = json!(sandbox.id);
    let request = sandbox.client.request(Method::POST, &format!("/v1/tools/{tool}"));
    sandbox.client.send(request.header("x-test-throws", fault).json(&arguments)).await
}

#[tokio::test]
async fn what_only_reads_outlives_resets_of_the_objects_behind_it() {
    let sandbox = Stack::shared().sandbox().await;
    sandbox.sh("echo kept > file").await;
    for count in [1, 3] {
        for object in ["TENANT /admit", "SANDBOX /control"] {
            let fault = format!("{object} {count} durableObjectReset retryable remote");
            let read = while_objects_are_reset(&sandbox, "readFile", json!({ "path": "file" }), &fault).await;
            assert_eq!(read.ok()["content"], "kept\n", "{fault}");
        }
        let fault = format!("SANDBOX /describe {count} durableObjectReset");
        let told = while_objects_are_reset(&sandbox, "getSandbox", json!({}), &fault).await;
        assert_eq!(told.ok()["sandboxId"], sandbox.id.as_str());
    }
    let endless = while_objects_are_reset(
        &sandbox,
        "readFile",
        json!({ "path": "file" }),
        "SANDBOX /control 99 durableObjectReset",
    );
    let problem = endless.await.problem(503, "object_unavailable");
    assert_eq!((&problem.details["reason"], problem.retryable), (&json!("reset"), false), "{problem:?}");
}

#[tokio::test]
async fn what_changes_something_is_told_of_a_reset_as_the_platform_says_it() {
    let sandbox = Stack::shared().sandbox().await;
    for (properties, reason, retryable) in [
        ("durableObjectReset retryable", "reset", true),
        ("durableObjectReset", "reset", false),
        ("retryable", "connection_lost", true),
        ("overloaded retryable", "overloaded", false),
    ] {
        let fault = format!("SANDBOX / 1 {properties}");
        for (tool, arguments) in [
            ("exec", json!({ "command": "echo ran >> ran" })),
            ("writeFile", json!({ "path": "written", "content": "x" })),
            ("stopSandbox", json!({})),
        ] {
            let answer = while_objects_are_reset(&sandbox, tool, arguments, &fault).await;
            let problem = answer.problem(503, "object_unavailable");
            assert_eq!(problem.details["reason"], reason, "{tool}: {problem:?}");
            assert_eq!(problem.retryable, retryable, "{tool} {properties}");
            assert_eq!(problem.headers.contains_key("retry-after"), retryable, "{tool} {properties}");
        }
    }
    // The stub that threw passed nothing on, and nothing asked a second time.
    assert_eq!(sandbox.sh("ls ran written 2>/dev/null | wc -l").await, "0\n");
    assert_eq!(sandbox.starts(), 1, "it was never stopped");
    // An error that an object throws of its own accord is no reset.
    let fault = "SANDBOX /control 1 remote";
    let answer = while_objects_are_reset(&sandbox, "exec", json!({ "command": "true" }), fault).await;
    answer.problem(502, "outcome_unknown");
}
