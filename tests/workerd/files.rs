//! Files through the tools and through the raw route: exact bytes, ranges, lengths, and nothing outside the workspace.

use base64::{Engine, engine::general_purpose::STANDARD};
use reqwest::{Method, header::CONTENT_LENGTH};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use test_support::{Answer, Sandbox, Stack, random_name};
use tokio::io::AsyncWriteExt;

async fn put(sandbox: &Sandbox, path: &str, bytes: Vec<u8>) -> Answer {
    let request = sandbox.client.request(Method::PUT, &sandbox.file_path(path)).header(CONTENT_LENGTH, bytes.len());
    sandbox.client.send(request.body(bytes)).await
}

async fn get_range(sandbox: &Sandbox, path: &str, range: &str) -> Answer {
    let request = sandbox.client.request(Method::GET, &sandbox.file_path(path)).header("range", range);
    sandbox.client.send(request).await
}

fn pattern(size: usize) -> Vec<u8> {
    (0..size).map(|index| (index * 31 + index / 251) as u8).collect()
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test]
async fn text_survives_the_tools() {
    let sandbox = Stack::shared().sandbox().await;
    for content in ["", "'\"$(id)\\`EOF\\\\\r\nno final newline", "é☕\u{1f600}\u{0}", "\u{feff}bom\n"] {
        let written = sandbox.call("writeFile", json!({"path": "a/b.txt", "content": content})).await.ok();
        assert_eq!(written["size"], content.len());
        let read = sandbox.call("readFile", json!({"path": "a/b.txt"})).await.ok();
        assert_eq!(read["content"], content);
        assert!(["utf-8", "utf8"].contains(&read["encoding"].as_str().unwrap()), "{read}");
        assert_eq!(
            (&read["size"], &read["offset"], &read["truncated"]),
            (&json!(content.len()), &json!(0), &json!(false))
        );
        assert_eq!(sandbox.sh("wc -c < a/b.txt").await.trim(), content.len().to_string());
    }
}

#[tokio::test]
async fn whether_a_file_was_there_is_told() {
    let sandbox = Stack::shared().sandbox().await;
    let write = || sandbox.call("writeFile", json!({"path": "new", "content": "x"}));
    assert_eq!(write().await.ok()["created"], true);
    assert_eq!(write().await.ok()["created"], false);
}

#[tokio::test]
async fn bytes_that_are_no_text_survive_without_being_named_so() {
    let sandbox = Stack::shared().sandbox().await;
    let bytes = b"\xff\xfe\x00\x80";
    let arguments = json!({"path": "b", "content": STANDARD.encode(bytes), "encoding": "base64"});
    assert_eq!(sandbox.call("writeFile", arguments).await.ok()["size"], 4);
    let read = sandbox.call("readFile", json!({"path": "b"})).await.ok();
    assert_eq!((&read["encoding"], &read["content"]), (&json!("base64"), &json!("//4AgA==")));
    assert_eq!(sandbox.client.get(&sandbox.file_path("b")).await.body.as_ref(), bytes);
}

#[tokio::test]
async fn every_size_near_a_border_arrives_whole() {
    let sandbox = Stack::shared().sandbox().await;
    for size in [0, 1, 4095, 4096, 4097, 18431, 18432, 18433, 65535, 65536, 65537, 120_000, 1 << 20, 5_000_000] {
        let bytes = pattern(size);
        let written = put(&sandbox, "sized", bytes.clone()).await;
        assert!([200, 201].contains(&written.status), "{size}: {}", written.text());
        assert_eq!(written.json()["size"], size, "{size}");
        let answer = sandbox.client.get(&sandbox.file_path("sized")).await;
        assert_eq!((answer.status, answer.header("content-length")), (200, Some(size.to_string().as_str())));
        assert_eq!(hex(&answer.body), hex(&bytes), "{size}");
    }
    let sum = sandbox.sh("sha256sum sized").await;
    assert!(sum.starts_with(&hex(&pattern(5_000_000))), "{sum}");
}

#[tokio::test]
async fn a_file_tool_takes_text_of_a_megabyte() {
    let sandbox = Stack::shared().sandbox().await;
    for size in [120_000, 1_000_000, 3_000_000] {
        let content = "é".repeat(size / 2);
        assert_eq!(sandbox.call("writeFile", json!({"path": "t", "content": content})).await.ok()["size"], size);
        assert_eq!(sandbox.sh("sha256sum t | cut -c1-64").await.trim(), hex(content.as_bytes()));
    }
    let problem = sandbox.call("writeFile", json!({"path": "t", "content": "x".repeat(4 << 20)})).await;
    let problem = problem.problem(413, "payload_too_large");
    assert!(problem.details["limitBytes"].is_u64(), "{:?}", problem.details);
}

#[tokio::test]
async fn a_part_of_a_file_can_be_read() {
    let sandbox = Stack::shared().sandbox().await;
    put(&sandbox, "r", b"0123456789".to_vec()).await;
    for (range, status, body, content_range) in [
        ("bytes=2-4", 206, "234", "bytes 2-4/10"),
        ("bytes=7-", 206, "789", "bytes 7-9/10"),
        ("bytes=-3", 206, "789", "bytes 7-9/10"),
        ("bytes=0-99", 206, "0123456789", "bytes 0-9/10"),
        ("bytes=9-9", 206, "9", "bytes 9-9/10"),
    ] {
        let answer = get_range(&sandbox, "r", range).await;
        assert_eq!((answer.status, answer.text().as_str()), (status, body), "{range}");
        assert_eq!(answer.header("content-range"), Some(content_range), "{range}");
        assert_eq!(answer.header("content-length"), Some(body.len().to_string().as_str()), "{range}");
    }
    let answer = get_range(&sandbox, "r", "bytes=10-").await;
    assert_eq!(answer.status, 416, "{}", answer.text());
    answer.any_problem();
    let read = sandbox.call("readFile", json!({"path": "r", "offset": 3, "limit": 4})).await.ok();
    assert_eq!((&read["content"], &read["offset"], &read["size"]), (&json!("3456"), &json!(3), &json!(10)));
    assert_eq!(read["truncated"], true, "there is more: {read}");
    let read = sandbox.call("readFile", json!({"path": "r", "offset": 10})).await.ok();
    assert_eq!((&read["content"], &read["truncated"]), (&json!(""), &json!(false)));
}

#[tokio::test]
async fn a_small_part_of_a_huge_file_comes_at_once() {
    let sandbox = Stack::shared().sandbox().await;
    // A terabyte, which nobody reads in that time.
    let sparse = "truncate -s 1T sparse; printf tail | dd of=sparse bs=1 seek=1000000000000 conv=notrunc status=none";
    sandbox.sh(sparse).await;
    let start = std::time::Instant::now();
    let answer = get_range(&sandbox, "sparse", "bytes=1000000000000-1000000000003").await;
    assert_eq!((answer.status, answer.text().as_str()), (206, "tail"));
    let read =
        sandbox.call("readFile", json!({"path": "sparse", "offset": 1_000_000_000_000_u64, "limit": 4})).await.ok();
    assert_eq!((&read["content"], &read["size"]), (&json!("tail"), &json!(1_u64 << 40)));
    let whole = sandbox.call("readFile", json!({"path": "sparse"})).await.ok();
    assert_eq!(whole["truncated"], true, "a read without a limit is bounded");
    assert!(start.elapsed() < test_support::PATIENCE, "{:?}", start.elapsed());
}

#[tokio::test]
async fn head_tells_the_size_and_sends_nothing() {
    let sandbox = Stack::shared().sandbox().await;
    put(&sandbox, "h", b"hello".to_vec()).await;
    let answer = sandbox.client.send(sandbox.client.request(Method::HEAD, &sandbox.file_path("h"))).await;
    assert_eq!((answer.status, answer.body.len()), (200, 0));
    assert_eq!(answer.header("content-length"), Some("5"));
    assert!(answer.header("etag").is_some() && answer.header("last-modified").is_some());
    let answer = sandbox.client.send(sandbox.client.request(Method::HEAD, &sandbox.file_path("none"))).await;
    assert_eq!(answer.status, 404);
}

#[tokio::test]
async fn names_of_every_kind_work_on_the_raw_route() {
    let sandbox = Stack::shared().sandbox().await;
    let names = [
        "a%20b",
        "%C3%A9",
        "q%27uote",
        "new%0Aline",
        "-rf",
        "%24%28id%29",
        "%3Bid",
        "per%25cent",
        "pl+us",
        "%FF%01bad",
    ];
    for name in names {
        let written = put(&sandbox, name, name.as_bytes().to_vec()).await;
        assert!([200, 201].contains(&written.status), "{name}: {}", written.text());
        let answer = sandbox.client.get(&sandbox.file_path(name)).await;
        assert_eq!((answer.status, answer.text().as_str()), (200, name), "{name}");
    }
    assert_eq!(sandbox.sh("ls | wc -l").await.trim(), "11", "one of them holds a line feed");
    assert_eq!(sandbox.sh("cat 'a b'").await, "a%20b");
}

#[tokio::test]
async fn a_missing_file_is_not_found_and_a_directory_is_no_file() {
    let sandbox = Stack::shared().sandbox().await;
    sandbox.sh("mkdir -p dir; mkfifo pipe").await;
    sandbox.client.get(&sandbox.file_path("none")).await.problem(404, "not_found");
    let problem = sandbox.call("readFile", json!({"path": "none/at/all"})).await.problem(404, "not_found");
    assert!(problem.detail.contains("path"), "{}", problem.detail);
    for path in ["dir", "pipe"] {
        let answers = [
            sandbox.client.get(&sandbox.file_path(path)).await,
            sandbox.call("readFile", json!({"path": path})).await,
            put(&sandbox, path, b"x".to_vec()).await,
            sandbox.call("writeFile", json!({"path": path, "content": "x"})).await,
        ];
        for answer in answers {
            assert!((400..500).contains(&answer.status), "{path}: {} {}", answer.status, answer.text());
            answer.any_problem();
        }
    }
}

#[tokio::test]
async fn nothing_outside_the_workspace_can_be_read_or_written() {
    let sandbox = Stack::shared().sandbox().await;
    sandbox.sh("ln -s /etc l; ln -s /etc/passwd p; ln -s ../etc/passwd q; ln -s /proc/1/environ e; mkdir d").await;
    let marker = random_name("pwn");
    let outside = [
        "/etc/passwd",
        "../etc/passwd",
        "/workspace/../etc/passwd",
        "d/../../etc/passwd",
        "//etc/passwd",
        "l/passwd",
        "p",
        "q",
        "e",
        "/proc/1/environ",
        "/workspace/l/passwd",
        "/workspace/../../../../etc/passwd",
    ];
    for path in outside {
        for (tool, arguments) in
            [("readFile", json!({"path": path})), ("writeFile", json!({"path": path, "content": marker}))]
        {
            let answer = sandbox.call(tool, arguments).await;
            let problem = answer.any_problem();
            assert!([400, 403, 404].contains(&answer.status), "{tool} {path}: {} {}", answer.status, answer.text());
            assert!(
                ["forbidden", "invalid_arguments", "not_found"].contains(&problem.code.as_str()),
                "{}",
                problem.code
            );
            assert!(!answer.text().contains("root:"), "{tool} {path}: {}", answer.text());
        }
    }
    let raw = [
        "..%2f..%2fetc%2fpasswd",
        "%2e%2e%2fetc%2fpasswd",
        "..%2fetc/passwd",
        "%2fetc%2fpasswd",
        "/etc/passwd",
        "l/passwd",
        "p",
        "d%2f..%2f..%2fetc%2fpasswd",
    ];
    for path in raw {
        for method in ["GET", "PUT"] {
            let head = format!(
                "{method} {} HTTP/1.1\nHost: x\nAuthorization: Bearer {{key}}\nConnection: close\nContent-Length: {}\n\n{}",
                sandbox.file_path(path),
                if method == "PUT" { marker.len() } else { 0 },
                if method == "PUT" { marker.as_str() } else { "" },
            );
            let answer = sandbox.client.raw(&head).await;
            let status = answer.split(' ').nth(1).unwrap_or_default().to_owned();
            assert!(["400", "403", "404"].contains(&status.as_str()), "{method} {path}: {answer}");
            assert!(!answer.contains("root:"), "{method} {path}");
        }
    }
    assert!(!sandbox.sh("cat /etc/passwd").await.contains(&marker));
    assert_eq!(sandbox.sh("find / -xdev -name 'pwn*' 2>/dev/null; echo").await, "\n");
}

#[tokio::test]
async fn a_path_is_no_shell_text() {
    let sandbox = Stack::shared().sandbox().await;
    for path in ["/workspace/$(touch /tmp/pwn)", "`touch /tmp/pwn`", ";touch /tmp/pwn", "-la", "a|touch /tmp/pwn"] {
        sandbox.call("readFile", json!({"path": path})).await.problem(404, "not_found");
        let created = sandbox.call("writeFile", json!({"path": path, "content": path})).await.ok();
        assert_eq!(created["size"], path.len());
        assert_eq!(sandbox.call("readFile", json!({"path": path})).await.ok()["content"], path);
    }
    assert_eq!(sandbox.sh("ls /tmp/pwn 2>/dev/null; echo").await, "\n");
}

#[tokio::test]
async fn an_upload_of_unknown_length_is_refused() {
    let sandbox = Stack::shared().sandbox().await;
    let chunks = futures_util::stream::iter([Ok::<_, String>(b"one".to_vec()), Ok(b"two".to_vec())]);
    let request = sandbox.client.request(Method::PUT, &sandbox.file_path("chunked"));
    let answer = sandbox.client.send(request.body(reqwest::Body::wrap_stream(chunks))).await;
    assert_eq!(answer.status, 411, "{}", answer.text());
    answer.any_problem();
    assert_eq!(sandbox.sh("ls -A").await, "");
}

#[tokio::test]
async fn an_aborted_upload_leaves_the_old_file_and_nothing_else() {
    let sandbox = Stack::shared().sandbox().await;
    put(&sandbox, "kept", b"the old content".to_vec()).await;
    let head = format!(
        "PUT {} HTTP/1.1\nHost: x\nAuthorization: Bearer {{key}}\nContent-Length: 1000000\n\n",
        sandbox.file_path("kept")
    );
    for reset in [false, true] {
        let mut connection = sandbox.client.connect(&head).await;
        connection.write_all(&vec![b'n'; 100_000]).await.unwrap();
        // The upload is under way once its temporary file is there.
        let begun = || async {
            let listed: Value = sandbox.exec(json!({"command": "ls -A | wc -l"})).await;
            (listed["stdout"].as_str()?.trim() == "2").then_some(())
        };
        test_support::eventually("the upload has begun", test_support::PATIENCE, begun).await;
        if reset {
            connection.set_zero_linger().unwrap();
        }
        drop(connection);
        let gone = || async { (sandbox.sh("ls -A").await == "kept\n").then_some(()) };
        test_support::eventually("nothing of it is left", test_support::PATIENCE, gone).await;
        assert_eq!(sandbox.sh("cat kept").await, "the old content");
    }
}
