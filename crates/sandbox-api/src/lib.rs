//! Wire types of the control API: what the Worker says to `sandboxd`, and what `sandboxd` answers.
//!
//! Types only. Both sides compile this crate, so a field that one side lacks is a compile error. A deployed Worker may
//! meet an older running image: [`Health::api_version`] lets it accept [`API_VERSION`] and the version before.
//!
//! JSON fields are camelCase, times are RFC 3339 in UTC, durations are integers of milliseconds named `…Ms`.

mod bytes;
mod error;
mod exec;
mod files;
mod health;
mod host;
mod life;
mod processes;

pub use bytes::{EncodedBytes, Encoding};
pub use error::{ControlError, ControlErrorCode};
pub use exec::{
    CapturedOutput, EndedBy, ExecExit, ExecRequest, ExecStarted, ExecState, ExecStatus, ForbiddenExec, KillRequest,
    OnDisconnect, OutputChunk, event,
};
pub use files::{
    ArchiveExtracted, ArchiveFormat, ChangeKind, DirectoryListing, DirectoryMade, EntryDeleted, FileChange, FileInfo,
    FileType, FileWritten, MoveRequest, Moved, PathEncoding, SearchMatch, SearchRequest, SearchResult, Truncation,
    UPLOAD_ID_HEADER, UploadProgress, WatchEnd, WatchEnded, watch_event,
};
pub use health::{Bound, Health, Isolation, Limits, Means, Metrics, NetworkIsolation};
pub use host::{HostHealth, HostSandbox, HostStart, ResourcesReleased};
pub use life::{Activity, Environment, HostStopped};
pub use processes::{
    InputTaken, LogChannel, LogChunk, LogsEnd, MatchedLine, ProcessInfo, ProcessInput, ProcessKill, ProcessList,
    ProcessLogs, ProcessRequest, ProcessStatus, ProcessWaited, RestartPolicy, WaitOutcome, process_event,
};

/// Version of this API. The Worker accepts this one and the one before.
pub const API_VERSION: u32 = 1;

/// On every answer of `sandboxd`: the boot id of the daemon that answered.
///
/// On a request: the boot id the caller means. Another boot answers 410 `stale_generation` and does nothing.
pub const BOOT_ID_HEADER: &str = "x-sandbox-boot-id";

/// Directory that file paths are relative to and may not leave.
pub const WORKSPACE: &str = "/workspace";

/// Seconds between the heartbeats of a stream in which nothing else happens.
pub const HEARTBEAT_SECONDS: u64 = 5;
