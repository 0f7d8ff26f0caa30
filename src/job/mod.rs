//! Jobs: calls that are carried out later, one Durable Object each.

pub mod record;
pub mod state;

#[cfg(target_arch = "wasm32")]
pub mod actor;
#[cfg(target_arch = "wasm32")]
mod clock;
#[cfg(target_arch = "wasm32")]
mod run;
#[cfg(target_arch = "wasm32")]
mod store;
