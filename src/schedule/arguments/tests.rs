//! Calls that a schedule makes, and what it does not keep.

use serde_json::json;

use super::*;
use crate::doubles::NoWaiting;
use crate::error::ErrorCode;
use crate::guardrails::Role;
use crate::tools;

fn checked(tool: &str, given: Value) -> Result<Call> {
    let (registry, redactor) = (tools::registry(), Redactor::new(["a-known-secret"]));
    let facts = CallFacts { streams: true, registry: &registry, platform: &NoWaiting, redactor: &redactor };
    call(tool, given.as_object().unwrap(), &facts)
}

#[test]
fn a_call_is_one_that_its_tool_takes() {
    let call = checked("exec", json!({ "command": "make", "timeout": 5, "env": {} })).unwrap();
    assert_eq!((call.tool.as_str(), &call.recorded["command"]), ("exec", &json!("make")));
    assert_eq!(call.requirement.role, Role::Operator);
    let named = checked("exec", json!({ "command": "make", "secrets": { "TOKEN": "npm" } })).unwrap();
    assert_eq!(named.requirement.uses["/secrets/TOKEN"], "npm", "a secret is kept by its name");
    let step =
        |tool: &str, arguments: Value| json!({ "steps": [{ "name": "a", "tool": tool, "arguments": arguments }] });
    let pipeline = checked("runPipeline", step("exec", json!({ "command": "make" }))).unwrap();
    assert_eq!(pipeline.requirement.steps[0].requirement.tool, "exec");
    for (tool, given, message) in [
        ("nothing", json!({}), "tool: there is no tool \"nothing\""),
        ("exec", json!({}), "arguments.command: is required"),
        ("exec", json!({ "command": "a", "other": 1 }), "arguments.other: there is no such field"),
        ("exec", json!({ "command": "a", "dryRun": true }), "arguments.dryRun: a schedule acts"),
        ("exec", json!({ "command": "x".repeat(70_000) }), "arguments: have more than 65536 bytes"),
        ("setSecret", json!({ "name": "a", "value": "12345678" }), "tool: what setSecret is given is not stored"),
        ("runSchedule", json!({ "scheduleId": "a" }), "tool: runSchedule is not called by a schedule"),
        ("runPipeline", step("runSchedule", json!({ "scheduleId": "a" })), "tool: runSchedule is not called"),
        ("runPipeline", step("exec", json!({})), "arguments.steps.0.arguments.command: is required"),
    ] {
        let error = checked(tool, given).unwrap_err();
        assert!(error.message.starts_with(message) && error.code == ErrorCode::InvalidArguments, "{}", error.message);
    }
}

#[test]
fn what_may_be_secret_is_refused_by_its_field_and_never_repeated() {
    let step = |arguments: Value| json!({ "steps": [{ "name": "a", "tool": "exec", "arguments": arguments }] });
    let key = format!("curl -H cfo_default_{}_{}", "0".repeat(32), "a".repeat(64));
    for (tool, given, field) in [
        ("exec", json!({ "command": "a", "env": { "MODE": "x-hidden-x" } }), "arguments.env.MODE"),
        ("exec", json!({ "command": "a", "stdin": "x-hidden-x" }), "arguments.stdin"),
        ("writeFile", json!({ "sandboxId": "a", "path": "b", "content": "x-hidden-x" }), "arguments.content"),
        (
            "runPipeline",
            step(json!({ "command": "a", "env": { "A/B": "x-hidden-x" } })),
            "arguments.steps.0.arguments.env.A/B",
        ),
        ("createSandbox", json!({ "gitUrl": "https://u:x-hidden-x@host/a" }), "arguments.gitUrl"),
        ("exec", json!({ "command": "git clone https://x-hidden-x@host/a" }), "arguments.command"),
        ("exec", json!({ "command": key }), "arguments.command"),
        ("exec", json!({ "command": "echo a-known-secret" }), "arguments.command"),
    ] {
        let error = checked(tool, given).unwrap_err();
        assert!(error.message.starts_with(&format!("{field}: ")), "{}", error.message);
        assert!(!serde_json::to_string(&error).unwrap().contains("x-hidden-x"), "{error:?}");
    }
}
