//! A receiver of webhooks, on a port of this machine.

use std::{
    io::Write,
    process::{Command, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::{eventually, locate::node, locate::project_root};

/// In place of a status: the request is read and never answered.
pub const HANGS: &str = "hangs";

/// One request that a receiver got.
#[derive(Clone, Debug)]
pub struct Received {
    /// Names in lower case.
    headers: Vec<(String, String)>,
    /// The body.
    pub body: String,
}

impl Received {
    /// A header by its name in lower case; empty where there is none.
    pub fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str()).unwrap_or_default()
    }

    /// The id that stays the same when the message is sent again.
    pub fn id(&self) -> &str {
        self.header("webhook-id")
    }

    /// The body.
    ///
    /// # Panics
    /// When it is no JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// What it tells.
    pub fn kind(&self) -> String {
        self.json()["type"].as_str().unwrap_or_default().to_owned()
    }

    /// Whether the library of Standard Webhooks takes it, which looks at the signature and at the time.
    ///
    /// # Panics
    /// When Node or the library is missing.
    pub fn is_signed_with(&self, secret: &str) -> bool {
        let mut command = Command::new(node());
        command.arg(project_root().join("tests/support/verify-webhook.mjs")).current_dir(project_root());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("node starts");
        let headers: serde_json::Map<String, Value> =
            self.headers.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
        let question = json!({ "secret": secret, "headers": headers, "body": self.body });
        let mut stdin = child.stdin.take().expect("standard input is piped");
        stdin.write_all(question.to_string().as_bytes()).expect("node reads");
        drop(stdin);
        let output = child.wait_with_output().expect("node ends");
        match String::from_utf8_lossy(&output.stdout).trim() {
            "taken" => true,
            "refused" => false,
            other => panic!("{other}{}", String::from_utf8_lossy(&output.stderr)),
        }
    }
}

/// Answers each request with the next of its statuses, the last one for ever.
pub struct Receiver {
    /// Where it listens, with a secret in it.
    pub url: String,
    received: Arc<Mutex<Vec<Received>>>,
}

impl Receiver {
    /// Starts one. A status is as `200 OK`, or [`HANGS`].
    ///
    /// # Panics
    /// When there is no port.
    pub async fn start(statuses: &'static [&'static str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("there is a port");
        let url = format!("http://{}/hook?token=abc", listener.local_addr().expect("it is bound"));
        let received = Arc::new(Mutex::new(Vec::new()));
        let seen = received.clone();
        tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                tokio::spawn(serve(connection, seen.clone(), statuses));
            }
        });
        Self { url, received }
    }

    /// Everything that it got.
    pub fn all(&self) -> Vec<Received> {
        self.received.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    /// The same once there are so many.
    pub async fn after(&self, count: usize, limit: Duration) -> Vec<Received> {
        self.once(&format!("the receiver is told {count} times"), limit, |all| all.len() >= count).await
    }

    /// The same once `condition` holds of it.
    pub async fn once(&self, what: &str, limit: Duration, condition: impl Fn(&[Received]) -> bool) -> Vec<Received> {
        eventually(what, limit, || async {
            let all = self.all();
            condition(&all).then_some(all)
        })
        .await
    }
}

async fn serve(mut connection: TcpStream, seen: Arc<Mutex<Vec<Received>>>, statuses: &[&str]) {
    let mut bytes = Vec::new();
    let mut piece = [0; 4096];
    let whole = loop {
        match connection.read(&mut piece).await {
            Ok(0) | Err(_) => return,
            Ok(length) => bytes.extend_from_slice(&piece[..length]),
        }
        if let Some(whole) = parse(&bytes) {
            break whole;
        }
    };
    let count = {
        let mut seen = seen.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        seen.push(whole);
        seen.len()
    };
    let status = statuses[(count - 1).min(statuses.len() - 1)];
    if status == HANGS {
        // Until the sender leaves.
        let _ = connection.read(&mut piece).await;
        return;
    }
    let answer =
        format!("HTTP/1.1 {status}\r\nlocation: /elsewhere\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok");
    let _ = connection.write_all(answer.as_bytes()).await;
}

fn parse(bytes: &[u8]) -> Option<Received> {
    let text = String::from_utf8_lossy(bytes);
    let (head, body) = text.split_once("\r\n\r\n")?;
    let headers: Vec<(String, String)> = head
        .lines()
        .skip(1)
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let length: usize = headers.iter().find(|(name, _)| name == "content-length")?.1.parse().ok()?;
    (body.len() >= length).then(|| Received { headers, body: body.to_owned() })
}
