//! Bytes of output: exact, bounded, complete.

use serde_json::json;

use crate::support::{Host, daemons, decode, resident_bytes};

#[test]
fn characters_that_arrive_in_pieces_are_whole_on_each_channel() {
    let host = Host::start();
    let command = r"printf 'caf\303'; sleep .1; printf 'x\342' >&2; sleep .1; printf '\251\342\230'; sleep .1;
        printf '\202\254' >&2; printf '\225'";
    let mut events = host.sandbox("a").stream(json!({"command": command}));
    let (mut stdout, mut stderr) = (String::new(), String::new());
    while let Some((name, data)) = events.next() {
        match name.as_str() {
            "stdout" => stdout.push_str(data["data"].as_str().expect("text")),
            "stderr" => stderr.push_str(data["data"].as_str().expect("text")),
            _ => continue,
        }
        assert_eq!(data["encoding"], "utf-8", "{data}");
    }
    assert_eq!((stdout.as_str(), stderr.as_str()), ("café☕", "x€"));
}

#[test]
fn bytes_that_are_no_text_are_exact_in_both_forms() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let command = "head -c 200000 /dev/urandom | tee bytes";
    let (stdout, _, exit) = sandbox.stream(json!({"command": command})).finish();
    let expected = sandbox.get("bytes").body;
    assert_eq!(stdout, expected);
    assert_eq!(decode(&exit["stdout"]), expected);
    let exit = sandbox.shell(r"printf 'ok\342\230'");
    assert_eq!(decode(&exit["stdout"]), b"ok\xe2\x98");
}

#[test]
fn too_much_output_keeps_head_and_tail_and_the_exit_code() {
    let host = Host::start();
    let exit = host.sandbox("a").shell("head -c 12000000 /dev/zero | base64 -w0; echo; echo the end; exit 5");
    assert_eq!(exit["exitCode"], 5);
    assert_eq!(exit["stdout"]["truncated"], true);
    assert_eq!(exit["stdout"]["totalBytes"], 16_000_009);
    let data = exit["stdout"]["data"].as_str().expect("text");
    assert!(data.len() <= (1 << 20) + 100, "{}", data.len());
    assert!(data.starts_with("AAAA") && data.ends_with("\nthe end\n") && data.contains("bytes left out]"));
}

#[test]
fn the_limit_is_the_callers() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let exit = sandbox.exec(json!({"command": "seq 100000", "outputLimitBytes": 100}));
    assert!(exit["stdout"]["data"].as_str().is_some_and(|data| data.starts_with("1\n2\n") && data.len() < 160));
    let exit = sandbox.exec(json!({"command": "seq 10", "outputLimitBytes": 0}));
    assert_eq!((&exit["stdout"]["truncated"], &exit["stdout"]["totalBytes"]), (&json!(true), &json!(21)));
    sandbox.try_exec(json!({"argv": ["true"], "outputLimitBytes": (8 << 20) + 1})).refused(
        400,
        "invalid_arguments",
        "outputLimitBytes",
    );
}

#[test]
fn forty_mebibytes_stream_completely_with_flat_memory() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let daemon = daemons(&host)[0];
    let before = resident_bytes(daemon);
    let (stdout, _, exit) = sandbox.stream(json!({"command": "head -c 41943040 /dev/zero | tr '\\0' 'é'"})).finish();
    assert_eq!(stdout.len(), 41_943_040);
    assert_eq!(exit["stdout"]["totalBytes"], 41_943_040);
    let after = resident_bytes(daemon);
    assert!(after < before + (12 << 20), "{before} to {after}");
}

#[test]
fn one_very_long_line_arrives() {
    let host = Host::start();
    let (stdout, _, _) = host.sandbox("a").stream(json!({"command": "printf 'x%.0s' $(seq 266000); echo"})).finish();
    assert_eq!(stdout.len(), 266_001);
}

#[test]
fn output_arrives_while_the_command_runs() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let mut events = sandbox.stream(json!({"command": "echo first; until [ -e go ]; do sleep .02; done; echo second"}));
    assert_eq!(events.next().map(|(name, _)| name).as_deref(), Some("started"));
    assert_eq!(events.next().map(|(_, data)| data["data"].clone()), Some(json!("first\n")));
    sandbox.put("go", b"");
    let rest = events.finish_from(6);
    assert_eq!(rest, "second\n");
}

impl crate::support::Events {
    /// Reads the rest of stdout as text, from that offset.
    fn finish_from(mut self, mut offset: usize) -> String {
        let mut text = String::new();
        while let Some((name, data)) = self.next() {
            if name == "stdout" {
                assert_eq!(data["offset"], offset);
                let piece = data["data"].as_str().expect("text");
                offset += piece.len();
                text.push_str(piece);
            }
        }
        text
    }
}

#[test]
fn a_silent_command_sends_heartbeats() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let mut events = sandbox.stream(json!({"command": "until [ -e go ]; do sleep .02; done"}));
    let mut next = || events.next_of_any_kind().map(|(name, _)| name);
    assert_eq!(next().as_deref(), Some("started"));
    assert_eq!(next().as_deref(), Some("heartbeat"));
    sandbox.put("go", b"");
    // More of them may come before the end, one in five seconds.
    let began = std::time::Instant::now();
    let (beats, rest): (Vec<String>, Vec<String>) = std::iter::from_fn(next).partition(|name| name == "heartbeat");
    assert_eq!(rest, ["exit"]);
    assert!(beats.len() as u64 <= 1 + began.elapsed().as_secs() / 5, "{beats:?}");
}

#[test]
fn without_output_events_only_the_end_is_told() {
    let host = Host::start();
    let mut events = host.sandbox("a").stream(json!({"command": "seq 100000", "streamOutput": false}));
    assert_eq!(events.next().map(|(name, _)| name).as_deref(), Some("started"));
    let (name, exit) = events.next().expect("the end");
    assert_eq!(name, "exit");
    assert_eq!(exit["stdout"]["totalBytes"], 588_895);
}
