//! Entries of the workspace: listed, looked at, made, moved and removed, whatever their names are.

use serde_json::{Value, json};

use crate::support::{Host, Reply, Sandbox};

fn list(sandbox: &Sandbox, path: &str, query: &str) -> Value {
    let reply = sandbox.call("GET", &format!("/v1/directories/{path}{query}"), &[], b"");
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()
}

fn paths(listing: &Value) -> Vec<String> {
    let entries = listing["entries"].as_array().expect("entries");
    entries.iter().map(|entry| entry["path"].as_str().expect("a path").to_owned()).collect()
}

fn stat(sandbox: &Sandbox, path: &str) -> Reply {
    sandbox.call("GET", &format!("/v1/entries/{path}"), &[], b"")
}

fn delete(sandbox: &Sandbox, path: &str) -> Reply {
    sandbox.call("DELETE", &format!("/v1/entries/{path}"), &[], b"")
}

fn make(sandbox: &Sandbox, path: &str) -> Reply {
    sandbox.call("PUT", &format!("/v1/directories/{path}"), &[], b"")
}

fn rename(sandbox: &Sandbox, request: Value) -> Reply {
    sandbox.call("POST", "/v1/moves", &[], request.to_string().as_bytes())
}

#[test]
fn every_name_can_be_listed_read_moved_and_deleted() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    sandbox.output(r#"for f in $'\xff\x01bad' 'a b' 'é' "q'uote" $'new\nline' -- -rf '%41' '*' ' '; do printf %s "$f" > "./$f"; done"#);
    let listing = list(&sandbox, "", "");
    assert_eq!(listing["entries"].as_array().map(Vec::len), Some(10), "{listing}");
    for entry in listing["entries"].as_array().expect("entries") {
        let path = entry["path"].as_str().expect("a path");
        // What a listing answers is what every other operation takes.
        let in_url: String = match entry.get("pathEncoding") {
            Some(encoding) => {
                assert_eq!(encoding, "percent");
                path.to_owned()
            }
            None => path.bytes().map(|byte| format!("%{byte:02X}")).collect(),
        };
        let read = sandbox.get(&in_url);
        assert_eq!(read.status, 200, "{path:?}");
        assert_eq!(stat(&sandbox, &in_url).json(), *entry);
        let encoding = entry.get("pathEncoding").cloned().unwrap_or_else(|| json!("utf-8"));
        let reply = rename(&sandbox, json!({"from": path, "to": format!("moved/{path}"), "pathEncoding": encoding}));
        assert_eq!(reply.status, 200, "{path:?}: {}", reply.text());
        assert_eq!(sandbox.get(&format!("moved/{in_url}")).body, read.body, "{path:?}");
        let reply = delete(&sandbox, &format!("moved/{in_url}"));
        assert_eq!((reply.status, reply.json()), (200, json!({"removed": 1, "complete": true})), "{path:?}");
    }
    assert_eq!(sandbox.output("ls -A; ls -A moved"), "moved\n");
    assert!(list(&sandbox, "", "")["entries"][0]["path"] == "moved");
}

#[test]
fn an_entry_is_told_as_it_is() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    sandbox.output(
        "printf 12345 > f; chmod 640 f; touch -d '2001-02-03T04:05:06Z' f; mkdir -m 700 d; ln -s /etc/passwd l; \
         ln -s $'\\xfe' raw; mkfifo p",
    );
    let f = stat(&sandbox, "f").json();
    assert_eq!(
        (&f["path"], &f["type"], &f["size"], &f["mode"], &f["modifiedAt"]),
        (&json!("f"), &json!("file"), &json!(5), &json!("0640"), &json!("2001-02-03T04:05:06.000Z"))
    );
    assert_eq!(f["etag"], sandbox.call("HEAD", "/v1/files/f", &[], b"").header("etag"));
    let d = stat(&sandbox, "d/").json();
    assert_eq!((&d["path"], &d["type"], &d["mode"]), (&json!("d"), &json!("directory"), &json!("0700")));
    let l = stat(&sandbox, "l").json();
    assert_eq!((&l["type"], &l["linkTarget"]), (&json!("symlink"), &json!("/etc/passwd")));
    let raw = stat(&sandbox, "raw").json();
    assert_eq!((&raw["linkTarget"], &raw["linkTargetEncoding"]), (&json!("%FE"), &json!("percent")));
    assert_eq!(stat(&sandbox, "p").json()["type"], "other");
    assert_eq!(stat(&sandbox, "").json()["type"], "directory");
    assert_eq!(stat(&sandbox, "d/..").json()["type"], "directory");
    sandbox.call("GET", "/v1/entries/l?follow=true", &[], b"").refused(403, "path_escapes", "path");
    sandbox.output("ln -sf f l");
    assert_eq!(sandbox.call("GET", "/v1/entries/l?follow=true", &[], b"").json()["path"], "f");
    stat(&sandbox, "none").refused(404, "not_found", "path");
    sandbox.call("GET", "/v1/entries/f?folow=true", &[], b"").refused(400, "invalid_arguments", "folow");
}

#[test]
fn pages_of_a_listing_join_without_gap_and_without_repetition() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    sandbox.output("mkdir -p d/{a,b,.hidden}/{x,y}; touch d/{a,b}/{x,y}/{1..20} d/a-b d/.dot; ln -s . d/loop");
    let whole = paths(&list(&sandbox, "d", "?recursive=true&limit=1000"));
    assert_eq!(whole.len(), 2 * 3 + 80 + 3 + 3, "{whole:?}");
    assert_eq!(&whole[..3], ["d/.dot", "d/.hidden", "d/.hidden/x"]);
    for limit in [1, 7, 50] {
        let (mut joined, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = list(&sandbox, "d", &format!("?recursive=true&limit={limit}{cursor}"));
            joined.extend(paths(&page));
            let Some(next) = page.get("nextCursor") else { break };
            cursor = format!("&cursor={}", next.as_str().expect("text").replace('%', "%25"));
        }
        assert_eq!(joined, whole, "{limit}");
    }
    let visible = paths(&list(&sandbox, "d", "?recursive=true&limit=1000&hidden=false"));
    assert_eq!(visible.len(), whole.len() - 4, "{visible:?}");
    assert_eq!(paths(&list(&sandbox, "d", "")), ["d/.dot", "d/.hidden", "d/a", "d/a-b", "d/b", "d/loop"]);
    let refused = |query: &str| sandbox.call("GET", &format!("/v1/directories/d{query}"), &[], b"");
    refused("?limit=0").refused(400, "invalid_arguments", "limit");
    refused("?limit=1001").refused(400, "invalid_arguments", "limit");
    refused("?cursor=..").refused(400, "invalid_arguments", "cursor");
    refused("/a-b").refused(409, "wrong_file_type", "path");
}

#[test]
fn what_may_not_be_entered_is_counted() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    sandbox
        .output("mkdir -p open closed/in; chmod 000 closed; p=deep; for i in $(seq 200); do p=$p/d; done; mkdir -p $p");
    let listing = list(&sandbox, "", "?recursive=true&limit=1000");
    assert_eq!(listing["unreadDirectories"], 2, "one is closed, one is too deep: {listing}");
    list(&sandbox, "", "")["entries"].as_array().expect("entries");
    sandbox.call("GET", "/v1/directories/closed", &[], b"").refused(403, "permission_denied", "path");
    sandbox.output("chmod 700 closed");
}

#[test]
fn directories_are_made_and_what_is_there_is_told() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let reply = make(&sandbox, "d");
    assert_eq!((reply.status, reply.json()), (201, json!({"created": true})));
    make(&sandbox, "d").refused(409, "already_exists", "path");
    make(&sandbox, "x/y/z").refused(404, "not_found", "path");
    assert_eq!(make(&sandbox, "x/y/z?recursive=true").status, 201);
    let reply = make(&sandbox, "x/y/z?recursive=true");
    assert_eq!((reply.status, reply.json()), (200, json!({"created": false})));
    sandbox.output("touch f; ln -s d l");
    make(&sandbox, "f?recursive=true").refused(409, "wrong_file_type", "path");
    make(&sandbox, "f/d?recursive=true").refused(409, "wrong_file_type", "path");
    assert_eq!(make(&sandbox, "l?recursive=true").status, 200);
    assert_eq!(sandbox.output("stat -c '%a %U' x/y").trim(), "755 sandbox");
}

#[test]
fn a_move_replaces_only_what_it_may() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    sandbox.output("echo a > a; echo b > b; mkdir full empty other; touch full/x; ln -s /etc l");
    rename(&sandbox, json!({"from": "a", "to": "b"})).refused(409, "already_exists", "to");
    let reply = rename(&sandbox, json!({"from": "a", "to": "b", "overwrite": true}));
    assert_eq!((reply.status, reply.json()), (200, json!({"replaced": true})));
    assert_eq!(sandbox.output("cat b; ls a 2>&1 || true"), "a\nls: cannot access 'a': No such file or directory\n");
    let reply = rename(&sandbox, json!({"from": "b", "to": "new/deep/b"}));
    assert_eq!((reply.status, reply.json()), (200, json!({"replaced": false})));
    let overwrite = |from: &str, to: &str| rename(&sandbox, json!({"from": from, "to": to, "overwrite": true}));
    overwrite("other", "full").refused(409, "already_exists", "to");
    overwrite("new/deep/b", "full").refused(409, "wrong_file_type", "to");
    overwrite("full", "new/deep/b").refused(409, "wrong_file_type", "to");
    overwrite("new", "new/deep/new").refused(400, "invalid_arguments", "to");
    assert_eq!(overwrite("full", "empty").json(), json!({"replaced": true}));
    assert_eq!(overwrite("l", "link").status, 200);
    assert_eq!(sandbox.output("readlink link").trim(), "/etc");
    rename(&sandbox, json!({"from": "none", "to": "made/x"})).refused(404, "not_found", "from");
    assert_eq!(sandbox.output("ls -d made 2>/dev/null || echo none").trim(), "none", "nothing is made for nothing");
    assert_eq!(overwrite("link", "link").json(), json!({"replaced": false}));
    rename(&sandbox, json!({"from": "%zz", "to": "x", "pathEncoding": "percent"})).refused(
        400,
        "invalid_arguments",
        "from",
    );
}

#[test]
fn a_directory_goes_whole_only_when_asked() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    sandbox.output(
        "mkdir -p d/{a,b}/c empty kept; touch d/{1..100} d/a/c/x kept/file; ln -s ../kept d/link; ln -s kept l",
    );
    delete(&sandbox, "d").refused(409, "already_exists", "path");
    assert_eq!(delete(&sandbox, "empty").json(), json!({"removed": 1, "complete": true}));
    assert_eq!(delete(&sandbox, "d?recursive=true").json(), json!({"removed": 107, "complete": true}));
    assert_eq!(delete(&sandbox, "l?recursive=true").json(), json!({"removed": 1, "complete": true}));
    assert_eq!(sandbox.output("ls -A; ls kept"), "kept\nfile\n", "links go, what they lead to stays");
    delete(&sandbox, "d?recursive=true").refused(404, "not_found", "path");
    delete(&sandbox, "").refused(409, "wrong_file_type", "path");
    delete(&sandbox, "/workspace?recursive=true").refused(409, "wrong_file_type", "path");
    delete(&sandbox, ".?recursive=true").refused(409, "wrong_file_type", "path");
    sandbox.output("mkdir -p locked/in; chmod 500 locked");
    delete(&sandbox, "locked?recursive=true").refused(403, "permission_denied", "path");
    sandbox.output("chmod 700 locked");
}

#[test]
fn a_very_deep_tree_goes() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    sandbox.output("mkdir deep; cd deep; for i in $(seq 600); do mkdir d && cd d || exit 1; done; touch end");
    let reply = delete(&sandbox, "deep?recursive=true");
    assert_eq!((reply.status, reply.json()["complete"].as_bool()), (200, Some(true)), "{}", reply.text());
    assert_eq!(sandbox.output("ls -A"), "");
}

#[test]
fn no_operation_leads_out_of_the_workspace() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    sandbox.output("ln -s /etc etc; ln -s ../../etc up; ln -s /tmp tmp; mkdir d; touch d/f");
    let outside = [
        "../etc",
        "..%2f..%2fetc",
        "/etc",
        "//etc",
        "%2fetc",
        "/workspace/../etc",
        "d/../../etc",
        "etc/ssl",
        "up/ssl",
        "tmp/x",
    ];
    for path in outside {
        for (method, route) in [
            ("GET", "entries"),
            ("GET", "directories"),
            ("PUT", "directories"),
            ("GET", "archives"),
            ("PUT", "archives"),
            ("GET", "watches"),
            ("DELETE", "entries"),
        ] {
            let reply = sandbox.call(method, &format!("/v1/{route}/{path}"), &[], b"");
            reply.refused(403, "path_escapes", "path");
        }
        let decoded = path.replace("%2f", "/");
        rename(&sandbox, json!({"from": "d/f", "to": decoded})).refused(403, "path_escapes", "to");
        rename(&sandbox, json!({"from": decoded, "to": "x"})).refused(403, "path_escapes", "from");
        let search = json!({"path": decoded, "name": "*", "limit": 1, "timeoutMs": 1000});
        let reply = sandbox.call("POST", "/v1/searches", &[], search.to_string().as_bytes());
        reply.refused(403, "path_escapes", "path");
    }
    for path in ["etc", "up"] {
        sandbox.call("GET", &format!("/v1/directories/{path}"), &[], b"").refused(403, "path_escapes", "path");
        sandbox.call("PUT", &format!("/v1/directories/{path}?recursive=true"), &[], b"").refused(
            403,
            "path_escapes",
            "path",
        );
    }
    for path in ["$(touch%20pwn)", "%60id%60", ";id", "-la"] {
        sandbox.call("GET", &format!("/v1/directories/{path}"), &[], b"").refused(404, "not_found", "path");
    }
    assert_eq!(sandbox.output("ls -A d /tmp; ls"), "/tmp:\n\nd:\nf\nd\netc\ntmp\nup\n");
}

#[test]
fn a_link_swapped_in_meanwhile_leads_nowhere() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    sandbox.output("mkdir -p real/sub; touch real/sub/inside; mkdir -p /tmp/secret/sub; touch /tmp/secret/sub/stolen");
    let mut swapping = sandbox.stream(json!({
        "id": "swap",
        "command": "while :; do mv real hold; ln -s /tmp/secret real; rm real; mv hold real; done",
        "timeoutMs": 600_000,
    }));
    assert_eq!(swapping.next().expect("it starts").0, "started");
    for round in 0..150 {
        let reply = match round % 3 {
            0 => sandbox.call("GET", "/v1/directories/real?recursive=true", &[], b""),
            1 => sandbox.call("GET", "/v1/archives/real?format=tar", &[], b""),
            _ => {
                let search = json!({"path": "real", "name": "*", "limit": 100, "timeoutMs": 1000});
                sandbox.call("POST", "/v1/searches", &[], search.to_string().as_bytes())
            }
        };
        assert!([200, 403, 404, 409].contains(&reply.status), "{} {}", reply.status, reply.text());
        assert!(!reply.text().contains("stolen"), "{}", reply.text());
        delete(&sandbox, "real/sub/stolen");
    }
    sandbox.call("POST", "/v1/execs/swap/kill", &[], b"{}");
    assert_eq!(sandbox.output("ls /tmp/secret/sub").trim(), "stolen");
}

#[test]
fn a_write_over_another_version_is_refused() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    let put = |headers: &[(&str, &str)], content: &[u8]| sandbox.call("PUT", "/v1/files/f", headers, content);
    put(&[("if-match", "*")], b"x").refused(412, "precondition_failed", "If-Match");
    let made = put(&[("if-none-match", "*")], b"one");
    assert_eq!(made.status, 201);
    put(&[("if-none-match", "*")], b"x").refused(412, "precondition_failed", "If-None-Match");
    let first = made.json()["etag"].as_str().expect("a tag").to_owned();
    assert_eq!(sandbox.get("f").header("etag"), first);
    let second = put(&[("if-match", &first)], b"two");
    assert_eq!((second.status, second.json()["created"].as_bool()), (200, Some(false)));
    put(&[("if-match", &first)], b"lost").refused(412, "precondition_failed", "If-Match");
    let second = second.json()["etag"].as_str().expect("a tag").to_owned();
    // Also a command's write in place, of the same size and with the time set back, makes another version.
    sandbox.output("touch -r f old; printf TWO | dd of=f conv=notrunc status=none; touch -r old f");
    put(&[("if-match", &second)], b"lost").refused(412, "precondition_failed", "If-Match");
    assert_eq!(sandbox.get("f").body, b"TWO");
}

#[test]
fn of_many_writers_of_one_version_one_succeeds() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    sandbox.put("f", b"0");
    for round in 0..5 {
        let etag = sandbox.get("f").header("etag").to_owned();
        let statuses: Vec<u16> = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..6)
                .map(|number| {
                    let (sandbox, etag) = (sandbox.clone(), etag.clone());
                    scope.spawn(move || {
                        let content = format!("{round}-{number}").repeat(1000);
                        sandbox.call("PUT", "/v1/files/f", &[("if-match", &etag)], content.as_bytes()).status
                    })
                })
                .collect();
            writers.into_iter().map(|writer| writer.join().expect("a writer")).collect()
        });
        assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 1, "{statuses:?}");
        assert_eq!(statuses.iter().filter(|status| **status == 412).count(), 5, "{statuses:?}");
    }
    assert_eq!(sandbox.output("ls -A").trim(), "f");
}
