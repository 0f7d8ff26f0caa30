//! The command line does what it says, clients that are generated from openapi/openapi.json compile and work, and
//! schemathesis finds nothing, all against the running Worker.
//!
//! TypeScript comes from the npm packages that the checkout pins. Python comes from python/requirements.txt, installed
//! once into a virtual environment in the cache folder. Run by `cargo xtask test --only clients`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails there"
)]

mod cfops;
mod environment;
mod python;
mod schemathesis;
mod tools;
mod typescript;
