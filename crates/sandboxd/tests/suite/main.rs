//! The real binary, real processes, real bubblewrap. Every test has a host of its own and ends it.

mod archives;
mod commands;
mod disconnects;
mod entries;
mod environment;
mod files;
mod hosting;
mod isolation;
mod life;
mod output;
mod pieces;
mod process_logs;
mod processes;
mod requests;
mod search;
mod serving;
mod support;
mod trees;
mod watches;
