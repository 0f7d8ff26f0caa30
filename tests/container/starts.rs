//! Starts: once, with what the sandbox was given, and refused in time with a reason.

use futures_util::future::join_all;
use serde_json::json;
use test_support::{Answer, ContainerOptions, ContainerStack, NamedImage, PATIENCE, docker, eventually, within};

use crate::refused_start;

#[tokio::test]
async fn many_first_calls_make_one_container() {
    let stack = ContainerStack::start(ContainerOptions::default());
    let sandbox = stack.sandbox().await;
    let calls = (0..10).map(|number| sandbox.call("exec", json!({"command": format!("echo {number}")})));
    for (number, answer) in join_all(calls).await.into_iter().enumerate() {
        assert_eq!(answer.ok()["stdout"], format!("{number}\n"));
    }
    assert_eq!(stack.containers().len(), 1);
    assert_eq!(sandbox.call("getSandbox", json!({})).await.ok()["generation"], 1);
    let container = stack.container_of(&sandbox).expect("it runs in a container");
    // What the image is started with does not matter: the Worker names the program.
    let command = docker(&["inspect", "--format", "{{json .Config.Cmd}}", &container]);
    assert_eq!(command, r#"["/usr/local/bin/sandboxd","serve"]"#);
    sandbox.call("destroySandbox", json!({})).await.ok();
    assert_eq!(stack.containers(), Vec::<String>::new(), "told only once it is so");
}

/// What every refused start must be: in time, said to pass, and leaving no sandbox behind.
async fn refused(stack: &ContainerStack) -> Answer {
    let sandbox = stack.unmade_sandbox();
    let call = within("a refusal", PATIENCE, sandbox.call("exec", json!({"command": "true"})));
    call.await.problem(404, "not_found");
    let arguments = json!({"id": sandbox.id});
    let create = sandbox.client.call("createSandbox", &arguments);
    let answer = within("a refusal", PATIENCE, create).await;
    let problem = answer.problem(503, "sandbox_unavailable");
    assert!(problem.retryable, "{}", answer.text());
    let seconds: u32 = answer.header("retry-after").expect("it says when to try again").parse().unwrap();
    assert!((1..=60).contains(&seconds), "{seconds}");
    assert_eq!(answer.json()["retryAfter"], seconds);
    let listed = sandbox.client.call("listSandboxes", &json!({})).await.ok();
    assert!(!listed.to_string().contains(&sandbox.id), "what never ran is not kept: {listed}");
    let gone = || async { stack.containers().is_empty().then_some(()) };
    eventually("no container of it is left", PATIENCE, gone).await;
    answer
}

#[tokio::test]
async fn a_platform_without_a_container_to_give_is_a_refusal_with_a_reason() {
    let stack = ContainerStack::start(ContainerOptions { sidecar: "sidecar-full", ..ContainerOptions::default() });
    let answer = refused(&stack).await;
    assert_eq!(answer.json()["details"]["reason"], "no_container_instance");
}

#[tokio::test]
async fn a_port_that_stays_closed_is_named() {
    let stack = ContainerStack::start(ContainerOptions { image: "silent", ..ContainerOptions::default() });
    let problem = refused_start(|| refused(&stack)).await.json();
    assert_eq!((&problem["details"]["reason"], &problem["details"]["port"]), (&json!("port_not_ready"), &json!(3000)));
    assert!(problem["detail"].as_str().unwrap().contains("3000"), "{problem}");
}

#[tokio::test]
async fn an_image_that_is_not_there_is_told_at_once() {
    let stack = ContainerStack::start(ContainerOptions { image: "no-such-image", ..ContainerOptions::default() });
    let answer = refused(&stack).await;
    let reason = answer.json()["details"]["reason"].clone();
    assert!(["image_unavailable", "container_start_failed"].contains(&reason.as_str().unwrap()), "{reason}");
}

/// Starts that fail in different ways, one after the other, and then one that does not.
#[tokio::test]
async fn a_sandbox_whose_starts_fail_says_what_to_do_and_comes_back_when_they_no_longer_do() {
    let image = NamedImage::new("sandbox");
    let stack = ContainerStack::start(ContainerOptions { image: image.name, ..ContainerOptions::default() });
    let sandbox = stack.sandbox().await;
    sandbox.call("stopSandbox", json!({})).await.ok();
    image.name("crashing");
    let mut exited = 0;
    for times in 1..=3 {
        let wake = sandbox.call("wakeSandbox", json!({}));
        let answer = within("a refusal", PATIENCE, wake).await;
        let problem = answer.problem(503, "sandbox_unavailable");
        // Not `port_not_ready`: nobody waited for a port in a container that had ended. The engine may fail itself.
        let reason = problem.details["reason"].as_str().unwrap();
        assert!(["container_exited", "container_start_failed"].contains(&reason), "{}", answer.text());
        exited += usize::from(reason == "container_exited");
        assert_eq!(problem.detail.contains("another id"), times == 3, "{times}: {}", problem.detail);
    }
    assert!(exited > 0, "the container itself ended");
    let told = sandbox.call("getSandbox", json!({})).await.ok();
    assert_eq!((&told["status"], &told["state"]), (&json!("error"), &json!("error")));
    image.name("sandbox");
    let woken = sandbox.client.started("wakeSandbox", &json!({"sandboxId": sandbox.id})).await;
    assert_eq!((&woken["state"], &woken["startReason"]), (&json!("running"), &json!("restarted")));
    assert_eq!(sandbox.sh("echo back").await, "back\n");
}

#[tokio::test]
async fn destroyed_during_its_start_and_five_times_at_once_it_leaves_nothing() {
    let stack = ContainerStack::start(ContainerOptions::default());
    let sandbox = stack.unmade_sandbox();
    let arguments = json!({"id": sandbox.id});
    let create = sandbox.client.call("createSandbox", &arguments);
    let destroy = async {
        let begun = || async { (!stack.containers().is_empty()).then_some(()) };
        eventually("the start has begun", PATIENCE, begun).await;
        join_all((0..5).map(|_| sandbox.call("destroySandbox", json!({})))).await
    };
    let (created, destroyed) = within("both answer", 2 * PATIENCE, async { tokio::join!(create, destroy) }).await;
    for answer in destroyed {
        assert_eq!(answer.ok()["status"], "destroyed");
    }
    assert!(created.status == 200 || created.any_problem().code != "internal", "{}", created.text());
    // Somebody still asks for what is gone: that makes nothing.
    sandbox.call("getSandbox", json!({})).await.problem(404, "not_found");
    sandbox.call("exec", json!({"command": "true"})).await.problem(404, "not_found");
    sandbox.client.get(&sandbox.file_path("file")).await.problem(404, "not_found");
    assert_eq!(stack.containers(), Vec::<String>::new());
}
