//! The tools that a profile's key may call, as `GET /v1/tools` describes them, kept on this machine.
//!
//! The list is fetched again after an hour, and at once where the command line asks for something that it does not have.

use crate::client::Client;
use crate::failure::Result;
use crate::profile::{self, Chosen};
use ops_api::alias;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A list older than this is fetched again before it is used.
const STALE: Duration = Duration::from_secs(60 * 60);

/// A list younger than this is not fetched again for a command that it does not have.
const FRESH: Duration = Duration::from_secs(30);

/// One tool, with what commands are made of.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Tool {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) description: String,
    #[serde(default)]
    pub(crate) input_schema: Value,
    #[serde(default)]
    pub(crate) annotations: Annotations,
    #[serde(default)]
    pub(crate) guardrails: Guardrails,
}

#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Annotations {
    pub(crate) title: String,
    pub(crate) destructive_hint: bool,
}

#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Guardrails {
    pub(crate) role: String,
    /// JSON pointers of arguments that may hold secrets.
    pub(crate) unrecorded_arguments: Vec<String>,
}

/// The tools, in the order of the service.
#[derive(Clone, Default)]
pub(crate) struct Catalog {
    pub(crate) tools: Vec<Tool>,
    age: Option<Duration>,
}

/// The list as it lies in the cache folder.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Stored {
    /// Whose list it is.
    fingerprint: String,
    /// Seconds of Unix time.
    fetched_at: u64,
    tools: Vec<Tool>,
}

impl Catalog {
    /// What is kept for a profile, however old; nothing where nothing is.
    pub(crate) fn cached(chosen: &Chosen) -> Self {
        let stored = profile::cache_file(&chosen.name).ok().and_then(|path| std::fs::read(path).ok());
        let stored = stored.and_then(|text| serde_json::from_slice::<Stored>(&text).ok());
        match stored.filter(|stored| stored.fingerprint == chosen.profile.fingerprint()) {
            // A clock that was set back makes the list old.
            Some(Stored { fetched_at, tools, .. }) => {
                let age = now().checked_sub(fetched_at).map_or(Duration::MAX, Duration::from_secs);
                Self { tools, age: Some(age) }
            }
            None => Self::default(),
        }
    }

    /// Asks the service, and keeps what it answers.
    pub(crate) fn fetch(client: &Client, chosen: &Chosen) -> Result<Self> {
        let tools = tools_of(client.get_json("/v1/tools")?);
        let stored = Stored { fingerprint: chosen.profile.fingerprint(), fetched_at: now(), tools };
        // A list that cannot be kept is fetched each time.
        if let (Ok(path), Ok(text)) = (profile::cache_file(&chosen.name), serde_json::to_vec(&stored)) {
            let _ = profile::write_private(&path, &text);
        }
        Ok(Self { tools: stored.tools, age: Some(Duration::ZERO) })
    }

    pub(crate) fn is_stale(&self) -> bool {
        self.age.is_none_or(|age| age > STALE)
    }

    /// Whether the service may have more than this list.
    pub(crate) fn may_be_outdated(&self) -> bool {
        self.age.is_none_or(|age| age > FRESH)
    }

    /// The tool of that name, command or alias.
    pub(crate) fn get(&self, name: &str) -> Option<&Tool> {
        let named = |wanted: &str| self.tools.iter().find(|tool| tool.name == wanted);
        let of_command = || self.tools.iter().find(|tool| crate::arguments::kebab(&tool.name) == name);
        named(name).or_else(of_command).or_else(|| alias::targets(name).iter().find_map(|wanted| named(wanted)))
    }
}

/// Tools that this version can read; what a newer service adds is no reason to know none.
fn tools_of(answer: Value) -> Vec<Tool> {
    let Value::Object(mut answer) = answer else { return Vec::new() };
    let Some(Value::Array(tools)) = answer.remove("tools") else { return Vec::new() };
    tools.into_iter().filter_map(|tool| serde_json::from_value(tool).ok()).collect()
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_tool_is_found_by_its_name_its_command_and_its_aliases() {
        let tools = tools_of(json!({ "tools": [{ "name": "listSandboxes" }, { "name": "exec" }, { "other": 1 }] }));
        let catalog = Catalog { tools, age: None };
        for name in ["listSandboxes", "list-sandboxes", "sandboxes.list", "sandboxes:list"] {
            assert_eq!(catalog.get(name).map(|tool| tool.name.as_str()), Some("listSandboxes"), "{name}");
        }
        assert!(catalog.get("listsandboxes").is_none() && catalog.get("").is_none());
        assert!(catalog.is_stale(), "a list of no age was never fetched");
    }
}
