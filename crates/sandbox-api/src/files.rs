//! Raw files: `GET`, `HEAD` and `PUT /v1/files/{path}`.
//!
//! A path is percent-encoded bytes, relative to the workspace or absolute inside it. `GET` and `HEAD` take one `Range`
//! and answer 200, 206 or 416 with `Content-Length`, `Last-Modified` and `ETag`. `PUT` needs `Content-Length` (411
//! without), makes missing parent directories, and replaces the file only once every declared byte has arrived.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Answer of `PUT /v1/files/{path}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FileWritten {
    /// Bytes written, read back from the file's own metadata.
    pub size: u64,
    /// Whether there was no file of that name before.
    pub created: bool,
}
