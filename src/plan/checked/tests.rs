//! Pipelines that are refused before anything of them runs.

use serde_json::json;

use super::*;
use crate::doubles::NoWaiting;
use crate::guardrails::Role;
use crate::tenant::permissions::Permissions;
use crate::tools;
use redaction::Redactor;

fn steps(value: Value) -> Vec<Step> {
    serde_json::from_value(value).unwrap()
}

fn checked(value: Value) -> Result<()> {
    let (registry, redactor) = (tools::registry(), Redactor::new(Vec::<String>::new()));
    let facts = CallFacts { streams: true, registry: &registry, platform: &NoWaiting, redactor: &redactor };
    check(&steps(value), &facts)
}

#[test]
fn a_wrong_step_is_named_with_its_field() {
    let fine = json!({ "name": "a", "tool": "exec", "arguments": { "command": "true" }, "expect": { "exitCode": 1 } });
    assert_eq!(checked(json!([fine])), Ok(()));
    let with = |name: &str, value: Value| {
        let mut step = fine.clone();
        step["name"] = json!("b");
        step[name] = value;
        checked(json!([fine, step])).unwrap_err()
    };
    let many: Vec<Value> =
        (0..51).map(|number| json!({ "name": format!("s{number}"), "tool": "listSandboxes" })).collect();
    let table = [
        (with("arguments", json!({})), "steps.1.arguments.command: is required"),
        (with("arguments", json!({ "command": 5 })), "steps.1.arguments.command: the value is not"),
        (with("arguments", json!({ "command": "a", "other": 1 })), "steps.1.arguments.other: there is no such field"),
        (with("arguments", json!({ "command": "a\0" })), "steps.1.arguments.command: holds a NUL"),
        (with("arguments", json!({ "command": "a", "dryRun": true })), "steps.1.arguments.dryRun: a step acts"),
        (with("tool", json!("nothing")), "steps.1.tool: there is no tool \"nothing\""),
        (with("tool", json!("runPipeline")), "steps.1.tool: runPipeline is a pipeline"),
        (with("name", json!("a")), "steps.1.name: is the name of another step"),
        (with("expect", json!({ "exit": 0 })), "steps.1.expect.exit: is no field of what exec answers"),
        (with("rollBack", json!({ "tool": "exec" })), "steps.1.rollBack.arguments.command: is required"),
        (checked(json!([])).unwrap_err(), "steps: has 1 to 50"),
        (checked(json!(many)).unwrap_err(), "steps: has 1 to 50"),
    ];
    for (error, text) in table {
        assert!(
            error.message.starts_with(text) && error.code == ErrorCode::InvalidArguments,
            "{text}: {}",
            error.message
        );
    }
    let error = with("arguments", json!({}));
    assert_eq!(error.details["violations"][0]["pointer"], "/steps/1/arguments/command");
}

#[test]
fn a_pipeline_asks_for_what_its_steps_ask_for() {
    let registry = tools::registry();
    let arguments = json!({ "steps": [
        { "name": "a", "tool": "listSandboxes" },
        { "name": "b", "tool": "readFile", "rollBack": { "tool": "exec", "arguments": { "command": "true" } } },
    ] });
    let requirement = registry.get("runPipeline").unwrap().requirement(&arguments, &registry);
    let asked: Vec<_> =
        requirement.steps.iter().map(|step| (step.pointer.as_str(), step.requirement.tool.as_str())).collect();
    let expected =
        [("/steps/0/tool", "listSandboxes"), ("/steps/1/tool", "readFile"), ("/steps/1/rollBack/tool", "exec")];
    assert_eq!(asked, expected);
    assert_eq!(Permissions::of(Role::Operator).check(&requirement), Ok(()));
    let tools = ["runPipeline", "listSandboxes", "readFile"].map(str::to_owned).into();
    let without = Permissions { tools: Some(tools), ..Permissions::of(Role::Operator) };
    let error = without.check(&requirement).unwrap_err();
    assert_eq!(
        (error.code, error.message.as_str()),
        (ErrorCode::Forbidden, "steps.1.rollBack.tool: exec is not among the tools of this key")
    );
    // A template asks for what its steps ask for.
    let template = json!({ "gitUrl": "https://host/app", "build": "make" });
    let requirement = registry.get("deployPipeline").unwrap().requirement(&template, &registry);
    let asked: Vec<_> = requirement.steps.iter().map(|step| step.requirement.tool.as_str()).collect();
    assert_eq!(asked, ["createSandbox", "exec"]);
}

#[test]
fn what_a_tool_keeps_out_of_the_audit_a_step_keeps_out_too() {
    let arguments = json!({ "command": "true", "env": { "A": "x" } });
    let steps = steps(json!([
        { "name": "a", "tool": "listSandboxes" },
        { "name": "b", "tool": "exec", "arguments": arguments, "rollBack": { "tool": "exec", "arguments": arguments } },
    ]));
    let pointers = unrecorded(&steps, &tools::registry());
    for pointer in ["/steps/1/arguments/env", "/steps/1/rollBack/arguments/env"] {
        assert!(pointers.iter().any(|one| one == pointer), "{pointers:?}");
    }
}
