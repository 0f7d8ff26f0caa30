//! `cfops top`: sandboxes that are there, jobs that are not over, and what is used, again and again.

use crate::catalog::Catalog;
use crate::client::Client;
use crate::failure::{Failure, Result};
use crate::output::{Output, terminal_width};
use crate::render;
use crate::terminal::{printable, write_out};
use chrono::{DateTime, Utc};
use clap::{Arg, ArgAction, ArgMatches, Command};
use console::Term;
use serde_json::{Map, Value, json};
use std::time::Duration;

/// Between two looks. Each is a few of the hundred calls that a key may make in a minute.
const PAUSE: Duration = Duration::from_secs(5);

/// Sandboxes that are asked for what they use at one look.
const MOST_ASKED: usize = 20;

/// Calls of the minute that are left for others.
const RESERVE: u64 = 40;

/// Jobs that are looked at, the last ones.
const MOST_JOBS: u64 = 100;

/// Sandboxes of one page.
const PAGE: u64 = 500;

pub(crate) fn command() -> Command {
    Command::new("top").about("Show sandboxes, open jobs and usage, every five seconds").arg(
        Arg::new("once")
            .long("once")
            .action(ArgAction::SetTrue)
            .help("Look once; so does an output that is no terminal"),
    )
}

pub(crate) fn run(client: &Client, catalog: &Catalog, matches: &ArgMatches, output: Output) -> Result<u8> {
    let terminal = Term::stdout();
    let once = matches.get_flag("once") || output.is_json() || !terminal.is_term();
    loop {
        let seen = look(client, catalog)?;
        if output.is_json() {
            return output.value(&seen).map(|()| 0);
        }
        let text = format!("{}\n{}", headline(client, &seen), render::human(&seen, terminal_width()));
        if once {
            return write_out(text.as_bytes()).map(|()| 0);
        }
        let cleared = terminal.clear_screen();
        cleared.map_err(|error| Failure::file("clear", "the screen".as_ref(), error))?;
        write_out(text.as_bytes())?;
        std::thread::sleep(PAUSE);
    }
}

/// Everything that this key may see.
fn look(client: &Client, catalog: &Catalog) -> Result<Value> {
    let mut seen = Map::new();
    let has = |tool: &str| catalog.tools.iter().any(|one| one.name == tool);
    let page = client.output("listSandboxes", json!({ "limit": PAGE }))?;
    let listed = page["sandboxes"].as_array().cloned().unwrap_or_default();
    let mut asked = 0;
    let mut rows = Vec::new();
    for sandbox in &listed {
        let may_ask = asked < MOST_ASKED && client.remaining().is_none_or(|left| left > RESERVE);
        let is_running = sandbox["state"] == "running";
        let resources = if is_running && may_ask && has("getSandbox") {
            asked += 1;
            resources(client, sandbox)?
        } else {
            Value::Null
        };
        rows.push(row(sandbox, &resources));
    }
    seen.insert("sandboxes".to_owned(), Value::Array(rows));
    if page.get("nextCursor").is_some() {
        seen.insert("more".to_owned(), json!(format!("only the first {PAGE} are shown")));
    }
    if has("listJobs") {
        let page = client.output("listJobs", json!({ "limit": MOST_JOBS }))?;
        let jobs = page["jobs"].as_array().map(Vec::as_slice).unwrap_or_default();
        let open = jobs.iter().filter(|job| job["endedAt"].is_null()).map(job_row);
        seen.insert("jobs".to_owned(), open.collect());
    }
    if has("getUsage") {
        let usage = client.output("getUsage", json!({ "groupBy": "day", "limit": 31 }))?;
        seen.insert("usage".to_owned(), periods(&usage));
    }
    Ok(Value::Object(seen))
}

fn job_row(job: &Value) -> Value {
    let mut row = json!({
        "jobId": job["jobId"],
        "tool": job["tool"],
        "state": job["state"],
        "age": since(&job["createdAt"]),
        "keyId": job["keyId"],
    });
    if job["sandboxId"].is_string() {
        row["sandboxId"] = job["sandboxId"].clone();
    }
    row
}

/// What was used today and in the month so far.
fn periods(usage: &Value) -> Value {
    let today = usage["usage"].as_array().and_then(|days| days.iter().find(|day| day["day"] == usage["until"]));
    let period = |name: &str, used: &Value| {
        let number = |field: &str| used[field].as_f64().unwrap_or_default();
        json!({
            "name": name,
            "calls": number("calls"),
            "failures": number("failures"),
            "execSeconds": number("execSeconds").round(),
            "sandboxSeconds": number("sandboxSeconds").round(),
            "cost": format!("{:.4} USD", number("cost")),
        })
    };
    json!([period("today", today.unwrap_or(&Value::Null)), period("month", &usage["total"])])
}

/// What one sandbox uses; nothing where it went in this moment.
fn resources(client: &Client, sandbox: &Value) -> Result<Value> {
    match client.output("getSandbox", json!({ "sandboxId": sandbox["sandboxId"] })) {
        Ok(told) => Ok(told["resources"].clone()),
        Err(Failure::Problem(_)) => Ok(Value::Null),
        Err(failure) => Err(failure),
    }
}

fn row(sandbox: &Value, resources: &Value) -> Value {
    let mut row = json!({
        "sandboxId": sandbox["sandboxId"],
        "state": sandbox["state"],
        "age": since(&sandbox["createdAt"]),
        "used": since(&sandbox["lastUsedAt"]),
        "labels": sandbox["labels"],
        "owner": sandbox["owner"],
    });
    if let (Some(cpu), Some(memory)) = (resources["cpu"].as_f64(), resources["memory"].as_f64()) {
        row["cpu%"] = json!(format!("{cpu:.0}"));
        row["MB"] = json!(format!("{memory:.0}"));
    }
    row
}

/// How long ago a time was, in the two largest units.
fn since(time: &Value) -> Value {
    let then = time.as_str().and_then(|text| DateTime::parse_from_rfc3339(text).ok());
    let Some(then) = then else { return Value::Null };
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    Value::String(span(now.saturating_sub(then.with_timezone(&Utc).timestamp())))
}

fn span(seconds: i64) -> String {
    let seconds = seconds.max(0);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

fn headline(client: &Client, seen: &Value) -> String {
    let sandboxes = seen["sandboxes"].as_array().map(Vec::as_slice).unwrap_or_default();
    let running = sandboxes.iter().filter(|sandbox| sandbox["state"] == "running").count();
    let left = client.remaining().map(|left| format!(", {left} calls left in this minute")).unwrap_or_default();
    let text = format!("{}: {} sandboxes, {running} running{left}", client.base(), sandboxes.len());
    console::style(printable(&text)).bold().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_their_two_largest_units() {
        let spans: Vec<String> = [-3, 0, 59, 61, 3_700, 90_000].map(span).into();
        assert_eq!(spans, ["0s", "0s", "59s", "1m01s", "1h01m", "1d01h"]);
    }
}
