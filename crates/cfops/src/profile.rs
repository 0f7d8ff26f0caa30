//! Who calls, and where: profiles that `cfops login` stores, or the environment.
//!
//! One file, `profiles.json`, in the configuration folder of the user, readable by nobody else. A key is never an argument:
//! every process of a machine can read those of every other.

use crate::failure::{Failure, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::env;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The profile that is meant where none is named.
pub(crate) const DEFAULT: &str = "default";

/// What is needed to call. It has no `Debug`: it holds a key.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Profile {
    /// Address of the Worker, without a slash at its end.
    pub(crate) url: String,
    pub(crate) key: String,
    /// Tenant that the root key speaks for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tenant: Option<String>,
}

impl Profile {
    /// Names the profile where its key must not be seen.
    pub(crate) fn fingerprint(&self) -> String {
        let text = format!("{}\n{}\n{}", self.url, self.tenant.as_deref().unwrap_or_default(), self.key);
        Sha256::digest(text.as_bytes()).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The stored profiles.
#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Profiles {
    /// The one that is meant where none is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) current: Option<String>,
    #[serde(default)]
    pub(crate) profiles: BTreeMap<String, Profile>,
}

/// A profile that was chosen, with its name.
pub(crate) struct Chosen {
    pub(crate) name: String,
    pub(crate) profile: Profile,
}

/// The one that is named, that of the environment, or the current one.
pub(crate) fn choose(named: Option<&str>) -> Result<Chosen> {
    if named.is_none()
        && let Some(profile) = of_environment()?
    {
        return Ok(Chosen { name: "environment".to_owned(), profile });
    }
    let mut stored = Profiles::read()?;
    let named = named.map(str::to_owned).or_else(|| variable("CFOPS_PROFILE"));
    let name = named.or(stored.current).unwrap_or_else(|| DEFAULT.to_owned());
    match stored.profiles.remove(&name) {
        Some(profile) => Ok(Chosen { name, profile }),
        None => Err(Failure::NotLoggedIn { profile: name }),
    }
}

fn of_environment() -> Result<Option<Profile>> {
    match (variable("CFOPS_URL"), variable("CFOPS_KEY")) {
        (Some(url), Some(key)) => {
            let url = parse_url(&url, true)?;
            Ok(Some(Profile { url, key: check_key(&key)?.to_owned(), tenant: variable("CFOPS_TENANT") }))
        }
        (None, None) => Ok(None),
        // Half of it would send the key of one service to another.
        _ => Err(Failure::Usage("CFOPS_URL and CFOPS_KEY are set together, or neither".to_owned())),
    }
}

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// An address that requests can be sent to. Over plain HTTP a key can be read on its way, so that it is refused beyond
/// this machine unless that is asked for.
pub(crate) fn parse_url(text: &str, allow_http: bool) -> Result<String> {
    let refuse = |why: &str| Err(Failure::Usage(format!("the address {why}; it looks like https://ops.example.com")));
    let Ok(uri) = text.trim().parse::<ureq::http::Uri>() else { return refuse("cannot be read") };
    let (Some(scheme), Some(host)) = (uri.scheme_str(), uri.host()) else {
        return refuse("begins with https:// and a host");
    };
    if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) || uri.query().is_some() {
        return refuse("has no user, no key and no `?`");
    }
    let is_here = host == "localhost" || host == "[::1]" || host.starts_with("127.");
    match scheme {
        "https" => {}
        "http" if is_here || allow_http => {}
        "http" => {
            return refuse("is not encrypted, and the key could be read on its way (`--allow-http` sends it anyway)");
        }
        _ => return refuse("begins with https://"),
    }
    Ok(text.trim().trim_end_matches('/').to_owned())
}

/// A key as it can stand in a header.
pub(crate) fn check_key(text: &str) -> Result<&str> {
    let key = text.trim();
    if key.is_empty() {
        return Err(Failure::Usage("the key is empty".to_owned()));
    }
    if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Failure::Usage("a key is one word of visible ASCII characters".to_owned()));
    }
    Ok(key)
}

impl Profiles {
    pub(crate) fn read() -> Result<Self> {
        let path = file()?;
        let mode = match path.metadata() {
            Ok(metadata) => metadata.permissions().mode(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(Failure::file("read", &path, error)),
        };
        if mode & 0o077 != 0 {
            return Err(Failure::Here {
                what: format!("others may read {}, which holds keys (mode {:o})", path.display(), mode & 0o777),
                next: format!("`chmod 600 {}`, and rotate the keys if others have read them.", path.display()),
            });
        }
        let text = fs::read(&path).map_err(|error| Failure::file("read", &path, error))?;
        serde_json::from_slice(&text).map_err(|error| Failure::Here {
            what: format!("{} is not what `cfops login` writes: {error}", path.display()),
            next: "Mend it, or remove it and log in again.".to_owned(),
        })
    }

    /// Replaces the file at once, and for nobody else to read from its first byte on.
    pub(crate) fn write(&self) -> Result<()> {
        let path = file()?;
        let text = serde_json::to_vec_pretty(self).map_err(|error| Failure::file("write", &path, error))?;
        write_private(&path, &text)
    }
}

/// Writes a file that only this user may read, whole or not at all.
pub(crate) fn write_private(path: &Path, text: &[u8]) -> Result<()> {
    let failed = |error: std::io::Error| Failure::file("write", path, error);
    if let Some(folder) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
    }
    let fresh = path.with_extension(format!("{}.new", std::process::id()));
    let _ = fs::remove_file(&fresh);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh).map_err(failed)?;
    let written = file.write_all(text).and_then(|()| file.sync_all()).and_then(|()| fs::rename(&fresh, path));
    written.map_err(|error| {
        let _ = fs::remove_file(&fresh);
        failed(error)
    })
}

fn file() -> Result<PathBuf> {
    Ok(folder("XDG_CONFIG_HOME", ".config")?.join("profiles.json"))
}

/// Where the list of a profile's tools is kept.
pub(crate) fn cache_file(profile: &str) -> Result<PathBuf> {
    let name: String = profile.bytes().map(|byte| format!("{byte:02x}")).collect();
    Ok(folder("XDG_CACHE_HOME", ".cache")?.join(format!("tools-{name}.json")))
}

/// `$XDG_CONFIG_HOME/cfops` and its like, which the specification wants absolute.
fn folder(variable: &str, below_home: &str) -> Result<PathBuf> {
    let absolute = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let parent = absolute(variable).or_else(|| Some(absolute("HOME")?.join(below_home)));
    parent.map(|parent| parent.join("cfops")).ok_or_else(|| Failure::Here {
        what: format!("neither {variable} nor HOME is set to an absolute path"),
        next: "Set HOME.".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_travel_encrypted_or_stay_on_this_machine() {
        let parsed = |text, allow_http| parse_url(text, allow_http).ok();
        assert_eq!(parsed("https://ops.example.com/", false).as_deref(), Some("https://ops.example.com"));
        assert_eq!(parsed(" https://example.com/ops/ ", false).as_deref(), Some("https://example.com/ops"));
        for here in ["http://127.0.0.1:8787", "http://localhost:8787", "http://[::1]:8787"] {
            assert_eq!(parsed(here, false).as_deref(), Some(here));
        }
        assert_eq!(parsed("http://10.0.0.5:8787", false), None);
        assert_eq!(parsed("http://10.0.0.5:8787", true).as_deref(), Some("http://10.0.0.5:8787"));
        for wrong in [
            "127.0.0.1:8787",
            "ops.example.com",
            "ftp://example.com",
            "https://me:key@example.com",
            "",
            "https://a.example/?key=1",
        ] {
            assert_eq!(parsed(wrong, true), None, "{wrong}");
        }
    }

    #[test]
    fn a_key_is_one_word() {
        assert_eq!(check_key(" cfo_a_b_c\n").ok(), Some("cfo_a_b_c"));
        for wrong in ["", " \n", "a b", "a\r\nX: y", "ключ"] {
            assert!(check_key(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_fingerprint_changes_with_everything_that_a_list_of_tools_depends_on() {
        let profile = |url: &str, key: &str, tenant: Option<&str>| {
            Profile { url: url.to_owned(), key: key.to_owned(), tenant: tenant.map(str::to_owned) }.fingerprint()
        };
        let all = [
            profile("https://a.example", "k1", None),
            profile("https://a.example", "k2", None),
            profile("https://b.example", "k1", None),
            profile("https://a.example", "k1", Some("other")),
        ];
        let distinct: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len());
        assert!(all.iter().all(|text| text.len() == 32 && !text.contains("k1")));
    }
}
