//! What hostile strings would have left behind.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};
use test_support::{Sandbox, Stack};

/// Nothing was run, nothing left its place, and everything works as before.
pub async fn none_left(stack: &Stack, sandboxes: &[Sandbox], mark: &str) {
    for sandbox in sandboxes {
        let find = json!({ "command": format!("find / -xdev -name {mark} 2>/dev/null; true"), "timeout": 90 });
        let answer = sandbox.call("exec", find).await;
        // The one that was to be destroyed is gone.
        if answer.status != 404 {
            assert_eq!(answer.ok()["stdout"], "", "{}", sandbox.id);
        }
    }
    let host = stack.host().folder().to_owned();
    let mut folders = vec![host.clone(), stack.worker().storage().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            assert_ne!(entry.file_name().to_string_lossy(), mark, "{}", entry.path().display());
            let is_workspace = entry.path().ends_with("workspace") && entry.path().starts_with(&host);
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) && !is_workspace {
                folders.push(entry.path());
            }
        }
    }
    assert!(!Path::new("/tmp").join(mark).exists() && !Path::new("/etc").join(mark).exists());
    the_books_are_whole(stack).await;
    let log = stack.worker().log();
    // The last line may be in the middle of being written.
    let log = log.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let wrong: BTreeSet<&str> = log.lines().filter(|line| line.contains("\"level\":\"error\"")).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    for line in log.lines().filter(|line| line.contains(mark) || line.contains("\"requestId\"")) {
        // Two that were written at once may stand on one line.
        let all_json = |text| serde_json::Deserializer::from_str(text).into_iter::<Value>().all(|value| value.is_ok());
        let is_json = line.find('{').is_some_and(|start| all_json(&line[start..]));
        assert!(is_json, "a line of the log that the Worker did not write: {line}");
    }
}

async fn the_books_are_whole(stack: &Stack) {
    let client = stack.client();
    let mut after = json!({});
    loop {
        let verified = client.call("verifyAuditLog", &after).await.ok();
        assert_eq!(verified["valid"], true, "{verified}");
        match verified["nextCursor"].as_i64() {
            Some(next) => after = json!({ "cursor": next }),
            None => return,
        }
    }
}
