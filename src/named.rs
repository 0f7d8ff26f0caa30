//! Zones and accounts of Cloudflare, and secrets, that a call names, read from the arguments of its tool, so that a key's allow-lists
//! hold for every tool without the tool doing anything for it.
//!
//! A property of a tool's input named `zoneId`, `zoneIds`, `accountId` or `accountIds` names them, wherever it stands. That no tool
//! names them otherwise is held by a test over the registry (`tools/mod.rs`). Whatever has the type
//! [`SecretName`](crate::tenant::secret_name::SecretName) names a secret.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::tenant::secret_name;

/// Names of properties, and what they name.
pub const NAMES: [(&str, Kind); 4] =
    [("zoneId", Kind::Zone), ("zoneIds", Kind::Zone), ("accountId", Kind::Account), ("accountIds", Kind::Account)];

/// How deep a schema is looked into.
const DEEPEST: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Zone,
    Account,
    Secret,
}

/// What a call names. A list is absent where its tool can name none, and empty where this call names none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Named {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zones: Option<BTreeSet<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accounts: Option<BTreeSet<String>>,
    /// Names of secrets; empty also where its tool can name none.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub secrets: BTreeSet<String>,
}

impl Named {
    /// Whether nothing is named, nor can be of zones and accounts.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Field(String),
    /// Every item of a list, or every value of a map.
    Each,
}

/// Where in a tool's arguments zones, accounts and secrets stand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places(Vec<(Kind, Vec<Step>)>);

impl Places {
    /// Those of an input schema.
    pub fn of(schema: &Value) -> Self {
        let mut places = Self::default();
        places.walk(schema, schema, &[], DEEPEST);
        places
    }

    fn walk(&mut self, root: &Value, schema: &Value, path: &[Step], depth: usize) {
        let Some(depth) = depth.checked_sub(1) else { return };
        if schema.get("title").and_then(Value::as_str) == Some(secret_name::TITLE) {
            self.0.push((Kind::Secret, path.to_vec()));
            return;
        }
        let with = |step| path.iter().cloned().chain([step]).collect::<Vec<_>>();
        let pointer = schema.get("$ref").and_then(Value::as_str).and_then(|text| text.strip_prefix('#'));
        if let Some(target) = pointer.and_then(|pointer| root.pointer(pointer)) {
            self.walk(root, target, path, depth);
        }
        for (name, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
            let path = with(Step::Field(name.clone()));
            match NAMES.iter().find(|(known, _)| known == name) {
                Some((_, kind)) => self.0.push((*kind, path)),
                None => self.walk(root, property, &path, depth),
            }
        }
        for name in ["items", "additionalProperties"] {
            if let Some(each) = schema.get(name) {
                self.walk(root, each, &with(Step::Each), depth);
            }
        }
        for name in ["allOf", "anyOf", "oneOf"] {
            for part in schema.get(name).and_then(Value::as_array).into_iter().flatten() {
                self.walk(root, part, path, depth);
            }
        }
    }

    /// What these arguments name, valid or not.
    pub fn named(&self, arguments: &Value) -> Named {
        let mut named = Named::default();
        for (kind, path) in &self.0 {
            let list = match kind {
                Kind::Zone => named.zones.get_or_insert_default(),
                Kind::Account => named.accounts.get_or_insert_default(),
                Kind::Secret => &mut named.secrets,
            };
            collect(arguments, path, "", &mut |_, id| {
                list.insert(id.to_owned());
            });
        }
        named
    }

    /// The secrets that these arguments name, by JSON pointers to where they do.
    pub fn secrets(&self, arguments: &Value) -> BTreeMap<String, String> {
        let mut found = BTreeMap::new();
        for (_, path) in self.0.iter().filter(|(kind, _)| *kind == Kind::Secret) {
            collect(arguments, path, "", &mut |pointer, name| {
                found.insert(pointer.to_owned(), name.to_owned());
            });
        }
        found
    }
}

/// Tells every text at the end of `path`, and its JSON pointer.
fn collect(value: &Value, path: &[Step], pointer: &str, tell: &mut dyn FnMut(&str, &str)) {
    let below = |name: &str| format!("{pointer}/{}", name.replace('~', "~0").replace('/', "~1"));
    match (path.split_first(), value) {
        (None, Value::String(id)) => tell(pointer, id),
        (None, Value::Array(ids)) => {
            let ids = ids.iter().enumerate().filter_map(|(index, id)| Some((index, id.as_str()?)));
            ids.for_each(|(index, id)| tell(&below(&index.to_string()), id));
        }
        (Some((Step::Field(name), rest)), Value::Object(fields)) => {
            if let Some(value) = fields.get(name) {
                collect(value, rest, &below(name), tell);
            }
        }
        (Some((Step::Each, rest)), Value::Array(items)) => {
            items.iter().enumerate().for_each(|(index, item)| collect(item, rest, &below(&index.to_string()), tell));
        }
        (Some((Step::Each, rest)), Value::Object(fields)) => {
            fields.iter().for_each(|(name, value)| collect(value, rest, &below(name), tell));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn set(ids: &[&str]) -> Option<BTreeSet<String>> {
        Some(ids.iter().map(|id| (*id).to_owned()).collect())
    }

    #[test]
    fn ids_are_found_wherever_a_schema_has_them() {
        let schema = json!({
            "type": "object",
            "properties": {
                "zoneId": { "type": "string" },
                "name": { "type": "string" },
                "more": { "type": "object", "properties": { "zoneIds": { "type": "array", "items": { "type": "string" } } } },
                "records": { "type": "array", "items": { "$ref": "#/$defs/Record" } },
                "byName": { "type": "object", "additionalProperties": { "$ref": "#/$defs/Record" } },
            },
            "$defs": { "Record": { "type": "object", "properties": { "accountId": { "type": "string" }, "next": { "$ref": "#/$defs/Record" } } } },
        });
        let places = Places::of(&schema);
        let arguments = json!({
            "zoneId": "z1", "name": "zoneId", "more": { "zoneIds": ["z2", "z3"] },
            "records": [{ "accountId": "a1" }, { "accountId": "a2", "next": { "accountId": "a3" } }],
            "byName": { "x": { "accountId": "a4" }, "zoneId": {} },
        });
        let named = places.named(&arguments);
        assert_eq!(named.zones, set(&["z1", "z2", "z3"]));
        assert_eq!(named.accounts, set(&["a1", "a2", "a3", "a4"]));
        let none = places.named(&json!({ "zoneId": 5 }));
        assert_eq!((none.zones, none.accounts), (set(&[]), set(&[])));
        let secret = json!({ "type": "string", "title": "SecretName" });
        let secrets = Places::of(&json!({ "type": "object", "properties": {
            "name": secret, "secrets": { "type": "object", "additionalProperties": secret }, "title": { "type": "string" },
        } }));
        let arguments = json!({ "name": "a", "title": "b", "secrets": { "X/Y": "c", "Z": 1 } });
        let pointers =
            [("/name", "a"), ("/secrets/X~1Y", "c")].map(|(pointer, name)| (pointer.to_owned(), name.to_owned()));
        assert_eq!(secrets.secrets(&arguments), BTreeMap::from(pointers));
        assert_eq!(Some(secrets.named(&arguments).secrets), set(&["a", "c"]));
        assert!(secrets.named(&json!({})).is_nothing());
        let free = json!({ "type": "object", "properties": { "env": { "type": "object", "additionalProperties": { "type": "string" } } } });
        assert!(
            Places::of(&free).named(&json!({ "env": { "zoneId": "z" } })).is_nothing(),
            "what a caller calls so is none"
        );
    }
}
