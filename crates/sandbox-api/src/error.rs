//! How the control API says no.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Machine-readable cause of a refusal. Callers branch on this, never on the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ControlErrorCode {
    /// 401: no token, or another token than this boot's.
    Unauthenticated,
    /// 400: the body or a parameter is not what the API takes; the message names the field.
    InvalidArguments,
    /// 403: the path leaves the workspace by `..`, by being absolute elsewhere, or through a link.
    PathEscapes,
    /// 403: the operating system refused access to a path inside the workspace.
    PermissionDenied,
    /// 404: no such file, exec or route.
    NotFound,
    /// 404: the host has no running sandbox of that name. Nothing of the request was carried out.
    NotRunning,
    /// 409: the path is a directory where a file is needed, or the reverse.
    WrongFileType,
    /// 409: there is something of that name already, or the directory is not empty.
    AlreadyExists,
    /// 409: a piece does not follow what has arrived of the upload, or another one is being written; the message says how
    /// much has arrived.
    UploadConflict,
    /// 412: the file is not the version that the caller meant. Nothing was carried out.
    PreconditionFailed,
    /// 410: the caller meant another boot of this sandbox. Nothing was carried out.
    StaleGeneration,
    /// 411: a raw upload must declare its length.
    LengthRequired,
    /// 413: the body is larger than this route takes.
    PayloadTooLarge,
    /// 416: the range starts beyond the end of the file.
    RangeNotSatisfiable,
    /// 409: the process has ended, or its input is closed. Nothing was carried out.
    ProcessEnded,
    /// 429: too many execs run at once in this sandbox.
    TooManyExecs,
    /// 429: too many background processes run at once in this sandbox.
    TooManyProcesses,
    /// 400: the upload ended before its declared length; the old file is untouched.
    UploadAborted,
    /// 502: the sandbox stopped answering after it was sent the request, which may have been carried out.
    NoAnswer,
    /// 503: the sandbox could not be started, or has no room for the request. Nothing was carried out.
    Unavailable,
    /// 507: no space left on the sandbox's disk.
    NoSpace,
    /// 500: a fault of the daemon.
    Internal,
    /// A code that this version does not know yet.
    #[serde(other)]
    Unknown,
}

/// Body of every answer that is not a success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ControlError {
    /// Machine-readable cause.
    pub code: ControlErrorCode,
    /// For a person; names the field or the path.
    pub message: String,
}
