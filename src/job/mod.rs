//! Jobs: calls that are carried out later, one Durable Object each.

pub mod message;
pub mod record;
pub mod state;
pub mod stored;

#[cfg(target_arch = "wasm32")]
pub mod actor;
#[cfg(target_arch = "wasm32")]
mod clock;
#[cfg(target_arch = "wasm32")]
mod follower;
#[cfg(target_arch = "wasm32")]
mod log;
#[cfg(target_arch = "wasm32")]
mod look;
#[cfg(target_arch = "wasm32")]
mod parent;
#[cfg(target_arch = "wasm32")]
mod pipeline;
#[cfg(target_arch = "wasm32")]
mod place;
#[cfg(target_arch = "wasm32")]
mod run;
#[cfg(target_arch = "wasm32")]
mod steps;
#[cfg(target_arch = "wasm32")]
mod store;
#[cfg(target_arch = "wasm32")]
mod turn;
