//! Stopping a sandbox, whether it is in use, and a new environment while it runs.

use serde_json::json;

use crate::support::{Host, children, daemons, eventually, mark, signal, sleepers};

#[test]
fn stopping_ends_the_processes_and_keeps_the_files() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    sandbox.put("f", b"kept");
    let seconds = mark();
    sandbox.output(&format!("setsid sleep {seconds} >/dev/null 2>&1 &"));
    let stopped = host.call("POST", "/v1/sandboxes/a/stop", b"");
    assert_eq!(stopped.status, 200, "{}", stopped.text());
    assert!(stopped.json()["processes"].as_u64().is_some_and(|count| count >= 2), "{}", stopped.text());
    assert!(sleepers(&seconds).is_empty());
    assert!(daemons(&host).is_empty());
    assert_eq!(host.call("GET", "/v1/health", b"").json()["sandboxes"], 0);
    for name in ["a", "never-there"] {
        let again = host.call("POST", &format!("/v1/sandboxes/{name}/stop"), b"");
        assert_eq!((again.status, again.json()), (200, json!({"processes": 0})));
    }
    let second = host.sandbox("a");
    assert_ne!(second.boot_id, sandbox.boot_id);
    assert_eq!(second.get("f").body, b"kept");
}

#[test]
fn a_start_right_after_the_daemons_end_finds_no_dead_one() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    sandbox.put("f", b"kept");
    // Its parent stands still, so that nobody hears of the end.
    signal(children(host.pid())[0], "STOP");
    signal(daemons(&host)[0], "KILL");
    eventually("nobody answers", || sandbox.try_exec(json!({"command": "true"})).status == 404);
    let second = host.call("PUT", "/v1/sandboxes/a", br#"{"sandboxId":"a"}"#);
    assert_eq!((second.status, &second.json()["started"]), (200, &json!(true)), "{}", second.text());
    assert_ne!(second.json()["bootId"], sandbox.boot_id);
    assert_eq!(daemons(&host).len(), 1, "the first one is gone");
    assert_eq!(host.sandbox("a").get("f").body, b"kept");
}

#[test]
fn stops_starts_and_deletes_at_once_are_in_order() {
    let host = Host::start();
    host.sandbox("a");
    std::thread::scope(|scope| {
        for number in 0..12 {
            let host = &host;
            scope.spawn(move || {
                let reply = match number % 3 {
                    0 => host.delete("a"),
                    1 => host.call("PUT", "/v1/sandboxes/a", br#"{"sandboxId":"a"}"#),
                    _ => host.call("POST", "/v1/sandboxes/a/stop", b""),
                };
                assert_eq!(reply.status, 200, "{}", reply.text());
            });
        }
    });
    assert_eq!(host.delete("a").status, 200);
    assert!(daemons(&host).is_empty());
}

#[test]
fn a_running_exec_and_an_open_stream_are_activity_and_questions_are_not() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let activity = || sandbox.call("GET", "/v1/activity", &[], b"").json();
    sandbox.output("true");
    // The daemon may be a little behind the last byte of its answer.
    eventually("nothing is under way", || {
        let idle = activity();
        idle["execs"] == 0 && idle["requests"] == 0
    });
    eventually("idle time passes while it is asked", || {
        sandbox.call("GET", "/v1/health", &[], b"");
        sandbox.call("GET", "/v1/metrics", &[], b"");
        activity()["idleMs"].as_u64().is_some_and(|milliseconds| milliseconds >= 300)
    });
    let mut events = sandbox.stream(json!({"id": "x", "command": "echo up; read _ < <(sleep 9882)"}));
    events.next();
    events.next();
    let busy = activity();
    assert_eq!((&busy["execs"], &busy["requests"], &busy["idleMs"]), (&json!(1), &json!(1), &json!(0)));
    sandbox.call("POST", "/v1/execs/x/kill", &[], b"{}");
    while events.next().is_some() {}
    eventually("it is idle again", || {
        let now = activity();
        now["execs"] == 0 && now["requests"] == 0
    });
    assert!(activity()["idleMs"].as_u64().is_some_and(|milliseconds| milliseconds < 20_000));
}

#[test]
fn a_new_environment_holds_from_the_next_command_on() {
    let host = Host::start();
    let sandbox = host.sandbox_with("a", json!({"sandboxId": "a", "env": {"OLD": "1", "BOTH": "old"}}));
    let set = |body: &str| sandbox.call("PUT", "/v1/environment", &[], body.as_bytes());
    assert_eq!(set(r#"{"env":{"BOTH":"new","NEW":"2"}}"#).status, 200);
    assert_eq!(
        sandbox.output("echo ${OLD-none} $BOTH $NEW $SANDBOX_ID; echo $PATH | grep -c /bin"),
        "none new 2 a\n1\n"
    );
    let call = sandbox.exec(json!({"command": "echo $BOTH", "env": {"BOTH": "call"}}));
    assert_eq!(call["stdout"]["data"], "call\n");
    set(r#"{"env":{"A=B":"s3cret"}}"#).refused(400, "invalid_arguments", "env");
    assert_eq!(sandbox.output("echo $BOTH"), "new\n", "a refused change changes nothing");
}
