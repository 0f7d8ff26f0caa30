//! TypeScript: the types compile under `strict`, and a call written against them works.

use std::{process::Command, time::Duration};

use test_support::{Stack, node, project_root, scratch_folder};

use crate::tools::{description, run};

const LIMIT: Duration = Duration::from_secs(300);

fn npm_tool(script: &str) -> Command {
    let mut command = Command::new(node());
    command.arg(project_root().join("node_modules").join(script));
    command
}

#[test]
fn a_typescript_client_compiles_and_calls() {
    let folder = scratch_folder("typescript");
    let mut generate = npm_tool("openapi-typescript/bin/cli.js");
    generate.arg(description()).arg("--output").arg(folder.join("openapi.d.ts"));
    run(&mut generate, LIMIT, &folder.join("generate.log"));
    std::fs::write(folder.join("call.mts"), include_str!("typescript/call.mts")).unwrap();
    let mut compile = npm_tool("typescript/bin/tsc");
    compile.args(["--strict", "--target", "es2022", "--module", "nodenext", "--lib", "es2022,dom"]);
    compile.arg(folder.join("call.mts")).current_dir(&folder);
    run(&mut compile, LIMIT, &folder.join("compile.log"));
    let stack = Stack::shared();
    let mut call = Command::new(node());
    call.arg(folder.join("call.mjs")).env("TEST_URL", stack.client().base()).env("TEST_KEY", &stack.key);
    let output = run(&mut call, LIMIT, &folder.join("call.log"));
    assert_eq!(output, "exit 0, stdout 42, then destroyed; wrong input: invalid_arguments\n");
}
