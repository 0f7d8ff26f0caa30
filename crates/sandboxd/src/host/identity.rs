//! Which user of the machine a sandbox runs as.
//!
//! A host that is root gives every sandbox a user of its own, far above real ones, so that what breaks out of a sandbox
//! is nobody in particular and cannot touch another's files. The owner of the workspace is the record. An ordinary user's
//! host has only that user.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use crate::serve::Credentials;

/// First user id of sandboxes.
pub(super) const FIRST: u32 = 100_000;
/// Ids of sandboxes.
const COUNT: u32 = 65_536;

/// Ids that are taken.
pub(super) struct Identities {
    taken: Mutex<BTreeSet<u32>>,
}

impl Identities {
    pub(super) fn new(owners: impl IntoIterator<Item = u32>) -> Self {
        Self { taken: Mutex::new(owners.into_iter().filter(|uid| is_of_sandbox(*uid)).collect()) }
    }

    /// Takes an id that no sandbox has.
    pub(super) fn take(&self) -> Option<Credentials> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let free = (FIRST..FIRST + COUNT).find(|uid| !taken.contains(uid))?;
        taken.insert(free);
        Some(Credentials { uid: free, gid: free })
    }

    pub(super) fn give_back(&self, uid: u32) {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).remove(&uid);
    }
}

/// Whether the id is one that this module gives out.
pub(super) fn is_of_sandbox(uid: u32) -> bool {
    (FIRST..FIRST + COUNT).contains(&uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_sandboxes_share_an_id() {
        let identities = Identities::new([0, FIRST, FIRST + 2]);
        let first = identities.take().map(|it| it.uid);
        let second = identities.take().map(|it| it.uid);
        assert_eq!((first, second), (Some(FIRST + 1), Some(FIRST + 3)));
        identities.give_back(FIRST + 1);
        assert_eq!(identities.take().map(|it| it.uid), Some(FIRST + 1));
    }
}
