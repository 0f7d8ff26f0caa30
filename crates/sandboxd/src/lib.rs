//! The native control server: `sandboxd serve` inside one sandbox, `sandboxd host` for many on one machine.
//!
//! The wire types are in `sandbox-api`. Linux only.

mod cli;
mod clock;
mod host;
mod http;
mod openapi;
mod secret;
mod serve;

pub use cli::run;
