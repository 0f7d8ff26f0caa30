//! Tools as MCP describes them: the registry's own schemas, and annotations from the guardrails.

use serde_json::{Map, Value, json};

use crate::preview::DryRun;
use crate::schema;
use crate::tools::job_info::JobInfo;

/// Field of structured content that holds the job that a call became.
pub const JOB: &str = "job";

/// Field of structured content that holds what a call would have done.
pub const DRY_RUN: &str = "dryRunResult";

/// One entry of `tools/list`, from an entry of `GET /v1/tools`.
pub fn listed(described: &Value) -> Value {
    let field = |name: &str| described.get(name).cloned().unwrap_or_default();
    let annotations = field("annotations");
    let is_destructive = annotations.get("destructiveHint") == Some(&Value::Bool(true));
    json!({
        "name": field("name"),
        "title": annotations.get("title"),
        "description": field("description"),
        "inputSchema": field("inputSchema"),
        "outputSchema": output_schema(field("outputSchema"), is_destructive),
        "annotations": annotations,
    })
}

/// The tool's own output, or one of what stands for it: clients hold structured content against one schema whose root has no
/// composition, so that no field of it is required.
fn output_schema(mut output: Value, is_destructive: bool) -> Value {
    if let Some(schema) = output.as_object_mut() {
        schema.remove("required");
        let properties = schema.entry("properties").or_insert_with(|| Value::Object(Map::new()));
        if let Some(properties) = properties.as_object_mut() {
            properties.insert(JOB.to_owned(), schema::self_contained::<JobInfo>());
            if is_destructive {
                properties.insert(DRY_RUN.to_owned(), schema::self_contained::<DryRun>());
            }
        }
    }
    output
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::Entry;

    #[test]
    fn every_tool_has_its_own_schemas_and_nothing_else_but_what_may_stand_for_its_output() {
        for tool in crate::tools::registry().list().map(Entry::description) {
            let described = serde_json::to_value(tool).unwrap();
            let listed = listed(&described);
            assert_eq!(listed["inputSchema"], tool.input_schema, "{}", tool.name);
            assert_eq!(listed["outputSchema"]["type"], "object", "{}", tool.name);
            let properties = listed["outputSchema"]["properties"].as_object().unwrap();
            let own = tool.output_schema["properties"].as_object().unwrap();
            for (name, schema) in properties {
                let is_added = name == JOB || name == DRY_RUN;
                assert!(own.get(name) == Some(schema) || (is_added && !own.contains_key(name)), "{} {name}", tool.name);
            }
            assert!(own.keys().all(|name| properties.contains_key(name)), "{}", tool.name);
            assert!(listed["title"].is_string() && listed["annotations"]["readOnlyHint"].is_boolean());
            // Clients put the name of the server before that of the tool, at most 64 characters in all.
            assert!(format!("mcp__cloudflare-ops__{}", tool.name).len() <= 64, "{}", tool.name);
        }
    }
}
