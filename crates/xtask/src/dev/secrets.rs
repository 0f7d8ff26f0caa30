//! The dev key, the host token and the secret that signs keys: random, made once a checkout, kept in files that only this user may read and that git
//! ignores. They reach the children by environment and by file, never by argument.

use anyhow::{Context, Result, bail};
use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

pub(crate) struct Secrets {
    pub(crate) key: String,
    pub(crate) host_token: String,
    pub(crate) signing: String,
}

const KEY: &str = "WORKER_API_KEY_SECRET";
const HOST_TOKEN: &str = "SANDBOX_HOST_TOKEN";
const SIGNING: &str = "SIGNING_SECRET";

/// Makes a folder that only this user can enter, or makes it so.
pub(crate) fn private_folder(folder: &Path) -> Result<()> {
    let make = || {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        fs::set_permissions(folder, Permissions::from_mode(0o700))
    };
    make().with_context(|| format!("cannot make {} a private folder", folder.display()))
}

impl Secrets {
    /// Those of an earlier start, or new ones.
    pub(crate) fn load(folder: &Path) -> Result<Self> {
        private_folder(folder)?;
        let path = folder.join("dev.env");
        match fs::read_to_string(&path) {
            Ok(text) => {
                let secrets = parse(&text)
                    .with_context(|| format!("{} is damaged: delete it, a new one is made", path.display()))?;
                // One of before keys were signed gets what it lacks.
                if !text.contains(SIGNING) {
                    secrets.keep(&path)?;
                }
                Ok(secrets)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let secrets = Self { key: format!("dev_{}", random()?), host_token: random()?, signing: random()? };
                secrets.keep(&path)?;
                Ok(secrets)
            }
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    /// The Worker's secrets in the form that wrangler's `--env-file` reads.
    pub(crate) fn write_worker_file(&self, path: &Path, host_url: &str) -> Result<()> {
        write_private(path, &format!("{}SANDBOX_HOST_URL={host_url}\n", self.lines()))
    }

    fn keep(&self, path: &Path) -> Result<()> {
        write_private(path, &self.lines())
    }

    fn lines(&self) -> String {
        let Self { key, host_token, signing } = self;
        format!("{KEY}={key}\n{HOST_TOKEN}={host_token}\n{SIGNING}={signing}\n")
    }
}

fn parse(text: &str) -> Result<Secrets> {
    let value = |name: &str| {
        let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        found.filter(|value| !value.is_empty()).map(str::to_owned).with_context(|| format!("{name} is missing"))
    };
    let signing = if text.contains(SIGNING) { value(SIGNING)? } else { random()? };
    Ok(Secrets { key: value(KEY)?, host_token: value(HOST_TOKEN)?, signing })
}

/// 256 bits of the kernel's randomness in hexadecimal.
pub(crate) fn random() -> Result<String> {
    let mut bytes = [0; 32];
    fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .context("cannot read /dev/urandom")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

pub(crate) fn write_private(path: &Path, text: &str) -> Result<()> {
    let unfinished = path.with_added_extension("unfinished");
    match fs::remove_file(&unfinished) {
        Err(error) if error.kind() != ErrorKind::NotFound => bail!("cannot replace {}: {error}", unfinished.display()),
        _ => {}
    }
    // A new file with its mode from the start: at no moment can another user read it.
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished)?;
    file.write_all(text.as_bytes())?;
    fs::rename(&unfinished, path).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    struct Folder(std::path::PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            Self(std::env::temp_dir().join(format!("xtask-secrets-{name}-{}", std::process::id())))
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_secrets_of_a_checkout_stay_the_same_and_private() {
        let folder = Folder::new("stay");
        let first = Secrets::load(&folder.0).unwrap();
        let second = Secrets::load(&folder.0).unwrap();
        assert_eq!(first.lines(), second.lines());
        // A file of before keys were signed is completed, and keeps what it has.
        let path = folder.0.join("dev.env");
        let older: String = first.lines().lines().take(2).map(|line| format!("{line}\n")).collect();
        fs::write(&path, older).unwrap();
        let third = Secrets::load(&folder.0).unwrap();
        assert_eq!((&third.key, &third.host_token), (&first.key, &first.host_token));
        assert_eq!(Secrets::load(&folder.0).unwrap().signing, third.signing);
        assert_ne!(first.key.trim_start_matches("dev_"), first.host_token);
        assert_eq!(first.host_token.len(), 64);
        let mode = fs::metadata(folder.0.join("dev.env")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_damaged_file_is_told_and_not_replaced() {
        let folder = Folder::new("damaged");
        fs::create_dir_all(&folder.0).unwrap();
        fs::write(folder.0.join("dev.env"), "WORKER_API_KEY_SECRET=\n").unwrap();
        let Err(error) = Secrets::load(&folder.0) else { panic!("a damaged file was taken") };
        assert!(error.to_string().contains("delete it"), "{error}");
    }
}
