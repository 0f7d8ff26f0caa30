//! Running one command: the request, the events of its stream, and how it ended.
//!
//! `POST /v1/execs` runs a command. With `Accept: text/event-stream` the answer is a stream of the events in [`event`],
//! which ends in exactly one `exit`; otherwise the answer is [`ExecExit`] once the command has ended. A second `POST`
//! with an id that is known re-attaches to that exec and never runs it twice.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::EncodedBytes;

/// Names of the events of an exec stream.
pub mod event {
    /// First event: [`crate::ExecStarted`].
    pub const STARTED: &str = "started";
    /// A piece of standard output: [`crate::OutputChunk`].
    pub const STDOUT: &str = "stdout";
    /// A piece of standard error: [`crate::OutputChunk`].
    pub const STDERR: &str = "stderr";
    /// Nothing happened for [`crate::HEARTBEAT_SECONDS`]; data is `{}`.
    pub const HEARTBEAT: &str = "heartbeat";
    /// Terminal event: [`crate::ExecExit`]. A stream that ends without it has an unknown outcome.
    pub const EXIT: &str = "exit";
}

/// What becomes of a command whose caller has left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum OnDisconnect {
    /// Kill its whole process tree once the grace time or the lease has run out.
    #[default]
    Kill,
    /// Let it run to its end or its timeout.
    Detach,
}

/// Body of `POST /v1/execs`. Exactly one of `command` and `argv` is given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExecRequest {
    /// Chosen by the caller, unique in the sandbox: 1 to 64 of `A-Z a-z 0-9 _ -`.
    pub id: String,
    /// A command line for `bash -c` (`sh -c` where there is no bash).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// A program and its arguments, run without a shell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    /// Working directory; relative to the workspace. Default: the workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Environment of this command, over the sandbox's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Standard input, closed after the last byte. Without it standard input is at its end from the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<EncodedBytes>,
    /// Milliseconds after which the whole process tree is ended: TERM, then KILL.
    pub timeout_ms: u64,
    /// Bytes kept of each of stdout and stderr; of more, the head and the tail are kept. Default 1 MiB, at most 8 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_limit_bytes: Option<u64>,
    /// Whether an event stream carries `stdout` and `stderr` events besides the terminal `exit`. Default true.
    #[serde(default = "yes")]
    pub stream_output: bool,
    /// What becomes of the command when its caller leaves.
    #[serde(default)]
    pub on_disconnect: OnDisconnect,
    /// Milliseconds between the loss of the last stream and the policy of `onDisconnect`; a re-attach stops the clock.
    /// Default 5000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disconnect_grace_ms: Option<u64>,
    /// When given, a caller counts as gone unless it renews within this many milliseconds (`POST /v1/execs/{id}/lease`),
    /// open stream or not: some networks never tell that a reader left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
}

fn yes() -> bool {
    true
}

/// Data of the `started` event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExecStarted {
    /// The exec's id.
    pub id: String,
    /// Process id inside the sandbox; absent when the program could not be started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// Boot of the sandbox that runs it.
    pub boot_id: String,
}

/// Data of a `stdout` or `stderr` event. Never splits a character: a chunk of text is whole UTF-8.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct OutputChunk {
    /// The bytes, in the form that `encoding` names.
    pub data: String,
    /// `utf-8` or `base64`.
    #[serde(default)]
    pub encoding: crate::Encoding,
    /// Offset of the first byte in this channel's output.
    pub offset: u64,
}

/// Why a command is no longer running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum EndedBy {
    /// It exited by itself; `exitCode` is its own.
    Exit,
    /// A signal from inside ended it; `exitCode` is 128 plus the signal.
    Signal,
    /// Its timeout ran out and the tree was killed.
    Timeout,
    /// `POST /v1/execs/{id}/kill` ended it.
    Kill,
    /// Its caller left and its policy is to kill.
    Disconnect,
    /// It was seen to be gone, but not how: something killed the process that watched it. `exitCode` is absent.
    Unknown,
}

/// What one channel wrote.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CapturedOutput {
    /// The bytes, in the form that `encoding` names. When `truncated`: the head, a line that says how many bytes are left
    /// out, and the tail.
    pub data: String,
    /// `utf-8` or `base64`.
    #[serde(default)]
    pub encoding: crate::Encoding,
    /// Whether bytes are left out.
    pub truncated: bool,
    /// Bytes written in all.
    pub total_bytes: u64,
}

/// How a command ended: data of the `exit` event, and the buffered answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExecExit {
    /// The exec's id.
    pub id: String,
    /// Exit status: 126 when the program is not executable, 127 when there is none, 128 plus the signal when a signal
    /// ended it. Absent only when `endedBy` is `unknown`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Name of the signal that ended it, such as `SIGKILL`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
    /// Why it ended.
    pub ended_by: EndedBy,
    /// Whether it ended by SIGKILL while processes of this sandbox were killed because its memory was used up.
    #[serde(default)]
    pub out_of_memory: bool,
    /// Whether it ended by SIGKILL because the disk of this sandbox was used up.
    #[serde(default)]
    pub out_of_disk: bool,
    /// Standard output.
    pub stdout: CapturedOutput,
    /// Standard error.
    pub stderr: CapturedOutput,
    /// Milliseconds from spawn to exit.
    pub duration_ms: u64,
}

/// Whether an exec runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum ExecState {
    /// Its process runs.
    Running,
    /// It ended; the result is kept for a while.
    Ended,
}

/// Answer of `GET /v1/execs/{id}?wait=false`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExecStatus {
    /// The exec's id.
    pub id: String,
    /// Whether it runs.
    pub state: ExecState,
    /// Process id inside the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// How it ended, once it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<ExecExit>,
}

/// Answer of `POST /v1/execs/{id}/forbid`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ForbiddenExec {
    /// Whether an exec of this id began in this boot: it runs, or ran. One that did not is not begun any more.
    pub began: bool,
}

/// Body of `POST /v1/execs/{id}/kill`; the answer is [`ExecExit`], given once the tree is seen to be gone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KillRequest {
    /// First signal, such as `SIGTERM` (the default); what survives it gets SIGKILL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
}
