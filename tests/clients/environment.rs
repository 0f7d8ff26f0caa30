//! The Python virtual environments of the tests: each made once for the content of its requirements, in the cache folder.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
    time::Duration,
};

use test_support::scratch_folder;

use crate::tools::{run, try_run};

const INSTALL_LIMIT: Duration = Duration::from_secs(300);

/// Packages that do not live together are in environments of their own.
#[derive(Clone, Copy)]
pub(crate) enum Environment {
    /// What generates and runs the Python client, and schemathesis.
    Clients,
    /// The SDK of MCP, version 2.
    McpModern,
    /// The SDK of MCP before that.
    McpLegacy,
}

impl Environment {
    /// Its Python.
    pub(crate) fn python(self) -> &'static Path {
        static CLIENTS: LazyLock<PathBuf> = LazyLock::new(|| make(Environment::Clients));
        static MCP_MODERN: LazyLock<PathBuf> = LazyLock::new(|| make(Environment::McpModern));
        static MCP_LEGACY: LazyLock<PathBuf> = LazyLock::new(|| make(Environment::McpLegacy));
        match self {
            Self::Clients => &CLIENTS,
            Self::McpModern => &MCP_MODERN,
            Self::McpLegacy => &MCP_LEGACY,
        }
    }

    fn requirements(self) -> PathBuf {
        let name = match self {
            Self::Clients => "requirements.txt",
            Self::McpModern => "mcp_modern.txt",
            Self::McpLegacy => "mcp_legacy.txt",
        };
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/python")).join(name)
    }
}

fn make(environment: Environment) -> PathBuf {
    let requirements = environment.requirements();
    let pinned = std::fs::read_to_string(&requirements).expect("the requirements are readable");
    let mut hasher = DefaultHasher::new();
    pinned.hash(&mut hasher);
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    let parent = cache.unwrap_or_else(std::env::temp_dir).join("cloudflare-ops/python");
    std::fs::create_dir_all(&parent).expect("the cache folder is writable");
    let folder = parent.join(format!("{:016x}", hasher.finish()));
    // Two test runs at once make it once; one that was interrupted left no mark and is made again.
    let lock = std::fs::File::create(parent.join("lock")).expect("the cache folder is writable");
    lock.lock().expect("the file system has locks");
    let (python, mark) = (folder.join("bin/python"), folder.join("complete"));
    if !mark.exists() {
        let scratch = scratch_folder("python");
        let mut venv = Command::new("python3");
        venv.args(["-m", "venv", "--clear"]).arg(&folder);
        let (made, output) = try_run(&mut venv, INSTALL_LIMIT, &scratch.join("venv.log"));
        assert!(made, "install python3 with its venv module (Debian: python3-venv):\n{output}");
        let mut install = Command::new(&python);
        install.args(["-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check", "--requirement"]);
        install.arg(requirements);
        run(&mut install, INSTALL_LIMIT, &scratch.join("install.log"));
        std::fs::write(&mark, pinned).expect("the cache folder is writable");
    }
    python
}
