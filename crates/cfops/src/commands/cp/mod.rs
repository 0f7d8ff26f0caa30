//! `cfops cp`: files and directories up and down, byte by byte.
//!
//! Up, a file over 64 MiB goes in pieces, since the network in front of a Worker may refuse large bodies; a piece that broke
//! off is gone on with where it stopped. Down, a broken body is asked for again from the byte that is missing. In both
//! directions a file takes its name only once it is whole. A directory travels as an archive.

mod down;
mod remote;
mod tree;
mod up;

mod bar;

use crate::client::Client;
use crate::failure::{Failure, Result};
use crate::output::Output;
use clap::{Arg, ArgAction, ArgMatches, Command};
use remote::Side;
use std::ffi::OsString;

pub(crate) fn command() -> Command {
    let path = |name: &'static str| Arg::new(name).required(true).value_parser(clap::value_parser!(OsString));
    Command::new("cp")
        .about("Copy a file or a directory into a sandbox, or out of it")
        .long_about(
            "Copies a file, or with --recursive a directory. One side is in a sandbox, written SANDBOX:PATH (relative to /workspace, \
             or absolute inside it); the other is here, or `-` for standard input or output. A destination that ends in / is a \
             directory to copy into. A file of this machine whose name looks like SANDBOX:PATH is written ./SANDBOX:PATH.",
        )
        .override_usage("cfops cp [OPTIONS] FILE SANDBOX:PATH\n       cfops cp [OPTIONS] SANDBOX:PATH FILE")
        .arg(
            Arg::new("recursive")
                .short('r')
                .long("recursive")
                .action(ArgAction::SetTrue)
                .help("Copy a directory: what is in it will be in the destination"),
        )
        .arg(path("from").value_name("FROM").help("What is copied"))
        .arg(path("to").value_name("TO").help("Where to"))
}

pub(crate) fn run(client: &Client, matches: &ArgMatches, output: Output) -> Result<u8> {
    let side = |name: &str| matches.get_one::<OsString>(name).map_or(Side::Standard, |text| Side::parse(text));
    let told = match (side("from"), side("to"), matches.get_flag("recursive")) {
        (Side::Here(from), Side::Sandbox(to), true) => Some(tree::up(client, &from, to)?),
        (Side::Sandbox(from), Side::Here(to), true) => Some(tree::down(client, &from, &to)?),
        (from @ (Side::Here(_) | Side::Standard), Side::Sandbox(to), false) => Some(up::copy(client, &from, to)?),
        (Side::Sandbox(from), Side::Here(to), false) => Some(down::copy(client, &from, &to)?),
        (Side::Sandbox(from), Side::Standard, false) => {
            // Standard output holds the file, and nothing else.
            down::to_standard_output(client, &from)?;
            None
        }
        _ => return Err(Failure::Usage("one side is SANDBOX:PATH, and the other is here".to_owned())),
    };
    if let Some(told) = told.filter(|_| output.is_json()) {
        output.value(&told)?;
    }
    Ok(0)
}
