//! Control groups: what the machine has is asked here as well, and the host must use it, or say why it does not.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::support::{HOG, Host, Sandbox, daemons, eventually, mark, scratch, signal, sleepers, unique};

const WANTED: [&str; 3] = ["memory", "pids", "cpu"];

/// This process's own group, as it is mounted here.
fn own_group() -> Option<PathBuf> {
    let groups = fs::read_to_string("/proc/self/cgroup").expect("Linux");
    let own = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let mounts = fs::read_to_string("/proc/self/mounts").expect("Linux");
    let point = mounts.lines().map(|line| line.split(' ')).find_map(|mut fields| {
        let point = fields.nth(1)?;
        (fields.next() == Some("cgroup2")).then(|| PathBuf::from(point))
    })?;
    Some(point.join(own.trim_start_matches('/')))
}

fn listed(group: &Path) -> Vec<&'static str> {
    let offered = fs::read_to_string(group.join("cgroup.controllers")).unwrap_or_default();
    WANTED.into_iter().filter(|wanted| offered.split_whitespace().any(|it| it == *wanted)).collect()
}

/// What a host can have that is started here: all that the root of the groups lists, where it may be written. Any other
/// group has this very process in it, and so no controllers for groups below.
pub(crate) fn offered() -> Vec<&'static str> {
    let Some(own) = own_group().filter(|own| !own.join("cgroup.type").exists()) else { return Vec::new() };
    let trial = own.join(format!("trial-{}-{}", std::process::id(), unique()));
    if listed(&own).is_empty() || fs::create_dir(&trial).is_err() {
        return Vec::new();
    }
    fs::remove_dir(&trial).expect("it is empty");
    listed(&own)
}

/// What must hold a bound: the group where the controller is there, else the other.
pub(crate) fn means(controller: &str, otherwise: &'static str) -> &'static str {
    if offered().contains(&controller) { "cgroup" } else { otherwise }
}

fn health(host: &Host) -> Value {
    host.call("GET", "/v1/health", b"").json()
}

/// The group of the sandbox's daemon.
fn group_of(host: &Host) -> PathBuf {
    let groups = fs::read_to_string(format!("/proc/{}/cgroup", daemons(host)[0])).expect("it runs");
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/")).expect("cgroup v2");
    let own = own_group().expect("cgroup v2");
    own.ancestors().map(|root| root.join(path)).find(|group| group.is_dir()).expect("it is mounted")
}

fn file(group: &Path, name: &str) -> String {
    fs::read_to_string(group.join(name)).unwrap_or_else(|error| panic!("{name}: {error}")).trim().to_owned()
}

/// Asserts what the host says and does with these controllers, and no others.
fn assert_held(host: &Host, sandbox: &Sandbox, controllers: &[&str]) {
    let told = health(host);
    let inside = sandbox.call("GET", "/v1/health", &[], b"").json();
    for told in [&told, &inside] {
        let by = |name: &str| told["limits"][name]["by"].clone();
        let has = |controller: &str| controllers.contains(&controller);
        assert_eq!(by("memory"), if has("memory") { "cgroup" } else { "watch" }, "{told}");
        assert_eq!(by("processes"), if has("pids") { "cgroup" } else { "rlimit" }, "{told}");
        assert_eq!(told["limits"]["cpu"], if has("cpu") { json!({"most": 500, "by": "cgroup"}) } else { Value::Null });
    }
    let reason = told["noControlGroups"].as_str();
    for missing in WANTED.iter().filter(|it| !controllers.contains(it)) {
        assert!(reason.is_some_and(|it| it.contains(missing) || it.contains("no processes beside")), "{told}");
    }
    assert_eq!(reason.is_none(), controllers.len() == WANTED.len(), "{told}");
    // Long enough for the daemon to look at what is used.
    if controllers.is_empty() {
        let groups = fs::read_to_string(format!("/proc/{}/cgroup", daemons(host)[0])).expect("it runs");
        assert!(!groups.contains("/sandbox-"), "{groups}");
        return;
    }
    let group = group_of(host);
    assert!(group.file_name().is_some_and(|it| it.to_string_lossy().ends_with("-a")), "{}", group.display());
    for (controller, name, value) in
        [("memory", "memory.max", "209715200"), ("pids", "pids.max", "97"), ("cpu", "cpu.max", "50000 100000")]
    {
        match controllers.contains(&controller) {
            true => assert_eq!(file(&group, name), value),
            false => assert!(!group.join(name).exists(), "{name}"),
        }
    }
    // Whatever runs in the sandbox is in its group; the host is not.
    let seconds = mark();
    let mut beside = sandbox.stream(json!({"command": format!("setsid sleep {seconds} & wait")}));
    beside.next();
    let members = || file(&group, "cgroup.procs");
    eventually("the command is in the group", || {
        sleepers(&seconds).iter().any(|pid| members().lines().any(|it| it == pid.to_string()))
    });
    assert!(members().lines().all(|it| it != host.pid().to_string()));
    assert_eq!(sandbox.output("sleep 0.3; echo still here"), "still here\n");
    if controllers.contains(&"cpu") {
        let throttled = || {
            let line =
                file(&group, "cpu.stat").lines().find_map(|it| it.strip_prefix("nr_throttled ").map(str::to_owned));
            line.expect("a count").parse::<u64>().expect("a number")
        };
        let before = throttled();
        let mut busy = sandbox.stream(json!({"command": "while :; do :; done"}));
        busy.next();
        eventually("it is held back", || throttled() > before + 2);
    }
}

const ARGUMENTS: [&str; 6] = ["--memory-mib", "200", "--max-processes", "64", "--cpus", "0.5"];

#[test]
fn sandboxes_are_held_by_control_groups_where_the_machine_has_them_and_health_says_so_either_way() {
    let host = Host::start_with(&ARGUMENTS);
    assert_held(&host, &host.sandbox("a"), &offered());
    let host = Host::start_with(&["--isolation", "none", "--cpus", "1"]);
    assert!(health(&host)["noControlGroups"].is_string());
    assert_eq!(health(&host)["limits"], json!({}));
}

/// Memory in one step, more than a look from time to time could stop.
const LEAP: &str = "x = b'x' * (600 << 20); print(len(x))";

#[test]
fn out_of_memory_is_told_of_the_sandbox_that_ran_out_and_of_no_other() {
    let host = Host::start_with(&ARGUMENTS);
    let (sandbox, other) = (host.sandbox("a"), host.sandbox("b"));
    let mut small = other.stream(json!({"id": "small", "command": "echo up; sleep 600; :", "timeoutMs": 600_000}));
    small.next();
    small.next();
    let exit = sandbox.exec(json!({"argv": ["python3", "-c", HOG], "timeoutMs": 120_000}));
    assert_eq!((&exit["exitCode"], &exit["outOfMemory"]), (&json!(137), &json!(true)), "{exit}");
    if offered().contains(&"memory") {
        let exit = sandbox.exec(json!({"argv": ["python3", "-c", LEAP], "timeoutMs": 120_000}));
        assert_eq!((&exit["exitCode"], &exit["outOfMemory"]), (&json!(137), &json!(true)), "{exit}");
        let group = group_of(&host);
        assert!(
            file(&group, "memory.peak").parse::<u64>().is_ok_and(|peak| peak <= 200 << 20)
                || !group.join("memory.peak").exists()
        );
    }
    // It was killed while the other ran out, and not for that.
    let killed = other.call("POST", "/v1/execs/small/kill", &[], br#"{"signal":"SIGKILL"}"#);
    assert_eq!(killed.status, 200, "{}", killed.text());
    let exit = std::iter::from_fn(|| small.next()).find(|(name, _)| name == "exit").expect("an end").1;
    assert_eq!(exit["outOfMemory"], false, "{exit}");
    assert_eq!(sandbox.output("echo still here"), "still here\n");
}

#[test]
fn groups_go_with_their_sandboxes_and_with_the_next_host_after_a_killed_one() {
    let mut host = Host::start_with(&ARGUMENTS);
    host.sandbox("a");
    if offered().is_empty() {
        assert!(health(&host)["noControlGroups"].is_string());
        return;
    }
    let first = group_of(&host);
    assert_eq!(host.delete("a").status, 200);
    eventually("the group is gone", || !first.exists());
    host.sandbox("a");
    let second = group_of(&host);
    // What only a group still holds, after the first process has died: nothing is left of it either.
    signal(daemons(&host)[0], "KILL");
    eventually("the group is gone", || !second.exists());
    host.sandbox("a");
    let third = group_of(&host);
    let base = third.parent().expect("the host's group").to_owned();
    // A process that is not below the host, as one is that outlives it.
    let mut stray = std::process::Command::new("sleep").arg("9891").spawn().expect("it starts");
    fs::write(third.join("cgroup.procs"), stray.id().to_string()).expect("it is moved");
    host.kill();
    assert!(third.exists());
    let data = std::mem::replace(&mut host.data, scratch());
    let next = Host::start_in(data, &ARGUMENTS);
    assert!(!third.exists() && base.exists());
    assert!(!stray.wait().expect("it was ended").success());
    next.sandbox("a");
    next.end();
    assert!(!base.exists(), "a host that ends in good order leaves nothing");
}

#[test]
fn the_groups_end_kills_what_no_process_tree_shows() {
    let host = Host::start_with(&ARGUMENTS);
    host.sandbox("a");
    if offered().is_empty() {
        assert!(health(&host)["noControlGroups"].is_string());
        return;
    }
    let group = group_of(&host);
    let mut stray = std::process::Command::new("sleep").arg("9892").spawn().expect("it starts");
    fs::write(group.join("cgroup.procs"), stray.id().to_string()).expect("it is moved");
    assert_eq!(host.delete("a").status, 200);
    assert!(!stray.wait().expect("it was ended").success());
    eventually("the group is gone", || !group.exists());
}

/// A group below the root, with these controllers and nothing in it.
struct Delegated(PathBuf);

impl Delegated {
    fn make(controllers: &[&str]) -> Self {
        let root = own_group().expect("cgroup v2");
        let enabled: Vec<String> = WANTED.iter().map(|it| format!("+{it}")).collect();
        fs::write(root.join("cgroup.subtree_control"), enabled.join(" ")).expect("root may");
        let outer = root.join(format!("outer-{}-{}", std::process::id(), unique()));
        fs::create_dir(&outer).expect("a group");
        let some: Vec<String> = controllers.iter().map(|it| format!("+{it}")).collect();
        fs::write(outer.join("cgroup.subtree_control"), some.join(" ")).expect("root may");
        fs::create_dir(outer.join("given")).expect("a group");
        Self(outer)
    }

    fn given(&self) -> PathBuf {
        self.0.join("given")
    }
}

impl Drop for Delegated {
    fn drop(&mut self) {
        fn remove(group: &Path) {
            for entry in fs::read_dir(group).into_iter().flatten().flatten() {
                if entry.path().is_dir() {
                    remove(&entry.path());
                }
            }
            let _ = fs::remove_dir(group);
        }
        remove(&self.0);
    }
}

#[test]
fn a_host_in_a_delegated_group_uses_what_it_was_given() {
    if offered().len() < WANTED.len() {
        let host = Host::start();
        assert!(health(&host)["noControlGroups"].is_string());
        return;
    }
    for controllers in [&WANTED[..], &["pids"], &[]] {
        let delegated = Delegated::make(controllers);
        let host = Host::start_in_group(&delegated.given(), &ARGUMENTS);
        assert_held(&host, &host.sandbox("a"), controllers);
        let own = fs::read_to_string(format!("/proc/{}/cgroup", host.pid())).expect("it runs");
        assert_eq!(own.trim().ends_with("/host"), !controllers.is_empty(), "{own}");
        host.end();
    }
    // With another process in its group it may not, and goes on without.
    let delegated = Delegated::make(&WANTED);
    let mut other = std::process::Command::new("sleep").arg("9893").spawn().expect("it starts");
    fs::write(delegated.given().join("cgroup.procs"), other.id().to_string()).expect("it is moved");
    let host = Host::start_in_group(&delegated.given(), &ARGUMENTS);
    assert_held(&host, &host.sandbox("a"), &[]);
    host.end();
    other.kill().expect("it runs");
    other.wait().expect("it ends");
}
