//! Execs: commands that are run to their end for one caller. One path for every form of the answer:
//!
//! `request` checks, `channel` keeps the output, `state` is what all of them share and the owner of the tree, `stream` tells
//! of it live, `table` knows every exec of this boot.

mod channel;
mod request;
pub(super) mod routes;
mod state;
mod stream;
mod table;

pub(super) use channel::unfinished_character;
pub(super) use routes::routes;
pub(crate) use table::{CONCURRENT_EXECS, Table};
