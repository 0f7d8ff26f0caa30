//! Whole directories down and up, and what happens in them, through the Worker.

use base64::{Engine, engine::general_purpose::STANDARD};
use reqwest::{Method, header::CONTENT_LENGTH};
use serde_json::{Value, json};
use test_support::{Answer, Sandbox, Stack};

fn archive_path(sandbox: &Sandbox, path: &str) -> String {
    sandbox.file_path(path).replace("/files/", "/archive/")
}

async fn put(sandbox: &Sandbox, path: &str, bytes: Vec<u8>) -> Answer {
    let request = sandbox.client.request(Method::PUT, &archive_path(sandbox, path));
    sandbox.client.send(request.header(CONTENT_LENGTH, bytes.len()).body(bytes)).await
}

#[tokio::test]
async fn a_directory_goes_down_and_up_again() {
    let sandbox = Stack::shared().sandbox().await;
    sandbox.sh("mkdir -p t/node_modules t/d; head -c 2000000 /dev/urandom > t/d/random; printf x > $'t/\\xff'; ln -s d t/link; touch t/node_modules/x").await;
    for format in ["tar", "tar.gz", "tar.zst"] {
        let path = archive_path(&sandbox, &format!("t?format={format}&exclude=node_modules"));
        let answer = sandbox.client.get(&path).await;
        assert_eq!((answer.status, answer.header("x-archive-omitted")), (200, Some("0")), "{}", answer.status);
        let unpacked = put(&sandbox, "u", answer.body.to_vec()).await.ok();
        assert_eq!(unpacked, json!({"files": 2, "directories": 1, "symlinks": 1, "bytes": 2_000_001}), "{format}");
        assert_eq!(sandbox.sh("diff -r --no-dereference -x node_modules t u; rm -r u").await, "");
    }
    let whole = sandbox.client.get(archive_path(&sandbox, "").trim_end_matches('/')).await;
    assert_eq!((whole.status, whole.header("content-type")), (200, Some("application/octet-stream")));
    let packed = sandbox.call("downloadArchive", json!({"path": "t/d", "format": "tar.gz"})).await.ok();
    let bytes = STANDARD.decode(packed["content"].as_str().unwrap()).unwrap();
    assert_eq!(packed["size"], bytes.len());
    let unpacked = sandbox.call("uploadArchive", json!({"path": "v/w", "content": packed["content"]})).await.ok();
    assert_eq!(unpacked["files"], 1);
    assert_eq!(sandbox.sh("cmp t/d/random v/w/random").await, "");
}

#[tokio::test]
async fn archives_that_cannot_be_are_refused() {
    let sandbox = Stack::shared().sandbox().await;
    sandbox.sh("mkdir d; cd d; ln -s /etc l; tar cf ../evil --absolute-names /etc/hostname; head -c 9000000 /dev/urandom > big").await;
    sandbox.client.get(&archive_path(&sandbox, "none")).await.problem(404, "not_found");
    sandbox.client.get(&archive_path(&sandbox, "d?format=zip")).await.problem(400, "invalid_arguments");
    sandbox.client.get(&archive_path(&sandbox, "..%2f..%2fetc")).await.problem(403, "forbidden");
    let evil = sandbox.client.get(&sandbox.file_path("evil")).await.body.to_vec();
    put(&sandbox, "x", evil).await.problem(403, "forbidden");
    put(&sandbox, "x", b"no archive".to_vec()).await.problem(400, "invalid_arguments");
    let problem = sandbox.call("downloadArchive", json!({"path": "d"})).await.problem(413, "payload_too_large");
    assert!(problem.details["limitBytes"].is_u64());
    sandbox.call("uploadArchive", json!({"path": "x", "content": "%%%"})).await.problem(400, "invalid_arguments");
    let chunks = futures_util::stream::iter([Ok::<_, String>(b"one".to_vec())]);
    let request = sandbox.client.request(Method::PUT, &archive_path(&sandbox, "x"));
    let answer = sandbox.client.send(request.body(reqwest::Body::wrap_stream(chunks))).await;
    answer.problem(411, "length_required");
}

#[tokio::test]
async fn a_watch_streams_what_happens() {
    let sandbox = Stack::shared().sandbox().await;
    sandbox.sh("mkdir -p d/sub; touch d/old").await;
    let arguments = json!({"sandboxId": sandbox.id, "path": "d", "recursive": true, "timeout": 300});
    let mut stream = sandbox.client.stream("watchFiles", &arguments).await;
    assert_eq!(stream.next().await.map(|event| event.name).as_deref(), Some("ready"));
    sandbox.sh("mv d/old d/sub/new; rm d/sub/new; mkdir d/sub/deep; echo > d/sub/deep/f; touch d/end").await;
    let mut changes = Vec::new();
    loop {
        let event = stream.next().await.expect("an event");
        assert_eq!(event.name, "change", "{event:?}");
        let change: Value = serde_json::from_str(&event.data).unwrap();
        if change["path"] == "d/end" {
            break;
        }
        changes.push(change);
    }
    let expected = [
        json!({"kind": "renamed", "path": "d/sub/new", "from": "d/old", "directory": false}),
        json!({"kind": "deleted", "path": "d/sub/new", "directory": false}),
        json!({"kind": "created", "path": "d/sub/deep", "directory": true}),
        json!({"kind": "created", "path": "d/sub/deep/f", "directory": false}),
    ];
    for change in expected {
        assert!(changes.contains(&change), "{change}: {changes:?}");
    }
    sandbox.sh("rm -r d").await;
    let last = loop {
        let event = stream.next().await.expect("an event");
        if event.name != "change" {
            break event;
        }
    };
    let result: Value = serde_json::from_str(&last.data).unwrap();
    assert_eq!((last.name.as_str(), &result["ended"]), ("result", &json!("gone")));
    assert!(stream.next().await.is_none());
}

#[tokio::test]
async fn a_buffered_watch_waits_for_the_first_changes_or_its_timeout() {
    let sandbox = Stack::shared().sandbox().await;
    let silent = sandbox.call("watchFiles", json!({"timeout": 1})).await.ok();
    assert_eq!(silent, json!({"changes": [], "count": 0, "ended": "timeout"}));
    let sandbox = &sandbox;
    let poke = async {
        for number in 0.. {
            // One change and no second, before which the watch could begin.
            sandbox.sh(&format!("mkdir d{number}")).await;
        }
    };
    let seen = tokio::select! {
        answer = sandbox.call("watchFiles", json!({"timeout": 80})) => answer.ok(),
        () = poke => unreachable!("it goes on for ever"),
    };
    assert_eq!(seen["ended"], "changes", "{seen}");
    assert!(seen["changes"].as_array().unwrap().iter().any(|change| change["kind"] == "created"), "{seen}");
    sandbox.call("watchFiles", json!({"timeout": 100})).await.problem(400, "invalid_arguments");
    sandbox.call("watchFiles", json!({"path": "none"})).await.problem(404, "not_found");
}

#[tokio::test]
async fn a_watch_that_has_answered_leaves_nothing_behind() {
    let sandbox = Stack::shared().sandbox().await;
    let sandbox = &sandbox;
    // More than a sandbox has places for watches.
    for round in 0..20 {
        let poke = async {
            for number in 0.. {
                sandbox.sh(&format!("echo > f{round}-{number}")).await;
            }
        };
        let seen = tokio::select! {
            answer = sandbox.call("watchFiles", json!({"timeout": 80})) => answer.ok(),
            () = poke => unreachable!("it goes on for ever"),
        };
        assert_eq!(seen["ended"], "changes", "{round}: {seen}");
    }
}
