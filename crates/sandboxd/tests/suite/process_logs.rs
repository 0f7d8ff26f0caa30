//! Logs of background processes and waits for them.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::{Host, daemons, decode, eventually, resident_bytes};

#[test]
fn logs_are_read_by_offset_and_both_channels_share_the_count() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let command = r"printf 'caf\303'; read x; printf '\251'; read x; printf 'err' >&2; read x; printf '\377\376'";
    let id = sandbox.start(json!({"name": "x", "command": command, "keepStdin": true}));
    // Each part is read before the next one is written. The character counts once it is whole.
    for bytes in [3u64, 5, 8] {
        eventually("a part", || sandbox.of(&id, "")["logBytes"] == bytes);
        sandbox.tell(&id, "input", json!({"data": {"data": "\n"}}));
    }
    sandbox.of(&id, "/wait?timeoutMs=90000");
    let logs = sandbox.of(&id, "/logs");
    let told: Vec<_> =
        logs["chunks"].as_array().expect("chunks").iter().map(|it| (&it["channel"], &it["offset"])).collect();
    assert_eq!(told, [(&json!("stdout"), &json!(0)), (&json!("stderr"), &json!(5)), (&json!("stdout"), &json!(8))]);
    assert_eq!(logs["chunks"][0]["data"], "café");
    assert_eq!(decode(&logs["chunks"][2]), [0xff, 0xfe]);
    let part = sandbox.of(&id, "/logs?offset=5&limitBytes=2");
    assert_eq!(
        (&part["chunks"][0]["data"], &part["nextOffset"], &part["ended"]),
        (&json!("er"), &json!(7), &json!(false))
    );
    let end = sandbox.of(&id, "/logs?offset=10");
    assert_eq!((&end["chunks"], &end["ended"]), (&json!([]), &json!(true)));
}

#[test]
fn a_chatty_process_takes_bounded_memory_and_late_readers_are_told() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let ids: Vec<String> = (0..4).map(|_| sandbox.start(json!({"name": "yes", "argv": ["yes", "chatter"]}))).collect();
    eventually("much output", || ids.iter().all(|id| sandbox.of(id, "")["logBytes"].as_u64() > Some(50 << 20)));
    assert!(resident_bytes(daemons(&host)[0]) < 32 << 20, "{}", resident_bytes(daemons(&host)[0]));
    let logs = sandbox.of(&ids[0], "/logs?limitBytes=100");
    assert_eq!(logs["truncatedBefore"], logs["firstOffset"]);
    assert_eq!(logs["chunks"][0]["offset"], logs["firstOffset"]);
    let started = Instant::now();
    sandbox.call("GET", "/v1/health", &[], b"");
    assert!(started.elapsed() < Duration::from_secs(30), "the daemon answers meanwhile");
    for id in &ids {
        sandbox.end(id);
    }
}

#[test]
fn logs_are_followed_to_the_end_and_a_reader_that_leaves_ends_nothing() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let command = "for i in 1 2 3; do echo $i; sleep .1; done; read line; echo got $line >&2";
    let id = sandbox.start(json!({"name": "x", "command": command, "keepStdin": true}));
    let mut events = sandbox.follow(&id, "/logs");
    assert_eq!(events.next().expect("output").0, "stdout");
    drop(events);
    let mut events = sandbox.follow(&id, "/logs?offset=0");
    let mut all = String::new();
    while all != "1\n2\n3\n" {
        let (name, data) = events.next().expect("output");
        assert_eq!((name.as_str(), &data["offset"]), ("stdout", &json!(all.len())));
        all.push_str(data["data"].as_str().expect("text"));
    }
    sandbox.tell(&id, "input", json!({"data": {"data": "it\n"}}));
    assert_eq!(
        events.next().expect("output"),
        ("stderr".into(), json!({"data": "got it\n", "encoding": "utf-8", "offset": 6}))
    );
    let (name, end) = events.next().expect("the end");
    assert_eq!((name.as_str(), &end["nextOffset"], &end["process"]["status"]), ("end", &json!(13), &json!("exited")));
    assert!(events.next().is_none());
}

#[test]
fn a_follower_that_stalls_holds_nobody_up() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let id = sandbox.start(json!({"name": "x", "command": "yes | head -c 30000000; echo done >&2"}));
    let mut events = sandbox.follow(&id, "/logs");
    let waited = sandbox.of(&id, "/wait?timeoutMs=90000");
    assert_eq!(waited["process"]["exitCode"], 0, "{waited}");
    let mut last = None;
    while let Some((name, data)) = events.next() {
        last = Some((name, data));
    }
    let (name, end) = last.expect("events");
    assert_eq!((name.as_str(), &end["nextOffset"]), ("end", &json!(30_000_005)));
}

#[test]
fn a_silent_stream_carries_heartbeats() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let id = sandbox.start(json!({"name": "x", "argv": ["sleep", "979"]}));
    for path in ["/logs", "/wait?timeoutMs=90000"] {
        assert_eq!(sandbox.follow(&id, path).next_of_any_kind().expect("an event").0, "heartbeat", "{path}");
    }
}

#[test]
fn a_port_is_waited_for_without_touching_it() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let server = "import socket, time\n\
        s = socket.socket()\ns.bind(('127.0.0.1', 0))\nprint(s.getsockname()[1], flush=True)\ninput()\ns.listen(1)\n\
        c, _ = s.accept()\nprint('touched', flush=True)\ntime.sleep(600)\n";
    let id = sandbox.start(json!({"name": "x", "argv": ["python3", "-c", server], "keepStdin": true}));
    let line = sandbox.of(&id, r"/wait?pattern=%5E%5Cd%2B%24&timeoutMs=90000");
    let port = line["line"]["text"].as_str().expect("a port").to_owned();
    let early = sandbox.of(&id, &format!("/wait?port={port}&timeoutMs=50"));
    assert_eq!(early["outcome"], "timedOut", "a bound port does not listen");
    let waiter = sandbox.clone();
    let (asked, wanted) = (id.clone(), port.clone());
    let waiting = std::thread::spawn(move || waiter.of(&asked, &format!("/wait?port={wanted}&timeoutMs=90000")));
    sandbox.tell(&id, "input", json!({"data": {"data": "go\n"}}));
    assert_eq!(waiting.join().expect("an answer")["outcome"], "met");
    assert_eq!(sandbox.log(&id).lines().count(), 1, "nothing was connected to");
    sandbox.end(&id);
    let ended = sandbox.of(&id, &format!("/wait?port={port}&timeoutMs=90000"));
    assert_eq!((&ended["outcome"], &ended["process"]["status"]), (&json!("ended"), &json!("killed")));
}

#[test]
fn waits_end_with_the_line_the_deadline_or_the_process() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let command = "echo before; echo 'ready: 42' >&2; read x; echo after; printf 'prompt> '; read x";
    let id = sandbox.start(json!({"name": "x", "command": command, "keepStdin": true}));
    let found = sandbox.of(&id, "/wait?pattern=ready%3A%20%5Cd%2B&timeoutMs=90000");
    assert_eq!((&found["outcome"], &found["line"]["text"]), (&json!("met"), &json!("ready: 42")));
    assert_eq!(found["line"]["channel"], "stderr");
    assert_eq!(
        sandbox.of(&id, "/wait?text=before&timeoutMs=90000")["outcome"],
        "met",
        "what was written before counts"
    );
    let offset = found["process"]["logBytes"].as_u64().expect("a number").max(17);
    let late = sandbox.of(&id, &format!("/wait?text=before&fromOffset={offset}&timeoutMs=50"));
    assert_eq!((&late["outcome"], &late["process"]["status"]), (&json!("timedOut"), &json!("running")));
    assert_eq!(sandbox.of(&id, "/wait?timeoutMs=0")["outcome"], "timedOut");
    sandbox.tell(&id, "input", json!({"data": {"data": "\n"}}));
    assert_eq!(
        sandbox.of(&id, "/wait?text=prompt%3E&timeoutMs=90000")["outcome"],
        "met",
        "a prompt is a line without end"
    );
    let waiter = sandbox.clone();
    let asked = id.clone();
    let waiting = std::thread::spawn(move || waiter.of(&asked, "/wait?text=never&timeoutMs=90000"));
    sandbox.tell(&id, "input", json!({"close": true}));
    let ended = waiting.join().expect("an answer");
    assert_eq!((&ended["outcome"], &ended["process"]["status"]), (&json!("ended"), &json!("exited")), "{ended}");
}

#[test]
fn no_line_of_a_flood_is_missed() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let command = "read x; yes filler | head -c 20000000; echo needle; yes filler | head -c 20000000";
    let id = sandbox.start(json!({"name": "x", "command": command, "keepStdin": true}));
    let mut events = sandbox.follow(&id, "/wait?text=needle&timeoutMs=90000");
    events.next_of_any_kind();
    sandbox.tell(&id, "input", json!({"data": {"data": "\n"}}));
    let (name, waited) = events.next().expect("the end of the wait");
    assert_eq!((name.as_str(), &waited["outcome"]), ("waited", &json!("met")), "{waited}");
}

#[test]
fn an_exec_that_ends_takes_no_process_along() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let id = sandbox.start(json!({"name": "server", "argv": ["sleep", "978"]}));
    let pid = sandbox.of(&id, "")["pid"].clone();
    let mut events = sandbox.stream(json!({"id": "gone", "command": "sleep 977", "disconnectGraceMs": 0}));
    events.next();
    drop(events);
    eventually("the exec is ended", || {
        sandbox.call("GET", "/v1/execs/gone?wait=false", &[], b"").json()["state"] == "ended"
    });
    let process = sandbox.of(&id, "");
    assert_eq!((&process["status"], &process["pid"]), (&json!("running"), &pid));
}
