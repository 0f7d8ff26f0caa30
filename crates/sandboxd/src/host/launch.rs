//! Starting the daemon of one sandbox, inside bubblewrap or not.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use sandbox_api::{HostStart, Isolation};
use tokio::process::{Child, Command};

use super::bubblewrap;
use super::layout::Layout;
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
}

/// What one start needs.
pub(super) struct Start<'a> {
    pub(super) layout: &'a Layout,
    pub(super) workspace: &'a Path,
    pub(super) credentials: Option<Credentials>,
    pub(super) request: &'a HostStart,
    pub(super) token: &'a Token,
    /// The listening socket of its control API.
    pub(super) socket: OwnedFd,
}

impl Launcher {
    pub(super) fn new(kind: IsolationKind) -> io::Result<Self> {
        let root = rustix::process::geteuid().is_root();
        // Sandboxes get no environment, so the search is the host's own.
        let bubblewrap = (kind == IsolationKind::Bubblewrap).then(bubblewrap::find).flatten();
        Ok(Self { kind, bubblewrap, program: File::open("/proc/self/exe")?, root })
    }

    /// Whether bubblewrap is needed and was not found.
    pub(super) fn lacks_bubblewrap(&self) -> bool {
        self.kind == IsolationKind::Bubblewrap && self.bubblewrap.is_none()
    }

    /// Whether sandboxes run as other users than the host.
    pub(super) fn changes_user(&self) -> bool {
        self.root
    }

    pub(super) fn isolation(&self) -> Isolation {
        super::isolation(self.kind, self.root)
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
        descriptors: &[RawFd],
    ) -> Command {
        let program = format!("/proc/self/fd/{}", self.program.as_raw_fd());
        let mut command = match self.kind {
            IsolationKind::Bubblewrap => {
                let mut command = Command::new(self.bubblewrap.as_deref().unwrap_or(Path::new(bubblewrap::PROGRAM)));
                command.args(bubblewrap::arguments(layout, workspace)).arg("--").arg(program);
                command
            }
            IsolationKind::None => Command::new(program),
        };
        command.env_clear().current_dir("/").process_group(0);
        if let Some(Credentials { uid, gid }) = credentials {
            command.uid(uid).gid(gid);
        }
        let mut descriptors = descriptors.to_vec();
        descriptors.push(self.program.as_raw_fd());
        let dies_with_host = self.kind == IsolationKind::None;
        // SAFETY: only async-signal-safe calls, on values that the closure owns.
        unsafe {
            command.pre_exec(move || {
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
        command
    }

    /// Starts the daemon. Secrets travel in anonymous files, never on the command line.
    pub(super) fn start(&self, start: Start<'_>) -> io::Result<Child> {
        let Start { layout, workspace, credentials, request, token, socket } = start;
        let token = secret::anonymous_file(token.reveal())?;
        let environment = secret::anonymous_file(&serde_json::to_string(&request.env)?)?;
        let descriptors = [token.as_raw_fd(), environment.as_raw_fd(), socket.as_raw_fd()];
        let mut command = self.command(layout, workspace, credentials, &descriptors);
        command
            .args(["serve", "--listen-fd", &secret::number(&socket)])
            .args(["--token-fd", &secret::number(&token)])
            .args(["--env-fd", &secret::number(&environment)])
            .args(["--sandbox-id", &request.sandbox_id])
            .args(["--isolation-json", &serde_json::to_string(&self.isolation())?]);
        if self.kind == IsolationKind::None {
            command.arg("--root").arg(workspace);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit()).spawn()
    }
}
