//! Into a sandbox: a file as one body or in pieces.

use super::bar::Bar;
use super::remote::{Remote, Side};
use crate::client::{Client, broken_off};
use crate::failure::{Failure, Problem, Result};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

/// Bytes of one piece, and of the largest file that goes as a whole.
const PIECE: u64 = 64 << 20;

/// Attempts in a row that brought nothing.
const ATTEMPTS: u32 = 4;

/// How long an upload of which pieces have arrived is tried again at least: the service may still be writing the last one.
const PATIENCE: Duration = Duration::from_secs(60);

/// Between two attempts.
const PAUSE: Duration = Duration::from_secs(2);

/// Copies a file, or standard input.
pub(super) fn copy(client: &Client, from: &Side, mut to: Remote) -> Result<Value> {
    let (mut file, name) = match from {
        Side::Here(path) => (open(path)?, path.file_name().map(OsStr::to_owned)),
        _ => (spooled()?, None),
    };
    if to.names_directory() {
        let name =
            name.ok_or_else(|| Failure::Usage("standard input needs the name of a file in the sandbox".to_owned()))?;
        to.path.push(&name);
    }
    let before = state_of(&file)?;
    let size = before.0;
    let bar = Bar::new(&to.told(), size);
    let answer = if size > PIECE {
        in_pieces(client, &to.file_route(), &mut file, size, &bar)
    } else {
        client.put(&to.file_route(), &[], size, &mut bar.counting(&mut file)).map(|(_, answer)| answer)
    };
    let answer = answer.map_err(|failure| into_directory(failure, &to))?;
    bar.finish();
    if state_of(&file)? != before {
        return Err(Failure::Here {
            what: format!("the file changed while it was copied; {} may hold some of both", to.told()),
            next: "Copy it again once nothing writes to it.".to_owned(),
        });
    }
    if answer["size"].as_u64() != Some(size) {
        return Err(broken_off(&format!("{size} bytes were sent, and the answer tells of {}", answer["size"])));
    }
    let to = to.told();
    Ok(json!({ "to": to, "size": size, "created": answer["created"], "etag": answer["etag"] }))
}

/// Whoever copies onto a directory most likely means into it.
fn into_directory(failure: Failure, to: &Remote) -> Failure {
    match failure {
        Failure::Problem(problem) if problem.0["details"]["reason"] == "wrong_file_type" => Failure::Here {
            what: format!("{} is no ordinary file", to.told()),
            next: format!("`{}/` with a slash at its end copies into the directory.", to.told()),
        },
        other => other,
    }
}

fn open(path: &Path) -> Result<File> {
    let file = File::open(path).map_err(|error| Failure::file("read", path, error))?;
    let metadata = file.metadata().map_err(|error| Failure::file("read", path, error))?;
    if metadata.is_dir() {
        let next = "--recursive copies a directory.";
        return Err(Failure::Here { what: format!("{} is a directory", path.display()), next: next.to_owned() });
    }
    if !metadata.is_file() {
        let next = "Send what it holds: `cfops cp - SANDBOX:PATH < FILE`.";
        return Err(Failure::Here { what: format!("{} is no ordinary file", path.display()), next: next.to_owned() });
    }
    Ok(file)
}

/// Standard input in a file of no name: how long an upload is must be known before it begins.
fn spooled() -> Result<File> {
    let failed = |error| Failure::file("keep", "standard input".as_ref(), error);
    let mut file = tempfile::tempfile().map_err(failed)?;
    std::io::copy(&mut std::io::stdin().lock(), &mut file).map_err(failed)?;
    file.seek(SeekFrom::Start(0)).map_err(failed)?;
    Ok(file)
}

fn state_of(file: &File) -> Result<(u64, Option<SystemTime>)> {
    let metadata = file.metadata().map_err(|error| Failure::file("read", "the file".as_ref(), error))?;
    Ok((metadata.len(), metadata.modified().ok()))
}

/// An upload that comes no further.
struct Stuck {
    since: Instant,
    attempts: u32,
    /// What it was at first: later ones only follow from that.
    failure: Failure,
}

/// Sends a file piece by piece; the last one writes it.
fn in_pieces(client: &Client, route: &str, file: &mut File, size: u64, bar: &Bar) -> Result<Value> {
    let (mut at, mut id, mut stuck) = (0, None::<String>, None::<Stuck>);
    loop {
        let length = PIECE.min(size - at);
        let range = format!("bytes {at}-{}/{size}", at + length - 1);
        file.seek(SeekFrom::Start(at)).map_err(|error| Failure::file("read", "the file".as_ref(), error))?;
        bar.set(at);
        let sent = client.put(route, &headers(&range, id.as_deref()), length, &mut bar.counting(&mut *file));
        let failure = match sent {
            Ok((status, answer)) if status.as_u16() == 202 => {
                (at, id, stuck) = (at + length, answer["uploadId"].as_str().map(str::to_owned), None);
                continue;
            }
            Ok((_, answer)) => return Ok(answer),
            Err(failure) if is_broken(&failure) => failure,
            Err(failure) => return Err(failure),
        };
        let mut now = stuck.take().unwrap_or_else(|| Stuck { since: Instant::now(), attempts: 0, failure });
        now.attempts += 1;
        std::thread::sleep(PAUSE);
        // The first piece has no name to be asked for by: it begins anew.
        let arrived = id.as_deref().map_or(Arrived::Unknown, |id| arrived(client, route, size, id));
        let patience = if id.is_some() { PATIENCE } else { Duration::ZERO };
        match arrived {
            Arrived::Bytes(received) if received > at => at = received,
            // There is nothing to go on with: it was given up, or its last piece has arrived and written the file.
            Arrived::Nothing => return Err(now.failure),
            _ if now.attempts >= ATTEMPTS && now.since.elapsed() >= patience => return Err(now.failure),
            arrived => {
                if let Arrived::Bytes(received) = arrived {
                    at = received;
                }
                stuck = Some(now);
            }
        }
    }
}

/// How much of an upload has arrived.
enum Arrived {
    Bytes(u64),
    /// There is no such upload, or none that another piece could follow.
    Nothing,
    /// It could not be asked.
    Unknown,
}

fn arrived(client: &Client, route: &str, size: u64, id: &str) -> Arrived {
    let range = format!("bytes */{size}");
    match client.put(route, &headers(&range, Some(id)), 0, &mut std::io::empty()) {
        Ok((_, answer)) => told(&answer, size),
        Err(_) => Arrived::Unknown,
    }
}

/// What the answer to that question says.
fn told(answer: &Value, size: u64) -> Arrived {
    match answer["received"].as_u64() {
        Some(received) if answer["uploadId"].is_string() && received < size => Arrived::Bytes(received),
        Some(_) => Arrived::Nothing,
        None => Arrived::Unknown,
    }
}

fn headers<'a>(range: &'a str, id: Option<&'a str>) -> Vec<(&'static str, &'a str)> {
    std::iter::once(("content-range", range)).chain(id.map(|id| ("upload-id", id))).collect()
}

/// Whether the connection is at fault, so that trying again can help.
fn is_broken(failure: &Failure) -> bool {
    match failure {
        Failure::OutcomeUnknown(_) | Failure::Unreachable { .. } => true,
        // The other half of a broken connection: the service tells of a piece that ended early, or still writes it.
        Failure::Problem(Problem(problem)) => {
            ["upload_aborted", "upload_conflict"].iter().any(|reason| problem["details"]["reason"] == *reason)
                || problem["code"] == "sandbox_unavailable"
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upload_that_is_no_longer_there_is_not_gone_on_with() {
        let told = |answer| told(&answer, 100);
        assert!(matches!(told(json!({ "uploadId": "u", "received": 40, "total": 100 })), Arrived::Bytes(40)));
        assert!(matches!(told(json!({ "received": 0, "total": 100 })), Arrived::Nothing));
        assert!(matches!(told(json!({ "uploadId": "u", "received": 100, "total": 100 })), Arrived::Nothing));
        assert!(matches!(told(json!({})), Arrived::Unknown));
    }

    #[test]
    fn only_a_broken_connection_is_tried_again() {
        let problem = |value| Failure::Problem(Problem(value));
        assert!(is_broken(&Failure::OutcomeUnknown(String::new())));
        assert!(is_broken(&problem(json!({ "code": "invalid_arguments", "details": { "reason": "upload_aborted" } }))));
        assert!(!is_broken(&problem(json!({ "code": "not_found" }))));
        assert!(!is_broken(&Failure::ReaderGone));
    }
}
