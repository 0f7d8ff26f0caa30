//! Cloning the repository that a sandbox is created with, as a command in it.
//!
//! Several calls that create the same sandbox find the same command by its id, so that one clone runs and all tell of it. When it
//! fails, the sandbox goes again with the call that made it.

use std::rc::Rc;

use sandbox_api::{EndedBy, ExecExit};

use crate::error::{Error, ErrorCode, Result};
use crate::events::{EventSink, NoEvents, RedactingSink};
use crate::registry::Context;
use crate::sandbox::exec::Exec;
use crate::sandbox::git::Clone;
use crate::sandbox::record::Record;
use redaction::Redactor;

/// Shorter secrets cannot be masked in a stream without garbling it: what git says is then not streamed.
const SHORTEST_STREAMED_SECRET: usize = 8;

/// Bytes of what git said that an error repeats.
const MOST_REPEATED: usize = 2000;

/// Clones and answers the commit that was checked out.
pub async fn run(
    context: &Context,
    record: &Record,
    clone: &Clone,
    timeout_ms: u64,
    events: Rc<dyn EventSink>,
) -> Result<Option<String>> {
    let secrets = clone.secrets();
    let streams = events.streams() && secrets.iter().all(|secret| secret.len() >= SHORTEST_STREAMED_SECRET);
    let sink = Rc::new(RedactingSink::new(events, &Redactor::new(secrets)));
    let events: Rc<dyn EventSink> = if streams { sink.clone() } else { Rc::new(NoEvents) };
    let request = clone.request(record.created_at, timeout_ms, streams);
    let exec = Exec::new(context.services.clone(), record.sandbox_id.clone(), request, events);
    let cloned = match exec.run().await {
        Ok(exit) => commit(&exit, clone),
        Err(error) => Err(masked(error, clone)),
    };
    // A reader that left is no fault of the clone.
    let _ = sink.finish().await;
    match cloned {
        Ok(commit) => {
            context.services.sandboxes.cloned(&record.sandbox_id).await?;
            Ok(commit)
        }
        Err(error) => Err(removed(context, record, error).await),
    }
}

fn commit(exit: &ExecExit, clone: &Clone) -> Result<Option<String>> {
    match (exit.ended_by, exit.exit_code) {
        (EndedBy::Exit, Some(0)) => {
            let commit = exit.stdout.data.trim();
            Ok((!commit.is_empty()).then(|| commit.to_owned()))
        }
        (EndedBy::Timeout, _) => {
            let message = "gitUrl: the clone did not end within gitTimeout and was ended";
            Err(Error::new(ErrorCode::Timeout, message).detail("git", said(exit, clone)))
        }
        (EndedBy::Exit | EndedBy::Signal, code) => {
            let said = said(exit, clone);
            let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("git said nothing");
            let message = format!("could not be cloned: {last}");
            Err(Error::invalid("/gitUrl", message).detail("git", said.clone()).detail("exitCode", code))
        }
        _ => {
            let message = "gitUrl: the clone was interrupted";
            Err(Error::new(ErrorCode::Interrupted, message).detail("git", said(exit, clone)))
        }
    }
}

/// The end of what git said, masked.
fn said(exit: &ExecExit, clone: &Clone) -> String {
    let text = clone.masked(&exit.stderr.data);
    let start = text.ceil_char_boundary(text.len().saturating_sub(MOST_REPEATED));
    text.get(start..).unwrap_or_default().trim().to_owned()
}

fn masked(error: Error, clone: &Clone) -> Error {
    let cause = error.cause.map(|cause| clone.masked(&cause));
    Error { message: clone.masked(&error.message), cause, ..error }
}

/// Removes a sandbox that this call made for a clone that failed.
async fn removed(context: &Context, record: &Record, error: Error) -> Error {
    let error = error.detail("sandboxId", record.sandbox_id.as_str());
    if context.listed.is_some() {
        return error;
    }
    match context.services.sandboxes.destroy(&record.sandbox_id, false).await {
        Ok(_) => error.detail("sandboxKept", false),
        Err(_) => error.detail("sandboxKept", true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandbox_api::CapturedOutput;

    fn exit(ended_by: EndedBy, exit_code: Option<i32>, stderr: &str) -> ExecExit {
        ExecExit {
            id: "clone-1".into(),
            exit_code,
            signal: None,
            ended_by,
            out_of_memory: false,
            out_of_disk: false,
            stdout: CapturedOutput { data: "abc\n".into(), ..CapturedOutput::default() },
            stderr: CapturedOutput { data: stderr.into(), ..CapturedOutput::default() },
            duration_ms: 7,
        }
    }

    #[test]
    fn only_an_exit_of_zero_is_a_clone_and_nothing_tells_the_credentials() {
        let clone = Clone::parse("https://u:pw1@host/a.git", None, None).unwrap();
        assert_eq!(commit(&exit(EndedBy::Exit, Some(0), ""), &clone).unwrap().as_deref(), Some("abc"));
        let stderr = "remote: pw1 is wrong\nfatal: Authentication failed for 'https://u:pw1@host/a.git/'\n";
        let cases = [
            (EndedBy::Exit, Some(128), ErrorCode::InvalidArguments),
            (EndedBy::Timeout, None, ErrorCode::Timeout),
            (EndedBy::Unknown, None, ErrorCode::Interrupted),
            (EndedBy::Kill, Some(0), ErrorCode::Interrupted),
        ];
        for (ended_by, code, expected) in cases {
            let error = commit(&exit(ended_by, code, stderr), &clone).unwrap_err();
            assert_eq!(error.code, expected);
            let all = serde_json::to_string(&error).unwrap();
            assert!(!all.contains("pw1") && all.contains("Authentication failed"), "{all}");
        }
    }
}
