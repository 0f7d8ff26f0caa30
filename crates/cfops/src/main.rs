//! `cfops`, the command line of cloudflare-ops.
//!
//! ```text
//! words ─▶ glance: which profile? ─▶ its tools (cached) ─▶ commands and flags ─▶ one call ─▶ text | JSON | bytes
//! ```
//!
//! Commands are made of what `GET /v1/tools` says, so that a tool that the service gets tomorrow is a command tomorrow.
//! Written by hand is only what a tool cannot say by itself: `exec` behaves like a command that runs here, `cp` copies bytes,
//! `top` looks again and again.

mod cli;
mod commands;

mod arguments;
mod catalog;
mod client;
mod profile;

mod advice;
mod failure;
mod interrupt;
mod output;
mod render;
mod terminal;

use catalog::Catalog;
use clap::ArgMatches;
use clap::error::ErrorKind;
use cli::Glance;
use client::Client;
use commands::{call, completions, cp, decide, exec, jobs, login, profiles, secrets, tools, top};
use failure::{Failure, Result};
use output::Output;
use profile::Chosen;
use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let as_json = Glance::at(&words).json;
    let outcome = match interrupt::watch() {
        Ok(()) => run(&words),
        Err(error) => Err(Failure::file("watch", "signals".as_ref(), error)),
    };
    ExitCode::from(outcome.unwrap_or_else(|failure| {
        failure.tell(as_json);
        failure.exit_code()
    }))
}

fn run(words: &[OsString]) -> Result<u8> {
    let glance = Glance::at(words);
    let mut caller = match profile::choose(glance.profile.as_deref()) {
        Ok(chosen) => Some(Caller::new(chosen)),
        Err(failure) if glance.needs_tools() && !asks_for_help(words) => return Err(failure),
        Err(_) => None,
    };
    let (matches, catalog) = parse(words, caller.as_ref(), glance.needs_tools())?;
    let named = matches.get_one::<String>("profile").map(String::as_str);
    // The glance may have taken a word of a remote command for a flag.
    if named != glance.profile.as_deref() {
        caller = profile::choose(named).ok().map(Caller::new);
    }
    let output = Output::new(matches.get_flag("json"));
    dispatch(&matches, catalog, caller, named, output)
}

fn asks_for_help(words: &[OsString]) -> bool {
    words.iter().take_while(|word| *word != "--").any(|word| word == "--help" || word == "-h")
}

/// Who calls, and the way there.
struct Caller {
    chosen: Chosen,
    client: Client,
}

impl Caller {
    fn new(chosen: Chosen) -> Self {
        Self { client: Client::new(&chosen.profile), chosen }
    }
}

/// Reads the command line with the tools that are known, and where it does not fit them, once more with those of the
/// service as it is now.
fn parse(words: &[OsString], caller: Option<&Caller>, needs_tools: bool) -> Result<(ArgMatches, Catalog)> {
    let mut catalog = caller.map(|caller| Catalog::cached(&caller.chosen)).unwrap_or_default();
    let caller = caller.filter(|_| needs_tools);
    if let Some(caller) = caller.filter(|_| catalog.is_stale()) {
        match Catalog::fetch(&caller.client, &caller.chosen) {
            Ok(fetched) => catalog = fetched,
            // An old list is better than none; if it is wrong, the service says so.
            Err(Failure::Unreachable { .. } | Failure::OutcomeUnknown(_)) if !catalog.tools.is_empty() => {}
            Err(failure) => return Err(failure),
        }
    }
    let line = || std::iter::once(OsString::from("cfops")).chain(words.iter().cloned());
    let error = match cli::command(&catalog).try_get_matches_from(line()) {
        Ok(matches) => return Ok((matches, catalog)),
        Err(error) => error,
    };
    let is_of_the_tools = matches!(
        error.kind(),
        ErrorKind::InvalidSubcommand
            | ErrorKind::UnknownArgument
            | ErrorKind::InvalidValue
            | ErrorKind::MissingRequiredArgument
    );
    if let Some(caller) = caller.filter(|_| is_of_the_tools && catalog.may_be_outdated())
        && let Ok(fetched) = Catalog::fetch(&caller.client, &caller.chosen)
    {
        let matches = cli::command(&fetched).try_get_matches_from(line())?;
        return Ok((matches, fetched));
    }
    Err(error.into())
}

fn dispatch(
    matches: &ArgMatches,
    catalog: Catalog,
    caller: Option<Caller>,
    named: Option<&str>,
    output: Output,
) -> Result<u8> {
    let (name, matches) = matches.subcommand().ok_or_else(|| Failure::Usage("which command?".to_owned()))?;
    match name {
        "login" => return login::run(matches, named, output),
        "logout" => return profiles::forget(named, output),
        "profile" => return profiles::run(matches, output),
        "completions" => return completions::run(cli::command(&catalog), matches),
        _ => {}
    }
    let missing = || Failure::NotLoggedIn { profile: named.unwrap_or(profile::DEFAULT).to_owned() };
    let Caller { chosen, client } = caller.ok_or_else(missing)?;
    match name {
        "tools" => tools::run(&client, &chosen, output),
        "call" => call::run(&client, &catalog, matches, output),
        "exec" => exec::run(&client, catalog.get("exec"), matches, output),
        "cp" => cp::run(&client, matches, output),
        "jobs" => jobs::run(&client, matches, output),
        "approve" | "reject" => decide::run(&client, name, matches, output),
        "secrets" => secrets::run(&client, matches, output),
        "top" => top::run(&client, &catalog, matches, output),
        tool => match catalog.get(tool) {
            Some(tool) => call::tool_with(&client, tool, matches, output),
            None => Err(Failure::Usage(format!("there is no command {tool}"))),
        },
    }
}
