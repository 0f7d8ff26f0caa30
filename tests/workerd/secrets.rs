//! Named secrets: given to commands by name, masked in what they write, read by nobody.

use reqwest::Method;
use serde_json::{Value, json};
use test_support::{Client, PATIENCE, Sandbox, Stack, StackOptions, eventually, random_name};

use super::jobs_survive::kill;

/// A secret of a name of its own, and its value.
struct Secret {
    name: String,
    value: String,
}

impl Secret {
    async fn set(client: &Client) -> Self {
        let secret = Self { name: random_name("secret"), value: random_name("value") };
        client.call("setSecret", &json!({ "name": secret.name, "value": secret.value })).await.ok();
        secret
    }

    async fn replace(&mut self, client: &Client) {
        self.value = random_name("value");
        client.call("setSecret", &json!({ "name": self.name, "value": self.value })).await.ok();
    }

    /// `exec` of a command that has it in the variable `V`.
    fn exec(&self, sandbox: &Sandbox, command: &str) -> Value {
        json!({ "sandboxId": sandbox.id, "command": command, "secrets": { "V": self.name }, "timeout": 120 })
    }

    /// All but the last letter, which is not masked.
    fn almost(&self) -> String {
        format!("{}\n", &self.value[..self.value.len() - 1])
    }
}

/// What a command writes of the variable `V`: all but its last letter.
const ALMOST: &str = "echo \"${V%?}\"";

async fn listed(client: &Client, name: &str) -> Option<Value> {
    let page = client.get("/v1/secrets?limit=500").await.ok();
    page["secrets"].as_array().unwrap().iter().find(|secret| secret["name"] == name).cloned()
}

#[tokio::test]
async fn a_command_has_the_value_and_whatever_it_writes_of_it_is_masked() {
    let (root, sandbox) = (Stack::shared().client(), Stack::shared().sandbox().await);
    let secret = Secret::set(&root).await;
    assert_eq!(root.call("exec", &secret.exec(&sandbox, ALMOST)).await.ok()["stdout"], secret.almost());
    let pieces = "printf %s \"${V:0:7}\"; sleep .2; printf '%s\\n' \"${V:7}\"";
    for (command, expected) in [
        ("echo \"<$V>\" | tee f", "<[redacted]>\n"),
        (pieces, "[redacted]\n"),
        ("printf %s \"$V\" | base64 -w0", "[redacted]"),
        (
            "printf %s \"$V\" | xxd -p -c 100 2>/dev/null || printf %s \"$V\" | od -An -v -tx1 | tr -d ' \\n'",
            "[redacted]",
        ),
        ("printf '\\377'; echo $V >&2", "\u{fffd}"),
        ("printf %s \"$SANDBOX_SECRETS\"", "V"),
        ("cat /proc/$$/cmdline /proc/1/cmdline | grep -c \"$V\"", "0\n"),
    ] {
        let answer = root.call("exec", &secret.exec(&sandbox, command)).await;
        let output = answer.ok();
        assert!(!answer.text().contains(&secret.value), "{command}: {}", answer.text());
        let stdout = output["stdout"].as_str().unwrap();
        assert!(output["stdoutEncoding"] == "base64" || stdout.trim() == expected.trim(), "{command}: {output}");
        let streamed = sandbox.exec_streamed(secret.exec(&sandbox, command)).await;
        assert_eq!(String::from_utf8_lossy(&streamed.stdout).trim(), expected.trim(), "{command}, streamed");
    }
    // It is nowhere without being asked for, and files are exact.
    assert_eq!(sandbox.sh("echo \"[$V]\"; cat f").await, format!("[]\n<{}>\n", secret.value));
    let start =
        json!({ "name": "p", "command": "echo $V; echo $V >&2; exec sleep 1000", "secrets": { "V": secret.name } });
    let started = sandbox.call("startBackgroundProcess", start).await.ok();
    let wait = json!({ "processId": started["processId"], "text": "redacted", "timeout": 90 });
    assert_eq!(sandbox.call("waitForProcess", wait).await.ok()["outcome"], "met");
    let logs = sandbox.call("getProcessLogs", json!({ "processId": started["processId"] })).await.text();
    assert!(logs.contains("[redacted]") && !logs.contains(&secret.value), "{logs}");
    // What is told of it is told without it.
    let told = listed(&root, &secret.name).await.unwrap();
    assert!(told["lastUsedAt"].as_str() >= told["updatedAt"].as_str() && told["sealedWith"] == "current", "{told}");
    assert!(!told.to_string().contains(&secret.value), "{told}");
    let books = root.call("getAuditLog", &json!({ "sandboxId": sandbox.id })).await.text();
    assert!(books.contains(&secret.name) && !books.contains(&secret.value), "the books say which, and not what");
}

#[tokio::test]
async fn secrets_are_set_listed_in_pages_replaced_and_deleted() {
    let stack = Stack::shared();
    let tenant = random_name("t");
    let call = |method: Method, path: &str, body: Value| {
        let root = stack.client();
        let request = root.request(method, path).header("x-tenant", &tenant).body(body.to_string());
        async move { root.send(request).await }
    };
    let value = random_name("value");
    for name in ["a", "b", "c"] {
        let body = json!({ "value": value, "description": format!("is {name}") });
        let answer = call(Method::PUT, &format!("/v1/secrets/{name}"), body).await;
        assert!(answer.ok()["name"] == name && !answer.text().contains(&value), "{}", answer.text());
    }
    let page = call(Method::GET, "/v1/secrets?limit=2", json!({})).await.ok();
    assert_eq!((&page["secrets"][1]["name"], &page["nextCursor"]), (&json!("b"), &json!("b")));
    let last = call(Method::GET, "/v1/secrets?limit=2&cursor=b", json!({})).await.ok();
    assert_eq!((&last["secrets"][0]["name"], &last["nextCursor"]), (&json!("c"), &Value::Null));
    let put = |body: Value| call(Method::PUT, "/v1/secrets/a", body);
    let told = put(json!({ "value": value, "dryRun": true })).await.ok();
    assert!(told["effects"][0].as_str().unwrap().contains("another value"), "{told}");
    let replaced = put(json!({ "value": random_name("value") })).await.ok();
    assert_eq!(replaced["description"], "is a", "without another one it stays");
    assert!(replaced["updatedAt"].as_str() >= replaced["createdAt"].as_str());
    for (body, field) in
        [(json!({}), "value"), (json!({ "value": "short" }), "value"), (json!({ "value": 12345678 }), "value")]
    {
        let problem = put(body).await.problem(400, "invalid_arguments");
        assert!(problem.detail.contains(field), "{}", problem.detail);
    }
    call(Method::PUT, "/v1/secrets/-a", json!({ "value": value })).await.problem(400, "invalid_arguments");
    let told = call(Method::DELETE, "/v1/secrets/a?dryRun=true", json!({})).await.ok();
    assert_eq!(told["dryRun"], true, "{told}");
    assert_eq!(call(Method::DELETE, "/v1/secrets/a", json!({})).await.ok()["status"], "deleted");
    call(Method::DELETE, "/v1/secrets/a", json!({})).await.problem(404, "not_found");
    // Another tenant has none of them.
    assert_eq!(listed(&stack.client(), "b").await, None);
}

#[tokio::test]
async fn what_is_not_there_is_named_and_nothing_begins() {
    let (root, sandbox) = (Stack::shared().client(), Stack::shared().sandbox().await);
    let secret = Secret::set(&root).await;
    let gone = random_name("gone");
    let pointer = |problem: &test_support::Problem| problem.details["violations"][0]["pointer"].clone();
    let exec = json!({ "sandboxId": sandbox.id, "command": "touch ran", "secrets": { "V": secret.name, "W": gone } });
    for tool in ["exec", "startBackgroundProcess"] {
        let mut asked = exec.clone();
        if tool != "exec" {
            asked["name"] = json!("p");
        }
        let problem = root.call(tool, &asked).await.problem(400, "invalid_arguments");
        assert_eq!(pointer(&problem), "/secrets/W");
        assert!(problem.detail.contains(&gone) && problem.detail.contains("setSecret"), "{}", problem.detail);
        root.deferred(tool, &asked).await.problem(400, "invalid_arguments");
    }
    let steps = json!({ "steps": [
        { "name": "first", "tool": "exec", "arguments": { "sandboxId": sandbox.id, "command": "touch ran" } },
        { "name": "second", "tool": "exec", "arguments": exec },
    ] });
    let problem = root.call("runPipeline", &steps).await.problem(400, "invalid_arguments");
    assert_eq!(pointer(&problem), "/steps/1/arguments/secrets/W");
    assert_eq!(sandbox.sh("ls").await, "", "no command was run");
    // Without a sandbox none is made.
    let unmade = Stack::shared().unmade_sandbox();
    let create = json!({ "id": unmade.id, "secrets": { "W": gone } });
    assert_eq!(pointer(&root.call("createSandbox", &create).await.problem(400, "invalid_arguments")), "/secrets/W");
    root.call("getSandbox", &json!({ "sandboxId": unmade.id })).await.problem(404, "not_found");
    // One that is there is not, once it was deleted.
    root.call("exec", &secret.exec(&sandbox, "true")).await.ok();
    root.call("deleteSecret", &json!({ "name": secret.name })).await.ok();
    root.call("exec", &secret.exec(&sandbox, "true")).await.problem(400, "invalid_arguments");
    for (secrets, field) in [
        (json!({ "V": "no/name" }), "/secrets/V"),
        (json!({ "1V": "a" }), "/secrets/1V"),
        (json!({ "SANDBOX_SECRETS": "a" }), "/secrets/SANDBOX_SECRETS"),
        (json!({ "E": "a" }), "/secrets/E"),
    ] {
        let asked = json!({ "command": "true", "env": { "E": "x" }, "secrets": secrets });
        assert_eq!(pointer(&root.call("exec", &asked).await.problem(400, "invalid_arguments")), field);
    }
}

#[tokio::test]
async fn a_sandbox_has_the_values_of_its_last_start_or_change() {
    let (root, stack) = (Stack::shared().client(), Stack::shared());
    let mut secret = Secret::set(&root).await;
    let secrets = json!({ "V": secret.name });
    let sandbox = stack.sandbox_with(json!({ "secrets": secrets })).await;
    assert_eq!(sandbox.sh(ALMOST).await, secret.almost());
    assert_eq!(sandbox.sh("echo $V").await, "[redacted]\n");
    root.call("createSandbox", &json!({ "id": sandbox.id, "secrets": secrets })).await.ok();
    let other = json!({ "id": sandbox.id, "secrets": {} });
    assert_eq!(root.call("createSandbox", &other).await.problem(409, "conflict").details["field"], "secrets");
    let before = secret.almost();
    secret.replace(&root).await;
    assert_eq!(sandbox.sh(ALMOST).await, before, "what was given stays");
    sandbox.call("updateSandbox", json!({ "secrets": secrets })).await.ok();
    assert_eq!(sandbox.sh(ALMOST).await, secret.almost());
    secret.replace(&root).await;
    sandbox.call("stopSandbox", json!({})).await.ok();
    assert_eq!(sandbox.sh(ALMOST).await, secret.almost());
    // A deleted one keeps it from starting, and says how to mend that.
    root.call("deleteSecret", &json!({ "name": secret.name })).await.ok();
    sandbox.call("stopSandbox", json!({})).await.ok();
    for tool in ["wakeSandbox", "exec"] {
        let asked = if tool == "exec" { json!({ "command": "true" }) } else { json!({}) };
        let problem = sandbox.call(tool, asked).await.problem(409, "conflict");
        let details = (&problem.details["secretName"], &problem.details["variable"]);
        assert_eq!(details, (&json!(secret.name), &json!("V")));
        assert!(problem.detail.contains("unsetEnv"), "{}", problem.detail);
    }
    sandbox.call("updateSandbox", json!({ "unsetEnv": ["V"] })).await.ok();
    assert_eq!(sandbox.sh("echo \"[$V]\"").await, "[]\n");
    let described = sandbox.call("getSandbox", json!({})).await.text();
    assert!(!described.contains(&secret.value), "{described}");
}

#[tokio::test]
async fn a_job_has_the_value_of_when_it_begins() {
    let (root, sandbox) = (Stack::shared().client(), Stack::shared().sandbox().await);
    let mut secret = Secret::set(&root).await;
    let agent = json!({ "name": "a test", "permissions": { "role": "operator", "approval": { "tools": ["exec"] } } });
    let agent = root.with_key(root.call("createKey", &agent).await.ok()["key"].as_str());
    let id = agent.call("exec", &secret.exec(&sandbox, ALMOST)).await.job_id();
    let waiting = root.get(&format!("/v1/jobs/{id}")).await;
    assert_eq!(waiting.ok()["arguments"]["secrets"]["V"], secret.name.as_str(), "who approves sees which it is");
    secret.replace(&root).await;
    root.call("approveJob", &json!({ "jobId": id })).await.ok();
    let told = root.ended(&id).await;
    assert_eq!(told["output"]["stdout"], secret.almost(), "{told}");
    // A step, and a job that is tried again.
    let command = "[ -e again ] || { touch again; sleep 1000; }; echo \"${V%?}\"";
    let asked = secret.exec(&sandbox, command);
    let first = root.deferred("exec", &asked).await.job_id();
    eventually("it began", PATIENCE, || async { (sandbox.sh("ls").await == "again\n").then_some(()) }).await;
    root.call("cancelJob", &json!({ "jobId": first })).await.ok();
    assert_eq!(root.ended(&first).await["state"], "cancelled");
    secret.replace(&root).await;
    root.call("retryJob", &json!({ "jobId": first })).await.ok();
    let told = root.ended(&first).await;
    assert_eq!(told["output"]["stdout"], secret.almost(), "{told}");
    let steps = json!({ "steps": [{ "name": "one", "tool": "exec", "arguments": secret.exec(&sandbox, "echo $V") }] });
    let answer = root.call("runPipeline", &steps).await;
    let log = root.get(&format!("/v1/jobs/{}/logs", answer.header("x-request-id").unwrap())).await;
    assert_eq!(answer.ok()["steps"][0]["state"], "succeeded");
    assert_eq!(log.ok()["chunks"][0]["data"], "[redacted]\n");
    // A value is no argument of what is stored.
    let strict =
        json!({ "name": "a test", "permissions": { "role": "admin", "approval": { "tools": ["setSecret"] } } });
    let strict = root.with_key(root.call("createKey", &strict).await.ok()["key"].as_str());
    let set = json!({ "name": secret.name, "value": secret.value });
    assert_eq!(strict.call("setSecret", &set).await.problem(403, "forbidden").details["reason"], "needs_approval");
    let steps = json!({ "steps": [{ "name": "one", "tool": "setSecret", "arguments": set }] });
    root.call("runPipeline", &steps).await.problem(400, "invalid_arguments");
    root.deferred("setSecret", &set).await.ok();
}

#[tokio::test]
async fn a_command_outlives_the_worker_and_its_secret_and_no_disk_has_the_value() {
    let stack = Stack::start(StackOptions::default());
    let (root, sandbox) = (stack.client(), stack.sandbox_with(json!({ "keepAlive": true })).await);
    let secret = Secret::set(&root).await;
    let command = "echo $V; echo x >> begun; until [ -e go ]; do sleep 0.2; done; echo $V; echo \"${V%?}\" | wc -c";
    let id = root.deferred("exec", &secret.exec(&sandbox, command)).await.job_id();
    eventually("it began", PATIENCE, || async { (sandbox.sh("ls").await == "begun\n").then_some(()) }).await;
    kill(&stack).await;
    let (root, sandbox) = (stack.client(), stack.adopt(&sandbox.id));
    // It has what it was given.
    root.call("deleteSecret", &json!({ "name": secret.name })).await.ok();
    sandbox.sh("touch go").await;
    let told = root.ended(&id).await;
    let expected = format!("[redacted]\n[redacted]\n{}\n", secret.value.len());
    assert_eq!((&told["state"], &told["output"]["stdout"]), (&json!("succeeded"), &json!(expected)), "{told}");
    assert_eq!(sandbox.sh("cat begun").await, "x\n", "it was begun once");
    let log = root.get(&format!("/v1/jobs/{id}/logs")).await.text();
    assert!(!log.contains(&secret.value), "{log}");
    let used = Secret::set(&root).await;
    sandbox.call("updateSandbox", json!({ "secrets": { "OF_SANDBOX": used.name } })).await.ok();
    assert_eq!(sandbox.sh("echo $OF_SANDBOX").await, "[redacted]\n");
    let worker = stack.worker().storage().to_owned();
    stack.worker().kill();
    let (mut folders, mut files) = (vec![worker], 0);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap().flatten() {
            if entry.path().is_dir() {
                folders.push(entry.path());
                continue;
            }
            let bytes = std::fs::read(entry.path()).unwrap_or_default();
            for value in [&secret.value, &used.value] {
                let holds = bytes.windows(value.len()).any(|window| window == value.as_bytes());
                assert!(!holds, "{} holds a value", entry.path().display());
            }
            files += 1;
        }
    }
    assert!(files > 2, "the storage is read");
}

#[tokio::test]
async fn a_signing_secret_is_replaced_and_a_lost_one_is_said() {
    let stack = Stack::start(StackOptions::default());
    let sandbox = stack.sandbox().await;
    let (used, unused) = (Secret::set(&stack.client()).await, Secret::set(&stack.client()).await);
    let sealed_with = |name: String| {
        let root = stack.client();
        async move { listed(&root, &name).await.unwrap()["sealedWith"].as_str().unwrap().to_owned() }
    };
    // A client of its own: connections end with each Worker.
    let files = || async {
        let asked = json!({ "sandboxId": sandbox.id, "command": "ls" });
        stack.client().call("exec", &asked).await.ok()["stdout"].as_str().unwrap().to_owned()
    };
    let earlier = stack.worker().signing().expect("it has a signing secret").to_owned();
    let newer = random_name("newer-signing");
    stack.worker().restart_signing(Some(format!("{newer},{earlier}")));
    assert_eq!(sealed_with(used.name.clone()).await, "earlier");
    assert_eq!(stack.client().call("exec", &used.exec(&sandbox, ALMOST)).await.ok()["stdout"], used.almost());
    // Its use has put it under the first value.
    let is_current = || async { (sealed_with(used.name.clone()).await == "current").then_some(()) };
    eventually("it is sealed anew", PATIENCE, is_current).await;
    stack.worker().restart_signing(Some(newer));
    assert_eq!(stack.client().call("exec", &used.exec(&sandbox, ALMOST)).await.ok()["stdout"], used.almost());
    assert_eq!(sealed_with(unused.name.clone()).await, "lost");
    let problem = stack.client().call("exec", &unused.exec(&sandbox, "touch ran")).await.problem(503, "not_configured");
    assert_eq!(
        (&problem.details["secret"], &problem.details["secretName"]),
        (&json!("SIGNING_SECRET"), &json!(unused.name))
    );
    assert_eq!(files().await, "", "nothing was run");
    stack.client().call("setSecret", &json!({ "name": unused.name, "value": unused.value })).await.ok();
    assert_eq!(stack.client().call("exec", &unused.exec(&sandbox, ALMOST)).await.ok()["stdout"], unused.almost());
    stack.worker().restart_signing(None);
    for (tool, asked) in [
        ("setSecret", json!({ "name": "a", "value": "a-value-of-a" })),
        ("listSecrets", json!({})),
        ("exec", used.exec(&sandbox, "touch ran")),
    ] {
        let problem = stack.client().call(tool, &asked).await.problem(503, "not_configured");
        assert!(problem.detail.contains("SIGNING_SECRET"), "{tool}: {}", problem.detail);
    }
    assert_eq!(files().await, "");
}

#[tokio::test]
async fn a_key_uses_the_secrets_that_it_may() {
    let (root, sandbox) = (Stack::shared().client(), Stack::shared().sandbox().await);
    let (own, other) = (Secret::set(&root).await, Secret::set(&root).await);
    let made = |permissions: Value| {
        let root = Stack::shared().client();
        async move {
            let made = root.call("createKey", &json!({ "name": "a test", "permissions": permissions })).await.ok();
            root.with_key(made["key"].as_str())
        }
    };
    let runs = made(json!({ "role": "operator", "scopes": ["sandbox:exec", "sandbox:read"] })).await;
    runs.call("exec", &json!({ "sandboxId": sandbox.id, "command": "true" })).await.ok();
    let problem = runs.call("exec", &own.exec(&sandbox, "true")).await.problem(403, "forbidden");
    assert!(problem.detail.contains("secrets:use"), "{}", problem.detail);
    let none = json!({ "sandboxId": sandbox.id, "command": "true", "secrets": { "V": random_name("none") } });
    runs.call("exec", &none).await.problem(403, "forbidden");
    let limited = made(json!({ "role": "admin", "secrets": [own.name] })).await;
    assert_eq!(limited.call("exec", &own.exec(&sandbox, ALMOST)).await.ok()["stdout"], own.almost());
    let page = limited.call("listSecrets", &json!({})).await.ok();
    assert_eq!(page["secrets"].as_array().unwrap().len(), 1, "{page}");
    for (tool, asked) in [
        ("exec", other.exec(&sandbox, "true")),
        ("setSecret", json!({ "name": other.name, "value": "another-value" })),
        ("deleteSecret", json!({ "name": other.name })),
        ("createKey", json!({ "name": "a test", "permissions": { "role": "viewer" } })),
        ("createSandbox", json!({ "id": random_name("s"), "secrets": { "V": other.name } })),
    ] {
        limited.call(tool, &asked).await.problem(403, "forbidden");
    }
    let operator = made(json!({ "role": "operator" })).await;
    operator.call("setSecret", &json!({ "name": own.name, "value": "another-value" })).await.problem(403, "forbidden");
    let wrong = json!({ "name": "a test", "permissions": { "role": "viewer", "secrets": ["no name"] } });
    let problem = root.call("createKey", &wrong).await.problem(400, "invalid_arguments");
    assert_eq!(problem.details["violations"][0]["pointer"], "/permissions/secrets");
}

#[tokio::test]
async fn a_schedule_names_a_secret_and_gets_its_value_of_then() {
    let (root, sandbox) = (Stack::shared().client(), Stack::shared().sandbox().await);
    let mut secret = Secret::set(&root).await;
    let at = cloudflare_ops::platform::rfc3339(crate::schedules::soon());
    let asked = json!({ "name": "a test", "tool": "exec", "arguments": secret.exec(&sandbox, ALMOST), "at": at });
    let made = root.call("createSchedule", &asked).await.ok();
    secret.replace(&root).await;
    let path = format!("/v1/schedules/{}", made["scheduleId"].as_str().unwrap());
    let told = || async {
        let told = root.get(&path).await.ok();
        (told["state"] == "ended" && told["lastOutcome"] == "succeeded").then_some(told)
    };
    // Its time has to come, and then its run.
    let told = eventually("it was run", 2 * PATIENCE, told).await;
    let job = root.ended(told["lastJobId"].as_str().unwrap()).await;
    assert_eq!(job["output"]["stdout"], secret.almost(), "{job}");
    // To set one is no call that could be kept.
    let value = json!({ "name": secret.name, "value": "0123456789" });
    let asked = json!({ "name": "a test", "tool": "setSecret", "arguments": value, "at": at });
    let refused = root.call("createSchedule", &asked).await;
    assert_eq!((refused.status, refused.json()["code"].as_str()), (400, Some("invalid_arguments")));
    assert!(!refused.text().contains("0123456789"), "{}", refused.text());
}
