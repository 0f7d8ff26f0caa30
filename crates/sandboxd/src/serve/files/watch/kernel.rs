//! inotify, and what its events mean.

use std::collections::HashMap;
use std::ffi::{CStr, OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use sandbox_api::{ChangeKind, ControlErrorCode, FileChange, WatchEnd};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::super::info::stat_of;
use super::super::names::{encode, split};
use super::super::tree::{self, Walk};
use super::super::{Cancelled, Workspace, refused};
use super::found::Found;
use crate::http::Problem;

/// Directories of one watch.
const MOST_DIRECTORIES: usize = 8192;

/// Events of one batch.
const BATCH: usize = 512;

/// First halves of renames that wait for their second.
const MOST_PENDING: usize = 256;

/// Bytes that the kernel's queue is read in.
const BUFFER_BYTES: usize = 16 << 10;

/// One watch: its directories, and what it is about.
pub(super) struct Watcher {
    inotify: AsyncFd<OwnedFd>,
    /// Paths relative to the workspace, by the kernel's number of the directory.
    directories: HashMap<i32, PathBuf>,
    top: i32,
    /// When one file is watched: its name in the top directory.
    only: Option<OsString>,
    recursive: bool,
    pending: Vec<Pending>,
    found: Found,
}

/// An entry that went, and may have a new path.
struct Pending {
    cookie: u32,
    path: PathBuf,
    directory: bool,
}

/// What was heard at once.
pub(super) struct Batch {
    pub(super) watcher: Watcher,
    pub(super) changes: Vec<FileChange>,
    pub(super) end: Option<WatchEnd>,
}

/// One event of the kernel, with what is needed of it.
struct Heard {
    number: i32,
    flags: ReadFlags,
    cookie: u32,
    name: Option<OsString>,
}

impl Watcher {
    pub(super) fn begin(
        workspace: &Workspace,
        path: &Path,
        recursive: bool,
        cancelled: &Cancelled,
    ) -> Result<Self, Problem> {
        let unavailable = |error: Errno| match error {
            Errno::MFILE | Errno::NFILE | Errno::NOMEM => {
                Problem::new(ControlErrorCode::Unavailable, "the kernel gives no more watches to this sandbox")
            }
            error => Problem::internal(error),
        };
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).map_err(unavailable)?;
        let path = workspace.canonical(path)?;
        let only = match split("path", &path) {
            Ok((parent, name)) => {
                let (_, parent) = workspace.open_directory(parent)?;
                let stat = stat_of(parent.as_fd(), name).map_err(|error| refused(error.into()))?;
                (FileType::from_raw_mode(stat.st_mode) != FileType::Directory).then(|| name.to_owned())
            }
            Err(_) => None,
        };
        let top = if only.is_some() { path.parent().unwrap_or(Path::new("")) } else { &path };
        let (top_path, directory) = workspace.open_directory(top)?;
        // A runtime is at hand also on its threads for blocking work.
        // SAFETY: an `OwnedFd` is open and the same until it is dropped, which happens with the `AsyncFd`.
        let inotify = unsafe { AsyncFd::register_with_interest(inotify, Interest::READABLE) };
        let inotify = inotify.map_err(Problem::internal)?;
        let mut watcher = Self {
            inotify,
            directories: HashMap::new(),
            top: 0,
            recursive: recursive && only.is_none(),
            only,
            pending: Vec::new(),
            found: Found::default(),
        };
        watcher.top = watcher.add(directory.as_fd(), top_path.clone()).map_err(|error| refused(error.into()))?;
        if watcher.recursive {
            watcher.add_below(directory, &top_path, Some(cancelled), None).map_err(|error| match error {
                Errno::NOSPC => Problem::new(
                    ControlErrorCode::PayloadTooLarge,
                    format!(
                        "path: more directories than one watch takes ({MOST_DIRECTORIES}), or than the kernel allows"
                    ),
                ),
                error => refused(error.into()),
            })?;
        }
        Ok(watcher)
    }

    /// Completes once there is something to read.
    pub(super) async fn readable(&self) -> io::Result<()> {
        // Whether the queue is read empty shows in `hear` only.
        self.inotify.readable().await.map(|mut guard| guard.retain_ready())
    }

    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Reads what there is. With `alone`, what went and has no second half was deleted, or moved out of sight.
    pub(super) fn read(mut self, workspace: &Workspace, alone: bool) -> Batch {
        let mut changes = Vec::new();
        let (heard, drained) = match self.hear() {
            Ok(heard) => heard,
            Err(cause) => {
                tracing::warn!(%cause, "a watch could not be read");
                return Batch { watcher: self, changes, end: Some(WatchEnd::Fault) };
            }
        };
        let mut end = None;
        for event in heard {
            end = self.take(workspace, event, &mut changes);
            if end.is_some() {
                break;
            }
        }
        if alone || self.pending.len() > MOST_PENDING {
            for gone in std::mem::take(&mut self.pending) {
                self.gone(&gone, &mut changes);
            }
        }
        self.found.next_read(drained);
        Batch { watcher: self, changes, end }
    }

    /// Events out of the kernel's queue, and whether it is empty now.
    fn hear(&self) -> io::Result<(Vec<Heard>, bool)> {
        let mut heard = Vec::new();
        let read = self.inotify.try_io(Interest::READABLE, |inotify| {
            let mut buffer = [MaybeUninit::uninit(); BUFFER_BYTES];
            let mut reader = Reader::new(inotify, &mut buffer);
            while heard.len() < BATCH || !reader.is_buffer_empty() {
                match reader.next() {
                    Ok(event) => heard.push(Heard {
                        number: event.wd(),
                        flags: event.events(),
                        cookie: event.cookie(),
                        name: event.file_name().map(|name: &CStr| OsStr::from_bytes(name.to_bytes()).to_owned()),
                    }),
                    Err(Errno::INTR) => {}
                    // `WouldBlock` tells the runtime that the queue was read empty.
                    Err(error) => return Err(error.into()),
                }
            }
            Ok(())
        });
        match read {
            Ok(()) => Ok((heard, false)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok((heard, true)),
            Err(error) => Err(error),
        }
    }

    fn take(&mut self, workspace: &Workspace, heard: Heard, changes: &mut Vec<FileChange>) -> Option<WatchEnd> {
        let Heard { number, flags, cookie, name } = heard;
        if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            return Some(WatchEnd::Overflow);
        }
        if number == self.top && flags.intersects(ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::UNMOUNT) {
            return Some(WatchEnd::Gone);
        }
        if flags.contains(ReadFlags::IGNORED) {
            self.directories.remove(&number);
            return None;
        }
        let (Some(name), Some(parent)) = (name, self.directories.get(&number)) else { return None };
        if self.only.as_ref().is_some_and(|only| *only != name) {
            return None;
        }
        let path = parent.join(&name);
        let directory = flags.contains(ReadFlags::ISDIR);
        if flags.intersects(ReadFlags::MOVED_FROM | ReadFlags::DELETE) {
            self.found.take(&path);
        }
        if flags.contains(ReadFlags::MOVED_FROM) {
            self.pending.push(Pending { cookie, path, directory });
            return None;
        }
        if flags.contains(ReadFlags::MOVED_TO) {
            let half = self.pending.iter().position(|pending| pending.cookie == cookie);
            let from = half.map(|index| self.pending.remove(index)).filter(|from| !is_own(&from.path));
            return match from {
                Some(from) => {
                    if directory {
                        self.moved(&from.path, &path);
                    }
                    tell(changes, ChangeKind::Renamed, &path, directory, Some(&from.path));
                    None
                }
                // From where this watch does not look, or written whole by the daemon itself.
                None => {
                    tell(changes, ChangeKind::Created, &path, directory, None);
                    self.look_into(workspace, &path, directory, changes)
                }
            };
        }
        if flags.contains(ReadFlags::CREATE) {
            // What was found is watched and was looked through.
            if self.found.take(&path) {
                return None;
            }
            tell(changes, ChangeKind::Created, &path, directory, None);
            return self.look_into(workspace, &path, directory, changes);
        }
        if flags.contains(ReadFlags::DELETE) {
            tell(changes, ChangeKind::Deleted, &path, directory, None);
        } else if flags.intersects(ReadFlags::MODIFY | ReadFlags::ATTRIB) {
            tell(changes, ChangeKind::Modified, &path, directory, None);
        }
        None
    }

    /// Watches a directory that came, where the watch is about all that is below.
    fn look_into(
        &mut self,
        workspace: &Workspace,
        path: &Path,
        directory: bool,
        changes: &mut Vec<FileChange>,
    ) -> Option<WatchEnd> {
        if !directory || !self.recursive || is_own(path) {
            return None;
        }
        // Gone again, or swapped: the kernel tells of that too.
        let (parent, name) = split("path", path).ok()?;
        let (_, parent) = workspace.open_directory(parent).ok()?;
        let opened = tree::open(parent.as_fd(), name).ok()?;
        let added =
            self.add(opened.as_fd(), path.to_owned()).and_then(|_| self.add_below(opened, path, None, Some(changes)));
        match added {
            Err(Errno::NOSPC) => Some(WatchEnd::TooManyDirectories),
            _ => None,
        }
    }

    /// What went without a second half.
    fn gone(&mut self, gone: &Pending, changes: &mut Vec<FileChange>) {
        if gone.directory {
            let below: Vec<i32> = self
                .directories
                .iter()
                .filter_map(|(number, path)| path.starts_with(&gone.path).then_some(*number))
                .collect();
            for number in below {
                self.directories.remove(&number);
                let _ = inotify::remove_watch(self.inotify.get_ref(), number);
            }
        }
        tell(changes, ChangeKind::Deleted, &gone.path, gone.directory, None);
    }

    /// A directory has a new path, and so has everything below.
    fn moved(&mut self, from: &Path, to: &Path) {
        for path in self.directories.values_mut() {
            if let Ok(rest) = path.strip_prefix(from) {
                *path = if rest.as_os_str().is_empty() { to.to_owned() } else { to.join(rest) };
            }
        }
    }

    /// Watches one directory, which is open: so it is that one, and not what has its name now.
    fn add(&mut self, directory: BorrowedFd<'_>, path: PathBuf) -> Result<i32, Errno> {
        if self.directories.len() >= MOST_DIRECTORIES {
            return Err(Errno::NOSPC);
        }
        let flags = WatchFlags::CREATE
            | WatchFlags::MODIFY
            | WatchFlags::ATTRIB
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        let link = format!("/proc/self/fd/{}", directory.as_raw_fd());
        let number = inotify::add_watch(self.inotify.get_ref(), link, flags)?;
        self.directories.insert(number, path);
        Ok(number)
    }

    /// Watches all directories below; with `changes`, tells of what is in them already.
    fn add_below(
        &mut self,
        directory: OwnedFd,
        path: &Path,
        cancelled: Option<&Cancelled>,
        mut changes: Option<&mut Vec<FileChange>>,
    ) -> Result<(), Errno> {
        let mut walk =
            Walk::of(directory).map_err(|error| error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error))?;
        while let Some(found) = walk.next() {
            if cancelled.is_some_and(Cancelled::is_set) {
                return Err(Errno::CANCELED);
            }
            let path = path.join(&found.path);
            if is_own(&path) {
                continue;
            }
            if let Some(changes) = &mut changes {
                tell(changes, ChangeKind::Created, &path, found.is_directory(), None);
                self.found.add(path.clone());
            }
            if found.is_directory() {
                // First the watch, then the look, so that nothing falls between.
                match tree::open(walk.parent(), &found.name) {
                    Ok(directory) => {
                        self.add(directory.as_fd(), path)?;
                        walk.enter(&found);
                    }
                    Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        if walk.unread > 0 { Err(Errno::NOSPC) } else { Ok(()) }
    }
}

/// Files on their way that the daemon itself made.
fn is_own(path: &Path) -> bool {
    let own = |name: &OsStr| {
        let digits = name.as_bytes().strip_prefix(b".upload-");
        digits.is_some_and(|digits| digits.len() == 24 && digits.iter().all(u8::is_ascii_hexdigit))
    };
    path.file_name().is_some_and(own) || path.starts_with(super::super::pieces::DIRECTORY)
}

fn tell(changes: &mut Vec<FileChange>, kind: ChangeKind, path: &Path, directory: bool, from: Option<&Path>) {
    if is_own(path) {
        return;
    }
    let (path, path_encoding) = encode(path);
    let (from, from_encoding) = match from.map(encode) {
        Some((from, encoding)) => (Some(from), encoding),
        None => (None, sandbox_api::PathEncoding::Utf8),
    };
    let change = FileChange { kind, path, path_encoding, directory, from, from_encoding };
    // A program that writes in small steps makes many events that say the same.
    if changes.last() != Some(&change) {
        changes.push(change);
    }
}
