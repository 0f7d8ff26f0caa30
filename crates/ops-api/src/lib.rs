//! What the doors of the Worker and their clients share: event streams, and the names that tools go by.
//!
//! The Worker compiles it for WebAssembly, so that nothing here opens a file or a socket.

pub mod alias;
pub mod sse;
