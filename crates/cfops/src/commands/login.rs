//! `cfops login`: an address and a key become a profile. The key comes from a prompt that shows nothing, or from standard
//! input, and is tried before it is stored.

use crate::catalog::Catalog;
use crate::client::Client;
use crate::failure::{Failure, Result};
use crate::interrupt::{self, Held};
use crate::output::Output;
use crate::profile::{self, Chosen, Profile, Profiles, check_key, parse_url};
use clap::{Arg, ArgAction, ArgMatches, Command};
use console::Term;
use serde_json::json;
use std::io::{IsTerminal, Read};

/// Longest key that is read from standard input.
const LONGEST_KEY: u64 = 16 * 1024;

pub(crate) fn command() -> Command {
    Command::new("login")
        .about("Store an address and a key as a profile")
        .long_about(
            "Asks for a key without showing it, or reads it from standard input, tries it, and stores it in the configuration \
             folder in a file that only you can read. There is no flag for the key: other processes could read it.",
        )
        .arg(Arg::new("url").value_name("URL").help("Address of the Worker, such as https://ops.example.com"))
        .arg(Arg::new("tenant").long("tenant").value_name("NAME").help("Tenant that the root key speaks for"))
        .arg(
            Arg::new("allow-http")
                .long("allow-http")
                .action(ArgAction::SetTrue)
                .help("Send the key over plain HTTP also to another machine"),
        )
}

pub(crate) fn run(matches: &ArgMatches, named: Option<&str>, output: Output) -> Result<u8> {
    // Before anything is asked for: what cannot be stored need not be typed.
    let mut stored = Profiles::read()?;
    let name = named.unwrap_or(profile::DEFAULT).to_owned();
    let url = match matches.get_one::<String>("url") {
        Some(url) => url.clone(),
        None => ask("Address of the Worker: ", false)?,
    };
    let url = parse_url(&url, matches.get_flag("allow-http"))?;
    let key = if std::io::stdin().is_terminal() { ask("Key (not shown): ", true)? } else { piped(LONGEST_KEY)? };
    let key = check_key(&key)?.to_owned();
    let chosen = Chosen { name, profile: Profile { url, key, tenant: matches.get_one::<String>("tenant").cloned() } };
    let tools = Catalog::fetch(&Client::new(&chosen.profile), &chosen)?.tools.len();
    stored.current = Some(chosen.name.clone());
    stored.profiles.insert(chosen.name.clone(), chosen.profile.clone());
    stored.write()?;
    let told = json!({ "profile": chosen.name, "url": chosen.profile.url, "tools": tools });
    output.value(&told).map(|()| 0)
}

/// Asks the person at the terminal for what nobody else is to see.
pub(crate) fn ask_hidden(question: &str) -> Result<String> {
    ask(question, true)
}

/// Asks the person at the terminal.
fn ask(question: &str, hidden: bool) -> Result<String> {
    let terminal = Term::stderr();
    if !std::io::stdin().is_terminal() {
        return Err(Failure::Usage("the address is an argument where standard input is no terminal".to_owned()));
    }
    let _held = if hidden { keep_echo() } else { None };
    let answer = terminal
        .write_str(question)
        .and_then(|()| if hidden { terminal.read_secure_line() } else { terminal.read_line() });
    answer.map_err(|error| Failure::file("read", "the terminal".as_ref(), error))
}

/// Ctrl-C at the prompt leaves the terminal as it was, showing what is typed.
fn keep_echo() -> Option<Held> {
    use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};
    let before = tcgetattr(std::io::stdin()).ok()?;
    Some(interrupt::hold(move || {
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &before);
    }))
}

/// Standard input to its end, and no more than this.
pub(crate) fn piped(most: u64) -> Result<String> {
    let mut text = String::new();
    let read = std::io::stdin().lock().take(most).read_to_string(&mut text);
    read.map_err(|error| Failure::file("read", "standard input".as_ref(), error))?;
    Ok(text)
}
