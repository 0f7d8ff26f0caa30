//! Where the host keeps things.
//!
//! ```text
//!   <data-dir>/<name>/workspace   a sandbox's files; they outlive the sandbox's process and the host
//!   <data-dir>/.lock              held while a host uses the directory
//!   <data-dir>/.trash/            what is being removed
//!   <runtime>/etc/                generated system files, bound read-only into every sandbox
//!   <runtime>/control/            the sockets, which only the host's user can reach
//! ```
//!
//! The runtime directory is `<data-dir>/.run`, or one in `/tmp` where the data directory's path is too long for a socket.
//! Names of sandboxes never begin with a dot.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use sandbox_api::NetworkIsolation;

use super::remove;
use crate::http::random_hex;

/// Longest path of a Unix socket, without its final NUL.
const SOCKET_PATH_BYTES: usize = 107;
/// Longest name of a socket in the control directory, with the slashes before it.
const SOCKET_NAME_BYTES: usize = "/control/".len() + 20;

/// The host's directories.
pub(super) struct Layout {
    data: PathBuf,
    runtime: PathBuf,
    /// Holds the lock until the host ends.
    _lock: File,
}

impl Layout {
    /// Makes the directories, takes the lock, and clears away what an earlier host left. With `shared`, sandboxes run as
    /// other users than the host and must be able to reach their workspaces.
    pub(super) fn prepare(data: &Path, shared: bool) -> Result<Self, String> {
        let complain = |what: &Path, error: io::Error| format!("{}: {error}", what.display());
        fs::create_dir_all(data).map_err(|error| complain(data, error))?;
        let data = data.canonicalize().map_err(|error| complain(data, error))?;
        if shared {
            allow_passage(&data)?;
        }
        let lock_path = data.join(".lock");
        let lock = File::create(&lock_path).map_err(|error| complain(&lock_path, error))?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| format!("--data-dir {}: another host uses it", data.display()))?;
        let mut runtime = data.join(".run");
        remove::tree(&runtime).map_err(|error| complain(&runtime, error))?;
        if runtime.as_os_str().as_bytes().len() + SOCKET_NAME_BYTES > SOCKET_PATH_BYTES {
            let unique = random_hex(6).map_err(|error| error.to_string())?;
            runtime = std::env::temp_dir().join(format!("sandboxd-{unique}"));
        }
        let layout = Self { data, runtime, _lock: lock };
        layout.fill().map_err(|error| complain(&layout.runtime, error))?;
        Ok(layout)
    }

    fn fill(&self) -> io::Result<()> {
        for (path, mode) in [
            (self.runtime.clone(), 0o711),
            (self.etc(), 0o755),
            (self.runtime.join("control"), 0o700),
            (self.data.join(".trash"), 0o700),
        ] {
            make(&path, mode)?;
        }
        let resolver = format!("nameserver {}\n", super::network::RESOLVER);
        let resolvers = [(RESOLVER_ONLINE, resolver.as_str()), (RESOLVER_OFFLINE, "")];
        for (name, content) in GENERATED.into_iter().chain(resolvers) {
            let path = self.etc().join(name);
            fs::write(&path, content)?;
            fs::set_permissions(&path, Permissions::from_mode(0o644))?;
        }
        Ok(())
    }

    /// Where the workspaces are kept.
    pub(super) fn data(&self) -> &Path {
        &self.data
    }

    pub(super) fn etc(&self) -> PathBuf {
        self.runtime.join("etc")
    }

    /// What stands for `/etc/resolv.conf` in a sandbox.
    pub(super) fn resolver(&self, network: NetworkIsolation) -> PathBuf {
        match network {
            NetworkIsolation::Shared => PathBuf::from("/etc/resolv.conf"),
            NetworkIsolation::Own => self.etc().join(RESOLVER_ONLINE),
            NetworkIsolation::None => self.etc().join(RESOLVER_OFFLINE),
        }
    }

    /// Names of the files in [`Layout::etc`] that are bound under them.
    pub(super) fn etc_names() -> impl Iterator<Item = &'static str> {
        GENERATED.into_iter().map(|(name, _)| name)
    }

    pub(super) fn socket(&self, number: u64) -> PathBuf {
        self.runtime.join("control").join(number.to_string())
    }

    pub(super) fn home(&self, name: &str) -> PathBuf {
        self.data.join(name)
    }

    pub(super) fn workspace(&self, name: &str) -> PathBuf {
        self.home(name).join("workspace")
    }

    /// A new name in the trash.
    pub(super) fn trash(&self) -> io::Result<PathBuf> {
        Ok(self.data.join(".trash").join(random_hex(12)?))
    }

    /// Removes what an earlier host did not get to remove.
    pub(super) fn empty_trash(&self) -> io::Result<()> {
        for entry in fs::read_dir(self.data.join(".trash"))? {
            remove::tree(&entry?.path())?;
        }
        Ok(())
    }

    /// Makes a sandbox's directories where they are missing.
    pub(super) fn make_workspace(&self, name: &str) -> io::Result<PathBuf> {
        make(&self.home(name), 0o711)?;
        let workspace = self.workspace(name);
        make(&workspace, 0o700)?;
        Ok(workspace)
    }

    /// Users that own workspaces.
    pub(super) fn owners(&self) -> io::Result<Vec<u32>> {
        let mut owners = Vec::new();
        for entry in fs::read_dir(&self.data)? {
            if let Ok(metadata) = fs::symlink_metadata(entry?.path().join("workspace")) {
                owners.push(metadata.uid());
            }
        }
        Ok(owners)
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        if let Err(cause) = remove::tree(&self.runtime) {
            tracing::warn!(%cause, "the runtime directory could not be removed");
        }
    }
}

/// Which servers a sandbox asks for names, with a way out and without.
const RESOLVER_ONLINE: &str = "resolv.online.conf";
const RESOLVER_OFFLINE: &str = "resolv.offline.conf";

/// Files of `/etc` that say nothing of the machine.
const GENERATED: [(&str, &str); 5] = [
    (
        "passwd",
        "root:x:0:0:root:/root:/bin/sh\nsandbox:x:1000:1000:sandbox:/workspace:/bin/bash\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    ),
    ("group", "root:x:0:\nsandbox:x:1000:\nnogroup:x:65534:\n"),
    ("hosts", "127.0.0.1 localhost sandbox\n::1 localhost\n"),
    ("hostname", "sandbox\n"),
    ("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n"),
];

fn make(path: &Path, mode: u32) -> io::Result<()> {
    match DirBuilder::new().mode(mode).create(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            if fs::symlink_metadata(path)?.is_dir() {
                return Ok(());
            }
            return Err(error);
        }
        Err(error) => return Err(error),
    }
    // The file mode creation mask may have taken bits away.
    fs::set_permissions(path, Permissions::from_mode(mode))
}

/// Lets other users pass through the data directory, and checks that they can get there at all.
fn allow_passage(data: &Path) -> Result<(), String> {
    let complain = |error: io::Error| format!("--data-dir {}: {error}", data.display());
    let mode = fs::metadata(data).map_err(complain)?.mode();
    fs::set_permissions(data, Permissions::from_mode(mode & 0o7777 | 0o011)).map_err(complain)?;
    for ancestor in data.ancestors() {
        if fs::metadata(ancestor).map_err(complain)?.mode() & 0o001 == 0 {
            return Err(format!(
                "--data-dir {}: sandboxes run as users of their own, who cannot pass {}; choose a directory such as \
                 /var/lib/sandboxd, or run the host as an ordinary user",
                data.display(),
                ancestor.display()
            ));
        }
    }
    Ok(())
}
