//! A large file up and down, and what that costs in memory.

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
use sha2::{Digest, Sha256};

use crate::{process::resident_bytes, stack::Sandbox};

const CHUNK: usize = 1 << 16;

/// Samples the memory of a process until it is told to stop; gives the most it saw.
pub struct Sampler {
    stop: Arc<AtomicBool>,
    most: Arc<AtomicU64>,
    before: u64,
}

impl Sampler {
    /// Begins.
    ///
    /// # Panics
    /// When there is no such process.
    pub fn of(pid: i32) -> Self {
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

    /// Ends it, and tells how many bytes more than at its beginning it saw at most.
    pub fn growth(&self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.most.load(Ordering::Relaxed).saturating_sub(self.before)
    }
}

/// The bytes at `offset`, the same at every asking and different everywhere.
fn block(offset: u64, length: usize) -> Bytes {
    let words = (0..length as u64 / 8).map(|word| (offset / 8 + word).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    words.flat_map(u64::to_le_bytes).collect()
}

fn blocks(size: u64) -> impl Iterator<Item = Bytes> {
    (0..size).step_by(CHUNK).map(move |offset| block(offset, CHUNK.min((size - offset) as usize)))
}

fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes the file `large` of `size` bytes (a multiple of eight) into a sandbox and reads it again, as streams.
///
/// # Panics
/// When one byte is not as it was.
pub async fn round_trip(sandbox: &Sandbox, size: u64) {
    let mut hash = Sha256::new();
    blocks(size).for_each(|block| hash.update(block));
    let expected = hex(hash);
    let path = sandbox.file_path("large");
    let body = futures_util::stream::iter(blocks(size).map(Ok::<_, String>));
    let request = sandbox.client.request(Method::PUT, &path).header(CONTENT_LENGTH, size);
    let written = sandbox.client.send(request.body(reqwest::Body::wrap_stream(body))).await;
    assert!(written.status < 300, "{}", written.text());
    assert_eq!(written.json()["size"], size);
    let sum = sandbox.exec(serde_json::json!({"command": "sha256sum large", "timeout": 90})).await;
    assert!(sum["stdout"].as_str().unwrap().starts_with(&expected), "what lies in the sandbox is what was sent: {sum}");

    let answer = sandbox.client.request(Method::GET, &path).send().await.expect("an answer");
    assert_eq!(answer.content_length(), Some(size));
    let (mut hash, mut received) = (Sha256::new(), 0_u64);
    let mut body = answer.bytes_stream();
    while let Some(chunk) = body.next().await {
        let chunk = chunk.expect("the body does not break off");
        received += chunk.len() as u64;
        hash.update(&chunk);
    }
    assert_eq!((received, hex(hash)), (size, expected));
}
