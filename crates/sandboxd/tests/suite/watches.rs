//! Watching: what happens is told, in its order, and the end says why.

use serde_json::{Value, json};

use crate::support::{Events, Host, Sandbox, eventually};

fn watch(sandbox: &Sandbox, path: &str) -> Events {
    ready(sandbox.events("GET", &format!("/v1/watches/{path}"), b""))
}

fn ready(mut events: Events) -> Events {
    assert_eq!(events.next(), Some(("ready".to_owned(), json!({}))));
    events
}

/// A watch of the workspace, as soon as there is a place for one.
fn watch_in_turn(sandbox: &Sandbox) -> Events {
    let mut found = None;
    eventually("a place for a watch", || {
        match sandbox.try_events("GET", "/v1/watches/", b"") {
            Ok(events) => found = Some(events),
            Err(status) => assert_eq!(status, 503),
        }
        found.is_some()
    });
    ready(found.expect("a watch"))
}

/// Changes until the entry `path` is created, as `kind path` or `kind from>path`.
fn until(events: &mut Events, path: &str) -> Vec<String> {
    let mut changes = Vec::new();
    loop {
        let (name, data) = events.next().expect("the stream goes on");
        assert_eq!(name, "change", "{data}");
        if data["path"] == path && data["kind"] == "created" {
            return changes;
        }
        changes.push(told(&data));
    }
}

fn told(data: &Value) -> String {
    let text = |field: &str| data[field].as_str().unwrap_or_default().to_owned();
    match data.get("from") {
        Some(_) => format!("{} {}>{}", text("kind"), text("from"), text("path")),
        None => format!("{} {}", text("kind"), text("path")),
    }
}

#[test]
fn what_happens_in_a_directory_is_told() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    sandbox.output("mkdir d; touch d/old; mkdir d/sub");
    let mut events = watch(&sandbox, "d");
    sandbox.output("echo x > d/new; chmod 600 d/old; mv d/new d/moved; rm d/old; touch d/sub/unseen; touch d/end");
    let changes = until(&mut events, "d/end");
    for expected in ["created d/new", "modified d/new", "modified d/old", "renamed d/new>d/moved", "deleted d/old"] {
        assert!(changes.iter().any(|change| change == expected), "{expected}: {changes:?}");
    }
    assert!(!changes.iter().any(|change| change.contains("unseen")), "{changes:?}");
    sandbox.output(r"touch $'d/\xff'; touch d/end2");
    assert_eq!(until(&mut events, "d/end2")[..2], ["modified d/end", "created d/%FF"]);
}

#[test]
fn a_recursive_watch_follows_what_appears() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    sandbox.output("mkdir -p d/a/b other/in; touch other/in/f");
    let mut events = watch(&sandbox, "?recursive=true");
    sandbox.output("touch d/a/b/1; mkdir -p new/x/y; touch new/x/y/2; touch end1");
    let changes = until(&mut events, "end1");
    for expected in ["created d/a/b/1", "created new", "created new/x", "created new/x/y", "created new/x/y/2"] {
        let times = changes.iter().filter(|change| *change == expected).count();
        assert_eq!(times, 1, "{expected}: {changes:?}");
    }
    // A directory that moves takes its watches along, one that goes loses them.
    sandbox
        .output("mv d/a moved; touch moved/b/3; mv other /tmp/gone; touch /tmp/gone/in/unseen; rm -r new; touch end2");
    let changes = until(&mut events, "end2");
    for expected in ["renamed d/a>moved", "created moved/b/3", "deleted new/x/y/2", "deleted new"] {
        assert!(changes.iter().any(|change| change == expected), "{expected}: {changes:?}");
    }
    sandbox.output("touch end3");
    let rest = until(&mut events, "end3");
    assert!(changes.iter().chain(&rest).any(|change| change == "deleted other"), "{changes:?} {rest:?}");
    assert!(!changes.iter().chain(&rest).any(|change| change.contains("unseen")), "{changes:?}");
}

#[test]
fn files_written_over_the_api_are_told_by_their_own_names() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    sandbox.put("f", b"1");
    let mut events = watch(&sandbox, "");
    sandbox.put("f", b"2");
    assert_eq!(events.next().map(|(_, data)| told(&data)).as_deref(), Some("created f"));
    sandbox.call("PUT", "/v1/files/g", &[("content-range", "bytes 0-0/2")], b"a");
    sandbox.call("PUT", "/v1/files/g", &[("content-range", "bytes 1-1/2")], b"b");
    let told: Vec<String> = until(&mut events, "g");
    assert!(!told.iter().any(|change| change.contains("upload")), "{told:?}");
}

#[test]
fn one_file_is_watched_by_its_name() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    sandbox.output("touch f other");
    let mut events = watch(&sandbox, "f");
    sandbox.output("echo > other; echo > f; rm f; touch f");
    // The file is emptied and then written to, which the kernel tells as one where nobody has read in between.
    let mut changes = until(&mut events, "f");
    changes.dedup();
    assert_eq!(changes, ["modified f", "deleted f"]);
    sandbox.call("GET", "/v1/watches/none", &[], b"").refused(404, "not_found", "path");
}

#[test]
fn the_end_of_a_watch_says_why() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    sandbox.output("mkdir d");
    let mut events = watch(&sandbox, "d");
    sandbox.output("rmdir d");
    assert_eq!(events.next(), Some(("end".to_owned(), json!({"reason": "gone"}))));
    assert_eq!(events.next(), None);
    let mut events = watch(&sandbox, "?timeoutMs=300");
    assert_eq!(events.next(), Some(("end".to_owned(), json!({"reason": "timeout"}))));
    assert_eq!(events.next(), None);
}

#[test]
fn more_than_can_be_told_is_told() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let mut events = watch(&sandbox, "");
    // Nobody reads meanwhile: the kernel's queue is bounded, and so is what is on its way.
    let program = "import os\nfor i in range(60000):\n  n = f'{i:0200}'\n  os.close(os.open(n, os.O_CREAT | os.O_WRONLY))\n  os.unlink(n)";
    let exit = sandbox.exec(json!({"argv": ["python3", "-c", program], "timeoutMs": 100_000}));
    assert_eq!(exit["exitCode"], 0, "{exit}");
    let end = loop {
        let (name, data) = events.next().expect("an end comes");
        if name == "end" {
            break data;
        }
    };
    assert_eq!(end, json!({"reason": "overflow"}));
    assert_eq!(events.next(), None);
}

#[test]
fn heartbeats_come_when_nothing_happens_and_a_reader_that_left_frees_its_place() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let mut events = watch(&sandbox, "");
    assert_eq!(events.next_of_any_kind().map(|(name, _)| name).as_deref(), Some("heartbeat"));
    drop(events);
    for _ in 0..3 {
        let held: Vec<Events> = (0..8).map(|_| watch_in_turn(&sandbox)).collect();
        drop(held);
    }
    let held: Vec<Events> = (0..12).map(|_| watch_in_turn(&sandbox)).collect();
    assert_eq!(held.len(), 12);
}
