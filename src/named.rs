//! Zones and accounts of Cloudflare that a call names, read from the arguments of its tool, so that a key's allow-lists hold for
//! every tool without the tool doing anything for it.
//!
//! A property of a tool's input named `zoneId`, `zoneIds`, `accountId` or `accountIds` names them, wherever it stands. That no tool
//! names them otherwise is held by a test over the registry (`tools/mod.rs`).

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Names of properties, and what they name.
pub const NAMES: [(&str, Kind); 4] =
    [("zoneId", Kind::Zone), ("zoneIds", Kind::Zone), ("accountId", Kind::Account), ("accountIds", Kind::Account)];

/// How deep a schema is looked into.
const DEEPEST: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Zone,
    Account,
}

/// What a call names. A list is absent where its tool can name none, and empty where this call names none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Named {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zones: Option<BTreeSet<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accounts: Option<BTreeSet<String>>,
}

impl Named {
    /// Whether the tool can name none of either.
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

/// Where in a tool's arguments zones and accounts stand.
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
                Kind::Zone => &mut named.zones,
                Kind::Account => &mut named.accounts,
            };
            collect(arguments, path, list.get_or_insert_default());
        }
        named
    }
}

fn collect(value: &Value, path: &[Step], found: &mut BTreeSet<String>) {
    match (path.split_first(), value) {
        (None, Value::String(id)) => {
            found.insert(id.clone());
        }
        (None, Value::Array(ids)) => found.extend(ids.iter().filter_map(Value::as_str).map(str::to_owned)),
        (Some((Step::Field(name), rest)), Value::Object(fields)) => {
            if let Some(value) = fields.get(name) {
                collect(value, rest, found);
            }
        }
        (Some((Step::Each, rest)), Value::Array(items)) => items.iter().for_each(|item| collect(item, rest, found)),
        (Some((Step::Each, rest)), Value::Object(fields)) => {
            fields.values().for_each(|value| collect(value, rest, found));
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
        let free = json!({ "type": "object", "properties": { "env": { "type": "object", "additionalProperties": { "type": "string" } } } });
        assert!(
            Places::of(&free).named(&json!({ "env": { "zoneId": "z" } })).is_nothing(),
            "what a caller calls so is none"
        );
    }
}
