//! Images: the daemon as process 1, and any image made a sandbox by one line.

use serde_json::json;
use test_support::{ContainerOptions, ContainerStack, PATIENCE, docker, eventually};

#[tokio::test]
async fn any_image_with_the_daemon_copied_in_is_a_sandbox() {
    let stack = ContainerStack::start(ContainerOptions { image: "other", ..ContainerOptions::default() });
    let sandbox = stack.sandbox_with(json!({"env": {"GIVEN": "yes"}})).await;
    assert_eq!(sandbox.sh("echo $GIVEN; id -u; pwd").await, "yes\n1000\n/workspace\n");
    let told = sandbox.exec(json!({"command": "command -v bash; ls /lib /usr /etc/passwd"})).await;
    assert_ne!(told["exitCode"], 0, "neither bash nor a C library is in it: {told}");
    let written = sandbox.call("writeFile", json!({"path": "a/b", "content": "text"})).await;
    assert_eq!(written.ok()["size"], 4);
    assert_eq!(sandbox.sh("cat a/b").await, "text");
}

#[tokio::test]
async fn as_process_one_the_daemon_reaps_and_ends_when_asked() {
    let stack = ContainerStack::shared();
    let sandbox = stack.sandbox().await;
    let orphans = "touch over; for i in 1 2 3 4 5 6 7 8 9 10; do (setsid sh -c 'sleep 0.2; echo >> over' &) ; done; \
                   until [ $(wc -l < over) = 10 ]; do sleep 0.1; done; \
                   until [ $(cat /proc/[0-9]*/stat | grep -c ' Z ') = 0 ]; do sleep 0.1; done";
    let left = sandbox.exec(json!({"command": orphans, "timeout": 90})).await;
    assert_eq!(left["exitCode"], 0, "no zombies are left: {left}");
    sandbox.sh("(trap '' TERM; exec sleep 300) >&- 2>&- & (setsid sleep 300 >&- 2>&- &); echo").await;
    let container = stack.container_of(&sandbox).unwrap();
    docker(&["kill", "--signal", "TERM", &container]);
    let ended = || async {
        let running = docker(&["ps", "--quiet", "--no-trunc", "--filter", &format!("id={container}")]);
        running.is_empty().then_some(())
    };
    eventually("it ends by itself", PATIENCE, ended).await;
}
