//! The real binary, real processes, real bubblewrap. Every test has a host of its own and ends it.

mod archives;
mod bounds;
mod commands;
mod control_groups;
mod disconnects;
mod entries;
mod environment;
mod files;
mod hosting;
#[expect(unreachable_pub, reason = "test-support exports it")]
#[path = "../../../../tests/support/src/internet.rs"]
mod internet;
mod isolation;
mod life;
mod network;
mod output;
mod pieces;
mod process_logs;
mod processes;
mod requests;
mod search;
mod secrets;
mod serving;
mod support;
mod trees;
mod watches;
