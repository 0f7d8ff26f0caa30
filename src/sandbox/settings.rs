//! What a caller decides about a sandbox: at its creation, and later by an update.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorCode};
use crate::tenant::secret_name::SecretName;

/// Seconds without use after which a sandbox sleeps, unless it says otherwise.
pub const DEFAULT_SLEEP_AFTER: u32 = 600;

/// Seconds without use after which a sandbox that `exec` made by itself is destroyed.
pub const TEMPORARY_IDLE: u32 = 300;

/// Most variables of a sandbox, those of updates included.
const MOST_VARIABLES: usize = 128;

/// What is so until it is changed. Fields that hold the default are not stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Settings {
    /// Free words to find it by.
    pub labels: BTreeMap<String, String>,
    /// Environment of every command in it.
    pub env: BTreeMap<String, String>,
    /// Variables of it that have the values of named secrets.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, SecretName>,
    /// Seconds without use after which it sleeps; [`DEFAULT_SLEEP_AFTER`] when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sleep_after: Option<u32>,
    /// Whether it stays awake although nobody uses it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep_alive: bool,
    /// When it is destroyed, used or not: milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<i64>,
    /// What `expires_at` was counted from, where the caller named seconds: so that a repeated creation is the same one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_after: Option<u32>,
    /// Whether commands reach the internet.
    #[serde(default = "yes", skip_serializing_if = "Clone::clone")]
    pub internet: bool,
}

fn yes() -> bool {
    true
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            labels: BTreeMap::new(),
            env: BTreeMap::new(),
            secrets: BTreeMap::new(),
            sleep_after: None,
            keep_alive: false,
            expires_at: None,
            expires_after: None,
            internet: true,
        }
    }
}

impl Settings {
    /// Seconds without use after which it sleeps when it is not kept alive.
    pub fn sleep_after(&self) -> u32 {
        self.sleep_after.unwrap_or(DEFAULT_SLEEP_AFTER)
    }

    /// The first setting that differs from what a repeated creation asks for.
    pub fn difference(&self, asked: &Self) -> Option<&'static str> {
        let expiry_is_same = match (self.expires_after, asked.expires_after) {
            (None, None) => self.expires_at == asked.expires_at,
            (stored, asked) => stored == asked,
        };
        let same = [
            ("labels", self.labels == asked.labels),
            ("env", self.env == asked.env),
            ("secrets", self.secrets == asked.secrets),
            ("sleepAfter", self.sleep_after == asked.sleep_after),
            ("keepAlive", self.keep_alive == asked.keep_alive),
            ("expiresAt", expiry_is_same),
            ("internet", self.internet == asked.internet),
        ];
        same.into_iter().find(|(_, same)| !same).map(|(name, _)| name)
    }

    /// The environment as commands get it: the sandbox's own variables, over `SANDBOX_TIMEOUT`. Those of named secrets are added where it
    /// is given to the sandbox, see `environment.rs`.
    pub fn environment(&self) -> BTreeMap<String, String> {
        let timeout = if self.keep_alive { 0 } else { self.sleep_after() };
        let mut environment = BTreeMap::from([("SANDBOX_TIMEOUT".to_owned(), timeout.to_string())]);
        environment.extend(self.env.clone());
        environment
    }
}

/// What an update says of the expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Expiry {
    Never,
    At(i64),
    /// Seconds from now.
    After(u32),
}

/// A change of settings; what is absent stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Update {
    /// All labels from now on.
    #[serde(default)]
    pub labels: Option<BTreeMap<String, String>>,
    /// Variables to set; others stay.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Variables to give the values of named secrets; others stay.
    #[serde(default)]
    pub secrets: BTreeMap<String, SecretName>,
    /// Variables to remove.
    #[serde(default)]
    pub unset_env: Vec<String>,
    #[serde(default)]
    pub sleep_after: Option<u32>,
    #[serde(default)]
    pub keep_alive: Option<bool>,
    #[serde(default)]
    pub expiry: Option<Expiry>,
    #[serde(default)]
    pub internet: Option<bool>,
}

impl Update {
    /// Whether it says how long the sandbox is wanted: then one that `exec` made is treated like any other from now on.
    pub fn adopts(&self) -> bool {
        self.sleep_after.is_some() || self.keep_alive.is_some()
    }

    /// The settings after the change.
    pub fn applied_to(&self, settings: &Settings, now: i64) -> Result<Settings, Error> {
        let mut changed = settings.clone();
        if let Some(labels) = &self.labels {
            changed.labels.clone_from(labels);
        }
        for name in &self.unset_env {
            changed.env.remove(name);
            changed.secrets.remove(name);
        }
        // A variable has its value from one of them.
        changed.secrets.retain(|name, _| !self.env.contains_key(name));
        changed.env.retain(|name, _| !self.secrets.contains_key(name));
        changed.env.extend(self.env.clone());
        changed.secrets.extend(self.secrets.clone());
        if changed.env.len() + changed.secrets.len() > MOST_VARIABLES {
            let message = format!("the sandbox would have more than {MOST_VARIABLES} variables");
            return Err(Error::invalid("/env", message));
        }
        changed.sleep_after = self.sleep_after.or(changed.sleep_after);
        changed.keep_alive = self.keep_alive.unwrap_or(changed.keep_alive);
        changed.internet = self.internet.unwrap_or(changed.internet);
        match self.expiry {
            None => {}
            Some(Expiry::Never) => (changed.expires_at, changed.expires_after) = (None, None),
            Some(Expiry::At(at)) if at <= now => {
                return Err(Error::invalid("/expiresAt", "is not in the future"));
            }
            Some(Expiry::At(at)) => (changed.expires_at, changed.expires_after) = (Some(at), None),
            Some(Expiry::After(seconds)) => {
                let at = now.saturating_add(i64::from(seconds) * 1000);
                (changed.expires_at, changed.expires_after) = (Some(at), Some(seconds));
            }
        }
        Ok(changed)
    }
}

/// 409: a sandbox of that name exists with another value of this setting.
pub fn differs(sandbox_id: &str, field: &str) -> Error {
    let message = format!("sandbox {sandbox_id:?} exists with other {field}; destroy it first or use another id");
    Error::new(ErrorCode::Conflict, message).detail("sandboxId", sandbox_id).detail("field", field)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn what_was_stored_before_there_were_settings_loads() {
        let stored: Settings = serde_json::from_str(r#"{"labels":{"a":"b"},"env":{}}"#).unwrap();
        assert_eq!(stored, Settings { labels: words(&[("a", "b")]), ..Settings::default() });
        assert!(stored.internet && !stored.keep_alive);
        assert_eq!(serde_json::to_string(&Settings::default()).unwrap(), r#"{"labels":{},"env":{}}"#);
    }

    #[test]
    fn the_stored_form_does_not_change() {
        let settings = Settings {
            sleep_after: Some(5),
            keep_alive: true,
            expires_at: Some(7),
            expires_after: Some(1),
            internet: false,
            ..Settings::default()
        };
        let text =
            r#"{"labels":{},"env":{},"sleepAfter":5,"keepAlive":true,"expiresAt":7,"expiresAfter":1,"internet":false}"#;
        assert_eq!(serde_json::to_string(&settings).unwrap(), text);
        assert_eq!(serde_json::from_str::<Settings>(text).unwrap(), settings);
    }

    #[test]
    fn a_repeated_creation_that_names_seconds_is_the_same_one_later() {
        let first = Settings { expires_at: Some(1_000), expires_after: Some(1), ..Settings::default() };
        let later = Settings { expires_at: Some(9_000), expires_after: Some(1), ..Settings::default() };
        assert_eq!(first.difference(&later), None);
        assert_eq!(first.difference(&Settings { expires_after: Some(2), ..later }), Some("expiresAt"));
        assert_eq!(first.difference(&Settings::default()), Some("expiresAt"));
        let awake = Settings { keep_alive: true, ..Settings::default() };
        assert_eq!(Settings::default().difference(&awake), Some("keepAlive"));
    }

    #[test]
    fn an_update_changes_what_it_names() {
        let settings = Settings { env: words(&[("A", "1"), ("B", "2")]), ..Settings::default() };
        let update = Update {
            env: words(&[("B", "3"), ("C", "4")]),
            unset_env: vec!["A".into(), "NONE".into()],
            expiry: Some(Expiry::After(60)),
            ..Update::default()
        };
        let changed = update.applied_to(&settings, 1_000).unwrap();
        assert_eq!(changed.env, words(&[("B", "3"), ("C", "4")]));
        assert_eq!((changed.expires_at, changed.sleep_after), (Some(61_000), None));
        let never = Update { expiry: Some(Expiry::Never), ..Update::default() };
        assert_eq!(never.applied_to(&changed, 2_000).unwrap().expires_at, None);
        let past = Update { expiry: Some(Expiry::At(5)), ..Update::default() };
        assert_eq!(past.applied_to(&changed, 6).unwrap_err().code, ErrorCode::InvalidArguments);
        let many = (0..=MOST_VARIABLES).map(|number| (format!("V{number}"), String::new())).collect();
        let many = Update { env: many, ..Update::default() };
        assert!(many.applied_to(&settings, 0).is_err());
    }

    #[test]
    fn a_variable_has_its_value_from_one_place() {
        let named = |pairs: &[(&str, &str)]| -> BTreeMap<String, SecretName> {
            pairs.iter().map(|(name, secret)| ((*name).to_owned(), SecretName::parse(secret).unwrap())).collect()
        };
        let settings =
            Settings { env: words(&[("A", "1")]), secrets: named(&[("B", "b"), ("C", "c")]), ..Settings::default() };
        let update = Update {
            env: words(&[("B", "2")]),
            secrets: named(&[("A", "a")]),
            unset_env: vec!["C".into()],
            ..Update::default()
        };
        let changed = update.applied_to(&settings, 0).unwrap();
        assert_eq!((changed.env, changed.secrets), (words(&[("B", "2")]), named(&[("A", "a")])));
        assert_eq!(settings.difference(&Settings { secrets: named(&[]), ..settings.clone() }), Some("secrets"));
        let stored = serde_json::to_string(&settings).unwrap();
        assert_eq!(stored, r#"{"labels":{},"env":{"A":"1"},"secrets":{"B":"b","C":"c"}}"#);
        let many = (0..MOST_VARIABLES).map(|number| (format!("V{number}"), SecretName::parse("a").unwrap())).collect();
        assert!(Update { secrets: many, ..Update::default() }.applied_to(&settings, 0).is_err());
    }

    #[test]
    fn commands_are_told_when_the_sandbox_sleeps() {
        let timeout = |settings: Settings| settings.environment().get("SANDBOX_TIMEOUT").cloned();
        assert_eq!(timeout(Settings::default()).as_deref(), Some("600"));
        assert_eq!(timeout(Settings { keep_alive: true, ..Settings::default() }).as_deref(), Some("0"));
        let own = Settings { env: words(&[("SANDBOX_TIMEOUT", "mine")]), ..Settings::default() };
        assert_eq!(timeout(own).as_deref(), Some("mine"));
    }

    proptest! {
        #[test]
        fn an_empty_update_changes_nothing(sleep_after: Option<u32>, keep_alive: bool, expires_at: Option<i64>, now: i64) {
            let settings = Settings { sleep_after, keep_alive, expires_at, ..Settings::default() };
            prop_assert_eq!(Update::default().applied_to(&settings, now).unwrap(), settings);
        }
    }
}
