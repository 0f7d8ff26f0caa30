//! The Python virtual environment of the tests: made once for each content of requirements.txt, in the cache folder.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
    time::Duration,
};

use test_support::scratch_folder;

use crate::tools::{run, try_run};

const REQUIREMENTS: &str = include_str!("python/requirements.txt");
const INSTALL_LIMIT: Duration = Duration::from_secs(300);

/// Its Python.
pub(crate) fn python() -> &'static Path {
    static PYTHON: LazyLock<PathBuf> = LazyLock::new(make);
    &PYTHON
}

fn make() -> PathBuf {
    let mut hasher = DefaultHasher::new();
    REQUIREMENTS.hash(&mut hasher);
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
        install.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/python/requirements.txt"));
        run(&mut install, INSTALL_LIMIT, &scratch.join("install.log"));
        std::fs::write(&mark, REQUIREMENTS).expect("the cache folder is writable");
    }
    python
}
