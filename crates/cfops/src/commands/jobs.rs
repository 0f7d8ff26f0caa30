//! `cfops jobs logs`: what the command of a job wrote, also over connections that break off.

use super::call::bytes_of;
use crate::client::{Client, Events, Reply, Wanted};
use crate::failure::{Failure, Problem, Result, exit_code};
use crate::output::Output;
use crate::terminal::{heading, note, write_error, write_out};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use serde_json::{Map, Value, json};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long a service that is away is asked again.
const PATIENCE: Duration = Duration::from_secs(60);

/// Between two attempts.
const PAUSE: Duration = Duration::from_secs(1);

pub(crate) fn command() -> Command {
    let follow = "Go on with what comes until the job is over, also after a connection that broke off";
    let steps = "Name the steps of a pipeline, also where standard error is no terminal";
    let logs = Command::new("logs")
        .about("What the command of a job wrote, while it runs and after")
        .long_about(
            "Standard output and standard error are the job's, byte by byte; at a terminal, and with --steps, each step of a pipeline \
             has its name over what it wrote, on standard error. With --follow the exit code is that of the command, or that of the \
             error with which the job ended.",
        )
        .arg(Arg::new("job").required(true).value_name("JOB").help("Id of the job, as in Location or list-jobs"))
        .arg(Arg::new("follow").short('f').long("follow").action(ArgAction::SetTrue).help(follow))
        .arg(Arg::new("steps").long("steps").action(ArgAction::SetTrue).help(steps))
        .arg(
            Arg::new("offset")
                .long("offset")
                .value_name("BYTES")
                .default_value("0")
                .value_parser(value_parser!(u64))
                .help("First byte to show; both channels are counted"),
        );
    Command::new("jobs")
        .about("Logs of jobs; `list-jobs`, `get-job`, `cancel-job` and `retry-job` are commands of their own")
        .subcommand_required(true)
        .subcommand(logs)
}

pub(crate) fn run(client: &Client, matches: &ArgMatches, output: Output) -> Result<u8> {
    let Some(("logs", matches)) = matches.subcommand() else {
        return Err(Failure::Usage("jobs: which command? There is `logs`".to_owned()));
    };
    let id = matches.get_one::<String>("job").map(String::as_str).unwrap_or_default();
    let mut place = Place {
        offset: matches.get_one::<u64>("offset").copied().unwrap_or(0),
        as_json: output.is_json(),
        names_steps: matches.get_flag("steps"),
        step: None,
        begins_line: true,
    };
    if matches.get_flag("follow") {
        follow(client, id, &mut place)?;
        return ended(client, id);
    }
    loop {
        let part = client.output("getJobLogs", json!({ "jobId": id, "offset": place.offset, "limit": 1_048_576 }))?;
        place.tell_gap(&part);
        let chunks = part["chunks"].as_array().cloned().unwrap_or_default();
        for chunk in &chunks {
            place.show(chunk["channel"].as_str().unwrap_or_default(), chunk)?;
        }
        if chunks.is_empty() {
            return Ok(0);
        }
    }
}

/// How far the log is shown.
struct Place {
    offset: u64,
    as_json: bool,
    /// Whether steps are named although nobody looks.
    names_steps: bool,
    /// The step that wrote last.
    step: Option<String>,
    /// Whether what is shown next begins a line.
    begins_line: bool,
}

impl Place {
    fn show(&mut self, channel: &str, chunk: &Value) -> Result<()> {
        let begins_at = chunk["offset"].as_u64().unwrap_or(self.offset);
        if self.as_json {
            write_out(format!("{}\n", json!({ "event": channel, "data": chunk })).as_bytes())?;
            self.offset = begins_at + bytes_of(chunk)?.len() as u64;
            return Ok(());
        }
        self.name_step(chunk["step"].as_str())?;
        let shown = bytes_of(chunk)?;
        let write = if channel == "stderr" { write_error } else { write_out };
        write(&shown)?;
        self.offset = begins_at + shown.len() as u64;
        self.begins_line = shown.last().map_or(self.begins_line, |last| *last == b'\n');
        Ok(())
    }

    /// Names the step of a pipeline that writes from here on.
    fn name_step(&mut self, step: Option<&str>) -> Result<()> {
        let Some(step) = step.filter(|step| self.step.as_deref() != Some(step)) else { return Ok(()) };
        heading(&format!("── {step}"), self.begins_line, self.names_steps)?;
        self.step = Some(step.to_owned());
        self.begins_line = true;
        Ok(())
    }

    fn tell_gap(&self, part: &Value) {
        if let Some(from) = part["truncatedBefore"].as_u64() {
            note(&format!("Of the log, bytes {} to {from} are no longer kept.", self.offset));
        }
    }
}

/// Shows what comes until the job is over. What has been shown is not asked for again.
fn follow(client: &Client, id: &str, place: &mut Place) -> Result<()> {
    let mut heard_at = Instant::now();
    loop {
        let mut arguments = Map::new();
        arguments.insert("jobId".to_owned(), json!(id));
        arguments.insert("offset".to_owned(), json!(place.offset));
        arguments.insert("follow".to_owned(), json!(true));
        let before = place.offset;
        let told = match client.call("getJobLogs", &arguments, Wanted::Events, None) {
            Ok(Reply::Events(events)) => shown(events, place),
            Ok(_) => return Err(Failure::OutcomeUnknown("the service told no events".to_owned())),
            Err(failure) => Err(failure),
        };
        let is_news = told.is_ok() || place.offset > before;
        match told {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(failure) if !may_pass(&failure) || (!is_news && heard_at.elapsed() > PATIENCE) => return Err(failure),
            Err(_) => sleep(PAUSE),
        }
        if is_news {
            heard_at = Instant::now();
        }
    }
}

/// Whether asking again may help: reading a log changes nothing.
fn may_pass(failure: &Failure) -> bool {
    match failure {
        Failure::Unreachable { .. } | Failure::OutcomeUnknown(_) => true,
        Failure::Problem(Problem(problem)) => problem["retryable"] == true,
        _ => false,
    }
}

/// Shows the events of one connection, and tells whether the job is over.
fn shown(mut events: Events, place: &mut Place) -> Result<bool> {
    loop {
        let event = events.next()?;
        let data: Value = serde_json::from_str(&event.data).unwrap_or_default();
        match event.name.as_str() {
            channel @ ("stdout" | "stderr") => place.show(channel, &data)?,
            "error" => return Err(Failure::Problem(Problem(data))),
            "result" => {
                place.tell_gap(&data);
                return Ok(data["ended"] == true);
            }
            _ => {}
        }
    }
}

/// How the job ended, as an exit code.
fn ended(client: &Client, id: &str) -> Result<u8> {
    let job = client.output("getJob", json!({ "jobId": id }))?;
    if let Some(code) = job["exitCode"].as_i64().and_then(|code| u8::try_from(code).ok()) {
        return Ok(code);
    }
    match job["state"].as_str() {
        Some("succeeded") => Ok(0),
        _ if job["error"].is_object() => Err(Failure::Problem(Problem(job["error"].clone()))),
        _ => Ok(exit_code::OUTCOME_UNKNOWN),
    }
}
