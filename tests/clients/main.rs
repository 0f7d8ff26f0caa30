//! The command line does what it says, clients that are generated from openapi/openapi.json compile and work, the SDKs of
//! MCP work, and schemathesis finds nothing, all against the running Worker.
//!
//! TypeScript comes from the npm packages that the checkout pins. Python comes from the requirements in python/, installed
//! once into virtual environments in the cache folder. Run by `cargo xtask test --only clients`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails there"
)]

mod cfops;
mod environment;
mod every_door;
mod examples;
mod mcp;
mod python;
mod schemathesis;
mod tools;
mod typescript;
