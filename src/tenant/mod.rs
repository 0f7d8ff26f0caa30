//! Tenants: who may call, what they may do, and the books kept of it, one Durable Object each.

pub mod admission;
pub mod credential;
pub mod listing;
pub mod metrics;

#[cfg(target_arch = "wasm32")]
pub mod actor;
#[cfg(target_arch = "wasm32")]
mod measure;
#[cfg(target_arch = "wasm32")]
mod sweep;
