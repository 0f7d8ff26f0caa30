//! Where a new file goes: the directory, the name, and what has that name now.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use cap_std::fs::Dir;
use rustix::fs::FileType;
use rustix::io::Errno;
use sandbox_api::FileWritten;

use super::info::{etag, stat_of};
use super::names::split;
use super::precondition::Precondition;
use super::{Workspace, not_a_file, refused};
use crate::http::{Problem, random_hex};

/// Permissions of a new file.
const NEW_FILE_MODE: u32 = 0o644;

pub(super) struct Destination {
    pub(super) directory: Dir,
    pub(super) name: PathBuf,
    /// Path relative to the workspace, links resolved.
    pub(super) path: PathBuf,
}

/// What has the name now.
pub(super) struct Current {
    etag: Option<String>,
    mode: u32,
}

impl Destination {
    /// Finds the place, making directories that are missing.
    pub(super) fn resolve(workspace: &Workspace, path: &Path) -> Result<Self, Problem> {
        let path = follow_link(&workspace.dir, path)?;
        if path.as_os_str().as_encoded_bytes().ends_with(b"/") {
            return Err(not_a_file());
        }
        let Some(Component::Normal(name)) = path.components().next_back() else {
            return Err(not_a_file());
        };
        let directory = open_or_make(&workspace.dir, path.parent().unwrap_or(Path::new("")))?;
        Ok(Self { directory, name: name.into(), path: path.clone() })
    }

    /// Looks at what is there, and refuses what is no file or not the version that the caller knows.
    pub(super) fn check(&self, precondition: &Precondition) -> Result<Current, Problem> {
        let current = match stat_of(self.directory.as_fd(), self.name.as_os_str()) {
            Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => Current { etag: Some(etag(&stat)), mode: stat.st_mode & 0o7777 },
                // A link that leads nowhere is replaced.
                FileType::Symlink => Current { etag: None, mode: NEW_FILE_MODE },
                _ => return Err(not_a_file()),
            },
            Err(Errno::NOENT) => Current { etag: None, mode: NEW_FILE_MODE },
            Err(error) => return Err(refused(error.into())),
        };
        precondition.check(current.etag.as_deref())?;
        Ok(current)
    }

    /// Gives the name to the whole file `source` in `from`, if what is there is still what the caller knows.
    ///
    /// All writes through this API come here one at a time. A command that writes into the old file in the same moment is
    /// not held up: what it writes after the look goes the way of the old file.
    pub(super) fn replace(
        &self,
        workspace: &Workspace,
        file: &File,
        (from, source): (&Dir, &Path),
        precondition: &Precondition,
    ) -> Result<FileWritten, Problem> {
        let _commit = workspace.commit.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let current = self.check(precondition)?;
        file.set_permissions(PermissionsExt::from_mode(current.mode)).map_err(refused)?;
        let copy = match from.rename(source, &self.directory, &self.name) {
            Err(error) if error.raw_os_error() == Some(libc::EXDEV) => {
                Some(self.copy(file, from, source, current.mode)?)
            }
            result => {
                result.map_err(refused)?;
                None
            }
        };
        let stat = rustix::fs::fstat(copy.as_ref().unwrap_or(file)).map_err(|error| refused(error.into()))?;
        Ok(FileWritten { size: stat.st_size.cast_unsigned(), created: current.etag.is_none(), etag: Some(etag(&stat)) })
    }

    /// For a directory on another file system than the workspace's own.
    fn copy(&self, file: &File, from: &Dir, source: &Path, mode: u32) -> Result<File, Problem> {
        let hidden = hidden_name()?;
        let copied = (|| {
            let mut copy = self.directory.create(&hidden)?.into_std();
            let mut reader = file.try_clone()?;
            io::Seek::rewind(&mut reader)?;
            io::copy(&mut reader, &mut copy)?;
            copy.set_permissions(PermissionsExt::from_mode(mode))?;
            self.directory.rename(&hidden, &self.directory, &self.name)?;
            Ok(copy)
        })();
        if copied.is_err() {
            let _ = self.directory.remove_file(&hidden);
        }
        let copied = copied.map_err(refused)?;
        let _ = from.remove_file(source);
        Ok(copied)
    }
}

/// A name that nobody has, for a file on its way.
pub(super) fn hidden_name() -> Result<PathBuf, Problem> {
    Ok(PathBuf::from(format!(".upload-{}", random_hex(12).map_err(Problem::internal)?)))
}

/// A link is written through, as a shell's redirection does, as long as it stays inside. One that leads nowhere is
/// replaced.
fn follow_link(dir: &Dir, path: &Path) -> Result<PathBuf, Problem> {
    match dir.symlink_metadata(path) {
        Ok(metadata) if metadata.is_symlink() => match dir.canonicalize(path) {
            Ok(target) => Ok(target),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(path.to_owned()),
            Err(error) => Err(refused(error)),
        },
        _ => Ok(path.to_owned()),
    }
}

/// Opens a directory, making what is missing on the way.
pub(super) fn open_or_make(root: &Dir, path: &Path) -> Result<Dir, Problem> {
    if path.as_os_str().is_empty() {
        return root.try_clone().map_err(refused);
    }
    match root.open_dir(path) {
        Ok(directory) => return Ok(directory),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(refused(error)),
    }
    let mut reached = PathBuf::new();
    for component in path.components() {
        reached.push(component);
        match root.create_dir(&reached) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            // `.` and `..` exist, though making them says otherwise.
            Err(_) if !matches!(component, Component::Normal(_)) => {}
            Err(error) => return Err(refused(error)),
        }
    }
    root.open_dir(path).map_err(refused)
}

/// Parent directory and name of an entry that is to be made; the parent is made where `make` says so.
pub(super) fn place<'a>(
    workspace: &Workspace,
    field: &str,
    path: &'a Path,
    make: bool,
) -> Result<(Dir, &'a OsStr), Problem> {
    let (parent, name) = split(field, path)?;
    if make {
        return Ok((open_or_make(&workspace.dir, parent)?, name));
    }
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    Ok((workspace.dir.open_dir(parent).map_err(refused)?, name))
}
