//! Starting the daemon of one sandbox, inside bubblewrap or not.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::pipe::{PipeFlags, pipe_with};
use sandbox_api::{HostStart, Isolation, Limits, NetworkIsolation};
use tokio::process::{Child, Command};

use super::bounds::Bounds;
use super::bubblewrap::{self, Inside};
use super::groups::{ControlGroups, Group};
use super::layout::Layout;
use super::network::{Network, WayOut};
use crate::cli::IsolationKind;
use crate::http::Token;
use crate::secret;
use crate::serve::Credentials;

/// Starts daemons.
pub(super) struct Launcher {
    kind: IsolationKind,
    /// bubblewrap's path, where it is used.
    bubblewrap: Option<PathBuf>,
    /// This very program, also after its file was replaced.
    program: File,
    root: bool,
    way_out: WayOut,
    groups: ControlGroups,
    limits: Limits,
}

/// What one start needs.
pub(super) struct Start<'a> {
    pub(super) layout: &'a Layout,
    pub(super) workspace: &'a Path,
    pub(super) credentials: Option<Credentials>,
    pub(super) request: &'a HostStart,
    pub(super) network: NetworkIsolation,
    pub(super) group: Option<&'a Group>,
    pub(super) token: &'a Token,
    /// The listening socket of its control API.
    pub(super) socket: OwnedFd,
}

impl Launcher {
    pub(super) fn new(kind: IsolationKind) -> io::Result<Self> {
        let root = rustix::process::geteuid().is_root();
        // Sandboxes get no environment, so the search is the host's own.
        let bubblewrap = (kind == IsolationKind::Bubblewrap).then(|| bubblewrap::find(bubblewrap::PROGRAM)).flatten();
        Ok(Self {
            kind,
            bubblewrap,
            program: File::open("/proc/self/exe")?,
            root,
            way_out: WayOut::Shared,
            groups: ControlGroups::Missing("without isolation there are no bounds".into()),
            limits: Limits::default(),
        })
    }

    /// Bounds the sandboxes to come.
    pub(super) fn bound(&mut self, bounds: Bounds, groups: ControlGroups) {
        self.limits = bounds.limits(self.kind, self.root, &groups);
        self.groups = groups;
    }

    /// Control groups of sandboxes.
    pub(super) fn groups(&self) -> &ControlGroups {
        &self.groups
    }

    /// Gives the sandboxes to come a way out.
    pub(super) fn give(&mut self, way_out: WayOut) {
        self.way_out = way_out;
    }

    /// What connects a sandbox that is to have a network of its own.
    pub(super) fn network(&self) -> Option<&Network> {
        match &self.way_out {
            WayOut::Own(network) => Some(network),
            WayOut::Shared | WayOut::Missing(_) => None,
        }
    }

    /// What a sandbox will reach that shall reach the internet, or shall not; or why this host cannot do that.
    pub(super) fn reach(&self, internet: bool) -> Result<NetworkIsolation, &str> {
        match (self.kind, internet, &self.way_out) {
            (IsolationKind::None, false, _) => Err("without isolation no sandbox can be kept from the network"),
            (IsolationKind::Bubblewrap, false, _) => Ok(NetworkIsolation::None),
            (IsolationKind::None, true, _) | (_, true, WayOut::Shared) => Ok(NetworkIsolation::Shared),
            (_, true, WayOut::Own(_)) => Ok(NetworkIsolation::Own),
            (_, true, WayOut::Missing(reason)) => Err(reason),
        }
    }

    /// Whether bubblewrap is needed and was not found.
    pub(super) fn lacks_bubblewrap(&self) -> bool {
        self.kind == IsolationKind::Bubblewrap && self.bubblewrap.is_none()
    }

    /// Whether sandboxes run as other users than the host.
    pub(super) fn changes_user(&self) -> bool {
        self.root
    }

    /// What separates a sandbox that has such a network.
    pub(super) fn isolation(&self, network: NetworkIsolation) -> Isolation {
        super::isolation(self.kind, self.root, network)
    }

    /// What bounds each sandbox.
    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(super) fn kind(&self) -> IsolationKind {
        self.kind
    }

    /// This program as a command, to which its own arguments are still to be added. The descriptors stay open in it.
    pub(super) fn command(
        &self,
        layout: &Layout,
        workspace: &Path,
        credentials: Option<Credentials>,
        inside: &Inside,
        descriptors: &[RawFd],
    ) -> Command {
        let program = self.program();
        let (mut command, files) = match self.kind {
            IsolationKind::Bubblewrap => {
                let mut command = Command::new(self.bubblewrap.as_deref().unwrap_or(Path::new(bubblewrap::PROGRAM)));
                let (arguments, files) = bubblewrap::arguments(layout, workspace, inside);
                command.args(arguments).arg("--").arg(program);
                (command, files)
            }
            IsolationKind::None => (Command::new(program), Vec::new()),
        };
        if let Some(Credentials { uid, gid }) = credentials {
            command.uid(uid).gid(gid);
        }
        let mut descriptors = descriptors.to_vec();
        descriptors.extend(inside.told.into_iter().chain(inside.gate));
        self.prepare(&mut command, descriptors, files, self.kind == IsolationKind::None);
        command
    }

    /// This program as a command outside of all sandboxes.
    pub(super) fn itself(&self, descriptors: &[RawFd]) -> Command {
        let mut command = Command::new(self.program());
        self.prepare(&mut command, descriptors.to_vec(), Vec::new(), false);
        command
    }

    /// Has the command run as a sandbox's user.
    pub(super) fn as_first_user(&self, command: &mut Command) {
        if self.root {
            command.uid(super::identity::FIRST).gid(super::identity::FIRST);
        }
    }

    fn program(&self) -> String {
        format!("/proc/self/fd/{}", self.program.as_raw_fd())
    }

    /// `files` stay open for as long as the command may be started, the descriptors are the caller's.
    fn prepare(&self, command: &mut Command, mut descriptors: Vec<RawFd>, files: Vec<File>, dies_with_host: bool) {
        command.env_clear().current_dir("/").process_group(0);
        descriptors.extend(files.iter().map(AsRawFd::as_raw_fd));
        descriptors.push(self.program.as_raw_fd());
        // SAFETY: only async-signal-safe calls, on values that the closure owns.
        unsafe {
            command.pre_exec(move || {
                let _open = &files;
                for descriptor in &descriptors {
                    if libc::fcntl(*descriptor, libc::F_SETFD, 0) != 0 {
                        return Err(io::Error::last_os_error());
                    }
                }
                // bubblewrap has an option for this; a bare daemon is told to end in good order.
                if dies_with_host && libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) != 0 {
                    return Err(io::Error::last_os_error());
                }
                Ok(())
            });
        }
    }

    /// Starts the daemon. Secrets travel in anonymous files, never on the command line. With it comes where bubblewrap
    /// tells of the sandbox that is to be connected.
    pub(super) fn start(&self, start: Start<'_>) -> io::Result<(Child, Option<OwnedFd>)> {
        let Start { layout, workspace, credentials, request, network, group, token, socket } = start;
        let token = secret::anonymous_file(token.reveal())?;
        let environment = secret::anonymous_file(&serde_json::to_string(&request.env)?)?;
        let memory_events = group.map(Group::memory_events).transpose()?.flatten();
        let mut descriptors = vec![token.as_raw_fd(), environment.as_raw_fd(), socket.as_raw_fd()];
        descriptors.extend(memory_events.as_ref().map(AsRawFd::as_raw_fd));
        let (told, teller) = match network {
            NetworkIsolation::Own => pipe_with(PipeFlags::CLOEXEC).map(|(told, teller)| (Some(told), Some(teller)))?,
            NetworkIsolation::Shared | NetworkIsolation::None => (None, None),
        };
        let inside = Inside { told: teller.as_ref().map(AsRawFd::as_raw_fd), gate: None, network };
        let mut command = self.command(layout, workspace, credentials, &inside, &descriptors);
        command
            .args(["serve", "--listen-fd", &secret::number(&socket)])
            .args(["--token-fd", &secret::number(&token)])
            .args(["--env-fd", &secret::number(&environment)])
            .args(["--sandbox-id", &request.sandbox_id])
            .args(["--limits-json", &serde_json::to_string(&self.limits)?])
            .args(["--isolation-json", &serde_json::to_string(&self.isolation(network))?]);
        if let Some(events) = &memory_events {
            command.args(["--memory-events-fd", &events.as_raw_fd().to_string()]);
        }
        if let Some(group) = group {
            group.admit(&mut command)?;
        }
        if self.kind == IsolationKind::None {
            command.arg("--root").arg(workspace);
        }
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit()).spawn()?;
        Ok((child, told))
    }
}
