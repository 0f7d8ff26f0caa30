//! Secrets of callers and of the service, through everything that takes one, and looked for wherever they could have been left.

use std::path::{Path, PathBuf};

use futures_util::StreamExt;
use reqwest::Method;
use serde_json::{Value, json};
use test_support::{
    Client, Known, PATIENCE, Sandbox, Stack, StackOptions, Step, arguments, eventually, find_by_argument, places,
    random_name,
};

/// Everything that is said or stored beside an answer.
struct Traces {
    /// Lines of the Worker and of the host.
    logs: String,
    /// All calls in the books.
    books: String,
    /// What tells of keys, sandboxes and numbers.
    lists: String,
}

impl Traces {
    async fn of(stack: &Stack) -> Self {
        let client = stack.client();
        let (mut books, mut page) = (String::new(), json!({ "limit": 500 }));
        loop {
            let answer = client.call("getAuditLog", &page).await;
            books.push_str(&answer.text());
            match answer.ok()["nextCursor"].as_i64() {
                Some(next) => page["cursor"] = json!(next),
                None => break,
            }
        }
        let mut lists = String::new();
        for tool in ["getMetrics", "listKeys", "listSandboxes", "listSecrets"] {
            lists.push_str(&client.call(tool, &json!({})).await.text());
        }
        let logs = stack.worker().log() + &stack.host().log();
        Self { logs, books, lists }
    }

    fn lack(&self, what: &str, secret: &str) {
        for (place, text) in [("a log", &self.logs), ("the books", &self.books), ("a list", &self.lists)] {
            assert!(!text.contains(secret), "{what} is in {place}: {}", around(text, secret));
        }
    }
}

fn around<'a>(text: &'a str, word: &str) -> &'a str {
    let at = text.find(word).unwrap_or_default();
    let (start, end) =
        (text.floor_char_boundary(at.saturating_sub(200)), text.ceil_char_boundary((at + 200).min(text.len())));
    &text[start..end]
}

/// Files below `folder`, with what they hold.
fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let (mut folders, mut found) = (vec![folder.to_owned()], Vec::new());
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(bytes) = std::fs::read(&path) {
                found.push((path, bytes));
            }
        }
    }
    found
}

/// The storage of all objects, once their Worker is dead; `of_sandboxes` is that of the objects of sandboxes.
fn stored(stack: &Stack, of_sandboxes: bool) -> Vec<u8> {
    let files = files(stack.worker().storage());
    assert!(files.len() > 2, "the storage is read");
    let wanted = files.into_iter().filter(|(path, _)| path.to_string_lossy().contains("SandboxActor") == of_sandboxes);
    wanted.flat_map(|(_, bytes)| bytes).collect()
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

/// A string of its own in every place of every tool that takes one: none is in a log or a list, and what a tool says it does not
/// record is in no book and no storage either.
#[tokio::test]
async fn what_is_sent_is_recorded_as_its_tool_says_and_nowhere_else() {
    let stack = Stack::start(StackOptions::default());
    let client = &stack.client();
    let root = random_name("canary");
    let sandbox = stack.sandbox().await;
    let process = json!({ "command": "exec sleep 1000", "name": "p", "keepStdin": true });
    let process = sandbox.call("startBackgroundProcess", process).await.ok();
    let known: Known = [
        ("sandboxId", json!(sandbox.id)),
        ("processId", process["processId"].clone()),
        ("path", json!("file.txt")),
        ("command", json!("cat >/dev/null")),
        ("oldText", json!("x")),
        ("value", json!("a value that is long enough")),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    let listed = client.get("/v1/tools").await.ok();
    let mut sent = Vec::new();
    for tool in listed["tools"].as_array().unwrap() {
        let unrecorded = tool["guardrails"]["unrecordedArguments"].as_array().unwrap();
        let mut schema = tool["inputSchema"].clone();
        if tool["annotations"]["readOnlyHint"] == false && schema["properties"]["sandboxId"].is_object() {
            schema["required"].as_array_mut().unwrap().push(json!("sandboxId"));
        }
        for (place, _) in places(&schema) {
            // Not the form of an id of a sandbox, which log lines are there to tell.
            let canary = format!("{root}_{}_", sent.len());
            let field = match place.first() {
                Some(Step::Field(name)) => format!("/{name}"),
                _ => String::new(),
            };
            // The names of variables are recorded, their values are not.
            let is_kept_secret =
                unrecorded.iter().any(|pointer| *pointer == field) && place.last() != Some(&Step::Name);
            let asked = arguments(&schema, &place, &canary, &known);
            sent.push((tool["name"].as_str().unwrap(), place, canary, is_kept_secret, asked));
        }
    }
    assert!(sent.iter().filter(|(.., is_kept_secret, _)| *is_kept_secret).count() >= 6);
    let calls = sent.iter().map(|(name, place, canary, is_kept_secret, asked)| async move {
        let answer = client.call(name, asked).await;
        assert!(!is_kept_secret || !answer.text().contains(canary), "{name} {place:?} answers {}", answer.text());
        let made: Value = answer.json()["sandboxId"].clone();
        if made.is_string() && made != *sandbox_id(asked) {
            client.call("destroySandbox", &json!({ "sandboxId": made, "force": true })).await;
        }
    });
    futures_util::stream::iter(calls).buffer_unordered(16).collect::<()>().await;
    let traces = Traces::of(&stack).await;
    for (name, place, canary, is_kept_secret, _) in &sent {
        let what = format!("{name} {place:?}");
        assert!(!traces.logs.contains(canary), "{what} is in a log: {}", around(&traces.logs, canary));
        // Names and labels are what lists are for.
        let is_described = *name == "setSecret" && !is_kept_secret;
        let is_told = *name == "createKey" || is_described || place.first() == Some(&Step::Field("labels".to_owned()));
        assert!(is_told || !traces.lists.contains(canary), "{what} is in a list: {}", around(&traces.lists, canary));
        assert!(!is_kept_secret || !traces.books.contains(canary), "{what} is in the books");
    }
    stack.worker().kill();
    let (books, own) = (stored(&stack, false), stored(&stack, true));
    for (name, place, canary, ..) in sent.iter().filter(|(.., is_kept_secret, _)| *is_kept_secret) {
        assert!(!contains(&books, canary), "{name} {place:?} is in the tenant's storage");
        let is_of_the_sandbox = ["createSandbox", "updateSandbox"].contains(name);
        assert!(is_of_the_sandbox || !contains(&own, canary), "{name} {place:?} is in a sandbox's storage");
    }
}

fn sandbox_id(asked: &Value) -> &Value {
    asked.get("sandboxId").unwrap_or(&Value::Null)
}

/// The secrets of one test, by how they are given.
struct Secrets {
    of_sandbox: String,
    of_call: String,
    named: String,
    plain: String,
    input: String,
    password: String,
    idempotency_key: String,
    wrong_key: String,
}

#[tokio::test]
async fn secrets_are_masked_in_what_commands_write_and_left_nowhere() {
    let stack = Stack::start(StackOptions::default());
    let client = stack.client();
    let secrets = Secrets {
        of_sandbox: random_name("of-sandbox"),
        of_call: random_name("of-call"),
        named: random_name("named"),
        plain: random_name("plain"),
        input: random_name("input"),
        password: random_name("password"),
        idempotency_key: random_name("idempotency"),
        wrong_key: random_name("wrong-key"),
    };
    client.call("setSecret", &json!({ "name": "named", "value": secrets.named })).await.ok();
    let given = json!({ "env": { "APP_TOKEN": secrets.of_sandbox }, "secrets": { "NAMED_IN_SANDBOX": "named" } });
    let sandbox = stack.sandbox_with(given).await;
    named_ones_mask(&client, &sandbox, &secrets).await;
    commands_mask(&sandbox, &secrets).await;
    processes_mask(&sandbox, &secrets).await;
    no_process_shows(&sandbox, &secrets).await;
    doors_keep(&client, &sandbox, &secrets).await;
    let made = client.call("createKey", &json!({ "name": "k", "permissions": { "role": "viewer" } })).await.ok();
    let token = client.call("createToken", &json!({ "permissions": { "role": "viewer" } })).await.ok();
    let host_token = stack.host().token().to_owned();
    let traces = Traces::of(&stack).await;
    let all = [
        ("the sandbox's secret", secrets.of_sandbox.as_str()),
        ("the call's secret", &secrets.of_call),
        ("a named secret", &secrets.named),
        ("a variable", &secrets.plain),
        ("standard input", &secrets.input),
        ("the password of a URL", &secrets.password),
        ("the idempotency key", &secrets.idempotency_key),
        ("a stranger's key", &secrets.wrong_key),
        ("the root key", &stack.key),
        ("the host's token", &host_token),
        ("a key that was made", made["key"].as_str().unwrap()),
        ("a token that was made", token["token"].as_str().unwrap()),
    ];
    for (what, secret) in all {
        traces.lack(what, secret);
    }
    stack.worker().kill();
    let (books, own) = (stored(&stack, false), stored(&stack, true));
    for (what, secret) in all {
        assert!(!contains(&books, secret), "{what} is in the tenant's storage");
        // The sandbox's own environment is kept with it, and nowhere else.
        assert_eq!(contains(&own, secret), secret == secrets.of_sandbox, "{what} in the storage of the sandbox");
    }
}

/// Of the sandbox and of a call, at once, as a process, as a job, in an error, and where it is set again.
async fn named_ones_mask(client: &Client, sandbox: &Sandbox, secrets: &Secrets) {
    let command = "echo $NAMED_IN_SANDBOX; printf %s ${NAMED:0:9}; sleep .2; echo ${NAMED:9}; echo $NAMED | base64";
    let arguments = json!({ "sandboxId": sandbox.id, "command": command, "secrets": { "NAMED": "named" } });
    let answer = client.call("exec", &arguments).await;
    let stdout = answer.ok()["stdout"].as_str().unwrap().to_owned();
    assert!(stdout.starts_with("[redacted]\n[redacted]\n[redacted]"), "{stdout}");
    let job = client.deferred("exec", &arguments).await.job_id();
    let told = client.ended(&job).await;
    assert_eq!((&told["output"]["stdout"], &told["state"]), (&json!(stdout), &json!("succeeded")), "{told}");
    let log = client.get(&format!("/v1/jobs/{job}/logs")).await;
    let start = json!({ "name": "n", "command": "echo $NAMED; exec sleep 1000", "secrets": { "NAMED": "named" } });
    let started = sandbox.call("startBackgroundProcess", start).await.ok();
    let wait = json!({ "processId": started["processId"], "text": "redacted", "timeout": 80 });
    let waited = sandbox.call("waitForProcess", wait).await;
    assert_eq!(waited.ok()["outcome"], "met");
    let mut late = arguments;
    (late["command"], late["timeout"]) = (json!("echo $NAMED$NAMED_IN_SANDBOX; sleep 100"), json!(15));
    let late = client.call("exec", &late).await;
    assert_eq!(late.problem(504, "timeout").details["stdout"], "[redacted][redacted]\n");
    let again = client.call("setSecret", &json!({ "name": "named", "value": secrets.named })).await;
    let wrong = client.call("setSecret", &json!({ "name": secrets.named, "value": secrets.named, "more": 1 })).await;
    wrong.problem(400, "invalid_arguments");
    for answer in [answer, log, waited, late, again, wrong] {
        assert!(!answer.text().contains(&secrets.named), "{}", answer.text());
    }
}

/// Whole, streamed, in an error, and given again.
async fn commands_mask(sandbox: &Sandbox, secrets: &Secrets) {
    let env = json!({ "CALL_SECRET": secrets.of_call, "PLAIN": secrets.plain });
    let command =
        "echo $APP_TOKEN; printf %s ${CALL_SECRET:0:9}; sleep .2; echo ${CALL_SECRET:9}; echo $PLAIN; cat >&2";
    let arguments = json!({ "sandboxId": sandbox.id, "command": command, "env": env, "stdin": secrets.input });
    let expected = format!("[redacted]\n[redacted]\n{}\n", secrets.plain);
    let output = sandbox.exec(arguments.clone()).await;
    assert_eq!((&output["stdout"], &output["stderr"]), (&json!(expected), &json!(secrets.input)));
    let streamed = sandbox.exec_streamed(arguments.clone()).await;
    assert_eq!(
        (String::from_utf8_lossy(&streamed.stdout), &streamed.result()["stdout"]),
        (expected.as_str().into(), &json!(expected))
    );
    // What is kept of an answer to give it again is the answer: masked.
    let kept = json!({ "sandboxId": sandbox.id, "command": "echo $APP_TOKEN $CALL_SECRET", "env": env });
    let asked = || {
        let request = sandbox.client.request(Method::POST, "/v1/tools/exec").json(&kept);
        sandbox.client.send(request.header("idempotency-key", &secrets.idempotency_key))
    };
    assert_eq!(asked().await.ok()["stdout"], "[redacted] [redacted]\n");
    let again = asked().await;
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    assert_eq!(again.ok()["stdout"], "[redacted] [redacted]\n");
    let late = json!({ "command": "echo $APP_TOKEN$CALL_SECRET; sleep 100", "timeout": 15, "env": env });
    let problem = sandbox.call("exec", late).await.problem(504, "timeout");
    assert_eq!(problem.details["stdout"], "[redacted][redacted]\n");
    for wrong in [json!({ "CALL_SECRET": [secrets.of_call] }), json!({ format!("={}", secrets.of_call): "x" })] {
        let refused = sandbox.call("exec", json!({ "command": "true", "env": wrong })).await;
        refused.problem(400, "invalid_arguments");
        let is_name = wrong.as_object().unwrap().keys().any(|name| name.starts_with('='));
        assert!(is_name || !refused.text().contains(&secrets.of_call), "{}", refused.text());
    }
}

async fn processes_mask(sandbox: &Sandbox, secrets: &Secrets) {
    let command = "echo $APP_TOKEN; echo $P_PASSWORD >&2; read line; echo $line";
    let start = json!({ "command": command, "name": "p", "env": { "P_PASSWORD": secrets.of_call }, "keepStdin": true });
    let started = sandbox.call("startBackgroundProcess", start).await.ok();
    let id = &started["processId"];
    let wait = json!({ "processId": id, "text": "redacted", "timeout": 80 });
    let waited = sandbox.call("waitForProcess", wait).await;
    assert_eq!(waited.ok()["outcome"], "met");
    let line = json!({ "processId": id, "data": format!("{}\n", secrets.input), "close": true });
    let written = sandbox.call("writeProcessInput", line).await;
    sandbox.call("waitForProcess", json!({ "processId": id, "timeout": 80 })).await.ok();
    let logs = sandbox.call("getProcessLogs", json!({ "processId": id })).await;
    assert!(logs.text().contains(&secrets.input), "a process may write what nobody said is secret: {}", logs.text());
    let list = sandbox.call("listProcesses", json!({})).await;
    for answer in [waited, written, logs, list] {
        for secret in [&secrets.of_sandbox, &secrets.of_call] {
            assert!(!answer.text().contains(secret), "{}", answer.text());
        }
    }
}

/// Neither the machine's processes nor those of the sandbox have a secret among their arguments, and of the machine's only the
/// command's own have one in their environment.
async fn no_process_shows(sandbox: &Sandbox, secrets: &Secrets) {
    let env = json!({ "CALL_SECRET": secrets.of_call, "PLAIN": secrets.plain });
    let slow = json!({ "command": "cat > input; exec sleep 7171", "env": env, "stdin": secrets.input, "timeout": 300 });
    let mut stream = sandbox.open_stream(slow).await;
    let reads = tokio::spawn(async move { while stream.next().await.is_some() {} });
    let runs = || async { (!find_by_argument("sleep\u{0}7171").is_empty()).then_some(()) };
    eventually("the command runs", PATIENCE, runs).await;
    let all = [&secrets.of_sandbox, &secrets.of_call, &secrets.plain, &secrets.input];
    let seen = sandbox.sh("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").await;
    for secret in all {
        assert!(find_by_argument(secret).is_empty() && !seen.contains(secret.as_str()), "{seen}");
    }
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        let arguments = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let has = all.iter().any(|secret| contains(&environment, secret));
        let is_the_commands_own = ["sleep\u{0}", "bash\u{0}", "cat\u{0}"].iter().any(|name| contains(&arguments, name));
        assert!(!has || is_the_commands_own, "{:?} {}", entry.path(), String::from_utf8_lossy(&arguments));
    }
    reads.abort();
}

/// Keys, headers, URLs.
async fn doors_keep(client: &Client, sandbox: &Sandbox, secrets: &Secrets) {
    let body = json!({ "sandboxId": sandbox.id }).to_string();
    let stranger = client.with_key(Some(&secrets.wrong_key));
    for answer in [
        stranger.call("getSandbox", &json!({ "sandboxId": sandbox.id })).await,
        stranger.get(&sandbox.file_path(&format!("x?{}", secrets.wrong_key))).await,
        client.get(&format!("/v1/tools?key={}", secrets.wrong_key)).await,
    ] {
        assert!(!answer.text().contains(&secrets.wrong_key), "{}", answer.text());
    }
    for header in ["cookie", "x-api-key", "tracestate", "traceparent", "user-agent", "prefer"] {
        let request = client.request(Method::POST, "/v1/tools/getSandbox").body(body.clone());
        let answer = client.send(request.header(header, &secrets.wrong_key)).await;
        assert!(!answer.ok().to_string().contains(&secrets.wrong_key));
    }
    let url = format!("http://user:{}@127.0.0.1:1/a.git", secrets.password);
    let clone = client.call("createSandbox", &json!({ "id": random_name("s"), "gitUrl": url })).await;
    assert!(clone.status >= 400 && !clone.text().contains(&secrets.password), "{}", clone.text());
    let command = json!({ "command": format!("true {url}"), "sandboxId": random_name("none") });
    assert!(!client.call("exec", &command).await.text().contains(&secrets.password));
}
