//! The Worker's own secrets: which there are, where their values come from, and how they get to Cloudflare.
//!
//! A value is taken from the environment variable of that name, else from `.cloudflare-ops/deploy-<env>.env`; the root key is
//! made where nobody gives one, and kept in that file (this user's alone, ignored by git) before Cloudflare hears of it, so
//! that a command that fails in between loses nothing. The secret that signs keys is made too, and kept by the Worker alone,
//! since nobody else needs it. What the Worker has already is never replaced here.

use super::stop;
use super::wrangler::{Wrangler, refused};
use crate::dev::secrets::{random, write_private};
use anyhow::{Context, Result};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// A secret of the Worker. Another one is another row.
pub(crate) struct Secret {
    pub(crate) name: &'static str,
    making: Making,
}

/// What happens where nobody gives a value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Making {
    /// The Worker goes without.
    No,
    /// One is made and kept here.
    Kept,
    /// One is made, which only the Worker needs to know.
    Untold,
}

pub(crate) const KEY: &str = "WORKER_API_KEY_SECRET";
const HOST_URL: &str = "SANDBOX_HOST_URL";
const HOST_TOKEN: &str = "SANDBOX_HOST_TOKEN";

const SIGNING: &str = "SIGNING_SECRET";

pub(crate) const SECRETS: [Secret; 4] = [
    Secret { name: KEY, making: Making::Kept },
    Secret { name: SIGNING, making: Making::Untold },
    Secret { name: HOST_URL, making: Making::No },
    Secret { name: HOST_TOKEN, making: Making::No },
];

/// The Worker takes no shorter root key (`SHORTEST_ROOT_KEY` in src/tenant/credential.rs).
const SHORTEST_KEY: usize = 16;

/// Values that are known on this machine.
pub(crate) struct Values {
    file: PathBuf,
    known: BTreeMap<&'static str, String>,
    /// Made, and not kept here.
    untold: BTreeMap<&'static str, String>,
}

impl Values {
    pub(crate) fn read(file: &Path, variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let kept = match fs::read_to_string(file) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot read {}", file.display()));
            }
            text => text.unwrap_or_default(),
        };
        let line =
            |name: &str| kept.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix('=')?.to_owned()));
        let mut known = BTreeMap::new();
        for secret in &SECRETS {
            let value = variable(secret.name).or_else(|| line(secret.name));
            if let Some(value) = value.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty()) {
                check(secret.name, &value)?;
                known.insert(secret.name, value);
            }
        }
        Ok(Self { file: file.to_owned(), known, untold: BTreeMap::new() })
    }

    /// The root key to call with, where it is known.
    pub(crate) fn key(&self) -> Option<&str> {
        // Two values may be valid while one replaces the other; the new one is first.
        self.known.get(KEY)?.split(',').map(str::trim).find(|key| key.len() >= SHORTEST_KEY)
    }

    pub(crate) fn mask(&self, wrangler: &mut Wrangler) {
        // An address is no secret on its own, and masking a part of every message would hide what went wrong.
        self.known
            .iter()
            .chain(&self.untold)
            .filter(|(name, _)| **name != HOST_URL)
            .for_each(|(_, value)| wrangler.mask(value));
    }

    /// Makes a value, and keeps it where it must not be lost.
    fn make(&mut self, name: &'static str) -> Result<()> {
        if SECRETS.iter().any(|secret| secret.name == name && secret.making == Making::Untold) {
            self.untold.insert(name, random()?);
            return Ok(());
        }
        let value = format!("live_{}", random()?);
        self.known.insert(name, value);
        if let Some(folder) = self.file.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        let text: String = self.known.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
        write_private(&self.file, &text)
    }
}

fn check(name: &str, value: &str) -> Result<()> {
    let fault = if value.contains(['\n', '\r', '\0']) {
        "is more than one line"
    } else if [KEY, SIGNING].contains(&name) && !value.split(',').all(|key| key.trim().len() >= SHORTEST_KEY) {
        "has a value of fewer than 16 characters, which the Worker does not take"
    } else if name == HOST_URL && !value.starts_with("https://") {
        "does not begin with https://: the host's token would travel in clear"
    } else {
        return Ok(());
    };
    Err(stop(
        &format!("{name} {fault}"),
        "mend it where it is set (the environment, or .cloudflare-ops/), and run this again",
    ))
}

/// What will be put.
pub(crate) struct Plan {
    put: Vec<&'static str>,
    made: Vec<&'static str>,
    file: PathBuf,
}

impl Plan {
    /// What to tell before it is done.
    pub(crate) fn describe(&self) -> Vec<String> {
        let put = self.put.iter().map(|name| format!("secret {name}, as it is set here"));
        let made = self.made.iter().map(|name| match *name {
            SIGNING => format!("secret {name}, made now and kept by the Worker alone"),
            _ => format!("secret {name}, made now and kept in {}", self.file.display()),
        });
        put.chain(made).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.put.is_empty() && self.made.is_empty()
    }

    /// Decides from what the Worker has (`present`) and what is known here.
    pub(crate) fn of(values: &Values, present: &[String], making_allowed: bool) -> Result<Self> {
        let mut plan = Self { put: Vec::new(), made: Vec::new(), file: values.file.clone() };
        for secret in SECRETS.iter().filter(|secret| !present.iter().any(|name| name == secret.name)) {
            if values.known.contains_key(secret.name) {
                plan.put.push(secret.name);
            } else if secret.making == Making::Untold || secret.making == Making::Kept && making_allowed {
                plan.made.push(secret.name);
            } else if secret.making == Making::Kept {
                return Err(stop(
                    &format!(
                        "the Worker has no {}, and one that is made here would be lost with this machine",
                        secret.name
                    ),
                    &format!("set {} in the environment of this command (openssl rand -hex 32 makes one)", secret.name),
                ));
            }
        }
        let will_have = |name: &str| present.iter().any(|one| one == name) || plan.put.contains(&name);
        if will_have(HOST_URL) != will_have(HOST_TOKEN) {
            return Err(stop(
                &format!("only one of {HOST_URL} and {HOST_TOKEN} is there, and a host needs both"),
                "set the other one too, or unset both to run sandboxes as Cloudflare Containers",
            ));
        }
        Ok(plan)
    }

    pub(crate) fn carry_out(&self, values: &mut Values, wrangler: &mut Wrangler) -> Result<()> {
        for name in &self.made {
            values.make(name)?;
        }
        values.mask(wrangler);
        for name in self.put.iter().chain(&self.made) {
            let value = values.known.get(name).or(values.untold.get(name)).context("a planned secret has a value")?;
            let answer = wrangler.ask_environment(&["secret", "put", name], value)?;
            if !answer.ok {
                return Err(refused(
                    &format!("the secret {name} could not be put"),
                    &answer,
                    "run this again: what was put stays, and a key that was made is kept; if the latest version of the Worker is \
                     not deployed, deploy or roll back first",
                ));
            }
        }
        Ok(())
    }
}

/// Names of the secrets that the Worker has, or nothing where there is no Worker yet.
pub(crate) fn present(wrangler: &Wrangler) -> Result<Option<Vec<String>>> {
    let answer = wrangler.ask_environment(&["secret", "list", "--format", "json"], "")?;
    if !answer.ok {
        if answer.text.contains("not found") && answer.text.contains("new Worker") {
            return Ok(None);
        }
        return Err(refused(
            "which secrets the Worker has cannot be told",
            &answer,
            "check the network and the token's permissions (docs/deploy.md), and run this again",
        ));
    }
    let Ok(Value::Array(list)) = serde_json::from_str(answer.stdout.trim()) else {
        return Err(refused("wrangler did not list the secrets as JSON", &answer, "run `npm ci` and this again"));
    };
    Ok(Some(list.iter().filter_map(|secret| Some(secret.get("name")?.as_str()?.to_owned())).collect()))
}
