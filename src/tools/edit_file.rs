//! editFile: replaces a piece of text, and writes only over the version that it looked at.

use std::rc::Rc;

use memchr::memmem;
use sandbox_api::{FileWritten, PathEncoding};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use super::write_file::{Bytes, upload};
use super::{looking, path};
use crate::error::{Error, ErrorCode, Result};
use crate::events::EventSink;
use crate::guardrails::{Annotations, Approval, Execution, Guardrails, RateClass, Role, Scope};
use crate::identifier::SandboxId;
use crate::preview;
use crate::registry::{CallFacts, Context, Route, Tool};
use crate::sandbox::files::{self, collect, lost, parse, read};
use crate::tenant::admission::SandboxClaim;

/// Largest file before and after an edit.
const LARGEST_FILE: usize = 8 * 1024 * 1024;

/// Times that the file is looked at: others may write between a look and a write.
const ATTEMPTS: u32 = 4;

/// Lines of matches that a refusal names.
const NAMED_LINES: usize = 10;

/// What to replace, and by what.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Sandbox that holds the file.
    pub sandbox_id: SandboxId,
    /// Path of the file: relative to /workspace, or absolute inside it.
    #[schema(min_length = 1, max_length = 12_288)]
    pub path: String,
    /// `percent` when `path` is percent-encoded, as other tools answer a name that is not UTF-8; default utf-8.
    #[serde(default)]
    pub path_encoding: Option<PathEncoding>,
    /// Text that is in the file, exactly as it stands there, spaces and line ends included; once, or `replaceAll` is needed.
    #[schema(min_length = 1)]
    pub old_text: String,
    /// Text to put in its place.
    pub new_text: String,
    /// Whether every occurrence is replaced; default false.
    #[serde(default)]
    pub replace_all: Option<bool>,
}

/// The file, edited.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    /// The path as it was given.
    pub path: String,
    /// Occurrences replaced.
    pub replacements: u64,
    /// Bytes of the file now.
    pub size: u64,
    /// Tag of the file now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
}

pub struct EditFile;

impl Tool for EditFile {
    const NAME: &'static str = "editFile";
    const DESCRIPTION: &'static str = "Replaces oldText in a file by newText, exactly. Refuses with `conflict` when oldText is not in \
        the file or is there several times (`matches` and the first `lines` are in the details), unless replaceAll. A change that somebody \
        else makes meanwhile is never lost. Files have 8 MiB at most.";
    const ROUTES: &'static [Route] = &[];
    const ANNOTATIONS: Annotations = Annotations {
        title: "Edit a file",
        read_only_hint: false,
        destructive_hint: true,
        idempotent_hint: false,
        open_world_hint: false,
    };
    const GUARDRAILS: Guardrails = Guardrails {
        role: Role::Operator,
        scopes: &[Scope::SandboxWrite],
        approval: Approval::NotNeeded,
        default_timeout: 60,
        maximum_timeout: 60,
        output_cap_bytes: 64 * 1024,
        rate_class: RateClass::SandboxOperation,
        unrecorded_arguments: &["/oldText", "/newText"],
        told_once: &[],
    };
    const EXECUTION: Execution = Execution::Inline;

    type Input = Input;
    type Output = Output;

    fn claim(input: &Input, _facts: &CallFacts<'_>) -> Result<SandboxClaim> {
        path::check("/path", &input.path, input.path_encoding.unwrap_or_default())?;
        if input.old_text == input.new_text {
            return Err(Error::invalid("/newText", "is the same as oldText"));
        }
        Ok(SandboxClaim::Existing { sandbox_id: input.sandbox_id.clone() })
    }

    async fn preview(context: Context, input: Input) -> Result<Vec<String>> {
        let encoding = input.path_encoding.unwrap_or_default();
        let told = looking::told(&context, &input.path, encoding, "there is nothing, so the call fails").await?;
        let how = if input.replace_all == Some(true) { "every occurrence" } else { "the one occurrence" };
        preview::in_sandbox(&context, format!("In {told} {how} of oldText is replaced."))
    }

    async fn call(context: Context, input: Input, _events: Rc<dyn EventSink>) -> Result<Output> {
        let target = path::control(path::FILES, &input.path, input.path_encoding.unwrap_or_default())?;
        let sandboxes = &context.services.sandboxes;
        for _ in 0..ATTEMPTS {
            // 1. Look at the file, and remember which version that was.
            let response = sandboxes.control(&input.sandbox_id, files::request("GET", target.clone())).await?;
            let declared = response.header("content-length").and_then(|text| text.parse::<usize>().ok());
            if declared.is_none_or(|bytes| bytes > LARGEST_FILE) {
                return Err(too_large("the file"));
            }
            let etag = response.header("etag").map(str::to_owned);
            let etag = etag.ok_or_else(|| Error::internal("the control API answered a file without its tag"))?;
            let content = read(response.body, LARGEST_FILE).await.map_err(|cause| lost(true, &cause))?;
            // 2. Replace, exactly.
            let edited = replace(
                &content,
                input.old_text.as_bytes(),
                input.new_text.as_bytes(),
                input.replace_all.unwrap_or_default(),
            )?;
            // 3. Write over that version only.
            let length = u64::try_from(edited.content.len()).map_err(Error::internal)?;
            let headers = vec![("if-match", etag)];
            let request = upload(target.clone(), headers, Box::new(Bytes(edited.content)), length, files::DEADLINE);
            match sandboxes.control(&input.sandbox_id, request).await {
                Ok(response) => {
                    let written: FileWritten = parse(&collect(response).await?)?;
                    return Ok(Output {
                        path: input.path,
                        replacements: edited.replacements,
                        size: written.size,
                        etag: written.etag,
                    });
                }
                // Somebody else wrote: their version is the one to edit.
                Err(error) if error.code == ErrorCode::PreconditionFailed => {}
                Err(error) => return Err(error),
            }
        }
        let message = "others keep writing to the file; nothing was changed by this call";
        let error = Error::new(ErrorCode::Conflict, message).detail("reason", "changed_meanwhile");
        Err(Error { retryable: true, retry_after: Some(1), ..error })
    }
}

fn too_large(what: &str) -> Error {
    let message = format!("path: {what} has more than the {LARGEST_FILE} bytes that an edit takes");
    Error::new(ErrorCode::PayloadTooLarge, message).detail("limitBytes", LARGEST_FILE)
}

#[derive(Debug, PartialEq, Eq)]
struct Edited {
    content: Vec<u8>,
    replacements: u64,
}

/// Replaces `old`, which must be there once, or several times with `all`. Works on bytes: the rest of the file need not be
/// text.
fn replace(content: &[u8], old: &[u8], new: &[u8], all: bool) -> Result<Edited> {
    let finder = memmem::Finder::new(old);
    let first = finder.find(content);
    let apart = finder.find_iter(content).count();
    // Occurrences that overlap are several places to choose from too.
    let overlaps = first.and_then(|at| content.get(at + 1..)).is_some_and(|rest| finder.find(rest).is_some());
    let count = if overlaps { apart.max(2) } else { apart };
    if count == 0 {
        let message = "oldText: is not in the file; read it again, and mind spaces and line ends";
        return Err(Error::new(ErrorCode::Conflict, message).detail("reason", "no_match").detail("matches", 0));
    }
    if count > 1 && !all {
        let places = places(&finder, content).take(NAMED_LINES);
        let lines: Vec<usize> = places.map(|at| line(content, at)).collect();
        let message = format!("oldText: is in the file {count} times; give more of the text around it, or replaceAll");
        return Err(Error::new(ErrorCode::Conflict, message)
            .detail("reason", "ambiguous")
            .detail("matches", count)
            .detail("lines", json!(lines)));
    }
    let mut edited = Edited { content: Vec::with_capacity(content.len()), replacements: 0 };
    let mut from = 0;
    for at in finder.find_iter(content) {
        let kept = content.get(from..at).unwrap_or_default();
        // Held against the limit before it is made: a short text can be there millions of times.
        if edited.content.len() + kept.len() + new.len() > LARGEST_FILE {
            return Err(too_large("the edited file"));
        }
        edited.content.extend_from_slice(kept);
        edited.content.extend_from_slice(new);
        edited.replacements += 1;
        from = at + old.len();
    }
    let rest = content.get(from..).unwrap_or_default();
    if edited.content.len() + rest.len() > LARGEST_FILE {
        return Err(too_large("the edited file"));
    }
    edited.content.extend_from_slice(rest);
    Ok(edited)
}

/// Where a text is in a content, from the left, occurrences that overlap included.
fn places<'a>(finder: &'a memmem::Finder<'a>, content: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
    std::iter::successors(finder.find(content), move |at| {
        let from = at + 1;
        finder.find(content.get(from..)?).map(|further| from + further)
    })
}

/// Number of the line that a byte is in.
fn line(content: &[u8], at: usize) -> usize {
    1 + content.iter().take(at).filter(|byte| **byte == b'\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(content: &str, old: &str, new: &str, all: bool) -> Result<String> {
        replace(content.as_bytes(), old.as_bytes(), new.as_bytes(), all)
            .map(|edited| String::from_utf8(edited.content).unwrap())
    }

    #[test]
    fn one_occurrence_is_replaced_exactly() {
        assert_eq!(text("a\r\nb\r\n", "b\r", "B", false).unwrap(), "a\r\nB\n");
        assert_eq!(text("x", "x", "", false).unwrap(), "");
        assert_eq!(text("$1 \\1", "$1", "$0&", false).unwrap(), "$0& \\1");
        let edited = replace(b"\xff\xfea\x00", b"a", "é".as_bytes(), false).unwrap();
        assert_eq!(edited.content, b"\xff\xfe\xc3\xa9\x00", "the rest need not be text");
    }

    #[test]
    fn what_is_absent_or_ambiguous_is_refused_with_the_count() {
        let error = text("abc", "x", "y", false).unwrap_err();
        assert_eq!((error.code, &error.details["matches"]), (ErrorCode::Conflict, &json!(0)));
        assert_eq!(text("abc", "x", "y", true).unwrap_err().details["reason"], "no_match");
        let error = text("one\ntwo one\n\none", "one", "y", false).unwrap_err();
        assert_eq!((&error.details["matches"], &error.details["lines"]), (&json!(3), &json!([1, 2, 4])));
        assert_eq!(text("aaa", "aa", "b", false).unwrap_err().details["matches"], 2, "overlapping places are two");
        assert!(text("short", "longer than it", "", false).is_err());
        assert!(text("", "x", "", false).is_err());
    }

    #[test]
    fn all_occurrences_are_replaced_from_the_left() {
        let edited = replace(b"aaaa b aaa", b"aa", b"c", true).unwrap();
        assert_eq!((edited.content.as_slice(), edited.replacements), (b"cc b ca".as_slice(), 3));
        assert_eq!(text("a.a.a", "a", "aa", true).unwrap(), "aa.aa.aa", "what was put in is not looked at again");
    }

    #[test]
    fn an_edit_that_grows_over_the_limit_is_refused_before_it_is_made() {
        let content = vec![b'a'; LARGEST_FILE];
        let error = replace(&content, b"a", &[b'b'; 1_000_000], true).unwrap_err();
        assert_eq!((error.code, &error.details["limitBytes"]), (ErrorCode::PayloadTooLarge, &json!(LARGEST_FILE)));
        let (old, new) = ([b'a'; 1024], [b'b'; 1024]);
        assert_eq!(replace(&content, &old, &new, true).unwrap().content.len(), LARGEST_FILE);
    }

    #[test]
    fn texts_that_repeat_themselves_do_not_hold_the_worker_up() {
        // Compared at every place, each of these would take minutes.
        let content = vec![b'a'; 2_000_000];
        let old = [vec![b'a'; 300_000], vec![b'b']].concat();
        assert_eq!(replace(&content, &old, b"", false).unwrap_err().details["matches"], 0);
        let old = vec![b'a'; 300_000];
        assert_eq!(replace(&content, &old, b"", false).unwrap_err().details["reason"], "ambiguous");
        assert_eq!(replace(&content, &old, b"", true).unwrap().replacements, 6);
    }
}
