//! Secrets at the command line: their values come from standard input, and are told nowhere.

use serde_json::json;
use test_support::{Stack, random_name};

use super::Home;

#[tokio::test]
async fn a_value_is_read_from_standard_input_and_used_by_name() {
    let (home, sandbox) = (Home::logged_in(), Stack::shared().sandbox().await);
    let (name, value) = (random_name("secret"), random_name("value"));
    let ran = home.run_with(&["secrets", "set", &name, "--description", "of a test"], format!("{value}\n").as_bytes());
    assert!(ran.ok().contains(&name) && !ran.stdout().contains(&value) && !ran.stderr().contains(&value), "{ran:?}");
    let listed = home.json(&["list-secrets", "--limit", "500"]);
    let found = listed["secrets"].as_array().unwrap().iter().find(|secret| secret["name"] == name.as_str());
    assert_eq!(found.unwrap()["description"], "of a test");
    let secrets = format!("V={name}");
    let exec = |command: &str| home.run(&["exec", "-s", &sandbox.id, "--secrets", &secrets, command]).ok();
    assert_eq!(exec("echo \"$V\""), "[redacted]\n");
    assert_eq!(exec("echo \"${V%?}\""), format!("{}\n", &value[..value.len() - 1]), "the line's end is no part of it");
    // No command has a flag that would take a value.
    home.run(&["set-secret", "--name", &name, "--value", &value]).failed(2);
    assert!(home.run_with(&["secrets", "set", &name], b"short").failed(2).contains("value"));
    home.run(&["delete-secret", "--name", &name]).ok();
    let gone = sandbox.call("exec", json!({ "command": "true", "secrets": { "V": name } })).await;
    gone.problem(400, "invalid_arguments");
}
