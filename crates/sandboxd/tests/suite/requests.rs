//! Who may ask, and what may be asked.

use serde_json::json;

use crate::support::{Host, TOKEN, call};

#[test]
fn nothing_is_answered_without_the_token() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let control = format!("{}/v1/health", sandbox.prefix);
    for path in ["/v1/health", "/v1/sandboxes/a", "/nowhere", control.as_str()] {
        for headers in [
            vec![],
            vec![("authorization", "Bearer wrong-token-of-tests")],
            vec![("authorization", "Basic eDp5")],
            vec![("authorization", TOKEN)],
        ] {
            let reply = call(host.address, "GET", path, &headers, b"");
            reply.refused(401, "unauthenticated", "Authorization");
            assert_eq!(reply.header("www-authenticate"), "Bearer");
        }
    }
}

#[test]
fn wrong_fields_are_refused_by_name() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    for (request, field) in [
        (json!({"argv": ["true"], "timeoutMs": 0}), "timeoutMs"),
        (json!({"argv": ["true"], "timeoutMs": -1}), "timeoutMs"),
        (json!({"argv": ["true"], "timeoutMs": 1.5}), "timeoutMs"),
        (json!({"argv": ["true"], "timeoutMs": 1e15}), "timeoutMs"),
        (json!({"argv": ["true"], "timeoutMs": 86_400_001}), "timeoutMs"),
        (json!({"argv": ["true"], "timeoutMs": "5"}), "timeoutMs"),
        (json!({"argv": ["true"], "timeoutMs": null}), "timeoutMs"),
        (json!({"argv": []}), "argv"),
        (json!({"argv": [""]}), "argv"),
        (json!({"argv": ["echo", "a\u{0}b"]}), "argv[1]"),
        (json!({"argv": ["echo", 5]}), "argv[1]"),
        (json!({"command": "a\u{0}b"}), "command"),
        (json!({}), "command"),
        (json!({"command": "true", "argv": ["true"]}), "argv"),
        (json!({"argv": ["true"], "id": ""}), "id"),
        (json!({"argv": ["true"], "id": "a/b"}), "id"),
        (json!({"argv": ["true"], "id": "x".repeat(65)}), "id"),
        (json!({"argv": ["true"], "stdin": {"data": "%", "encoding": "base64"}}), "stdin.data"),
        (json!({"argv": ["true"], "stdin": {"data": "x", "encoding": "latin-1"}}), "stdin.encoding"),
        (json!({"argv": ["true"], "onDisconnect": "explode"}), "onDisconnect"),
        (json!({"argv": ["true"], "leaseMs": 0}), "leaseMs"),
        (json!({"argv": ["true"], "nosuch": 1}), "nosuch"),
    ] {
        sandbox.try_exec(request).refused(400, "invalid_arguments", field);
    }
    for body in ["", "hello", "[]", "{", "{} {}"] {
        let reply = sandbox.call("POST", "/v1/execs", &[], body.as_bytes());
        assert_eq!((reply.status, reply.json()["code"].as_str()), (400, Some("invalid_arguments")), "{body}");
    }
}

#[test]
fn a_body_that_is_too_large_is_413() {
    let host = Host::start();
    let body = format!(r#"{{"id":"a","command":"{}"}}"#, "x".repeat(17 << 20));
    let reply = host.sandbox("a").call("POST", "/v1/execs", &[], body.as_bytes());
    reply.refused(413, "payload_too_large", "body");
}

#[test]
fn a_request_for_another_boot_does_nothing() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let body = br#"{"id":"a","command":"touch made","timeoutMs":1000}"#;
    let reply = sandbox.call("POST", "/v1/execs", &[("x-sandbox-boot-id", "another")], body);
    reply.refused(410, "stale_generation", "x-sandbox-boot-id");
    assert_eq!(reply.header("x-sandbox-boot-id"), sandbox.boot_id);
    assert_eq!(sandbox.get("made").status, 404);
    let reply = sandbox.call("POST", "/v1/execs", &[("x-sandbox-boot-id", &sandbox.boot_id)], body);
    assert_eq!(reply.status, 200);
    assert_eq!(sandbox.get("made").status, 200);
}

#[test]
fn every_answer_names_the_boot() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    for (method, path) in
        [("GET", "/v1/health"), ("GET", "/v1/nowhere"), ("GET", "/v1/files/none"), ("POST", "/v1/execs")]
    {
        assert_eq!(sandbox.call(method, path, &[], b"").header("x-sandbox-boot-id"), sandbox.boot_id, "{path}");
    }
}

#[test]
fn unknown_routes_and_methods_are_told_apart() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    sandbox.call("GET", "/v1/nowhere", &[], b"").refused(404, "not_found", "route");
    assert_eq!(sandbox.call("DELETE", "/v1/health", &[], b"").status, 405);
    assert_eq!(host.call("POST", "/v1/health", b"").status, 405);
}

#[test]
fn metrics_tell_what_is_used() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let mut events = sandbox.stream(json!({"command": "while :; do :; done"}));
    events.next();
    sandbox.call("GET", "/v1/metrics", &[], b"");
    crate::support::eventually("a busy processor", || {
        let metrics = sandbox.call("GET", "/v1/metrics", &[], b"").json();
        assert!(metrics["memoryMb"].as_f64().is_some_and(|value| value > 1.0));
        assert!(metrics["diskFreeBytes"].as_u64().is_some_and(|value| value > 0));
        metrics["processes"] == 3 && metrics["cpuPercent"].as_f64().is_some_and(|value| value > 1.0)
    });
}

#[test]
fn an_exec_that_is_forgotten_does_not_run_again() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let first = json!({"id": "first", "command": "echo x >> runs"});
    sandbox.exec(first.clone());
    for _ in 0..513 {
        sandbox.exec(json!({"argv": ["true"]}));
    }
    sandbox.try_exec(first).refused(404, "not_found", "id");
    assert_eq!(sandbox.output("wc -l < runs"), "1\n");
}

#[test]
fn an_exec_that_is_forbidden_before_it_began_never_begins() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let forbid = |id: &str| sandbox.call("POST", &format!("/v1/execs/{id}/forbid"), &[], b"").json()["began"].clone();
    assert_eq!((forbid("late"), forbid("late")), (json!(false), json!(false)));
    let late = json!({"id": "late", "command": "echo x >> runs"});
    sandbox.try_exec(late).refused(404, "not_found", "forbade");
    // One that began is as it was, while it runs and after its end.
    let begun = json!({"id": "begun", "command": "echo y >> runs; until [ -e go ]; do sleep .02; done"});
    let mut running = sandbox.stream(begun.clone());
    running.next();
    assert_eq!(forbid("begun"), true);
    sandbox.put("go", b"");
    assert_eq!(sandbox.exec(begun)["exitCode"], 0, "it is told of again");
    assert_eq!(forbid("begun"), true);
    assert_eq!(sandbox.output("cat runs"), "y\n");
}
