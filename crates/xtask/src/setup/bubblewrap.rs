//! bubblewrap, which isolates local sandboxes on Linux. Whether it may run here is proven by `sandboxd host` itself.

use super::{Cost, Requirement, apt, find_program};
use anyhow::{Result, bail};

pub(crate) struct Bubblewrap;

impl Requirement for Bubblewrap {
    fn name(&self) -> String {
        "bubblewrap".to_owned()
    }

    fn missing(&self) -> Result<Option<Cost>> {
        if find_program("bwrap").is_some() {
            return Ok(None);
        }
        Ok(Some(Cost::new("isolates the local sandboxes; from the system's package manager", 1, 1)))
    }

    fn install(&self) -> Result<()> {
        if apt::available() {
            return apt::install(&["bubblewrap"]);
        }
        bail!(
            "install it with the system's package manager (`dnf install bubblewrap`, `pacman -S bubblewrap`, \
             `apk add bubblewrap`) and run this command again; `cargo xtask dev --isolation none` goes without isolation"
        )
    }
}
