//! Searching: what is found, and what is said of what was not looked at.

use serde_json::{Value, json};

use crate::support::{Host, Sandbox};

fn search(sandbox: &Sandbox, mut request: Value) -> Value {
    for (name, default) in [("limit", json!(100)), ("timeoutMs", json!(20_000))] {
        if request.get(name).is_none() {
            request[name] = default;
        }
    }
    let reply = sandbox.call("POST", "/v1/searches", &[], request.to_string().as_bytes());
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()
}

fn found(result: &Value) -> Vec<String> {
    let line = |found: &Value| match found.get("line") {
        Some(line) => format!("{}:{line}", found["path"].as_str().expect("a path")),
        None => found["path"].as_str().expect("a path").to_owned(),
    };
    result["matches"].as_array().expect("matches").iter().map(line).collect()
}

#[test]
fn content_is_found_as_text_and_as_a_pattern() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    sandbox.output(
        "mkdir -p src .git; printf 'one\\r\\nneedle (a+)\\nNEEDLE\\n' > src/a.rs; printf 'no\\nxx needle' > src/b.txt; \
         echo needle > .git/x; printf 'needle\\0' > binary; printf 'needle \\xff\\n' > $'\\xfe'; ln -s a.rs src/link",
    );
    let result = search(&sandbox, json!({"content": "needle"}));
    assert_eq!(found(&result), [".git/x:1", "src/a.rs:2", "src/b.txt:2", "%FE:1"]);
    assert_eq!(
        (&result["truncated"], &result["filesSearched"], &result["binaryFiles"]),
        (&json!(false), &json!(4), &json!(1))
    );
    let b = &result["matches"][2];
    assert_eq!((&b["column"], &b["text"]), (&json!(4), &json!("xx needle")));
    assert_eq!(result["matches"][3]["pathEncoding"], "percent");
    assert_eq!(found(&search(&sandbox, json!({"content": "(a+)"}))), ["src/a.rs:2"]);
    assert_eq!(found(&search(&sandbox, json!({"content": "^needle.*\\)$", "regex": true}))), ["src/a.rs:2"]);
    let result = search(&sandbox, json!({"content": "needle", "ignoreCase": true, "path": "src", "name": "*.rs"}));
    assert_eq!(found(&result), ["src/a.rs:2", "src/a.rs:3"]);
    assert_eq!(found(&search(&sandbox, json!({"content": "needle", "hidden": false, "exclude": ["src"]}))), ["%FE:1"]);
    assert_eq!(found(&search(&sandbox, json!({"content": "one", "path": "src/a.rs"}))), ["src/a.rs:1"]);
    assert_eq!(search(&sandbox, json!({"content": "one", "path": "src/a.rs"}))["matches"][0]["text"], "one");
}

#[test]
fn names_are_found_by_globs() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    sandbox.output("mkdir -p a/b/node_modules/x; touch a/1.rs a/b/2.rs a/b/node_modules/3.rs; ln -s 1.rs a/link.rs");
    let names = |name: &str| found(&search(&sandbox, json!({"name": name, "exclude": ["node_modules"]})));
    assert_eq!(names("*.rs"), ["a/1.rs", "a/b/2.rs", "a/link.rs"]);
    assert_eq!(names("a/*.rs"), ["a/1.rs", "a/link.rs"]);
    assert_eq!(names("**/b/*"), ["a/b/2.rs"]);
    assert_eq!(found(&search(&sandbox, json!({"name": "*.rs", "path": "a/b"}))), ["a/b/2.rs", "a/b/node_modules/3.rs"]);
}

#[test]
fn what_was_not_seen_is_said() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    sandbox.output(
        "yes needle | head -n 5000 > many; mkdir closed; touch closed/f; chmod 000 closed; echo > shut; chmod 000 shut",
    );
    let result = search(&sandbox, json!({"content": "needle", "limit": 10}));
    assert_eq!(
        (found(&result).len(), &result["truncated"], &result["truncatedBy"]),
        (10, &json!(true), &json!("limit"))
    );
    let result = search(&sandbox, json!({"content": "nothing"}));
    assert_eq!((&result["unread"], &result["truncated"]), (&json!(2), &json!(false)));
    // As many as there are is no truncation.
    sandbox.output("head -n 10 many > ten");
    let result = search(&sandbox, json!({"content": "needle", "path": "ten", "limit": 10}));
    assert_eq!((found(&result).len(), &result["truncated"]), (10, &json!(false)));
    sandbox.output(
        "truncate -s 3G huge; printf 'x' | dd of=huge conv=notrunc status=none; yes | head -c 300000000 > lines",
    );
    let result = search(&sandbox, json!({"content": "nothing", "path": "lines", "timeoutMs": 1}));
    assert_eq!((&result["truncated"], &result["truncatedBy"]), (&json!(true), &json!("time")));
    sandbox.output("chmod 700 closed; rm -f huge lines");
}

#[test]
fn a_search_that_cannot_be_is_refused_by_name() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    for (request, field) in [
        (json!({}), "content"),
        (json!({"content": "(", "regex": true}), "content"),
        (json!({"content": ""}), "content"),
        (json!({"content": "(a{1000}){1000}", "regex": true}), "content"),
        (json!({"name": "["}), "name"),
        (json!({"name": "*", "exclude": ["{"]}), "exclude"),
        (json!({"name": "*", "limit": 0}), "limit"),
        (json!({"name": "*", "timeoutMs": 100_000}), "timeoutMs"),
        (json!({"name": "*", "nosuch": 1}), "nosuch"),
    ] {
        let mut request = request;
        for (name, default) in [("limit", json!(1)), ("timeoutMs", json!(1000))] {
            if request.get(name).is_none() {
                request[name] = default;
            }
        }
        let reply = sandbox.call("POST", "/v1/searches", &[], request.to_string().as_bytes());
        reply.refused(400, "invalid_arguments", field);
    }
}

#[test]
fn a_hostile_pattern_over_hostile_lines_ends_in_time() {
    let host = Host::start();
    let sandbox = host.sandbox("a");
    sandbox.output("head -c 3000000 /dev/zero | tr '\\0' a > long");
    let started = std::time::Instant::now();
    let result = search(&sandbox, json!({"content": "(a*)*(a|aa)*b", "regex": true, "timeoutMs": 2000}));
    assert_eq!(found(&result), Vec::<String>::new());
    assert!(started.elapsed().as_secs() < 60, "{:?}", started.elapsed());
    // Others go on meanwhile.
    assert_eq!(sandbox.get("long").body.len(), 3_000_000);
}
