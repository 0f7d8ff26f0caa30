//! Working with the rights of whom commands run as.
//!
//! A daemon that is root must not read, replace or remove for a caller what a command of the sandbox could not, and what it
//! makes must be the sandbox's. So file work runs with that user's file-system ids, which the kernel keeps for each thread:
//! the capabilities that override permissions are gone meanwhile, and new files have the right owner from the start.

use std::io;

use super::super::tree::Credentials;

/// Runs `work` with the file-system ids of `owner`; with the daemon's own when there is none.
pub(super) fn act_as<T>(owner: Option<Credentials>, work: impl FnOnce() -> T) -> io::Result<T> {
    let Some(Credentials { uid, gid }) = owner else { return Ok(work()) };
    let restore = Restore { uid: set_user(uid), gid: set_group(gid) };
    // An id that cannot be is refused, and the answer is the one that holds.
    if set_user(u32::MAX) != uid || set_group(u32::MAX) != gid {
        return Err(io::Error::other("the daemon may not take the ids of the sandbox's user"));
    }
    let result = work();
    drop(restore);
    Ok(result)
}

struct Restore {
    uid: u32,
    gid: u32,
}

impl Drop for Restore {
    fn drop(&mut self) {
        set_user(self.uid);
        set_group(self.gid);
    }
}

fn set_user(uid: u32) -> u32 {
    // SAFETY: the call takes a number and concerns this thread only.
    unsafe { libc::setfsuid(uid) }.cast_unsigned()
}

fn set_group(gid: u32) -> u32 {
    // SAFETY: the call takes a number and concerns this thread only.
    unsafe { libc::setfsgid(gid) }.cast_unsigned()
}
