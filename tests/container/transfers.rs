//! Files and long streams through a container's port.

use std::time::Duration;

use serde_json::json;
use test_support::{
    ContainerOptions, ContainerStack, PATIENCE, Sampler, daemon_around, eventually, random_name, round_trip,
    sandbox_daemon_of,
};
use tokio::io::AsyncWriteExt;

const SIZE: u64 = 300_000_000;
const ALLOWANCE_OF_WORKERD: u64 = 96 << 20;
const ALLOWANCE_OF_SANDBOXD: u64 = 16 << 20;

#[tokio::test]
async fn three_hundred_megabytes_pass_unchanged_and_in_flat_memory() {
    let stack = ContainerStack::start(ContainerOptions::default());
    let sandbox = stack.sandbox().await;
    // A smaller file first, so that what each process keeps for good is not counted as growth.
    round_trip(&sandbox, 8 << 20).await;
    let marker = random_name("marker");
    let _stream = sandbox.open_stream(json!({"command": format!("echo; sleep 120; : {marker}"), "timeout": 200})).await;
    let daemon = daemon_around(&marker).await;
    let samplers = [stack.worker().workerd_pid(), daemon].map(Sampler::of);
    round_trip(&sandbox, SIZE).await;
    let [of_workerd, of_daemon] = samplers.map(|sampler| sampler.growth());
    println!("growth of memory: workerd {of_workerd}, daemon {of_daemon} bytes");
    assert!(of_workerd < ALLOWANCE_OF_WORKERD, "workerd grew by {of_workerd} bytes");
    assert!(of_daemon < ALLOWANCE_OF_SANDBOXD, "the daemon grew by {of_daemon} bytes");
}

#[tokio::test]
async fn an_upload_that_breaks_off_changes_nothing() {
    let sandbox = ContainerStack::shared().sandbox().await;
    sandbox.sh("echo old > file").await;
    let head = format!(
        "PUT {} HTTP/1.1\nhost: x\nauthorization: Bearer {{key}}\ncontent-length: 1000000\n\n",
        sandbox.file_path("file")
    );
    let mut connection = sandbox.client.connect(&head).await;
    connection.write_all(&[b'x'; 100_000]).await.unwrap();
    connection.flush().await.unwrap();
    let begun = || async { (sandbox.sh("ls -A | wc -l").await.trim() == "2").then_some(()) };
    eventually("the upload has begun", PATIENCE, begun).await;
    drop(connection);
    let removed = || async { (sandbox.sh("ls -A").await == "file\n").then_some(()) };
    eventually("what had arrived is removed", PATIENCE, removed).await;
    assert_eq!(sandbox.sh("cat file").await, "old\n");
}

/// A container is ended ten seconds after its object falls idle, unless somebody keeps it.
#[tokio::test]
async fn a_silent_command_outlives_the_idle_time_of_its_object() {
    let sandbox = ContainerStack::shared().sandbox().await;
    let (buffered, streamed) = tokio::join!(
        sandbox.exec(json!({"command": "sleep 25; echo done", "timeout": 60})),
        sandbox.exec_streamed(json!({"command": "sleep 25; echo done", "timeout": 60})),
    );
    assert_eq!(buffered["stdout"], "done\n");
    assert_eq!(streamed.result()["stdout"], "done\n");
    assert_eq!(sandbox.call("getSandbox", json!({})).await.ok()["generation"], 1, "it is still the same start");
}

#[tokio::test]
async fn an_idle_sandbox_keeps_its_container_and_files() {
    let stack = ContainerStack::shared();
    let mut sandbox = stack.sandbox().await;
    sandbox.sh("echo kept > file").await;
    tokio::time::sleep(Duration::from_secs(15)).await;
    // An idle connection may be closed at the moment it is used.
    sandbox.client = stack.client();
    assert_eq!(sandbox.sh("cat file").await, "kept\n");
    assert_eq!(sandbox.call("getSandbox", json!({})).await.ok()["generation"], 1);
}

#[tokio::test]
async fn a_command_ends_when_its_reader_leaves() {
    let sandbox = ContainerStack::shared().sandbox().await;
    let marker = random_name("left");
    let stream = sandbox.open_stream(json!({"command": format!("sleep 300; : {marker}"), "timeout": 600})).await;
    let begun = || async { sandbox_daemon_of(&marker).map(|_| ()) };
    eventually("the command runs", PATIENCE, begun).await;
    drop(stream);
    let ended = || async { sandbox_daemon_of(&marker).is_none().then_some(()) };
    eventually("nothing of it is left", PATIENCE, ended).await;
}
