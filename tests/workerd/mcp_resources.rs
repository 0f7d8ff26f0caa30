//! Resources of MCP, in both of its eras: files and directories of sandboxes, and logs of jobs.

use serde_json::{Value, json};
use test_support::{Client, PATIENCE, Stack, eventually, random_name};

use crate::mcp::{legacy, modern};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Era {
    Legacy,
    Modern,
}

const ERAS: [Era; 2] = [Era::Legacy, Era::Modern];

impl Era {
    async fn ask(self, client: &Client, method: &str, params: Value) -> Value {
        let answer = match self {
            Self::Legacy => legacy(client, method, params).await,
            Self::Modern => modern(client, method, params).await,
        };
        answer.ok()
    }

    async fn read(self, client: &Client, uri: &str) -> Value {
        let answer = self.ask(client, "resources/read", json!({ "uri": uri })).await;
        let result = answer["result"].clone();
        let contents = result["contents"].as_array().unwrap_or_else(|| panic!("{uri}: {answer}"));
        assert_eq!((contents.len(), &contents[0]["uri"]), (1, &json!(uri)));
        if self == Self::Modern {
            assert_eq!((&result["ttlMs"], &result["cacheScope"]), (&json!(0), &json!("private")));
            assert_eq!(result["resultType"], "complete");
        }
        contents[0].clone()
    }

    async fn error(self, client: &Client, uri: &str) -> Value {
        self.ask(client, "resources/read", json!({ "uri": uri })).await["error"].clone()
    }

    /// Every page of the list.
    async fn all(self, client: &Client) -> Vec<Value> {
        let (mut all, mut params) = (Vec::new(), json!({}));
        loop {
            let result = self.ask(client, "resources/list", params).await["result"].clone();
            all.extend(result["resources"].as_array().unwrap_or_else(|| panic!("{result}")).clone());
            match result["nextCursor"].as_str() {
                Some(cursor) => params = json!({ "cursor": cursor }),
                None => return all,
            }
        }
    }
}

fn uris(resources: &[Value]) -> Vec<&str> {
    resources.iter().map(|resource| resource["uri"].as_str().unwrap()).collect()
}

async fn key(client: &Client, permissions: Value) -> Client {
    let key = json!({ "name": random_name("key"), "permissions": permissions });
    let key = client.call("createKey", &key).await.ok();
    client.with_key(key["key"].as_str())
}

#[tokio::test]
async fn the_capability_is_declared_and_the_templates_are_what_the_key_may_read() {
    let client = Stack::shared().client();
    let begun = Era::Legacy.ask(&client, "initialize", json!({ "protocolVersion": "2025-11-25" })).await;
    assert!(begun["result"]["capabilities"]["resources"].is_object(), "{begun}");
    let discovered = Era::Modern.ask(&client, "server/discover", json!({})).await;
    assert!(discovered["result"]["capabilities"]["resources"].is_object(), "{discovered}");
    let no_jobs = key(&client, json!({ "role": "viewer", "scopes": ["sandbox:read"] })).await;
    for era in ERAS {
        let told = era.ask(&client, "resources/templates/list", json!({})).await["result"].clone();
        let templates: Vec<_> =
            told["resourceTemplates"].as_array().unwrap().iter().map(|each| &each["uriTemplate"]).collect();
        assert_eq!(templates, ["sandbox://{sandboxId}/{path}", "job://{jobId}/logs"]);
        assert_eq!(told.get("ttlMs").is_some(), era == Era::Modern);
        let told = era.ask(&no_jobs, "resources/templates/list", json!({})).await["result"].clone();
        assert_eq!(told["resourceTemplates"].as_array().unwrap().len(), 1, "{told}");
    }
}

#[tokio::test]
async fn a_file_is_read_as_text_or_as_bytes_and_by_the_call_path_of_its_tool() {
    let stack = Stack::shared();
    let (client, sandbox) = (stack.client(), stack.sandbox().await);
    sandbox
        .sh("mkdir -p 'src/a b'; printf 'h\\303\\251llo' > 'src/a b/100%.md'; printf '\\377\\0' > raw; : > empty")
        .await;
    let encoded = format!("sandbox://{}/src/a%20b/100%25.md", sandbox.id);
    let nested = format!("sandbox://{}/src%2Fa%20b%2F100%25.md", sandbox.id);
    for era in ERAS {
        for uri in [&encoded, &nested] {
            let told = era.read(&client, uri).await;
            assert_eq!((&told["text"], &told["mimeType"]), (&json!("héllo"), &json!("text/markdown")), "{told}");
        }
        let told = era.read(&client, &format!("sandbox://{}/raw", sandbox.id)).await;
        assert_eq!((&told["blob"], told.get("text")), (&json!("/wA="), None), "{told}");
        assert_eq!(era.read(&client, &format!("sandbox://{}/empty", sandbox.id)).await["text"], "");
    }
    let calls = client.call("getAuditLog", &json!({ "sandboxId": sandbox.id, "tool": "readFile" })).await.ok();
    let calls = calls["calls"].as_array().unwrap().clone();
    assert_eq!(calls.len(), 8, "{calls:?}");
    assert!(calls.iter().all(|call| call["door"] == "mcp"), "{calls:?}");
}

#[tokio::test]
async fn a_directory_tells_its_entries_with_addresses_that_are_read_in_turn() {
    let stack = Stack::shared();
    let (client, sandbox) = (stack.client(), stack.sandbox().await);
    sandbox.sh("mkdir -p d; echo in > 'd/x y'; echo bytes > \"$(printf 'd/\\377')\"").await;
    for era in ERAS {
        let root = era.read(&client, &format!("sandbox://{}/", sandbox.id)).await;
        assert_eq!(root["mimeType"], "application/json");
        let root: Value = serde_json::from_str(root["text"].as_str().unwrap()).unwrap();
        let uri = root["entries"][0]["uri"].as_str().unwrap().to_owned();
        assert_eq!(uri, format!("sandbox://{}/d/", sandbox.id));
        let inside = era.read(&client, &uri).await;
        // A directory may be named without its slash.
        let bare = era.read(&client, uri.trim_end_matches('/')).await;
        assert_eq!(bare["text"], inside["text"]);
        let inside: Value = serde_json::from_str(inside["text"].as_str().unwrap()).unwrap();
        let entries = inside["entries"].as_array().unwrap();
        assert_eq!(entries.len(), 2, "{inside}");
        let mut texts = Vec::new();
        for entry in entries {
            texts.push(era.read(&client, entry["uri"].as_str().unwrap()).await["text"].clone());
        }
        assert_eq!(texts, ["in\n", "bytes\n"], "{inside}");
    }
}

#[tokio::test]
async fn the_log_of_a_job_is_told_while_it_runs_and_after() {
    let stack = Stack::shared();
    let (client, sandbox) = (stack.client(), stack.sandbox().await);
    sandbox.sh("mkfifo gate").await;
    let command = "echo out; echo err >&2; read x < gate; echo end";
    let arguments = json!({ "sandboxId": sandbox.id, "command": command, "timeout": 300 });
    let job = client.deferred("exec", &arguments).await.job_id();
    let uri = format!("job://{job}/logs");
    let written = async || {
        let told = Era::Modern.read(&client, &uri).await;
        let text = told["text"].as_str().unwrap().to_owned();
        (text.contains("out\n") && text.contains("err\n")).then_some(told)
    };
    let told = eventually("the job wrote", PATIENCE, written).await;
    assert_eq!(told["_meta"]["cloudflare-ops/ended"], false, "{told}");
    sandbox.sh("echo > gate").await;
    client.ended(&job).await;
    for era in ERAS {
        let told = era.read(&client, &uri).await;
        assert!(told["text"].as_str().unwrap().ends_with("end\n"), "{told}");
        assert_eq!((&told["_meta"]["cloudflare-ops/ended"], &told["mimeType"]), (&json!(true), &json!("text/plain")));
    }
    let listed = Era::Legacy.all(&client).await;
    assert!(uris(&listed).contains(&uri.as_str()));
    // Who may not run commands is told of no log of one.
    let viewer = key(&client, json!({ "role": "viewer" })).await;
    assert!(!uris(&Era::Modern.all(&viewer).await).contains(&uri.as_str()));
    assert_eq!(Era::Modern.error(&viewer, &uri).await["code"], -32010);
}

#[tokio::test]
async fn the_list_is_the_keys_own_in_pages_of_a_stable_order_and_starts_nothing() {
    let stack = Stack::shared();
    let client = stack.client();
    let (mine, label) = (key(&client, json!({ "role": "operator" })).await, random_name("team"));
    let mut made = Vec::new();
    for _ in 0..3 {
        let sandbox = stack.sandbox_with(json!({ "labels": { "team": label } })).await;
        made.push(sandbox);
    }
    client.call("stopSandbox", &json!({ "sandboxId": made[0].id })).await.ok();
    let sighted = key(&client, json!({ "role": "operator", "sandboxLabels": { "team": label } })).await;
    let starts = made[0].starts();
    let mut expected: Vec<String> = made.iter().map(|sandbox| format!("sandbox://{}/", sandbox.id)).collect();
    expected.sort();
    for era in ERAS {
        let listed = era.all(&sighted).await;
        assert_eq!(uris(&listed), expected, "only what this key sees");
        let (all, again) = (era.all(&mine).await, era.all(&mine).await);
        let of_mine = |all: &[Value]| {
            let own = uris(all).into_iter().filter(|uri| expected.iter().any(|each| each == uri));
            own.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(of_mine(&all), expected);
        assert_eq!(of_mine(&again), expected);
        for cursor in [json!("nonsense"), json!(5), json!("files:x")] {
            let refused = era.ask(&mine, "resources/list", json!({ "cursor": cursor })).await;
            assert_eq!(refused["error"]["code"], -32602, "{refused}");
        }
        let result = era.ask(&mine, "resources/list", json!({})).await["result"].clone();
        assert_eq!(result.get("cacheScope").is_some(), era == Era::Modern, "{result}");
    }
    assert_eq!(made[0].starts(), starts, "a list starts no sandbox");
}

#[tokio::test]
async fn what_cannot_be_read_is_an_error_with_the_code_of_its_era() {
    let stack = Stack::shared();
    let (client, sandbox) = (stack.client(), stack.sandbox().await);
    sandbox.sh("head -c 1048577 /dev/zero > large").await;
    for (era, missing) in [(Era::Legacy, -32002), (Era::Modern, -32602)] {
        for uri in [
            format!("sandbox://{}/none.txt", sandbox.id),
            format!("sandbox://{}/a", random_name("none")),
            "job://none/logs".to_owned(),
            "file:///etc/passwd".to_owned(),
        ] {
            let error = era.error(&client, &uri).await;
            assert_eq!((&error["code"], &error["data"]["uri"]), (&json!(missing), &json!(uri)), "{error}");
            assert_eq!(error["data"]["cloudflare-ops/problem"]["code"], "not_found", "{error}");
        }
        let large = era.error(&client, &format!("sandbox://{}/large", sandbox.id)).await;
        assert_eq!(
            (&large["code"], &large["data"]["cloudflare-ops/problem"]["details"]["size"]),
            (&json!(-32010), &json!(1_048_577)),
            "{large}"
        );
        for path in ["%2e%2e/secret", "..%2f..%2fetc/passwd", "/etc/passwd"] {
            let error = era.error(&client, &format!("sandbox://{}/{path}", sandbox.id)).await;
            assert_eq!(error["data"]["cloudflare-ops/problem"]["details"]["reason"], "path_escapes", "{path}: {error}");
        }
        for uri in ["sandbox://UPPER/a".to_owned(), format!("sandbox://{}/100%", sandbox.id)] {
            assert_eq!(era.error(&client, &uri).await["code"], -32602, "{uri}");
        }
        let unnamed = match era {
            Era::Legacy => era.ask(&client, "resources/read", json!({})).await,
            Era::Modern => modern(&client, "resources/read", json!({})).await.json(),
        };
        let code = if era == Era::Legacy { -32602 } else { -32020 };
        assert_eq!(unnamed["error"]["code"], code, "{unnamed}");
        let blind = key(&client, json!({ "role": "viewer", "scopes": ["jobs:read"] })).await;
        let error = era.error(&blind, &format!("sandbox://{}/large", sandbox.id)).await;
        assert_eq!(
            (&error["code"], &error["data"]["cloudflare-ops/problem"]["code"]),
            (&json!(-32010), &json!("forbidden")),
            "{error}"
        );
        let listed = era.all(&blind).await;
        assert!(uris(&listed).iter().all(|uri| uri.starts_with("job://")), "{listed:?}");
    }
    for key in [None, Some("cfo_default_wrong")] {
        let params = json!({ "uri": format!("sandbox://{}/large", sandbox.id) });
        legacy(&client.with_key(key), "resources/read", params).await.problem(401, "unauthenticated");
    }
}

#[tokio::test]
async fn what_is_neither_a_file_nor_a_directory_is_told_as_what_it_is_not() {
    let stack = Stack::shared();
    let (client, sandbox) = (stack.client(), stack.sandbox().await);
    sandbox.sh("mkdir d; mkfifo pipe").await;
    for era in ERAS {
        let error = era.error(&client, &format!("sandbox://{}/pipe", sandbox.id)).await;
        let problem = &error["data"]["cloudflare-ops/problem"];
        assert_eq!(problem["details"]["reason"], "wrong_file_type", "{error}");
        assert!(problem["detail"].as_str().unwrap().contains("is not a regular file"), "{error}");
        assert_eq!(era.read(&client, &format!("sandbox://{}/d", sandbox.id)).await["mimeType"], "application/json");
    }
}

#[tokio::test]
async fn a_resource_whose_reading_has_to_be_approved_is_refused_and_makes_no_job() {
    let stack = Stack::shared();
    let (client, sandbox) = (stack.client(), stack.sandbox().await);
    sandbox.sh("echo x > a").await;
    let rules = json!({ "role": "operator", "approval": { "tools": ["readFile"] } });
    let bound = key(&client, rules).await;
    for era in ERAS {
        let error = era.error(&bound, &format!("sandbox://{}/a", sandbox.id)).await;
        let problem = &error["data"]["cloudflare-ops/problem"];
        assert_eq!((&error["code"], &problem["code"]), (&json!(-32010), &json!("forbidden")), "{error}");
        assert_eq!(problem["details"]["reason"], "needs_approval", "{error}");
    }
    let jobs = bound.call("listJobs", &json!({ "state": "awaiting_approval" })).await.ok();
    let of_bound = jobs["jobs"].as_array().unwrap().iter().filter(|job| job["sandboxId"] == sandbox.id.as_str());
    assert_eq!(of_bound.count(), 0, "{jobs}");
}
