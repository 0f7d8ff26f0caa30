//! Resources as MCP tells them: what there is for a key, what was read, and why something could not be.
//!
//! Each is read by the tool that reads the same, with its rights, limits and records: a file by readFile, a directory by listFiles, a log by
//! getJobLogs. The list comes from listSandboxes and listJobs. It asks no sandbox, so that none is started or kept awake by a client that
//! lists: what a sandbox holds is told by its directories.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sandbox_api::{EncodedBytes, Encoding, LogChunk, PathEncoding};
use serde_json::{Map, Value, json};

use super::envelope::{Fault, INTERNAL_ERROR, INVALID_PARAMS};
use super::headers::Era;
use super::result::{LIST_TTL_MS, PROBLEM_FIELD};
use super::uris::{self, FILE_TEMPLATE, LOG_TEMPLATE};
use crate::error::{Error, ErrorCode};

/// Entries of one kind in a page.
pub const PAGE: u32 = 100;

/// Most bytes of a file that are told as a resource, which is told whole.
pub const LONGEST_FILE: u64 = 1024 * 1024;

/// Most entries of a directory that are told.
pub const MOST_ENTRIES: u32 = 1000;

/// Bytes of a log that are asked for at once.
pub const LOG_PART: u64 = 1024 * 1024;

/// Where the earlier revisions have a code of its own for a resource that is not there.
const LEGACY_NOT_FOUND: i64 = -32002;

/// Of this product: the service or the sandbox is unavailable, a limit is used up, or something else refuses.
const UNAVAILABLE: i64 = -32000;
const LIMITED: i64 = -32003;
pub const REFUSED: i64 = -32010;

/// Where a list of resources goes on: first the sandboxes, then the jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// After the sandbox of this cursor of listSandboxes, or at the first.
    Sandboxes(Option<String>),
    /// The same of listJobs.
    Jobs(Option<String>),
}

impl Place {
    /// From a cursor that a page gave out; nothing where none did.
    pub fn parse(cursor: Option<&str>) -> Option<Self> {
        let Some(cursor) = cursor else { return Some(Self::Sandboxes(None)) };
        let (kind, rest) = cursor.split_once(':')?;
        let rest = (!rest.is_empty()).then(|| rest.to_owned());
        match (kind, rest) {
            ("sandboxes", Some(rest)) => Some(Self::Sandboxes(Some(rest))),
            ("jobs", rest) => Some(Self::Jobs(rest)),
            _ => None,
        }
    }

    pub fn text(&self) -> String {
        match self {
            Self::Sandboxes(rest) => format!("sandboxes:{}", rest.as_deref().unwrap_or_default()),
            Self::Jobs(rest) => format!("jobs:{}", rest.as_deref().unwrap_or_default()),
        }
    }
}

/// The workspace of an entry of listSandboxes.
pub fn of_sandbox(sandbox: &Value) -> Value {
    let id = text(sandbox, "sandboxId");
    json!({
        "uri": uris::of_entry(id, "", PathEncoding::Utf8, true),
        "name": format!("{id}/"),
        "title": format!("Workspace of the sandbox {id}"),
        "description": "What is in the workspace, each entry with its address. Reading it starts the sandbox where it does not run.",
        "mimeType": "application/json",
    })
}

/// The log of an entry of listJobs that has begun, where its tool is one of those that the key may call.
pub fn of_job(job: &Value, may_call: impl Fn(&str) -> bool) -> Option<Value> {
    let (id, tool) = (text(job, "jobId"), text(job, "tool"));
    if !job.get("begunAt").is_some_and(Value::is_string) || !may_call(tool) {
        return None;
    }
    let description =
        format!("What the job wrote; {} is its state. Asked for at {}.", text(job, "state"), text(job, "createdAt"));
    Some(json!({
        "uri": uris::of_log(id),
        "name": format!("{id}/logs"),
        "title": format!("Log of a job of {tool}"),
        "description": description,
        "mimeType": "text/plain",
    }))
}

/// `resources/list`.
pub fn listed(era: Era, resources: Vec<Value>, next: Option<Place>) -> Value {
    let mut listed = json!({ "resources": resources });
    if let (Some(next), Some(fields)) = (next, listed.as_object_mut()) {
        fields.insert("nextCursor".to_owned(), next.text().into());
    }
    kept(era, listed, LIST_TTL_MS)
}

/// `resources/templates/list`, of what the key may read.
pub fn templates(era: Era, may_call: impl Fn(&str) -> bool) -> Value {
    let file = json!({
        "uriTemplate": FILE_TEMPLATE,
        "name": "sandbox-file",
        "title": "File or directory of a sandbox",
        "description": "A file, whole, up to 1 MiB; with a slash at the end of its path what is in a directory. Reading starts the \
            sandbox where it does not run.",
    });
    let log = json!({
        "uriTemplate": LOG_TEMPLATE,
        "name": "job-logs",
        "title": "Log of a job",
        "description": "What the command of a job wrote to stdout and stderr, as it came; the newest 4 MiB.",
        "mimeType": "text/plain",
    });
    let of = [("readFile", file), ("getJobLogs", log)].into_iter();
    let templates: Vec<Value> = of.filter(|(tool, _)| may_call(tool)).map(|(_, template)| template).collect();
    kept(era, json!({ "resourceTemplates": templates }), LIST_TTL_MS)
}

/// `resources/read`, of one resource. It may change at any time.
pub fn read(era: Era, contents: Value) -> Value {
    kept(era, json!({ "contents": [contents] }), 0)
}

/// Each key is told something else.
fn kept(era: Era, mut result: Value, ttl_ms: u64) -> Value {
    if let (Era::Modern, Some(fields)) = (era, result.as_object_mut()) {
        fields.insert("ttlMs".to_owned(), ttl_ms.into());
        fields.insert("cacheScope".to_owned(), "private".into());
    }
    result
}

/// What readFile answered.
pub fn file(uri: &str, path: &str, output: &Value) -> Result<Value, Error> {
    let size = output.get("size").and_then(Value::as_u64).unwrap_or(0);
    if output.get("truncated") == Some(&Value::Bool(true)) {
        let message = format!(
            "the file has {size} bytes, and a resource is told whole, up to {LONGEST_FILE}; the tool readFile reads it in parts"
        );
        return Err(Error::new(ErrorCode::PayloadTooLarge, message).detail("size", size));
    }
    let is_text = output.get("encoding") == Some(&json!(Encoding::Utf8));
    let field = if is_text { "text" } else { "blob" };
    Ok(json!({ "uri": uri, "mimeType": uris::kind(path, is_text), field: text(output, "content") }))
}

/// What listFiles answered, each entry with its address.
pub fn directory(uri: &str, sandbox_id: &str, output: &Value) -> Value {
    let entries: Vec<Value> = output.get("entries").and_then(Value::as_array).into_iter().flatten().cloned().collect();
    let entries = entries.into_iter().map(|mut entry| {
        let encoding = entry.get("pathEncoding").cloned().and_then(|encoding| serde_json::from_value(encoding).ok());
        let is_directory = text(&entry, "type") == "directory";
        let uri = uris::of_entry(sandbox_id, text(&entry, "path"), encoding.unwrap_or_default(), is_directory);
        if let Some(fields) = entry.as_object_mut() {
            fields.insert("uri".to_owned(), uri.into());
        }
        entry
    });
    let mut told = json!({ "entries": entries.collect::<Vec<_>>() });
    if let (Some(cursor), Some(fields)) = (output.get("nextCursor"), told.as_object_mut()) {
        // The tool listFiles goes on from there.
        fields.insert("nextCursor".to_owned(), cursor.clone());
    }
    json!({ "uri": uri, "mimeType": "application/json", "text": told.to_string() })
}

/// A log that is put together from the answers of getJobLogs.
#[derive(Debug, Default)]
pub struct Log {
    bytes: Vec<u8>,
    /// Offset of the first byte that is kept.
    truncated_before: Option<u64>,
    pub next_offset: u64,
    pub ended: bool,
}

impl Log {
    /// Adds an answer; whether there may be more.
    pub fn push(&mut self, output: &Value) -> Result<bool, Error> {
        let before = self.bytes.len();
        for chunk in output.get("chunks").and_then(Value::as_array).into_iter().flatten() {
            let LogChunk { data, encoding, .. } = serde_json::from_value(chunk.clone()).map_err(Error::internal)?;
            let decoded = EncodedBytes { data, encoding }.decode();
            self.bytes.extend(decoded.ok_or_else(|| Error::internal("a piece of a log is not readable"))?);
        }
        self.truncated_before = self.truncated_before.or(output.get("truncatedBefore").and_then(Value::as_u64));
        self.next_offset = output.get("nextOffset").and_then(Value::as_u64).unwrap_or(self.next_offset);
        self.ended = output.get("ended") == Some(&Value::Bool(true));
        Ok(!self.ended && self.bytes.len() > before)
    }

    pub fn contents(self, uri: &str) -> Value {
        let mut meta = Map::new();
        meta.insert("cloudflare-ops/ended".to_owned(), self.ended.into());
        meta.insert("cloudflare-ops/nextOffset".to_owned(), self.next_offset.into());
        if let Some(offset) = self.truncated_before {
            meta.insert("cloudflare-ops/truncatedBefore".to_owned(), offset.into());
        }
        match String::from_utf8(self.bytes) {
            Ok(text) => json!({ "uri": uri, "mimeType": "text/plain", "text": text, "_meta": meta }),
            Err(error) => {
                let blob = STANDARD.encode(error.as_bytes());
                json!({ "uri": uri, "mimeType": "application/octet-stream", "blob": blob, "_meta": meta })
            }
        }
    }
}

/// No resource has this address.
pub fn no_such(uri: &str) -> Error {
    let shown: String = uri.chars().take(256).collect();
    let message = format!("there is no resource {shown:?}; addresses are {FILE_TEMPLATE} and {LOG_TEMPLATE}");
    Error::new(ErrorCode::NotFound, message)
}

/// Why a resource was not read, or none were listed. The stateless revision has no code of its own for one that is not there.
pub fn fault(error: &Error, uri: Option<&str>, era: Era, request_id: &str) -> Fault {
    let code = match error.code {
        ErrorCode::NotFound if era == Era::Legacy => LEGACY_NOT_FOUND,
        ErrorCode::NotFound | ErrorCode::InvalidArguments => INVALID_PARAMS,
        ErrorCode::Internal => INTERNAL_ERROR,
        ErrorCode::RateLimited | ErrorCode::QuotaExceeded => LIMITED,
        ErrorCode::SandboxUnavailable
        | ErrorCode::ObjectUnavailable
        | ErrorCode::NotConfigured
        | ErrorCode::VersionMismatch => UNAVAILABLE,
        _ => REFUSED,
    };
    let problem = error.problem(request_id);
    let message = format!("{}: {}", error.code.as_str(), problem.detail);
    let mut data = json!({ PROBLEM_FIELD: problem });
    if let (Some(uri), Some(fields)) = (uri, data.as_object_mut()) {
        fields.insert("uri".to_owned(), uri.into());
    }
    Fault { data: Some(data), ..Fault::new(200, code, message) }
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_one_that_a_page_gave_out() {
        assert_eq!(Place::parse(None), Some(Place::Sandboxes(None)));
        for place in [Place::Sandboxes(Some("box".into())), Place::Jobs(None), Place::Jobs(Some("1:j".into()))] {
            assert_eq!(Place::parse(Some(&place.text())), Some(place));
        }
        for other in ["", "box", "sandboxes:", "files:x"] {
            assert_eq!(Place::parse(Some(other)), None, "{other}");
        }
    }

    #[test]
    fn a_file_is_told_whole_or_not_at_all() {
        let output = json!({ "content": "é", "encoding": "utf-8", "size": 2, "truncated": false });
        assert_eq!(
            file("u", "a.md", &output).unwrap(),
            json!({ "uri": "u", "mimeType": "text/markdown", "text": "é" })
        );
        let output = json!({ "content": "/w==", "encoding": "base64", "size": 1, "truncated": false });
        let told = file("u", "a", &output).unwrap();
        assert_eq!(told, json!({ "uri": "u", "mimeType": "application/octet-stream", "blob": "/w==" }));
        let output = json!({ "content": "x", "encoding": "utf-8", "size": 2_000_000, "truncated": true });
        let error = file("u", "a", &output).unwrap_err();
        assert_eq!((error.code, &error.details["size"]), (ErrorCode::PayloadTooLarge, &json!(2_000_000)));
    }

    #[test]
    fn a_log_is_put_together_in_the_order_in_which_it_came() {
        let chunk =
            |channel: &str, data: &str| json!({ "channel": channel, "data": data, "encoding": "utf-8", "offset": 0 });
        let mut log = Log::default();
        let first = json!({ "chunks": [chunk("stdout", "a"), chunk("stderr", "b")], "nextOffset": 7, "truncatedBefore": 5, "ended": false });
        assert!(log.push(&first).unwrap());
        assert!(!log.push(&json!({ "chunks": [], "nextOffset": 7, "ended": false })).unwrap());
        let told = log.contents("u");
        assert_eq!((&told["text"], &told["_meta"]["cloudflare-ops/truncatedBefore"]), (&json!("ab"), &json!(5)));
        let mut log = Log::default();
        let bytes = json!({ "channel": "stdout", "data": "/w==", "encoding": "base64", "offset": 0 });
        assert!(!log.push(&json!({ "chunks": [bytes], "nextOffset": 1, "ended": true })).unwrap());
        assert_eq!(log.contents("u")["blob"], "/w==");
    }

    #[test]
    fn what_is_not_there_has_the_code_of_its_era() {
        let missing = no_such("x://y");
        for (era, code) in [(Era::Legacy, -32002), (Era::Modern, -32602)] {
            let fault = fault(&missing, Some("x://y"), era, "r");
            let data = fault.data.unwrap();
            assert_eq!(
                (fault.code, &data["uri"], &data[PROBLEM_FIELD]["code"]),
                (code, &json!("x://y"), &json!("not_found"))
            );
        }
        let secret = fault(&Error::internal("the cause"), None, Era::Legacy, "r");
        assert_eq!(secret.code, INTERNAL_ERROR);
        assert!(!secret.answer(&json!(1)).to_string().contains("the cause"));
        // Never what the stateless revision reserved.
        let timeout = fault(&Error::new(ErrorCode::Timeout, "late"), None, Era::Modern, "r");
        assert_eq!(timeout.code, REFUSED);
    }

    #[test]
    fn jobs_that_have_not_begun_or_may_not_be_read_are_not_listed() {
        let begun = json!({ "jobId": "j", "tool": "exec", "state": "running", "createdAt": "t", "begunAt": "t" });
        assert_eq!(of_job(&begun, |_| true).unwrap()["uri"], "job://j/logs");
        assert_eq!(of_job(&begun, |_| false), None);
        assert_eq!(of_job(&json!({ "jobId": "j", "tool": "exec" }), |_| true), None);
    }
}
