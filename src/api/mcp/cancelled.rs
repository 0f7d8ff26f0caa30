//! `notifications/cancelled` of the earlier revisions: which call it means.
//!
//! Ids of requests are chosen by clients, mostly as numbers from zero up, so that two clients of one key have the same ones. The id that
//! `initialize` gives out tells them apart; nothing is stored under it, and none is required. Where two open calls still have one
//! name, neither is ended.

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::call::cancel::CANCELLED;
use crate::error::{Error, ErrorCode};

/// Header with the id that `initialize` gives out.
pub const SESSION_HEADER: &str = "mcp-session-id";

/// What a client calls the request of this id by. The numbers and the strings are told apart.
pub fn mark(session: Option<&str>, id: &Value) -> String {
    hex::encode(Sha256::digest(format!("{id}\n{}", session.unwrap_or_default())))
}

/// Whether a call ended because its client cancelled it.
pub fn is_cancelled(error: &Error) -> bool {
    error.code == ErrorCode::Interrupted && error.details.get("reason").is_some_and(|reason| reason == CANCELLED)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_pair_of_client_and_id_has_a_mark_of_its_own() {
        let pairs =
            [(None, json!(1)), (None, json!("1")), (None, json!(12)), (Some("1"), json!(1)), (Some("2"), json!(1))];
        let marks: std::collections::BTreeSet<_> = pairs.iter().map(|(session, id)| mark(*session, id)).collect();
        assert_eq!(marks.len(), pairs.len());
        assert_eq!(mark(Some(""), &json!(1)), mark(None, &json!(1)));
        assert!(marks.iter().all(|mark| mark.len() == 64));
    }
}
