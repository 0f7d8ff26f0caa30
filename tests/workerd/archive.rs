//! The audit in R2: exported in time, held against the books, and read on from where the books end.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use test_support::{Client, PATIENCE, Stack, StackOptions, eventually};

use crate::books::tamper;

fn stack() -> Stack {
    Stack::start(StackOptions { sweep_seconds: Some(1), export_seconds: Some(1), ..StackOptions::default() })
}

async fn verified(client: &Client, query: &str) -> Value {
    client.get(&format!("/v1/admin/logs/verification{query}")).await.ok()
}

/// Makes calls until this many exports are there.
async fn exported(stack: &Stack, exports: u64) -> Value {
    let client = stack.client();
    let enough = || async {
        client.call("listSandboxes", &json!({ "limit": 1 })).await.ok();
        let found = verified(&client, "").await;
        assert_eq!(found["valid"], true, "{found}");
        (found["exports"].as_u64() >= Some(exports)).then_some(found)
    };
    eventually("the audit is exported", PATIENCE, enough).await
}

/// Objects of the bucket, as the runtime keeps them on the disk.
fn objects(stack: &Stack) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![stack.worker().storage().to_owned()];
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path()) {
            if path.is_dir() {
                folders.push(path);
            } else if std::fs::read_to_string(&path).is_ok_and(|text| text.starts_with(r#"{"tenant":"#)) {
                found.push(path);
            }
        }
    }
    found
}

/// Changes a record, whatever it tells, and computes the whole chain anew, as who can write to the storage and knows the rule
/// could.
fn forge(stack: &Stack, seq: u32) {
    let program = "
import glob, hashlib, sqlite3, sys
for path in glob.glob(sys.argv[1] + '/**/*.sqlite', recursive=True):
    base = sqlite3.connect(path)
    if base.execute(\"SELECT count(*) FROM sqlite_master WHERE name = 'audit'\").fetchone()[0]:
        base.execute(\"UPDATE audit SET record = replace(record, 'callId', 'CallId') WHERE seq = ?\", [int(sys.argv[2])])
        digest = '0' * 64
        for row in base.execute('SELECT seq, at, call_id, kind, record FROM audit ORDER BY seq').fetchall():
            digest = hashlib.sha256('\\n'.join([digest, *map(str, row)]).encode()).hexdigest()
            base.execute('UPDATE audit SET digest = ? WHERE seq = ?', [digest, row[0]])
            base.execute('UPDATE exports SET digest = ? WHERE last_seq = ?', [digest, row[0]])
        base.commit()
    base.close()
";
    let storage = stack.worker().storage().to_owned();
    let status = Command::new("python3").args(["-c", program]).arg(storage).arg(seq.to_string()).status().unwrap();
    assert!(status.success());
}

#[tokio::test]
async fn a_chain_that_was_computed_anew_shows_against_the_exports() {
    let stack = stack();
    exported(&stack, 2).await;
    stack.worker().kill();
    // However few records there are in two exports, the second is in one.
    forge(&stack, 2);
    stack.worker().restart();
    let found = verified(&stack.client(), "").await;
    assert_eq!(
        (&found["valid"], &found["fault"]),
        (&json!(false), &json!({ "seq": 2, "what": "differsFromExport" })),
        "{found}"
    );
}

#[tokio::test]
async fn books_that_were_cut_at_their_end_show_against_the_exports() {
    let stack = stack();
    let last = exported(&stack, 2).await["head"]["seq"].as_i64().unwrap();
    stack.worker().kill();
    // However few records there are in two exports, the last ends behind the first record.
    tamper(&stack, "DELETE FROM audit WHERE seq > 1");
    stack.worker().restart();
    let found = verified(&stack.client(), "").await;
    assert_eq!(
        (&found["valid"], &found["fault"]["what"]),
        (&json!(false), &json!("differsFromExport")),
        "{last}: {found}"
    );
}

#[tokio::test]
async fn what_the_books_forgot_is_read_on_and_verified_in_the_archive() {
    let stack = stack();
    let client = stack.client();
    let first = client.call("getSandbox", &json!({ "sandboxId": "none" })).await;
    let id = first.header("x-request-id").unwrap().to_owned();
    let exports = exported(&stack, 3).await["exports"].as_u64().unwrap();
    let whole = |calls: &Value| {
        calls["calls"].as_array().unwrap().iter().map(|call| call["seq"].as_i64().unwrap()).collect::<Vec<_>>()
    };
    let all = whole(&client.get("/v1/admin/logs?limit=500").await.ok());
    stack.worker().kill();
    // As if these exports were of more than 30 days ago.
    tamper(
        &stack,
        "UPDATE exports SET last_at = 1, first_at = 1 WHERE first_seq IN (SELECT first_seq FROM exports WHERE is_done = 1 ORDER BY first_seq LIMIT 2)",
    );
    stack.worker().restart();
    let client = stack.client();
    let forgotten = || async {
        client.call("listSandboxes", &json!({ "limit": 1 })).await.ok();
        let found = verified(&client, "").await;
        assert_eq!(found["valid"], true, "{found}");
        found["anchor"]["seq"].as_i64().filter(|seq| *seq > 0)
    };
    let anchor = eventually("the books begin later", PATIENCE, forgotten).await;
    let found = client.call("getAuditLog", &json!({ "requestId": id })).await.ok();
    assert_eq!(
        (&found["calls"][0]["code"], &found["calls"][0]["tool"]),
        (&json!("not_found"), &json!("getSandbox")),
        "{found}"
    );
    for limit in [3, 500] {
        let (mut seen, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = client.get(&format!("/v1/admin/logs?limit={limit}{cursor}")).await.ok();
            seen.extend(whole(&page));
            match page["nextCursor"].as_i64() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        assert!(all.iter().all(|seq| seen.contains(seq)), "{limit} at a time: {all:?} {seen:?}");
        assert!(
            seen.iter().any(|seq| *seq <= anchor) && seen.windows(2).all(|pair| pair[0] > pair[1]),
            "{anchor}: {seen:?}"
        );
    }
    let (mut cursor, mut records) = (String::new(), 0);
    let archived = loop {
        let page = verified(&client, &format!("?archive=true{cursor}")).await;
        assert_eq!(page["valid"], true, "{page}");
        records += page["records"].as_i64().unwrap();
        match page["nextCursor"].as_i64() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break page,
        }
    };
    assert_eq!(records, archived["head"]["seq"].as_i64().unwrap(), "from the first record of all on");
    // Who changes an export is found out.
    stack.worker().kill();
    // That of the call itself: a later one has the question for it.
    let texts = objects(&stack).into_iter().map(|path| (std::fs::read_to_string(&path).unwrap(), path));
    let (text, changed) =
        texts.into_iter().find(|(text, _)| text.contains(&id) && text.contains("getSandbox")).unwrap();
    std::fs::write(&changed, text.replacen("getSandbox", "getSandbux", 1)).unwrap();
    stack.worker().restart();
    let (client, mut cursor) = (stack.client(), String::new());
    let found = loop {
        let page = verified(&client, &format!("?archive=true{cursor}")).await;
        match page["nextCursor"].as_i64() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break page,
        }
    };
    assert_eq!((&found["valid"], &found["fault"]["what"]), (&json!(false), &json!("changed")), "{exports}: {found}");
}

#[tokio::test]
async fn an_export_whose_end_was_not_noted_is_written_again_under_its_name_and_storage_counts_what_is_there() {
    let stack = stack();
    exported(&stack, 2).await;
    stack.worker().kill();
    let before = objects(&stack).len();
    tamper(&stack, "UPDATE exports SET is_done = 0 WHERE first_seq = (SELECT max(first_seq) FROM exports)");
    stack.worker().restart();
    let more = u64::try_from(before).unwrap() + 1;
    let root = stack.client();
    assert_eq!(exported(&stack, more).await["valid"], true);
    // The objects on the disk may grow meanwhile, and files go; what is told is one of their states.
    let counted = || async {
        let told = root.get("/v1/admin/usage").await.ok()["storage"].clone();
        let on_disk = objects(&stack);
        let bytes: u64 = on_disk.iter().filter_map(|path| std::fs::metadata(path).ok()).map(|file| file.len()).sum();
        let is_whole = told["bytes"] == bytes && told["objects"] == on_disk.len() && told["countedAt"].is_string();
        (is_whole && told["kinds"]["audit"]["bytes"] == bytes).then_some(told)
    };
    let told = eventually("every object is counted once", PATIENCE, counted).await;
    assert!(told["monthlyCost"].as_f64() >= Some(0.0), "{told}");
    root.call("setAlerts", &json!({ "storageWarningBytes": 1000 })).await.ok();
    let alerted = || async {
        let told = root.get("/v1/admin/alerts").await.ok();
        let alerts = told["alerts"].as_array().unwrap();
        let of_storage = alerts.iter().filter(|alert| alert["standing"]["budget"] == "storageBytes").count();
        (of_storage == 2).then_some(())
    };
    eventually("storage is alerted of", PATIENCE, alerted).await;
}

#[tokio::test]
async fn without_a_bucket_the_books_are_as_they_were_and_say_so() {
    let stack = Stack::start(StackOptions {
        bucket: false,
        sweep_seconds: Some(1),
        export_seconds: Some(1),
        ..StackOptions::default()
    });
    let client = stack.client();
    client.call("listSandboxes", &json!({})).await.ok();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let found = verified(&client, "").await;
    assert_eq!((&found["valid"], found.get("exports")), (&json!(true), None));
    let problem = client.get("/v1/admin/logs/verification?archive=true").await.problem(503, "not_configured");
    assert_eq!(problem.details["binding"], "BUCKET");
    assert_eq!(client.get("/v1/admin/usage").await.ok().get("storage"), None);
}
