//! What is secret in an environment is masked in whatever commands write, and nowhere else.

use serde_json::json;

use crate::support::{Host, decode, eventually};

const SECRET: &str = "s3cr3t-value-0123456789";

#[test]
fn a_secret_is_masked_however_it_is_written() {
    let host = Host::start();
    let sandbox = host
        .sandbox_with("a", json!({"sandboxId": "a", "env": {"A_TOKEN": SECRET, "PLAIN": "plain-value-0123456789"}}));
    let pieces = r#"printf "<${T:0:5}"; sleep .2; printf "${T:5:9}"; sleep .2; printf "${T:14}>""#;
    for (command, expected) in [
        ("echo $A_TOKEN$A_TOKEN", "[redacted][redacted]\n".to_owned()),
        ("printf %s $A_TOKEN | base64 -w0", "[redacted]".to_owned()),
        ("printf %s $A_TOKEN | od -An -v -tx1 | tr -d ' \\n'", "[redacted]".to_owned()),
        ("echo $PLAIN", "plain-value-0123456789\n".to_owned()),
        ("echo ${A_TOKEN%9}", format!("{}\n", &SECRET[..SECRET.len() - 1])),
        (&format!("T=$A_TOKEN; {pieces}"), "<[redacted]>".to_owned()),
    ] {
        let (stdout, _, exit) = sandbox.stream(json!({"command": command})).finish();
        assert_eq!(String::from_utf8_lossy(&stdout), expected, "{command}");
        assert_eq!(
            (&exit["stdout"]["data"], &exit["stdout"]["totalBytes"]),
            (&json!(expected), &json!(expected.len()))
        );
    }
    let exit = sandbox.exec(json!({"command": "printf \"\\377$A_TOKEN\"; echo $A_TOKEN >&2"}));
    assert_eq!(
        (decode(&exit["stdout"]), &exit["stderr"]["data"]),
        (b"\xff[redacted]".to_vec(), &json!("[redacted]\n"))
    );
    // It lies where the head of what is kept ends: cut first, half of it would have been told.
    let long = json!({"command": "head -c 490 /dev/zero | tr '\\0' a; echo $A_TOKEN; head -c 5000 /dev/zero", "outputLimitBytes": 1000});
    let told = sandbox.exec(long)["stdout"]["data"].to_string();
    assert!(!told.contains("s3cr3t") && told.contains("left out"), "{told}");
}

#[test]
fn the_variables_of_a_call_and_those_that_are_listed_are_secret_too() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let env = json!({"DB_URL": SECRET, "MY_PASSWORD": "0123456789-password", "SHORT_TOKEN": "short", "SANDBOX_SECRETS": "X, DB_URL"});
    let exit = sandbox.exec(json!({"command": "echo $DB_URL $MY_PASSWORD $SHORT_TOKEN", "env": env}));
    assert_eq!(exit["stdout"]["data"], "[redacted] [redacted] short\n");
    // Without the variable it is a text like any other.
    assert_eq!(sandbox.output(&format!("echo {SECRET}")), format!("{SECRET}\n"));
    // A command whose own variable lies over the sandbox's finds the other value, and that stays secret.
    let set = json!({"env": {"DB_URL": SECRET, "SANDBOX_SECRETS": "DB_URL"}});
    assert_eq!(sandbox.call("PUT", "/v1/environment", &[], set.to_string().as_bytes()).status, 200);
    let over = json!({"command": format!("echo $DB_URL {SECRET}"), "env": {"DB_URL": "mine-mine-mine", "SANDBOX_SECRETS": ""}});
    assert_eq!(sandbox.exec(over)["stdout"]["data"], "mine-mine-mine [redacted]\n");
    // Files are exact.
    sandbox.output("printf %s $DB_URL > f");
    assert_eq!(sandbox.get("f").body, SECRET.as_bytes());
}

#[test]
fn a_secret_is_in_no_log_of_a_process_and_no_list() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let command =
        format!("printf \"${{T_TOKEN:0:7}}\"; sleep .3; echo ${{T_TOKEN:7}}; echo $T_TOKEN >&2; read x # {SECRET}");
    let id = sandbox.start(json!({"name": "x", "command": command, "env": {"T_TOKEN": SECRET}, "keepStdin": true}));
    let whole = "[redacted]\n[redacted]\n";
    eventually("it has written", || sandbox.of(&id, "")["logBytes"] == whole.len());
    for offset in 0..whole.len() {
        let logs = sandbox.of(&id, &format!("/logs?offset={offset}"));
        assert!(!logs.to_string().contains("value-01"), "{logs}");
    }
    let mut events = sandbox.follow(&id, "/logs?offset=0");
    assert_eq!(events.next().expect("output").1["data"], "[redacted]\n");
    let waited = sandbox.of(&id, "/wait?timeoutMs=10000&pattern=redacted");
    assert_eq!(waited["line"]["text"], "[redacted]", "{waited}");
    let listed = sandbox.call("GET", "/v1/processes", &[], b"").text();
    assert!(listed.contains("[redacted]") && !listed.contains(SECRET), "{listed}");
    sandbox.end(&id);
}
