//! workerd killed at random moments, again and again, in the middle of calls: every one of them ends in what is true, no command runs
//! twice, and every container is found again.

use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use test_support::{
    Answer, Chance, Client, ContainerOptions, ContainerStack, PATIENCE, Sandbox, eventually, random_name, within,
};

use crate::witness::Witness;

const KILLS: usize = 8;

/// One command, asked for with an idempotency key until it is told how that ended.
struct Ask {
    name: String,
    key: String,
    arguments: Value,
    deferred: bool,
}

impl Ask {
    fn new(sandbox: &Sandbox, command: &str, chance: &mut Chance, deferred: bool) -> Self {
        let name = random_name("call");
        let command = format!("{command}; sleep 0.{:03}; echo $line", chance.below(1000));
        let arguments = json!({"sandboxId": sandbox.id, "command": command, "env": {"NAME": name}, "timeout": 60});
        Self { name, key: random_name("key"), arguments, deferred }
    }

    async fn send(&self, client: &Client) -> Option<Answer> {
        let request = client.request(Method::POST, "/v1/tools/exec").header("idempotency-key", &self.key);
        let request = if self.deferred { request.header("prefer", "respond-async") } else { request };
        client.try_send(request.json(&self.arguments)).await
    }

    /// Asks again what came of it, and holds that against how often it ran. Gives one word for the tally.
    async fn judge(&self, stack: &ContainerStack, witness: &Witness) -> String {
        let answered = || async { self.send(&stack.client()).await };
        let answer = eventually("an answer", PATIENCE, answered).await;
        let told = if answer.status == 202 {
            let told = stack.client().ended(&answer.job_id()).await;
            let output = told.get("output").filter(|output| !output.is_null()).cloned();
            output.ok_or_else(|| (told["error"]["code"].as_str().unwrap_or("interrupted").to_owned(), told.to_string()))
        } else if answer.status == 200 {
            // A job that is over by now is answered as such, a call as ever.
            let told = answer.ok();
            Ok(told.get("output").cloned().unwrap_or(told))
        } else {
            Err((answer.any_problem().code, answer.text()))
        };
        let ran = witness.count(&self.name);
        assert!(ran <= 1, "it ran {ran} times: {told:?}");
        match told {
            Ok(output) => {
                assert_eq!((&output["exitCode"], &output["stdout"]), (&json!(0), &json!("seen\n")), "{output}");
                assert_eq!(ran, 1, "what is told to have run ran: {output}");
                "ran".to_owned()
            }
            Err((code, text)) => {
                match code.as_str() {
                    "sandbox_unavailable" => assert_eq!(ran, 0, "what may be tried again did not run: {text}"),
                    // Killed between the admission of a job and the making of its object.
                    "object_unavailable" if text.contains("nothing was carried out") => {
                        assert_eq!(ran, 0, "it says that it did not begin: {text}");
                    }
                    // Somebody may still tell, or nobody saw its end.
                    "in_progress" | "interrupted" | "outcome_unknown" => {}
                    _ => panic!("no outcome of a killed workerd: {text}"),
                }
                code
            }
        }
    }
}

/// A command as a stream: what its reader had when it ended or broke off, held against how often it ran once that is settled.
async fn streamed(stack: &ContainerStack, sandbox: &Sandbox, command: &str, name: &str) -> Option<String> {
    let client = stack.client();
    let request = client.request(Method::POST, "/v1/tools/exec").header("accept", "text/event-stream");
    let command = format!("{command}; sleep 0.7; echo $line");
    let arguments = json!({"sandboxId": sandbox.id, "command": command, "env": {"NAME": name}, "timeout": 60});
    Some(client.try_send(request.json(&arguments)).await?.text())
}

#[tokio::test]
async fn a_workerd_killed_at_random_moments_loses_no_container_and_repeats_no_command() {
    let mut chance = Chance::new();
    let stack = ContainerStack::start(ContainerOptions::default());
    let (mut one, other) = (stack.sandbox().await, stack.sandbox().await);
    let witness = Witness::default();
    let command = witness.listen(&one).await;
    one.sh("echo kept > file").await;
    let process = json!({"name": "on", "command": "echo begun; read x; echo $x", "keepStdin": true});
    let process = one.call("startBackgroundProcess", process).await.ok();
    let containers = [&one, &other].map(|sandbox| stack.container_of(sandbox));
    let (mut asked, mut tally, mut made) = (Vec::new(), BTreeMap::<String, usize>::new(), Vec::new());
    for round in 0..KILLS {
        let asks = [Ask::new(&one, &command, &mut chance, true), Ask::new(&other, &command, &mut chance, false)];
        let (new, name) = (stack.unmade_sandbox(), random_name("streamed"));
        let (client, create) = (stack.client(), json!({"id": new.id}));
        let create = async {
            // In every other round a start is what the kill strikes.
            let request = client.request(Method::POST, "/v1/tools/createSandbox").json(&create);
            if round % 2 == 0 { client.try_send(request).await } else { None }
        };
        let kill = async {
            tokio::time::sleep(Duration::from_millis(chance.below(1800))).await;
            stack.kill_workerd().await;
        };
        let (_, _, told, _, ()) = within("calls and kill", 2 * PATIENCE, async {
            tokio::join!(
                asks[0].send(&client),
                asks[1].send(&client),
                streamed(&stack, &other, &command, &name),
                create,
                kill
            )
        })
        .await;
        let told = told.filter(|text| text.contains("event: result"));
        let ran = witness.count(&name);
        assert!(ran <= 1 && (told.is_none() || ran == 1), "a streamed command ran {ran} times: {told:?}");
        *tally.entry(if told.is_some() { "streamed" } else { "stream broke" }.to_owned()).or_default() += 1;
        asked.extend(asks);
        if round % 2 == 0 {
            // Whatever became of its creation: the next one gives a sandbox that works.
            within("a creation", 2 * PATIENCE, new.make(json!({}))).await;
            made.push(new);
        }
    }
    for ask in &asked {
        *tally.entry(ask.judge(&stack, &witness).await).or_default() += 1;
    }
    println!("{KILLS} kills of workerd; {tally:?}");
    one.client = stack.client();
    assert_eq!(one.sh("cat file").await, "kept\n");
    for (sandbox, container) in [&one, &other].into_iter().zip(containers) {
        assert_eq!(stack.container_of(sandbox), container, "it was found again, and none was put in its place");
        let told = stack.client().call("getSandbox", &json!({"sandboxId": sandbox.id})).await.ok();
        assert_eq!((&told["state"], &told["generation"]), (&json!("running"), &json!(1)), "{told}");
    }
    // A process in the background is the same one, with its whole log.
    let of_process = |tool: &'static str, mut arguments: Value| {
        arguments["processId"] = process["processId"].clone();
        one.call(tool, arguments)
    };
    let after = of_process("getProcess", json!({})).await.ok();
    assert_eq!((&after["pid"], &after["status"]), (&process["pid"], &json!("running")), "{after}");
    of_process("writeProcessInput", json!({"data": "after\n"})).await.ok();
    of_process("waitForProcess", json!({})).await.ok();
    let logs = of_process("getProcessLogs", json!({})).await.ok();
    let text: String = logs["chunks"].as_array().unwrap().iter().filter_map(|chunk| chunk["data"].as_str()).collect();
    assert_eq!((text.as_str(), &logs["nextOffset"]), ("begun\nafter\n", &json!(12)), "{logs}");
    assert_eq!(stack.running().len(), 2 + made.len(), "one of each, and no other");
    for new in &made {
        let told = stack.client().call("exec", &json!({"sandboxId": new.id, "command": "echo $SANDBOX_ID"})).await.ok();
        assert_eq!(told["stdout"], format!("{}\n", new.id));
    }
    for sandbox in made.iter().chain([&one, &other]) {
        let told = stack.client().call("destroySandbox", &json!({"sandboxId": sandbox.id})).await.ok();
        assert_eq!(told["status"], "destroyed");
    }
    let gone = || async { stack.containers().is_empty().then_some(()) };
    eventually("none is orphaned", PATIENCE, gone).await;
}
