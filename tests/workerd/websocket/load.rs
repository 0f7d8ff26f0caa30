//! Slow readers, and many that are idle.

use std::time::Duration;

use serde_json::json;
use test_support::{PATIENCE, Stack, StackOptions, eventually, resident_bytes};

const MIB: u64 = 1024 * 1024;

#[tokio::test]
async fn a_slow_reader_of_200_mb_never_grows_the_workers_memory() {
    let stack = Stack::start(StackOptions::default());
    let sandbox = stack.sandbox().await;
    let mut socket = sandbox.client.socket().await;
    let workerd = stack.worker().workerd_pid();
    // Once as far as it grows by itself.
    let command = |megabytes: u32| json!({ "sandboxId": sandbox.id, "command": format!("head -c {megabytes}000000 /dev/zero | tr '\\0' x"), "timeout": 300 });
    socket.call("warm", "exec", &command(8)).await.result();
    let before = resident_bytes(workerd).unwrap();
    socket.invoke("1", "exec", &command(200)).await;
    let mut most = before;
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        most = most.max(resident_bytes(workerd).unwrap());
    }
    // Whoever reads again gets the rest.
    let mut length = 0;
    loop {
        let message = socket.event_of("1").await;
        if message["type"] != "event" {
            assert_eq!(
                (&message["result"]["exitCode"], &message["result"]["stdoutBytes"]),
                (&json!(0), &json!(200_000_000))
            );
            break;
        }
        length += message["data"]["data"].as_str().unwrap_or_default().len();
        most = most.max(resident_bytes(workerd).unwrap());
    }
    assert_eq!(length, 200_000_000);
    let grown = most - before;
    assert!(grown < 150 * MIB, "{} MiB more than {} MiB", grown / MIB, before / MIB);
}

#[tokio::test]
async fn who_sends_without_reading_is_closed() {
    let stack = Stack::start(StackOptions::default());
    let mut socket = stack.client().narrow_socket().await;
    let workerd = stack.worker().workerd_pid();
    let before = resident_bytes(workerd).unwrap();
    // Its answers are longer than the message, and are never read.
    let bad = format!(r#"{{"type":"cancel","id":"{}"}}"#, "x".repeat(128));
    let mut sent = 0;
    while sent < 100_000 && socket.try_send_text(&bad).await {
        sent += 1;
    }
    // What was sent may wait in the machine's buffers. Whoever reads before it was all looked at takes the answers after all.
    // One quiet second is none yet: a Worker may get no processor for as long.
    let (mut ticks, mut quiet) = (processor_ticks(workerd), 0);
    let rests = || {
        let before = std::mem::replace(&mut ticks, processor_ticks(workerd));
        quiet = if ticks - before < 5 { quiet + 1 } else { 0 };
        let has_rested = quiet >= 5;
        async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            has_rested.then_some(())
        }
    };
    tokio::time::sleep(Duration::from_secs(1)).await;
    eventually("nothing is left to be looked at", Duration::from_secs(300), rests).await;
    let grown = resident_bytes(workerd).unwrap().saturating_sub(before);
    assert!(grown < 150 * MIB, "{} MiB more after {sent} messages", grown / MIB);
    assert_eq!(socket.closed().await.0, 4410);
}

#[tokio::test]
async fn five_hundred_idle_connections_answer_and_cost_no_timers() {
    let stack = Stack::start(StackOptions::default());
    let client = stack.client();
    let workerd = stack.worker().workerd_pid();
    let mut sockets = Vec::new();
    for _ in 0..500 {
        sockets.push(client.socket().await);
    }
    // Objects of idle connections leave memory after some seconds; what is left to run for them shows as processor time.
    tokio::time::sleep(Duration::from_secs(12)).await;
    let rests = || async {
        let before = processor_ticks(workerd);
        tokio::time::sleep(Duration::from_secs(5)).await;
        (processor_ticks(workerd) - before <= 25).then_some(())
    };
    eventually("at most 25 ticks of 10 ms in 5 s while nothing happens", PATIENCE, rests).await;
    for (number, socket) in sockets.iter_mut().enumerate() {
        socket.send_text(r#"{"type":"ping"}"#).await;
        assert_eq!(socket.next().await["type"], "pong", "{number}");
    }
    // The first and the last wake up and know who they are.
    for socket in [0, 499] {
        let told = sockets[socket].call("1", "listSandboxes", &json!({})).await;
        assert!(told.result()["sandboxes"].is_array());
    }
}

/// Processor time that a process has used, in ticks of 10 ms.
fn processor_ticks(pid: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let fields: Vec<&str> = fields.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}
