//! The shared cache of tools: one folder a tool and version, complete or absent.
//!
//! A folder is made under a temporary name and renamed when it is whole, so that an interrupted install leaves nothing
//! that looks finished. One lock file a folder makes a second command wait for the first instead of doing the work twice.

use crate::{run, terminal, workspace};
use anyhow::{Context, Result};
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The folder of a tool, whether it exists or not. `name` carries the version.
pub(crate) fn folder(name: &str) -> Result<PathBuf> {
    Ok(workspace::cache()?.join("tools").join(name))
}

/// Makes the folder `name` by `fill`, unless it is there and `works` says so. A folder that is there and does not work
/// is replaced.
pub(crate) fn make(
    name: &str,
    works: impl Fn(&Path) -> bool,
    fill: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    let folder = folder(name)?;
    if works(&folder) {
        return Ok(folder);
    }
    let _lock = lock(&folder.with_added_extension("lock"))?;
    if works(&folder) {
        return Ok(folder);
    }
    let unfinished = folder.with_added_extension("unfinished");
    remove(&unfinished)?;
    fs::create_dir_all(&unfinished).with_context(|| format!("cannot create {}", unfinished.display()))?;
    fill(&unfinished)?;
    remove(&folder)?;
    fs::rename(&unfinished, &folder).with_context(|| format!("cannot move {name} into the cache"))?;
    anyhow::ensure!(works(&folder), "{name} was installed to {} and does not work there", folder.display());
    Ok(folder)
}

/// Holds a lock file until dropped. The kernel drops it with the process, so no stale lock can be left behind.
pub(crate) fn lock(path: &Path) -> Result<File> {
    let parent = path.parent().context("a lock file has a folder")?;
    fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    let file = File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
    let mut told = false;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => {
                if !told {
                    terminal::note(&format!("waiting for another cargo xtask that holds {}", path.display()));
                    told = true;
                }
                run::pause(Duration::from_millis(200))?;
            }
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock {}", path.display()));
            }
        }
    }
}

fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}

/// Writes a file so that a reader sees the old or the new content, never a part.
pub(crate) fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    let unfinished = path.with_added_extension(format!("{}.unfinished", std::process::id()));
    fs::write(&unfinished, content)
        .and_then(|()| fs::rename(&unfinished, path))
        .with_context(|| format!("cannot write {}", path.display()))
}
