//! Arguments of a tool, made from its own schema: what it needs, and a string of the test's in one place.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// One step on the way to a string in the arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A field of that name.
    Field(String),
    /// An item of a list.
    Item,
    /// The name of a field that may have any.
    Name,
    /// The value of such a field.
    Value,
    /// The name of a field that there is not.
    Unknown,
}

/// Values of fields by their names, where a schema does not say enough.
pub type Known = BTreeMap<String, Value>;

/// Every place of a schema that takes a string, and whether it takes any.
pub fn places(schema: &Value) -> Vec<(Vec<Step>, bool)> {
    let mut found = Vec::new();
    let mut below = |step: Step, schema: &Value| {
        let inner = places(schema).into_iter();
        found.extend(inner.map(|(rest, any)| ([vec![step.clone()], rest].concat(), any)));
    };
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        below(Step::Field(name.clone()), field);
    }
    if schema["items"].is_object() {
        below(Step::Item, &schema["items"]);
    }
    if schema["additionalProperties"].is_object() {
        below(Step::Value, &schema["additionalProperties"]);
        found.push((vec![Step::Name], true));
    }
    if schema["type"] == "string" {
        found.push((Vec::new(), schema["enum"].is_null() && schema["pattern"].is_null()));
    }
    found
}

/// Arguments that a tool takes but for the string at `place`.
pub fn arguments(schema: &Value, place: &[Step], text: &str, known: &Known) -> Value {
    let Some((step, rest)) = place.split_first() else { return json!(text) };
    let with = |name: &str, value: Value| {
        let mut fields = required(schema, known);
        fields.insert(name.to_owned(), value);
        Value::Object(fields)
    };
    match step {
        Step::Field(name) => with(name, arguments(&schema["properties"][name], rest, text, known)),
        Step::Item => json!([arguments(&schema["items"], rest, text, known)]),
        Step::Value => json!({ "k": arguments(&schema["additionalProperties"], rest, text, known) }),
        Step::Name => json!({ text: plain("", &schema["additionalProperties"], known) }),
        Step::Unknown => with(text, json!(1)),
    }
}

/// What an object needs, and the shortest wait where it can be told one.
pub fn required(schema: &Value, known: &Known) -> Map<String, Value> {
    let names = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let fields = &schema["properties"];
    let wait = fields["timeout"].is_object().then_some("timeout");
    names.chain(wait).map(|name| (name.to_owned(), plain(name, &fields[name], known))).collect()
}

/// Something that a field takes, by what is known of its name and else by its schema.
fn plain(name: &str, schema: &Value, known: &Known) -> Value {
    if let Some(value) = known.get(name) {
        return value.clone();
    }
    if let Some(first) = schema["enum"].get(0) {
        return first.clone();
    }
    match schema["type"].as_str() {
        Some("object") => Value::Object(required(schema, known)),
        Some("array") => json!([]),
        Some("integer" | "number") => schema.get("minimum").cloned().unwrap_or(json!(1)),
        Some("boolean") => json!(false),
        _ if schema["format"] == "date-time" => json!("2099-01-01T00:00:00Z"),
        _ => json!("x"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_string_of_a_schema_is_found_and_filled() {
        let text = json!({ "type": "string" });
        let schema = json!({
            "type": "object", "required": ["a"], "properties": {
                "a": { "type": "string", "enum": ["x", "y"] },
                "b": { "type": "object", "required": ["n"], "properties": { "n": { "type": "integer" }, "s": text } },
                "c": { "type": "array", "items": text },
                "d": { "type": "object", "additionalProperties": text },
                "timeout": { "type": "number", "minimum": 0.5 },
            }
        });
        let known = Known::from([("n".to_owned(), json!(7))]);
        let made: Vec<(Value, bool)> =
            places(&schema).into_iter().map(|(place, any)| (arguments(&schema, &place, "!", &known), any)).collect();
        let wait = json!(0.5);
        let expected = [
            (json!({ "a": "!", "timeout": wait }), false),
            (json!({ "a": "x", "b": { "n": 7, "s": "!" }, "timeout": wait }), true),
            (json!({ "a": "x", "c": ["!"], "timeout": wait }), true),
            (json!({ "a": "x", "d": { "k": "!" }, "timeout": wait }), true),
            (json!({ "a": "x", "d": { "!": "x" }, "timeout": wait }), true),
        ];
        assert_eq!(made, expected);
    }
}
