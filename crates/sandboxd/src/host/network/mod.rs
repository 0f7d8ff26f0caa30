//! The way out of a sandbox's own network: slirp4netns, one process a sandbox.
//!
//! ```text
//!   commands ── tap0 ── slirp4netns (the machine's network) ── the internet
//!        └── routes that refuse: the machine's own addresses, private and link-local ranges
//! ```
//!
//! bubblewrap makes the network, [`uplink`] refuses the routes and becomes slirp4netns. Nothing that runs in a sandbox can
//! change routes, and slirp4netns answers ARP for its own two addresses only, so a socket that is bound to the device does
//! not get around them. IPv4 only. An uplink
//! ends when the host lets go of its pipe, by whatever way the host ends.

mod routes;
pub(crate) mod uplink;

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::pipe::{PipeFlags, pipe_with};
use sandbox_api::NetworkIsolation;
use serde::Deserialize;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::process::Child;

use super::bubblewrap;
use super::launch::Launcher;
use super::layout::Layout;
use crate::secret;
use crate::serve::Credentials;

/// The program.
const PROGRAM: &str = "slirp4netns";
/// slirp4netns's own resolver, as commands see it.
pub(super) const RESOLVER: &str = "10.0.2.3";
/// How long a network may take to stand.
const PATIENCE: Duration = Duration::from_secs(10);
/// What bubblewrap tells of itself is far shorter.
const TOLD_BYTES: u64 = 4 << 10;

/// How sandboxes with internet get there.
pub(super) enum WayOut {
    /// Each by a network of its own.
    Own(Network),
    /// Over the machine's network, as it is.
    Shared,
    /// Not at all, for this reason.
    Missing(String),
}

/// Makes ways out.
pub(super) struct Network {
    program: PathBuf,
    /// Sandboxes reach private ranges.
    allow_private: bool,
}

/// The way out of one sandbox; it ends when this is dropped.
pub(super) struct Uplink {
    _process: Child,
    /// Whoever reads the other end sees the host let go of it.
    _held: OwnedFd,
}

/// What bubblewrap tells of the sandbox that it made.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Told {
    child_pid: i32,
    net_namespace: Option<u64>,
}

impl Network {
    /// `None` where slirp4netns is not installed.
    pub(super) fn find(allow_private: bool) -> Option<Self> {
        Some(Self { program: bubblewrap::find(PROGRAM)?, allow_private })
    }

    /// Connects the sandbox that bubblewrap tells of through `told`. Returns once commands can use the network.
    pub(super) async fn connect(
        &self,
        launcher: &Launcher,
        told: OwnedFd,
        credentials: Option<Credentials>,
        talkative: bool,
    ) -> Result<Uplink, String> {
        tokio::time::timeout(PATIENCE, self.try_to_connect(launcher, told, credentials, talkative))
            .await
            .map_err(|_| format!("its network did not stand within {} s", PATIENCE.as_secs()))?
            .map_err(|error| format!("its network: {error}"))
    }

    async fn try_to_connect(
        &self,
        launcher: &Launcher,
        told: OwnedFd,
        credentials: Option<Credentials>,
        talkative: bool,
    ) -> io::Result<Uplink> {
        let mut text = Vec::new();
        pipe::Receiver::from_owned_fd(told)?.take(TOLD_BYTES).read_to_end(&mut text).await?;
        let told: Told = serde_json::from_slice(&text).map_err(|_| io::Error::other("bubblewrap told nothing"))?;
        let network = File::open(format!("/proc/{}/ns/net", told.child_pid))?;
        if told.net_namespace.is_some_and(|number| network.metadata().is_ok_and(|it| it.ino() != number)) {
            return Err(io::Error::other("the sandbox ended early"));
        }
        let owner = owner(&network)?;
        let (until, held) = pipe_with(PipeFlags::CLOEXEC)?;
        let (ready, reporter) = pipe_with(PipeFlags::CLOEXEC)?;
        // slirp4netns has to open the device. Where only root may, it stays root, without its privileges.
        let as_root = launcher.changes_user() && !device_is_open_to_all();
        let mut command =
            launcher.itself(&[network.as_raw_fd(), owner.as_raw_fd(), until.as_raw_fd(), reporter.as_raw_fd()]);
        command
            .args(["uplink", "--network-fd", &network.as_raw_fd().to_string()])
            .args(["--owner-fd", &secret::number(&owner)])
            .args(["--until-fd", &secret::number(&until)])
            .args(["--ready-fd", &secret::number(&reporter)])
            .arg("--program")
            .arg(&self.program);
        if self.allow_private {
            command.arg("--allow-private");
        }
        if talkative {
            command.arg("--talkative");
        }
        if as_root {
            command.arg("--as-root");
        } else if let Some(Credentials { uid, gid }) = credentials {
            command.uid(uid).gid(gid);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
        // What slirp4netns says of itself is told only where it fails.
        command.stderr(if talkative { Stdio::piped() } else { Stdio::inherit() });
        let process = command.spawn()?;
        drop((reporter, until));
        let mut word = [0u8; 1];
        if pipe::Receiver::from_owned_fd(ready)?.read(&mut word).await? == 0 {
            let output = process.wait_with_output().await?;
            let words = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
            return Err(io::Error::other(format!("{PROGRAM} ended early ({}) {words}", output.status)));
        }
        Ok(Uplink { _process: process, _held: held })
    }

    /// Connects a sandbox once, or says what is in the way.
    pub(super) async fn prove(&self, launcher: &Launcher, layout: &Layout) -> Result<(), String> {
        let credentials =
            launcher.changes_user().then_some(Credentials { uid: super::identity::FIRST, gid: super::identity::FIRST });
        let complain = |error: io::Error| error.to_string();
        let (told, teller) = pipe_with(PipeFlags::CLOEXEC).map_err(|it| complain(it.into()))?;
        // bubblewrap waits until this is let go of.
        let (gate, held) = pipe_with(PipeFlags::CLOEXEC).map_err(|it| complain(it.into()))?;
        let inside = bubblewrap::Inside {
            told: Some(teller.as_raw_fd()),
            gate: Some(gate.as_raw_fd()),
            network: NetworkIsolation::Own,
        };
        let mut command = launcher.command(layout, &layout.etc(), credentials, &inside, &[]);
        command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
        let mut process = command.spawn().map_err(complain)?;
        drop((teller, gate));
        let uplink = self.connect(launcher, told, credentials, true).await;
        drop(held);
        let _ = tokio::time::timeout(PATIENCE, process.wait()).await;
        uplink.map(drop)
    }
}

/// The user namespace that has power over a network.
fn owner(network: &File) -> io::Result<OwnedFd> {
    /// `_IO(0xb7, 0x1)` of linux/nsfs.h.
    const NS_GET_USERNS: libc::Ioctl = 0xb701u32 as libc::Ioctl;
    // SAFETY: takes no argument, and answers with a new descriptor or an error.
    unsafe {
        match libc::ioctl(network.as_raw_fd(), NS_GET_USERNS) {
            number @ 0.. => {
                let number: RawFd = number;
                let owner = OwnedFd::from_raw_fd(number);
                rustix::io::fcntl_setfd(&owner, rustix::io::FdFlags::CLOEXEC)?;
                Ok(owner)
            }
            _ => Err(io::Error::last_os_error()),
        }
    }
}

fn device_is_open_to_all() -> bool {
    Path::new("/dev/net/tun").metadata().is_ok_and(|it| it.permissions().mode() & 0o006 == 0o006)
}
