//! Uploads in pieces: in order, resumed, committed at once, and never mixed.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use serde_json::json;

use crate::support::{Host, Reply, Sandbox, TOKEN, eventually};

fn put(sandbox: &Sandbox, range: &str, headers: &[(&str, &str)], content: &[u8]) -> Reply {
    let mut all = vec![("content-range", range)];
    all.extend_from_slice(headers);
    sandbox.call("PUT", "/v1/files/dir/big", &all, content)
}

fn received(reply: &Reply) -> (u16, u64) {
    (reply.status, reply.json()["received"].as_u64().expect("how far it got"))
}

#[test]
fn the_last_piece_commits_and_nothing_is_seen_before() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    sandbox.put("dir/big", b"old");
    sandbox.output("chmod 755 dir/big");
    let content: Vec<u8> = (0..3_000_000_u32).map(|index| (index * 7 + index / 251) as u8).collect();
    assert_eq!(received(&put(&sandbox, "bytes */3000000", &[], b"")), (202, 0));
    let first = put(&sandbox, "bytes 0-999999/3000000", &[], &content[..1_000_000]);
    assert_eq!(received(&first), (202, 1_000_000));
    let id = first.json()["uploadId"].as_str().expect("an id").to_owned();
    assert_eq!(
        received(&put(
            &sandbox,
            "bytes 1000000-1999999/3000000",
            &[("upload-id", &id)],
            &content[1_000_000..2_000_000]
        )),
        (202, 2_000_000)
    );
    let asked = put(&sandbox, "bytes */3000000", &[], b"");
    assert_eq!((received(&asked), asked.json()["uploadId"].as_str()), ((202, 2_000_000), Some(id.as_str())));
    assert_eq!(sandbox.get("dir/big").body, b"old");
    let last = put(&sandbox, "bytes 2000000-2999999/3000000", &[], &content[2_000_000..]);
    assert_eq!(
        (last.status, &last.json()["size"], &last.json()["created"]),
        (200, &json!(3_000_000), &json!(false)),
        "{}",
        last.text()
    );
    assert!(sandbox.get("dir/big").body == content);
    assert_eq!(sandbox.output("stat -c '%a %U' dir/big; ls -A"), "755 sandbox\ndir\n");
}

#[test]
fn a_piece_that_does_not_follow_is_refused_and_told_where_to_go_on() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    put(&sandbox, "bytes 5-9/10", &[], b"56789").refused(409, "upload_conflict", "0 bytes");
    let first = put(&sandbox, "bytes 0-3/10", &[], b"0123");
    let id = first.json()["uploadId"].as_str().expect("an id").to_owned();
    put(&sandbox, "bytes 5-9/10", &[], b"56789").refused(409, "upload_conflict", "4 bytes");
    put(&sandbox, "bytes 2-5/10", &[], b"2345").refused(409, "upload_conflict", "4 bytes");
    put(&sandbox, "bytes 4-9/10", &[("upload-id", "other")], b"456789").refused(
        409,
        "upload_conflict",
        "Content-Range",
    );
    put(&sandbox, "bytes 4-9/11", &[], b"456789").refused(409, "upload_conflict", "Content-Range");
    put(&sandbox, "bytes 4-9/10", &[], b"4567").refused(400, "invalid_arguments", "Content-Length");
    for bad in ["bytes 0-9/*", "bytes 9-0/10", "bytes 0-10/10", "chars 0-3/10"] {
        put(&sandbox, bad, &[], b"0123").refused(400, "invalid_arguments", "Content-Range");
    }
    // Whoever knows of nothing begins anew; the other one hears of it by its id.
    assert_eq!(received(&put(&sandbox, "bytes 0-3/10", &[], b"abcd")), (202, 4));
    put(&sandbox, "bytes 4-9/10", &[("upload-id", &id)], b"456789").refused(409, "upload_conflict", "Content-Range");
    assert_eq!(put(&sandbox, "bytes 4-9/10", &[], b"efghij").status, 201);
    assert_eq!(sandbox.get("dir/big").body, b"abcdefghij");
}

#[test]
fn an_upload_survives_a_broken_piece_and_a_new_daemon() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    put(&sandbox, "bytes 0-3/1000004", &[], b"0123");
    let mut stream = TcpStream::connect(sandbox.address).expect("a connection");
    write!(
        stream,
        "PUT {}/v1/files/dir/big HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\ncontent-length: 1000000\r\ncontent-range: bytes 4-1000003/1000004\r\n\r\n",
        sandbox.prefix
    )
    .expect("the head");
    stream.write_all(&[b'x'; 600_000]).expect("a part");
    eventually("a part has arrived", || received(&put(&sandbox, "bytes */1000004", &[], b"")).1 > 4);
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).expect("the option");
    drop(stream);
    // Another start of the daemon has it too, as soon as nobody writes any more.
    let data = host.end();
    let host = Host::start_in(data, &[]);
    let sandbox = host.sandbox("a");
    let (_, known) = received(&put(&sandbox, "bytes */1000004", &[], b""));
    assert!((5..=600_004).contains(&known), "{known}");
    let rest = vec![b'x'; usize::try_from(1_000_004 - known).expect("a size")];
    let reply = put(&sandbox, &format!("bytes {known}-1000003/1000004"), &[], &rest);
    assert_eq!(reply.status, 201, "{}", reply.text());
    assert_eq!(sandbox.output("head -c 6 dir/big; stat -c ' %s' dir/big").trim(), "0123xx 1000004");
}

#[test]
fn what_nobody_goes_on_with_is_swept() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    put(&sandbox, "bytes 0-3/10", &[], b"0123");
    assert_eq!(sandbox.output("ls .sandboxd-uploads | wc -l").trim(), "1");
    sandbox.output("touch -d '2 days ago' .sandboxd-uploads/*");
    assert_eq!(received(&put(&sandbox, "bytes */10", &[], b"")), (202, 0));
    assert_eq!(sandbox.output("ls .sandboxd-uploads | wc -l").trim(), "0");
    put(&sandbox, "bytes 0-3/10", &[], b"0123");
    sandbox.output("touch -d '2 days ago' .sandboxd-uploads/*");
    let host = Host::start_in(host.end(), &[]);
    assert_eq!(host.sandbox("a").output("ls -A"), "dir\n", "a new daemon looks first");
}

#[test]
fn commands_cannot_lead_an_upload_elsewhere() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    put(&sandbox, "bytes 0-3/10", &[], b"0123");
    sandbox.output("echo kept > /tmp/kept; cd .sandboxd-uploads; for f in *; do ln -sf /tmp/kept $f; done");
    let reply = put(&sandbox, "bytes 4-9/10", &[], b"456789");
    assert!((400..500).contains(&reply.status), "{}", reply.text());
    sandbox.output("cd .sandboxd-uploads; for f in *; do rm $f; mkfifo $f; done");
    let reply = put(&sandbox, "bytes 0-3/10", &[], b"0123");
    assert!((200..500).contains(&reply.status), "{}", reply.text());
    sandbox.output("rm -rf .sandboxd-uploads; ln -s /tmp .sandboxd-uploads");
    put(&sandbox, "bytes 0-3/10", &[], b"0123").refused(403, "path_escapes", "path");
    assert_eq!(sandbox.output("cat /tmp/kept; ls /tmp"), "kept\nkept\n");
}

#[test]
fn a_condition_holds_at_the_commit() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let old = sandbox.put("dir/big", b"old").json()["etag"].as_str().expect("a tag").to_owned();
    assert_eq!(put(&sandbox, "bytes 0-3/8", &[("if-match", &old)], b"0123").status, 202);
    sandbox.put("dir/big", b"other");
    put(&sandbox, "bytes 4-7/8", &[("if-match", &old)], b"4567").refused(412, "precondition_failed", "If-Match");
    assert_eq!(sandbox.get("dir/big").body, b"other");
}
