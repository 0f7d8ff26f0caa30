//! Schedules: calls that are made at their time, once, with the rights that their key has then.

use std::path::PathBuf;
use std::time::Duration;

use cloudflare_ops::platform::{parse_rfc3339, rfc3339};
use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use test_support::{Answer, Client, PATIENCE, Sandbox, Stack, StackOptions, eventually, random_name};

use crate::jobs_survive::kill;

pub fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(since.as_millis()).unwrap()
}

/// A time that is still to come once a schedule of it is made, and changed, on a busy machine.
pub fn soon() -> i64 {
    now() + 30_000
}

fn run(sandbox: &Sandbox, command: &str) -> Value {
    json!({ "sandboxId": sandbox.id, "command": command })
}

/// A schedule of a command, with what else is said of it.
async fn schedule(client: &Client, sandbox: &Sandbox, command: &str, more: Value) -> Value {
    let mut asked = json!({ "name": "a test", "tool": "exec", "arguments": run(sandbox, command) });
    asked.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    client.send(client.request(Method::POST, "/v1/schedules").json(&asked)).await.ok()
}

fn path(schedule: &Value) -> String {
    format!("/v1/schedules/{}", schedule["scheduleId"].as_str().unwrap())
}

async fn update(client: &Client, schedule: &Value, change: Value) -> Answer {
    client.send(client.request(Method::PATCH, &path(schedule)).json(&change)).await
}

/// The schedule once this holds of it. The service may be away meanwhile.
async fn told(client: &Client, schedule: &Value, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let told = || async {
        let answer = client.try_send(client.request(Method::GET, &path(schedule))).await?;
        (answer.status == 200).then(|| answer.json()).filter(|told| holds(told))
    };
    // Its time has to come, and then its run.
    eventually(what, 2 * PATIENCE, told).await
}

fn is_over(told: &Value) -> bool {
    let outcome = told["lastOutcome"].as_str().unwrap_or_default();
    !["", "awaiting_approval", "queued", "running"].contains(&outcome)
}

async fn runs(sandbox: &Sandbox) -> String {
    sandbox.sh("cat runs 2>/dev/null | wc -l").await
}

async fn key(root: &Client, permissions: Value) -> (String, Client) {
    let made = root.call("createKey", &json!({ "name": "a test", "permissions": permissions })).await.ok();
    (made["keyId"].as_str().unwrap().to_owned(), root.with_key(made["key"].as_str()))
}

#[tokio::test]
async fn a_schedule_is_run_once_at_its_time_and_tells_of_it() {
    let (root, sandbox) = (Stack::shared().client(), Stack::shared().sandbox().await);
    let at = soon();
    let made = schedule(&root, &sandbox, "echo x >> runs; date +%s%3N; exit 3", json!({ "at": rfc3339(at) })).await;
    assert_eq!((&made["state"], &made["nextRunAt"]), (&json!("active"), &json!(rfc3339(at))), "{made}");
    assert_eq!((&made["overlap"], &made["catchUp"], &made["runs"]), (&json!("skip"), &json!(true), &json!(0)));
    assert_eq!(made["arguments"]["command"], run(&sandbox, "echo x >> runs; date +%s%3N; exit 3")["command"]);
    // A tool that is otherwise answered at once is a job too.
    let inline = json!({ "name": "a test", "tool": "listSandboxes", "at": rfc3339(soon()) });
    let inline = root.call("createSchedule", &inline).await.ok();
    let told = told(&root, &made, "it was run", is_over).await;
    assert_eq!(
        (&told["state"], &told["lastOutcome"], &told["runs"]),
        (&json!("ended"), &json!("succeeded"), &json!(1))
    );
    assert_eq!((&told["lastDueAt"], told.get("nextRunAt")), (&json!(rfc3339(at)), None), "{told}");
    // Its run is a job like any other, and in the books once.
    let job = root.ended(told["lastJobId"].as_str().unwrap()).await;
    assert_eq!((&job["scheduleId"], &job["exitCode"]), (&made["scheduleId"], &json!(3)), "{job}");
    let began: i64 = job["output"]["stdout"].as_str().unwrap().trim().parse().unwrap();
    assert!(began >= at, "not before its time");
    let id = made["scheduleId"].as_str().unwrap();
    let jobs = root.get(&format!("/v1/jobs?scheduleId={id}")).await.ok();
    assert_eq!(jobs["jobs"].as_array().unwrap().len(), 1, "{jobs}");
    let books = root.call("getAuditLog", &json!({ "requestId": job["jobId"] })).await.ok();
    let call = &books["calls"][0];
    assert_eq!(
        (&call["door"], &call["scheduleId"], &call["keyId"]),
        (&json!("schedule"), &made["scheduleId"], &json!("root"))
    );
    assert_eq!(runs(&sandbox).await, "1\n");
    let listed = root.get("/v1/schedules?state=ended&tool=exec&limit=500").await.ok();
    let listed = listed["schedules"].as_array().unwrap().iter().find(|one| one["scheduleId"] == id).cloned().unwrap();
    assert_eq!((&listed["lastJobId"], listed.get("arguments")), (&job["jobId"], None));
    assert_eq!(self::told(&root, &inline, "it was run", is_over).await["lastOutcome"], "succeeded");
}

#[tokio::test]
async fn kills_around_the_due_time_lose_no_run_and_make_none_twice() {
    let stack = Stack::start(StackOptions::default());
    let sandbox = stack.sandbox_with(json!({ "keepAlive": true })).await;
    let seed = random_name("seed");
    println!("{seed}");
    let noise = u64::from_str_radix(&seed[5..], 16).unwrap();
    let first = soon();
    let due_at = |number: i64, at: i64| {
        let (root, sandbox) = (stack.client(), &sandbox);
        async move {
            let command = format!("echo {number} >> runs; sleep 1");
            (at, schedule(&root, sandbox, &command, json!({ "at": rfc3339(at) })).await)
        }
    };
    let mut made = Vec::new();
    for number in 0..4 {
        made.push(due_at(number, first + number * 2_500).await);
    }
    for number in 0..4_i64 {
        // From 300 ms before to 500 ms after.
        let offset = i64::try_from((noise >> (8 * number)) % 800).unwrap() - 300;
        let wait = first + number * 2_500 + offset - now();
        tokio::time::sleep(Duration::from_millis(wait.try_into().unwrap_or(0))).await;
        kill(&stack).await;
    }
    // However late the last kill came, these are due after it.
    for number in 4..6 {
        made.push(due_at(number, soon()).await);
    }
    let root = stack.client();
    let file: PathBuf = stack.host().folder().join(format!("default.{}", sandbox.id)).join("workspace/runs");
    let mut succeeded = 0;
    for (number, (due, made)) in made.iter().enumerate() {
        let told = told(&root, made, "it was run", is_over).await;
        assert_eq!(
            (&told["runs"], &told["missedRuns"], &told["refusedRuns"]),
            (&json!(1), &json!(0), &json!(0)),
            "{told}"
        );
        let id = made["scheduleId"].as_str().unwrap();
        assert_eq!(told["lastJobId"], format!("{id}-{due}"), "{told}");
        let jobs = root.get(&format!("/v1/jobs?scheduleId={id}")).await.ok();
        assert_eq!(jobs["jobs"].as_array().unwrap().len(), 1, "{jobs}");
        let written = std::fs::read_to_string(&file).unwrap_or_default();
        let count = written.lines().filter(|line| *line == number.to_string()).count();
        match told["lastOutcome"].as_str().unwrap() {
            "succeeded" => {
                assert_eq!(count, 1, "{number} of {written:?}");
                succeeded += 1;
            }
            // Killed after it was to begin and before anybody saw that it did.
            "interrupted" => assert!(count <= 1, "{number} of {written:?}"),
            outcome => panic!("{outcome}: {told}"),
        }
    }
    assert!(succeeded >= 2, "those after the last kill at least");
    assert_eq!(root.call("verifyAuditLog", &json!({})).await.ok()["valid"], true);
}

#[tokio::test]
async fn a_schedule_is_paused_changed_resumed_and_deleted() {
    let (root, sandbox) = (Stack::shared().client(), Stack::shared().sandbox().await);
    let at = soon();
    let made = schedule(&root, &sandbox, "echo x >> runs", json!({ "at": rfc3339(at) })).await;
    let paused = update(&root, &made, json!({ "paused": true })).await.ok();
    assert_eq!(
        (&paused["state"], &paused["pausedBy"], paused.get("nextRunAt")),
        (&json!("paused"), &json!("root"), None)
    );
    // Others run, so that the time has come for this one too.
    let other = schedule(&root, &sandbox, "true", json!({ "at": rfc3339(at + 500) })).await;
    told(&root, &other, "another was run", is_over).await;
    assert_eq!(root.get(&path(&made)).await.ok()["runs"], 0);
    let late = update(&root, &made, json!({ "paused": false })).await.problem(409, "conflict");
    assert!(late.detail.contains("has passed"), "{}", late.detail);
    // Who resumes it answers for it from then on, and has to be allowed to.
    let (operator_id, operator) = key(&root, json!({ "role": "operator" })).await;
    let (_, files) =
        key(&root, json!({ "role": "operator", "tools": ["updateSchedule", "deleteSchedule", "readFile"] })).await;
    update(&files, &made, json!({ "paused": true })).await.problem(403, "forbidden");
    let (_, viewer) = key(&root, json!({ "role": "viewer" })).await;
    update(&viewer, &made, json!({ "paused": true })).await.problem(403, "forbidden");
    assert_eq!(viewer.get(&path(&made)).await.ok()["keyId"], "root");
    let change = json!({
        "paused": false, "at": rfc3339(soon()), "name": "other", "overlap": "allow",
        "tool": "exec", "arguments": run(&sandbox, "echo y >> runs"),
    });
    let resumed = update(&operator, &made, change).await.ok();
    assert_eq!(
        (&resumed["state"], &resumed["keyId"], &resumed["name"]),
        (&json!("active"), &json!(operator_id), &json!("other"))
    );
    assert_eq!(told(&root, &made, "it was run", is_over).await["lastOutcome"], "succeeded");
    assert_eq!(sandbox.sh("cat runs").await, "y\n");
    // One that has ended begins again with another time only.
    update(&root, &made, json!({ "paused": false })).await.problem(409, "conflict");
    update(&root, &made, json!({ "at": "2099-01-01T00:00:00Z" })).await.ok();
    let dry = root.call("deleteSchedule", &json!({ "scheduleId": made["scheduleId"], "dryRun": true })).await.ok();
    assert!(dry["effects"].to_string().contains("taken away"), "{dry}");
    root.get(&path(&made)).await.ok();
    let delete = |client: &Client| client.clone().send_delete(path(&made));
    delete(&files).await.problem(403, "forbidden");
    assert_eq!(delete(&root).await.ok()["deleted"], true);
    delete(&root).await.problem(404, "not_found");
    root.get(&path(&made)).await.problem(404, "not_found");
}

trait Deletes {
    fn send_delete(self, path: String) -> impl Future<Output = Answer>;
}

impl Deletes for Client {
    async fn send_delete(self, path: String) -> Answer {
        self.send(self.request(Method::DELETE, &path)).await
    }
}

#[tokio::test]
async fn a_run_has_the_rights_of_its_time_and_a_revoked_key_pauses_its_schedules() {
    let (root, sandbox) = (Stack::shared().client(), Stack::shared().sandbox().await);
    let (key_id, operator) = key(&root, json!({ "role": "operator" })).await;
    let made = schedule(&operator, &sandbox, "echo x >> runs", json!({ "at": rfc3339(soon()) })).await;
    root.call("revokeKey", &json!({ "keyId": key_id })).await.ok();
    let refused = told(&root, &made, "it was refused", is_over).await;
    assert_eq!((&refused["state"], &refused["lastOutcome"]), (&json!("paused"), &json!("refused")), "{refused}");
    assert_eq!(refused["pausedBecause"]["code"], "unauthenticated");
    assert!(refused["pausedBecause"]["detail"].as_str().unwrap().contains("revoked"), "{refused}");
    assert_eq!((&refused["runs"], &refused["refusedRuns"]), (&json!(0), &json!(1)));
    let books = root.call("getAuditLog", &json!({ "keyId": key_id, "outcome": "unauthenticated" })).await.ok();
    assert_eq!(
        (&books["calls"][0]["scheduleId"], &books["calls"][0]["result"]),
        (&made["scheduleId"], &json!("refused"))
    );
    assert_eq!(runs(&sandbox).await, "0\n");
    // One that was wrong with its call is told, and does not pause it.
    let gone = json!({ "name": "a test", "tool": "wakeSandbox", "arguments": { "sandboxId": random_name("none") }, "at": rfc3339(soon()) });
    let gone = root.call("createSchedule", &gone).await.ok();
    let change = json!({ "paused": false, "at": rfc3339(soon()) });
    assert_eq!(update(&root, &made, change).await.ok()["keyId"], "root");
    assert_eq!(
        told(&root, &made, "it was run", |told| told["runs"] == 1 && is_over(told)).await["lastOutcome"],
        "succeeded"
    );
    assert_eq!(runs(&sandbox).await, "1\n");
    let gone = told(&root, &gone, "it was refused", is_over).await;
    assert_eq!((&gone["state"], &gone["lastError"]["code"]), (&json!("ended"), &json!("not_found")), "{gone}");
}

#[tokio::test]
async fn a_run_that_has_to_be_approved_waits_for_that() {
    let (root, sandbox) = (Stack::shared().client(), Stack::shared().sandbox().await);
    let (_, agent) = key(&root, json!({ "role": "operator", "approval": { "tools": ["exec"] } })).await;
    let made = schedule(&agent, &sandbox, "echo x >> runs", json!({ "at": rfc3339(soon()) })).await;
    let waits = told(&root, &made, "it waits", |told| told["lastOutcome"] == "awaiting_approval").await;
    let job = waits["lastJobId"].as_str().unwrap();
    // It is not over, and so no other is made beside it.
    agent
        .send(agent.request(Method::POST, &format!("{}/run", path(&made))).json(&json!({})))
        .await
        .problem(409, "conflict");
    assert_eq!(runs(&sandbox).await, "0\n");
    root.call("approveJob", &json!({ "jobId": job })).await.ok();
    assert_eq!(told(&root, &made, "it was run", is_over).await["lastOutcome"], "succeeded");
    assert_eq!(runs(&sandbox).await, "1\n");
}

#[tokio::test]
async fn what_comes_each_minute_waits_for_the_run_before_and_is_run_on_request() {
    let (root, sandbox) = (Stack::shared().client(), Stack::shared().sandbox().await);
    let command = "echo x >> runs; [ $(wc -l < runs) != 1 ] || sleep 1000";
    let arguments = json!({ "sandboxId": sandbox.id, "command": command, "timeout": 1500 });
    let asked =
        json!({ "name": "a test", "tool": "exec", "arguments": arguments, "cron": "* * * * *", "overlap": "queue" });
    // The minute's own run comes after the one on request.
    let of_minute = now() % 60_000;
    if of_minute > 30_000 {
        tokio::time::sleep(Duration::from_millis(u64::try_from(60_000 - of_minute).unwrap())).await;
    }
    let made = root.call("createSchedule", &asked).await.ok();
    let next = parse_rfc3339(made["nextRunAt"].as_str().unwrap()).unwrap();
    assert!(next % 60_000 == 0 && next > now() - 60_000 && next <= now() + 60_000, "{made}");
    let run_now = || root.send(root.request(Method::POST, &format!("{}/run", path(&made))).json(&json!({})));
    let first = run_now().await.ok();
    let first = first["lastJobId"].as_str().unwrap().to_owned();
    run_now().await.problem(409, "conflict");
    let waits = told(&root, &made, "the minute's waits", |told| told["waitingRunAt"].is_string()).await;
    assert_eq!((&waits["lastJobId"], &waits["runs"]), (&json!(first), &json!(1)), "{waits}");
    let due = waits["waitingRunAt"].clone();
    root.call("cancelJob", &json!({ "jobId": first })).await.ok();
    let after = told(&root, &made, "it was run", |told| told["lastDueAt"] == due && is_over(told)).await;
    assert_eq!((&after["lastOutcome"], &after["state"]), (&json!("succeeded"), &json!("active")), "{after}");
    assert!(after["nextRunAt"].as_str() > due.as_str(), "{after}");
    root.call("deleteSchedule", &json!({ "scheduleId": made["scheduleId"] })).await.ok();
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_by_its_field() {
    let root = Stack::shared().client();
    let sandbox = Stack::shared().unmade_sandbox();
    let asked = |more: Value| {
        let mut asked = json!({ "name": "a test", "tool": "exec", "arguments": run(&sandbox, "true") });
        asked.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        asked
    };
    let later = "2099-01-01T00:00:00Z";
    let secret = random_name("secret");
    for (more, pointer) in [
        (json!({}), "/cron"),
        (json!({ "at": "2001-01-01T00:00:00Z" }), "/at"),
        (json!({ "at": "soon" }), "/at"),
        (json!({ "at": later, "cron": "* * * * *" }), "/at"),
        (json!({ "cron": "* * * *" }), "/cron"),
        (json!({ "cron": "0 0 30 2 *" }), "/cron"),
        (json!({ "cron": "* * * * *", "timeZone": "Europe/Atlantis" }), "/timeZone"),
        (json!({ "cron": "* * * * *", "overlap": "twice" }), "/overlap"),
        (json!({ "at": later, "expiresAt": "2098-01-01T00:00:00Z" }), "/expiresAt"),
        (json!({ "at": later, "tool": "noSuchTool" }), "/tool"),
        (json!({ "at": later, "tool": "runSchedule" }), "/tool"),
        (json!({ "at": later, "arguments": {} }), "/arguments/command"),
        (json!({ "at": later, "arguments": { "command": "true", "env": { "MODE": secret } } }), "/arguments/env/MODE"),
        (json!({ "at": later, "arguments": { "command": "cat", "stdin": secret } }), "/arguments/stdin"),
        (
            json!({ "at": later, "arguments": { "command": format!("git clone https://u:{secret}@host/a") } }),
            "/arguments/command",
        ),
    ] {
        let answer = root.call("createSchedule", &asked(more.clone())).await;
        let problem = answer.problem(400, "invalid_arguments");
        assert_eq!(problem.details["violations"][0]["pointer"], pointer, "{more}: {}", problem.detail);
        assert!(!answer.text().contains(&secret), "{more}");
    }
    // The platform knows time zones, and when their clocks change.
    for (cron, zone, time) in [
        ("0 12 1 1 *", "Europe/Berlin", "-01-01T11:00:00.000Z"),
        ("0 12 1 7 *", "Europe/Berlin", "-07-01T10:00:00.000Z"),
        ("30 12 1 7 *", "America/New_York", "-07-01T16:30:00.000Z"),
        ("0 12 1 7 *", "Asia/Kolkata", "-07-01T06:30:00.000Z"),
        ("0 12 1 7 *", "America/St_Johns", "-07-01T14:30:00.000Z"),
        ("0 12 1 7 *", "UTC", "-07-01T12:00:00.000Z"),
    ] {
        let made = root.call("createSchedule", &asked(json!({ "cron": cron, "timeZone": zone }))).await.ok();
        assert!(made["nextRunAt"].as_str().unwrap().ends_with(time), "{cron} {zone}: {made}");
        root.call("deleteSchedule", &json!({ "scheduleId": made["scheduleId"] })).await.ok();
    }
    // Nobody schedules what they may not call, and a token nothing that outlives it.
    let (_, operator) = key(&root, json!({ "role": "operator" })).await;
    let permissions = json!({ "role": "viewer" });
    let forbidden =
        asked(json!({ "at": later, "tool": "createKey", "arguments": { "name": "k", "permissions": permissions } }));
    operator.call("createSchedule", &forbidden).await.problem(403, "forbidden");
    let token = operator.call("createToken", &json!({ "permissions": { "role": "operator" } })).await.ok();
    let token = root.with_key(token["token"].as_str());
    let refused = token.call("createSchedule", &asked(json!({ "at": later }))).await.problem(403, "forbidden");
    assert!(refused.detail.contains("outlives"), "{}", refused.detail);
    // Who would have to ask for an approval does not get round it by the key of a schedule.
    let (_, asking) = key(&root, json!({ "role": "operator", "approval": { "tools": ["listSandboxes"] } })).await;
    let harmless = json!({ "name": "a test", "tool": "listSandboxes", "arguments": {}, "at": later });
    let made = root.call("createSchedule", &harmless).await.ok();
    let run = json!({ "scheduleId": made["scheduleId"] });
    assert_eq!(asking.call("runSchedule", &run).await.problem(403, "forbidden").details["reason"], "needs_approval");
    root.call("deleteSchedule", &run).await.ok();
    // A key that sees some sandboxes only sees its own schedules only.
    let (_, narrow) = key(&root, json!({ "role": "operator", "sandboxLabels": { "team": random_name("t") } })).await;
    let made = root.call("createSchedule", &asked(json!({ "at": later }))).await.ok();
    narrow.get(&path(&made)).await.problem(404, "not_found");
    assert_eq!(narrow.get("/v1/schedules").await.ok()["schedules"], json!([]));
    narrow.call("deleteSchedule", &json!({ "scheduleId": made["scheduleId"] })).await.problem(404, "not_found");
    root.call("deleteSchedule", &json!({ "scheduleId": made["scheduleId"] })).await.ok();
}

#[tokio::test]
async fn a_tenant_has_so_many_schedules_and_lists_them_in_pages() {
    let root = Stack::shared().client();
    let tenant = random_name("t");
    let tenant = &tenant;
    let asked = json!({ "name": "a test", "tool": "listSandboxes", "cron": "0 0 1 1 *" });
    let request = |method: Method, path: &str| root.request(method, path).header("x-tenant", tenant);
    let answers = join_all((0..101).map(|_| root.send(request(Method::POST, "/v1/schedules").json(&asked)))).await;
    let refused: Vec<&Answer> = answers.iter().filter(|answer| answer.status != 200).collect();
    assert_eq!(refused.len(), 1, "{}", refused[0].text());
    let problem = refused[0].problem(429, "quota_exceeded");
    assert_eq!((&problem.details["limitName"], &problem.details["limit"]), (&json!("schedules"), &json!(100)));
    let (mut seen, mut cursor) = (std::collections::BTreeSet::new(), String::new());
    loop {
        let page = root.send(request(Method::GET, &format!("/v1/schedules?limit=30{cursor}"))).await.ok();
        for one in page["schedules"].as_array().unwrap() {
            assert!(seen.insert(one["scheduleId"].as_str().unwrap().to_owned()), "{one} twice");
        }
        match page["nextCursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(seen.len(), 100);
}
