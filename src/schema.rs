//! From a utoipa type to one self-contained JSON Schema that every client takes.
//!
//! Clients of function calling and of MCP reject whole servers over a schema they dislike, so what leaves here is a small
//! common subset: root `type: object` with `properties`, `$ref` inlined, one scalar `type`, and optional means absent from
//! `required` and never null. [`faults`] holds a schema against that subset; the registry tests itself with it.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::whole;

/// Types refer to each other at most this deep; a type that refers to itself is not supported.
const DEEPEST_REFERENCE: usize = 16;

/// The schema of `T` with every reference inlined.
pub fn self_contained<T: ToSchema>() -> Value {
    let mut referenced = Vec::new();
    T::schemas(&mut referenced);
    let definitions: BTreeMap<String, Value> =
        referenced.into_iter().map(|(name, schema)| (name, serde_json::to_value(schema).unwrap_or_default())).collect();
    let root = serde_json::to_value(T::schema()).unwrap_or_default();
    let mut schema = inline(root, &definitions, 0);
    if let Value::Object(fields) = &mut schema {
        fields.entry("properties").or_insert_with(|| Value::Object(Map::new()));
    }
    schema
}

fn inline(schema: Value, definitions: &BTreeMap<String, Value>, depth: usize) -> Value {
    let mut fields = match schema {
        Value::Object(fields) => fields,
        Value::Array(items) => {
            return Value::Array(items.into_iter().map(|item| inline(item, definitions, depth)).collect());
        }
        scalar => return scalar,
    };
    // `Option<T>` of a named type is a choice of T and null: optional is said by `required` alone.
    if let Some(Value::Array(choices)) = fields.get("oneOf") {
        let mut others: Vec<Value> = choices.iter().filter(|choice| !is_null(choice)).cloned().collect();
        if others.len() < choices.len()
            && others.len() == 1
            && let Some(Value::Object(only)) = others.pop()
        {
            fields.remove("oneOf");
            for (name, value) in only {
                fields.entry(name).or_insert(value);
            }
        }
    }
    if let Some(Value::String(reference)) = fields.remove("$ref") {
        let name = reference.rsplit('/').next().unwrap_or_default();
        if depth < DEEPEST_REFERENCE
            && let Some(Value::Object(definition)) = definitions.get(name).cloned()
        {
            for (name, value) in definition {
                fields.entry(name).or_insert(value);
            }
            return inline(Value::Object(fields), definitions, depth + 1);
        }
        fields.insert("$ref".to_owned(), Value::String(reference));
    }
    if let Some(Value::Array(types)) = fields.get("type") {
        let mut scalar = types.iter().filter(|name| name.as_str() != Some("null"));
        if let (Some(only), None) = (scalar.next().cloned(), scalar.next()) {
            fields.insert("type".to_owned(), only);
        }
    }
    // Names of properties are strings by JSON's own definition; several generators stumble over the keyword.
    fields.remove("propertyNames");
    Value::Object(fields.into_iter().map(|(name, value)| (name, inline(value, definitions, depth))).collect())
}

fn is_null(schema: &Value) -> bool {
    schema.get("type").and_then(Value::as_str) == Some("null")
}

/// What in `schema` some client would reject, as JSON pointers with reasons; empty when nothing.
pub fn faults(schema: &Value) -> Vec<String> {
    let mut found = Vec::new();
    if schema.get("type").and_then(Value::as_str) != Some("object") {
        found.push("/type: the root must be an object".to_owned());
    }
    if !schema.get("properties").is_some_and(Value::is_object) {
        found.push("/properties: the root must name its properties".to_owned());
    }
    walk(schema, String::new(), &mut found);
    found
}

fn walk(schema: &Value, pointer: String, found: &mut Vec<String>) {
    match schema {
        Value::Object(fields) => {
            for (name, value) in fields {
                let here = format!("{pointer}/{name}");
                let is_keyword = !pointer.ends_with("/properties");
                match (name.as_str(), value) {
                    ("$ref", _) if is_keyword => found.push(format!("{here}: references must be inlined")),
                    ("oneOf" | "anyOf" | "allOf" | "nullable", _) if is_keyword => {
                        found.push(format!("{here}: composition and null are not understood by every client"));
                    }
                    ("minimum" | "maximum", Value::Number(bound)) if is_keyword && !fits_every_target(bound) => {
                        found.push(format!("{here}: the bound is not the same on every target"));
                    }
                    ("type", Value::Array(_)) if is_keyword => found.push(format!("{here}: type must be one name")),
                    ("type", Value::String(kind)) if is_keyword && kind == "null" => {
                        found.push(format!("{here}: optional means absent, not null"));
                    }
                    _ => {}
                }
                walk(value, here, found);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                walk(item, format!("{pointer}/{index}"), found);
            }
        }
        _ => {}
    }
}

/// A bound is generated on 64 bits for the documents and on 32 bits in the Worker: a wider one would be cut there. The widest of all
/// is added where the schema is made.
fn fits_every_target(bound: &serde_json::Number) -> bool {
    bound.as_i64().is_some_and(|bound| bound.abs() == whole::LARGEST)
        || bound.as_f64().is_some_and(|bound| bound.abs() <= f64::from(i32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// What the outer type says.
    #[derive(ToSchema)]
    #[allow(dead_code)]
    struct Outer {
        /// Optional and named.
        inner: Option<Inner>,
        many: Vec<Inner>,
        count: Option<u32>,
        labels: BTreeMap<String, String>,
    }

    #[derive(ToSchema)]
    #[allow(dead_code)]
    struct Inner {
        flag: bool,
    }

    #[test]
    fn references_and_nulls_are_gone() {
        let schema = self_contained::<Outer>();
        assert_eq!(faults(&schema), Vec::<String>::new(), "{schema:#}");
        assert_eq!(schema["properties"]["inner"]["properties"]["flag"]["type"], "boolean");
        assert_eq!(schema["properties"]["count"]["type"], "integer");
        assert_eq!(schema["required"], json!(["many", "labels"]));
    }

    #[test]
    fn faults_are_found() {
        let bad =
            json!({ "anyOf": [], "properties": { "a": { "type": ["string", "null"] }, "type": { "type": "string" } } });
        let found = faults(&bad);
        assert_eq!(found.len(), 3, "{found:?}");
    }
}
