//! Commands that may not begin any more, whose requests may still be under way in the memory of the sandbox's object.
//!
//! The daemon of a boot refuses what it was told to forbid. A request that waits here might reach the next boot, which was not told; it
//! dies with this memory, so that this memory is enough.

use std::cell::RefCell;
use std::collections::VecDeque;

use serde::Deserialize;

/// Ids remembered at most. A request waits for a minute or two.
const MOST: usize = 1000;

#[derive(Default)]
pub struct Forbidden {
    ids: RefCell<VecDeque<String>>,
}

/// The only field of a command's request that matters here.
#[derive(Deserialize)]
struct Identified {
    id: String,
}

impl Forbidden {
    /// Notes a request to forbid a command, if it is one.
    pub fn note(&self, method: &str, path: &str) {
        let id = path.strip_prefix("/v1/execs/").and_then(|rest| rest.strip_suffix("/forbid"));
        let Some(id) = id.filter(|_| method == "POST") else { return };
        let mut ids = self.ids.borrow_mut();
        if ids.len() >= MOST {
            ids.pop_front();
        }
        ids.push_back(id.to_owned());
    }

    /// Whether this is the request for a command that may not begin.
    pub fn holds(&self, method: &str, path: &str, body: Option<&str>) -> bool {
        let ids = self.ids.borrow();
        if ids.is_empty() || method != "POST" || path != "/v1/execs" {
            return false;
        }
        let asked = body.and_then(|body| serde_json::from_str::<Identified>(body).ok());
        asked.is_some_and(|asked| ids.contains(&asked.id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: Option<&str> = Some(r#"{"command":"true","id":"call-1"}"#);

    #[test]
    fn a_command_that_was_forbidden_is_held() {
        let forbidden = Forbidden::default();
        assert!(!forbidden.holds("POST", "/v1/execs", BODY));
        forbidden.note("POST", "/v1/execs/call-1/kill");
        forbidden.note("GET", "/v1/execs/call-1/forbid");
        assert!(!forbidden.holds("POST", "/v1/execs", BODY));
        forbidden.note("POST", "/v1/execs/call-1/forbid");
        assert!(forbidden.holds("POST", "/v1/execs", BODY));
        assert!(!forbidden.holds("POST", "/v1/execs", Some(r#"{"id":"call-2"}"#)));
        assert!(!forbidden.holds("POST", "/v1/processes", BODY) && !forbidden.holds("POST", "/v1/execs", None));
    }

    #[test]
    fn the_oldest_of_too_many_are_forgotten() {
        let forbidden = Forbidden::default();
        forbidden.note("POST", "/v1/execs/call-1/forbid");
        (0..MOST).for_each(|number| forbidden.note("POST", &format!("/v1/execs/{number}/forbid")));
        assert!(!forbidden.holds("POST", "/v1/execs", BODY));
    }
}
