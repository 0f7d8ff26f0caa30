//! `notifications/progress`: what happens while a tool runs, for a client that gave a token.

use std::cell::Cell;

use serde_json::{Value, json};

use crate::events::Event;

/// Most characters of output that one notification tells. The result has the output whole.
const LONGEST_MESSAGE: usize = 4_000;

/// Counts the notifications of one call: each has a larger number than the one before.
pub struct Progress {
    token: Value,
    told: Cell<u64>,
}

impl Progress {
    /// With the token of `params._meta.progressToken`, where it is a string or an integer.
    pub fn wanted(params: &serde_json::Map<String, Value>) -> Option<Self> {
        let token = params.get("_meta").and_then(|meta| meta.get("progressToken"))?;
        let is_token = token.is_string() || token.is_i64() || token.is_u64();
        is_token.then(|| Self { token: token.clone(), told: Cell::new(0) })
    }

    /// The notification that tells this event; `None` where there is nothing to tell.
    pub fn notification(&self, event: &Event) -> Option<Value> {
        let message = match event {
            Event::Admitted(_) | Event::Boundary => return None,
            Event::Output { channel, bytes, step, .. } => {
                let text = String::from_utf8_lossy(bytes);
                let shown: String = text.chars().take(LONGEST_MESSAGE).collect();
                let step = step.as_ref().map(|step| format!("[{step}] "));
                format!("{}{}: {shown}", step.unwrap_or_default(), channel.name())
            }
            Event::Ready => "ready".to_owned(),
            Event::Change(change) => serde_json::to_string(change).unwrap_or_default(),
            Event::State(state) => format!("state: {}", state.as_str()),
            Event::Heartbeat => "still running".to_owned(),
        };
        self.told.set(self.told.get() + 1);
        let params = json!({ "progressToken": self.token, "progress": self.told.get(), "message": message });
        Some(json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::Channel;

    #[test]
    fn each_notification_has_a_larger_number_and_the_token() {
        let params = json!({ "_meta": { "progressToken": "t" } });
        let progress = Progress::wanted(params.as_object().unwrap()).unwrap();
        assert_eq!(progress.notification(&Event::Admitted(None)), None);
        let output = Event::Output { channel: Channel::Stdout, bytes: b"hello".to_vec(), offset: 0, step: None };
        let first = progress.notification(&output).unwrap();
        assert_eq!(first["params"], json!({ "progressToken": "t", "progress": 1, "message": "stdout: hello" }));
        assert_eq!(progress.notification(&Event::Heartbeat).unwrap()["params"]["progress"], 2);
    }

    #[test]
    fn without_a_token_nothing_is_told() {
        for params in [json!({}), json!({ "_meta": { "progressToken": 1.5 } }), json!({ "_meta": 3 })] {
            assert!(Progress::wanted(params.as_object().unwrap()).is_none(), "{params}");
        }
    }
}
