//! wrangler does not inherit bindings from the top level of wrangler.toml, so each environment repeats them. These tests
//! hold the copies together.

use toml::{Table, Value};

/// What an environment may say otherwise than the top level.
const OWN: [&str; 3] = ["name", "workers_dev", "containers"];

fn configuration() -> Table {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../wrangler.toml");
    std::fs::read_to_string(path).expect("wrangler.toml is readable").parse().expect("wrangler.toml is TOML")
}

fn environments(configuration: &Table) -> impl Iterator<Item = (&String, &Table)> {
    let environments = configuration.get("env").and_then(Value::as_table).expect("wrangler.toml has environments");
    environments.iter().map(|(name, value)| (name, value.as_table().expect("an environment is a table")))
}

/// Keys at the top level that wrangler hands on to environments by itself.
const INHERITED: [&str; 9] = [
    "main",
    "compatibility_date",
    "compatibility_flags",
    "workers_dev",
    "preview_urls",
    "build",
    "observability",
    "name",
    "env",
];

#[test]
fn staging_and_production_are_there() {
    let configuration = configuration();
    let names: Vec<&String> = environments(&configuration).map(|(name, _)| name).collect();
    assert_eq!(names, ["production", "staging"]);
}

#[test]
fn every_environment_repeats_every_binding() {
    let configuration = configuration();
    for (name, environment) in environments(&configuration) {
        for (key, value) in configuration.iter().filter(|(key, _)| !INHERITED.contains(&key.as_str())) {
            let repeated = environment.get(key).unwrap_or_else(|| panic!("env.{name} lacks {key}"));
            // Resources (queues, buckets, variables) are an environment's own; names of bindings are the code's.
            assert_eq!(binding_names(repeated), binding_names(value), "env.{name}.{key} names other bindings");
        }
        for key in environment.keys().filter(|key| !OWN.contains(&key.as_str())) {
            assert!(configuration.contains_key(key), "env.{name} has {key}, and the top level has not");
        }
    }
}

#[test]
fn every_environment_has_the_same_objects_migrations_and_image() {
    let configuration = configuration();
    let image = |table: &Table| table.get("containers").and_then(|list| list.get(0)?.get("image").cloned());
    for (name, environment) in environments(&configuration) {
        for key in ["durable_objects", "migrations"] {
            assert_eq!(environment.get(key), configuration.get(key), "env.{name}.{key}");
        }
        assert_eq!(image(environment), image(&configuration), "env.{name}.containers.image");
    }
}

fn text<'a>(table: &'a Value, key: &str) -> &'a str {
    table.get(key).and_then(Value::as_str).unwrap_or_else(|| panic!("{table:?} has no {key}"))
}

/// Producers and consumers of an environment.
fn queues<'a>(table: &'a Table, key: &str) -> &'a Vec<Value> {
    let queues = table.get("queues").and_then(|queues| queues.get(key)?.as_array());
    queues.unwrap_or_else(|| panic!("an environment has queues.{key}"))
}

#[test]
fn every_environment_has_queues_of_its_own_with_the_same_settings() {
    let configuration = configuration();
    let all = [("cloudflare-ops".to_owned(), &configuration)];
    let named = environments(&configuration).map(|(name, table)| (format!("cloudflare-ops-{name}"), table));
    // Names apart, which say the environment.
    let settings = |name: &str, table: &Table| {
        let text = format!("{:?}{:?}", queues(table, "producers"), queues(table, "consumers"));
        text.replace(&format!("{name}-jobs"), "jobs")
    };
    for (name, table) in all.into_iter().chain(named) {
        assert_eq!(settings(&name, table), settings("cloudflare-ops", &configuration), "{name}");
        let [producer] = queues(table, "producers").as_slice() else { panic!("{name} has one producer") };
        let [jobs, dead] = queues(table, "consumers").as_slice() else { panic!("{name} has two consumers") };
        assert_eq!(text(producer, "queue"), text(jobs, "queue"));
        assert_eq!(text(jobs, "dead_letter_queue"), text(dead, "queue"));
        // By that the Worker knows it: `DEAD` in src/workers/queue.rs.
        assert_eq!(text(dead, "queue"), format!("{}-dead", text(jobs, "queue")));
        assert!(dead.get("dead_letter_queue").is_none());
    }
}

/// All `binding`, `name` and `class_name` values below a value, and the names of plain variables.
fn binding_names(value: &Value) -> Vec<String> {
    match value {
        Value::Table(table) => table
            .iter()
            .flat_map(|(key, value)| match value {
                Value::String(text) if matches!(key.as_str(), "binding" | "name" | "class_name") => vec![text.clone()],
                Value::Table(_) | Value::Array(_) => binding_names(value),
                _ if table.contains_key("binding") || table.contains_key("class_name") => Vec::new(),
                _ => vec![key.clone()],
            })
            .collect(),
        Value::Array(list) => list.iter().flat_map(binding_names).collect(),
        _ => Vec::new(),
    }
}
