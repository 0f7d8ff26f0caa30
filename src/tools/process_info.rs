//! What every tool says of a background process, in the same words.

use sandbox_api::{ProcessInfo, ProcessStatus, RestartPolicy};
use serde::Serialize;
use utoipa::ToSchema;

use crate::identifier::SandboxId;
use crate::sandbox::processes::Handle;

/// One background process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProcessSummary {
    /// Names it in the other process tools. Holds for one start of the sandbox.
    pub process_id: String,
    /// Sandbox it runs in.
    pub sandbox_id: String,
    /// Its name.
    pub name: String,
    /// What runs, cut after 256 characters.
    pub command: String,
    /// running, restarting (ended, and started again in a while), exited, killed (by killProcess), or error (could not be
    /// started, or its end was not seen; `error` says which).
    pub status: ProcessStatus,
    /// Process id inside the sandbox, of the last run; absent when none could be started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// When the last run began: RFC 3339, UTC.
    pub start_time: String,
    /// When the last run ended: RFC 3339, UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_time: Option<String>,
    /// What happens when the command ends by itself.
    pub restart_policy: RestartPolicy,
    /// How often it was started again.
    pub restarts: u32,
    /// Milliseconds until it is started again, while `restarting`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart_in_ms: Option<u64>,
    /// Exit status of the last run: 126 not executable, 127 not found, 128 plus the signal when a signal ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Name of the signal that ended the last run, such as SIGKILL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
    /// Present and true when it was killed while the sandbox's memory was used up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub out_of_memory: Option<bool>,
    /// Present and true when it was killed because the sandbox's disk was used up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub out_of_disk: Option<bool>,
    /// Why it could not be started, or why its end is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Present and true when the command has ended and something that it started still runs; killProcess ends that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_behind: Option<bool>,
    /// Whether standard input takes bytes.
    pub stdin_open: bool,
    /// Bytes of output so far, stdout and stderr together.
    pub log_bytes: u64,
}

impl ProcessSummary {
    pub fn new(sandbox_id: &SandboxId, info: ProcessInfo) -> Self {
        Self {
            process_id: Handle::of(&info).to_string(),
            sandbox_id: sandbox_id.to_string(),
            name: info.name,
            command: info.command,
            status: info.status,
            pid: info.pid,
            start_time: info.started_at,
            end_time: info.ended_at,
            restart_policy: info.restart_policy,
            restarts: info.restarts,
            restart_in_ms: info.restart_in_ms,
            exit_code: info.exit_code,
            signal: info.signal,
            out_of_memory: info.out_of_memory.then_some(true),
            out_of_disk: info.out_of_disk.then_some(true),
            error: info.error,
            left_behind: info.left_behind.then_some(true),
            stdin_open: info.stdin_open,
            log_bytes: info.log_bytes,
        }
    }
}
