//! `cfops completions SHELL`: a script that completes commands, flags and choices, the tools' among them.

use crate::failure::Result;
use crate::terminal::write_out;
use clap::builder::EnumValueParser;
use clap::{Arg, ArgMatches, Command};
use clap_complete::{Shell, generate};

pub(crate) fn command() -> Command {
    let shell = Arg::new("shell").required(true).value_name("SHELL").value_parser(EnumValueParser::<Shell>::new());
    Command::new("completions")
        .about("Print a completion script for a shell")
        .long_about(
            "Prints a completion script, with a command for every tool of the profile as it was last listed. For bash, \
             `source <(cfops completions bash)` in ~/.bashrc keeps it up to date; nothing is asked of the service.",
        )
        .arg(shell)
}

pub(crate) fn run(mut whole: Command, matches: &ArgMatches) -> Result<u8> {
    let mut script = Vec::new();
    if let Some(shell) = matches.get_one::<Shell>("shell") {
        generate(*shell, &mut whole, "cfops", &mut script);
    }
    write_out(&script).map(|()| 0)
}
