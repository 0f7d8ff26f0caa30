//! Tenants: who may call, what they may do, and the books kept of it, one Durable Object each.

pub mod admission;
pub mod credential;

#[cfg(target_arch = "wasm32")]
pub mod actor;
