//! The command line: commands that are always there, and one for every tool of the catalog.

use crate::arguments;
use crate::catalog::Catalog;
use crate::commands::{call, completions, cp, decide, exec, jobs, login, profiles, secrets, tools, top};
use clap::builder::styling::{AnsiColor, Styles};
use clap::{Arg, ArgAction, Command};
use std::ffi::{OsStr, OsString};

/// Commands for which the service is not asked what tools there are.
const WITHOUT_TOOLS: [&str; 6] = ["login", "logout", "profile", "completions", "tools", "help"];

/// The whole command line.
pub(crate) fn command(catalog: &Catalog) -> Command {
    let profile = Arg::new("profile")
        .long("profile")
        .value_name("NAME")
        .global(true)
        .help_heading("Everywhere")
        .help("Profile to call with; `cfops profile` lists them");
    let command = Command::new("cfops")
        .about("Calls the tools of cloudflare-ops: sandboxes, files, processes, and what else a key may use")
        .version(env!("CARGO_PKG_VERSION"))
        .styles(Styles::styled().header(AnsiColor::Green.on_default().bold()).literal(AnsiColor::Cyan.on_default()))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .max_term_width(120)
        .after_help(if catalog.tools.is_empty() {
            "There is a command for every tool: `cfops login` first."
        } else {
            ""
        })
        .args([profile, json_flag().global(true)])
        .subcommands([login::command(), profiles::logout(), profiles::command(), tools::command(), call::command()])
        .subcommands([exec::command(catalog.get("exec")), cp::command(), jobs::command(), top::command()])
        .subcommands(decide::commands(catalog))
        .subcommands(secrets::command(catalog))
        .subcommand(completions::command());
    let taken: Vec<String> = command.get_subcommands().map(|one| one.get_name().to_owned()).collect();
    // A tool of the name of a command is reached by `cfops call`, and so is one whose value must be in no argument.
    let others = catalog.tools.iter().filter(|tool| tool.name != secrets::TOOL);
    let own = others.map(arguments::command).filter(|one| !taken.contains(&one.get_name().to_owned()));
    command.subcommands(own)
}

pub(crate) fn json_flag() -> Arg {
    Arg::new("json")
        .long("json")
        .action(ArgAction::SetTrue)
        .help_heading("Everywhere")
        .help("Answers and errors as JSON, one line each: answers on standard output, errors on standard error")
}

/// What can be seen of a command line before it is known which commands there are.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Glance {
    pub(crate) profile: Option<String>,
    pub(crate) json: bool,
    pub(crate) command: Option<String>,
}

impl Glance {
    /// Looks at the words of a command line, its program not among them.
    pub(crate) fn at(words: &[OsString]) -> Self {
        let mut glance = Self::default();
        let mut words = words.iter().map(OsString::as_os_str).map(OsStr::to_string_lossy);
        while let Some(word) = words.next() {
            match word.as_ref() {
                "--" => break,
                "--json" => glance.json = true,
                "--profile" => glance.profile = words.next().map(|name| name.into_owned()),
                word if word.starts_with("--profile=") => {
                    glance.profile = word.strip_prefix("--profile=").map(str::to_owned);
                }
                word if !word.starts_with('-') && glance.command.is_none() => glance.command = Some(word.to_owned()),
                _ => {}
            }
        }
        glance
    }

    pub(crate) fn needs_tools(&self) -> bool {
        self.command.as_ref().is_some_and(|command| !WITHOUT_TOOLS.contains(&command.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn glance(line: &str) -> Glance {
        Glance::at(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn the_command_line_is_sound() {
        command(&Catalog::default()).debug_assert();
    }

    #[test]
    fn the_profile_is_seen_wherever_it_stands() {
        let profile = |line| glance(line).profile;
        assert_eq!(profile("--profile ci exec ls").as_deref(), Some("ci"));
        assert_eq!(profile("list-sandboxes --profile=ci").as_deref(), Some("ci"));
        assert_eq!(profile("exec -- tool --profile ci"), None);
        assert_eq!(glance("--profile ci exec --json ls").command.as_deref(), Some("exec"));
        assert!(glance("call x").needs_tools() && !glance("login").needs_tools() && !glance("--help").needs_tools());
    }
}
