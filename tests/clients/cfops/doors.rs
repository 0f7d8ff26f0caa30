//! The command line is a door like the others: the same tools, names and values.

use serde_json::{Value, json};
use test_support::{CASES, ENVIRONMENT, Expected, Stack};

use super::Home;

#[tokio::test]
async fn the_calls_of_the_table_give_what_they_give_everywhere() {
    let (home, stack) = (Home::logged_in(), Stack::shared());
    let environment: Value = serde_json::from_str(ENVIRONMENT).unwrap();
    let sandbox = stack.sandbox_with(json!({"env": environment})).await;
    for case in CASES {
        let mut arguments: Value = serde_json::from_str(case.arguments).unwrap();
        arguments["sandboxId"] = json!(sandbox.id);
        let ran = home.run_with(&["--json", "call", case.tool, "--input", "-"], arguments.to_string().as_bytes());
        match case.expected {
            Expected::Output(fields) => {
                let output: Value = serde_json::from_str(&ran.ok()).unwrap();
                let fields: Value = serde_json::from_str(fields).unwrap();
                for (field, value) in fields.as_object().unwrap() {
                    assert_eq!(&output[field], value, "{}: {field} in {output}", case.name);
                }
            }
            Expected::Problem(status, code) => {
                assert_ne!(ran.code(), 0, "{}", case.name);
                let problem: Value = serde_json::from_str(&ran.stderr()).unwrap();
                assert_eq!((&problem["status"], &problem["code"]), (&json!(status), &json!(code)), "{}", case.name);
            }
        }
    }
}

#[tokio::test]
async fn a_tool_has_its_command_its_name_and_its_aliases() {
    let (home, sandbox) = (Home::logged_in(), Stack::shared().sandbox().await);
    let listed = |words: &[&str]| home.json(words)["sandboxes"].to_string().contains(&sandbox.id);
    for name in ["listSandboxes", "list-sandboxes", "sandboxes.list", "sandboxes:list"] {
        assert!(listed(&["call", name]) && listed(&["cli", name, "--status", "running"]), "{name}");
        assert!(!listed(&["call", name, "--owner", "nobody"]), "{name}: its flags are those of the tool");
    }
    assert!(listed(&["list-sandboxes"]) && listed(&["listSandboxes"]));
    let help = home.run(&["cli", "sandboxes:list", "--help"]).ok();
    assert!(help.contains("--created-after") && help.contains("listSandboxes"), "{help}");
    // The service knows the aliases by itself, for every door.
    let answer = sandbox.client.call("sandboxes.list", &json!({})).await.ok();
    assert!(answer["sandboxes"].to_string().contains(&sandbox.id));
}

#[tokio::test]
async fn every_tool_is_a_command_whose_flags_are_its_fields() {
    let home = Home::logged_in();
    let tools = Stack::shared().client().get("/v1/tools").await.ok();
    let kebab = |name: &str| {
        let parts = name.chars().map(|letter| match letter.is_ascii_uppercase() {
            true => format!("-{}", letter.to_ascii_lowercase()),
            false => letter.to_string(),
        });
        parts.collect::<String>()
    };
    for tool in tools["tools"].as_array().unwrap() {
        let name = tool["name"].as_str().unwrap();
        // A value is in no argument: it has a command of its own.
        let is_secret = name == "setSecret";
        let help =
            if is_secret { home.run(&["secrets", "set", "--help"]) } else { home.run(&[&kebab(name), "--help"]) };
        let help = help.ok();
        for field in tool["inputSchema"]["properties"].as_object().unwrap().keys() {
            let given = (name, field.as_str()) == ("exec", "command") || (is_secret && field != "description");
            assert!(given || help.contains(&format!("--{}", kebab(field))), "{name} has no flag for {field}:\n{help}");
        }
    }
}
