//! The inside of a sandbox, as bubblewrap is asked to make it.
//!
//! Own user, process, mount, IPC, host name and cgroup namespaces. The system is read-only, `/etc` is generated but for
//! what name resolution, certificates and the linker need, `/workspace` is the sandbox's own, `/tmp` and `/run` are
//! memory. Small files of `/etc` are copied into the sandbox's root, which is read-only in the end: a mount for each of them
//! would be a third of the time that all this takes. The network is the sandbox's own, with nothing in it but loopback until the host connects it; or, where the host
//! was told so, the machine's.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use sandbox_api::{NetworkIsolation, WORKSPACE};

use super::launch::Launcher;
use super::layout::Layout;
use crate::serve::Credentials;

/// What differs between sandboxes.
pub(super) struct Inside {
    /// Where bubblewrap tells of the processes and namespaces that it made.
    pub(super) told: Option<RawFd>,
    /// bubblewrap waits until this ends.
    pub(super) gate: Option<RawFd>,
    pub(super) network: NetworkIsolation,
}

/// The program.
pub(super) const PROGRAM: &str = "bwrap";

/// User and group inside.
const INSIDE_ID: &str = "1000";

/// File systems in memory: path, mode, and the bytes they may grow to.
const MEMORY_FILES: [(&str, &str, u64); 4] = [
    ("/tmp", "1777", 512 << 20),
    ("/var/tmp", "1777", 128 << 20),
    ("/dev/shm", "1777", 64 << 20),
    ("/run", "0755", 16 << 20),
];

/// All of them together.
pub(super) fn memory_files_bytes() -> u64 {
    MEMORY_FILES.iter().map(|(_, _, bytes)| bytes).sum()
}

/// How long the proof may take.
const PROOF_PATIENCE: Duration = Duration::from_secs(10);

/// Directories of the system beside `/usr`, which are links into it on most systems.
const SYSTEM: [&str; 6] = ["/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];

/// Parts of the machine's `/etc` that programs need and that tell nothing of its users.
const ETC: [&str; 12] = [
    "alternatives",
    "ca-certificates",
    "fonts",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "pki",
    "protocols",
    "services",
    "ssl",
];

/// A program's path, as the host's own `PATH` has it.
pub(super) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(program)).find(|program| program.is_file())
}

/// Larger files are not copied into each sandbox.
const COPY_LIMIT_BYTES: u64 = 16 << 10;

/// Arguments up to the command to run inside, and the files that bubblewrap reads, which must stay open in it.
pub(super) fn arguments(layout: &Layout, workspace: &Path, inside: &Inside) -> (Vec<OsString>, Vec<File>) {
    let mut arguments = Arguments::default();
    for flag in [
        "--unshare-user",
        "--unshare-pid",
        "--unshare-ipc",
        "--unshare-uts",
        "--unshare-cgroup-try",
        "--new-session",
        "--die-with-parent",
        "--as-pid-1",
        "--clearenv",
    ] {
        arguments.add([flag]);
    }
    if inside.network != NetworkIsolation::Shared {
        arguments.add(["--unshare-net"]);
    }
    arguments.add(["--uid", INSIDE_ID]).add(["--gid", INSIDE_ID]).add(["--hostname", "sandbox"]);
    arguments.add(["--cap-drop", "ALL"]);
    arguments.add(["--ro-bind", "/usr", "/usr"]);
    for directory in SYSTEM {
        match fs::symlink_metadata(directory) {
            Ok(metadata) if metadata.is_symlink() => {
                if let Ok(target) = fs::read_link(directory) {
                    arguments.add([OsString::from("--symlink"), target.into(), directory.into()]);
                }
            }
            Ok(_) => {
                arguments.add(["--ro-bind", directory, directory]);
            }
            Err(_) => {}
        }
    }
    arguments.add(["--perms", "0755", "--dir", "/etc"]);
    for name in ETC {
        let path = format!("/etc/{name}");
        arguments.file("--ro-bind-try", Path::new(&path), &path);
    }
    for name in Layout::etc_names() {
        arguments.file("--ro-bind", &layout.etc().join(name), &format!("/etc/{name}"));
    }
    let resolver = layout.resolver(inside.network);
    if inside.network == NetworkIsolation::Shared {
        // The machine may change it while the sandbox runs.
        arguments.add([OsString::from("--ro-bind"), resolver.into(), "/etc/resolv.conf".into()]);
    } else {
        arguments.file("--ro-bind", &resolver, "/etc/resolv.conf");
    }
    for (option, descriptor) in [("--info-fd", inside.told), ("--block-fd", inside.gate)] {
        if let Some(descriptor) = descriptor {
            arguments.add([option, &descriptor.to_string()]);
        }
    }
    arguments.add(["--proc", "/proc"]).add(["--dev", "/dev"]);
    for (path, mode, bytes) in MEMORY_FILES {
        arguments.add(["--perms", mode, "--size", &bytes.to_string(), "--tmpfs", path]);
    }
    arguments.add([OsString::from("--bind"), workspace.into(), WORKSPACE.into()]);
    arguments.add(["--remount-ro", "/"]).add(["--chdir", WORKSPACE]);
    (arguments.list, arguments.files)
}

#[derive(Default)]
struct Arguments {
    list: Vec<OsString>,
    files: Vec<File>,
}

impl Arguments {
    fn add<T: Into<OsString>, const N: usize>(&mut self, arguments: [T; N]) -> &mut Self {
        self.list.extend(arguments.map(Into::into));
        self
    }

    /// The file as `destination`: a copy where it is small, otherwise by the option that binds it.
    fn file(&mut self, bind: &str, source: &Path, destination: &str) {
        match small_file(source) {
            Some(file) => {
                self.add(["--perms", "0644", "--file", &file.as_raw_fd().to_string(), destination]);
                self.files.push(file);
            }
            None => {
                self.add([bind.as_ref(), source.as_os_str(), destination.as_ref()]);
            }
        }
    }
}

/// The file, opened, if it is one and small.
fn small_file(path: &Path) -> Option<File> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    file.metadata().is_ok_and(|it| it.is_file() && it.len() <= COPY_LIMIT_BYTES).then_some(file)
}

/// Runs this program in a sandbox once, or says what to do.
pub(super) async fn prove(launcher: &Launcher, layout: &Layout) -> Result<(), String> {
    // The generated files serve as a workspace: the proof writes nothing.
    attempt(launcher, layout, &layout.etc()).await.map_err(|reason| {
        format!(
            "bubblewrap does not work here: {reason}\n\
             - not installed: install the package `bubblewrap`\n\
             - Ubuntu 24.04 and later: give bwrap an AppArmor profile with `userns,`, or set \
             kernel.apparmor_restrict_unprivileged_userns=0\n\
             - other systems: user namespaces must be allowed (kernel.unprivileged_userns_clone=1, \
             user.max_user_namespaces above 0)\n\
             - in a container: use the Docker image of the sandbox instead\n\
             - or pass `--isolation none`, which separates nothing"
        )
    })
}

async fn attempt(launcher: &Launcher, layout: &Layout, workspace: &Path) -> Result<(), String> {
    if launcher.lacks_bubblewrap() {
        return Err(format!("no {PROGRAM} in PATH"));
    }
    let credentials =
        launcher.changes_user().then_some(Credentials { uid: super::identity::FIRST, gid: super::identity::FIRST });
    let inside = Inside { told: None, gate: None, network: NetworkIsolation::None };
    let mut command = launcher.command(layout, workspace, credentials, &inside, &[]);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    let output = tokio::time::timeout(PROOF_PATIENCE, command.output())
        .await
        .map_err(|_| format!("it did not answer within {} s", PROOF_PATIENCE.as_secs()))?
        .map_err(|error| format!("{PROGRAM}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let complaint = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(format!("{} ({complaint})", output.status))
}
