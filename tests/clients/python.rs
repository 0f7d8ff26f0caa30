//! Python: openapi-python-client understands the description, its package compiles, and a call through it works.

use std::{process::Command, time::Duration};

use test_support::{Stack, scratch_folder};

use crate::{
    environment::Environment,
    tools::{description, run},
};

const LIMIT: Duration = Duration::from_secs(300);

#[test]
fn a_python_client_compiles_and_calls() {
    let folder = scratch_folder("python-client");
    let package = folder.join("cloudflare_ops_client");
    let mut generate = Command::new(Environment::Clients.python());
    // Warnings fail: they tell of operations that the generator had to leave out.
    generate.args(["-m", "openapi_python_client", "generate", "--meta", "none", "--fail-on-warning", "--config"]);
    generate.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/python/generator.yaml")).arg("--path");
    generate.arg(description()).arg("--output-path").arg(&package).current_dir(&folder);
    // The generator formats what it wrote with the ruff of its own environment.
    let tools = Environment::Clients.python().parent().expect("Python lies in a folder");
    let path = std::env::var("PATH").unwrap_or_default();
    generate.env("PATH", format!("{}:{path}", tools.display()));
    run(&mut generate, LIMIT, &folder.join("generate.log"));
    let mut compile = Command::new(Environment::Clients.python());
    compile.args(["-W", "error", "-m", "compileall", "-q"]).arg(&package);
    run(&mut compile, LIMIT, &folder.join("compile.log"));
    let stack = Stack::shared();
    let mut call = Command::new(Environment::Clients.python());
    call.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/python/call.py"))
        .env("PYTHONPATH", &folder)
        .env("TEST_URL", stack.client().base())
        .env("TEST_KEY", &stack.key);
    let output = run(&mut call, LIMIT, &folder.join("call.log"));
    assert_eq!(output, "exit 0, stdout 42, then destroyed; wrong sandbox: not_found\n");
}
