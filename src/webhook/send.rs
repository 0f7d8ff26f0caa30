//! One attempt to hand a message over.

use super::address::{Reach, refusal};
use super::schedule::{ANSWER_DEADLINE, Attempt};
use super::signature::Keys;
use crate::workers::fetch::{self, Destination, Outgoing};

/// Posts `body` to `url`. `now` is in milliseconds.
pub async fn send(url: &str, reach: Reach, keys: &Keys, id: &str, now: i64, body: &str) -> Attempt {
    // What was allowed when the URL was set may no longer be.
    if let Some(why) = refusal(url, reach) {
        return Attempt::Failed(format!("the URL {why}"));
    }
    let mut headers =
        vec![("content-type", "application/json".to_owned()), ("user-agent", "cloudflare-ops".to_owned())];
    headers.extend(keys.headers(id, now.div_euclid(1000), body));
    let outgoing = Outgoing {
        method: "POST",
        url: url.to_owned(),
        headers,
        body: Some(wasm_bindgen::JsValue::from_str(body)),
        deadline: ANSWER_DEADLINE,
    };
    match fetch::send(Destination::Network, outgoing).await {
        Ok(response) => {
            // Nothing in it is read; left alone it would hold the connection.
            if let Some(stream) = response.body() {
                let _ = wasm_bindgen_futures::JsFuture::from(stream.cancel()).await;
            }
            Attempt::of_status(response.status())
        }
        Err(error) => Attempt::Failed(told(&error.to_string())),
    }
}

/// The runtime does not say why it has no connection.
fn told(error: &str) -> String {
    if error.contains("internal error") {
        "no connection to the host could be made".to_owned()
    } else {
        error.to_owned()
    }
}
