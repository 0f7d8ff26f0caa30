//! Files in a container, where the daemon is root and commands are not: sizes near borders, and names of every kind.

use reqwest::{Method, header::CONTENT_LENGTH};
use serde_json::{Value, json};
use test_support::{ContainerStack, Sandbox};

async fn ok(sandbox: &Sandbox, tool: &str, arguments: Value) -> Value {
    sandbox.call(tool, arguments).await.ok()
}

#[tokio::test]
async fn every_size_near_a_border_arrives_whole() {
    let sandbox = ContainerStack::shared().sandbox().await;
    for size in [0, 1, 4096, 18_433, 65_536, 65_537, 120_000, 1 << 20, 5_000_001_usize] {
        let bytes: Vec<u8> = (0..size).map(|index| (index.wrapping_mul(31) >> 3) as u8).collect();
        let upload = sandbox.client.request(Method::PUT, &sandbox.file_path("sized")).header(CONTENT_LENGTH, size);
        assert_eq!(sandbox.client.send(upload.body(bytes.clone())).await.json()["size"], size);
        assert_eq!(sandbox.sh("stat -c '%s %u' sized").await, format!("{size} 1000\n"), "it is the commands' own");
        let answer = sandbox.client.get(&sandbox.file_path("sized")).await;
        assert!(answer.status == 200 && answer.body.as_ref() == bytes, "{size}");
    }
    for size in [120_000, 1_000_000, 3_000_000] {
        let content = "é".repeat(size / 2);
        assert_eq!(ok(&sandbox, "writeFile", json!({"path": "t", "content": content})).await["size"], size);
        assert_eq!(sandbox.sh("tr -d é < t | wc -c; wc -c < t").await, format!("0\n{size}\n"));
    }
}

#[tokio::test]
async fn every_name_that_is_listed_is_taken_by_every_tool() {
    let sandbox = ContainerStack::shared().sandbox().await;
    let names = r#"$'\xff\x01bad' 'a b' 'é' "q'uote" $'new\nline' -- -rf '%41' '$(touch pwn)'"#;
    sandbox.sh(&format!("for f in {names}; do printf needle > \"./$f\"; done")).await;
    let listing = ok(&sandbox, "listFiles", json!({})).await;
    let entries = listing["entries"].as_array().unwrap();
    assert_eq!(entries.len(), 9, "{listing}");
    assert_eq!(entries.iter().filter(|entry| entry["pathEncoding"] == "percent").count(), 1);
    for entry in entries {
        let path = entry["path"].as_str().unwrap();
        let named = |mut arguments: Value| {
            if let Some(encoding) = entry.get("pathEncoding") {
                arguments["pathEncoding"] = encoding.clone();
            }
            arguments
        };
        assert_eq!(ok(&sandbox, "readFile", named(json!({"path": path}))).await["content"], "needle", "{path:?}");
        let moved = format!("moved/{path}");
        ok(&sandbox, "moveFile", named(json!({"from": path, "to": moved}))).await;
        let write = named(json!({"path": moved, "content": "written"}));
        assert_eq!(ok(&sandbox, "writeFile", write).await["created"], false, "{path:?}");
        assert_eq!(ok(&sandbox, "deleteFile", named(json!({"path": moved}))).await["removed"], 1, "{path:?}");
    }
    assert_eq!(sandbox.sh("ls -A; ls -A moved").await, "moved\n");
}
