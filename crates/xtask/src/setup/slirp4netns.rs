//! slirp4netns, the way out of local sandboxes to the internet. Whether it may run here is proven by `sandboxd host` itself.

use super::{Cost, Requirement, apt, find_program};
use anyhow::{Result, bail};

pub(crate) struct Slirp4netns;

impl Requirement for Slirp4netns {
    fn name(&self) -> String {
        "slirp4netns".to_owned()
    }

    fn missing(&self) -> Result<Option<Cost>> {
        if find_program("slirp4netns").is_some() {
            return Ok(None);
        }
        Ok(Some(Cost::new("connects the local sandboxes to the internet; from the system's package manager", 1, 1)))
    }

    fn install(&self) -> Result<()> {
        if apt::available() {
            return apt::install(&["slirp4netns"]);
        }
        bail!(
            "install it with the system's package manager (`dnf install slirp4netns`, `pacman -S slirp4netns`, \
             `apk add slirp4netns`) and run this command again; `cargo xtask dev --network shared` goes without"
        )
    }
}
