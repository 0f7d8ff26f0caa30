//! What is told of an entry.

use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, FileType as Kind, Stat};
use sandbox_api::{FileInfo, FileType, PathEncoding};

use super::names::encode;

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
        modified_at: rfc3339(stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or(0)),
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

/// A time of the file system in UTC, to the millisecond. Days are turned into a date by the proleptic Gregorian calendar.
fn rfc3339(seconds: i64, nanoseconds: u32) -> String {
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Counted from the first of March of the year 0, so that a leap day is the last day of its year.
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day_of_month = day - (153 * month + 2) / 5 + 1;
    let (month, year) = if month < 10 { (month + 3, era * 400 + year) } else { (month - 9, era * 400 + year + 1) };
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let millis = nanoseconds / 1_000_000;
    format!("{year:04}-{month:02}-{day_of_month:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

#[cfg(test)]
mod tests {
    use super::rfc3339;

    #[test]
    fn times_are_dates() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_709_251_199, "2024-02-29T23:59:59.000Z"),
            (1_709_251_200, "2024-03-01T00:00:00.000Z"),
            (4_102_444_799, "2099-12-31T23:59:59.000Z"),
            (-1, "1969-12-31T23:59:59.000Z"),
        ] {
            assert_eq!(rfc3339(seconds, 0), text);
        }
        assert_eq!(rfc3339(1, 999_999_999), "1970-01-01T00:00:01.999Z");
    }
}
