//! The built Worker in real workerd against the real `sandboxd host`, with real commands in bubblewrap.
//!
//! Tests share one stack and take a sandbox each; those that kill something or need another setting start a stack of
//! their own. Run by `cargo xtask test`, or by hand after `cargo xtask build`:
//! `cargo test --workspace --test workerd -- --test-threads=8`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails there"
)]

mod admission;
mod alerts;
mod approvals;
mod archive;
mod archives_and_watches;
mod arguments;
mod books;
mod canary;
mod chaos;
mod cloning;
mod commands;
mod concurrency;
mod deaths;
mod disconnects;
mod doors;
mod environment;
mod expiring;
mod file_tools;
mod files;
mod hostile;
mod idempotency;
mod jobs;
mod jobs_chaos;
mod jobs_kept;
mod jobs_many;
mod jobs_survive;
mod keys;
mod kills;
mod large_files;
mod lifecycle;
mod limits;
mod mcp;
mod mcp_approvals;
mod mcp_cancel;
mod mcp_resources;
mod observability;
mod output;
mod patience;
mod pipelines;
mod pipelines_survive;
mod pipelines_undone;
mod processes;
mod queue;
mod refusals;
mod same_everywhere;
mod schedules;
mod seam;
mod secrets;
mod sleeping;
mod streams;
mod sweeping;
mod timeouts;
mod usage;
mod webhooks;
mod websocket;
