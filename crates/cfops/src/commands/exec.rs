//! `cfops exec`: a command in a sandbox as if it ran here. Both channels byte by byte as they come, and its exit code.

use super::call::{became_a_job, bytes_of, with};
use crate::arguments::{self, idempotency_flag, input_flag};
use crate::catalog::Tool;
use crate::client::{Client, Events, Reply, Wanted};
use crate::failure::{Failure, Problem, Result, exit_code};
use crate::interrupt;
use crate::output::Output;
use crate::terminal::{note, write_error, write_out};
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::{Map, Value};
use std::io::Read;

/// Arguments of the tool that have no flag of that name here.
const BY_ITSELF: [&str; 1] = ["command"];

/// The service takes a million characters.
const LARGEST_INPUT: u64 = 4_000_000;

pub(crate) fn command(tool: Option<&Tool>) -> Command {
    let words = Arg::new("words")
        .value_name("COMMAND")
        .required_unless_present("input")
        .num_args(1..)
        .trailing_var_arg(true)
        .help("One word is a bash command line; several are a program and its arguments, each kept as it is");
    let input = Arg::new("send-stdin")
        .short('i')
        .long("send-stdin")
        .action(ArgAction::SetTrue)
        .conflicts_with_all(tool.is_some().then_some("stdin"))
        .help("Give the command what standard input holds here, to its end: text, at most 1,000,000 characters");
    Command::new("exec")
        .about("Run a command in a sandbox: its output as it comes, and its exit code")
        .long_about(
            "Runs a command in a sandbox. Standard output and standard error are the command's own, byte by byte, and the exit \
             code is that of the command. Ctrl-C ends it there as well. Without --sandbox-id a sandbox is made for it.",
        )
        .args(tool.map(|tool| arguments::flags(tool, &BY_ITSELF)).unwrap_or_default())
        .args([input, input_flag(), idempotency_flag(), words])
}

pub(crate) fn run(client: &Client, tool: Option<&Tool>, matches: &ArgMatches, output: Output) -> Result<u8> {
    let arguments = match tool {
        Some(tool) => arguments::collect(tool, &BY_ITSELF, matches)?,
        None => {
            matches.get_one::<String>("input").map_or_else(|| Ok(Map::new()), |source| arguments::read_input(source))?
        }
    };
    let words: Vec<&str> = matches.get_many::<String>("words").into_iter().flatten().map(String::as_str).collect();
    let is_bash = arguments.get("language").is_none_or(|language| language == "bash");
    let arguments =
        if words.is_empty() { arguments } else { with(arguments, "command", command_line(&words, is_bash)?) };
    let arguments =
        if matches.get_flag("send-stdin") { with(arguments, "stdin", standard_input()?) } else { arguments };
    let names_sandbox = arguments.contains_key("sandboxId");
    let key = matches.get_one::<String>("idempotency-key").map(String::as_str);
    let _held = interrupt::hold(|| note("The connection is closed; the command ends in its sandbox within seconds."));
    let result = match client.call("exec", &arguments, Wanted::Events, key)? {
        Reply::Events(events) => follow(events, output)?,
        Reply::Output(result) => result,
        Reply::Job(job) => return became_a_job(&job, output),
    };
    if result["dryRun"] == true {
        return output.value(&result).map(|()| 0);
    }
    if result["exitCode"].is_null() && result["jobId"].is_string() {
        return became_a_job(&result, output);
    }
    if output.is_json() {
        output.value(&result)?;
    } else {
        remarks(&result, names_sandbox);
    }
    // A result without an exit code tells of no success.
    let code = result["exitCode"].as_i64().and_then(|code| u8::try_from(code).ok());
    Ok(code.unwrap_or(exit_code::OUTCOME_UNKNOWN))
}

fn command_line(words: &[&str], is_bash: bool) -> Result<String> {
    match words {
        [line] => Ok((*line).to_owned()),
        _ if !is_bash => Err(Failure::Usage("code in another language than bash is one word: quote it".to_owned())),
        words => shlex::try_join(words.iter().copied())
            .map_err(|_| Failure::Usage("a word of the command holds a NUL character".to_owned())),
    }
}

fn standard_input() -> Result<String> {
    let mut bytes = Vec::new();
    let read = std::io::stdin().lock().take(LARGEST_INPUT + 1).read_to_end(&mut bytes);
    read.map_err(|error| Failure::file("read", "standard input".as_ref(), error))?;
    let refused = "copy it with `cfops cp - SANDBOX:FILE`, and let the command read that file";
    if bytes.len() as u64 > LARGEST_INPUT {
        return Err(Failure::Usage(format!("standard input is over {LARGEST_INPUT} bytes: {refused}")));
    }
    String::from_utf8(bytes).map_err(|_| Failure::Usage(format!("standard input is no UTF-8 text: {refused}")))
}

/// Passes output on until the result.
fn follow(mut events: Events, output: Output) -> Result<Value> {
    let mut passed = [0_usize; 2];
    loop {
        let event = events.next()?;
        let data: Value = serde_json::from_str(&event.data).unwrap_or_default();
        match event.name.as_str() {
            "stdout" | "stderr" if output.is_json() => {}
            "stdout" => passed[0] += pass(&data, write_out)?,
            "stderr" => passed[1] += pass(&data, write_error)?,
            "error" if output.is_json() => return Err(Failure::Problem(Problem(data))),
            "error" => return Err(Failure::Problem(Problem(without_output(data)))),
            "result" => {
                // An answer that is given again comes without its events.
                if !output.is_json() && data["exitCode"].is_i64() {
                    for ((channel, passed), write) in
                        ["stdout", "stderr"].into_iter().zip(passed).zip([write_out, write_error])
                    {
                        if passed == 0 {
                            write(&bytes_of(&captured(&data, channel))?)?;
                        }
                    }
                }
                return Ok(data);
            }
            _ => {}
        }
    }
}

/// Passes a chunk on, and tells how many bytes it had.
fn pass(chunk: &Value, write: fn(&[u8]) -> Result<()>) -> Result<usize> {
    let bytes = bytes_of(chunk)?;
    write(&bytes).map(|()| bytes.len())
}

fn captured(result: &Value, channel: &str) -> Value {
    serde_json::json!({ "data": result[channel], "encoding": result[format!("{channel}Encoding")] })
}

/// What the command wrote has been passed on already.
fn without_output(mut problem: Value) -> Value {
    if let Some(details) = problem["details"].as_object_mut() {
        details.retain(|name, _| name != "stdout" && name != "stderr");
    }
    problem
}

/// What a person at the terminal would wonder about.
fn remarks(result: &Value, names_sandbox: bool) {
    if result["outOfMemory"] == true {
        note("It was killed: the sandbox's memory was used up.");
    } else if result["outOfDisk"] == true {
        note("It was killed: the sandbox's disk was used up.");
    } else if let Some(signal) = result["signal"].as_str() {
        note(&format!("It was ended by {signal}."));
    }
    if !names_sandbox && let Some(id) = result["sandboxId"].as_str() {
        note(&format!("Made the sandbox {id}; it goes after five minutes without use."));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_word_is_a_command_line_and_several_are_arguments() {
        let line = |words: &[&str], is_bash| command_line(words, is_bash).ok();
        assert_eq!(line(&["echo $HOME | wc"], true).as_deref(), Some("echo $HOME | wc"));
        assert_eq!(line(&["ls", "-l", "a b", "$x"], true).as_deref(), Some("ls -l 'a b' '$x'"));
        assert_eq!(line(&["print(1)"], false).as_deref(), Some("print(1)"));
        assert_eq!(line(&["print(1)", "x"], false), None);
    }
}
