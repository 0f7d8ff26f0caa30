//! Tenants: who may call, what they may do, and the books kept of it, one Durable Object each.

pub mod admission;
pub mod alerts;
pub mod approval;
pub mod archive;
pub mod audit;
pub mod call_records;
pub mod claim;
pub mod credential;
pub mod deliveries;
pub mod idempotency;
pub mod inquiry;
pub mod jobs;
pub mod key;
pub mod keyring;
pub mod keys;
pub mod limits;
pub mod listing;
pub mod marks;
pub mod metrics;
pub mod permissions;
pub mod places;
pub mod prices;
pub mod sealing;
pub mod secret_name;
pub mod secrets;
pub mod sight;
pub mod signing;
pub mod storage;
pub mod token;
pub mod usage;
pub mod verification;

#[cfg(target_arch = "wasm32")]
pub mod actor;
#[cfg(target_arch = "wasm32")]
mod books;
#[cfg(target_arch = "wasm32")]
mod calls;
#[cfg(target_arch = "wasm32")]
mod export;
#[cfg(target_arch = "wasm32")]
mod job_books;
#[cfg(target_arch = "wasm32")]
mod marked;
#[cfg(target_arch = "wasm32")]
mod measure;
#[cfg(target_arch = "wasm32")]
mod meter;
#[cfg(target_arch = "wasm32")]
mod outbox;
#[cfg(target_arch = "wasm32")]
mod placing;
#[cfg(target_arch = "wasm32")]
mod schedule_books;
#[cfg(target_arch = "wasm32")]
mod scheduler;
#[cfg(target_arch = "wasm32")]
mod shelf;
#[cfg(target_arch = "wasm32")]
pub(crate) mod sweep;
#[cfg(target_arch = "wasm32")]
mod vault;
#[cfg(target_arch = "wasm32")]
mod watch;
