//! What one start of the daemon is: fixed from its first moment to its end.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use sandbox_api::{Isolation, Limits, NetworkIsolation, WORKSPACE};

use super::tree::{Credentials, check_environment};
use crate::http::Token;

/// Settings of a running daemon.
pub(crate) struct Settings {
    pub(crate) boot_id: Arc<str>,
    pub(crate) token: Token,
    /// The workspace: where commands start, and what file paths are relative to.
    pub(crate) root: PathBuf,
    /// Whom commands run as; `None` is the daemon's own user.
    pub(crate) credentials: Option<Credentials>,
    /// Base environment of every command, with the sandbox's own over it.
    pub(crate) environment: RwLock<BTreeMap<String, String>>,
    pub(crate) sandbox_id: Option<String>,
    pub(crate) shell: String,
    pub(crate) isolation: Isolation,
    pub(crate) limits: Limits,
    /// Bound of processes that commands get, where there is one.
    pub(crate) processes: Option<libc::rlimit>,
    /// Limit of open files that commands get.
    pub(crate) open_files: libc::rlimit,
}

impl Settings {
    /// Environment of a command that begins now.
    pub(crate) fn environment(&self) -> BTreeMap<String, String> {
        self.environment.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces what the sandbox was given; what runs already keeps what it began with.
    pub(crate) fn set_environment(&self, given: &BTreeMap<String, String>) -> Result<(), String> {
        let environment = over_base(given, self.sandbox_id.as_deref(), &self.root)?;
        *self.environment.write().unwrap_or_else(PoisonError::into_inner) = environment;
        Ok(())
    }
}

/// Where commands are looked for when the sandbox does not say.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Base environment, then what the sandbox was given as a JSON object of strings.
pub(super) fn environment(
    given: Option<&str>,
    sandbox_id: Option<&str>,
    root: &Path,
) -> Result<BTreeMap<String, String>, String> {
    let given = match given.filter(|json| !json.is_empty()) {
        Some(json) => {
            serde_json::from_str(json).map_err(|_| "the sandbox's environment is not a JSON object of strings")?
        }
        None => BTreeMap::new(),
    };
    over_base(&given, sandbox_id, root)
}

fn over_base(
    given: &BTreeMap<String, String>,
    sandbox_id: Option<&str>,
    root: &Path,
) -> Result<BTreeMap<String, String>, String> {
    let mut environment: BTreeMap<String, String> =
        [("PATH", PATH), ("HOME", &*root.to_string_lossy()), ("LANG", "C.UTF-8"), ("TERM", "dumb")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
    if let Some(sandbox_id) = sandbox_id {
        environment.insert("SANDBOX_ID".into(), sandbox_id.to_owned());
    }
    check_environment(given)?;
    environment.extend(given.clone());
    Ok(environment)
}

/// What is so when nobody says otherwise: the daemon stands in whatever it was started in.
pub(super) fn unstated_isolation(credentials: Option<Credentials>) -> Isolation {
    let container = Path::new("/.dockerenv").exists() || std::process::id() == 1;
    Isolation {
        kind: if container { "container" } else { "none" }.into(),
        user: credentials.is_some(),
        processes: container,
        mounts: container,
        ipc: container,
        network: if container { NetworkIsolation::Own } else { NetworkIsolation::Shared },
    }
}

/// The shell for command lines: bash where there is one.
pub(super) fn shell() -> String {
    ["/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash"]
        .into_iter()
        .find(|path| Path::new(path).exists())
        .unwrap_or("/bin/sh")
        .to_owned()
}

/// The workspace when the command line does not say.
pub(crate) fn default_root() -> PathBuf {
    PathBuf::from(WORKSPACE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sandbox_environment_lies_over_the_base() {
        let environment = environment(Some(r#"{"LANG":"de","A":"1"}"#), Some("box"), Path::new("/workspace"))
            .expect("a good environment");
        let value = |name: &str| environment.get(name).map(String::as_str);
        assert_eq!(value("LANG"), Some("de"));
        assert_eq!(value("A"), Some("1"));
        assert_eq!(value("SANDBOX_ID"), Some("box"));
        assert_eq!(value("HOME"), Some("/workspace"));
    }

    #[test]
    fn a_bad_sandbox_environment_is_refused_without_its_values() {
        for bad in ["[]", r#"{"A":1}"#, r#"{"A=B":"s3cret"}"#, r#"{"A":"s3cret\u0000"}"#] {
            let error = environment(Some(bad), None, Path::new("/workspace")).expect_err(bad);
            assert!(!error.contains("s3cret"), "{error}");
        }
    }
}
