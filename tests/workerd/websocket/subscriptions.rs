//! Jobs that are followed, also over connections and Workers that end.

use serde_json::{Value, json};
use test_support::{Stack, StackOptions};

const COMMAND: &str = "for i in $(seq 1 40); do echo line-$i; sleep 0.1; done; exit 3";

fn expected() -> String {
    (1..=40).map(|number| format!("line-{number}\n")).collect()
}

fn text(event: &Value) -> &str {
    event["data"]["data"].as_str().unwrap_or_default()
}

#[tokio::test]
async fn a_job_is_followed_to_its_end_and_again_from_any_point() {
    let sandbox = Stack::shared().sandbox().await;
    sandbox.sh("mkfifo gate").await;
    let command = COMMAND.replace("sleep", "[ $i != 20 ] || read x < gate; sleep");
    let arguments = json!({ "sandboxId": sandbox.id, "command": command, "timeout": 300 });
    let job = sandbox.client.deferred("exec", &arguments).await.job_id();
    let mut socket = sandbox.client.socket().await;
    socket.send(&json!({ "type": "subscribe", "jobId": job })).await;
    // Half of it, and the rest in other events.
    let mut half: Vec<Value> = Vec::new();
    while !half.iter().map(text).collect::<String>().contains("line-20\n") {
        half.push(socket.event_of(&job).await);
    }
    sandbox.sh("echo on > gate").await;
    let mut told = socket.end_of(&job).await;
    let middle = half.last().unwrap()["seq"].clone();
    let before: String = half.iter().map(text).collect();
    half.append(&mut told.events);
    told.events = half;
    assert_eq!(told.output("stdout"), expected());
    let result = told.result();
    assert_eq!((&result["job"]["state"], &result["job"]["exitCode"]), (&json!("succeeded"), &json!(3)), "{result}");
    assert_eq!(result["seq"], expected().len(), "{result}");
    // From the middle on, under a name of the client's own.
    socket.send(&json!({ "type": "subscribe", "id": "s", "jobId": job, "fromSeq": middle })).await;
    let told = socket.end_of("s").await;
    assert_eq!(before + &told.output("stdout"), expected());
    // At its end there is nothing but the end.
    socket.send(&json!({ "type": "subscribe", "id": "s", "jobId": job, "fromSeq": told.result()["seq"] })).await;
    let told = socket.end_of("s").await;
    assert_eq!((told.output("stdout").as_str(), &told.result()["job"]["exitCode"]), ("", &json!(3)));
}

#[tokio::test]
async fn a_subscription_goes_on_where_it_was_after_the_worker_was_killed() {
    let stack = Stack::start(StackOptions::default());
    let sandbox = stack.sandbox().await;
    let arguments = json!({ "sandboxId": sandbox.id, "command": COMMAND, "timeout": 300 });
    let job = sandbox.client.deferred("exec", &arguments).await.job_id();
    let mut seen = String::new();
    let mut seq = 0;
    let mut socket = sandbox.client.socket().await;
    socket.send(&json!({ "type": "subscribe", "id": "s", "jobId": job })).await;
    while seen.lines().count() < 5 {
        let event = socket.event_of("s").await;
        seen.push_str(text(&event));
        seq = event["seq"].as_u64().unwrap();
    }
    drop(socket);
    stack.worker().kill();
    stack.worker().restart();
    let client = stack.client();
    let mut socket = client.socket().await;
    socket.send(&json!({ "type": "subscribe", "id": "s", "jobId": job, "fromSeq": seq })).await;
    let told = socket.end_of("s").await;
    assert_eq!(seen + &told.output("stdout"), expected());
    assert_eq!(told.result()["job"]["exitCode"], 3, "{}", told.last);
}

#[tokio::test]
async fn a_subscription_is_ended_by_cancel_and_the_job_goes_on() {
    let sandbox = Stack::shared().sandbox().await;
    sandbox.sh("mkfifo gate").await;
    let command = "echo begun; read x < gate; echo $x";
    let arguments = json!({ "sandboxId": sandbox.id, "command": command, "timeout": 300 });
    let job = sandbox.client.deferred("exec", &arguments).await.job_id();
    let mut socket = sandbox.client.socket().await;
    socket.send(&json!({ "type": "subscribe", "id": "s", "jobId": job })).await;
    let begun = loop {
        let event = socket.event_of("s").await;
        if event["event"] == "stdout" {
            break event;
        }
    };
    assert_eq!(text(&begun), "begun\n");
    socket.send(&json!({ "type": "cancel", "id": "s" })).await;
    socket.end_of("s").await.problem("interrupted");
    sandbox.sh("echo on > gate").await;
    assert_eq!(sandbox.client.ended(&job).await["output"]["stdout"], "begun\non\n");
    // Of a job that is not there, or not in sight, nothing is told.
    socket.send(&json!({ "type": "subscribe", "jobId": "none" })).await;
    socket.end_of("none").await.problem("not_found");
}

#[tokio::test]
async fn from_each_seq_on_the_rest_is_told_once_also_where_both_channels_and_the_readers_key_are_in_the_log() {
    let sandbox = Stack::shared().sandbox().await;
    let root = sandbox.client.clone();
    let made = root.call("createKey", &json!({ "name": "reader", "permissions": { "role": "admin" } })).await.ok();
    let key = made["key"].as_str().unwrap().to_owned();
    // Pieces end with what could be the beginning of the key.
    let (begin, end) = key.split_at(9);
    let command = format!(
        "for i in 1 2 3; do printf \"a$i {begin}\"; sleep 0.1; printf \"b$i {begin}\" >&2; sleep 0.1; printf '{begin}{end}|'; \
         sleep 0.1; done"
    );
    let job = root.deferred("exec", &json!({ "sandboxId": sandbox.id, "command": command })).await.job_id();
    root.ended(&job).await;
    let mut socket = root.with_key(Some(&key)).socket().await;
    let whole = |told: &test_support::Told| -> String {
        let output =
            told.events.iter().filter(|event| ["stdout", "stderr"].contains(&event["event"].as_str().unwrap()));
        output.map(text).collect()
    };
    socket.send(&json!({ "type": "subscribe", "id": "s", "jobId": job })).await;
    let all = socket.end_of("s").await;
    let states: Vec<&Value> = all.events.iter().filter(|event| event["event"] == "state").collect();
    assert_eq!(states.len(), 1, "{states:?}");
    assert_eq!((&states[0]["data"]["state"], all.events.last()), (&json!("succeeded"), Some(states[0])));
    assert!(whole(&all).contains("[redacted]") && !whole(&all).contains(&key), "{}", whole(&all));
    let mut before = String::new();
    let mut last = 0;
    for event in all.events.iter().filter(|event| event["event"] != "state") {
        before.push_str(text(event));
        let seq = event["seq"].as_u64().unwrap();
        assert!(seq >= last, "{seq} after {last}");
        last = seq;
        socket.send(&json!({ "type": "subscribe", "id": "s", "jobId": job, "fromSeq": seq })).await;
        let rest = socket.end_of("s").await;
        assert_eq!(before.clone() + &whole(&rest), whole(&all), "from {seq} on");
    }
}
