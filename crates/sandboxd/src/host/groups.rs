//! Control groups (cgroup v2): one for each sandbox, where the machine lets the host make them.
//!
//! ```text
//!   <the host's own group>/
//!     sandboxd-<data directory>/       named after the directory, which one host uses at a time
//!       host/                          the host, where its own group may not keep processes (all but the root)
//!       sandbox-<number>-<name>/       a sandbox, from its first process on
//! ```
//!
//! What a controller is missing for is bounded as without groups. A host that was killed leaves its groups; the next one
//! with the same data directory ends what is in them and removes them.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use super::bounds::Bounds;
use super::launch::Launcher;

/// Controllers that bound something here.
const CONTROLLERS: [&str; 3] = ["memory", "pids", "cpu"];
/// Processes beyond the bound of commands: bubblewrap, and what the daemon inside keeps for itself.
const PROCESSES_BESIDE: u64 = 1 + crate::serve::HEADROOM;
/// Microseconds in which a quota of processor time is used up and given anew.
const CPU_PERIOD: u64 = 100_000;
/// Pause between two looks at whether a group is empty, and how many.
const PAUSE: Duration = Duration::from_millis(10);
const LOOKS: u32 = 500;
/// How long the proof may take.
const PROOF_PATIENCE: Duration = Duration::from_secs(10);

/// The host's groups.
pub(super) struct Groups {
    base: PathBuf,
    bounds: Bounds,
    controllers: Vec<&'static str>,
}

/// What the machine gives.
pub(super) enum ControlGroups {
    /// Groups, perhaps with some of the controllers only.
    Held(Groups),
    /// None, for this reason.
    Missing(String),
}

/// The group of one sandbox.
pub(super) struct Group {
    path: PathBuf,
}

impl ControlGroups {
    /// Whether this controller bounds sandboxes.
    pub(super) fn holds(&self, controller: &str) -> bool {
        matches!(self, Self::Held(groups) if groups.controllers.contains(&controller))
    }

    /// What is missing, and why.
    pub(super) fn missing(&self) -> Option<String> {
        match self {
            Self::Missing(reason) => Some(reason.clone()),
            Self::Held(groups) => {
                let missing: Vec<&str> =
                    CONTROLLERS.into_iter().filter(|it| !groups.controllers.contains(it)).collect();
                (!missing.is_empty()).then(|| format!("{}: not given to the host's control group", missing.join(", ")))
            }
        }
    }

    /// Makes ready what the machine gives, and tries it once.
    pub(super) async fn prepare(data: &Path, bounds: Bounds, launcher: &Launcher) -> Self {
        let found = async {
            let groups = Groups::find(data, bounds)?;
            groups.prove(launcher).await?;
            Ok(groups)
        };
        match found.await {
            Ok(groups) => Self::Held(groups),
            Err(reason) => Self::Missing(reason),
        }
    }
}

impl Groups {
    fn find(data: &Path, bounds: Bounds) -> Result<Self, String> {
        let own = own_group()?;
        let offered = read(&own, "cgroup.controllers")?;
        let controllers: Vec<&'static str> =
            CONTROLLERS.into_iter().filter(|wanted| offered.split_whitespace().any(|it| it == *wanted)).collect();
        if controllers.is_empty() {
            return Err(format!(
                "the host's cgroup v2 group has none of {}: they were not delegated to it, or cgroup v1 has them",
                CONTROLLERS.join(", ")
            ));
        }
        let metadata = fs::metadata(data).map_err(|error| format!("{}: {error}", data.display()))?;
        let base = own.join(format!("sandboxd-{:x}-{:x}", metadata.dev(), metadata.ino()));
        make(&base)?;
        clear(&base);
        let groups = Self { base, bounds, controllers };
        groups.enable(&own).inspect_err(|_| groups.give_up(&own))?;
        Ok(groups)
    }

    /// Lets the controllers through to the groups of sandboxes.
    fn enable(&self, own: &Path) -> Result<(), String> {
        // The root alone may keep processes beside groups with controllers.
        if own.join("cgroup.type").exists() {
            let leaf = self.base.join("host");
            make(&leaf)?;
            write(&leaf, "cgroup.procs", "0")?;
        }
        let all: Vec<String> = self.controllers.iter().map(|it| format!("+{it}")).collect();
        for group in [own, &self.base] {
            write(group, "cgroup.subtree_control", &all.join(" ")).map_err(|reason| {
                format!("{reason} (the group must be the host's to write, with no processes beside the host)")
            })?;
        }
        Ok(())
    }

    /// Leaves things as they were found.
    fn give_up(&self, own: &Path) {
        let back = write(own, "cgroup.procs", "0");
        for path in [&self.base.join("host"), &self.base] {
            let _ = fs::remove_dir(path);
        }
        if let Err(cause) = back {
            tracing::debug!(cause, "the host stays in a control group of its own");
        }
    }

    /// Starts something in a group once, as a sandbox is started.
    async fn prove(&self, launcher: &Launcher) -> Result<(), String> {
        let group = self.make("sandbox-proof")?;
        let result = async {
            let mut command = launcher.itself(&[]);
            launcher.as_first_user(&mut command);
            group.admit(&mut command).map_err(|error| error.to_string())?;
            command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
            let status = tokio::time::timeout(PROOF_PATIENCE, command.status())
                .await
                .map_err(|_| format!("nothing started within {} s", PROOF_PATIENCE.as_secs()))?
                .map_err(|error| error.to_string())?;
            status.success().then_some(()).ok_or_else(|| status.to_string())
        }
        .await;
        group.kill();
        group.remove().await;
        result.map_err(|reason| format!("no process could be started in a control group: {reason}"))
    }

    /// Makes the group of a sandbox, with its bounds.
    pub(super) fn make_for(&self, number: u64, name: &str) -> Result<Group, String> {
        self.make(&format!("sandbox-{number}-{name}"))
    }

    fn make(&self, name: &str) -> Result<Group, String> {
        let group = Group { path: self.base.join(name) };
        make(&group.path)?;
        self.bound(&group.path).inspect_err(|_| {
            let _ = fs::remove_dir(&group.path);
        })?;
        // Without it there is no certain end, and the kernel is older than what is relied on here.
        if !group.path.join("cgroup.kill").exists() {
            let _ = fs::remove_dir(&group.path);
            return Err("the kernel has no cgroup.kill (it came with Linux 5.14)".into());
        }
        Ok(group)
    }

    fn bound(&self, group: &Path) -> Result<(), String> {
        let Bounds { memory_bytes, processes, cpu_thousandths, .. } = self.bounds;
        let has = |controller: &str| self.controllers.contains(&controller);
        if has("memory") && memory_bytes > 0 {
            write(group, "memory.max", &memory_bytes.to_string())?;
            // The file is missing where the kernel does not swap.
            if group.join("memory.swap.max").exists() {
                write(group, "memory.swap.max", "0")?;
            }
        }
        if has("pids") && processes > 0 {
            write(group, "pids.max", &processes.saturating_add(PROCESSES_BESIDE).to_string())?;
        }
        if has("cpu") && cpu_thousandths > 0 {
            write(group, "cpu.max", &format!("{} {CPU_PERIOD}", cpu_thousandths.saturating_mul(CPU_PERIOD / 1000)))?;
        }
        Ok(())
    }
}

impl Drop for Groups {
    /// The base stays where the host is in it.
    fn drop(&mut self) {
        clear(&self.base);
        if let Err(cause) = fs::remove_dir(&self.base) {
            tracing::debug!(%cause, "the host's control group stays");
        }
    }
}

impl Group {
    /// Has the command begin in this group.
    pub(super) fn admit(&self, command: &mut Command) -> io::Result<()> {
        let members = OpenOptions::new().write(true).open(self.path.join("cgroup.procs"))?;
        // SAFETY: one async-signal-safe call, on a descriptor that the closure owns.
        unsafe {
            command.pre_exec(move || {
                // 0 is whoever writes it. The kernel asks who opened the file, not who the child has become.
                if libc::write(members.as_raw_fd(), c"0".as_ptr().cast(), 1) == 1 {
                    return Ok(());
                }
                Err(io::Error::last_os_error())
            });
        }
        Ok(())
    }

    /// The kernel's count of what it killed here for want of memory, for the daemon inside.
    pub(super) fn memory_events(&self) -> io::Result<Option<File>> {
        match File::open(self.path.join("memory.events")) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Kills everything in it at once.
    pub(super) fn kill(&self) {
        if let Err(cause) = write(&self.path, "cgroup.kill", "1") {
            tracing::debug!(cause, "a control group was gone already");
        }
    }

    /// Removes it as soon as it is empty.
    pub(super) async fn remove(&self) {
        for _ in 0..LOOKS {
            if is_removed(&self.path) {
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
        tracing::warn!(group = %self.path.display(), "a control group does not become empty and stays");
    }
}

/// Ends and removes the sandboxes' groups in there.
fn clear(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else { return };
    let groups: Vec<PathBuf> = entries
        .flatten()
        .filter(|it| it.file_name().to_string_lossy().starts_with("sandbox-"))
        .map(|it| it.path())
        .collect();
    for path in &groups {
        Group { path: path.clone() }.kill();
    }
    for path in groups {
        if !(0..LOOKS).any(|_| {
            is_removed(&path) || {
                std::thread::sleep(PAUSE);
                false
            }
        }) {
            tracing::warn!(group = %path.display(), "a control group of an earlier host does not become empty and stays");
        }
    }
}

fn is_removed(path: &Path) -> bool {
    match fs::remove_dir(path) {
        Ok(()) => true,
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// Where this process's group is in the file system.
fn own_group() -> Result<PathBuf, String> {
    let complain = |error: io::Error| format!("/proc/self: {error}");
    let membership = fs::read_to_string("/proc/self/cgroup").map_err(complain)?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").map_err(complain)?;
    locate(&membership, &mounts).ok_or_else(|| "no cgroup v2 is mounted that has the host's group".into())
}

fn locate(membership: &str, mounts: &str) -> Option<PathBuf> {
    let group = membership.lines().find_map(|line| line.strip_prefix("0::"))?;
    mounts.lines().find_map(|line| {
        let (fields, kind) = line.split_once(" - ")?;
        let mut fields = fields.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        if kind.split(' ').next() != Some("cgroup2") {
            return None;
        }
        let below = Path::new(group).strip_prefix(root).ok()?;
        (!below.starts_with("..")).then(|| Path::new(point).join(below))
    })
}

fn make(path: &Path) -> Result<(), String> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(format!("{}: {error}", path.display())),
        _ => Ok(()),
    }
}

fn read(group: &Path, file: &str) -> Result<String, String> {
    fs::read_to_string(group.join(file)).map_err(|error| format!("{file} of the host's control group: {error}"))
}

fn write(group: &Path, file: &str, text: &str) -> Result<(), String> {
    let path = group.join(file);
    fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_group_is_found_from_what_the_kernel_tells() {
        let mount = "30 23 0:26 /a /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
        let other = "31 23 0:27 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n";
        let both = format!("{other}{mount}");
        assert_eq!(locate("8:pids:/x\n0::/a/b\n", &both), Some("/sys/fs/cgroup/b".into()));
        assert_eq!(locate("0::/b\n", &both), None, "it is not below what is mounted");
        assert_eq!(locate("8:pids:/x\n", &both), None);
        assert_eq!(locate("0::/\n", other), None);
        let whole = mount.replace(" /a ", " / ");
        assert_eq!(locate("0::/\n", &whole), Some("/sys/fs/cgroup".into()));
        assert_eq!(locate("0::/../b\n", &whole), None, "it is outside of the namespace");
    }
}
