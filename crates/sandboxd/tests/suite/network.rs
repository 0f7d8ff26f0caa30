//! What sandboxes reach over the network, and what not.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, UdpSocket};
use std::process::Command;

use serde_json::json;

use crate::internet::Internet;
use crate::support::{Host, Sandbox, eventually, processes_with};

/// Tries a TCP connection for a time and says how that went. Then again, bound to the device, past the routing table.
const TRY: &str = r#"
import socket, sys
for bound in (False, True):
    s = socket.socket()
    s.settimeout(int(sys.argv[3]))
    if bound and len(sys.argv) > 4:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"tap0")
    try:
        s.connect((sys.argv[1], int(sys.argv[2])))
        print("reached", s.recv(5))
    except OSError as error:
        print("refused")
"#;

fn attempt(sandbox: &Sandbox, address: IpAddr, port: u16, online: bool) -> String {
    attempt_for(2, sandbox, address, port, online)
}

fn attempt_for(seconds: u32, sandbox: &Sandbox, address: IpAddr, port: u16, online: bool) -> String {
    let [address, port, seconds] = [address.to_string(), port.to_string(), seconds.to_string()];
    let mut argv = vec!["python3".to_owned(), "-c".into(), TRY.into(), address, port, seconds];
    argv.extend(online.then(|| "bound".into()));
    let exit = sandbox.exec(json!({"argv": argv}));
    assert_eq!(exit["exitCode"], 0, "{exit}");
    exit["stdout"]["data"].as_str().expect("text").to_owned()
}

/// The machine's own address that others would use. No packet is sent.
fn outer_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect((Ipv4Addr::new(198, 51, 100, 1), 9)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// A service on all addresses of the machine, which greets.
fn service() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a listener");
    let port = listener.local_addr().expect("its address").port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream.and_then(|mut stream| stream.write_all(b"hello"));
        }
    });
    port
}

/// Hosts in these tests have a way out: slirp4netns is part of what they need.
fn online(host: &Host) {
    let network = host.call("GET", "/v1/health", b"").json()["isolation"]["network"].clone();
    assert_eq!(network, "own", "these tests need slirp4netns and /dev/net/tun");
}

#[test]
fn the_machine_is_out_of_reach_with_and_without_internet() {
    let host = Host::start();
    online(&host);
    let port = service();
    let mut targets = vec![IpAddr::V4(Ipv4Addr::LOCALHOST), Ipv4Addr::new(10, 0, 2, 2).into()];
    targets.push(Ipv4Addr::new(10, 0, 2, 3).into());
    targets.push(Ipv4Addr::new(127, 0, 0, 53).into());
    targets.extend(outer_address());
    for (name, internet) in [("in", true), ("out", false)] {
        let sandbox = host.sandbox_with(name, json!({"sandboxId": name, "internet": internet}));
        for target in &targets {
            for port in [port, host.address.port()] {
                let seen = attempt(&sandbox, *target, port, internet);
                assert_eq!(seen, "refused\nrefused\n", "{target}:{port}, internet: {internet}");
            }
        }
    }
    // The service does answer: what was refused above was refused on the way.
    let mut greeting = [0; 5];
    std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port))
        .and_then(|mut stream| stream.read_exact(&mut greeting))
        .expect("a greeting");
    assert_eq!(&greeting, b"hello");
}

#[test]
fn private_and_link_local_ranges_are_refused() {
    let host = Host::start();
    online(&host);
    let sandbox = host.sandbox("a");
    for target in ["10.1.2.3", "172.16.5.4", "192.168.1.1", "100.64.0.1", "169.254.169.254", "0.0.0.1"] {
        let exit = sandbox.exec(json!({"argv": ["python3", "-c",
            "import socket, sys\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\ntry: s.connect((sys.argv[1], 80))\nexcept OSError as e: print(e.errno)", target]}));
        // EACCES: the route says so. On an address without a route it would be ENETUNREACH, and elsewhere nothing.
        assert_eq!(exit["stdout"]["data"], "13\n", "{target}: {exit}");
    }
    let host = Host::start_with(&["--allow-private"]);
    let sandbox = host.sandbox("a");
    for (target, expected) in [("10.1.2.3", "reach\n"), ("169.254.169.254", "13\n")] {
        let exit = sandbox.exec(json!({"argv": ["python3", "-c",
            "import socket, sys\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\ntry: s.connect((sys.argv[1], 80)); print('reach')\nexcept OSError as e: print(e.errno)", target]}));
        assert_eq!(exit["stdout"]["data"], expected, "{target}: {exit}");
    }
}

#[test]
fn routes_are_out_of_a_commands_hands() {
    let host = Host::start();
    online(&host);
    let sandbox = host.sandbox("a");
    let script = "import socket
try: socket.socket(socket.AF_PACKET, socket.SOCK_RAW); print('raw')
except OSError as e: print(e.errno)
";
    assert_eq!(sandbox.exec(json!({"argv": ["python3", "-c", script]}))["stdout"]["data"], "1\n");
    let exit = sandbox.shell("unshare -Ur true && unshare -Ur python3 -c \"import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)\"; echo $?");
    assert_ne!(exit["stdout"]["data"], "0\n", "{exit}");
}

#[test]
fn sandboxes_do_not_reach_each_other() {
    let host = Host::start();
    online(&host);
    let (first, second) = (host.sandbox("a"), host.sandbox("b"));
    // On every address of the first, and under a name that file systems do not hold.
    first.output(
        "python3 -c \"
import socket, threading, time
s = socket.socket(); s.bind(('0.0.0.0', 7777)); s.listen()
u = socket.socket(socket.AF_UNIX); u.bind('\\0shared-name'); u.listen()
open('/tmp/up', 'w').close()
time.sleep(600)
\" >/dev/null 2>&1 &
until [ -e /tmp/up ]; do sleep 0.01; done",
    );
    assert_eq!(attempt(&second, Ipv4Addr::LOCALHOST.into(), 7777, false), "refused\nrefused\n");
    assert_eq!(attempt(&second, Ipv4Addr::new(10, 0, 2, 100).into(), 7777, true), "refused\nrefused\n");
    let connect = "python3 -c \"import socket; socket.socket(socket.AF_UNIX).connect('\\0shared-name')\"";
    assert_ne!(second.shell(connect)["exitCode"], 0);
    assert_eq!(first.shell(connect)["exitCode"], 0);
}

#[test]
fn loopback_works_in_every_sandbox() {
    let host = Host::start();
    for (name, internet) in [("in", true), ("out", false)] {
        let sandbox = host.sandbox_with(name, json!({"sandboxId": name, "internet": internet}));
        let served = sandbox.output(
            "python3 -m http.server 8000 --bind 127.0.0.1 >/dev/null 2>&1 & \
             python3 -c \"
import time, urllib.request
for _ in range(6000):
    try: print(urllib.request.urlopen('http://localhost:8000').status); break
    except OSError: time.sleep(0.01)
\"; kill %1",
        );
        assert_eq!(served, "200\n");
    }
}

/// What a sandbox can do on its network; `address` is out there, `port` is TCP and UDP there.
fn abilities(sandbox: &Sandbox, address: Ipv4Addr, port: u16) -> serde_json::Value {
    let script = r#"
import json, socket, sys
address, port = sys.argv[1], int(sys.argv[2])
def works(attempt):
    try:
        return attempt()
    except OSError:
        return False
def tcp():
    with socket.create_connection((address, port), 40) as s: return s.recv(5) == b"hello"
def udp():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(40); s.sendto(b"ping", (address, port)); return s.recv(5) == b"hello"
def resolver():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s: s.connect(("10.0.2.3", 53)); return s.send(b"x") == 1
def loopback():
    with socket.create_server(("127.0.0.1", 0)) as l, socket.create_connection(l.getsockname(), 40) as s:
        l.accept()[0].sendall(b"near"); return s.recv(4) == b"near"
print(json.dumps({each.__name__: works(each) for each in (tcp, udp, resolver, loopback)}))
"#;
    let exit = sandbox.exec(json!({"argv": ["python3", "-c", script, address.to_string(), port.to_string()]}));
    assert_eq!(exit["exitCode"], 0, "{exit}");
    serde_json::from_str(exit["stdout"]["data"].as_str().expect("text")).expect("JSON")
}

/// A name that every sandbox's own resolver would have to ask for.
const RESOLVE: &str = "python3 -c \"import socket; socket.getaddrinfo('example.com', 80)\" 2>/dev/null; echo $?; \
                       grep -c nameserver /etc/resolv.conf; tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '";

#[test]
fn internet_is_what_a_sandbox_has_or_has_not() {
    let (internet, port) = (Internet::connect(), service());
    let datagrams = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).expect("the same port");
    std::thread::spawn(move || {
        let mut piece = [0; 16];
        while let Ok((_, from)) = datagrams.recv_from(&mut piece) {
            let _ = datagrams.send_to(b"hello", from);
        }
    });
    let host = Host::start();
    online(&host);
    let network =
        |sandbox: &Sandbox| sandbox.call("GET", "/v1/health", &[], b"").json()["isolation"]["network"].clone();
    let with = host.sandbox("in");
    assert_eq!(network(&with), "own");
    let all = json!({"tcp": true, "udp": true, "resolver": true, "loopback": true});
    assert_eq!(abilities(&with, internet.address, port), all);
    let without = host.sandbox_with("out", json!({"sandboxId": "out", "internet": false}));
    assert_eq!(network(&without), "none");
    let only_loopback = json!({"tcp": false, "udp": false, "resolver": false, "loopback": true});
    assert_eq!(abilities(&without, internet.address, port), only_loopback);
    assert_eq!(without.output(RESOLVE), "1\n0\nlo\n");
}

#[test]
fn a_machine_without_the_helper_says_so_and_refuses_what_it_cannot_give() {
    let programs = crate::support::scratch();
    let bubblewrap = Command::new("sh").args(["-c", "command -v bwrap"]).output().expect("sh runs").stdout;
    let bubblewrap = String::from_utf8(bubblewrap).expect("a path");
    std::os::unix::fs::symlink(bubblewrap.trim(), programs.path().join("bwrap")).expect("a link");
    let host = Host::start_with_programs(programs.path());
    let health = host.call("GET", "/v1/health", b"").json();
    assert_eq!(health["isolation"]["network"], "none");
    assert!(health["noInternet"].as_str().is_some_and(|it| it.contains("slirp4netns is not installed")), "{health}");
    let refused = host.call("PUT", "/v1/sandboxes/a", br#"{"sandboxId":"a"}"#);
    refused.refused(503, "unavailable", "internet");
    assert!(refused.text().contains("slirp4netns is not installed"), "{}", refused.text());
    assert!(!host.workspace("a").exists());
    let sandbox = host.sandbox_with("a", json!({"sandboxId": "a", "internet": false}));
    assert_eq!(sandbox.output(RESOLVE), "1\n0\nlo\n");
}

#[test]
fn the_machines_network_is_shared_where_the_host_was_told_so() {
    let (host, port) = (Host::start_with(&["--network", "shared"]), service());
    assert_eq!(host.call("GET", "/v1/health", b"").json()["isolation"]["network"], "shared");
    let with = host.sandbox("in");
    assert_eq!(attempt_for(40, &with, Ipv4Addr::LOCALHOST.into(), port, false), "reached b'hello'\n".repeat(2));
    assert_eq!(with.call("GET", "/v1/health", &[], b"").json()["isolation"]["network"], "shared");
    let without = host.sandbox_with("out", json!({"sandboxId": "out", "internet": false}));
    assert_eq!(attempt(&without, Ipv4Addr::LOCALHOST.into(), port, false), "refused\nrefused\n");
    assert_eq!(without.call("GET", "/v1/health", &[], b"").json()["isolation"]["network"], "none");
}

#[test]
fn without_isolation_no_sandbox_is_said_to_be_without_internet() {
    let host = Host::start_with(&["--isolation", "none"]);
    let refused = host.call("PUT", "/v1/sandboxes/a", br#"{"sandboxId":"a","internet":false}"#);
    refused.refused(400, "invalid_arguments", "internet");
    assert_eq!(host.call("GET", "/v1/health", b"").json()["sandboxes"], 0);
}

/// Processes that serve the networks of a host's sandboxes.
fn uplinks(host: u32) -> Vec<u32> {
    processes_with("slirp4netns\u{0}--configure")
        .into_iter()
        .filter(|pid| {
            std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|line| {
                line.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1)) == Some(&host.to_string())
            })
        })
        .collect()
}

/// The helper is the sandbox's own user where the device allows it, and the host's where the host is not root.
#[test]
fn the_helper_is_never_more_than_it_needs_to_be() {
    let own = rustix::process::geteuid().as_raw();
    // Only root can start hosts as other users.
    let hosts = match own {
        0 => vec![(0, Host::start_with_open_device(0)), (65_533, Host::start_with_open_device(65_533))],
        own => vec![(own, Host::start())],
    };
    for (host_user, host) in hosts {
        online(&host);
        let sandbox = host.sandbox("a");
        assert_eq!(sandbox.output("tail -n +3 /proc/net/dev | grep -c tap0"), "1\n");
        let refused =
            "python3 -c \"import socket; socket.socket().connect(('169.254.169.254', 80))\" 2>&1 | grep -c Errno.13";
        assert_eq!(sandbox.output(refused), "1\n");
        let uplinks = uplinks(host.pid());
        assert_eq!(uplinks.len(), 1);
        let status = std::fs::read_to_string(format!("/proc/{}/status", uplinks[0])).expect("it runs");
        let uid =
            status.lines().find_map(|line| line.strip_prefix("Uid:")).and_then(|line| line.split_whitespace().next());
        let expected = if host_user == 0 { "100000".to_owned() } else { host_user.to_string() };
        assert_eq!(uid, Some(expected.as_str()));
    }
}

#[test]
fn an_uplink_ends_with_its_sandbox() {
    let host = Host::start();
    online(&host);
    host.sandbox("a");
    host.sandbox("b");
    assert_eq!(uplinks(host.pid()).len(), 2);
    host.delete("a");
    eventually("the end of one", || uplinks(host.pid()).len() == 1);
    crate::support::signal(crate::support::daemons(&host)[0], "KILL");
    eventually("the end of the other", || uplinks(host.pid()).is_empty());
}

#[test]
fn an_uplink_ends_with_a_host_that_is_killed() {
    let mut host = Host::start();
    online(&host);
    host.sandbox("a");
    let uplinks = uplinks(host.pid());
    assert_eq!(uplinks.len(), 1);
    host.kill();
    eventually("the end of it", || {
        !uplinks.iter().any(|pid| {
            std::fs::read(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|line| line.starts_with(b"/") || line.starts_with(b"slirp"))
        })
    });
}

/// Serves a package index with one package, `faraway`, and says its port.
fn package_index() -> u16 {
    let wheel = Command::new("python3")
        .args(["-c", "import io, sys, zipfile\nb = io.BytesIO()\nwith zipfile.ZipFile(b, 'w') as z:\n z.writestr('faraway.py', 'word = \"installed\"\\n')\n d = 'faraway-1.0.dist-info/'\n z.writestr(d + 'METADATA', 'Metadata-Version: 2.1\\nName: faraway\\nVersion: 1.0\\n')\n z.writestr(d + 'WHEEL', 'Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\n z.writestr(d + 'RECORD', 'faraway.py,,\\n')\nsys.stdout.buffer.write(b.getvalue())"])
        .output()
        .expect("python3");
    assert!(wheel.status.success(), "{}", String::from_utf8_lossy(&wheel.stderr));
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a listener");
    let port = listener.local_addr().expect("its address").port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut request = Vec::new();
            let mut piece = [0; 4096];
            while !request.windows(4).any(|it| it == b"\r\n\r\n") {
                match stream.read(&mut piece) {
                    Ok(length @ 1..) => request.extend_from_slice(&piece[..length]),
                    _ => break,
                }
            }
            let page = br#"<a href="/faraway-1.0-py3-none-any.whl">faraway-1.0-py3-none-any.whl</a>"#;
            let (kind, body) = match request.windows(5).any(|it| it == b".whl ") {
                true => ("application/zip", wheel.stdout.as_slice()),
                false => ("text/html", page.as_slice()),
            };
            let head = format!("HTTP/1.0 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n", body.len());
            let _ = stream.write_all(&[head.as_bytes(), body].concat());
        }
    });
    port
}

const PIP: &str = "/usr/bin/python3 -m pip install --no-deps --no-cache-dir --disable-pip-version-check --retries 0 \
                   --timeout 60";

#[test]
fn pip_installs_a_package_over_the_sandboxs_network() {
    let (internet, port) = (Internet::connect(), package_index());
    let index = format!("--index-url http://{0}:{port}/simple --trusted-host {0}", internet.address);
    let command = format!(
        "{PIP} {index} --target /tmp/there faraway && PYTHONPATH=/tmp/there python3 -c 'import faraway; print(faraway.word)'"
    );
    let host = Host::start();
    online(&host);
    let exit = host.sandbox("a").exec(json!({"command": command, "timeoutMs": 120_000}));
    assert!(exit["stdout"]["data"].as_str().is_some_and(|it| it.ends_with("installed\n")), "{exit}");
    let without = host.sandbox_with("b", json!({"sandboxId": "b", "internet": false}));
    let exit = without.exec(json!({"command": command, "timeoutMs": 120_000}));
    assert_eq!(exit["exitCode"], 1, "without a way out: {exit}");
}

/// The registry that this machine is set up for, by its name and with its certificate.
#[test]
fn pip_reaches_the_machines_registry_from_a_sandbox_exactly_where_the_machine_does() {
    let told = Command::new("sh").args(["-c", "/usr/bin/python3 -m pip config list"]).output().expect("sh runs").stdout;
    let settings: std::collections::BTreeMap<String, String> = String::from_utf8_lossy(&told)
        .lines()
        .filter_map(|line| {
            let (name, value) = line.split_once('=')?;
            let name = name.strip_prefix("global.").or(name.strip_prefix(":env:."))?;
            Some((format!("PIP_{}", name.to_uppercase().replace('-', "_")), value.trim_matches('\'').to_owned()))
        })
        .collect();
    let folder = crate::support::scratch();
    let here = format!("{PIP} --target {} six", folder.path().display());
    let here = || Command::new("sh").args(["-c", &here]).output().expect("sh runs");
    // A registry may stand in a private network.
    let host = Host::start_with(&["--allow-private"]);
    online(&host);
    let sandbox = host.sandbox("a");
    let there = json!({"command": format!("{PIP} --target /tmp/there six"), "env": settings, "timeoutMs": 300_000});
    // Again where they differ: a registry may fail one of them for a moment.
    for left in (0..3).rev() {
        let (exit, here) = (sandbox.exec(there.clone()), here());
        if (exit["exitCode"] == 0) == here.status.success() {
            return;
        }
        assert!(left > 0, "{exit} {}", String::from_utf8_lossy(&here.stderr));
    }
}
