//! Running commands. One path for every form of the answer:
//!
//! `request` checks, `launch` and `supervisor` start, `run` watches until the end, `channel` keeps the output, `state` is what all of
//! them share, `stream` tells of it live, `tree` finds and kills processes, `table` knows every exec of this boot.

mod channel;
mod filter;
mod launch;
mod memory;
mod request;
pub(super) mod routes;
mod run;
mod state;
mod stream;
mod supervisor;
mod table;
mod tree;

pub(crate) use request::check_environment;
pub(super) use routes::routes;
pub(crate) use supervisor::Credentials;
pub(crate) use table::{CONCURRENT_EXECS, Table};
pub(crate) use tree::{Process, Supervisors, descendants, kill_all, send, snapshot};
