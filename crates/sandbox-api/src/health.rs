//! What a sandbox says of itself.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Answer of `GET /v1/health` of a sandbox.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Health {
    /// Always `ok`: a daemon that is not does not answer.
    pub status: String,
    /// Random id of this start of the daemon.
    pub boot_id: String,
    /// Version of the daemon.
    pub version: String,
    /// Version of this API; see [`crate::API_VERSION`].
    pub api_version: u32,
    /// Seconds since start.
    pub uptime: f64,
    /// Bounds that hold in this sandbox.
    pub limits: Limits,
    /// What separates this sandbox from the machine it runs on.
    pub isolation: Isolation,
}

/// Bounds that are enforced. An absent field is not bounded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Limits {
    /// Bytes of memory of all processes together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Bound>,
    /// Bytes of `/tmp`, `/var/tmp`, `/dev/shm` and `/run` together, which are memory too; each has a part of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_files: Option<Bound>,
    /// Processes and threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<Bound>,
    /// Thousandths of a processor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Bound>,
    /// Bytes that the workspace takes on the disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<Bound>,
    /// Open files of one process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_files: Option<Bound>,
    /// Execs at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrent_execs: Option<u64>,
    /// Background processes at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrent_processes: Option<u64>,
}

/// One bound, and who holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Bound {
    /// The most there can be.
    pub most: u64,
    /// What holds it.
    pub by: Means,
}

/// What holds a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum Means {
    /// A control group: the kernel, for everything in the sandbox together.
    Cgroup,
    /// A resource limit: the kernel, by the sandbox's user.
    Rlimit,
    /// A file system of that size.
    Filesystem,
    /// The daemon looks from time to time and kills what is beyond it: for a moment there can be more.
    Watch,
}

/// What separates a sandbox from its machine. Says what is, not what was wished for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Isolation {
    /// `bubblewrap`, `container` or `none`.
    pub kind: String,
    /// Commands have a user of their own, without privileges on the machine.
    pub user: bool,
    /// Commands see no processes but the sandbox's.
    pub processes: bool,
    /// Commands see a file system of their own.
    pub mounts: bool,
    /// Commands share no System V or POSIX IPC with others.
    pub ipc: bool,
    /// What commands reach over the network.
    pub network: NetworkIsolation,
}

/// What commands reach over the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum NetworkIsolation {
    /// The machine's own network, loopback included.
    Shared,
    /// A network of the sandbox's own, with a way out.
    Own,
    /// A network of the sandbox's own, with no way out.
    None,
}

/// Answer of `GET /v1/metrics`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Metrics {
    /// Percent of one processor used by the sandbox since the last reading (at least 0.1 s apart); 100 is one full core.
    pub cpu_percent: f64,
    /// Resident megabytes (1,000,000 bytes) of all processes of the sandbox.
    pub memory_mb: f64,
    /// Bytes used on the file system of the workspace.
    pub disk_used_bytes: u64,
    /// Bytes free on the file system of the workspace.
    pub disk_free_bytes: u64,
    /// Processes, the daemon among them.
    pub processes: u64,
    /// Background processes that run or are to be started again.
    #[serde(default)]
    pub background_processes: u64,
}
