//! What commands see of environment, directory and arguments.

use serde_json::json;

use crate::support::Host;

#[test]
fn a_value_arrives_exactly() {
    let host = Host::start();
    let value = "a b'c\"$HOME\n\u{e9}`id`";
    let exit = host.sandbox("a").exec(json!({"command": "printf %s \"$FOO\"", "env": {"FOO": value}}));
    assert_eq!(exit["stdout"]["data"], value);
}

#[test]
fn the_call_lies_over_the_sandbox_and_the_sandbox_over_the_base() {
    let host = Host::start();
    let sandbox = host.sandbox_with("a", json!({"sandboxId": "the-id", "env": {"A": "1", "B": "1", "LANG": "C"}}));
    let exit = sandbox.exec(json!({"command": "echo $A $B $LANG $SANDBOX_ID $HOME $TERM", "env": {"B": "2"}}));
    assert_eq!(exit["stdout"]["data"], "1 2 C the-id /workspace dumb\n");
}

#[test]
fn nothing_of_the_daemon_is_in_the_environment() {
    let host = Host::start();
    let names = host.sandbox("a").exec(json!({"argv": ["env"]}))["stdout"]["data"].as_str().expect("text").to_owned();
    let mut names: Vec<&str> = names.lines().filter_map(|line| line.split('=').next()).collect();
    names.sort_unstable();
    assert_eq!(names, ["HOME", "LANG", "PATH", "SANDBOX_ID", "TERM"]);
}

#[test]
fn values_are_in_no_process_list() {
    let host = Host::start();
    let sandbox = host.sandbox_with("a", json!({"sandboxId": "a", "env": {"S1": "s3cr3t-sandbox"}}));
    let exit = sandbox.exec(json!({"command": "ps auxww; cat /proc/*/cmdline", "env": {"S2": "s3cr3t-call"}}));
    assert!(!exit["stdout"]["data"].to_string().contains("s3cr3t"), "{exit}");
    assert!(crate::support::processes_with("s3cr3t-sandbox").is_empty());
}

#[test]
fn what_no_environment_can_hold_is_refused_by_name() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    for (env, field) in [
        (json!({"A=B": "x"}), "env.A=B"),
        (json!({"": "x"}), "env"),
        (json!({"A": "x\u{0}y"}), "env.A"),
        (json!({"A\u{0}": "x"}), "env.A"),
        (json!({"A": null}), "env.A"),
        (json!({"A": 5}), "env.A"),
    ] {
        sandbox.try_exec(json!({"argv": ["true"], "env": env})).refused(400, "invalid_arguments", field);
    }
    let reply = host.call("PUT", "/v1/sandboxes/b", br#"{"sandboxId":"b","env":{"A=B":"x"}}"#);
    reply.refused(400, "invalid_arguments", "env.A=B");
}

#[test]
fn a_directory_is_relative_to_the_workspace_or_absolute() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    sandbox.output("mkdir -p 'sub dir'");
    for (cwd, expected) in
        [("sub dir", "/workspace/sub dir\n"), ("/workspace", "/workspace\n"), ("/usr", "/usr\n"), ("", "/workspace\n")]
    {
        assert_eq!(sandbox.exec(json!({"argv": ["pwd"], "cwd": cwd}))["stdout"]["data"], expected);
    }
    for cwd in ["nowhere", "/etc/passwd", "a\u{0}b"] {
        sandbox.try_exec(json!({"argv": ["pwd"], "cwd": cwd})).refused(400, "invalid_arguments", "cwd");
    }
    // Each call begins anew.
    sandbox.output("cd /tmp");
    assert_eq!(sandbox.output("pwd"), "/workspace\n");
}

#[test]
fn arguments_are_not_touched_by_a_shell() {
    let host = Host::start();
    let arguments = ["printf", "%s|", "$HOME", "`id`", "a  b", "", "*", "-rf", "'\""];
    let exit = host.sandbox("a").exec(json!({"argv": arguments}));
    assert_eq!(exit["stdout"]["data"], "$HOME|`id`|a  b||*|-rf|'\"|");
}

#[test]
fn what_is_larger_than_the_system_takes_is_refused() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    sandbox.try_exec(json!({"command": "x".repeat(4 << 20)})).refused(400, "invalid_arguments", "command/argv/env");
    let env = json!({"A": "x".repeat(4 << 20)});
    sandbox.try_exec(json!({"argv": ["true"], "env": env})).refused(400, "invalid_arguments", "env");
}

#[test]
fn signals_and_descriptors_are_as_a_program_expects_them() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let status = sandbox.output("grep -E '^Sig(Ign|Blk)' /proc/self/status");
    assert!(status.lines().all(|line| line.ends_with("0000000000000000")), "{status}");
    assert_eq!(sandbox.exec(json!({"argv": ["ls", "/proc/self/fd"]}))["stdout"]["data"], "0\n1\n2\n3\n");
    assert_eq!(sandbox.output("yes | head -1; echo ${PIPESTATUS[0]}"), "y\n141\n");
}
