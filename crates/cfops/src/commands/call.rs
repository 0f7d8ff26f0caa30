//! A tool as a command: its own, `cfops call TOOL …`, or `cfops cli TOOL …`.

use crate::arguments;
use crate::catalog::{Catalog, Tool};
use crate::client::{Client, Events, Reply, Wanted};
use crate::failure::{Failure, Problem, Result, exit_code};
use crate::output::Output;
use crate::terminal::{note, printable, write_error, write_out};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::{Arg, ArgMatches, Command};
use serde_json::{Map, Value, json};

pub(crate) fn command() -> Command {
    // One list, so that a flag behind the tool is the tool's, `--help` among them.
    let words = Arg::new("words").required(true).num_args(1..).trailing_var_arg(true).value_names(["TOOL", "FLAGS"]);
    Command::new("call")
        .visible_alias("cli")
        .about("Call any tool by name or alias: zones.list, zones:list")
        .long_about(
            "Calls any tool. Aliases have the resource first: sandboxes.list and sandboxes:list are listSandboxes. The flags \
             are those of the tool's own command: `cfops call sandboxes.list --help`.",
        )
        .override_usage("cfops call [OPTIONS] <TOOL> [FLAGS]...")
        .arg(words.help("Name or alias of the tool, and the flags of its command"))
}

/// `cfops call TOOL …`.
pub(crate) fn run(client: &Client, catalog: &Catalog, matches: &ArgMatches, output: Output) -> Result<u8> {
    let mut words = matches.get_many::<String>("words").into_iter().flatten();
    let name = words.next().map(String::as_str).unwrap_or_default();
    let tool = catalog.get(name).cloned().unwrap_or_else(|| unknown(name));
    let command = arguments::command(&tool).bin_name(format!("cfops call {name}")).arg(crate::cli::json_flag());
    let matches = command.no_binary_name(true).try_get_matches_from(words)?;
    let output = if matches.get_flag("json") { output.as_json() } else { output };
    tool_with(client, &tool, &matches, output)
}

/// A tool that the list does not have: the service decides what it is, and says so.
fn unknown(name: &str) -> Tool {
    Tool {
        name: name.to_owned(),
        description: "A tool that is not in this key's list.".to_owned(),
        input_schema: json!({}),
        annotations: Default::default(),
        guardrails: Default::default(),
    }
}

/// A tool with the flags of its command.
pub(crate) fn tool_with(client: &Client, tool: &Tool, matches: &ArgMatches, output: Output) -> Result<u8> {
    let arguments = arguments::collect(tool, &[], matches)?;
    let lines = output.is_json() && matches.get_flag("stream");
    // A person reads events as they come; a program gets the one object that the tool is documented to answer.
    let wanted = if output.is_json() && !lines { Wanted::Output } else { Wanted::Events };
    let key = matches.get_one::<String>("idempotency-key").map(String::as_str);
    finish(client.call(&tool.name, &arguments, wanted, key)?, lines, output)
}

/// Shows what a call answers, to its end.
fn finish(reply: Reply, lines: bool, output: Output) -> Result<u8> {
    match reply {
        Reply::Output(value) => output.value(&value).map(|()| 0),
        Reply::Job(job) => became_a_job(&job, output),
        Reply::Events(events) if lines => as_lines(events),
        Reply::Events(events) => as_text(events, output),
    }
}

/// The call waits, or goes on by itself. It did not succeed yet, which a script is to see.
pub(crate) fn became_a_job(job: &Value, output: Output) -> Result<u8> {
    output.value(job)?;
    if !output.is_json() {
        let id = job["jobId"].as_str().unwrap_or_default();
        note(&match job["state"].as_str() {
            Some("awaiting_approval") => {
                format!("It waits for another key: `cfops approve {id}` or `cfops reject {id}`.")
            }
            _ => format!(
                "The call became a job: `cfops get-job --job-id {id}` tells how it stands, `cfops jobs logs -f {id}` what it writes."
            ),
        });
    }
    Ok(exit_code::BECAME_A_JOB)
}

/// Every event as a line of JSON.
fn as_lines(mut events: Events) -> Result<u8> {
    loop {
        let event = events.next()?;
        let data: Value = serde_json::from_str(&event.data).unwrap_or_else(|_| Value::String(event.data.clone()));
        if event.name == "error" {
            return Err(Failure::Problem(Problem(data)));
        }
        write_out(format!("{}\n", json!({ "event": event.name, "data": data })).as_bytes())?;
        if event.name == "result" {
            return Ok(0);
        }
    }
}

/// Events as a person reads them. What they told is not told again by the result.
fn as_text(mut events: Events, output: Output) -> Result<u8> {
    let mut told_something = false;
    loop {
        let event = events.next()?;
        let data: Value = serde_json::from_str(&event.data).unwrap_or_default();
        match event.name.as_str() {
            "stdout" => write_out(&bytes_of(&data)?)?,
            "stderr" => write_error(&bytes_of(&data)?)?,
            "change" => write_out(format!("{}\n", change(&data)).as_bytes())?,
            "error" => return Err(Failure::Problem(Problem(data))),
            "result" if told_something => {
                if let Value::Object(mut fields) = data {
                    fields.retain(|_, value| !matches!(value, Value::Array(items) if items.is_empty()));
                    note(crate::render::human(&Value::Object(fields), None).trim_end());
                }
                return Ok(0);
            }
            "result" => return output.value(&data).map(|()| 0),
            _ => continue,
        }
        told_something = true;
    }
}

/// The bytes of a `stdout` or `stderr` event.
pub(crate) fn bytes_of(chunk: &Value) -> Result<Vec<u8>> {
    let data = chunk["data"].as_str().unwrap_or_default();
    if chunk["encoding"] == "base64" {
        return STANDARD
            .decode(data)
            .map_err(|error| crate::client::broken_off(&format!("output is no base64: {error}")));
    }
    Ok(data.as_bytes().to_vec())
}

fn change(change: &Value) -> String {
    let text = |field: &str| printable(change[field].as_str().unwrap_or_default()).into_owned();
    match text("from").as_str() {
        "" => format!("{:<9} {}", text("kind"), text("path")),
        from => format!("{:<9} {from} -> {}", text("kind"), text("path")),
    }
}

/// One argument more.
pub(crate) fn with(mut arguments: Map<String, Value>, name: &str, value: impl Into<Value>) -> Map<String, Value> {
    arguments.insert(name.to_owned(), value.into());
    arguments
}
