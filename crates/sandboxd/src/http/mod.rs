//! What both servers share: listening, the token, JSON bodies and refusals.

mod body;
mod guard;
mod leftover;
mod log;
mod problem;
mod server;

pub(crate) use body::{read_json, read_json_or_default};
pub(crate) use guard::Token;
pub(crate) use leftover::discard;
pub(crate) use log::log;
pub(crate) use problem::{Problem, json};
pub(crate) use server::Listener;

/// Random bytes from the kernel, in hexadecimal.
pub(crate) fn random_hex(bytes: usize) -> std::io::Result<String> {
    let mut buffer = vec![0u8; bytes];
    getrandom::fill(&mut buffer).map_err(|error| std::io::Error::other(error.to_string()))?;
    Ok(buffer.iter().map(|byte| format!("{byte:02x}")).collect())
}
