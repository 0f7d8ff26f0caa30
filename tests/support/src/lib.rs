//! The real stack under test: the built Worker in workerd, in front of a real `sandboxd host`, with a proxy between the
//! two that breaks things on purpose.
//!
//! ```text
//! test ── Client ──> Worker (workerd) ──> FaultProxy ──> sandboxd host ──> bubblewrap: sandboxd serve
//! ```
//!
//! A [`ContainerStack`] has containers in place of the host, and no proxy: workerd speaks to Docker Engine.
//!
//! A [`Stack`] owns its processes. None outlives the test process, however that ends: see [`guardian`].
//! Nothing here is compiled into the product, and nothing here builds it: `cargo xtask build` and the static `sandboxd`
//! come first, and a missing one is a failure that names the command.

mod arguments;
mod cases;
mod chance;
mod client;
mod container;
mod fault;
mod guardian;
mod host;
mod internet;
mod jobs;
mod large_file;
mod locate;
mod process;
mod proxy;
mod queue;
mod receiver;
mod socket;
mod sse;
mod stack;
mod wait;
mod worker;

pub use arguments::{Known, Step, arguments, places, required};
pub use cases::{CASES, Case, ENVIRONMENT, Expected, run_all};
pub use chance::Chance;
pub use client::{Answer, Client, Problem, STARTS};
pub use container::{ContainerOptions, ContainerStack, NamedImage, docker, try_docker};
pub use fault::{Fault, Operation};
pub use guardian::{GuardedChild, process_folder};
pub use host::Host;
pub use internet::Internet;
pub use large_file::{Sampler, round_trip};
pub use locate::{cfops, node, project_root, sandboxd};
pub use process::{
    daemon_around, descendants, find_by_argument, interrupt_process, is_alive, kill_process, resident_bytes,
    sandbox_daemon_of,
};
pub use proxy::{FaultProxy, Seen};
pub use queue::{QueueKind, damage_job};
pub use receiver::{HANGS, Received, Receiver};
pub use socket::{Socket, Told};
pub use sse::{Event, EventStream, Parser, Terminal, Transcript};
pub use stack::{Sandbox, Stack, StackOptions, random_name, scratch_folder};
pub use wait::{PATIENCE, eventually, within};
pub use worker::{ContainerSettings, Worker, WorkerSettings};

use std::sync::LazyLock;

/// Runs what belongs to the stacks and outlives the runtime of the test that started it.
static RUNTIME: LazyLock<tokio::runtime::Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("stack")
        .enable_all()
        .build()
        .expect("a runtime needs only threads and descriptors")
});
