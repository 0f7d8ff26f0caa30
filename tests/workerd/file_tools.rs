//! The file tools through the Worker: listed, looked at, made, moved, removed, edited and searched.

use reqwest::{Method, header::CONTENT_LENGTH};
use serde_json::{Value, json};
use test_support::{Answer, Sandbox, Stack};

async fn ok(sandbox: &Sandbox, tool: &str, arguments: Value) -> Value {
    sandbox.call(tool, arguments).await.ok()
}

fn paths(listing: &Value) -> Vec<String> {
    listing["entries"].as_array().unwrap().iter().map(|entry| entry["path"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn every_name_that_is_listed_is_taken_by_every_tool() {
    let sandbox = Stack::shared().sandbox().await;
    let names = r#"$'\xff\x01bad' 'a b' 'é' "q'uote" $'new\nline' -- -rf '%41' '~'"#;
    sandbox.sh(&format!("for f in {names}; do printf needle > \"./$f\"; done")).await;
    let listing = ok(&sandbox, "listFiles", json!({})).await;
    let entries = listing["entries"].as_array().unwrap();
    assert_eq!(entries.len(), 9, "{listing}");
    assert_eq!(entries.iter().filter(|entry| entry["pathEncoding"] == "percent").count(), 1);
    let found = ok(&sandbox, "searchFiles", json!({"content": "needle"})).await;
    assert_eq!(found["matches"].as_array().unwrap().len(), 9);
    for entry in entries {
        let path = entry["path"].as_str().unwrap();
        let named = |mut arguments: Value| {
            if let Some(encoding) = entry.get("pathEncoding") {
                arguments["pathEncoding"] = encoding.clone();
            }
            arguments
        };
        assert_eq!(ok(&sandbox, "readFile", named(json!({"path": path}))).await["content"], "needle", "{path:?}");
        assert_eq!(ok(&sandbox, "statFile", named(json!({"path": path}))).await, *entry, "{path:?}");
        let edit = named(json!({"path": path, "oldText": "needle", "newText": "thread"}));
        assert_eq!(ok(&sandbox, "editFile", edit).await["size"], 6);
        let moved = format!("moved/{path}");
        ok(&sandbox, "moveFile", named(json!({"from": path, "to": moved}))).await;
        let write = named(json!({"path": moved, "content": "written"}));
        assert_eq!(ok(&sandbox, "writeFile", write).await["created"], false);
        assert_eq!(ok(&sandbox, "deleteFile", named(json!({"path": moved}))).await["removed"], 1);
    }
    assert_eq!(paths(&ok(&sandbox, "listFiles", json!({})).await), ["moved"]);
    assert_eq!(ok(&sandbox, "listFiles", json!({"path": "moved"})).await["entries"], json!([]));
}

#[tokio::test]
async fn a_tree_is_made_listed_in_pages_and_removed() {
    let sandbox = Stack::shared().sandbox().await;
    sandbox.call("makeDirectory", json!({"path": "t/a/b"})).await.problem(404, "not_found");
    let made = ok(&sandbox, "makeDirectory", json!({"path": "t/a/b", "recursive": true})).await;
    assert_eq!(made, json!({"path": "t/a/b", "created": true}));
    sandbox.call("makeDirectory", json!({"path": "t/a"})).await.problem(409, "conflict");
    sandbox.sh("touch t/{1..30} t/a/.hidden t/a/b/{1..30}; ln -s / t/loop").await;
    let whole = ok(&sandbox, "listFiles", json!({"path": "t", "recursive": true, "limit": 1000})).await;
    assert_eq!((paths(&whole).len(), whole.get("nextCursor")), (64, None), "{whole}");
    let (mut joined, mut cursor) = (Vec::new(), None);
    loop {
        let mut arguments = json!({"path": "t", "recursive": true, "limit": 9});
        if let Some(cursor) = cursor.take() {
            arguments["cursor"] = cursor;
        }
        let page = ok(&sandbox, "listFiles", arguments).await;
        joined.extend(paths(&page));
        match page.get("nextCursor") {
            Some(next) => cursor = Some(next.clone()),
            None => break,
        }
    }
    assert_eq!(joined, paths(&whole));
    let visible = ok(&sandbox, "listFiles", json!({"path": "t/a", "hidden": false})).await;
    assert_eq!(paths(&visible), ["t/a/b"]);
    let link = ok(&sandbox, "statFile", json!({"path": "t/loop"})).await;
    assert_eq!((&link["type"], &link["linkTarget"]), (&json!("symlink"), &json!("/")));
    sandbox.call("statFile", json!({"path": "t/loop", "follow": true})).await.problem(403, "forbidden");
    sandbox.call("deleteFile", json!({"path": "t"})).await.problem(409, "conflict");
    assert_eq!(ok(&sandbox, "deleteFile", json!({"path": "t", "recursive": true})).await["removed"], 65);
    sandbox.call("statFile", json!({"path": "t"})).await.problem(404, "not_found");
    sandbox.call("deleteFile", json!({"path": "/workspace", "recursive": true})).await.problem(409, "conflict");
}

#[tokio::test]
async fn an_edit_is_exact_or_refused_with_the_count() {
    let sandbox = Stack::shared().sandbox().await;
    let write = |content: &'static str| sandbox.call("writeFile", json!({"path": "f", "content": content}));
    let edit = |old: &'static str, new: &'static str, all: bool| {
        sandbox.call("editFile", json!({"path": "f", "oldText": old, "newText": new, "replaceAll": all}))
    };
    write("fn a() {}\r\nfn b() {}\r\n$1 `x` 'é'").await.ok();
    sandbox.sh("chmod 755 f").await;
    let edited = edit("fn b() {}\r\n", "fn c() { $& }\n", false).await.ok();
    assert_eq!((&edited["replacements"], &edited["path"]), (&json!(1), &json!("f")));
    assert_eq!(sandbox.sh("cat f; stat -c %a f").await, "fn a() {}\r\nfn c() { $& }\n$1 `x` 'é'755\n");
    let problem = edit("fn d", "x", false).await.problem(409, "conflict");
    assert_eq!((&problem.details["reason"], &problem.details["matches"]), (&json!("no_match"), &json!(0)));
    let problem = edit("fn ", "x", false).await.problem(409, "conflict");
    assert_eq!((&problem.details["matches"], &problem.details["lines"]), (&json!(2), &json!([1, 2])));
    assert_eq!(edit("fn ", "pub fn ", true).await.ok()["replacements"], 2);
    edit("x", "x", false).await.problem(400, "invalid_arguments");
    edit("", "x", false).await.problem(400, "invalid_arguments");
    sandbox.sh("truncate -s 9M big; mkdir d").await;
    let big = sandbox.call("editFile", json!({"path": "big", "oldText": "a", "newText": "b"})).await;
    assert!(big.problem(413, "payload_too_large").details["limitBytes"].is_u64());
    sandbox.call("editFile", json!({"path": "d", "oldText": "a", "newText": "b"})).await.problem(409, "conflict");
    sandbox.call("editFile", json!({"path": "none", "oldText": "a", "newText": "b"})).await.problem(404, "not_found");
}

#[tokio::test]
async fn edits_at_the_same_time_are_all_there_in_the_end() {
    let sandbox = Stack::shared().sandbox().await;
    let lines: String = (0..8).map(|number| format!("line {number} old\n")).collect();
    ok(&sandbox, "writeFile", json!({"path": "f", "content": lines})).await;
    let edits = (0..8).map(|number| {
        let sandbox = &sandbox;
        async move {
            let arguments =
                json!({"path": "f", "oldText": format!("line {number} old"), "newText": format!("line {number} new")});
            // Who lost every race is told so, and asks again.
            for _ in 0..20 {
                let answer = sandbox.call("editFile", arguments.clone()).await;
                if answer.status == 200 {
                    return;
                }
                assert_eq!(answer.problem(409, "conflict").details["reason"], "changed_meanwhile");
            }
            panic!("an edit never came through");
        }
    });
    futures_util::future::join_all(edits).await;
    assert_eq!(sandbox.sh("grep -c new f; grep -c old f || true; wc -l < f").await, "8\n0\n8\n");
}

#[tokio::test]
async fn a_search_finds_content_and_names_and_says_what_it_left_out() {
    let sandbox = Stack::shared().sandbox().await;
    sandbox.sh("mkdir -p src/deep node_modules; echo 'let x = Foo(1);' > src/deep/a.rs; echo foo > src/b.txt; echo foo > node_modules/c; printf 'foo\\0' > bin").await;
    let found = ok(&sandbox, "searchFiles", json!({"content": "foo", "exclude": ["node_modules"]})).await;
    assert_eq!(found["matches"], json!([{"path": "src/b.txt", "line": 1, "column": 1, "text": "foo"}]));
    assert_eq!((&found["binaryFiles"], &found["truncated"]), (&json!(1), &json!(false)));
    let found = ok(&sandbox, "searchFiles", json!({"content": r"foo\(\d\)", "regex": true, "ignoreCase": true})).await;
    assert_eq!((&found["matches"][0]["path"], &found["matches"][0]["column"]), (&json!("src/deep/a.rs"), &json!(9)));
    let found = ok(&sandbox, "searchFiles", json!({"name": "src/**/*.rs"})).await;
    assert_eq!(found["matches"], json!([{"path": "src/deep/a.rs"}]));
    let found = ok(&sandbox, "searchFiles", json!({"content": "foo", "limit": 1})).await;
    assert_eq!((&found["truncated"], &found["truncatedBy"]), (&json!(true), &json!("limit")));
    sandbox.call("searchFiles", json!({})).await.problem(400, "invalid_arguments");
    let problem =
        sandbox.call("searchFiles", json!({"content": "(", "regex": true})).await.problem(400, "invalid_arguments");
    assert!(problem.detail.contains("content"), "{}", problem.detail);
}

#[tokio::test]
async fn no_tool_leads_out_of_the_workspace_or_into_a_shell() {
    let sandbox = Stack::shared().sandbox().await;
    sandbox.sh("ln -s /etc l; mkdir d; echo > d/f").await;
    for path in ["/etc", "../etc", "/workspace/../etc", "d/../../etc", "//etc", "l/ssl", "/proc/1"] {
        for (tool, arguments) in [
            ("statFile", json!({"path": path})),
            ("listFiles", json!({"path": path})),
            ("searchFiles", json!({"path": path, "name": "*"})),
            ("makeDirectory", json!({"path": format!("{path}/pwn"), "recursive": true})),
            ("moveFile", json!({"from": "d/f", "to": format!("{path}/pwn")})),
            ("moveFile", json!({"from": path, "to": "d/stolen"})),
            ("deleteFile", json!({"path": format!("{path}/passwd"), "recursive": true})),
            ("editFile", json!({"path": format!("{path}/passwd"), "oldText": "root", "newText": "pwn"})),
            ("writeFile", json!({"path": "%2e%2e%2fetc%2fpwn", "content": "x", "pathEncoding": "percent"})),
            ("watchFiles", json!({"path": path, "timeout": 1})),
            ("downloadArchive", json!({"path": path})),
            ("uploadArchive", json!({"path": path, "content": ""})),
        ] {
            let answer = sandbox.call(tool, arguments).await;
            let problem = answer.any_problem();
            assert!([400, 403, 404].contains(&answer.status), "{tool} {path}: {} {}", answer.status, answer.text());
            assert!(["forbidden", "invalid_arguments", "not_found"].contains(&problem.code.as_str()));
        }
    }
    for path in ["$(touch /tmp/pwn)", "`touch /tmp/pwn`", ";touch /tmp/pwn", "-la"] {
        sandbox.call("listFiles", json!({"path": path})).await.problem(404, "not_found");
    }
    assert_eq!(sandbox.sh("find / -xdev -name '*pwn*' 2>/dev/null; ls d").await, "f\n");
}

async fn put(sandbox: &Sandbox, path: &str, headers: &[(&str, &str)], bytes: &[u8]) -> Answer {
    let mut request = sandbox.client.request(Method::PUT, path).header(CONTENT_LENGTH, bytes.len());
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    sandbox.client.send(request.body(bytes.to_vec())).await
}

#[tokio::test]
async fn a_raw_write_over_another_version_is_refused() {
    let sandbox = Stack::shared().sandbox().await;
    let path = sandbox.file_path("f");
    assert_eq!(put(&sandbox, &path, &[("if-none-match", "*")], b"one").await.status, 201);
    put(&sandbox, &path, &[("if-none-match", "*")], b"x").await.problem(412, "precondition_failed");
    let etag = sandbox.client.get(&path).await.header("etag").unwrap().to_owned();
    let second = put(&sandbox, &path, &[("if-match", &etag)], b"two").await.ok();
    assert_ne!(second["etag"], etag);
    put(&sandbox, &path, &[("if-match", &etag)], b"lost").await.problem(412, "precondition_failed");
    assert_eq!(sandbox.client.get(&path).await.text(), "two");
}

#[tokio::test]
async fn an_upload_in_pieces_is_whole_or_not_there() {
    let sandbox = Stack::shared().sandbox().await;
    let path = sandbox.file_path("deep/big");
    let content: Vec<u8> = (0..600_000_u32).map(|index| (index * 31 + index / 251) as u8).collect();
    let first = put(&sandbox, &path, &[("content-range", "bytes 0-299999/600000")], &content[..300_000]).await;
    assert_eq!((first.status, &first.json()["received"]), (202, &json!(300_000)), "{}", first.text());
    let id = first.json()["uploadId"].as_str().unwrap().to_owned();
    let problem = put(&sandbox, &path, &[("content-range", "bytes 400000-599999/600000")], &content[400_000..]).await;
    assert_eq!(problem.problem(409, "conflict").details["reason"], "upload_conflict");
    let asked = put(&sandbox, &path, &[("content-range", "bytes */600000")], b"").await;
    assert_eq!((asked.status, asked.json()), (202, json!({"uploadId": id, "received": 300_000, "total": 600_000})));
    sandbox.client.get(&path).await.problem(404, "not_found");
    let headers = [("content-range", "bytes 300000-599999/600000"), ("upload-id", id.as_str())];
    let last = put(&sandbox, &path, &headers, &content[300_000..]).await;
    assert_eq!((last.status, &last.json()["size"]), (201, &json!(600_000)), "{}", last.text());
    assert_eq!(sandbox.client.get(&path).await.body.as_ref(), content);
    assert_eq!(sandbox.sh("ls -A . deep").await, ".:\ndeep\n\ndeep:\nbig\n");
}
