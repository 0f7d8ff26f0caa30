//! Docker Engine, for the tests of sandboxes in containers. Whether one runs is the matter of whoever needs it.

use super::{Cost, Requirement, apt};
use crate::docker::{self, Client};
use anyhow::{Result, bail};

pub(crate) struct Docker;

impl Requirement for Docker {
    fn name(&self) -> String {
        "Docker Engine".to_owned()
    }

    fn missing(&self) -> Result<Option<Cost>> {
        match Client::find() {
            Client::Able(client) if docker::answers(&client) || docker::startable().is_some() => Ok(None),
            _ => Ok(Some(Cost::new(
                "runs the sandboxes of the container tests; from the system's package manager",
                300,
                2,
            ))),
        }
    }

    fn install(&self) -> Result<()> {
        if apt::available() {
            return apt::install(&["docker.io", "iptables"]);
        }
        bail!("install Docker Engine (https://docs.docker.com/engine/install), start it, and run this command again")
    }
}

/// Makes a small Debian where its image cannot be pulled.
pub(crate) struct Debootstrap;

impl Requirement for Debootstrap {
    fn name(&self) -> String {
        "debootstrap".to_owned()
    }

    fn missing(&self) -> Result<Option<Cost>> {
        if super::find_program("debootstrap").is_some() {
            return Ok(None);
        }
        Ok(Some(Cost::new("makes the base image, which could not be pulled", 1, 1)))
    }

    fn install(&self) -> Result<()> {
        if apt::available() {
            return apt::install(&["debootstrap"]);
        }
        bail!("the image debian:bookworm-slim can be neither pulled nor made here; `docker pull` says why")
    }
}
