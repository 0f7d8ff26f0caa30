//! What is told of an entry.

use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, FileType as Kind, Stat};
use sandbox_api::{FileInfo, FileType, PathEncoding};

use super::names::encode;
use crate::clock::rfc3339_of_file;

/// Everything about the entry `name` in `parent`, whose path is `path`.
pub(super) fn info(path: &Path, stat: &Stat, parent: BorrowedFd<'_>, name: &std::ffi::OsStr) -> FileInfo {
    let kind = Kind::from_raw_mode(stat.st_mode);
    let (path, path_encoding) = encode(path);
    let target = match kind {
        Kind::Symlink => rustix::fs::readlinkat(parent, name, Vec::new()).ok(),
        _ => None,
    };
    let (link_target, link_target_encoding) = match target {
        Some(target) => {
            let (text, encoding) = encode(Path::new(std::ffi::OsStr::from_bytes(target.as_bytes())));
            (Some(text), encoding)
        }
        None => (None, PathEncoding::Utf8),
    };
    FileInfo {
        path,
        path_encoding,
        r#type: match kind {
            Kind::RegularFile => FileType::File,
            Kind::Directory => FileType::Directory,
            Kind::Symlink => FileType::Symlink,
            _ => FileType::Other,
        },
        size: if matches!(kind, Kind::RegularFile | Kind::Symlink) { stat.st_size.cast_unsigned() } else { 0 },
        mode: format!("{:04o}", stat.st_mode & 0o7777),
        modified_at: rfc3339_of_file(stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or(0)),
        etag: (kind == Kind::RegularFile).then(|| etag(stat)),
        link_target,
        link_target_encoding,
    }
}

/// What is told of the workspace itself or of an open directory.
pub(super) fn directory_info(path: &Path, stat: &Stat) -> FileInfo {
    info(path, stat, rustix::fs::CWD, std::ffi::OsStr::new(""))
}

/// The entry itself, not what it leads to.
pub(super) fn stat_of(parent: BorrowedFd<'_>, name: &std::ffi::OsStr) -> rustix::io::Result<Stat> {
    rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)
}

/// Changes with every write and every replacement of the file. The time of change is the kernel's own: unlike the time
/// of modification, no program can set it back.
pub(super) fn etag(stat: &Stat) -> String {
    let parts = (stat.st_ino, stat.st_size, stat.st_mtime, stat.st_mtime_nsec, stat.st_ctime, stat.st_ctime_nsec);
    let (inode, size, modified, modified_nanos, changed, changed_nanos) = parts;
    format!("\"{inode:x}-{size:x}-{modified:x}.{modified_nanos:x}-{changed:x}.{changed_nanos:x}\"")
}
