//! MCP at `POST /mcp`: the stateless revision 2026-07-28 and the earlier ones, on one endpoint without sessions.
//!
//! ```text
//! origin ─▶ key ─▶ envelope ─▶ headers against body (modern) ─▶ one method ─▶ JSON | events
//! ```
//!
//! A request that carries the modern `_meta` or headers is modern; any other is of an earlier revision. What a tool answers
//! is told as text and as structured content; a failed call is a result with `isError`, without structured content.
//!
//! Who closes the event stream of a call ends it; a client of an earlier revision can cancel it too. Resources are read by
//! the tools that read the same. Left out: batches, prompts, subscriptions.

pub mod approval;
pub mod cancelled;
pub mod envelope;
pub mod fitting;
pub mod headers;
pub mod origin;
pub mod progress;
pub mod resources;
pub mod result;
pub mod tools;
pub mod uris;

#[cfg(target_arch = "wasm32")]
mod asking;
#[cfg(target_arch = "wasm32")]
mod door;
#[cfg(target_arch = "wasm32")]
mod reading;

/// Name of this door in log lines and in the audit.
pub const DOOR: &str = "mcp";

/// The stateless revision.
pub const MODERN: &str = "2026-07-28";

/// The earlier revisions, newest first.
pub const LEGACY: [&str; 3] = [NEWEST_LEGACY, "2025-06-18", "2025-03-26"];

const NEWEST_LEGACY: &str = "2025-11-25";

/// What a model is told of the server.
pub const INSTRUCTIONS: &str = "Runs code in isolated Linux sandboxes. exec makes a sandbox when none is named; name one to go on in it. A command that exits \
    non-zero is a successful call: read exitCode and stderr. A result that holds a job waits for an approval: ask getJob for how it stands.";
