//! `POST /v1/searches`: lines by what they hold, entries by their names.
//!
//! Nothing is left out silently: what was not read is counted, and `truncated` says when there may be more. Files with NUL
//! bytes are no text. Regular expressions take time linear in what they search.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use hyper::StatusCode;
use regex::bytes::{Regex, RegexBuilder};
use rustix::fs::FileType;
use sandbox_api::{ControlError, SearchMatch, SearchRequest, SearchResult, Truncation};

use super::globs::{Globs, NameGlob};
use super::names::{decode, encode, is_hidden, split};
use super::tree::{Walk, open_file};
use super::{Cancelled, Workspace, refused};
use crate::http::{Problem, json, read_json};

/// Most matches of one search.
const LARGEST_LIMIT: u32 = 2000;
/// Longest search.
const LONGEST_MS: u64 = 20_000;
/// Longest pattern.
const LONGEST_PATTERN: usize = 4096;
/// Bytes that one search reads at most.
const MOST_BYTES: u64 = 1 << 30;
/// Bytes of texts and paths that an answer holds at most, beside its last match.
const ANSWER_BYTES: usize = 512 << 10;
/// Bytes of a line that an answer shows.
const SHOWN_BYTES: usize = 400;
/// A line that is longer is searched in parts of this length.
const LONGEST_LINE: usize = 256 << 10;
/// Memory that a compiled pattern, and the table made while it searches, may take.
const PATTERN_BYTES: usize = 1 << 20;

/// Searches a directory, or one file. Links are not followed.
#[utoipa::path(
    post,
    path = "/v1/searches",
    tag = "files",
    operation_id = "search",
    request_body = SearchRequest,
    responses(
        (status = 200, body = SearchResult),
        (status = 400, description = "A pattern is wrong", body = ControlError),
        (status = 403, description = "The path leads out of the workspace", body = ControlError),
        (status = 404, description = "No such directory or file", body = ControlError)
    )
)]
pub(in crate::serve) async fn post(State(workspace): State<Arc<Workspace>>, body: Body) -> Result<Response, Problem> {
    let request: SearchRequest = read_json(body).await?;
    let path = decode(&workspace, "path", &request.path, request.path_encoding)?;
    let wanted = Wanted::of(&request)?;
    let result = workspace
        .run_long(move |workspace, cancelled| {
            let mut search = Search::new(wanted, cancelled);
            search.run(workspace, &path)?;
            Ok(search.result)
        })
        .await?;
    Ok(json(StatusCode::OK, &result))
}

/// A checked request.
struct Wanted {
    content: Option<Regex>,
    name: Option<NameGlob>,
    exclude: Globs,
    hidden: bool,
    limit: usize,
    time: Duration,
}

impl Wanted {
    fn of(request: &SearchRequest) -> Result<Self, Problem> {
        if request.content.is_none() && request.name.is_none() {
            return Err(Problem::invalid("content: it or `name` is needed"));
        }
        if !(1..=LARGEST_LIMIT).contains(&request.limit) {
            return Err(Problem::invalid(format!("limit: 1 to {LARGEST_LIMIT}")));
        }
        if !(1..=LONGEST_MS).contains(&request.timeout_ms) {
            return Err(Problem::invalid(format!("timeoutMs: 1 to {LONGEST_MS}")));
        }
        Ok(Self {
            content: request.content.as_deref().map(|text| pattern(text, request)).transpose()?,
            name: request.name.as_deref().map(|glob| NameGlob::of("name", glob)).transpose()?,
            exclude: Globs::of("exclude", &request.exclude)?,
            hidden: request.hidden,
            limit: request.limit as usize,
            time: Duration::from_millis(request.timeout_ms),
        })
    }
}

fn pattern(text: &str, request: &SearchRequest) -> Result<Regex, Problem> {
    if text.is_empty() || text.len() > LONGEST_PATTERN {
        return Err(Problem::invalid(format!("content: 1 to {LONGEST_PATTERN} bytes")));
    }
    let text = if request.regex { text.to_owned() } else { regex::escape(text) };
    RegexBuilder::new(&text)
        .case_insensitive(request.ignore_case)
        .size_limit(PATTERN_BYTES)
        .dfa_size_limit(PATTERN_BYTES)
        .build()
        .map_err(|error| Problem::invalid(format!("content: {error}")))
}

struct Search<'a> {
    wanted: Wanted,
    cancelled: &'a Cancelled,
    deadline: Instant,
    read: u64,
    answered: usize,
    result: SearchResult,
}

/// The search is over before its end.
struct Enough;

impl<'a> Search<'a> {
    fn new(wanted: Wanted, cancelled: &'a Cancelled) -> Self {
        let result = SearchResult {
            matches: Vec::new(),
            truncated: false,
            truncated_by: None,
            files_searched: 0,
            binary_files: 0,
            unread: 0,
        };
        let deadline = Instant::now() + wanted.time;
        Self { wanted, cancelled, deadline, read: 0, answered: 0, result }
    }

    fn run(&mut self, workspace: &Workspace, path: &Path) -> Result<(), Problem> {
        let path = workspace.canonical(path)?;
        if !path.as_os_str().is_empty() {
            let (parent, name) = split("path", &path)?;
            let (_, parent) = workspace.open_directory(parent)?;
            let stat = super::info::stat_of(parent.as_fd(), name).map_err(|error| refused(error.into()))?;
            if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
                let file = open_file(parent.as_fd(), name).map_err(|error| refused(error.into()))?;
                // The path itself was named, so no glob decides.
                let _ = self.entry(&path, || Ok(file.into()), FileType::from_raw_mode(stat.st_mode));
                return Ok(());
            }
        }
        let (path, directory) = workspace.open_directory(&path)?;
        let mut walk = Walk::of(directory).map_err(refused)?;
        let ended = self.walk(&mut walk, &path);
        self.result.unread += walk.unread;
        drop(ended);
        Ok(())
    }

    fn walk(&mut self, walk: &mut Walk, top: &Path) -> Result<(), Enough> {
        while let Some(found) = walk.next() {
            self.in_time()?;
            if (!self.wanted.hidden && is_hidden(&found.name)) || self.wanted.exclude.matches(&found.path, &found.name)
            {
                continue;
            }
            if self.wanted.name.as_ref().is_none_or(|glob| glob.matches(&found.path, &found.name)) {
                let open = || open_file(walk.parent(), &found.name).map(File::from);
                self.entry(&top.join(&found.path), open, found.kind())?;
            }
            if found.is_directory() {
                walk.enter(&found);
            }
        }
        Ok(())
    }

    fn entry(
        &mut self,
        path: &Path,
        open: impl FnOnce() -> rustix::io::Result<File>,
        kind: FileType,
    ) -> Result<(), Enough> {
        let Some(pattern) = self.wanted.content.clone() else {
            return self.add(path, None);
        };
        if kind != FileType::RegularFile {
            return Ok(());
        }
        // What was swapped for a pipe meanwhile is no file any more.
        match open() {
            Ok(file) if file.metadata().is_ok_and(|metadata| metadata.is_file()) => self.file(path, file, &pattern),
            Err(rustix::io::Errno::NOENT) => Ok(()),
            _ => {
                self.result.unread += 1;
                Ok(())
            }
        }
    }

    fn file(&mut self, path: &Path, file: File, pattern: &Regex) -> Result<(), Enough> {
        let mut reader = BufReader::with_capacity(64 << 10, file);
        // A file is text until a NUL byte shows; mostly its first bytes tell.
        match reader.fill_buf() {
            Ok(head) if head.contains(&0) => {
                self.result.binary_files += 1;
                return Ok(());
            }
            Ok(_) => {}
            Err(_) => {
                self.result.unread += 1;
                return Ok(());
            }
        }
        self.result.files_searched += 1;
        let (mut line, mut number, mut before) = (Vec::new(), 1, 0);
        loop {
            line.clear();
            let ended = match read_line(&mut reader, &mut line) {
                Ok(None) => return Ok(()),
                Ok(Some(ended)) => ended,
                Err(_) => {
                    self.result.unread += 1;
                    return Ok(());
                }
            };
            self.read += line.len() as u64;
            if line.contains(&0) {
                self.result.binary_files += 1;
                return Ok(());
            }
            let text = line.strip_suffix(b"\n").unwrap_or(&line);
            let text = text.strip_suffix(b"\r").unwrap_or(text);
            if let Some(found) = pattern.find(text) {
                let shown = shown(text, found.start(), found.end());
                self.add(path, Some((number, before + found.start() as u64 + 1, shown)))?;
            }
            if self.read > MOST_BYTES {
                return Err(self.enough(Truncation::Bytes));
            }
            self.in_time()?;
            if ended {
                number += 1;
                before = 0;
            } else {
                before += line.len() as u64;
            }
        }
    }

    fn add(&mut self, path: &Path, line: Option<(u64, u64, String)>) -> Result<(), Enough> {
        // One more than asked for shows that there is more.
        if self.result.matches.len() == self.wanted.limit || self.answered > ANSWER_BYTES {
            return Err(self.enough(Truncation::Limit));
        }
        let (path, path_encoding) = encode(path);
        let (number, column, text) = match line {
            Some((number, column, text)) => (Some(number), Some(column), Some(text)),
            None => (None, None, None),
        };
        self.answered += path.len() + text.as_ref().map_or(0, String::len);
        self.result.matches.push(SearchMatch { path, path_encoding, line: number, column, text });
        Ok(())
    }

    fn in_time(&mut self) -> Result<(), Enough> {
        if self.cancelled.is_set() || Instant::now() > self.deadline {
            return Err(self.enough(Truncation::Time));
        }
        Ok(())
    }

    fn enough(&mut self, why: Truncation) -> Enough {
        self.result.truncated = true;
        self.result.truncated_by = Some(why);
        Enough
    }
}

/// Reads a line with its end, or a part of a very long one. Tells whether the line ended; `None` at the end of the file.
fn read_line(reader: &mut impl BufRead, line: &mut Vec<u8>) -> std::io::Result<Option<bool>> {
    loop {
        let buffer = reader.fill_buf()?;
        if buffer.is_empty() {
            return Ok((!line.is_empty()).then_some(true));
        }
        let room = LONGEST_LINE - line.len();
        let end = buffer.iter().take(room).position(|byte| *byte == b'\n');
        let taken = end.map_or(buffer.len().min(room), |end| end + 1);
        line.extend_from_slice(&buffer[..taken]);
        reader.consume(taken);
        if end.is_some() {
            return Ok(Some(true));
        }
        if line.len() == LONGEST_LINE {
            return Ok(Some(false));
        }
    }
}

/// The part of a line that an answer shows: whole when it is short, otherwise what stands around the match.
fn shown(line: &[u8], start: usize, end: usize) -> String {
    let context = SHOWN_BYTES.saturating_sub(end - start) / 2;
    let mut from = if line.len() <= SHOWN_BYTES { 0 } else { start.saturating_sub(context) };
    let mut to = line.len().min(from + SHOWN_BYTES);
    // A cut inside a character would show as a broken one.
    let inside = |at: usize| line.get(at).is_some_and(|byte| byte & 0b1100_0000 == 0b1000_0000);
    while from > 0 && from < start && inside(from) {
        from += 1;
    }
    while to < line.len() && to > from && inside(to) {
        to -= 1;
    }
    String::from_utf8_lossy(line.get(from..to).unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_is_shown_around_its_match() {
        assert_eq!(shown(b"short", 1, 2), "short");
        let line = format!("{}needle{}", "é".repeat(5000), "x".repeat(5000));
        let shown = shown(line.as_bytes(), 10_000, 10_006);
        assert!(shown.contains("éneedlex") && shown.len() <= SHOWN_BYTES, "{shown}");
        assert!(!shown.contains('\u{fffd}'), "{shown}");
    }

    #[test]
    fn lines_of_any_length_are_read_in_bounded_parts() {
        let text = format!("a\n{}\nlast", "x".repeat(LONGEST_LINE + 5));
        let mut reader = BufReader::with_capacity(1000, text.as_bytes());
        let mut parts = Vec::new();
        loop {
            let mut line = Vec::new();
            let Some(ended) = read_line(&mut reader, &mut line).expect("memory can be read") else { break };
            parts.push((line.len(), ended));
        }
        assert_eq!(parts, [(2, true), (LONGEST_LINE, false), (6, true), (4, true)]);
    }
}
