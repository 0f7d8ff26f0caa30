//! Which jobs are listed, and for how long jobs are kept.

use std::time::Duration;

use serde_json::{Value, json};
use test_support::{Client, PATIENCE, Sandbox, Stack, StackOptions, eventually, random_name};

/// A job that is over, also in the list, which is told of it a moment after the job's own object.
async fn job(client: &Client, sandbox: &Sandbox) -> Value {
    let arguments = json!({ "sandboxId": sandbox.id, "command": "true" });
    let job = client.ended(&client.deferred("exec", &arguments).await.job_id()).await;
    let is_told = || async {
        let listed = client.call("listJobs", &json!({ "sandboxId": sandbox.id })).await.ok();
        let mut listed = listed["jobs"].as_array().unwrap().iter();
        listed.any(|one| one["jobId"] == job["jobId"] && one["endedAt"].is_string()).then_some(())
    };
    eventually("the list has the end of the job", PATIENCE, is_told).await;
    job
}

fn ids(listed: &Value) -> Vec<&str> {
    listed["jobs"].as_array().unwrap().iter().map(|job| job["jobId"].as_str().unwrap()).collect()
}

fn text<'a>(job: &'a Value, field: &str) -> &'a str {
    job[field].as_str().unwrap_or_else(|| panic!("{field}: {job}"))
}

/// Seconds from the end of a job until it is forgotten.
fn kept(job: &Value) -> i64 {
    let millis = |field: &str| {
        let (date, time) = text(job, field).trim_end_matches('Z').split_once('T').unwrap();
        let numbers: Vec<i64> = date.split('-').map(|number| number.parse().unwrap()).collect();
        let (hours, rest) = time.split_once(':').unwrap();
        let (minutes, seconds) = rest.split_once(':').unwrap();
        let millis = (seconds.parse::<f64>().unwrap() * 1000.0).round() as i64;
        // Days since a day long ago, by the rule of the civil calendar.
        let (year, month) =
            if numbers[1] > 2 { (numbers[0], numbers[1] - 3) } else { (numbers[0] - 1, numbers[1] + 9) };
        let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + numbers[2];
        ((days * 24 + hours.parse::<i64>().unwrap()) * 60 + minutes.parse::<i64>().unwrap()) * 60_000 + millis
    };
    (millis("expiresAt") - millis("endedAt")) / 1000
}

#[tokio::test]
async fn jobs_are_listed_by_when_they_were_asked_for_and_when_they_were_over() {
    let (root, sandbox) = (Stack::shared().client(), Stack::shared().sandbox().await);
    let first = job(&root, &sandbox).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    let second = job(&root, &sandbox).await;
    let list = |more: Value| {
        let mut arguments = json!({ "sandboxId": sandbox.id });
        arguments.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let root = root.clone();
        async move { root.call("listJobs", &arguments).await.ok() }
    };
    let (one, two) = (text(&first, "jobId"), text(&second, "jobId"));
    assert_eq!(ids(&list(json!({})).await), [two, one]);
    for (after, before, at) in
        [("createdAfter", "createdBefore", "createdAt"), ("endedAfter", "endedBefore", "endedAt")]
    {
        assert_eq!(ids(&list(json!({ after: first[at] })).await), [two], "{after}");
        assert_eq!(ids(&list(json!({ before: second[at] })).await), [one], "{before}");
        assert_eq!(ids(&list(json!({ after: first[at], before: second[at] })).await), Vec::<&str>::new());
        // A time of another zone is that time.
        assert_eq!(
            ids(&list(json!({ after: "2020-01-01T00:00:00+02:00", before: "2999-01-01T00:00:00Z" })).await),
            [two, one]
        );
        let wrong = root.call("listJobs", &json!({ after: "yesterday" })).await.problem(400, "invalid_arguments");
        assert!(wrong.detail.contains(after) || wrong.details.to_string().contains(after), "{wrong:?}");
    }
    // As a query of the route, page by page.
    let page = |cursor: String| {
        let root = root.clone();
        let path = format!("/v1/jobs?sandboxId={}&createdBefore=2999-01-01T00:00:00Z&limit=1{cursor}", sandbox.id);
        async move { root.get(&path).await.ok() }
    };
    let last = page(String::new()).await;
    assert_eq!(ids(&last), [two]);
    let rest = page(format!("&cursor={}", text(&last, "nextCursor"))).await;
    assert_eq!((ids(&rest), rest.get("nextCursor")), (vec![one], None));
}

#[tokio::test]
async fn how_long_jobs_are_kept_is_set_for_those_that_are_asked_for_from_then_on() {
    const WEEK: i64 = 7 * 24 * 60 * 60;
    let stack = Stack::start(StackOptions::default());
    let (root, sandbox) = (stack.client(), stack.sandbox().await);
    let before = job(&root, &sandbox).await;
    assert_eq!(kept(&before), WEEK);
    assert_eq!(root.call("listJobs", &json!({})).await.ok()["expiresAfter"], WEEK);
    let set = root.call("setJobRetention", &json!({ "expiresAfter": 3600 })).await.ok();
    assert_eq!(set["expiresAfter"], 3600);
    let after = job(&root, &sandbox).await;
    assert_eq!(kept(&after), 3600);
    let listed = root.call("listJobs", &json!({})).await.ok();
    assert_eq!(listed["expiresAfter"], 3600);
    // The list says the same as the jobs' own objects, and each job keeps its time.
    for (listed, told) in listed["jobs"].as_array().unwrap().iter().zip([&after, &before]) {
        assert_eq!((&listed["jobId"], &listed["expiresAt"]), (&told["jobId"], &told["expiresAt"]));
    }
    let open = root.deferred("exec", &json!({ "sandboxId": sandbox.id, "command": "sleep 2" })).await.json();
    assert_eq!(open.get("expiresAt"), None, "{open}");
    // A step of a pipeline is there for as long as the pipeline may look for it.
    let arguments = json!({ "sandboxId": sandbox.id, "command": "true" });
    let steps = json!({ "steps": [{ "name": "one", "tool": "exec", "arguments": arguments }] });
    let pipeline = root.ended(&root.deferred("runPipeline", &steps).await.job_id()).await;
    let step = root.ended(text(&pipeline["steps"][0], "jobId")).await;
    assert_eq!((kept(&pipeline), kept(&step)), (3600, WEEK));
    for wrong in [3599, 31_536_001] {
        root.call("setJobRetention", &json!({ "expiresAfter": wrong })).await.problem(400, "invalid_arguments");
    }
    let key = json!({ "name": random_name("k"), "permissions": { "role": "operator" } });
    let operator = root.with_key(root.call("createKey", &key).await.ok()["key"].as_str());
    operator.call("setJobRetention", &json!({})).await.problem(403, "forbidden");
    assert_eq!(root.call("setJobRetention", &json!({})).await.ok()["expiresAfter"], WEEK);
    assert_eq!(kept(&job(&root, &sandbox).await), WEEK);
}
