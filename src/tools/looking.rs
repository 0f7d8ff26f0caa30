//! What a dry run looks at in a sandbox. It asks only the boot that runs, so that none is started for it.

use sandbox_api::{FileInfo, FileType, PathEncoding};

use super::path;
use crate::error::{ErrorCode, Result};
use crate::registry::Context;
use crate::sandbox::files;
use crate::services::ControlRequest;

/// What is at a path.
pub enum Found {
    Entry(FileInfo),
    Nothing,
    /// The sandbox does not run, so nobody looked.
    Unknown,
}

/// Looks at a path of the sandbox of the call.
pub async fn entry(context: &Context, path: &str, encoding: PathEncoding) -> Result<Found> {
    let Some(listed) = &context.listed else { return Ok(Found::Unknown) };
    let described = context.services.sandboxes.describe(&listed.sandbox_id).await?;
    let Some(boot_id) = described.metrics.and(described.record.boot_id) else { return Ok(Found::Unknown) };
    let request = files::request("GET", path::control(path::ENTRIES, path, encoding)?);
    let request = ControlRequest { boot_id: Some(boot_id), ..request };
    match files::ask(&context.services, &listed.sandbox_id, request).await {
        Ok(entry) => Ok(Found::Entry(entry)),
        Err(error) if error.code == ErrorCode::NotFound => Ok(Found::Nothing),
        Err(error) if error.code == ErrorCode::StaleGeneration => Ok(Found::Unknown),
        Err(error) => Err(error),
    }
}

/// What stands at a path, as the beginning of a sentence; a path with nothing there is `absent`.
pub async fn told(context: &Context, path: &str, encoding: PathEncoding, absent: &str) -> Result<String> {
    Ok(match entry(context, path, encoding).await? {
        Found::Entry(entry) => format!("{} ({})", path, kind(&entry)),
        Found::Nothing => format!("{path} ({absent})"),
        Found::Unknown => format!("{path} (not looked at: the sandbox does not run)"),
    })
}

fn kind(entry: &FileInfo) -> String {
    match entry.r#type {
        FileType::File => format!("a file of {} bytes", entry.size),
        FileType::Directory => "a directory".to_owned(),
        FileType::Symlink => "a link".to_owned(),
        FileType::Other => "neither a file nor a directory".to_owned(),
    }
}
