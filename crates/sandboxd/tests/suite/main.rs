//! The real binary, real processes, real bubblewrap. Every test has a host of its own and ends it.

mod commands;
mod disconnects;
mod environment;
mod files;
mod hosting;
mod isolation;
mod life;
mod output;
mod requests;
mod serving;
mod support;
mod trees;
