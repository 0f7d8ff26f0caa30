//! Background processes: named, restarted where asked for, and alive until they end or are killed, whoever leaves.
//!
//! ```text
//!            ┌──────── restarting ◀─┐ policy, back-off
//!            ▼                      │
//!  start ─▶ running ─▶ its command ends ─▶ exited | killed | error
//! ```
//!
//! `POST /v1/processes` starts one, `GET /v1/processes` lists, `GET /v1/processes/{id}` tells, `…/kill` ends the whole tree,
//! `…/input` writes to standard input, `…/logs` reads both channels by one offset, `…/wait` waits for a condition.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{EncodedBytes, Encoding, EndedBy};

/// Names of the events of a process's streams. Output comes as `stdout` and `stderr` events that carry
/// [`crate::OutputChunk`], whose offset counts the bytes of both channels; a jump is output that was no longer kept.
pub mod process_event {
    /// Terminal event of followed logs: [`crate::LogsEnd`].
    pub const END: &str = "end";
    /// Terminal event of a wait: [`crate::ProcessWaited`].
    pub const WAITED: &str = "waited";
}

/// What happens when the command ends by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RestartPolicy {
    /// It is started again.
    Always,
    /// It is started again unless it exited with 0.
    OnFailure,
    /// Nothing.
    #[default]
    Never,
}

/// Body of `POST /v1/processes`. Exactly one of `command` and `argv` is given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProcessRequest {
    /// Chosen by the caller, unique in the sandbox: 1 to 64 of `A-Z a-z 0-9 _ -`; random when absent. The same request with
    /// the same id finds the process and never starts it twice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// A name for people: 1 to 128 characters, no control characters.
    pub name: String,
    /// A command line for `bash -c` (`sh -c` where there is no bash).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// A program and its arguments, run without a shell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    /// Working directory; relative to the workspace. Default: the workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Environment of this process, over the sandbox's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Whether standard input stays open for `…/input`; without it, it is at its end from the start.
    #[serde(default)]
    pub keep_stdin: bool,
    /// What happens when the command ends by itself; default `never`.
    #[serde(default)]
    pub restart_policy: RestartPolicy,
    /// Milliseconds that the answer may wait for a command that ends at once, so as to tell of it. Default 0, at most 5000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settle_ms: Option<u64>,
    /// Background processes that may run in the sandbox, this one included. Default 10, at most 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most_running: Option<usize>,
}

/// Where a process is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum ProcessStatus {
    /// Its command runs.
    Running,
    /// Its command ended and is started again in a while.
    Restarting,
    /// Its command ended by itself, or by a signal from inside.
    Exited,
    /// `…/kill` ended it.
    Killed,
    /// It could not be started, or how it ended was not seen; `error` says which.
    Error,
}

/// One process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProcessInfo {
    /// The process's id.
    pub id: String,
    /// Boot of the sandbox that has it.
    pub boot_id: String,
    /// Its name.
    pub name: String,
    /// What runs, cut after 256 characters.
    pub command: String,
    /// Where it is in its life.
    pub status: ProcessStatus,
    /// Process id inside the sandbox, of the last run; absent when none could be started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// When the process was first started: RFC 3339, UTC.
    pub created_at: String,
    /// When the last run began: RFC 3339, UTC.
    pub started_at: String,
    /// When the last run ended: RFC 3339, UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
    /// What happens when the command ends by itself.
    pub restart_policy: RestartPolicy,
    /// How often it was started again.
    pub restarts: u32,
    /// Milliseconds until it is started again, while `restarting`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_in_ms: Option<u64>,
    /// Exit status of the last run: 128 plus the signal when a signal ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Name of the signal that ended the last run, such as `SIGKILL`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
    /// Why the last run ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_by: Option<EndedBy>,
    /// Whether the last run ended by SIGKILL while processes of this sandbox were killed because its memory was used up.
    #[serde(default)]
    pub out_of_memory: bool,
    /// Whether the last run ended by SIGKILL because the disk of this sandbox was used up.
    #[serde(default)]
    pub out_of_disk: bool,
    /// Why it could not be started, or why its end is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Whether its command has ended and something that it started still runs; `…/kill` ends that.
    #[serde(default)]
    pub left_behind: bool,
    /// Whether standard input takes bytes.
    pub stdin_open: bool,
    /// Bytes of output so far, both channels together.
    pub log_bytes: u64,
}

/// Answer of `GET /v1/processes`, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProcessList {
    /// Those that run, and those that ended a while ago.
    pub processes: Vec<ProcessInfo>,
}

/// Body of `POST /v1/processes/{id}/kill`; the answer is [`ProcessInfo`], given once the tree is seen to be gone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProcessKill {
    /// First signal, such as `SIGTERM` (the default); what survives it gets SIGKILL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
    /// Milliseconds between the two; default 5000, at most 60000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
}

/// Body of `POST /v1/processes/{id}/input`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProcessInput {
    /// Chosen by the caller: the same id again is answered as before and writes nothing. 1 to 64 of `A-Z a-z 0-9 _ -`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Bytes to write, after all that came before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<EncodedBytes>,
    /// Whether standard input is closed after them.
    #[serde(default)]
    pub close: bool,
}

/// Answer of `POST /v1/processes/{id}/input`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct InputTaken {
    /// Bytes of this request that were taken: all of them.
    pub bytes: u64,
    /// Bytes, of this and of earlier requests, that the process has not read room for yet.
    pub waiting_bytes: u64,
    /// Whether standard input is closed, or will be once those are written.
    pub closed: bool,
}

/// Which output a piece belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum LogChannel {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// A piece of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct LogChunk {
    /// Which output it was written to.
    pub channel: LogChannel,
    /// The bytes, in the form that `encoding` names.
    pub data: String,
    /// `utf-8` or `base64`.
    #[serde(default)]
    pub encoding: Encoding,
    /// Offset of the first byte. Offsets count the bytes of both channels, over all runs.
    pub offset: u64,
}

/// Answer of `GET /v1/processes/{id}/logs`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProcessLogs {
    /// In the order in which they were written.
    pub chunks: Vec<LogChunk>,
    /// First offset that is still kept.
    pub first_offset: u64,
    /// Offset to go on from.
    pub next_offset: u64,
    /// Bytes of output so far.
    pub total_bytes: u64,
    /// Present when bytes from the asked offset up to this one are no longer kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub truncated_before: Option<u64>,
    /// Whether nothing more will be written.
    pub ended: bool,
}

/// Data of the terminal event of followed logs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct LogsEnd {
    /// Offset after the last byte.
    pub next_offset: u64,
    /// The process, ended.
    pub process: ProcessInfo,
}

/// How a wait came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum WaitOutcome {
    /// The condition came true.
    Met,
    /// The deadline came first.
    TimedOut,
    /// The process ended first.
    Ended,
}

/// The line that a wait was for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct MatchedLine {
    /// Which output it was written to.
    pub channel: LogChannel,
    /// Its text without the line end, cut after 4096 bytes; what is no UTF-8 is replaced.
    pub text: String,
}

/// Answer of `GET /v1/processes/{id}/wait`, and data of its terminal event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProcessWaited {
    /// How the wait came to its end.
    pub outcome: WaitOutcome,
    /// The process as it is now.
    pub process: ProcessInfo,
    /// The line, when that was waited for and came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<MatchedLine>,
}
