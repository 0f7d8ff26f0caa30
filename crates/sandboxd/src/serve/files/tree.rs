//! Walking a directory tree that commands may change meanwhile.
//!
//! Each directory is opened by its own name below the handle of its parent and never through a link, so a walk cannot
//! leave the tree it began in, whatever is swapped on the way. Names come in the order of their bytes, a directory before
//! what is in it. What vanishes meanwhile is passed over.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

/// Directories below each other that a walk enters: each holds a descriptor.
const DEEPEST: usize = 128;

/// Entries of one directory, which are held in memory to be put in order.
const LARGEST_DIRECTORY: usize = 200_000;

pub(super) struct Walk {
    levels: Vec<Level>,
    /// Directories and entries that could not be read.
    pub(super) unread: u64,
}

struct Level {
    directory: OwnedFd,
    /// Path of the directory, relative to where the walk began.
    path: PathBuf,
    names: std::vec::IntoIter<OsString>,
}

/// One entry on the way.
pub(super) struct Found {
    /// Relative to where the walk began.
    pub(super) path: PathBuf,
    pub(super) name: OsString,
    pub(super) stat: Stat,
}

impl Found {
    pub(super) fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }

    pub(super) fn is_directory(&self) -> bool {
        self.kind() == FileType::Directory
    }
}

impl Walk {
    /// Begins in `directory`.
    pub(super) fn of(directory: OwnedFd) -> io::Result<Self> {
        Self::after(directory, &[], false)
    }

    /// Begins behind the entry of that path, given by its components. With `recursive` the path's directories are entered.
    pub(super) fn after(directory: OwnedFd, last: &[&OsStr], recursive: bool) -> io::Result<Self> {
        let mut walk = Self { levels: Vec::new(), unread: 0 };
        // A handle that only names a directory, as containment makes them, cannot be read.
        let directory = open(directory.as_fd(), OsStr::new("."))?;
        let mut names = names(directory.as_fd())?;
        if let Some(first) = last.first() {
            names.retain(|name| name.as_os_str() > *first);
        }
        walk.levels.push(Level { directory, path: PathBuf::new(), names: names.into_iter() });
        if recursive {
            for (index, name) in last.iter().enumerate() {
                // What is gone meanwhile has nothing behind it.
                let Some(level) = walk.levels.last() else { break };
                let Ok(directory) = open(level.directory.as_fd(), name) else { break };
                let Ok(mut names) = self::names(directory.as_fd()) else { break };
                if let Some(next) = last.get(index + 1) {
                    names.retain(|name| name.as_os_str() > *next);
                }
                let path = level.path.join(name);
                walk.levels.push(Level { directory, path, names: names.into_iter() });
            }
        }
        Ok(walk)
    }

    /// The next entry; `None` at the end.
    pub(super) fn next(&mut self) -> Option<Found> {
        loop {
            let level = self.levels.last_mut()?;
            let Some(name) = level.names.next() else {
                self.levels.pop();
                continue;
            };
            match rustix::fs::statat(&level.directory, name.as_os_str(), AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => return Some(Found { path: level.path.join(&name), name, stat }),
                Err(Errno::NOENT) => {}
                Err(_) => self.unread += 1,
            }
        }
    }

    /// Enters the directory that [`Self::next`] has just given. One that cannot be read is counted in `unread`.
    pub(super) fn enter(&mut self, found: &Found) {
        match self.try_enter(found) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(_) => self.unread += 1,
        }
    }

    /// The same, for whoever may leave nothing out.
    pub(super) fn try_enter(&mut self, found: &Found) -> Result<(), Errno> {
        if self.levels.len() >= DEEPEST {
            return Err(Errno::NAMETOOLONG);
        }
        let directory = open(self.parent(), &found.name)?;
        let names = names(directory.as_fd())
            .map_err(|error| error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error))?;
        self.levels.push(Level { directory, path: found.path.clone(), names: names.into_iter() });
        Ok(())
    }

    /// The directory of the entry that [`Self::next`] has just given.
    pub(super) fn parent(&self) -> BorrowedFd<'_> {
        match self.levels.last() {
            Some(level) => level.directory.as_fd(),
            None => rustix::fs::CWD,
        }
    }
}

/// Opens a directory by its own name, never through a link.
pub(super) fn open(parent: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty())
}

/// Opens a file by its own name, never through a link, and without waiting for whoever holds the other end of a pipe.
pub(super) fn open_file(parent: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty())
}

/// Names in a directory, in the order of their bytes.
fn names(directory: BorrowedFd<'_>) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        if names.len() == LARGEST_DIRECTORY {
            return Err(io::Error::from_raw_os_error(libc::E2BIG));
        }
        names.push(OsString::from_vec(name.to_vec()));
    }
    names.sort_unstable();
    Ok(names)
}

/// Components of a path that has no `..`; `None` when it is not of that kind.
pub(super) fn components(path: &Path) -> Option<Vec<&OsStr>> {
    path.components()
        .map(|component| match component {
            std::path::Component::Normal(name) if !name.as_bytes().is_empty() => Some(name),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn walk(top: &Path, last: &str) -> Vec<String> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let directory = rustix::fs::open(top, flags, Mode::empty()).expect("the top");
        let last = components(Path::new(last)).expect("a plain path");
        let mut walk = Walk::after(directory, &last, true).expect("a walk");
        let mut seen = Vec::new();
        while let Some(found) = walk.next() {
            seen.push(found.path.to_string_lossy().into_owned());
            if found.is_directory() {
                walk.enter(&found);
            }
        }
        seen
    }

    #[test]
    fn every_cut_of_a_walk_goes_on_behind_it() {
        let top = std::env::temp_dir().join(format!("walk-{}", crate::http::random_hex(8).expect("randomness")));
        fs::create_dir_all(top.join("a/b/c")).expect("directories");
        for name in ["a-b", "a/b/c/d", "a/b-", "a/z", "z"] {
            fs::write(top.join(name), "").expect("a file");
        }
        std::os::unix::fs::symlink("a", top.join("link")).expect("a link");
        let all = walk(&top, "");
        assert_eq!(all, ["a", "a/b", "a/b/c", "a/b/c/d", "a/b-", "a/z", "a-b", "link", "z"]);
        for (index, last) in all.iter().enumerate() {
            assert_eq!(walk(&top, last), all[index + 1..], "{last}");
        }
        assert_eq!(walk(&top, "a/b/gone"), ["a/b-", "a/z", "a-b", "link", "z"]);
        fs::remove_dir_all(top).expect("the scratch directory goes");
    }
}
