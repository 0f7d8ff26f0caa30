//! The built Worker in real workerd with sandboxes in real containers, which workerd starts through Docker Engine.
//!
//! Run by `cargo xtask test`, which makes the images; `cargo xtask test --only container` runs this alone. Most tests share one
//! stack and take a sandbox each.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails there"
)]

mod cloning;
mod deaths;
mod expiring;
mod files;
mod hanging;
mod images;
mod isolation;
mod kills;
mod many;
mod processes;
mod same_everywhere;
mod sleeping;
mod starts;
mod transfers;
mod unknown_errors;
mod witness;
mod worker_kills;
