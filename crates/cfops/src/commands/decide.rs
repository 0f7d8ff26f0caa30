//! `cfops approve` and `cfops reject`: a person decides on a call that waits, having seen just what it is.

use crate::catalog::Catalog;
use crate::client::Client;
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::terminal::write_error;
use clap::{Arg, ArgAction, ArgMatches, Command};
use console::Term;
use serde_json::{Value, json};
use std::io::IsTerminal;

/// The commands that this key may give, with the tools behind them.
pub(crate) fn commands(catalog: &Catalog) -> impl Iterator<Item = Command> {
    let has = |tool: &str| catalog.tools.iter().any(|one| one.name == tool);
    let all = [
        (has("approveJob"), command("approve", "Approve a call that waits, having seen it: it is carried out once")),
        (has("rejectJob"), command("reject", "Reject a call that waits, having seen it: it is never carried out")),
    ];
    all.into_iter().filter_map(|(is_there, command)| is_there.then_some(command))
}

fn command(name: &'static str, about: &'static str) -> Command {
    let yes = "Do not ask; needed where standard input is no terminal";
    Command::new(name)
        .about(about)
        .arg(Arg::new("job").required(true).value_name("JOB").help("Id of the job, as the call that waits was told"))
        .arg(Arg::new("comment").long("comment").value_name("TEXT").help("What is told beside the decision"))
        .arg(Arg::new("yes").long("yes").short('y').action(ArgAction::SetTrue).help(yes))
}

pub(crate) fn run(client: &Client, decision: &str, matches: &ArgMatches, output: Output) -> Result<u8> {
    let id = matches.get_one::<String>("job").map(String::as_str).unwrap_or_default();
    let job = client.output("getJob", json!({ "jobId": id }))?;
    if !matches.get_flag("yes") {
        ask(decision, &job)?;
    }
    let mut arguments = json!({ "jobId": id });
    if decision == "approve" {
        // What is approved is what was looked at, whatever is at the end of that id by now.
        arguments["argumentsSignature"] = job["argumentsSignature"].clone();
    }
    if let Some(comment) = matches.get_one::<String>("comment") {
        arguments["comment"] = Value::String(comment.clone());
    }
    let told = client.output(&format!("{decision}Job"), arguments)?;
    output.value(&told).map(|()| 0)
}

/// Shows the call, and goes on only when the answer is yes.
fn ask(decision: &str, job: &Value) -> Result<()> {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::Usage(format!("--yes: {decision} asks at a terminal; without one it needs this flag")));
    }
    write_error(crate::render::human(job, None).as_bytes())?;
    let terminal = Term::stderr();
    let answer = terminal.write_str(&format!("Really {decision} it? [y/N] ")).and_then(|()| terminal.read_line());
    let answer = answer.map_err(|error| Failure::file("read", "the terminal".as_ref(), error))?;
    if ["y", "yes"].contains(&answer.trim().to_lowercase().as_str()) {
        return Ok(());
    }
    Err(Failure::Here {
        what: format!("the answer was not yes: the job waits on, and {decision} did nothing"),
        next: String::new(),
    })
}
