//! The doors. Each decodes, makes one call, and encodes; none has logic of its own.

pub mod mcp;
pub mod openapi;
pub mod pages;
pub mod routes;

#[cfg(target_arch = "wasm32")]
mod body;
#[cfg(target_arch = "wasm32")]
pub mod rest;
#[cfg(target_arch = "wasm32")]
mod stream;
#[cfg(target_arch = "wasm32")]
mod websocket;
