//! What one sandbox can use up, and what the others and the host notice of it.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::control_groups::means;
use crate::support::{HOG, Host, Sandbox, daemons, eventually, mark, processes_with, sleepers};

fn limits(sandbox: &Sandbox) -> Value {
    sandbox.call("GET", "/v1/health", &[], b"").json()["limits"].clone()
}

#[test]
fn health_says_what_is_bounded_and_by_what() {
    let host = Host::start_with(&["--memory-mib", "300", "--disk-mib", "0", "--max-processes", "77"]);
    let told = limits(&host.sandbox("a"));
    assert_eq!(told["memory"], json!({"most": 300 << 20, "by": means("memory", "watch")}));
    assert_eq!(told["processes"], json!({"most": 77, "by": means("pids", "rlimit")}));
    assert_eq!(told["memoryFiles"], json!({"most": 720 << 20, "by": "filesystem"}));
    assert_eq!(told["openFiles"]["by"], "rlimit");
    assert_eq!((&told["disk"], told["concurrentExecs"].is_u64()), (&Value::Null, true));
    let of_host = host.call("GET", "/v1/health", b"").json()["limits"].clone();
    assert_eq!((&of_host["memory"], &of_host["processes"]), (&told["memory"], &told["processes"]));
    let host = Host::start_with(&["--isolation", "none"]);
    assert_eq!(host.call("GET", "/v1/health", b"").json()["limits"], json!({}));
}

#[test]
fn a_fork_bomb_stays_in_its_sandbox_and_goes_with_it() {
    let host = Host::start_with(&["--max-processes", "200"]);
    let (bombed, other) = (host.sandbox("a"), host.sandbox("b"));
    let seconds = mark();
    let bomb =
        format!("bomb() {{ sleep {seconds} & bomb | bomb & }}; bomb; while :; do sleep {seconds} & done 2>/dev/null");
    let mut events = bombed.stream(json!({"command": bomb, "timeoutMs": 120_000}));
    events.next();
    // It has what it may have: one more is refused, and not one beyond is there.
    let refused = || bombed.try_exec(json!({"argv": ["sh", "-c", "true | true; echo $?"]}));
    eventually("the bound is reached", || {
        sleepers(&seconds).len() > 50 && {
            let reply = refused();
            reply.status == 503 || reply.text().contains("fork")
        }
    });
    let metrics = bombed.call("GET", "/v1/metrics", &[], b"").json();
    assert!(metrics["processes"].as_u64().is_some_and(|count| count <= 200 + 32), "{metrics}");
    assert_eq!(other.output("echo $(echo a | cat) $(echo b | cat)"), "a b\n");
    assert_eq!(host.call("GET", "/v1/health", b"").json()["sandboxes"], 2);
    assert_eq!(host.delete("a").status, 200);
    assert!(sleepers(&seconds).is_empty());
    assert_eq!(other.output("echo still here"), "still here\n");
    assert_eq!(daemons(&host).len(), 1);
}

#[test]
fn the_bound_of_processes_cannot_be_raised_from_inside() {
    let host = Host::start_with(&["--max-processes", "50"]);
    let sandbox = host.sandbox("a");
    assert_eq!(sandbox.output("ulimit -Hu; ulimit -u"), "50\n50\n");
    assert_ne!(sandbox.shell("ulimit -Hu 51")["exitCode"], 0);
    let exit = sandbox.shell("unshare -U sh -c 'for i in $(seq 100); do sleep 9878 & done'; pgrep -c sleep");
    let count: u64 = exit["stdout"]["data"].as_str().expect("text").trim().parse().expect("a number");
    assert!((1..=50).contains(&count), "{exit}");
}

#[test]
fn a_sandbox_goes_before_the_host_where_the_machine_runs_out_of_memory() {
    let host = Host::start();
    assert_eq!(host.sandbox("a").output("cat /proc/self/oom_score_adj"), "500\n");
    let of_host = std::fs::read_to_string(format!("/proc/{}/oom_score_adj", host.pid())).expect("it runs");
    assert!(of_host.trim().parse::<i32>().expect("a number") < 500);
}

#[test]
fn a_memory_hog_is_ended_and_its_outcome_says_why() {
    let host = Host::start_with(&["--memory-mib", "200"]);
    let (sandbox, other) = (host.sandbox("a"), host.sandbox("b"));
    let seconds = mark();
    let small = format!("echo small; exec sleep {seconds}");
    let mut beside = sandbox.stream(json!({"command": small, "timeoutMs": 600_000}));
    beside.next();
    eventually("the small one runs", || sleepers(&seconds).len() == 1);
    let exit = sandbox.exec(json!({"argv": ["python3", "-c", HOG], "timeoutMs": 120_000}));
    assert_eq!((&exit["exitCode"], &exit["signal"]), (&json!(137), &json!("SIGKILL")), "{exit}");
    assert_eq!(
        (&exit["endedBy"], &exit["outOfMemory"], &exit["outOfDisk"]),
        (&json!("signal"), &json!(true), &json!(false)),
        "{exit}"
    );
    assert_eq!(sleepers(&seconds).len(), 1, "the small one lives");
    // Many that are small by themselves.
    let mark = mark();
    let program = format!("x = b'x' * (60 << 20); import time; time.sleep(9880) # {mark}");
    let many = format!("for i in $(seq 8); do python3 -c \"{program}\" & done; wait");
    let mut many = sandbox.stream(json!({"command": many, "timeoutMs": 600_000}));
    many.next();
    // All eight would be 480 MB; what they share is counted for each of them here and once by the bound.
    // Their shell's command line has the mark too.
    let left = || processes_with(&mark).len().saturating_sub(1);
    eventually("some are killed and the others fit", || {
        let metrics = sandbox.call("GET", "/v1/metrics", &[], b"").json();
        (1..8).contains(&left()) && metrics["memoryMb"].as_f64().is_some_and(|it| (60.0..300.0).contains(&it))
    });
    assert_eq!(other.exec(json!({"argv": ["python3", "-c", "x = b'x' * (100 << 20); print(len(x))"]}))["exitCode"], 0);
}

#[test]
fn what_is_killed_otherwise_is_not_said_to_be_out_of_anything() {
    let host = Host::start();
    let exit = host.sandbox("a").shell("kill -9 $$");
    assert_eq!((&exit["outOfMemory"], &exit["outOfDisk"]), (&json!(false), &json!(false)), "{exit}");
}

#[test]
fn filling_the_disk_is_stopped_and_the_files_can_be_removed() {
    let host = Host::start_with(&["--disk-mib", "20"]);
    let (sandbox, other) = (host.sandbox("a"), host.sandbox("b"));
    let fill = "while :; do head -c 1000000 /dev/zero; sleep 0.02; done > big";
    let exit = sandbox.exec(json!({"command": fill, "timeoutMs": 120_000}));
    assert_eq!(
        (&exit["exitCode"], &exit["outOfDisk"], &exit["outOfMemory"]),
        (&json!(137), &json!(true), &json!(false)),
        "{exit}"
    );
    let size = std::fs::metadata(host.workspace("a").join("big")).expect("it is there").len();
    assert!(size > 20 << 20, "{size}");
    // It cannot grow further, and it can shrink.
    let exit = sandbox.exec(json!({"command": format!("{fill}ger"), "timeoutMs": 120_000}));
    assert_eq!(exit["outOfDisk"], true, "{exit}");
    let began = Instant::now();
    assert_eq!(sandbox.output("sleep 3; rm big bigger; echo removed"), "removed\n");
    assert!(began.elapsed() >= Duration::from_secs(3));
    assert_eq!(sandbox.output("echo fits > small; cat small"), "fits\n");
    assert_eq!(other.output("echo unaffected"), "unaffected\n");
}

#[test]
fn files_in_memory_end_at_the_size_of_their_file_system() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    for path in ["/run/f", "/dev/shm/f"] {
        let exit = sandbox.shell(&format!("head -c 70000000 /dev/zero > {path}; rm {path}"));
        assert!(exit["stderr"]["data"].as_str().is_some_and(|it| it.contains("No space left")), "{path}: {exit}");
    }
}
