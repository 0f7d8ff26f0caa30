//! 300 MB up and down through the Worker: the same bytes, and memory that does not grow with them.

use reqwest::Method;
use serde_json::json;
use test_support::{Sampler, Stack, StackOptions, daemon_around, random_name, round_trip};

const SIZE: u64 = 300_000_000;
/// What streaming may cost, whatever the size of the file.
const ALLOWANCE_OF_WORKERD: u64 = 64 << 20;
const ALLOWANCE_OF_SANDBOXD: u64 = 16 << 20;

#[tokio::test]
async fn three_hundred_megabytes_pass_unchanged_and_in_flat_memory() {
    let stack = Stack::start(StackOptions { proxy: false, ..StackOptions::default() });
    let sandbox = stack.sandbox().await;
    let path = sandbox.file_path("large");
    // One pass of a smaller file first, so that what each process keeps for good is not counted as growth.
    let warm = sandbox.client.request(Method::PUT, &path).body(vec![1; 8 << 20]);
    assert!(sandbox.client.send(warm).await.status < 300);
    sandbox.client.get(&path).await;
    let marker = random_name("marker");
    let command = format!("echo; read -t 300 _ < <(sleep 300); : {marker}");
    let _stream = sandbox.open_stream(json!({"command": command, "timeout": 300})).await;
    let daemon = daemon_around(&marker).await;
    let workerd = stack.worker().workerd_pid();
    let host = stack.host().pid();
    let samplers = [workerd, host, daemon].map(Sampler::of);

    round_trip(&sandbox, SIZE).await;

    let [of_workerd, of_host, of_daemon] = samplers.map(|sampler| sampler.growth());
    println!("growth of memory: workerd {of_workerd}, host {of_host}, daemon {of_daemon} bytes");
    assert!(of_workerd < ALLOWANCE_OF_WORKERD, "workerd grew by {of_workerd} bytes");
    assert!(of_host < ALLOWANCE_OF_SANDBOXD, "the host grew by {of_host} bytes");
    assert!(of_daemon < ALLOWANCE_OF_SANDBOXD, "the sandbox's daemon grew by {of_daemon} bytes");
}
