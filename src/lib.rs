//! cloudflare-ops: a guardrailed control plane for code sandboxes and for a Cloudflare account.
//!
//! Every operation is a tool, described once in the [`registry`]. Doors ([`api`]) decode a request, make one [`call`], and
//! encode the answer. Everything but the doors and the Durable Objects is pure: it does not know the Workers runtime, and a
//! native `cargo test` covers it.

pub mod call;
pub mod events;
pub mod guardrails;
pub mod raw;
pub mod registry;
pub mod tools;

pub mod error;
pub mod fetch_error;
pub mod identifier;
pub mod log_line;
pub mod named;
pub mod plan;
pub mod platform;
pub mod preview;
pub mod schema;
pub mod services;
pub use ops_api::sse;
pub mod trace;
pub mod whole;

pub mod connection;
pub mod job;
pub mod sandbox;
pub mod schedule;
pub mod tenant;
pub mod webhook;

pub mod api;

#[cfg(target_arch = "wasm32")]
mod workers;

#[cfg(test)]
mod doubles;
