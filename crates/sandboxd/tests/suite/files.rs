//! Raw files: exact, atomic, contained.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::{Duration, Instant};

use crate::support::{Host, Sandbox, TOKEN, call, daemons, eventually, resident_bytes};

#[test]
fn every_size_survives() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    for size in [0, 1, 4095, 4096, 4097, 18_431, 18_433, 65_535, 65_537, 120_000, 262_144, 5_000_000] {
        let content: Vec<u8> = (0..size).map(|index: usize| (index * 7 + index / 251) as u8).collect();
        let reply = sandbox.put("some/where/file", &content);
        assert_eq!(reply.json()["size"], size);
        let reply = sandbox.get("some/where/file");
        assert_eq!((reply.status, reply.header("content-length")), (200, size.to_string().as_str()));
        assert!(reply.body == content, "{size}");
        assert_eq!(sandbox.output("stat -c %s some/where/file").trim(), size.to_string());
    }
}

#[test]
fn content_is_never_interpreted() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    for content in [b"'\"$(id)\\`EOF\\\\` \r\n no final newline".as_slice(), b"\xff\xfe\x00\x80"] {
        sandbox.put("file", content);
        assert_eq!(sandbox.get("file").body, content);
    }
}

#[test]
fn the_answer_says_whether_the_file_is_new() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let reply = sandbox.put("f", b"1");
    assert_eq!((reply.status, reply.json()["created"].as_bool()), (201, Some(true)));
    let reply = sandbox.put("f", b"2");
    assert_eq!((reply.status, reply.json()["created"].as_bool()), (200, Some(false)));
}

#[test]
fn names_are_bytes() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    for name in ["%ff%01bad", "a%20b", "%C3%A9", "q%27uote", "new%0Aline", "--", "-rf", "%25", "a%3Fb%23c"] {
        assert_eq!(sandbox.put(name, name.as_bytes()).status, 201, "{name}");
        assert_eq!(sandbox.get(name).body, name.as_bytes(), "{name}");
    }
    assert_eq!(sandbox.output("ls -A | wc -l").trim(), "10");
    for path in ["$(touch%20pwn)", "%60id%60", ";id", "-la"] {
        assert_eq!(sandbox.get(path).status, 404, "{path}");
    }
    assert_eq!(sandbox.get("pwn").status, 404);
}

#[test]
fn nothing_leads_out_of_the_workspace() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    sandbox.output("ln -s /etc etc; ln -s /etc/passwd passwd; ln -s ../../etc up; ln -s /tmp/new dangling; mkdir d");
    for path in [
        "../etc/passwd",
        "..%2f..%2fetc%2fpasswd",
        "/etc/passwd",
        "//etc/passwd",
        "%2fetc%2fpasswd",
        "/workspace/../etc/passwd",
        "d/../../etc/passwd",
        "etc/passwd",
        "passwd",
        "up/passwd",
        "dangling",
    ] {
        sandbox.get(path).refused(403, "path_escapes", "path");
        sandbox.put(path, b"x").refused(403, "path_escapes", "path");
    }
    sandbox.put("etc/new/file", b"x").refused(403, "path_escapes", "path");
    sandbox.put("../made/file", b"x").refused(403, "path_escapes", "path");
    assert_eq!(sandbox.output("ls -A /tmp"), "");
}

#[test]
fn links_that_stay_inside_work() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    sandbox.output("mkdir d; echo old > d/f; ln -s d/f link; ln -s d dir; ln -s nowhere dangling");
    assert_eq!(sandbox.get("link").body, b"old\n");
    assert_eq!(sandbox.get("d/../d/f").body, b"old\n");
    sandbox.put("link", b"new");
    sandbox.put("dir/g", b"g");
    sandbox.put("dangling", b"d");
    assert_eq!(sandbox.output("cat d/f d/g dangling; readlink link"), "newgdd/f\n");
    assert_eq!(sandbox.get("/workspace/d/f").body, b"new");
}

#[test]
fn what_is_no_regular_file_is_refused_at_once() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    sandbox.output(
        "mkdir d; mkfifo pipe; echo > file; python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('sock')\"",
    );
    for path in ["d", "pipe", "sock", "file/below", "", "/workspace", "d/."] {
        let started = Instant::now();
        let reply = sandbox.get(path);
        assert_eq!(
            (reply.status, reply.json()["code"].as_str()),
            (409, Some("wrong_file_type")),
            "{path}: {}",
            reply.text()
        );
        assert!(started.elapsed() < Duration::from_secs(30), "{path}: {:?}", started.elapsed());
    }
    for path in ["d", "pipe", "file/below", "", "d/", "new/", "d/."] {
        sandbox.put(path, b"x").refused(409, "wrong_file_type", "path");
    }
    sandbox.get("none").refused(404, "not_found", "path");
    sandbox.put(&"x".repeat(300), b"x").refused(400, "invalid_arguments", "path");
}

#[test]
fn ranges_are_answered_as_the_standard_says() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    sandbox.put("f", b"0123456789");
    let get = |range: &str| sandbox.call("GET", "/v1/files/f", &[("range", range)], b"");
    for (range, body, content_range) in [
        ("bytes=2-4", "234", "bytes 2-4/10"),
        ("bytes=7-", "789", "bytes 7-9/10"),
        ("bytes=-2", "89", "bytes 8-9/10"),
        ("bytes=8-99", "89", "bytes 8-9/10"),
    ] {
        let reply = get(range);
        assert_eq!((reply.status, reply.text().as_str(), reply.header("content-range")), (206, body, content_range));
        assert_eq!(reply.header("content-length"), body.len().to_string());
    }
    let reply = get("bytes=10-");
    reply.refused(416, "range_not_satisfiable", "Range");
    assert_eq!(reply.header("content-range"), "bytes */10");
    let reply = get("bytes=0-1,4-5");
    assert_eq!((reply.status, reply.text().as_str()), (200, "0123456789"));
}

#[test]
fn head_tells_everything_but_the_bytes() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    sandbox.put("f", b"0123456789");
    let reply = sandbox.call("HEAD", "/v1/files/f", &[], b"");
    assert_eq!((reply.status, reply.header("content-length"), reply.body.len()), (200, "10", 0));
    assert_eq!(reply.header("accept-ranges"), "bytes");
    assert!(reply.header("last-modified").ends_with("GMT"));
    let before = reply.header("etag").to_owned();
    sandbox.put("f", b"9876543210");
    assert_ne!(sandbox.call("HEAD", "/v1/files/f", &[], b"").header("etag"), before);
    assert_eq!(sandbox.call("HEAD", "/v1/files/none", &[], b"").status, 404);
}

#[test]
fn a_range_of_a_huge_sparse_file_is_instant() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    sandbox.output("truncate -s 1T big; printf end >> big");
    let started = Instant::now();
    assert_eq!(sandbox.call("GET", "/v1/files/big", &[("range", "bytes=-3")], b"").body, b"end");
    assert_eq!(sandbox.call("GET", "/v1/files/big", &[("range", "bytes=5-9")], b"").body, [0; 5]);
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
}

#[test]
fn three_hundred_megabytes_go_both_ways_with_flat_memory() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let daemon = daemons(&host)[0];
    let block: Vec<u8> = (0..1 << 20).map(|index: usize| (index * 31 + index / 257) as u8).collect();
    let mut stream = begin_put(&sandbox, "big", 300 << 20);
    let mut peak = 0;
    for _ in 0..300 {
        stream.write_all(&block).expect("the upload goes on");
        peak = peak.max(resident_bytes(daemon));
    }
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.contains("\"size\":314572800"), "{answer}");
    let sum = sandbox.output("sha256sum < big");
    let reply = sandbox.get("big");
    peak = peak.max(resident_bytes(daemon)).max(resident_bytes(host.pid()) / 2);
    assert!(reply.body.chunks(1 << 20).all(|chunk| chunk == block));
    assert_eq!(reply.body.len(), 300 << 20);
    assert!(peak < 40 << 20, "{peak} bytes in a debug build");
    assert_eq!(sum.trim().len(), 67);
}

/// Sends the head of an upload.
fn begin_put(sandbox: &Sandbox, path: &str, length: u64) -> TcpStream {
    let mut stream = TcpStream::connect(sandbox.address).expect("a connection");
    write!(
        stream,
        "PUT {}/v1/files/{path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {TOKEN}\r\ncontent-length: {length}\r\n\r\n",
        sandbox.prefix
    )
    .expect("the head");
    stream
}

fn hidden_files(sandbox: &Sandbox) -> String {
    sandbox.output("find . -name '.upload-*' | wc -l").trim().to_owned()
}

#[test]
fn an_aborted_upload_leaves_the_old_file_and_nothing_else() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    sandbox.put("d/f", b"old");
    for reset in [false, true] {
        let mut stream = begin_put(&sandbox, "d/f", 1_000_000);
        stream.write_all(&[b'x'; 100_000]).expect("a part");
        eventually("the hidden file", || hidden_files(&sandbox) == "1");
        if reset {
            // Unread bytes on closing make the kernel send a reset.
            rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).expect("the option");
        }
        drop(stream);
        eventually("the clean-up", || hidden_files(&sandbox) == "0");
        assert_eq!(sandbox.get("d/f").body, b"old");
    }
}

#[test]
fn an_upload_without_a_length_is_refused() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let mut stream = TcpStream::connect(sandbox.address).expect("a connection");
    write!(
        stream,
        "PUT {}/v1/files/f HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {TOKEN}\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        sandbox.prefix
    )
    .expect("the request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 411") && answer.contains("length_required"), "{answer}");
    assert_eq!(sandbox.get("f").status, 404);
}

#[test]
fn a_refusal_reaches_whoever_is_still_sending() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    for _ in 0..20 {
        sandbox.put("../out", &vec![1; 3_000_000]).refused(403, "path_escapes", "path");
        let reply = call(host.address, "PUT", &format!("{}/v1/files/f", sandbox.prefix), &[], &vec![1; 3_000_000]);
        reply.refused(401, "unauthenticated", "Authorization");
    }
}

#[test]
fn a_full_disk_is_said_and_the_old_file_stays() {
    // A limit on the size of files stands in for a full disk, which a test must not make.
    let host = Host::start_with_file_limit(1_000_000);
    let sandbox = host.sandbox("a");
    sandbox.put("f", b"old");
    sandbox.put("f", &vec![1; 2_000_000]).refused(507, "no_space", "space");
    assert_eq!(sandbox.get("f").body, b"old");
    assert_eq!(hidden_files(&sandbox), "0");
}

#[test]
fn permissions_stay_and_new_files_are_ordinary() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    sandbox.put("new/f", b"1");
    sandbox.output("echo > script; chmod 750 script; echo > closed; chmod 000 closed");
    sandbox.put("script", b"echo hi");
    assert_eq!(sandbox.output("stat -c '%a %U' new/f script"), "644 sandbox\n750 sandbox\n");
    sandbox.get("closed").refused(403, "permission_denied", "path");
    let metadata = std::fs::metadata(host.workspace("a").join("new/f")).expect("the file");
    assert_eq!(metadata.permissions().mode() & 0o777, 0o644);
    assert_ne!(metadata.uid(), 0, "files of a sandbox never belong to root");
}

#[test]
fn writers_at_once_leave_one_whole_file() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    std::thread::scope(|scope| {
        for number in 0..8u8 {
            let sandbox = sandbox.clone();
            scope.spawn(move || sandbox.put("deep/er/f", &vec![number; 500_000]));
        }
    });
    let body = sandbox.get("deep/er/f").body;
    assert_eq!(body.len(), 500_000);
    assert!(body.iter().all(|byte| *byte == body[0]));
    assert_eq!(hidden_files(&sandbox), "0");
}
