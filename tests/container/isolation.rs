//! What a command in a container cannot reach: the daemon, its token, and other sandboxes.

use serde_json::json;
use test_support::{ContainerStack, docker, random_name};

#[tokio::test]
async fn the_daemon_and_its_token_are_out_of_reach() {
    let stack = ContainerStack::shared();
    let sandbox = stack.sandbox_with(json!({"env": {"OF_SANDBOX": "value"}})).await;
    let container = stack.container_of(&sandbox).unwrap();
    let env = docker(&["inspect", "--format", "{{range .Config.Env}}{{println .}}{{end}}", &container]);
    let token = env.lines().find_map(|line| line.strip_prefix("SANDBOXD_TOKEN=")).expect("it is started with a token");
    assert!(token.len() == 64 && token.bytes().all(|byte| byte.is_ascii_hexdigit()), "a random one");
    assert_eq!(sandbox.sh("id -u").await, "1000\n");
    let look = "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline /proc/1/mem 2>/dev/null | tr '\\0' '\\n'; env; \
                ls -la /proc/1/fd /proc/1/root 2>&1; find / -xdev -newer /etc/hostname -type f -readable 2>/dev/null \
                | head -200 | xargs cat 2>/dev/null | head -c 1000000; true";
    let seen = sandbox.exec(json!({"command": look, "timeout": 60})).await.to_string();
    assert!(!seen.contains(token), "a command found the token");
    assert!(seen.contains("OF_SANDBOX"), "what is its own it sees");
    // The port is open to it, as to whoever is in its network; without the token it does nothing.
    let asked = sandbox
        .sh("curl -s -o /dev/null -w '%{http_code} ' http://127.0.0.1:3000/v1/health -o /dev/null http://127.0.0.1:3000/v1/execs \
                            -H 'authorization: Bearer 0123456789abcdef0123456789abcdef'")
        .await;
    assert_eq!(asked.trim(), "401 401");
    let tried = sandbox.sh("kill -9 1 2>&1; kill -STOP 1 2>&1; echo; cat /proc/1/stat | cut -d' ' -f3").await;
    assert!(["S\n", "R\n", "D\n"].iter().any(|state| tried.ends_with(state)), "{tried}");
    assert_eq!(sandbox.sh("echo alive").await, "alive\n");
}

#[tokio::test]
async fn two_sandboxes_share_nothing() {
    let stack = ContainerStack::shared();
    let (one, other) = (stack.sandbox().await, stack.sandbox().await);
    let marker = random_name("marker");
    one.sh(&format!(
        "echo secret > {marker}; echo secret > /tmp/{marker}; (exec -a {marker} sleep 60) >&- 2>&- & \
         python3 -m http.server 8123 --bind 127.0.0.1 >/dev/null 2>&1 & \
         until curl -sf -o /dev/null http://127.0.0.1:8123; do sleep .1; done; curl -s http://127.0.0.1:8123 | grep -c {marker}"
    ))
    .await;
    let seen = other.sh("cat /proc/[0-9]*/cmdline | tr '\\0' ' '; ls -A / /tmp /workspace /dev/shm 2>&1").await;
    assert!(!seen.contains(&marker), "{seen}");
    let reached = other.exec(json!({"command": "curl -s -m 20 http://127.0.0.1:8123"})).await;
    assert_eq!(reached["exitCode"], 7, "the other one's loopback is not its own: {reached}");
    let ids = (one.sh("cat /proc/sys/kernel/hostname").await, other.sh("cat /proc/sys/kernel/hostname").await);
    assert_ne!(ids.0, ids.1);
    other.call("destroySandbox", json!({})).await.ok();
    assert_eq!(one.sh(&format!("cat {marker}")).await, "secret\n", "one ends and the other does not");
}
