//! Whole directories as one stream: tar, plain or packed with gzip or zstd.
//!
//! Packing and unpacking are blocking libraries, so each archive has a thread of its own, a few at once, that speaks to the
//! event loop through a short queue: a slow caller holds up its own archive only.

mod pack;
pub(in crate::serve) mod routes;
mod unpack;
mod zstd;

use std::sync::Arc;

use sandbox_api::ControlErrorCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Workspace;
use crate::http::Problem;

/// Pieces of an archive that wait on their way.
const QUEUE: usize = 4;

/// Stack of an archive's thread.
const STACK_BYTES: usize = 512 << 10;

/// A place for one more archive.
fn place(workspace: &Workspace) -> Result<OwnedSemaphorePermit, Problem> {
    Arc::<Semaphore>::clone(&workspace.archives).try_acquire_owned().map_err(|_| {
        let message = "too many archives are packed and unpacked at once in this sandbox; try again";
        Problem::new(ControlErrorCode::Unavailable, message)
    })
}

fn spawn(work: impl FnOnce() + Send + 'static) -> Result<(), Problem> {
    let thread = std::thread::Builder::new().name("archive".into()).stack_size(STACK_BYTES);
    match thread.spawn(work) {
        Ok(_) => Ok(()),
        Err(cause) => {
            tracing::warn!(%cause, "no thread for an archive");
            let message = "the sandbox has no resources left for an archive";
            Err(Problem::new(ControlErrorCode::Unavailable, message))
        }
    }
}
