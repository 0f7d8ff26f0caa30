//! `cfops secrets set`: a value from a prompt that shows nothing, or from standard input, becomes a named secret. There is no flag for
//! it: other processes could read that.

use crate::catalog::Catalog;
use crate::client::Client;
use crate::commands::login::{ask_hidden, piped};
use crate::failure::{Failure, Result};
use crate::output::Output;
use clap::{Arg, ArgMatches, Command};
use serde_json::json;
use std::io::IsTerminal;

/// The tool behind it.
pub(crate) const TOOL: &str = "setSecret";

/// Longest value that is read: the service takes 32 KiB.
const LONGEST_VALUE: u64 = 64 * 1024;

/// The command, for a key that may set secrets.
pub(crate) fn command(catalog: &Catalog) -> Option<Command> {
    catalog.get(TOOL)?;
    let set = Command::new("set")
        .about("Keep a value under a name, in place of the one that is there")
        .long_about(
            "Asks for the value without showing it, or reads it from standard input; one line end at its end does not count. There is no \
             flag for it: other processes could read it.",
        )
        .arg(Arg::new("name").required(true).value_name("NAME").help("Name of the secret"))
        .arg(Arg::new("description").long("description").value_name("TEXT").help("What it is for"));
    Some(Command::new("secrets").about("Set a named secret").subcommand_required(true).subcommand(set))
}

pub(crate) fn run(client: &Client, matches: &ArgMatches, output: Output) -> Result<u8> {
    let Some(("set", matches)) = matches.subcommand() else {
        return Err(Failure::Usage("secrets: set NAME".to_owned()));
    };
    let value = if std::io::stdin().is_terminal() { ask_hidden("Value (not shown): ")? } else { piped(LONGEST_VALUE)? };
    let value = value.strip_suffix('\n').map_or(value.as_str(), |value| value.strip_suffix('\r').unwrap_or(value));
    let mut arguments = json!({ "name": matches.get_one::<String>("name"), "value": value });
    if let Some(description) = matches.get_one::<String>("description") {
        arguments["description"] = json!(description);
    }
    let told = client.output(TOOL, arguments)?;
    output.value(&told).map(|()| 0)
}
