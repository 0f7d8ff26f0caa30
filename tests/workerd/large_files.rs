//! 300 MB up and down through the Worker: the same bytes, and memory that does not grow with them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::StreamExt;
use reqwest::{Method, header::CONTENT_LENGTH};
use serde_json::json;
use sha2::{Digest, Sha256};
use test_support::{Stack, StackOptions, random_name, resident_bytes, sandbox_daemon_of};

const SIZE: u64 = 300_000_000;
const CHUNK: usize = 1 << 16;
/// What streaming may cost, whatever the size of the file.
const ALLOWANCE_OF_WORKERD: u64 = 64 << 20;
const ALLOWANCE_OF_SANDBOXD: u64 = 16 << 20;

/// Samples the memory of a process until it is told to stop; gives the most it saw.
struct Sampler {
    stop: Arc<AtomicBool>,
    most: Arc<AtomicU64>,
    before: u64,
}

impl Sampler {
    fn of(pid: i32) -> Self {
        let before = resident_bytes(pid).expect("the process runs");
        let (stop, most) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(before)));
        let (stopping, highest) = (stop.clone(), most.clone());
        std::thread::spawn(move || {
            while !stopping.load(Ordering::Relaxed) {
                highest.fetch_max(resident_bytes(pid).unwrap_or(0), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        Self { stop, most, before }
    }

    fn growth(&self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.most.load(Ordering::Relaxed).saturating_sub(self.before)
    }
}

/// The bytes at `offset`, the same at every asking and different everywhere.
fn block(offset: u64, length: usize) -> Bytes {
    let words = (0..length as u64 / 8).map(|word| (offset / 8 + word).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    words.flat_map(u64::to_le_bytes).collect()
}

fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

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
    let _stream =
        sandbox.open_stream(json!({"command": format!("echo; read -t 60 _ < <(sleep 60); : {marker}")})).await;
    let daemon = test_support::eventually("the daemon is found", Duration::from_secs(5), || async {
        sandbox_daemon_of(&marker)
    });
    let daemon = daemon.await;
    let workerd = stack.worker().workerd_pid();
    let host = stack.host().pid();
    let samplers = [workerd, host, daemon].map(Sampler::of);

    let mut hash = Sha256::new();
    let mut offset = 0;
    while offset < SIZE {
        let length = CHUNK.min((SIZE - offset) as usize);
        hash.update(block(offset, length));
        offset += length as u64;
    }
    let expected = hex(hash);
    let blocks =
        (0..SIZE).step_by(CHUNK).map(|offset| Ok::<_, String>(block(offset, CHUNK.min((SIZE - offset) as usize))));
    let request = sandbox
        .client
        .request(Method::PUT, &path)
        .header(CONTENT_LENGTH, SIZE)
        .body(reqwest::Body::wrap_stream(futures_util::stream::iter(blocks)));
    let written = sandbox.client.send(request).await;
    assert!(written.status < 300, "{}", written.text());
    assert_eq!(written.json()["size"], SIZE);
    assert!(sandbox.sh("sha256sum large").await.starts_with(&expected), "what lies in the sandbox is what was sent");

    let answer = sandbox.client.request(Method::GET, &path).send().await.unwrap();
    assert_eq!(answer.content_length(), Some(SIZE));
    let (mut hash, mut received) = (Sha256::new(), 0_u64);
    let mut body = answer.bytes_stream();
    while let Some(chunk) = body.next().await {
        let chunk = chunk.unwrap();
        received += chunk.len() as u64;
        hash.update(&chunk);
    }
    assert_eq!((received, hex(hash)), (SIZE, expected));

    let [of_workerd, of_host, of_daemon] = samplers.map(|sampler| sampler.growth());
    println!("growth of memory: workerd {of_workerd}, host {of_host}, daemon {of_daemon} bytes");
    assert!(of_workerd < ALLOWANCE_OF_WORKERD, "workerd grew by {of_workerd} bytes");
    assert!(of_host < ALLOWANCE_OF_SANDBOXD, "the host grew by {of_host} bytes");
    assert!(of_daemon < ALLOWANCE_OF_SANDBOXD, "the sandbox's daemon grew by {of_daemon} bytes");
}
