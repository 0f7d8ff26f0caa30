//! Removing a directory tree that somebody hostile may have made: links are never followed, directories without
//! permissions are opened up, and depth does not matter.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};

/// Depth at which directories are moved up instead of being entered, since each level holds a descriptor open.
const DEPTH_LIMIT: usize = 64;

/// Removes `path` and everything below; returns the bytes that its files occupied. What is not there is no fault.
pub(super) fn tree(path: &Path) -> io::Result<u64> {
    let top = match open(CWD, &CString::new(path.as_os_str().as_encoded_bytes())?) {
        Ok(top) => top,
        Err(rustix::io::Errno::NOENT) => return Ok(0),
        Err(error) => return Err(error.into()),
    };
    let mut removal = Removal { top: top.as_fd(), bytes: 0, moved: 0 };
    // Directories that were moved up show up in the next round.
    while removal.empty(top.as_fd(), 0)? {}
    let bytes = removal.bytes;
    rustix::fs::unlinkat(CWD, path, AtFlags::REMOVEDIR)?;
    Ok(bytes)
}

struct Removal<'a> {
    top: BorrowedFd<'a>,
    bytes: u64,
    moved: u64,
}

impl Removal<'_> {
    /// Empties one directory; returns whether something was moved up from below it.
    fn empty(&mut self, directory: BorrowedFd<'_>, depth: usize) -> io::Result<bool> {
        let mut moved = false;
        for entry in Dir::read_from(directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let metadata = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
            if FileType::from_raw_mode(metadata.st_mode) != FileType::Directory {
                rustix::fs::unlinkat(directory, name, AtFlags::empty())?;
                if metadata.st_nlink == 1 {
                    self.bytes += metadata.st_blocks.cast_unsigned() * 512;
                }
                continue;
            }
            if depth >= DEPTH_LIMIT {
                // Moving a directory changes its `..`, which needs write permission on it.
                let _ = rustix::fs::chmodat(directory, name, Mode::RWXU, AtFlags::empty());
                self.moved += 1;
                rustix::fs::renameat(directory, name, self.top, format!(".moved-up-{}-{depth}", self.moved))?;
                moved = true;
                continue;
            }
            let inner = open(directory, name)?;
            moved |= self.empty(inner.as_fd(), depth + 1)?;
            drop(inner);
            rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR)?;
        }
        Ok(moved)
    }
}

/// Opens a directory, never through a link, and makes sure that it can be emptied.
fn open(parent: BorrowedFd<'_>, name: &std::ffi::CStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = match rustix::fs::openat(parent, name, flags, Mode::empty()) {
        Err(rustix::io::Errno::ACCESS) => {
            rustix::fs::chmodat(parent, name, Mode::RWXU, AtFlags::empty())?;
            rustix::fs::openat(parent, name, flags, Mode::empty())?
        }
        result => result?,
    };
    // A directory without write permission keeps its entries, unless the host is root.
    let _ = rustix::fs::fchmod(&directory, Mode::RWXU);
    Ok(directory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::PathBuf;

    fn scratch() -> PathBuf {
        let path = std::env::temp_dir().join(format!("remove-{}", crate::http::random_hex(8).expect("randomness")));
        fs::create_dir(&path).expect("a scratch directory");
        path
    }

    #[test]
    fn links_are_removed_and_their_targets_stay() {
        let (tree_path, outside) = (scratch(), scratch());
        fs::write(outside.join("kept"), "kept").expect("a file");
        symlink(&outside, tree_path.join("directory")).expect("a link");
        symlink(outside.join("kept"), tree_path.join("file")).expect("a link");
        tree(&tree_path).expect("the removal");
        assert!(!tree_path.exists());
        assert!(outside.join("kept").exists());
        tree(&outside).expect("the removal");
    }

    #[test]
    fn a_very_deep_tree_goes() {
        let top = scratch();
        let mut here = rustix::fs::open(&top, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("the top");
        for _ in 0..2000 {
            rustix::fs::mkdirat(&here, c"d", Mode::RWXU).expect("a level");
            here = rustix::fs::openat(&here, c"d", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("a level");
        }
        tree(&top).expect("the removal");
        assert!(!top.exists());
    }

    #[test]
    fn directories_without_permissions_go_and_bytes_are_counted() {
        let top = scratch();
        let closed = top.join("closed");
        fs::create_dir(&closed).expect("a directory");
        fs::write(closed.join("file"), vec![1; 100_000]).expect("a file");
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).expect("the mode");
        assert!(tree(&top).expect("the removal") >= 100_000);
        assert!(!top.exists());
    }

    #[test]
    fn what_is_not_there_is_no_fault() {
        assert_eq!(tree(Path::new("/nonexistent/for/sure")).expect("no fault"), 0);
    }
}
