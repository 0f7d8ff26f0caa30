//! `cargo xtask`: everything that a checkout needs done, from a bare machine on.
//!
//! `dev` runs the local stack, `test` every test, `build` makes the Worker (it is also wrangler's build command),
//! `openapi` rewrites the generated descriptions, `cfops` builds the command line, `image` the sandbox image, `check` formats and lints, `deploy`
//! brings it all to Cloudflare.
//! Each command installs what it misses first, into a cache folder that all checkouts share (see [`setup`]).

mod bench;
mod build;
mod cache;
mod cfops;
mod deploy;
mod dev;
mod docker;
mod image;
mod openapi;
mod run;
mod sandboxd;
mod setup;
mod terminal;
mod test;
mod versions;
mod wasm_size;
mod workspace;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Build, run and test cloudflare-ops")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the local stack: the Worker in workerd and sandboxes on this machine
    Dev(dev::Options),
    /// Run every test, installing what it needs
    Test(test::Options),
    /// Check format and lints, for the native and the WebAssembly target
    Check,
    /// Build the Worker to WebAssembly (wrangler's build command too)
    Build,
    /// Rewrite the generated descriptions in openapi/
    Openapi,
    /// Build the command line, one static file
    Cfops,
    /// Build the sandbox image with Docker
    Image(image::Options),
    /// Measure what calls cost, on the real stack
    Bench(bench::Options),
    /// Deploy to Cloudflare, creating what is missing, and run a command there
    Deploy(deploy::Options),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match start(arguments.command) {
        Ok(code) => code,
        Err(error) => {
            terminal::failure(&error);
            ExitCode::FAILURE
        }
    }
}

fn start(command: Command) -> Result<ExitCode> {
    run::watch_signals()?;
    match command {
        Command::Dev(options) => dev::run(&options).map(|()| ExitCode::SUCCESS),
        Command::Test(options) => test::run(&options),
        Command::Check => test::check(),
        Command::Build => build::from_command_line().map(|()| ExitCode::SUCCESS),
        Command::Openapi => openapi::write().map(|()| ExitCode::SUCCESS),
        Command::Cfops => cfops::build().map(|binary| {
            // For `sudo install "$(cargo xtask cfops)" …`.
            println!("{}", binary.display());
            ExitCode::SUCCESS
        }),
        Command::Image(options) => image::build(&options).map(|()| ExitCode::SUCCESS),
        Command::Bench(options) => bench::run(&options).map(|()| ExitCode::SUCCESS),
        Command::Deploy(options) => deploy::run(&options).map(|()| ExitCode::SUCCESS),
    }
}
