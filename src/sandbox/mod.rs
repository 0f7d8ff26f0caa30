//! Sandboxes: isolated Linux machines that run code, one Durable Object each.

pub mod change;
pub mod container_errors;
pub mod environment;
pub mod exec;
pub mod files;
pub mod git;
pub mod processes;
pub mod record;
pub mod settings;
pub mod state;
pub mod timers;

#[cfg(target_arch = "wasm32")]
pub mod actor;
#[cfg(target_arch = "wasm32")]
pub mod cause;
#[cfg(target_arch = "wasm32")]
pub mod clock;
#[cfg(target_arch = "wasm32")]
pub mod container;
#[cfg(target_arch = "wasm32")]
pub mod container_runtime;
#[cfg(target_arch = "wasm32")]
pub mod control;
#[cfg(target_arch = "wasm32")]
pub mod host;
#[cfg(target_arch = "wasm32")]
pub mod life;
#[cfg(target_arch = "wasm32")]
pub mod reconcile;
#[cfg(target_arch = "wasm32")]
pub mod secrets;
#[cfg(target_arch = "wasm32")]
pub mod sleep;
#[cfg(target_arch = "wasm32")]
pub mod transport;
