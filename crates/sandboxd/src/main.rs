//! The program; see the library for everything.

use std::process::ExitCode;

fn main() -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).with_target(false).init();
    match sandboxd::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("sandboxd: {reason}");
            ExitCode::FAILURE
        }
    }
}
