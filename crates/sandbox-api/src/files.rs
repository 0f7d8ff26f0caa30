//! Files of the workspace.
//!
//! Raw bytes: `GET`, `HEAD` and `PUT /v1/files/{path}`, and whole directories as archives: `GET` and `PUT
//! /v1/archives/{path}`. Entries: `/v1/entries/{path}`, `/v1/directories/{path}`, `/v1/moves`, `/v1/searches`,
//! `/v1/watches/{path}`.
//!
//! **Names are bytes.** In a URL a path is percent-encoded bytes, relative to the workspace or absolute inside it. In JSON
//! it is text; where its bytes are not UTF-8 it is the same percent-encoded form as in a URL, and `pathEncoding` beside it
//! says `percent`. Every operation takes what every other one answers.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How a path in JSON holds its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub enum PathEncoding {
    /// The path is UTF-8 and stands as it is.
    #[default]
    #[serde(rename = "utf-8")]
    Utf8,
    /// Each byte that is no unreserved ASCII character stands as `%` and two hexadecimal digits, as in a URL.
    #[serde(rename = "percent")]
    Percent,
}

impl PathEncoding {
    /// Whether it is the one that need not be said.
    pub fn is_default(&self) -> bool {
        *self == Self::Utf8
    }
}

/// What a path names. A link is a link, whatever it leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum FileType {
    File,
    Directory,
    Symlink,
    /// A named pipe, a socket or a device.
    Other,
}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FileInfo {
    /// Path relative to the workspace; empty for the workspace itself.
    pub path: String,
    /// Absent when `path` is UTF-8.
    #[serde(default, skip_serializing_if = "PathEncoding::is_default")]
    pub path_encoding: PathEncoding,
    /// What it is.
    pub r#type: FileType,
    /// Bytes of a file, or of a link's target.
    pub size: u64,
    /// Permissions in octal, such as `0644`.
    pub mode: String,
    /// Last change of the content, RFC 3339 in UTC.
    pub modified_at: String,
    /// Of a file: changes with every write. The same as the header `ETag` of `GET /v1/files/{path}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
    /// Of a link: where it leads, as it is stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_target: Option<String>,
    /// How `linkTarget` holds its bytes; absent when it is UTF-8.
    #[serde(default, skip_serializing_if = "PathEncoding::is_default")]
    pub link_target_encoding: PathEncoding,
}

/// Answer of `GET /v1/directories/{path}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DirectoryListing {
    /// In the order of their bytes, a directory before what is in it.
    pub entries: Vec<FileInfo>,
    /// To be given as `cursor` for what follows; absent when this is all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
    /// Directories that were not entered: no permission, or too deep.
    pub unread_directories: u64,
}

/// Answer of `PUT /v1/directories/{path}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DirectoryMade {
    /// Whether it was not there before.
    pub created: bool,
}

/// Answer of `DELETE /v1/entries/{path}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct EntryDeleted {
    /// Entries removed, those inside a directory counted.
    pub removed: u64,
    /// False when the time for one request was over before everything was gone: the same request goes on.
    pub complete: bool,
}

/// Body of `POST /v1/moves`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MoveRequest {
    /// What to move.
    pub from: String,
    /// Its new path; missing directories on the way are made.
    pub to: String,
    /// How `from` and `to` hold their bytes.
    #[serde(default, skip_serializing_if = "PathEncoding::is_default")]
    pub path_encoding: PathEncoding,
    /// Whether a file, or an empty directory for a directory, may be replaced.
    #[serde(default)]
    pub overwrite: bool,
}

/// Answer of `POST /v1/moves`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Moved {
    /// Whether something was replaced.
    pub replaced: bool,
}

/// Body of `POST /v1/searches`. At least one of `content` and `name` is given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SearchRequest {
    /// Directory or file to search; default the workspace.
    #[serde(default)]
    pub path: String,
    /// How `path` holds its bytes.
    #[serde(default, skip_serializing_if = "PathEncoding::is_default")]
    pub path_encoding: PathEncoding,
    /// What a line must hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// Whether `content` is a regular expression; otherwise it is taken as it stands.
    #[serde(default)]
    pub regex: bool,
    /// Whether letters match in either case.
    #[serde(default)]
    pub ignore_case: bool,
    /// A glob that the path relative to the searched directory must match; without a slash, its last component.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Globs of what is left out, directories with all that is in them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// Whether entries whose name begins with a dot are searched. Default true.
    #[serde(default = "yes")]
    pub hidden: bool,
    /// Most matches to answer.
    pub limit: u32,
    /// Milliseconds after which the search ends where it is.
    pub timeout_ms: u64,
}

fn yes() -> bool {
    true
}

/// Why a search ended before it had seen everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum Truncation {
    /// As many matches as were asked for.
    Limit,
    /// The most bytes that one search reads.
    Bytes,
    /// Its time was over.
    Time,
}

/// One match.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SearchMatch {
    /// Path relative to the workspace.
    pub path: String,
    /// Absent when `path` is UTF-8.
    #[serde(default, skip_serializing_if = "PathEncoding::is_default")]
    pub path_encoding: PathEncoding,
    /// Number of the line, from 1; absent when only names were searched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    /// Byte in the line at which the match begins, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<u64>,
    /// The line without its end, cut around the match when it is long; bytes that are not UTF-8 are replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// Answer of `POST /v1/searches`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SearchResult {
    /// By path, then by line.
    pub matches: Vec<SearchMatch>,
    /// Whether there may be more.
    pub truncated: bool,
    /// Why it is truncated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub truncated_by: Option<Truncation>,
    /// Files read.
    pub files_searched: u64,
    /// Files left out because they are no text: they hold NUL bytes.
    pub binary_files: u64,
    /// Files and directories that could not be read.
    pub unread: u64,
}

/// Answer of `PUT /v1/files/{path}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FileWritten {
    /// Bytes written, read back from the file's own metadata.
    pub size: u64,
    /// Whether there was no file of that name before.
    pub created: bool,
    /// Tag of the new content, for `If-Match`. A daemon of before says none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
}

/// Names the upload that a piece belongs to, on requests of pieces. Without it the path and the total name it.
pub const UPLOAD_ID_HEADER: &str = "upload-id";

/// Answer of `PUT /v1/files/{path}` to a piece that is not the last one, and to a question (`Content-Range: bytes
/// */total`): 202.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct UploadProgress {
    /// Names this upload; absent when none is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upload_id: Option<String>,
    /// Bytes that have arrived: the next piece begins here.
    pub received: u64,
    /// Bytes of the whole file.
    pub total: u64,
}

/// How an archive is packed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub enum ArchiveFormat {
    #[serde(rename = "tar")]
    Tar,
    #[default]
    #[serde(rename = "tar.gz")]
    TarGz,
    #[serde(rename = "tar.zst")]
    TarZst,
}

/// Answer of `PUT /v1/archives/{path}`: what was written. An entry that names what an earlier one wrote replaces it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ArchiveExtracted {
    pub files: u64,
    pub directories: u64,
    pub symlinks: u64,
    /// Bytes of the files.
    pub bytes: u64,
}

/// Names of the events of `GET /v1/watches/{path}`, beside [`crate::event::HEARTBEAT`].
pub mod watch_event {
    /// First event: what happens from here on is told. Data: `{}`.
    pub const READY: &str = "ready";
    /// [`crate::FileChange`].
    pub const CHANGE: &str = "change";
    /// Terminal event: [`crate::WatchEnded`].
    pub const END: &str = "end";
}

/// What happened to an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum ChangeKind {
    Created,
    /// Content, or permissions and times.
    Modified,
    Deleted,
    /// It has a new path; `from` is the old one.
    Renamed,
}

/// Data of a `change` event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FileChange {
    pub kind: ChangeKind,
    /// Path relative to the workspace.
    pub path: String,
    /// Absent when `path` is UTF-8.
    #[serde(default, skip_serializing_if = "PathEncoding::is_default")]
    pub path_encoding: PathEncoding,
    /// Whether it is a directory.
    pub directory: bool,
    /// Of `renamed`: the old path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Absent when `from` is UTF-8.
    #[serde(default, skip_serializing_if = "PathEncoding::is_default")]
    pub from_encoding: PathEncoding,
}

/// Why a watch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum WatchEnd {
    /// The time that was asked for is over.
    Timeout,
    /// More happened than could be told: list anew, and watch again.
    Overflow,
    /// More directories than one watch takes.
    TooManyDirectories,
    /// The watched directory or file is gone or was moved.
    Gone,
    /// The daemon met a fault.
    Fault,
}

/// Data of the `end` event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WatchEnded {
    pub reason: WatchEnd,
}
