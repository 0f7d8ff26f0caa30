//! Prints the Worker's OpenAPI document: `describe json` or `describe yaml`.
//!
//! A program of its own, so that xtask, which a bare machine compiles first, does not depend on the Worker.

use cloudflare_ops::api::openapi;
use std::io::{self, Write};
use std::process::ExitCode;

fn main() -> ExitCode {
    let text = match std::env::args().nth(1).as_deref() {
        Some("json") => openapi::json(),
        Some("yaml") => openapi::yaml(),
        _ => {
            eprintln!("usage: describe json|yaml");
            return ExitCode::FAILURE;
        }
    };
    match io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cannot write: {error}");
            ExitCode::FAILURE
        }
    }
}
