//! Calls through REST beside the same calls at the sandbox, over the host.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::json;
use test_support::{Client, Stack, StackOptions, random_name};

use crate::Effort;
use crate::report::{Report, Samples};

/// The same sandbox, without the Worker.
struct Direct {
    http: reqwest::Client,
    base: String,
    token: String,
}

impl Direct {
    fn of(stack: &Stack, sandbox_id: &str) -> Self {
        let host = stack.host();
        Self {
            http: reqwest::Client::builder().no_proxy().build().expect("a plain HTTP client needs nothing"),
            base: format!("{}/v1/sandboxes/default.{sandbox_id}/control", host.url()),
            token: host.token().to_owned(),
        }
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("{}{path}", self.base)).bearer_auth(&self.token)
    }

    fn exec(&self) -> RequestBuilder {
        let body = json!({"id": random_name("bench"), "command": "true", "timeoutMs": 30_000});
        self.request(Method::POST, "/v1/execs").json(&body)
    }
}

async fn timed(request: RequestBuilder) -> Duration {
    timed_to(request, StatusCode::OK).await
}

async fn timed_to(request: RequestBuilder, expected: StatusCode) -> Duration {
    let started = Instant::now();
    let response = request.send().await.expect("an answer");
    let status = response.status();
    let body = response.bytes().await.expect("a whole answer");
    let took = started.elapsed();
    let is_expected = status == expected || (expected.is_success() && status.is_success());
    assert!(is_expected, "{status}: {}", String::from_utf8_lossy(&body));
    took
}

pub(crate) async fn measure(effort: Effort, report: &mut Report) {
    let stack = Stack::start(StackOptions { proxy: false, ..StackOptions::default() });
    let client = stack.client();
    let sandbox = stack.sandbox().await;
    let direct = Direct::of(&stack, &sandbox.id);
    commands(effort, report, &client, &sandbox.id, &direct).await;
    admission(effort, report, &client).await;
    files(effort, report, &client, &sandbox.id, &direct).await;
    crowd(effort, report, &client).await;
}

async fn commands(effort: Effort, report: &mut Report, client: &Client, sandbox_id: &str, direct: &Direct) {
    let arguments = json!({"sandboxId": sandbox_id, "command": "true"});
    let mut samples: [Samples; 4] = Default::default();
    for round in 0..effort.warm_up + effort.rounds {
        let took = [
            timed(client.request(Method::GET, "/health")).await,
            timed(client.request(Method::GET, "/v1/sandboxes")).await,
            timed(direct.exec()).await,
            timed(client.request(Method::POST, "/v1/tools/exec").json(&arguments)).await,
        ];
        if round >= effort.warm_up {
            samples.iter_mut().zip(took).for_each(|(samples, took)| samples.push(took));
        }
    }
    let [health, listing, at_sandboxd, rest] = samples;
    report.time("`GET /health`: the Worker alone", &health, None);
    report.time("`GET /v1/sandboxes`: and the tenant's object", &listing, None);
    report.time("`bash -c true`, exec at sandboxd over its host", &at_sandboxd, None);
    report.time("`bash -c true`, exec through REST", &rest, None);
    let more = rest.against(&at_sandboxd, |rest, direct| rest - direct);
    report.time("what REST adds to the exec", &more, Some(1.5));
}

/// The two passes of a call into its tenant's object, by a key with limits: the one that decides and writes down what was asked, and the
/// one that writes down how it ended.
async fn admission(effort: Effort, report: &mut Report, client: &Client) {
    let limits = json!({"callsPerMinute": 1_000_000, "concurrentCalls": 1000});
    let ask = json!({"name": "bench", "permissions": {"role": "viewer"}, "limits": limits});
    let made = client.call("createKey", &ask).await.ok();
    let client = client.with_key(made["key"].as_str());
    let list = || client.request(Method::POST, "/v1/tools/listKeys").json(&json!({"limit": 1}));
    let mut samples: [Samples; 4] = Default::default();
    for round in 0..effort.warm_up + effort.rounds {
        let took = [
            timed(client.request(Method::GET, "/health")).await,
            timed_to(client.request(Method::GET, "/v1/sandboxes/none-of-that-name"), StatusCode::NOT_FOUND).await,
            timed(list()).await,
            timed(list().header("idempotency-key", random_name("bench"))).await,
        ];
        if round >= effort.warm_up {
            samples.iter_mut().zip(took).for_each(|(samples, took)| samples.push(took));
        }
    }
    let [health, refused, settled_later, settled_first] = samples;
    report.time("a call that admission refuses and records", &refused, None);
    let pass = refused.against(&health, |refused, health| refused - health);
    report.time("what the pass of admission adds to `GET /health`", &pass, None);
    report.time("`listKeys`, settled after its answer", &settled_later, None);
    report.time("`listKeys`, settled before it, for its idempotency key", &settled_first, None);
    let settlement = settled_first.against(&settled_later, |first, later| first - later);
    report.time("what that settlement adds", &settlement, None);
}

async fn files(effort: Effort, report: &mut Report, client: &Client, sandbox_id: &str, direct: &Direct) {
    let content = bytes::Bytes::from(vec![b'x'; 1 << 20]);
    let path = format!("/v1/sandboxes/{sandbox_id}/files/bench.bin");
    let at_sandboxd = "/v1/files/bench.bin";
    let mut samples: [Samples; 4] = Default::default();
    for round in 0..effort.warm_up + effort.rounds / 2 {
        let took = [
            timed(direct.request(Method::PUT, at_sandboxd).body(content.clone())).await,
            timed(client.request(Method::PUT, &path).body(content.clone())).await,
            timed(direct.request(Method::GET, at_sandboxd)).await,
            timed(client.request(Method::GET, &path)).await,
        ];
        if round >= effort.warm_up {
            samples.iter_mut().zip(took).for_each(|(samples, took)| samples.push(took));
        }
    }
    let [put_direct, put_rest, get_direct, get_rest] = samples;
    report.time("1 MiB written at sandboxd over its host", &put_direct, None);
    report.time("1 MiB written through REST", &put_rest, None);
    report.time("1 MiB read at sandboxd over its host", &get_direct, None);
    report.time("1 MiB read through REST", &get_rest, None);
}

/// Sandboxes that are made and used at the same time.
async fn crowd(effort: Effort, report: &mut Report, client: &Client) {
    let (mut used, mut destroyed) = <(Samples, Samples)>::default();
    for _ in 0..effort.crowds {
        let ids: Vec<String> = (0..effort.sandboxes).map(|_| random_name("b")).collect();
        let started = Instant::now();
        join_all(ids.iter().map(|id| async move {
            client.call("createSandbox", &json!({"id": id})).await.ok();
            let output = client.call("exec", &json!({"sandboxId": id, "command": "echo used"})).await.ok();
            assert_eq!(output["stdout"], "used\n");
        }))
        .await;
        used.push(started.elapsed());
        let started = Instant::now();
        join_all(ids.iter().map(|id| async move {
            client.call("destroySandbox", &json!({"sandboxId": id})).await.ok();
        }))
        .await;
        destroyed.push(started.elapsed());
    }
    report.time(&format!("{} sandboxes made and used at once", effort.sandboxes), &used, Some(2000.0));
    report.time("and destroyed at once", &destroyed, None);
}
