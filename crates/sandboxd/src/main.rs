//! The program; see the library for everything. `SANDBOXD_LOG` (error, warn, info, debug) says how much it logs.

use std::process::ExitCode;

use tracing_subscriber::filter::LevelFilter;

/// musl's own allocator gives memory back to the kernel after each request and takes it again for the next.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
    let level = std::env::var("SANDBOXD_LOG").ok().and_then(|level| level.parse().ok());
    let level = level.unwrap_or(LevelFilter::INFO);
    let log = tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr);
    log.with_ansi(false).with_target(false).init();
    match sandboxd::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("sandboxd: {reason}");
            ExitCode::FAILURE
        }
    }
}
