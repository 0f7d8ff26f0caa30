//! How commands run and end.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::{Host, decode, eventually};

#[test]
fn a_command_gives_its_output_and_status() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let exit = sandbox.shell("echo o; echo e >&2; exit 42");
    assert_eq!(exit["stdout"]["data"], "o\n");
    assert_eq!(exit["stderr"]["data"], "e\n");
    assert_eq!(exit["exitCode"], 42);
    assert_eq!(exit["endedBy"], "exit");
}

#[test]
fn heredocs_end_and_what_follows_runs() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    assert_eq!(sandbox.output("cat > a.txt <<'EOF'\n  x\ny\nEOF\nwc -l < a.txt"), "2\n");
    assert_eq!(sandbox.output("echo ok"), "ok\n");
}

#[test]
fn without_standard_input_it_is_at_its_end() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    assert_eq!(sandbox.output("cat"), "");
    assert_eq!(sandbox.output("read x; echo $?"), "1\n");
    let exit = sandbox.shell("python3 -c 'input()'");
    assert_eq!(exit["exitCode"], 1);
    assert!(exit["stderr"]["data"].as_str().is_some_and(|text| text.contains("EOFError")), "{exit}");
}

#[test]
fn standard_input_arrives_exactly_and_ends() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let exit = sandbox.exec(json!({"argv": ["cat"], "stdin": {"data": "//4AgA==", "encoding": "base64"}}));
    assert_eq!(decode(&exit["stdout"]), [0xff, 0xfe, 0x00, 0x80]);
    let large = "é".repeat(1 << 20);
    let exit = sandbox.exec(json!({"command": "wc -c", "stdin": {"data": large}}));
    assert_eq!(exit["stdout"]["data"], "2097152\n");
    // One that never reads its input is not held up by it, nor is one that ends before.
    let exit = sandbox.exec(json!({"argv": ["true"], "stdin": {"data": large}}));
    assert_eq!((&exit["exitCode"], &exit["endedBy"]), (&json!(0), &json!("exit")));
    let exit = sandbox.exec(json!({"command": "sleep 30 & echo ok", "stdin": {"data": large}}));
    assert_eq!(exit["stdout"]["data"], "ok\n");
}

#[test]
fn an_unknown_program_is_127_and_one_that_cannot_run_is_126() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    sandbox.put("data", b"no program");
    for (argv, code, text) in [
        (vec!["nosuchcmd"], 127, "nosuchcmd: command not found"),
        (vec!["/no/such/program"], 127, "/no/such/program: No such file"),
        (vec!["/tmp"], 126, "/tmp: Is a directory"),
        (vec!["./data"], 126, "./data: Permission denied"),
    ] {
        let exit = sandbox.exec(json!({"argv": argv}));
        assert_eq!(exit["exitCode"], code, "{exit}");
        assert!(exit["stderr"]["data"].as_str().is_some_and(|it| it.contains(text)), "{exit}");
    }
    assert_eq!(sandbox.shell("nosuchcmd")["exitCode"], 127);
    assert_eq!(sandbox.shell("/tmp")["exitCode"], 126);
}

#[test]
fn a_timeout_kills_the_whole_tree_and_says_so() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let started = Instant::now();
    let exit = sandbox.exec(json!({"command": "sh -c 'sleep 999; touch late' & sleep 600", "timeoutMs": 300}));
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    assert_eq!((&exit["endedBy"], &exit["exitCode"]), (&json!("timeout"), &json!(143)), "{exit}");
    assert_eq!(sandbox.output("pgrep sleep; ls"), "");
}

#[test]
fn a_tree_that_ignores_term_is_killed() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let command = "trap '' TERM; (trap '' TERM; sleep 600 & wait) & while :; do sleep 600; done";
    // Again where the machine is so busy that nothing ignores anything yet when the time is over.
    eventually("the last resort", || {
        let started = Instant::now();
        let exit = sandbox.exec(json!({"command": command, "timeoutMs": 5000}));
        assert_eq!(exit["endedBy"], "timeout", "{exit}");
        assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
        assert_eq!(sandbox.shell("pgrep sleep")["exitCode"], 1);
        exit["signal"] == "SIGKILL"
    });
}

#[test]
fn the_output_before_a_timeout_is_kept() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let command = "echo before; trap 'echo bye; exit 7' TERM; sleep 600 & wait";
    // Again where the machine is so busy that the command is not so far by then, or has no time for its farewell.
    eventually("output of before and after", || {
        let exit = sandbox.exec(json!({"command": command, "timeoutMs": 5000}));
        assert_eq!(exit["endedBy"], "timeout", "{exit}");
        exit["stdout"]["data"] == "before\nbye\n" && exit["exitCode"] == 7
    });
}

#[test]
fn a_signal_from_inside_is_told_by_name() {
    let host = Host::start();
    let exit = host.sandbox("a").shell("kill -SEGV $$");
    assert_eq!(
        (&exit["endedBy"], &exit["signal"], &exit["exitCode"]),
        (&json!("signal"), &json!("SIGSEGV"), &json!(139))
    );
    assert_eq!(exit["outOfMemory"], false);
}

#[test]
fn a_background_child_does_not_hold_the_answer_and_lives_on() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    // The child waits for what is there only after the answer.
    let child = "until [ -e go ]; do sleep .02; done; echo to a closed reader; echo done > after";
    let exit = sandbox.shell(&format!("({child}) & echo started"));
    assert_eq!((&exit["stdout"]["data"], &exit["endedBy"]), (&json!("started\n"), &json!("exit")));
    sandbox.put("go", b"");
    eventually("the background child's file", || sandbox.get("after").status == 200);
}

#[test]
fn a_background_child_that_floods_does_not_hold_the_answer() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let exit = sandbox.exec(json!({"id": "flood", "command": "yes & echo started"}));
    assert_eq!(exit["endedBy"], "exit");
    let killed = sandbox.call("POST", "/v1/execs/flood/kill", &[], b"");
    assert_eq!(killed.status, 200, "{}", killed.text());
    assert_eq!(sandbox.shell("pgrep yes")["exitCode"], 1);
}

#[test]
fn commands_at_once_do_not_mix() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    std::thread::scope(|scope| {
        for id in 0..20 {
            let sandbox = sandbox.clone();
            scope.spawn(move || {
                let output = sandbox.output(&format!("for i in 1 2 3; do echo {id}; sleep .05; done"));
                assert_eq!(output, format!("{id}\n").repeat(3));
            });
        }
    });
}

#[test]
fn no_more_than_the_limit_run_at_once() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let streams: Vec<_> = (0..64)
        .map(|number| {
            let mut events =
                sandbox.stream(json!({"id": format!("n{number}"), "argv": ["sleep", "600"], "timeoutMs": 600_000}));
            assert_eq!(events.next().map(|(name, _)| name).as_deref(), Some("started"));
            events
        })
        .collect();
    sandbox.try_exec(json!({"argv": ["true"]})).refused(429, "too_many_execs", "64");
    assert_eq!(sandbox.call("POST", "/v1/execs/n0/kill", &[], b"{}").json()["endedBy"], "kill");
    assert_eq!(sandbox.exec(json!({"argv": ["true"]}))["exitCode"], 0);
    drop(streams);
}

#[test]
fn a_hundred_fast_commands_all_tell_their_output() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    for number in 0..100 {
        let exit = sandbox.exec(json!({"argv": ["echo", number.to_string()]}));
        assert_eq!(exit["stdout"]["data"], format!("{number}\n"));
    }
    // Nothing is left of them but the daemon and the command that looks.
    let names =
        sandbox.output("for each in /proc/[0-9]*; do read -r name < $each/comm && echo $name; done 2>/dev/null");
    assert!(names.lines().count() < 10 && !names.contains("echo"), "{names}");
}

#[test]
fn a_full_disk_does_not_hide_the_exit_code() {
    let host = Host::start();
    let exit = host.sandbox("a").shell("head -c 2000000000 /dev/zero > /tmp/full; false");
    assert_eq!(exit["exitCode"], 1);
    assert!(exit["stderr"]["data"].as_str().is_some_and(|text| text.contains("No space left")), "{exit}");
}

#[test]
fn a_full_disk_does_not_hide_how_a_command_ended() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let filled = sandbox.shell("head -c 1200000000 /dev/zero > /tmp/fill 2>fill.err; cat fill.err");
    assert!(filled["stdout"]["data"].as_str().is_some_and(|text| text.contains("No space left")), "{filled}");
    assert_eq!(sandbox.shell("false")["exitCode"], 1);
    let refused = sandbox.shell("echo x > /tmp/more");
    assert_eq!(refused["exitCode"], 1);
    assert!(refused["stderr"]["data"].as_str().is_some_and(|text| text.contains("No space left")), "{refused}");
    assert_eq!(sandbox.output("rm /tmp/fill; echo room"), "room\n");
}
