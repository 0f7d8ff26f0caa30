//! `cfops profile` and `cfops logout`: what `cfops login` stored.

use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::profile::{self, Profiles};
use clap::{Arg, ArgMatches, Command};
use serde_json::{Value, json};

pub(crate) fn command() -> Command {
    let name = Arg::new("name").required(true).value_name("NAME");
    Command::new("profile")
        .about("List profiles, or choose the one that is meant where none is named")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(Command::new("list").about("List profiles, without their keys"))
        .subcommand(Command::new("use").about("Choose the profile that is meant where none is named").arg(name))
}

pub(crate) fn logout() -> Command {
    Command::new("logout").about("Forget a profile and its key (the key stays valid: `cfops revoke-key` ends it)")
}

pub(crate) fn run(matches: &ArgMatches, output: Output) -> Result<u8> {
    let mut stored = Profiles::read()?;
    match matches.subcommand() {
        Some(("use", matches)) => {
            let name = matches.get_one::<String>("name").cloned().unwrap_or_default();
            if !stored.profiles.contains_key(&name) {
                return Err(Failure::NotLoggedIn { profile: name });
            }
            stored.current = Some(name.clone());
            stored.write()?;
            output.value(&json!({ "current": name }))?;
        }
        _ => {
            let current = stored.current.as_deref().unwrap_or(profile::DEFAULT);
            let told = |(name, profile): (&String, &profile::Profile)| {
                let mut row = json!({ "name": name, "url": profile.url, "current": name == current });
                if let Some(tenant) = &profile.tenant {
                    row["tenant"] = Value::String(tenant.clone());
                }
                row
            };
            output.value(&json!({ "profiles": stored.profiles.iter().map(told).collect::<Vec<_>>() }))?;
        }
    }
    Ok(0)
}

pub(crate) fn forget(named: Option<&str>, output: Output) -> Result<u8> {
    let mut stored = Profiles::read()?;
    let name = named.or(stored.current.as_deref()).unwrap_or(profile::DEFAULT).to_owned();
    if stored.profiles.remove(&name).is_none() {
        return Err(Failure::NotLoggedIn { profile: name });
    }
    if stored.current.as_ref() == Some(&name) {
        stored.current = None;
    }
    stored.write()?;
    if let Ok(path) = profile::cache_file(&name) {
        let _ = std::fs::remove_file(path);
    }
    output.value(&json!({ "forgotten": name })).map(|()| 0)
}
