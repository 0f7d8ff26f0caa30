//! Whole numbers that storage and every client hold exactly: those of a double.

use serde_json::{Value, json};

/// The largest of them, 2^53 - 1.
pub const LARGEST: i64 = 9_007_199_254_740_991;

/// The number of a text that was given out as a place to go on from.
pub fn place(text: &str) -> Option<i64> {
    text.parse().ok().filter(|number| (0..=LARGEST).contains(number))
}

/// Says of every whole number of a schema that has no bound of its own how large and how small it may be.
pub fn bound(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            if fields.get("type").and_then(Value::as_str) == Some("integer") {
                let (least, most) = match fields.get("format").and_then(Value::as_str) {
                    Some("int32") => (i64::from(i32::MIN), i64::from(i32::MAX)),
                    _ => (-LARGEST, LARGEST),
                };
                fields.entry("minimum").or_insert(json!(least));
                fields.entry("maximum").or_insert(json!(most));
            }
            fields.values_mut().for_each(bound);
        }
        Value::Array(items) => items.iter_mut().for_each(bound),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{ErrorCode, Result, field_name};
    use crate::registry;
    use crate::tools;

    /// No number of any argument may be one of these.
    const TOO_LARGE: [&str; 5] =
        ["9007199254740992", "9223372036854775808", "18446744073709551616", "9007199254740992.0", "1e300"];

    /// Whole numbers of a schema below `properties` and `items`, each with the pointer of the field.
    fn wholes(schema: &Value, pointer: &str, found: &mut Vec<String>) {
        if schema["type"] == "integer" {
            found.push(pointer.to_owned());
        }
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            wholes(field, &format!("{pointer}/{name}"), found);
        }
        if schema["items"].is_object() {
            wholes(&schema["items"], &format!("{pointer}/0"), found);
        }
    }

    /// Arguments that have this number at that place, and nothing else.
    fn with(pointer: &str, number: &str) -> Value {
        let innermost: Value = serde_json::from_str(number).unwrap();
        pointer.rsplit('/').filter(|name| !name.is_empty()).fold(innermost, |inner, name| match name {
            "0" => json!([inner]),
            name => json!({ name: inner }),
        })
    }

    fn names(refused: Result<()>, pointer: &str, number: &str, tool: &str) {
        let error = refused.expect_err(&format!("{tool} takes {number} as {pointer}"));
        assert_eq!(error.code, ErrorCode::InvalidArguments, "{tool} {pointer} {number}: {error:?}");
        let named = error.details["violations"].as_array().unwrap().iter().any(|each| each["pointer"] == pointer);
        assert!(named, "{tool} names {} of {number}: {error:?}", field_name(pointer));
    }

    #[test]
    fn every_whole_number_of_every_tool_is_one_that_storage_holds_or_refused_by_its_field() {
        let mut seen = 0;
        for entry in tools::registry().list() {
            let tool = entry.description();
            let validator = jsonschema::validator_for(&tool.input_schema).unwrap();
            let mut found = Vec::new();
            wholes(&tool.input_schema, "", &mut found);
            for pointer in found {
                seen += 1;
                for number in TOO_LARGE.iter().chain(&["-1", "-9007199254740992", "1.5"]) {
                    let refused = registry::validate(&validator, &with(&pointer, number));
                    names(refused, &pointer, number, tool.name);
                }
            }
        }
        assert!(seen > 40, "{seen} numbers were looked at");
    }

    #[test]
    fn what_a_bound_lets_through_is_what_its_type_holds() {
        let mut schema = json!({ "type": "object", "properties": {
            "small": { "type": "integer", "format": "int32", "minimum": 0 },
            "large": { "type": "integer", "format": "int64" },
            "own": { "type": "integer", "maximum": 5 },
            "list": { "type": "array", "items": { "type": "integer" } },
        } });
        bound(&mut schema);
        let field = |pointer: &str| {
            (
                schema.pointer(&format!("{pointer}/minimum")).cloned().unwrap(),
                schema.pointer(&format!("{pointer}/maximum")).cloned().unwrap(),
            )
        };
        assert_eq!(field("/properties/small"), (json!(0), json!(i32::MAX)));
        assert_eq!(field("/properties/large"), (json!(-LARGEST), json!(LARGEST)));
        assert_eq!(field("/properties/own"), (json!(-LARGEST), json!(5)));
        assert_eq!(field("/properties/list/items"), (json!(-LARGEST), json!(LARGEST)));
    }

    #[test]
    fn a_place_is_a_number_that_was_given_out() {
        assert_eq!((place("0"), place("9007199254740991")), (Some(0), Some(LARGEST)));
        for none in ["", "-1", "x", "9007199254740992", "9223372036854775808", "1.0"] {
            assert_eq!(place(none), None, "{none}");
        }
    }
}
